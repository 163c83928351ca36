"""``convexformer probe``: how much of every head is static mixing?"""

from __future__ import annotations

import json as jsons
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from . import _options as opt
from ._console import InputError, check_place, emit, err, friendly, out, warned
from ._explain import check_figure
from ._extract import MaxLength, Truncate, run_extraction, running
from ._figures import headless, save

if TYPE_CHECKING:
    from rich.table import Table

    from convexformer.probes import HeadProbe, LayerProbe

KEEP = ("values", "heads", "maps")
OF_MODELS = ("texts", "layer", "folder", "max_length", "truncate")
OPTIONS = {"texts": "TEXTS", "folder": "--out"}  # by their names in code, where these differ

Source = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="As for extract; or a folder that extract wrote, or a file that --json made.",
    ),
]
Texts = Annotated[
    Path | None,
    typer.Argument(metavar="TEXTS", help="A text per line, or pairs separated by a tab."),
]
Layer = Annotated[int | None, typer.Option(help="Layer to probe, counted from 0.")]
Folder = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Keep the activations here, to probe again."),
]
Window = Annotated[int, typer.Option(min=1, help="Offsets from -WINDOW to WINDOW.")]
MaxTexts = Annotated[int, typer.Option(min=20, help="Most texts to use.")]
Seed = Annotated[int, typer.Option(min=0, help="Draws which texts train, choose and test.")]
FigureFile = Annotated[Path | None, typer.Option(help="Draw to this file: png, pdf or svg.")]


