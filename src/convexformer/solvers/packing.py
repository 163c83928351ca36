"""Packing tokens for block descent: columns in float32 or int16, with their own Gram matrices.

Tokens in samples are float32, which shows only in the last digits: the next round starts from a
certificate in float64. Those of few outputs are packed, as whole numbers of 16 bits, where it is
reading them that takes the time; that shows earlier, and may take one more round.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _core
from ..problem import Problem
from ..problem.designs import Groups, row_slices
from .choose import COMPILED, TUNING, WIDE_REGISTERS

Array = NDArray[np.float64]
Floats = NDArray[np.float32]

# Bytes of tokens in float32 that are read sooner packed; outputs for which they are unpacked too
# often, as up to two share that, or four in wide registers.
FAR_BYTES, MANY = (TUNING.cache_bytes / 4, 5) if WIDE_REGISTERS else (TUNING.cache_bytes, 3)
READ_BYTES = 1 << 20  # of tokens on their way to float32
PAGE = 1 << 21  # bytes of a huge page
LINE = 32  # numbers of int16 in a line of cache
FLOAT32_ROUNDING = 2e-8  # part of a gap that descent in float32 leaves, times beta_max / beta;
INT16_ROUNDING = 2e-6  # and with tokens in int16
TINY = 1e-30


class Token(NamedTuple):
    """Columns of a token less their means, ``unit * A``, times the root of samples' weights."""

    A: NDArray  # (d, N) in float32 or int16, or (d, all coefficients): products with every token
    unit: float
    gram: Floats  # A A'
    curvature: float  # its largest eigenvalue, or a little more


class Selection(NamedTuple):
    """The same of some tokens; what is a matrix of each in one array, or token by token."""

    A: NDArray | tuple[NDArray, ...]
    unit: Array
    gram: Floats | tuple[Floats, ...]
    curvature: Array

    @property
    def rounding(self) -> float:
        """Part of a gap that rounding leaves, times beta_max / beta."""
        return INT16_ROUNDING if self.A[0].dtype == np.int16 else FLOAT32_ROUNDING


