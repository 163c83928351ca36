"""``convexformer extract``: a model and texts in, activations of a layer on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import typer

from ._console import STYLES, InputError, check_place, counted, emit, err, say
from ._options import command

Kind = StrEnum("Kind", ["inputs", "values", "heads", "attention", "output", "maps"])


@command
def extract(
    model: str,
    texts: Path,
    *,
    layer: int,
    out: Path,
    keep: list[Kind] | None = None,
    dtype: Literal["float32", "float16"] = "float32",
    batch_size: int = 32,
    max_length: int | None = None,
    truncate: bool = False,
    force: bool = False,
    json: bool = False,
) -> None:
    """Write to disk what a layer's self-attention reads, what its heads write and attend to.

    After an interruption, run the same command again: it goes on where it stopped.

    Parameters
    ----------
    model
        minilm (make encoder installs it), a folder, or a name on the Hugging Face hub.
    out : DIR
        Folder for the files.
    keep : default all
        Keep only this kind. Repeatable.
    dtype
        Precision on disk.
    batch_size : at least 1
        Texts per batch and per file.
    """
    from convexformer.activations import KINDS, read_texts

    read = dict(enumerate(read_texts(texts), start=1))  # by line: none is blank
    check_place(out)
    start = time.perf_counter()
    batches = []  # that were not there yet
    options: dict[str, Any] = {
        "keep": [*map(str, keep or KINDS)],
        "dtype": dtype,
        "batch_size": batch_size,
    }
    options |= {"max_length": max_length, "truncate": truncate, "overwrite": force}
    with running(out) as advance:

        def report(done: int, total: int) -> None:
            batches.append(done)
            advance(done, total)

        found = run_extraction(model, read, layer, out, report=report, **options)
    result = {
        "folder": out,
        "model": model,
        "layer": layer,
        "n_layers": found.n_layers,
        "n_heads": found.n_heads,
        "dim": found.dim,
        "n_texts": len(found),
        "n_tokens": int(found.lengths.sum()),
        "keep": found.keep,
        "dtype": dtype,
        "bytes": sum(file.stat().st_size for file in out.iterdir()),
        "was_complete": not batches,
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
    try:
        with counted("loading the model") as update:
            yield lambda done, total: update(done, total, description="texts")
    except KeyboardInterrupt:
        words = "stopped; nothing is kept without --out"
        if folder is not None:
            words = f"stopped; finished files are kept in {folder}: run again to go on"
        err().print(words, style=STYLES["warn"], soft_wrap=True)
        raise typer.Exit(130) from None


def _show(result: dict[str, Any]) -> None:
    said = "Layer {layer} of {n_layers}", " of {model}: {n_texts} texts, {n_tokens} tokens, "
    layer, what = (words.format(**result) for words in said)
    say((layer, "bold"), f"{what}{result['n_heads']} heads", whole=True)
    kept, size = ", ".join(result["keep"]), f"{result['bytes'] / 1e6:.1f} MB in {result['dtype']}"
    if result["was_complete"]:
        say(f"There already: {kept}; {size}.", whole=True)
        say(f"{result['folder']} was complete", style="dim", whole=True)
    else:
        say(f"Kept {kept}: {size} after {result['seconds']:.1f} s.", whole=True)
        say(f"Wrote {result['folder']}", style="dim", whole=True)
