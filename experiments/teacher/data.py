"""What students learn from: what a layer of a real encoder reads, and what its attention writes.

All students read the same numbers: hidden states less their mean, as they are or by principal
components, on one scale, and beside them a constant channel, which gives every student its biases.
Targets are the leading principal components of what the teacher writes. Only texts that fill all
positions are used, so that a position means the same in all of them.
"""

from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from convexformer.activations import Activations

from ..lab import Record
from ..sentences import SentencePairs, read_states

Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]

TARGETS = {
    "attention": "attention output, whole sequence",
    "head": "one head, whole sequence",
    "first": "attention output at [CLS]",
    "output": "layer output, whole sequence",
}
LEAST_TEXTS = 8  # in a part
WATCHED = 400  # texts of a part on which curves are measured; what is reported is of all


@dataclass(frozen=True)
class Teacher:
    """Which layer of which encoder is extracted, on how many tokens of how many pairs."""

    model: str = "minilm"
    layer: int = 2
    n_tokens: int = 32
    most: int | None = None  # training pairs; of the others, half as many


@dataclass(frozen=True)
class Task:
    """What students are to reproduce: `outputs` components of a target, from `dim` of the inputs.

    ``dim = None`` is all channels. `head` counts from 0.
    """

    target: str = "attention"
    dim: int | None = 64
    outputs: int = 16
    head: int = 0

    @property
    def key(self) -> Record:
        return asdict(self)

    def __str__(self) -> str:
        return f"{TARGETS[self.target]}, {self.dim or 'all'} inputs"


@dataclass(frozen=True)
class Part:
    """Texts of one part.

    Attributes
    ----------
    X : ndarray of shape (N, n, d)
    Y : ndarray of shape (N, m, c)
        Targets at all positions, m = n, or at the first, m = 1.
    separators : ndarray of bool of shape (N, n)
        The [SEP] between the sentences.
    """

    X: Floats
    Y: Floats
    separators: Mask

    def __len__(self) -> int:
        return len(self.X)

    def first(self, count: int) -> Self:
        """Its first texts."""
        return type(self)(self.X[:count], self.Y[:count], self.separators[:count])

    @property
    def variance(self) -> float:
        """Mean square of the targets: the error of predicting the training mean."""
        return float(np.mean(np.square(self.Y), dtype=np.float64))

    def loss(self, F: NDArray[np.floating]) -> float:
        """Mean squared error of predictions F over that of predicting the training mean."""
        errors = np.square(F.reshape(self.Y.shape) - self.Y)
        return float(np.mean(errors, dtype=np.float64)) / self.variance


@dataclass(frozen=True)
class Lesson:
    """A task with its three parts."""

    task: Task
    train: Part
    validation: Part
    test: Part


class Lessons:
    """Lessons of one teacher on some pairs of sentences, extracted to `folder` on first use."""

    def __init__(self, teacher: Teacher, pairs: SentencePairs, folder: Path) -> None:
        self.teacher, self.source = teacher, pairs.name
        most, half = teacher.most, teacher.most and teacher.most // 2
        parts = [part[:k] for part, k in zip(pairs.parts, (most, half, half), strict=True)]
        texts = [pair for part in parts for pair in part]
        keep = ("inputs", "heads", "attention", "output")
        self.found = read_states(
            teacher.model, texts, teacher.layer, folder, keep, max_length=teacher.n_tokens
        )
        self.rows = _full(self.found, [len(part) for part in parts], teacher.n_tokens)
        self.sizes = tuple(len(rows) for rows in self.rows)
        self.lesson = lru_cache(maxsize=1)(self._make)  # those of the last task stay in memory

    def _make(self, task: Task) -> Lesson:
        """The arrays of a task."""
        kind = {"head": "heads", "first": "attention"}.get(task.target, task.target)
        Y = self._read(kind)
        places: Any = {"head": np.s_[:, :, task.head], "first": np.s_[:, :1]}
        Y = [part[places.get(task.target, np.s_[:])] for part in Y]
        Y = components(Y, task.outputs)
        X = components(self._read("inputs"), task.dim)
        ones = [np.ones((*part.shape[:2], 1), np.float32) for part in X]
        X = [np.concatenate(both, axis=2) for both in zip(X, ones, strict=True)]  # (N, n, d + 1)
        train, validation, test = map(Part, X, Y, self._separators())
        return Lesson(task, train, validation, test)

    def _read(self, kind: str) -> list[Floats]:
        values = self.found.padded(kind, self.teacher.n_tokens)
        return [values[rows] for rows in self.rows]

    def _separators(self) -> list[Mask]:
        special = self.found.padded("segments", self.teacher.n_tokens) == -1
        special[:, 0] = special[:, -1] = False
        return [special[rows] for rows in self.rows]


def _full(found: Activations, sizes: list[int], n_tokens: int) -> list[NDArray[np.intp]]:
    """Texts of every part that have all `n_tokens` tokens."""
    ends = np.cumsum(sizes)
    full = np.flatnonzero(found.lengths == n_tokens)
    parts = np.split(full, np.searchsorted(full, ends[:-1]))
    if min(map(len, parts)) < LEAST_TEXTS:
        raise ValueError(
            f"only {[len(part) for part in parts]} texts of training, validation and test have "
            f"{n_tokens} tokens; use longer texts, or fewer tokens."
        )
    return parts


def components(parts: list[Floats], count: int | None) -> list[Floats]:
    """Leading principal components of all tokens, by those of the first part, on one scale."""
    mean, axes = principal_axes(parts[0].reshape(-1, parts[0].shape[-1]), count)
    return [((part - mean) @ axes).astype(np.float32) for part in parts]


def principal_axes(
    tokens: NDArray[np.floating], count: int | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Their mean ``(d,)``, and axes ``(d, count)`` that rotate them when they are centred.

    Axes are divided by one number, so that the rotated tokens have a mean square of one.
    """
    tokens = tokens.astype(np.float64)
    mean = tokens.mean(axis=0)
    tokens -= mean
    values, vectors = np.linalg.eigh(tokens.T @ tokens / len(tokens))
    kept = slice(None) if count is None else slice(-1, -1 - count, -1)
    return mean, vectors[:, kept] / np.sqrt(np.mean(values[kept]))