class Tokens:
    """Tokens, kept once they have been read."""

    def __init__(self, problem: Problem) -> None:
        self.design, self.center = problem.design, problem.center
        self.root = None if problem.risk.is_plain else np.sqrt(problem.weight)
        self.n_outputs = problem.n_outputs
        self.forget()

    def forget(self) -> None:
        self._kept = dict[int, Token]()

    def of(self, groups: Groups, gain: float = 0.0) -> Selection:
        """Tokens of `groups`, packed if that allows for the `gain`, or is the quicker way to it."""
        if not self._kept:
            size = 4 * self.design.n_samples * self.design.n_groups * self.design.dim
            far, enough = size > FAR_BYTES, self.n_outputs == 1 and gain > INT16_ROUNDING
            self.packs = COMPILED and (enough or (far and self.n_outputs < MANY))
        if len(self._kept) > 2 * len(groups):  # most of what is kept has served
            self._kept = {k: self._kept[k] for k in groups.tolist() if k in self._kept}
        new = [k for k in groups.tolist() if k not in self._kept]
        if new:
            self._kept |= zip(new, self._read(np.array(new)), strict=True)
        A, unit, gram, curvature = zip(*(self._kept[k] for k in groups.tolist()), strict=True)
        return Selection(A, np.array(unit), gram, np.array(curvature))

    def _read(self, groups: Groups) -> list[Token]:
        n, d, N = len(groups), self.design.dim, self.design.n_samples
        unit: Array = np.ones(n)
        A, gram = self._written(groups, unit)
        size = np.einsum("kdd->k", gram) / (d * N)
        if not (size.min() > 1e-12 and size.max() < 1e12):  # squares must fit float32
            unit = self._largest(groups)
            unit[unit < 1e-300] = 1.0
            A, gram = self._written(groups, unit)
            unit[unit == 0] = 1.0
        return [Token(*each) for each in zip(A, unit, gram, _longest(gram), strict=True)]

    def _written(self, groups: Groups, unit: Array) -> tuple[NDArray, Floats]:
        """Tokens over their units, and their Gram matrices; units grow where tokens are packed.

        All into one array: memory in one piece is the sooner had. Zeros after the last sample let
        every row begin a line of cache; as it has an odd number of them, rows take different places
        there. A few tokens at a time stay in cache, or take little memory; what is packed is in
        float32 first.
        """
        n, d, N = len(groups), self.design.dim, self.design.n_samples
        length = (-(-N // LINE) | 1) * LINE
        A = _aligned((n, d, length), np.int16 if self.packs else np.float32)
        gram: Floats = np.empty((n, d, d), dtype=np.float32)
        room = READ_BYTES if self.design.float64 is not None else 16 * READ_BYTES
        few = max(1, room // (4 * d * N))
        floats = _aligned((min(few, n), d, length), np.float32) if self.packs else A
        floats[:, :, N:] = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            for part in (slice(first, first + few) for first in range(0, n, few)):
                some = floats[: len(groups[part])] if self.packs else A[part]
                self._fill(some, groups[part], unit[part])
                packed = A[part] if self.packs else None
                _core.prepare_tokens(some, gram[part], unit[part], packed, some.shape)
        return A, gram

    def _fill(self, A: Floats, groups: Groups, unit: Array) -> None:
        """Write tokens over their units to `A`, from where they lie if they are plain there."""
        n, d, length = A.shape
        N = self.design.n_samples
        center = np.zeros((n, d)) if self.center is None else self.center[groups]
        root, factor = np.ones(N) if self.root is None else self.root, 1.0 / unit
        X = self.design.float64
        if X is not None:
            index = groups.astype(np.int32)
            _core.transpose_tokens(X, index, center, factor, root, A, (*X.shape, n, d, 0, length))
            return
        index = np.arange(n, dtype=np.int32)
        for rows in self._rows(n):
            columns = self.design.gather(rows, groups)
            shape = (*columns.shape, n, d, rows.start, length)
            _core.transpose_tokens(columns, index, center, factor, root[rows], A, shape)

    def _rows(self, n: int) -> Iterator[slice]:
        """A few samples at a time: what `n` tokens have there stays in cache."""
        return row_slices(self.design.n_samples, n * self.design.dim, READ_BYTES)

    def _largest(self, groups: Groups) -> Array:
        """Largest entry of every token, ``(n,)``."""
        most = np.zeros(len(groups) * self.design.dim)
        for rows in self._rows(len(groups)):
            columns = self.design.gather(rows, groups)
            if self.center is not None:
                columns -= self.center[groups].reshape(-1)
            if self.root is not None:
                columns *= self.root[rows, None]
            np.maximum(most, np.abs(columns).max(axis=0), out=most)
        return most.reshape(len(groups), -1).max(axis=1)


def _aligned(shape: tuple[int, ...], dtype: type) -> NDArray:
    """An array that begins with a line of cache, and lies in huge pages, if there are, where large.

    NumPy asks for these too, but most of its memory has been in use, in small ones.
    """
    size, line = math.prod(shape) * np.dtype(dtype).itemsize, 2 * LINE
    room: NDArray
    if size >= 4 * PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        line = PAGE
        pages = mmap.mmap(-1, size + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # of a system that has none
            pages.madvise(mmap.MADV_HUGEPAGE)
        room = np.frombuffer(pages, dtype=np.uint8)
    else:
        room = np.empty(size + line, dtype=np.uint8)
    start = -room.ctypes.data % line
    return room[start : start + size].view(dtype).reshape(shape)


def from_gram(Q: Array, d: int) -> Selection:
    """Tokens of `d` channels by the Gram matrix of all of them."""
    n = len(Q) // d
    square = Q.diagonal().reshape(n, d).sum(axis=1) / d
    unit: Array = np.ones(n)
    if not (1e-12 < square.max() < min(1e12, 100 * square.min())):
        size = np.sqrt(np.maximum(square, 0.0))
        unit[size > 0] = size[size > 0]
        scale = 1.0 / np.repeat(unit, d)
        Q = Q * scale * scale[:, None]
    Q = np.ascontiguousarray(Q)
    gram = _blocks(Q, d).astype(np.float32, order="C")
    return Selection(Q.reshape(n, d, len(Q)), unit, gram, _longest(gram))


def _blocks(Q: NDArray, d: int) -> NDArray:
    """``(d, d)`` blocks on the diagonal."""
    n = len(Q) // d
    return Q.reshape(n, d, n, d).diagonal(axis1=0, axis2=2).transpose(2, 0, 1)


def _longest(grams: Floats) -> Array:
    """The largest eigenvalue of every matrix, or a little more.

    The fourth root of the length of the fourth power; of large ones what a few products along an
    axis find, which may be less, but not by half.
    """
    size = np.maximum(np.einsum("kdd->k", grams), np.float32(TINY))
    d = grams.shape[1]
    if d == 1:
        return size.astype(np.float64)
    if d > 64:
        axes: Floats = np.random.default_rng(0).standard_normal((*grams.shape[:2], 1), np.float32)
        for _ in range(8):
            axes = grams @ (axes / np.maximum(np.linalg.norm(axes, axis=1, keepdims=True), TINY))
        return 1.1 * np.maximum(np.linalg.norm(axes[:, :, 0], axis=1).astype(float), TINY)
    squares = grams / size[:, None, None]
    squares = squares @ squares
    fourths = squares @ squares
    length = np.einsum("kij,kij->k", fourths, fourths).astype(np.float64) ** 0.125
    return np.maximum(length * size, TINY)
