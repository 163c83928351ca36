"""``convexformer reproduce maps``: attention maps of students beside their teacher's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from . import _options as opt
from ._console import check_place, emit, friendly, out
from ._experiments import Folder, load, progress
from ._figures import headless, save

Model = Annotated[str, typer.Option(help="As for extract.")]
Layer = Annotated[int, typer.Option(help="Layer to learn from, counted from 0.")]
Sentences = Annotated[int, typer.Option(min=40, help="Most sentences.")]
Steps = Annotated[int, typer.Option(min=1, help="Training steps.")]
Seed = Annotated[int, typer.Option(min=0, help="Of the split and of the first training.")]
Seeds = Annotated[int, typer.Option(min=1, help="Trainings of every trained student.")]


@friendly
def maps(
    folder: Folder = Path("maps"),
    model: Model = "minilm",
    layer: Layer = 2,
    sentences: Sentences = 1200,
    steps: Steps = 1000,
    seed: Seed = 0,
    seeds: Seeds = 3,
    json: opt.Json = False,
) -> None:
    """Compare what students of every head look at with what the head looks at.

    Sentences are MRPC's where CONVEXFORMER_MRPC names its folder, else those of the package. Every
    finished job is kept in DIR at once: after an interruption, run the same command again.
    """
    check_place(folder)
    experiment = load("maps", models=True)
    settings = experiment.Settings(
        model=model, layer=layer, sentences=sentences, steps=steps, seed=seed, seeds=seeds
    )
    with progress(folder) as report:
        results = experiment.run(folder, settings, report=report)
    headless()
    from convexformer.experiments.maps_figure import draw

    save(draw(results), folder / "maps.png")
    rows = experiment.summary(results)
    if json:
        emit({"rows": rows, "files": [folder / "results.json", folder / "maps.png"]})
    else:
        _tell(results, rows, folder)


def _tell(results: dict[str, Any], rows: list[dict[str, Any]], folder: Path) -> None:
    from ._words import plain_table

    numbers = ("share", "cosine", "corr.", "JS", "cosine w.", "JS w.")
    table = plain_table("map", *numbers, right=numbers)
    for row in rows:
        values = [row[name] for name in ("share", "cosine", "correlation", "jensen_shannon")]
        values += [row["words_cosine"], row["words_jensen_shannon"]]
        shown = ["" if value is None else f"{value:.2f}" for value in values]
        table.add_row(row["map"], *shown)
    console = out()
    console.print(table)
    heads = len(results["shares"]["convex"][0])
    console.print(
        Text(
            f"\nMeans over {heads} heads{_trainings(rows)}. Convex students are certified, "
            f"relative duality gap at most {results['relative_gap']:.1e}. share: of variance "
            "explained on unseen text; JS: Jensen-Shannon divergence in bits; w.: among words, "
            "without special tokens.",
            "dim",
        )
    )
    console.print(Text(f"Wrote {folder / 'results.json'} and {folder / 'maps.png'}", "dim"))


def _trainings(rows: list[dict[str, Any]]) -> str:
    """How many trainings there are, and the largest standard error over them."""
    errors = [error for row in rows for error in row["errors"].values() if error is not None]
    if not errors:
        return ""
    seeds = max(row["trainings"] for row in rows)
    return f" and {seeds} seeds of trained students (standard errors at most {max(errors):.3f})"
