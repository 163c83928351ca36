"""``convexformer reproduce paraphrase``: probes of frozen states on MRPC."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from . import _options as opt
from ._console import InputError, check_place, emit, friendly, out
from ._extract import running
from ._teacher import Layer, Model

PAGE = "paraphrase.md"

Folder = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Folder for activations and results.")
]
Page = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Where to write the page.", show_default=f"{PAGE} in DIR"),
]

Mrpc = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        envvar="CONVEXFORMER_MRPC",
        help="Folder with MRPC's files, msr_paraphrase_train.txt and msr_paraphrase_test.txt.",
        show_default=False,
    ),
]


@friendly
def paraphrase(
    folder: Folder = Path("paraphrase"),
    page: Page = None,
    mrpc: Mrpc = None,
    model: Model = "minilm",
    layer: Layer = 5,
    json: opt.Json = False,
) -> None:
    """Probe frozen states of an encoder: do two sentences of MRPC say the same?

    An interrupted extraction goes on where it stopped when the same command is run again.
    """
    check_place(folder)
    if mrpc is None:
        raise InputError(
            "the sentences of the package have no labels; name MRPC's folder with --mrpc or "
            "CONVEXFORMER_MRPC."
        )
    results = _run(mrpc, folder, model, layer)
    page = folder / PAGE if page is None else page
    _publish(results, page)
    if json:
        emit(results | {"files": [folder / "results.json", page]})
    else:
        _tell(results, page)


def _run(mrpc: Path, folder: Path, model: str, layer: int) -> dict[str, Any]:
    from convexformer.datasets import mrpc as read

    pairs = read(mrpc)
    with running(folder / "activations") as advance:

        def report(done: int, total: int) -> None:
            advance(done, total)

        try:
            import convexformer.nn  # noqa: F401  # first, because its error says what to install
            from convexformer.experiments import classification_probes

            return classification_probes.run(pairs, folder, model=model, layer=layer, report=report)
        except ImportError as error:
            raise InputError(error) from error


def _publish(results: dict[str, Any], page: Path) -> None:
    from convexformer.experiments.classification_page import render
    from convexformer.experiments.records import replace

    replace(page, render(results))


def _tell(results: dict[str, Any], page: Path) -> None:
    from convexformer.experiments.classification_page import findings

    from ._words import plain_table

    numbers = ("accuracy", "F1", "gap")
    table = plain_table("probe", *numbers, right=numbers)
    for row in results["rows"]:
        gap = row.get("relative_gap")
        table.add_row(
            Text(row["label"], "" if gap is None else "bold"),
            f"{row['test']['accuracy']:.1%}",
            f"{row['test']['f1']:.1%}",
            "" if gap is None else Text(f"{gap:.0e}", "green"),
        )
    console = out()
    console.print(f"Test pairs of {results['text']}: {results['sizes'][2]}.\n")
    console.print(table)
    console.print()
    for sentence in findings(results):
        console.print(Text(sentence))
    console.print(Text.assemble("\nWritten: ", (str(page), "bold")), soft_wrap=True)
