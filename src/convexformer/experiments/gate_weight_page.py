"""From finished jobs on `gate_weight` to a summary, and from the summary to a page in Markdown."""

from __future__ import annotations

import numpy as np

from .records import Record, environment_line, environments, table
from .tables import standard_error

TOL = 1e-4  # relative duality gap that every fit is asked for


def summarise(jobs: list[Record]) -> Record:
    """For each data set and number of rows: scores without gates, and what each weight adds."""
    cells = sorted(
        {(job["rows"], job["beta"], job["dataset"]) for job in jobs},
        key=lambda cell: (cell[0], cell[1] or 0.0, cell[2]),
    )
    return {
        "date": max((job["date"] for job in jobs), default=None),
        "environments": environments(jobs),
        "cells": [
            _cell([job for job in jobs if (job["rows"], job["beta"], job["dataset"]) == cell])
            for cell in cells
        ],
    }


def _cell(jobs: list[Record]) -> Record:
    jobs = sorted(jobs, key=lambda job: job["seed"])
    names = [name for name in jobs[0]["models"] if name != "plain"]

    def values(name: str, what: str) -> list[float]:
        return [job["models"][name][what] for job in jobs]

    def compared(name: str, what: str) -> Record:
        differences = list(np.subtract(values(name, what), values("plain", what)))
        return {"mean": float(np.mean(differences)), "standard_error": standard_error(differences)}

    return {
        "dataset": jobs[0]["dataset"],
        "rows": jobs[0]["rows"],
        "beta": jobs[0]["beta"],
        "rows_used": jobs[0]["rows_used"],
        "metric": jobs[0]["metric"],
        "seeds": [job["seed"] for job in jobs],
        "plain": float(np.mean(values("plain", "test"))),
        "validation": {name: compared(name, "validation") for name in names},
        "test": {name: compared(name, "test") for name in names},
        "worst_gap": max(max(values(name, "relative_gap")) for name in ("plain", *names)),
    }


def below(difference: Record) -> bool:
    """Whether a mean difference is negative by more than one standard error.

    Examples
    --------
    >>> from convexformer.experiments.gate_weight_page import below
    >>> below({"mean": -0.02, "standard_error": 0.01})
    True
    >>> below({"mean": -0.02, "standard_error": 0.03})
    False
    """
    return bool(difference["mean"] < -(difference["standard_error"] or 0.0))


def preferred(results: Record) -> str:
    """The weight of the best mean validation among those that are nowhere below, if any."""
    cells = [cell["validation"] for cell in results["cells"] if ":" not in cell["dataset"]]
    means = {
        weight: np.mean([cell[weight]["mean"] for cell in cells])
        for weight in (cells[0] if cells else ())
        if not any(below(cell[weight]) for cell in cells)
    }
    return max(means, key=lambda weight: means[weight], default="none")


def render(results: Record) -> str:
    """The page."""
    package = [cell for cell in results["cells"] if ":" not in cell["dataset"]]
    alleles = [cell for cell in results["cells"] if ":" in cell["dataset"]]
    parts = [
        HEAD,
        _findings(package, alleles, preferred(results)),
        MADE.format(**results),
        *(environment_line(one) for one in results["environments"]),
        PROTOCOL,
        "## What validation says\n",
        VALIDATION,
        _differences(package, "validation"),
        "\n## What the test parts say\n",
        TEST,
        _differences(package, "test"),
    ]
    if alleles:
        parts += [
            "\n## Alleles on which nothing was chosen\n",
            ALLELES,
            _differences(alleles, "test"),
        ]
    return "\n".join(parts) + "\n"


def _findings(package: list[Record], alleles: list[Record], default: str) -> str:
    """What the tables below say of every weight, on what that rests, and what weakens it."""
    sizes: dict[str, list[int]] = {}
    for cell in package:
        if cell["rows"] not in sizes.setdefault(cell["dataset"], []):
            sizes[cell["dataset"]].append(cell["rows"])
    everywhere = sorted({rows for own in sizes.values() for rows in own})
    fewer = [f"; {name} only on {_and(own)}" for name, own in sizes.items() if own != everywhere]
    parts = {"validation": (package, "validation"), "test": (package, "test")}
    if alleles:
        parts["held-out alleles, test"] = (alleles, "test")
    counts = [
        f"in {_count(cells, what, default)} ({name})" for name, (cells, what) in parts.items()
    ]
    header = ["weight", *(f"{name}: {h}" for name in parts for h in ("below", "mean"))]
    rows = [
        [f"**{w}** (default)" if w == default else w]
        + [text for part in parts.values() for text in (_count(*part, w), _mean(*part, w))]
        for w in (package[0]["test"] if package else ())
    ]
    return FOUND.format(
        default=default,
        counts=", ".join(counts),
        datasets=", ".join(sizes),
        rows=_and(everywhere),
        fewer="".join(fewer),
        table=table(header, rows),
        ruled_out=_ruled_out(package, default),
        lost=_lost(parts),
        tol=TOL,
        unfinished=_unfinished([*package, *alleles]),
    )


def _and(numbers: list[int]) -> str:
    return " and ".join(f"{number:,}" for number in numbers)


