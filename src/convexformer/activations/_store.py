"""What was extracted, on disk: shards of packed tokens in safetensors, and two small JSON files.

Tokens of a shard's texts lie one after the other, without padding, so that files hold no more than
they must and a text is one slice. A shard is written whole or not at all, and nothing in it depends
on when it was written: an extraction that was killed and run again gives the same bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from .._files import write_whole

FORMAT = "convexformer activations 1"
RECIPE, INDEX, PROJECTION = "recipe.json", "index.json", "projection.safetensors"
KINDS = ("inputs", "values", "heads", "attention", "output", "maps")

Array = NDArray[np.floating]


@dataclass(frozen=True)
class Recipe:
    """All that decides what an extraction gives."""

    model: str
    weights: str  # SHA-256
    texts: str  # SHA-256
    n_texts: int
    layer: int
    n_layers: int
    n_heads: int
    head_dim: int
    dim: int
    keep: tuple[str, ...]
    dtype: str
    batch_size: int
    max_length: int
    truncate: bool
    torch: str
    transformers: str
    format: str = FORMAT

    @classmethod
    def read(cls, folder: Path) -> Self:
        fields = read_json(folder / RECIPE)
        if fields.get("format") != FORMAT:
            raise ValueError(f"{folder} is of another format: {fields.get('format')!r}.")
        if fields.keys() != cls.__dataclass_fields__.keys() or not isinstance(fields["keep"], list):
            raise _damaged(folder / RECIPE, "it does not say all of what was extracted")
        return cls(**fields | {"keep": tuple(fields["keep"])})

    def write(self, folder: Path) -> None:
        write_json(folder / RECIPE, asdict(self))

    def differences(self, other: Recipe) -> list[str]:
        """What differs, in words."""
        ours, theirs = asdict(self), asdict(other)
        return [
            f"{key} {theirs[key]!r}, not {ours[key]!r}" for key in ours if ours[key] != theirs[key]
        ]


@dataclass(frozen=True)
class TextActivations:
    """What was extracted of one text of n tokens; a kind that was not kept is None.

    Attributes
    ----------
    tokens : list of str
    offsets : ndarray of int of shape (n, 2)
        Where a token begins and ends in its text; of special tokens, zeros.
    segments : ndarray of int of shape (n,)
        0 in the first text of a pair, 1 in the second, -1 at special tokens.
    inputs : ndarray of shape (n, d)
        What the layer's self-attention reads.
    values : ndarray of shape (n, n_heads, head_dim)
        What every head averages: ``heads[:, h] = maps[h] @ values[:, h]``.
    heads : ndarray of shape (n, n_heads, head_dim)
        What every head writes, before the output projection.
    attention : ndarray of shape (n, d)
        What all heads write, after the output projection, before residual and norm.
    output : ndarray of shape (n, d)
        What the layer passes on.
    maps : ndarray of shape (n_heads, n, n)
        Attention of every head: row t says how target t weighs the tokens.
    """

    tokens: list[str]
    offsets: NDArray[np.int32]
    segments: NDArray[np.int8]
    inputs: Array | None = None
    values: Array | None = None
    heads: Array | None = None
    attention: Array | None = None
    output: Array | None = None
    maps: Array | None = None


class Activations:
    """Activations of a layer, read from disk as they are asked for.

    Parameters
    ----------
    folder : path-like
        What :func:`~convexformer.activations.extract` wrote. See :meth:`open`.

    Attributes
    ----------
    model : str
        Name or path of the model.
    layer, n_layers, n_heads, head_dim, dim : int
        The layer that was read, counted from 0, and the model's sizes.
    lengths : ndarray of int of shape (N,)
        Tokens of every text, special ones included.
    keep : tuple of str
        The kinds that were kept, of "inputs", "values", "heads", "attention", "output" and
        "maps".
    """

    model: str
    layer: int
    n_layers: int
    n_heads: int
    head_dim: int
    dim: int
    keep: tuple[str, ...]

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        if not (self.folder / RECIPE).is_file():
            raise ValueError(f"{self.folder} holds no activations; make them with extract.")
        self.recipe = Recipe.read(self.folder)
        if not (self.folder / INDEX).is_file():
            raise ValueError(
                f"{self.folder} holds an extraction that did not end; run the same extract again, "
                "it goes on where it stopped."
            )
        lengths = read_json(self.folder / INDEX).get("lengths")
        if not isinstance(lengths, list) or len(lengths) != self.recipe.n_texts:
            raise _damaged(self.folder / INDEX, "it does not have a length of every text")
        if not all(type(length) is int and 0 <= length < 2**31 for length in lengths):
            raise _damaged(self.folder / INDEX, "lengths of texts are no whole numbers")
        for name in ("model", "layer", "n_layers", "n_heads", "head_dim", "dim", "keep"):
            setattr(self, name, getattr(self.recipe, name))
        self.lengths: NDArray[np.intp] = np.array(lengths, dtype=np.intp)
        self._opened: tuple[int, Any] | None = None

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Self:
        """Open what was extracted; nothing is read yet but its index."""
        return cls(folder)

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        return (
            f"Activations({self.model!r}, layer {self.layer} of {self.n_layers}: {len(self)} "
            f"texts, {self.lengths.sum()} tokens, {self.n_heads} heads of {self.head_dim}, "
            f"{', '.join(self.keep)} in {self.recipe.dtype})"
        )

    def __iter__(self) -> Iterator[TextActivations]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> TextActivations:
        i = self._number(i)
        return TextActivations(
            self.tokens(i),
            self._slice("offsets", i),
            self._slice("segments", i),
            *(self._slice(kind, i) if kind in self.keep else None for kind in KINDS),
        )

    def tokens(self, i: int) -> list[str]:
        """Tokens of text i, as the tokenizer writes them."""
        shard, place = divmod(self._number(i), self.recipe.batch_size)
        return list(json.loads(self._shard(shard).metadata()["tokens"])[place])

    def segments(self, i: int) -> NDArray[np.int8]:
        """Segments of text i alone, as in :class:`TextActivations`."""
        return np.asarray(self._slice("segments", self._number(i)))

    @cached_property
    def projection(self) -> tuple[Array, Array]:
        """Output projection ``(n_heads, head_dim, d)`` and its bias ``(d,)``.

        What head h adds to the layer is ``heads[:, h] @ projection[h]``; their sum over heads, and
        the bias, is `attention`.
        """
        file = open_shard(self.folder / PROJECTION)
        return file.get_tensor("weight"), file.get_tensor("bias")

    def padded(self, kind: str, length: int | None = None) -> Array:
        """One kind of all texts, ``(N, length, ...)``, zero at padding.

        Parameters
        ----------
        kind : {"inputs", "values", "heads", "attention", "output", "maps", "segments"}
            Of "maps" the shape is ``(N, n_heads, length, length)``.
        length : int, optional
            Tokens of a text; what is longer loses its end. That of the longest text if omitted.
        """
        if kind not in (*self.keep, "segments"):
            raise ValueError(f"{kind!r} was not kept; {self.folder} has {', '.join(self.keep)}.")
        n = int(self.lengths.max()) if length is None else length
        first = self._slice(kind, 0)
        empty = {"maps": (self.n_heads, n, n)}.get(kind, (n, *first.shape[1:]))
        padded = np.zeros((len(self), *empty), dtype=first.dtype)
        for i in range(len(self)):
            part = self._slice(kind, i)
            if kind == "maps":
                part = part[:, :n, :n]
                padded[i, :, : part.shape[1], : part.shape[2]] = part
            else:
                padded[i, : len(part[:n])] = part[:n]
        return padded

    def mask(self, length: int | None = None) -> NDArray[np.bool_]:
        """True where a token is real, ``(N, length)``."""
        n = int(self.lengths.max()) if length is None else length
        return np.arange(n) < self.lengths[:, None]

    def _number(self, i: int) -> int:
        """Of text i from the start; negative ones count from the end."""
        if not -len(self) <= i < len(self):
            raise IndexError(f"there is no text {i}; there are {len(self)}.")
        return i % len(self)

    # Slices of shards ---------------------------------------------------------------------------

    def _slice(self, kind: str, i: int) -> Any:
        shard, place = divmod(i, self.recipe.batch_size)
        start = shard * self.recipe.batch_size
        before, n = self.lengths[start : start + place], int(self.lengths[i])
        stored = self._shard(shard).get_slice(kind)
        if kind == "maps":
            first = self.n_heads * int(np.sum(before**2))
            return stored[first : first + self.n_heads * n * n].reshape(self.n_heads, n, n)
        first = int(before.sum())
        return stored[first : first + n]

    def _shard(self, number: int) -> Any:
        """The shard, memory-mapped; the last one stays open."""
        if self._opened is None or self._opened[0] != number:
            self._opened = number, open_shard(self.folder / shard_name(number))
        return self._opened[1]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"{type(error).__name__}") from error
    if not isinstance(content, dict):
        raise _damaged(path, "it holds no JSON object")
    return content


def _damaged(path: Path, reason: str) -> ValueError:
    return ValueError(f"{path} is damaged: {reason}. Remove its folder, and run extract again.")


def open_shard(path: Path) -> Any:
    """A safetensors file, memory-mapped."""
    try:
        return safe_open(path, framework="numpy")
    except (SafetensorError, FileNotFoundError) as error:
        raise ValueError(
            f"{path} is missing or damaged ({error}); remove it if it is there, and run the same "
            "extract again, which makes it anew."
        ) from error


# Writing ----------------------------------------------------------------------------------------


def shard_name(number: int) -> str:
    return f"shard-{number:06d}.safetensors"


def write_shard(
    path: Path, tensors: dict[str, NDArray], tokens: Sequence[Sequence[str]] | None = None
) -> None:
    """Write a safetensors file whole or not at all, the same bytes every time."""
    # One key only: safetensors does not write several in a fixed order.
    metadata = None if tokens is None else {"tokens": json.dumps(tokens)}
    # safetensors takes memory as it lies, whatever the strides.
    ordered = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    write_whole(path, save(ordered, metadata=metadata))


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file whole or not at all."""
    write_whole(path, f"{json.dumps(content)}\n".encode())
