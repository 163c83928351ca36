r"""Block coordinate descent: tokens move to their best in turn; for the squared loss.

.. math:: Z_k^+ = \arg\min_z \tfrac12 \|r_k - X_k z\|^2 + \beta w_k \|z\|

with :math:`r_k` what the other tokens leave. Every few passes over the tokens end with Anderson's
extrapolation. What a move changes is followed in samples, for which a token is read once and used
twice, or, where samples are many, in coefficients, by the Gram matrix of all tokens. The passes are
compiled, or else NumPy's.

Tokens in samples are float32, which shows only in the last digits: the next round starts from a
certificate in float64. Those of few outputs are packed, as whole numbers of 16 bits, where it is
reading them that takes the time; that shows earlier, and may take one more round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from math import log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _core
from ..problem import Point, Problem
from ..problem.arrays import Array, Groups
from ..problem.designs import row_slices
from . import choose
from .choose import COMPILED, TUNING, WIDE_REGISTERS
from .solution import Clock, Task
from .working_set import Round, gram_is_quick, rounds

Floats = NDArray[np.float32]

PASSES = 6  # of a cycle, at most; then it extrapolates
# Bytes of tokens in float32 that are read sooner packed; outputs for which they are unpacked too
# often, as up to two share that, or four in wide registers.
FAR_BYTES, MANY = (TUNING.cache_bytes / 4, 5) if WIDE_REGISTERS else (TUNING.cache_bytes, 3)
READ_BYTES = 1 << 20  # of tokens on their way to float32
LINE = 32  # numbers of int16 in a line of cache
FLOAT32_ROUNDING = 2e-8  # part of a gap that descent in float32 leaves, times beta_max / beta;
INT16_ROUNDING = 2e-6  # and with tokens in int16
TINY = 1e-30


def minimise(task: Task, at: Point) -> tuple[Point, bool]:
    """Rounds of block coordinate descent from `at`; and whether there is no more to do."""
    return rounds(task, at, BlockDescent, narrow=True)


class Cycles:
    """Cycles of passes from coefficients `Z` ``(n, d, c)``, with correlations `M` there.

    Tokens, ``in_samples`` or by their Gram matrix, are over their units, and `limit` ``(n,)``, the
    penalty's strength, over the largest. There is a `square` of the residuals for every part.
    """

    def __init__(
        self, tokens: Selection, in_samples: bool, Z: Array, M: Array, limit: Array, square: Array
    ) -> None:
        unit = tokens.unit[:, None, None]
        limit = limit / tokens.unit
        self.size = float(limit.max()) or 1.0
        self.scale = self.size / unit
        self._Z = _by_output(Z) / self.scale
        (n, c, d), length = self._Z.shape, tokens.A[0].shape[1]
        self._tokens, self._shape = tokens, (n, d, c, length, c // len(square), in_samples)
        self._rest = (
            1.0 / tokens.curvature,
            limit / self.size,
            square / self.size**2,
            self._Z,
            _by_output(M) / (unit * self.size),
        )
        self._best = self._Z.copy()

    def run(self, passes: int = PASSES) -> tuple[float, float]:
        """The objective after one more, and its gap."""
        tokens = self._tokens
        value, gap = _core.block_descent(tokens.A, tokens.gram, self._shape, *self._rest, passes)
        return self.size**2 * value, self.size**2 * gap

    def keep(self) -> None:
        """Keep the point reached, as the best so far."""
        self._best = self._Z.copy()

    @property
    def Z(self) -> Array:
        return self._outer(self._Z)

    @property
    def best(self) -> Array:
        return self._outer(self._best)

    def _outer(self, Z: Array) -> Array:
        return (self.scale * Z).transpose(0, 2, 1)

    def seconds(self, used: int | None = None) -> float:
        """Of a cycle, roughly, with so many tokens in use; with those in use if not given."""
        used = int(np.count_nonzero(self._Z.any(axis=(1, 2)))) if used is None else used
        n, c, token = len(self._Z), self._Z.shape[1], self._tokens.A[0].nbytes
        return PASSES * choose.pass_seconds(used, token, c) + choose.pass_seconds(n, token, c)


class BlockDescent(Round):
    """One round on the tokens of `groups`."""

    def __init__(self, task: Task, at: Point, groups: Groups, gain: float) -> None:
        work, problem = task.work, task.problem
        work.columns.forget()
        in_samples = not gram_is_quick(problem, len(groups), work.grams.known(groups))
        if in_samples:
            tokens = work.tokens.of(groups, gain * task.beta / problem.beta_max)
        else:
            tokens = work.grams.tokens(groups)
        super().__init__(task, at, groups)
        self.gain = tokens.rounding * problem.beta_max / task.beta
        self.start = self.least = at.gap(task.beta) * self.value
        limit = task.beta * self.penalty.column(len(groups))[:, 0]
        ray = problem.ray(at.V)
        assert ray is not None
        self.cycles = Cycles(tokens, in_samples, self.Z0, self.M0, limit, ray[1])

    def run(self, target: float, goal: float, clock: Clock) -> bool:
        quick = self._run(target, goal, clock)
        self.best = self.cycles.best
        return quick

    def _run(self, target: float, goal: float, clock: Clock) -> bool:
        stalled, gaps, fall = 0, [self.start], 0.0
        for _ in range(60):
            before, passes = self.value, PASSES
            if fall > 0:  # fewer may be left, if the gap falls on as in the last cycle
                passes = min(passes, 2 + int(self.ahead(target) / fall))
            passes = self._in_time(passes, clock)
            self.value, gap = self.cycles.run(passes)
            fall = log(self.least / gap) / passes if 0 < gap < self.least else 0.0
            falls = gap < 0.9 * self.least or self.value < before - 1e-3 * self.least
            stalled = 0 if falls else stalled + 1
            if gap < self.least:
                self.least = gap
                self.cycles.keep()
            if self.least <= target * self.value or clock.late():
                return True
            if stalled >= 2:  # what is left to gain drowns in rounding
                return self.least < choose.TUNING.newton_start_gap * self.start
            gaps.append(self.least)
            if len(gaps) > 2 and self._slows(gaps, goal):
                return False
        return False

    def _in_time(self, passes: int, clock: Clock) -> int:
        """As many passes as there seems to be time for."""
        if clock.left is None:
            return passes
        each = self.cycles.seconds() / PASSES
        return max(1, min(passes, int(clock.slice(clock.left) / each)))

    def _slows(self, gaps: list[float], goal: float) -> bool:
        """Whether Newton's method is quicker, if the gap goes on to fall as in the last cycles."""
        seconds = self.cycles.seconds()
        spent = (len(gaps) - 1) * seconds
        if spent < 1e-3:  # judging takes time, too
            return False
        return self.is_slow(spent, self.ahead(goal) / _fall(gaps) * seconds, self.cycles.Z)


def _fall(gaps: list[float]) -> float:
    """Logarithm by which the gap falls in a cycle, of late."""
    recent = gaps[-5:]
    return log(max(recent[0] / recent[-1], 1.0 + 1e-3)) / (len(recent) - 1)


def _by_output(Z: Array) -> Array:
    """``(n, d, c)`` as ``(n, c, d)``."""
    return np.ascontiguousarray(Z.transpose(0, 2, 1))


# Packed tokens ------------------------------------------------------------------------------------


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
    """An array that begins with a line of cache."""
    size, line = math.prod(shape) * np.dtype(dtype).itemsize, 2 * LINE
    room: NDArray = np.empty(size + line, dtype=np.uint8)
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
