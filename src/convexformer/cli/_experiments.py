"""What the commands of ``convexformer reproduce`` share: loading, progress, and pages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from ._console import STYLES, InputError, err
from ._figures import headless, save

SECONDS = 10  # between two lines where they are not overwritten

Folder = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Folder for finished jobs and results.")
]
MaxMinutes = Annotated[
    float | None, typer.Option(min=0, help="Begin no job after so long; run again to go on.")
]


def load(name: str, *, figures: bool = False, models: bool = False) -> Any:
    """The experiment; a missing package is named, with the line that cures it, before any work."""
    if figures:
        try:
            import matplotlib  # noqa: F401
        except ImportError as error:
            raise InputError(
                "figures need matplotlib, which is not installed: pip install matplotlib"
            ) from error
    try:
        import convexformer.nn  # noqa: F401  # first, because its error says what to install

        if models:
            from convexformer.activations._loading import require

            require()
        return import_module(f"convexformer.experiments.{name}")
    except ImportError as error:
        raise InputError(error) from error


@contextmanager
def progress(folder: Path) -> Iterator[Callable[[int, str], None]]:
    """A line on stderr with the job, and after Ctrl-C a word on where the finished jobs are.

    In a file or pipe there is a line for every finished job, but not more than one in ten seconds.
    """
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    console, count, told = err(), 0, time.monotonic()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("reading finished jobs", total=None)

        def report(done: int, what: str) -> None:
            nonlocal count, told
            words, finished, count = f"{done} jobs done; {what}", done > count, done
            bar.update(task, description=words)
            if bar.disable and finished and time.monotonic() > told + SECONDS:
                told = time.monotonic()
                console.print(words, highlight=False, soft_wrap=True)

        with kept(folder, lambda: count, bar):
            yield report


@contextmanager
def kept(folder: Path, count: Callable[[], int], bar: Any) -> Iterator[None]:
    """After Ctrl-C, say where the finished jobs are."""
    try:
        yield
    except KeyboardInterrupt:
        bar.stop()
        words = f"stopped; finished jobs ({count()}) are kept in {folder}: run again to go on"
        err().print(words, style=STYLES["warn"], soft_wrap=True)
        raise typer.Exit(130) from None


def publish(results: dict[str, Any], page: Path, name: str) -> list[Path]:
    """Write the page of an experiment, and its figures beside it."""
    from convexformer.experiments.records import replace

    figures = import_module(f"convexformer.experiments.{name}_figures")
    pages = import_module(f"convexformer.experiments.{name}_page")
    headless()
    page.parent.mkdir(parents=True, exist_ok=True)
    links, files = {}, []
    for part, figure in figures.draw_all(results).items():
        links[part] = f"figures/{page.stem}-{part}.png"
        files.append(page.parent / links[part])
        save(figure, files[-1])
    replace(page, pages.render(results, links))
    return [page, *files]
