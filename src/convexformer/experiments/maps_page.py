"""What the page of attention maps says: a table, and sentences that its numbers decide."""

from __future__ import annotations

import numpy as np

from .maps import summary
from .records import Record, table

MEASURES = {
    "share": "test share",
    "cosine": "cosine",
    "correlation": "correlation",
    "jensen_shannon": "JS",
    "words_cosine": "cosine, words",
    "words_correlation": "correlation, words",
    "words_jensen_shannon": "JS, words",
}


def render(results: Record) -> str:
    """The texts, the table and what it shows, in Markdown."""
    sizes, settings = results["n_texts"], results["settings"]
    words = (
        f"Sentences: {results['text']}; {sum(sizes)}, of which {sizes[2]} to test; maps are "
        f"compared on {min(sizes[2], settings['compared'])} of these. Means over "
        f"{len(results['shares']['convex'][0])} heads; {_trainings(settings['seeds'])}."
    )
    shown = "\n".join(f"- {sentence}" for sentence in [*findings(results), _rates(settings)])
    return "\n\n".join([words, _table(results), shown])


def _rates(settings: Record) -> str:
    """What trained students were given."""
    return (
        f"Softmax students score pairs of tokens by {settings['components']} principal components "
        f"of what the layer reads. Learning rates are fixed, not tuned here: "
        f"{settings['softmax_rate']:g} for softmax, {settings['simplex_rate']:g} for simplex, "
        f"{settings['undertrained_rate']:g} for the undertrained; all take {settings['steps']} "
        "steps."
    )


def _trainings(seeds: int) -> str:
    if seeds == 1:
        return "trained students have one seed"
    return (
        f"trained students have {seeds} seeds, ± is the standard error over them. The split is "
        "one, and certified mixing, in which nothing is random, was fitted once"
    )


def _table(results: Record) -> str:
    rows = [[row["map"], *(number(row, key) for key in MEASURES)] for row in summary(results)]
    return table(["map", *MEASURES.values()], rows)


def number(row: Record, key: str) -> str:
    """A mean with its standard error, where there is one.

    >>> number({"share": 0.5, "errors": {"share": 0.0123}}, "share")
    '0.500 ± 0.0123'
    """
    if row[key] is None:
        return ""
    error = row["errors"][key]
    return f"{row[key]:.3f}" + ("" if error is None else f" ± {error:.4f}")


def findings(results: Record) -> list[str]:
    """What training does to softmax, who explains more, and which convex map is most alike."""
    rows = {row["map"]: row for row in summary(results)}
    return [_training(results, rows), _static(results, rows), _readings(rows)]


def _training(results: Record, rows: dict[str, Record]) -> str:
    """A softmax student and its undertrained twin, beside uniform attention."""
    settings = results["settings"]
    good, poor, flat = (rows[name] for name in ("softmax", "softmax, undertrained", "uniform"))
    told = (
        f"At learning rate {settings['softmax_rate']:g}, with a small start, maps of softmax "
        f"students have a cosine of {number(good, 'cosine')} with the head's own; at "
        f"{settings['undertrained_rate']:g} the same students, in as many steps, "
        f"{number(poor, 'cosine')}. Uniform attention has {number(flat, 'cosine')}."
    )
    nearer = abs(poor["cosine"] - flat["cosine"]) < abs(good["cosine"] - poor["cosine"])
    if nearer and good["cosine"] > poor["cosine"]:
        told += " A map that looks uniform tells of training, not of softmax attention."
    return told


def _static(results: Record, rows: dict[str, Record]) -> str:
    """Certified mixing beside what Adam made of simplex and of softmax attention."""
    convex = np.asarray(results["shares"]["convex"][0])
    told = [
        f"{_verb(convex, name, results)} {name} attention trained by Adam "
        f"({number(rows[name], 'share')})"
        for name in ("simplex", "softmax")
    ]
    return (
        f"Certified mixing, proved optimal at its penalty (relative gap at most "
        f"{results['relative_gap']:.0e}), explains {convex.mean():.3f}: {' and '.join(told)}. It "
        "has a matrix for every place, where simplex attention has a weight; of neither do these "
        "depend on content."
    )


def _verb(convex: np.ndarray, name: str, results: Record) -> str:
    """More or less than another student, and in how many heads, means over trainings."""
    other = np.mean(results["shares"][name], axis=0)
    verb = "more" if convex.mean() > other.mean() else "less"
    count = int(np.sum(convex > other if verb == "more" else convex < other))
    return f"{verb}, in {count} of {len(convex)} heads, than"


def _readings(rows: dict[str, Record]) -> str:
    """Which way to read a convex map is most like the teacher, and whether simplex is more so."""
    names = [name for name in rows if name.startswith("convex")]
    told = [
        f"{name.removeprefix('convex, ')} ({rows[name]['cosine']:.3f}; "
        f"{rows[name]['words_cosine']:.3f} among words)"
        for name in sorted(names, key=lambda name: -rows[name]["cosine"])
    ]
    simplex = rows["simplex"]
    passed = sum(simplex["cosine"] > rows[name]["cosine"] for name in names)
    how_many = {0: "none", len(names): "all"}.get(passed, str(passed))
    return (
        f"Its three maps by their cosine with the head's own: {', '.join(told)}. That of simplex "
        f"attention ({simplex['cosine']:.3f}; {simplex['words_cosine']:.3f}) is, with special "
        f"tokens, more alike than {how_many} of them."
    )
