"""``convexformer reproduce``: the experiments, each by one command, resumable by job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from . import _options as opt
from ._console import InputError, check_place, emit, err, friendly, out
from ._drop_in import drop_in
from ._experiments import Folder, kept, load
from ._grokking import SeveralValues, grokking
from ._maps import maps
from ._paraphrase import paraphrase
from ._teacher import teacher

if TYPE_CHECKING:
    from rich.table import Table

    from convexformer.experiments.equivalence import Report

reproduce = typer.Typer(
    help="Run an experiment again: results as JSON, a page and figures.", no_args_is_help=True
)

PAGE = "equivalence.md"
QUICK = {"starts": 20, "steps": 400}

Page = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Where to write the page; its figure goes into figures/ beside it.",
        show_default=f"{PAGE} in DIR",
    ),
]
Starts = Annotated[
    int | None, typer.Option(min=1, help="Random starts of a network.", show_default="200")
]
Steps = Annotated[
    int | None, typer.Option(min=1, help="Training steps of a start.", show_default="2000")
]
Quick = Annotated[
    bool, typer.Option("--quick", help="20 starts, 400 steps, fewer numbers of heads: a minute.")
]
Seed = Annotated[int, typer.Option(min=0, help="Of the random starts.")]
Problems = Annotated[
    list[str] | None,
    typer.Option("--problem", metavar="NAME", help="Only this problem. Repeatable."),
]


@reproduce.callback()
def main() -> None:
    """Run an experiment again: results as JSON, a page and figures."""


reproduce.command(cls=SeveralValues)(grokking)
reproduce.command("drop-in")(drop_in)
reproduce.command()(maps)
reproduce.command()(teacher)
reproduce.command()(paraphrase)


@reproduce.command()
@friendly
def equivalence(
    folder: Folder = Path("equivalence"),
    page: Page = None,
    starts: Starts = None,
    steps: Steps = None,
    quick: Quick = False,
    seed: Seed = 0,
    problem: Problems = None,
    json: opt.Json = False,
) -> None:
    """Train networks from many starts against the certified optimum, which none can pass.

    Every finished job is kept in DIR at once: after an interruption, run the same command again.
    """
    check_place(folder)
    experiment = load("equivalence", figures=True)
    names = _known(problem, list(experiment.CASES))
    sizes = {"starts": starts, "steps": steps}
    given = {name: value for name, value in sizes.items() if value is not None}
    settings = experiment.Settings(**(QUICK if quick else {}) | given, seed=seed, quick=quick)
    with _progress(folder) as report:
        results = experiment.run(folder, names, settings, report=report)
    files = _publish(results, folder / PAGE if page is None else page)
    if json:
        told = ("command", "date", "settings", "problems", "rows")
        emit({key: results[key] for key in told} | {"files": [folder / "results.json", *files]})
    else:
        _tell(results, files)


def _known(names: list[str] | None, known: list[str]) -> list[str]:
    for name in names or ():
        if name not in known:
            raise InputError(f"there is no problem {name}; choose of {', '.join(known)}.")
    return known if not names else [name for name in known if name in names]


@contextmanager
def _progress(folder: Path) -> Iterator[Report]:
    """A bar on stderr, and after Ctrl-C a word on where the finished jobs are."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(24), MofNCompleteColumn(), TextColumn("{task.description}"))
    console = err()
    hidden = not console.is_terminal
    count = 0
    with Progress(
        *columns, TimeElapsedColumn(), console=console, transient=True, disable=hidden
    ) as bar:
        task = bar.add_task("solving the convex programs", total=None)

        def report(done: int, total: int, what: str) -> None:
            nonlocal count
            count = done
            bar.update(task, completed=done, total=total, description=what)

        with kept(folder, lambda: count, bar):
            yield report


def _publish(results: dict[str, Any], page: Path) -> list[Path]:
    """Write the page and its figure."""
    from convexformer.experiments.equivalence_figure import draw
    from convexformer.experiments.equivalence_page import render
    from convexformer.experiments.records import replace

    from ._figures import headless, save

    headless()
    figure = page.parent / "figures" / page.with_suffix(".png").name
    page.parent.mkdir(parents=True, exist_ok=True)
    save(draw(results), figure)
    replace(page, render(results, f"figures/{figure.name}"))
    return [page, figure]


def _tell(results: dict[str, Any], files: list[Path]) -> None:
    from convexformer.experiments.equivalence_page import findings

    console = out()
    console.print(_table(results))
    console.print()
    for sentence in findings(results)[:3]:
        console.print(Text(sentence))
    shown = Text.assemble("Page and figure: ", (" and ".join(map(str, files)), "bold"))
    console.print(shown, soft_wrap=True)


def _table(results: dict[str, Any]) -> Table:
    """Heads in bold are enough; heights are above the floor, and no start may be below it."""
    from ._words import plain_table

    numbers = ("heads", "best above", "within 1e-4", "below")
    table = plain_table("problem", "optimiser", *numbers, right=numbers)
    for row in results["rows"]:
        label = results["problems"][row["problem"]]["label"]
        table.add_row(
            label,
            row["optimizer"],
            Text(str(row["heads"]), "bold" if row["enough"] else ""),
            f"{row['best']:.1e}",
            f"{row['close']:.1%}",
            Text(str(row["below"]), "bold red" if row["below"] else "green"),
        )
    return table
