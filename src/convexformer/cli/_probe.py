"""``convexformer probe``: how much of every head is static mixing?"""

from __future__ import annotations

import json as jsons
import random
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from ._console import InputError, check_place, counted, emit, say, show, warned
from ._extract import run_extraction, running
from ._figures import check_figure, headless, save
from ._options import command

if TYPE_CHECKING:
    from rich.table import Table

    from convexformer.probes import HeadProbe, LayerProbe

KEEP = ("values", "heads", "maps")
OF_MODELS = ("texts", "layer", "out", "max_length", "truncate")


@command
def probe(
    context: typer.Context,
    model: str,
    texts: Path | None = None,
    *,
    layer: int | None = None,
    out: Path | None = None,
    window: int = 8,
    max_texts: int = 2000,
    seed: int = 0,
    max_length: int | None = None,
    truncate: bool = False,
    tol: float = 1e-6,
    figure: Path | None = None,
    force: bool = False,
    json: bool = False,
) -> None:
    """Say how much of what every head of a layer writes is static mixing, and where it looks.

    Static: the same at every target, whatever the tokens say. Mixing is fitted to its certified
    optimum, and tested on texts that the fit has not seen.

    Parameters
    ----------
    model
        As for extract; or a folder that extract wrote, or a file that --json made.
    out : DIR
        Keep the activations here, to probe again.
    window : at least 1
        Offsets from -WINDOW to WINDOW.
    max_texts : at least 20
        Most texts to use.
    seed : at least 0
        Draws which texts train, choose and test.
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
        with _folder(out) as place:
            with running(out) as report:
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
            say(f"Figure: {figure}", style="dim", whole=True)


def _refuse(context: typer.Context, why: str, names: Iterable[str]) -> None:
    """Raise if an option was given that has no effect here."""
    sources = {name: context.get_parameter_source(name) for name in names}
    given = [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
    if given:
        options = ["TEXTS" if name == "texts" else f"--{name.replace('_', '-')}" for name in given]
        raise InputError(f"{why}: leave {' and '.join(options)} out.")


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

    with warned(), counted("heads") as report:
        return probe(folder, report=report, **settings)


def _show(result: LayerProbe, drawn: bool) -> None:
    trained, chosen, tested = result.n_texts
    ways, targets = "back" if result.causal else "both ways", result.n_targets[2]
    say(
        (f"Layer {result.layer} of {result.n_layers}", "bold"),
        f" of {result.model}, looking {ways}: trained on "
        f"{trained} texts, chosen on {chosen}, tested on {tested} ({targets} targets)\n",
    )
    show(_table(result.heads))
    say(
        "\nshare: of the variance of what a head writes, explained on unseen text by certified "
        "static mixing; by weights: by one weight per place alone; own: by the model's own "
        "mean attention, frozen. reads: the places that contribute most, and the deviation of "
        "what they contribute over that of what the head writes.",
        style="dim",
    )
    head = ("Certified optimum for every head", "bold green")
    if not result.worst_gap <= result.tol:
        head = (f"Not every head reached the gap of {result.tol:g}", "bold yellow")
    say(
        head,
        ": relative duality gap at most ",
        (f"{result.worst_gap:.1e}", "bold"),
        ". The offset that mixing weighs most is that of the model's own mean attention in "
        f"{result.agreement} of {len(result.varying)} heads.",
    )
    if not drawn:
        say(f"Took {result.seconds:.1f} s.", style="dim")


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