def _count(cells: list[Record], what: str, weight: str) -> str:
    return f"{sum(below(cell[what][weight]) for cell in cells)} of {len(cells)}"


def _mean(cells: list[Record], what: str, weight: str) -> str:
    return f"{np.mean([cell[what][weight]['mean'] for cell in cells]):+.4f}"


def _ruled_out(package: list[Record], default: str) -> str:
    """A sentence on weights that have a better mean in validation than the default."""
    better = [
        f"Weight {weight} has a better mean, and is ruled out because it is below in "
        f"{_count(package, 'validation', weight)} cells. "
        for weight in (package[0]["validation"] if package else ())
        if _total(package, weight) > _total(package, default)
    ]
    return "".join(better)


def _total(package: list[Record], weight: str) -> float:
    return sum(cell["validation"][weight]["mean"] for cell in package)


def _lost(parts: dict[str, tuple[list[Record], str]]) -> str:
    """The cells that are below, by weight."""
    lost = [
        f"- {name}, weight {weight}: {_where(cell)} ({difference['mean']:.1e})"
        for name, (cells, what) in parts.items()
        for cell in cells
        for weight, difference in cell[what].items()
        if below(difference)
    ]
    return "\n".join(lost) or "- none"


def _where(cell: Record) -> str:
    beta = "chosen" if cell["beta"] is None else f"{cell['beta']:g}"
    return f"{cell['dataset']}, {cell['rows_used']:,} rows, beta {beta}"


def _unfinished(cells: list[Record]) -> str:
    """A paragraph on cells with fits that the time limit stopped, if any."""
    stopped = [
        f"{_where(cell)} (largest relative gap {cell['worst_gap']:.2g})"
        for cell in cells
        if cell["worst_gap"] > TOL
    ]
    return UNFINISHED.format(cells="; ".join(stopped)) if stopped else ""


def _differences(cells: list[Record], what: str) -> str:
    weights = list(cells[0][what]) if cells else []
    header = ["", "rows", "beta", "splits", "without gates", *(f"weight {w}" for w in weights)]
    rows = [
        [
            cell["dataset"],
            str(cell["rows_used"]),
            "chosen" if cell["beta"] is None else f"{cell['beta']:g}",
            str(len(cell["seeds"])),
            f"{cell['plain']:.4f} ({'AUC' if cell['metric'] == 'AUC' else 'accuracy'})",
            *(_number(cell[what][weight]) for weight in weights),
        ]
        for cell in cells
    ]
    if what == "validation":  # another unit than that of the test
        header, rows = header[:4] + header[5:], [row[:4] + row[5:] for row in rows]
    return table(header, rows)


def _number(difference: Record) -> str:
    error = difference["standard_error"]
    number = f"{difference['mean']:+.4f}" + ("" if error is None else f" ± {error:.4f}")
    return f"**{number}**" if below(difference) else number


HEAD = """# How much more should blocks behind gates cost?
"""

FOUND = """\
By default {default} times as much as open ones. At that weight the layer with gates was below the
layer without gates, by more than one standard error, {counts}.
A cell is a data set, a number of training rows, and a beta that was chosen or given. The data sets
are {datasets}; training was on {rows} rows{fewer}.
No data set was run at full size.

{table}

*Below: cells in which the mean difference to the layer without gates is negative by more than one
standard error. Mean: of all cells' differences, in log-likelihood per sample for validation, in
accuracy or area under the ROC curve for tests.*

The rule for the default is: the best mean in validation among the weights that are nowhere below.
{ruled_out}This rule was written down
after the tables of validation and test had been seen, so that they are no independent check of it.

The cells that are below, with their mean differences. Fits were asked for a relative gap of {tol:g}
only, so that the smallest of these differences say nothing:

{lost}
{unfinished}"""

UNFINISHED = """
Fits that the time limit stopped are compared as they were: {cells}.
"""

MADE = """\
## How it was measured

Made by `{command}` from `benchmarks/gate_weight/results.json`, last run {date} UTC. Nothing here is
typed by hand.
"""

PROTOCOL = """
`gate_weight` multiplies the penalty of every block behind a gate that may close. Plain and gated
classifiers (64 gates of the kind "axis", the defaults) were fitted to the same few training rows of
the package's data sets. Where beta is "chosen", each chose its own among seven fractions of
beta_max, 0.3 to 0.003, by three-fold cross-validation on these rows; else it was given. Seed s
tests on part s of five and draws its rows from the other four (for motion, tests and folds are
persons never seen).
"""

VALIDATION = """\
The log-likelihood per sample, cross-validated where beta was chosen, else on up to 1,000 rows
neither trained nor tested on, less that of the layer without gates: mean ± standard error of the
paired difference over the splits. Higher is better.
**Bold**: below the layer without gates by more than one standard error. The default of
`gate_weight` is that of the best mean in this table among those that are nowhere bold.
"""

TEST = """\
Area under the ROC curve for HLA, accuracy elsewhere, on the test part; differences as above.
"""

ALLELES = """\
Peptides of nine amino acids and whether other HLA molecules bind them, prepared as the package's
are. The data (IEDB, CC BY 4.0, as in mhcnuggets 2.4.1) are not part of the package:
`CONVEXFORMER_ALLELES` names the file `curated_training_data.csv`. Area under the ROC curve.
"""
