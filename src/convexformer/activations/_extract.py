"""Activations from a model to disk, batch by batch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ._capture import Listener, count_tokens
from ._loading import find
from ._store import (
    INDEX,
    KINDS,
    PROJECTION,
    RECIPE,
    Activations,
    Recipe,
    open_shard,
    shard_name,
    write_json,
    write_shard,
)
from ._texts import Text, check_texts, fingerprint

DTYPES = ("float32", "float16")


class Report(Protocol):
    """Called as texts are done."""

    def __call__(self, done: int, total: int) -> None: ...


class LongTextError(ValueError):
    """A text has more tokens than the model reads; `number` counts from 0."""

    def __init__(self, number: int, text: Text, n_tokens: int, most: int) -> None:
        shown = text if isinstance(text, str) else " | ".join(text)
        self.number = number
        self.words = f"has {n_tokens} tokens, more than {most}: {shown[:60]!r}... Shorten it, or"
        super().__init__(f"texts[{number}] {self.words} cut long texts with truncate=True.")


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
    report: Report | None = None,
) -> Activations:
    """Write what a layer's self-attention reads and writes to disk.

    Batches of texts become shards, each written whole or not at all. Run again with the same
    arguments, an extraction that was interrupted goes on where it stopped and ends with the same
    bytes (on the same machine, with as many threads).

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
        Whether a folder that holds another extraction is emptied of it.
    report : callable, optional
        Receives the texts done and their total after every batch.

    Returns
    -------
    Activations
    """
    keep = _check_keep(keep)
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {DTYPES}, got {dtype!r}.")
    _check_count("batch_size", batch_size)
    texts = check_texts(texts)
    source = find(model)
    layer = source.check_layer(layer)
    most = _check_length(max_length, source.limit)
    _check_room(source.tokenizer, texts, most)
    if not truncate:
        _check_lengths(source.tokenizer, texts, most)
    listener = Listener(source.load(), source.tokenizer, layer)
    recipe = Recipe(
        model=source.name,
        weights=listener.fingerprint(),
        texts=fingerprint(texts),
        n_texts=len(texts),
        layer=layer,
        n_layers=listener.n_layers,
        n_heads=listener.n_heads,
        head_dim=listener.head_dim,
        dim=listener.dim,
        keep=keep,
        dtype=dtype,
        batch_size=int(batch_size),
        max_length=most,
        truncate=bool(truncate),
        **_versions(),
    )
    folder = _prepare(Path(out), recipe, overwrite)
    _write_shards(listener, texts, recipe, folder, report)
    return Activations.open(folder)


def _write_shards(
    listener: Listener, texts: list[Text], recipe: Recipe, folder: Path, report: Report | None
) -> None:
    """Shards that are not there yet, then the index, which says that all are."""
    names = [shard_name(number) for number in range(-(-recipe.n_texts // recipe.batch_size))]
    if all((folder / name).exists() for name in (INDEX, PROJECTION, *names)):
        return
    heads = (recipe.n_heads, recipe.head_dim, recipe.dim)
    parts = {"weight": listener.weight.reshape(heads), "bias": listener.bias}
    write_shard(folder / PROJECTION, parts)
    for number, name in enumerate(names):
        start, path = number * recipe.batch_size, folder / name
        batch = texts[start : start + recipe.batch_size]
        if not path.exists():
            found = listener(batch, recipe.max_length, recipe.keep)
            tensors = found.tensors | {
                kind: _cast(found.tensors[kind], kind, recipe.dtype) for kind in recipe.keep
            }
            write_shard(path, tensors, found.tokens)
        if report is not None:
            report(start + len(batch), len(texts))
    lengths = [
        n for name in names for n in open_shard(folder / name).get_tensor("lengths").tolist()
    ]
    write_json(folder / INDEX, {"lengths": lengths})


def _cast(value: Any, kind: str, dtype: str) -> Any:
    with np.errstate(over="ignore"):
        cast = value.astype(dtype, copy=False)
    if not np.all(np.isfinite(cast)):
        cure = "; keep it in float32" if dtype == "float16" and np.all(np.isfinite(value)) else ""
        raise ValueError(f"{kind} has values that {dtype} cannot hold (NaN or infinity){cure}.")
    return cast


def _check_keep(keep: Sequence[str]) -> tuple[str, ...]:
    given = (keep,) if isinstance(keep, str) else tuple(keep)
    if not given or not set(given) <= set(KINDS):
        raise ValueError(f"keep must be some of {KINDS}, got {keep!r}.")
    return tuple(kind for kind in KINDS if kind in given)


def _check_count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{name} must be a positive whole number, got {value!r}.")


def _check_length(max_length: int | None, limit: int) -> int:
    if max_length is None:
        return limit
    _check_count("max_length", max_length)
    if max_length > limit:
        raise ValueError(f"max_length is {max_length}, but the model reads at most {limit} tokens.")
    return int(max_length)


def _check_room(tokenizer: Any, texts: list[Text], most: int) -> None:
    """Special tokens are never cut: without room for another, texts would be longer than asked."""
    special = tokenizer.num_special_tokens_to_add(pair=not isinstance(texts[0], str))
    if most <= special:
        raise ValueError(
            f"max_length is {most}, but {special} tokens of every text are special ones; allow "
            f"{special + 1} at least."
        )


def _check_lengths(tokenizer: Any, texts: list[Text], most: int, step: int = 256) -> None:
    """Before any work is done: is every text short enough?"""
    for start in range(0, len(texts), step):
        counts = count_tokens(tokenizer, texts[start : start + step])
        for number, n in enumerate(counts, start=start):
            if n > most:
                raise LongTextError(number, texts[number], n, most)


def _versions() -> dict[str, str]:
    import torch
    import transformers

    return {"torch": torch.__version__, "transformers": transformers.__version__}


def _prepare(folder: Path, recipe: Recipe, overwrite: bool) -> Path:
    """The folder, with this recipe in it; what is there must be of the same one."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / RECIPE).exists():
        differences = recipe.differences(Recipe.read(folder))
        if differences and not overwrite:
            raise ValueError(
                f"{folder} holds another extraction ({'; '.join(differences)}). Name another "
                "folder, or overwrite it (--force)."
            )
        if differences:
            _empty(folder)
    elif not all(path.match(f"*{RECIPE}.*.part") for path in folder.iterdir()):  # drafts of it
        raise ValueError(f"{folder} holds other files; name an empty or a new folder.")
    for draft in folder.glob("*.part"):  # half written by a process that was killed
        draft.unlink()
    recipe.write(folder)
    return folder


def _empty(folder: Path) -> None:
    """Remove an extraction; its recipe last, so that a half-emptied folder is known as one."""
    for path in (folder / INDEX, *folder.glob("shard-*.safetensors"), folder / PROJECTION):
        path.unlink(missing_ok=True)
