"""``convexformer reproduce teacher``: students of a real encoder's attention."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from . import _options as opt
from ._console import InputError, check_place, emit, friendly, out
from ._experiments import MaxMinutes, load, progress, publish
from ._extract import running

PAGE = "teacher.md"

Folder = Annotated[
    Path,
    typer.Option("--out", metavar="DIR", help="Folder for activations, finished jobs, results."),
]
Page = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Where to write the page; figures go into figures/ beside it.",
        show_default=f"{PAGE} in DIR",
    ),
]
Mrpc = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        envvar="CONVEXFORMER_MRPC",
        help="Folder with MRPC's files; without it, the sentences of the package are used.",
    ),
]
Model = Annotated[str, typer.Option(help="An encoder, as for extract.")]
Layer = Annotated[int, typer.Option(help="Layer to learn from, counted from 0.")]
Tokens = Annotated[int, typer.Option(min=4, help="Tokens of a text; longer ones lose their ends.")]
Quick = Annotated[
    bool, typer.Option("--quick", help="Six students once, on all channels: some minutes.")
]

Few = Annotated[bool, typer.Option("--few", help="Fewer students, on two targets.")]


@friendly
def teacher(
    folder: Folder = Path("teacher"),
    page: Page = None,
    mrpc: Mrpc = None,
    model: Model = "minilm",
    layer: Layer = 2,
    tokens: Tokens = 32,
    quick: Quick = False,
    few: Few = False,
    max_minutes: MaxMinutes = None,
    json: opt.Json = False,
) -> None:
    """Let softmax, simplex and convex students reproduce what a real encoder's attention writes.

    Every finished job is kept in DIR at once: after an interruption, run the same command again.
    """
    if quick and (few or page is not None or max_minutes is not None):
        raise InputError("--quick prints a table: leave --few, --page and --max-minutes out.")
    check_place(folder)
    experiment = load("teacher", figures=not quick, models=True)
    settings = {"model": model, "layer": layer, "n_tokens": tokens}
    if quick:
        settings["most"] = experiment.QUICK_PAIRS
    lessons = _lessons(mrpc, settings, folder / "activations")
    if quick:
        with progress(folder) as report:
            rows = experiment.run_quick(lessons, folder, report)
        if not json:
            _tell(lessons.source, lessons.sizes, rows)
            out().print(
                Text(
                    "Quick: one seed, no tuning, few steps. For students tuned and trained to the "
                    "end, and who is ahead then, see docs/teacher.md.\n",
                    "dim",
                )
            )
        emit(_short(lessons, rows))
        return
    with progress(folder) as report:
        studies = experiment.FEW_STUDIES if few else experiment.STUDIES
        results = experiment.run(lessons, folder, studies, max_minutes=max_minutes, report=report)
    files = publish(results, folder / PAGE if page is None else page, "teacher")
    if json:
        told = ("command", "complete", "date", "text", "sizes", "teacher")
        rows = [{k: v for k, v in row.items() if k != "curve"} for row in results["rows"]]
        files = [folder / "results.json", *files]
        emit({key: results[key] for key in told} | {"rows": rows, "files": files})
    else:
        _tell(lessons.source, lessons.sizes, results["rows"])
        if not results["complete"]:
            out().print("\nNot all jobs are done: run the same command again to go on.")
        words = ("\nWritten: ", (" and ".join(map(str, files)), "bold"))
        out().print(Text.assemble(*words), soft_wrap=True)


def _lessons(mrpc: Path | None, settings: dict[str, Any], folder: Path) -> Any:
    """Extract what students learn from, with a bar."""
    from convexformer.datasets import prose, sentence_pairs
    from convexformer.experiments.teacher_data import Lessons, Teacher

    pairs = prose() if mrpc is None else sentence_pairs(mrpc)
    with running(folder) as advance:

        def report(done: int, total: int) -> None:
            advance(done, total)

        try:
            return Lessons(Teacher(**settings), pairs, folder, report)
        except ImportError as error:
            raise InputError(error) from error


def _short(lessons: Any, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One object: test loss and seconds of every student, and the gap of convex ones."""
    told = ("test_loss", "seconds", "seconds_to_converge", "relative_gap")
    return {
        "text": lessons.source,
        "model": lessons.teacher.model,
        "layer": lessons.teacher.layer,
        "texts": list(lessons.sizes),
        "dim": lessons.found.dim,
        "students": {row["student"]: {k: row[k] for k in told if k in row} for row in rows},
    }


def _tell(source: str, sizes: tuple[int, ...], rows: list[dict[str, Any]]) -> None:
    from convexformer.experiments.teacher_claims import still_falls
    from convexformer.experiments.teacher_data import TARGETS
    from convexformer.experiments.teacher_jobs import LABELS

    from ._words import plain_table

    console = out()
    texts = "MRPC" if source == "MRPC" else "the sentences of the package (not MRPC)"
    trained, chosen, tested = sizes
    console.print(
        f"Texts: {texts}; trained on {trained} pairs, chosen on {chosen}, tested on {tested}.\n"
    )
    task, table = None, None
    numbers = ("test loss", "seconds", "gap")
    falling = False
    for row in rows:
        if row["task"] != task:
            if table is not None:
                console.print(table, "")
            task = row["task"]
            dim = "all channels" if task["dim"] is None else f"{task['dim']} components"
            title = f"{TARGETS[task['target']]}; inputs: {dim}"
            console.print(Text(title, "bold"))
            table = plain_table("student", *numbers, right=numbers)
        gap, falls = row.get("relative_gap"), not row["convex"] and still_falls(row)
        falling |= falls
        assert table is not None
        table.add_row(
            Text(LABELS[row["student"]], "bold" if row["convex"] else ""),
            f"{row['test_loss']:.3f}{'*' if falls else ' '}",
            f"{row['seconds_to_converge']:.1f}",
            "" if gap is None else Text(f"{gap:.0e}", "green"),
        )
    console.print(table)
    console.print(
        Text(
            "\nTest loss: squared error over that of predicting the mean. Seconds: processor time "
            "on one thread, until the validation loss is within 1 % of its lowest, or from the "
            "data to the certified model. Gap: relative duality gap; students without one "
            "have no proof of anything."
            + " *: still falling when its steps were used up."
            * falling,
            "dim",
        )
    )
