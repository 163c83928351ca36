"""``convexformer reproduce drop-in``: the gated layer where one would have put a transformer's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from . import _options as opt
from ._console import InputError, check_place, emit, friendly, out
from ._experiments import Folder, MaxMinutes, load, progress

PAGE = "drop-in.md"

Page = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Where to write the page.", show_default=f"{PAGE} in DIR"),
]
Datasets = Annotated[
    list[str] | None,
    typer.Option("--dataset", metavar="NAME", help="Only hla, splice or motion. Repeatable."),
]


@friendly
def drop_in(
    folder: Folder = Path("drop-in"),
    page: Page = None,
    dataset: Datasets = None,
    max_minutes: MaxMinutes = None,
    json: opt.Json = False,
) -> None:
    """Put the gated layer in place of a transformer's, at equal size, on real sequences.

    Every finished job is kept in DIR at once: after an interruption, run the same command again.
    """
    check_place(folder)
    experiment = load("drop_in")
    names = experiment.NAMES if dataset is None else tuple(dataset)
    for name in names:
        if name not in experiment.NAMES:
            known = ", ".join(experiment.NAMES)
            raise InputError(f"there is no data set {name} in this experiment; choose of {known}.")
    with progress(folder) as report:
        results = experiment.run(folder, names, max_minutes=max_minutes, report=report)
    page = folder / PAGE if page is None else page
    _publish(results, page)
    if json:
        told = ("command", "complete", "date", "seconds", "datasets")
        emit({key: results[key] for key in told} | {"files": [folder / "results.json", page]})
    else:
        _tell(results, page)


def _publish(results: dict[str, Any], page: Path) -> None:
    from convexformer.experiments.drop_in_page import render
    from convexformer.experiments.records import replace

    replace(page, render(results))


def _tell(results: dict[str, Any], page: Path) -> None:
    from convexformer.experiments.drop_in_page import findings

    from ._words import plain_table

    numbers = ("parameters", "score", "steps", "seconds")
    table = plain_table("data", "model", *numbers, right=numbers)
    for name, cells in results["datasets"].items():
        for model, cell in cells.items():
            table.add_row(
                name,
                results["models"][model]["label"],
                f"{cell['parameters']:,}",
                f"{cell['mean']:.3f}",
                f"{cell['median_steps']:.0f}",
                f"{cell['median_seconds']:.2f}",
            )
    console = out()
    console.print(table)
    console.print()
    for sentence in findings(results):
        console.print(Text(sentence))
    if not results["complete"]:
        console.print("\nNot all jobs are done: run the same command again to go on.")
    console.print(Text.assemble("\nWritten: ", (str(page), "bold")), soft_wrap=True)
