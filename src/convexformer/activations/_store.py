"""What was extracted, on disk: shards of texts in safetensors, and a recipe in JSON.

A shard holds every kind of every text as a tensor of its own, without padding: "maps.3" is of its
fourth text. The recipe is written last: a folder with a recipe is complete, and one without is not
opened.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from .._files import write_whole

FORMAT = "convexformer activations 3"
RECIPE, PROJECTION, SHARD = "recipe.json", "projection.safetensors", "shard-{:06d}.safetensors"
KINDS = ("inputs", "values", "heads", "attention", "output", "maps")

Array = NDArray[np.floating]
Recipe = dict[str, Any]
"""What an extraction is of, and the sizes of the model."""


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

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.recipe = recipe = read_recipe(self.folder)
        self.model, self.layer, self.n_layers = recipe["model"], recipe["layer"], recipe["n_layers"]
        self.n_heads, self.head_dim, self.dim = (recipe[k] for k in ("n_heads", "head_dim", "dim"))
        self.keep: tuple[str, ...] = tuple(recipe["keep"])
        shards = [_tokens(self._open(name)) for name in shard_names(recipe)]
        lengths = [len(tokens) for shard in shards for tokens in shard]
        self.lengths: NDArray[np.intp] = np.array(lengths)
        self._last: tuple[int, Any] = -1, None  # the shard that was read last, and its number

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Self:
        """Open what was extracted; nothing is read yet but the lengths of texts."""
        return cls(folder)

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        return (
            f"Activations({self.model!r}, layer {self.layer} of {self.n_layers}: {len(self)} "
            f"texts, {self.lengths.sum()} tokens, {self.n_heads} heads of {self.head_dim}, "
            f"{', '.join(self.keep)} in {self.recipe['dtype']})"
        )

    def __iter__(self) -> Iterator[TextActivations]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> TextActivations:
        kept = {kind: self._read(kind, i) for kind in ("offsets", "segments", *self.keep)}
        return TextActivations(self.tokens(i), **kept)

    def tokens(self, i: int) -> list[str]:
        """Tokens of text i, as the tokenizer writes them."""
        shard, place = self._find(i)
        return _tokens(shard)[place]

    @cached_property
    def projection(self) -> tuple[Array, Array]:
        """Output projection ``(n_heads, head_dim, d)`` and its bias ``(d,)``.

        What head h adds to the layer is ``heads[:, h] @ projection[h]``; their sum over heads, and
        the bias, is `attention`.
        """
        file = self._open(PROJECTION)
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
        first = self._read(kind, 0)
        maps = kind == "maps"
        shape = (self.n_heads, n, n) if maps else (n, *first.shape[1:])
        padded = np.zeros((len(self), *shape), dtype=first.dtype)
        for i, real in enumerate(np.minimum(self.lengths, n)):
            place = np.s_[:, :real, :real] if maps else np.s_[:real]
            padded[i][place] = self._read(kind, i)[place]
        return padded

    def mask(self, length: int | None = None) -> NDArray[np.bool_]:
        """True where a token is real, ``(N, length)``."""
        n = int(self.lengths.max()) if length is None else length
        return np.arange(n) < self.lengths[:, None]

    # One shard at a time -------------------------------------------------------------------------

    def _read(self, kind: str, i: int) -> Any:
        """One kind of text i."""
        shard, place = self._find(i)
        return shard.get_tensor(f"{kind}.{place}")

    def _find(self, i: int) -> tuple[Any, int]:
        """The shard of text i, memory-mapped, and its number there."""
        number, place = divmod(range(len(self))[i], self.recipe["batch_size"])
        if self._last[0] != number:
            self._last = number, self._open(SHARD.format(number))
        return self._last[1], place

    def _open(self, name: str) -> Any:
        """A safetensors file, memory-mapped."""
        path = self.folder / name
        try:
            return safe_open(path, framework="numpy")
        except (SafetensorError, FileNotFoundError) as error:
            raise ValueError(
                f"{path} is missing or damaged ({error}). Remove its folder, and run extract again."
            ) from error


def _tokens(shard: Any) -> list[list[str]]:
    """Tokens of all texts of a shard."""
    return list(json.loads(shard.metadata()["tokens"]))


def read_recipe(folder: Path) -> Recipe:
    """What the activations in a folder are of."""
    path = folder / RECIPE
    if not path.is_file():
        raise ValueError(f"{folder} holds no activations, or not all; make them with extract.")
    try:
        recipe: Recipe = json.loads(path.read_text(encoding="utf-8"))
        known = recipe["format"] == FORMAT
    except (ValueError, KeyError, TypeError, RecursionError):
        known = False
    if not known:
        raise ValueError(
            f"{path} is damaged or of another format. Remove its folder, and run extract again."
        )
    return recipe


def prepare(folder: Path, overwrite: bool) -> list[Path]:
    """Make a folder if need be; what another extraction left there, to be removed."""
    folder.mkdir(parents=True, exist_ok=True)
    complete = (folder / RECIPE).exists()
    if complete and not overwrite:
        raise ValueError(
            f"{folder} holds an extraction already. Use it, name another folder, or overwrite it "
            "(--force)."
        )
    left = [folder / RECIPE, folder / PROJECTION, *folder.glob("shard-*"), *folder.glob(".*.part")]
    if not complete and {*folder.iterdir()} - {*left}:
        raise ValueError(f"{folder} holds other files; name an empty or a new folder.")
    return left


def shard_names(recipe: Recipe) -> Iterator[str]:
    """Names of the files that hold the texts."""
    return map(SHARD.format, range(-(-recipe["n_texts"] // recipe["batch_size"])))


def write_shard(path: Path, texts: Sequence[TextActivations]) -> None:
    """Write a batch of texts."""
    tensors = {
        f"{kind}.{i}": value
        for i, text in enumerate(texts)
        for kind, value in vars(text).items()
        if kind != "tokens" and value is not None
    }
    write_tensors(path, tensors, {"tokens": json.dumps([text.tokens for text in texts])})


def write_tensors(
    path: Path, tensors: dict[str, NDArray], metadata: dict[str, str] | None = None
) -> None:
    """Write a safetensors file, whose format takes memory as it lies, whatever the strides."""
    ordered = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    write_whole(path, save(ordered, metadata))


def write_recipe(folder: Path, recipe: Recipe) -> None:
    """Say that the folder is complete."""
    write_whole(folder / RECIPE, f"{json.dumps(recipe)}\n".encode())
