"""Activations from a model to disk, batch by batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ._loading import find
from ._store import (
    FORMAT,
    KINDS,
    PROJECTION,
    Activations,
    prepare,
    shard_names,
    write_recipe,
    write_shard,
    write_tensors,
)
from ._texts import Text, check_texts, fingerprint

DTYPES = ("float32", "float16")


def extract(
    model: Any,
    texts: Sequence[Text],
    layer: int,
    out: str | os.PathLike[str],
    *,
    keep: Sequence[str] = KINDS,
    dtype: str = "float32",
    batch_size: int = 32,
    max_length: int | None = None,
    truncate: bool = False,
    overwrite: bool = False,
    report: Callable[[int, int], None] | None = None,
) -> Activations:
    """Write what a layer's self-attention reads and writes to disk.

    An extraction that was interrupted is not opened, and begins anew when it is run again.

    Parameters
    ----------
    model : str, path-like or (model, tokenizer)
        "minilm" (the packaged encoder), a folder, or a name on the Hugging Face hub; or a model of
        transformers with its tokenizer. The model's later layers are never run.
    texts : list of str, or of (str, str)
        Single texts, or pairs that the tokenizer joins.
    layer : int
        Counted from 0.
    out : path-like
        Folder for the files; made if need be.
    keep : sequence of {"inputs", "values", "heads", "attention", "output", "maps"}
        What to keep, see :class:`TextActivations`; everything by default.
    dtype : {"float32", "float16"}, default="float32"
        Precision on disk. A model by name or folder runs in float32, one that is given in its own.
    batch_size : int, default=32
        Texts per batch, and per shard. Memory does not grow with the number of texts.
    max_length : int, optional
        Most tokens of a text, special ones included; the model's own limit if omitted.
    truncate : bool, default=False
        Whether longer texts lose their ends. Otherwise they are an error that names the first.
    overwrite : bool, default=False
        Whether a folder that holds a complete extraction is emptied of it.
    report : callable, optional
        Receives the texts done and their total after every batch.

    Returns
    -------
    Activations
    """
    given = {keep} if isinstance(keep, str) else set(keep)
    if not given or not given <= set(KINDS):
        raise ValueError(f"keep must be some of {KINDS}, got {keep!r}.")
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {DTYPES}, got {dtype!r}.")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size!r}.")
    texts = check_texts(texts)
    source = find(model)
    n_layers = source.config.num_hidden_layers
    if layer not in range(n_layers):
        raise ValueError(
            f"there is no layer {layer}: the model has {n_layers}, counted from 0 to "
            f"{n_layers - 1}."
        )
    most = source.limit if max_length is None else max_length
    special = source.tokenizer.num_special_tokens_to_add(pair=not isinstance(texts[0], str))
    if not special < most <= source.limit:  # special tokens are never cut
        raise ValueError(
            f"max_length must be {special + 1} to {source.limit}: more than the special tokens of "
            f"a text, and no more than the model reads; got {most}."
        )
    if not truncate:
        _check_lengths(source.tokenizer, texts, most)
    folder = Path(out)
    left = prepare(folder, overwrite)
    from ._capture import Listener  # needs torch, which `find` has asked for

    listener = Listener(source.load(), source.tokenizer, int(layer))
    recipe: dict[str, Any] = {
        "format": FORMAT,
        "model": source.name,
        "texts": fingerprint(texts),
        "n_texts": len(texts),
        "layer": int(layer),
        **listener.sizes,
        "keep": [kind for kind in KINDS if kind in given],
        "dtype": dtype,
        "batch_size": int(batch_size),
        "max_length": int(most),
        "truncate": bool(truncate),
        **{name: version(name) for name in ("torch", "transformers")},
    }
    for path in left:
        path.unlink(missing_ok=True)
    write_tensors(folder / PROJECTION, listener.output_projection())
    for number, name in enumerate(shard_names(recipe)):
        batch = texts[number * batch_size : (number + 1) * batch_size]
        write_shard(folder / name, listener(batch, most, recipe["keep"], dtype))
        if report is not None:
            report(number * batch_size + len(batch), len(texts))
    write_recipe(folder, recipe)
    return Activations.open(folder)


def _check_lengths(tokenizer: Any, texts: list[Text], most: int, step: int = 256) -> None:
    """Before any work is done: is every text short enough?"""
    for start in range(0, len(texts), step):
        rows = tokenizer(texts[start : start + step], verbose=False)["input_ids"]
        for number, row in enumerate(rows, start=start):
            if len(row) > most:
                raise ValueError(
                    f"texts[{number}] has {len(row)} tokens, more than {most}: "
                    f"{str(texts[number])[:60]!r}... Shorten it, or cut long texts with "
                    "truncate=True."
                )
