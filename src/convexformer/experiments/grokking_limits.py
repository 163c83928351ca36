"""What the grokking experiment did not do: what its budget, ranges and choices left out."""

from __future__ import annotations

from .grokking_claims import contest_row, small_finals
from .grokking_jobs import LEVEL
from .grokking_recipes import at_edge, unsettled
from .grokking_small import MODULUS, SHARES, SMALL
from .grokking_studies import CONTESTANTS
from .records import Record


def left_out(results: Record) -> list[str]:
    """Sentences for the end of the page."""
    told = [
        "Recipes are searched line by line under one seed; another search may favour anyone. Its "
        "range was set after earlier trials with the gated layer, an MLP and a standard block, "
        "test halves in view.",
        "Modulo 97, Power et al.'s recipe with two blocks, as they trained it (one block is "
        "the paper's L = 1); four standard blocks; more seeds where the table says fewer than "
        "five; runs without decay beyond their steps.",
        "Modulo 15, training beyond the steps of the tables, the first of which gives four layers "
        "more of them and more settings than one; learning rates beside "
        f"{' and '.join(f'{lr:g}' for lr in sorted({lr for lr, *_ in SMALL['gated'].grid}))}.",
    ]
    for sentence, names in (
        ("Chosen at an edge of the range, so that more may lie beyond", _at_edges(results)),
        (
            "Chosen for height, since no recipe of the search settled, so that no multiples are "
            "told of them",
            [_label(results, name) for name in unsettled(results)],
        ),
        (
            "Modulo 15, chosen while all settings were still near chance, and so hardly chosen",
            _hardly_chosen(results),
        ),
        ("Modulo 15, not even the training part is told at the end by", _unfit(results)),
        ("Not run", _not_run(results)),
        ("Modulo 15, not run", _small_not_run(results)),
    ):
        told += [f"{sentence}: {'; '.join(names)}."] if names else []
    return [_spent(results), *told]


def _spent(results: Record) -> str:
    """Processor time of what recorded it."""
    jobs = [*results["records"], *results["convex"], *results["small"]]
    jobs += results.get("longer", [])
    hours = sum(job.get("seconds", 0.0) for job in jobs) / 3600
    words = f"Steps and solvers took {hours:.1f} core-hours, of the 8 that were allowed; "
    known = all("seconds" in job for job in jobs)
    return words + ("" if known else "modulo 15 and ") + "measurements are not counted."


def _at_edges(results: Record) -> list[str]:
    return [_label(results, row["name"]) for row in results["rows"] if at_edge(row)]


def _label(results: Record, name: str) -> str:
    """Of a contestant; stacks of the study of depth are called by their size."""
    return str(results["labels"].get(name, f"gated: {name}"))


def _hardly_chosen(results: Record) -> list[str]:
    """Whose best setting told less than twice as much as chance when it was chosen."""
    finals = small_finals(results)
    return [
        f"{SMALL[record['name']].label} ({record['share']:.0%})"
        for record in results["small"]
        if not record["setting"]
        and record["name"] in finals.get(record["share"], {})
        and max(one["last"] for one in record["grid"]) < 2 / MODULUS
    ]


def _unfit(results: Record) -> list[str]:
    """Whose median split is below 99 % of its training part at the last measurement."""
    return [
        f"{SMALL[name].label} ({share:.0%})"
        for share, final in small_finals(results).items()
        for name, record in final.items()
        if record["curve"]["train"]["median"][-1] < LEVEL
    ]


def _not_run(results: Record) -> list[str]:
    return [c.label for name, c in CONTESTANTS.items() if contest_row(results, name) is None]


def _small_not_run(results: Record) -> list[str]:
    finals = small_finals(results)
    return [
        f"{small.label} ({share:.0%})"
        for share in SHARES
        for name, small in SMALL.items()
        if name not in finals.get(share, {})
    ]