@friendly
def probe(
    context: typer.Context,
    model: Source,
    texts: Texts = None,
    layer: Layer = None,
    folder: Folder = None,
    window: Window = 8,
    max_texts: MaxTexts = 2000,
    seed: Seed = 0,
    max_length: MaxLength = None,
    truncate: Truncate = False,
    tol: opt.Tol = 1e-6,
    figure: FigureFile = None,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:
    """Say how much of what every head of a layer writes is static mixing, and where it looks.

    Static: the same at every target, whatever the tokens say. Mixing is fitted to its certified
    optimum, and tested on texts that the fit has not seen.
    """
    if figure is not None:
        check_figure(figure, force, [Path(model), *([] if texts is None else [texts])])
    if not tol > 0:
        raise InputError(f"--tol must be positive, got {tol:g}.")
    settings: dict[str, Any] = {"window": window, "max_texts": max_texts}
    settings |= {"seed": seed, "tol": tol}
    drawn = model.endswith(".json")
    if drawn:
        _refuse(context, f"{model} is drawn as it is", (*OF_MODELS, *settings))
        result = _read(Path(model))
    elif (Path(model) / "recipe.json").is_file():
        _refuse(context, f"{model} holds activations", OF_MODELS)
        result = _run(Path(model), settings)
    elif texts is None or layer is None:
        raise InputError(f"to probe the model {model}, give TEXTS and --layer as well.")
    else:
        options: dict[str, Any] = {"max_length": max_length, "truncate": truncate}
        options |= {"overwrite": force, "keep": KEEP}
        read = _texts(texts, max_texts, seed)
        with _folder(folder) as place:
            with running(folder) as report:
                run_extraction(model, read, layer, place, report=report, **options)
            result = _run(place, settings)
    if figure is not None:
        headless()
        from convexformer.plotting import ProbeDisplay

        save(ProbeDisplay.from_probe(result).figure_, figure)
    if json:
        emit(result.to_dict() | {"figure": figure})
    else:
        _show(result, drawn)
        if figure is not None:
            out().print(Text(f"Figure: {figure}", "dim"), soft_wrap=True)


def _refuse(context: typer.Context, why: str, names: Iterable[str]) -> None:
    """Raise if an option was given that has no effect here."""
    sources = {name: context.get_parameter_source(name) for name in names}
    given = [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
    if given:
        words = " and ".join(OPTIONS.get(name, f"--{name.replace('_', '-')}") for name in given)
        raise InputError(f"{why}: leave {words} out.")


def _read(file: Path) -> LayerProbe:
    from convexformer.probes import LayerProbe

    from ._files import check_file, reading

    check_file(file)
    with reading(file, "It is no result of probe --json."):
        return LayerProbe.from_dict(jsons.loads(file.read_text()))


@contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    """Where activations go; removed afterwards unless they are to be kept."""
    if kept is not None:
        check_place(kept)
        yield kept
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def _texts(file: Path, most: int, seed: int) -> dict[int, Any]:
    """Different texts of the file by line; of too many, some are drawn."""
    from convexformer.activations import read_texts
    from convexformer.probes import check_different

    lines = {text: line for line, text in enumerate(read_texts(file), start=1)}
    check_different(len(lines))  # before the model is loaded
    texts = {line: text for text, line in lines.items()}
    if len(texts) > most:
        texts = {line: texts[line] for line in sorted(random.Random(seed).sample([*texts], most))}
    return texts


def _run(folder: Path, settings: dict[str, Any]) -> LayerProbe:
    from convexformer.probes import probe

    with warned(), _heads() as report:
        return probe(folder, report=report, **settings)


@contextmanager
def _heads() -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (BarColumn(24), MofNCompleteColumn(), TextColumn("heads"), TimeRemainingColumn())
    console = err()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _show(result: LayerProbe, drawn: bool) -> None:
    console = out()
    trained, chosen, tested = result.n_texts
    console.print(
        Text.assemble(
            (f"Layer {result.layer} of {result.n_layers}", "bold"),
            f" of {result.model}, looking {'back' if result.causal else 'both ways'}: trained on "
            f"{trained} texts, chosen on {chosen}, tested on {tested} "
            f"({result.n_targets[2]} targets)\n",
        )
    )
    console.print(_table(result.heads))
    console.print(
        Text(
            "\nshare: of the variance of what a head writes, explained on unseen text by certified "
            "static mixing; by weights: by one weight per place alone; own: by the model's own "
            "mean attention, frozen. reads: the places that contribute most, and the deviation of "
            "what they contribute over that of what the head writes.",
            "dim",
        )
    )
    console.print(_verdict(result))
    if not drawn:
        console.print(Text(f"Took {result.seconds:.1f} s.", "dim"))


def _verdict(result: LayerProbe) -> Text:
    reached = result.worst_gap <= result.tol
    head, style = "Certified optimum for every head", "bold green"
    if not reached:
        head, style = f"Not every head reached the gap of {result.tol:g}", "bold yellow"
    return Text.assemble(
        (head, style),
        ": relative duality gap at most ",
        (f"{result.worst_gap:.1e}", "bold"),
        ". The offset that mixing weighs most is that of the model's own mean attention in "
        f"{result.agreement} of {len(result.varying)} heads.",
    )


def _table(heads: list[HeadProbe]) -> Table:
    from ._words import bar, plain_table

    numbers = ("head", "share", "by weights", "own")
    table = plain_table("head", "share", "", "by weights", "own", "reads", right=numbers)
    for head in heads:
        if head.constant:
            table.add_row(str(head.head), "", "", "", "", Text("writes the same everywhere", "dim"))
            continue
        table.add_row(
            str(head.head),
            Text.assemble((f"{head.share:.2f}", "bold"), (f" ±{head.share_error:.2f}", "dim")),
            bar(max(0.0, head.share), 1.0, 10),
            f"{head.attention_share:.2f}",
            f"{head.model_attention_share:.2f}",
            _places(head),
        )
    return table


def _places(head: HeadProbe, most: int = 3) -> Text:
    """The places that contribute most, and how much."""
    words = Text()
    for name in head.top[:most]:
        strength = head.strengths[head.names.index(name)]
        words.append(f"{name} ", "bold").append(f"{strength:.2f}   ", "dim")
    words.rstrip()
    return words
