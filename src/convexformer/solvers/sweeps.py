r"""Sweeps over tokens, each moved to its best in turn; for the squared loss.

.. math:: Z_k^+ = \arg\min_z \tfrac12 \|r_k - X_k z\|^2 + \beta w_k \|z\|

with :math:`r_k` what the other tokens leave. Tokens that come later see what earlier ones did, and
every few sweeps end with Anderson's extrapolation. Where neighbours are alike, as in time, and
those in use are more than stays near, sweeps go to and fro instead, each to the best point of the
plane along its move and the last one.

What a move changes is followed in samples, for which a token is read once and used twice, or,
where these are many, in coefficients, by the Gram matrix of all tokens. The sweeps themselves are
compiled (``_sweeps.c``), or else NumPy's (:mod:`~convexformer.solvers.cycle_numpy`).

Tokens in samples are float32, which shows only in the last digits: the next round starts from a
certificate in float64. Those of few outputs are packed, as whole numbers of 16 bits, where it is
reading them that takes the time; that shows earlier, and may take one more round.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..problem import DualPoint, Problem
from ..problem.designs import Groups, row_slices
from .cycle_numpy import SWEEPS, TO_AND_FRO
from .machine import CACHE, CACHE_SPEED, COMPILED, MEMORY_SPEED, WIDE
from .rounds import NEAR, Round
from .solution import Clock, Iterate

if COMPILED:
    from ._sweeps import cycle, prepare, transpose
else:
    from .cycle_numpy import cycle, prepare, transpose

Array = NDArray[np.float64]
Floats = NDArray[np.float32]

MOST_CYCLES = 60  # of a round
LITTLE = 1e-3  # of the gap: less than that an objective does not fall for nothing
FEWEST = 2  # sweeps of a cycle, and by how many more than it seems to take
STALLED = 2  # cycles in which neither falls, which end a round
RECENT = 4  # cycles by which speed is judged
MOST_OUTPUTS = 16  # that move together; of cells of their own, which large products serve, half
# Bytes of tokens in float32 that are read sooner packed; outputs for which they are unpacked too
# often, as up to two share that, or four in wide registers.
FAR, MANY = (CACHE / 4, 5) if WIDE else (CACHE, 3)
READ_BYTES = 1 << 20  # of tokens on their way to float32
GATHERED_BYTES = 1 << 24  # of tokens that do not lie plain, gathered by rows, on their way there
PAGE = 1 << 21  # bytes of a huge page
MUCH = 1 << 23  # bytes of an array that had better lie in these: a processor finds few small ones
LINE = 32  # numbers of int16 in a line of cache
SWEPT = 2e-8  # part of a gap that sweeps leave, whose sums are short, times beta_max / beta
PACKED = 2e-6  # and of tokens that are int16
TINY = 1e-30
SMALLEST = 1e-300  # unit of a token that is not as good as zero
ALIKE = 10.0  # largest over smallest size of tokens that need no unit of their own
LARGE, POWERS, SLACK = 64, 8, 1.1  # channels; products, and by how much what they find is enlarged
SOME_PAIRS, SOME_CHANNELS, SOME_SAMPLES = 4, 16, 128  # by which tokens are told to be alike,
LIKE = 0.5, 0.95  # if their correlation is higher, and not so high that planes are too narrow
PACE = 2.0 if WIDE else 1.0  # of products with tokens, over what a machine is taken for
LEAST = 1e-3  # seconds before speed is judged
VISIT, CYCLE = (2e-7, 5e-5) if COMPILED else (6e-5, 4e-4)  # seconds beyond products


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
    def leaves(self) -> float:
        """Part of a gap that rounding leaves, times beta_max / beta."""
        return PACKED if self.A[0].dtype == np.int16 else SWEPT


class Tokens:
    """Tokens, kept once they have been read."""

    def __init__(self, problem: Problem) -> None:
        self.design, self.center = problem.design, problem.center
        self.root = None if problem.is_plain else np.sqrt(problem.weight)
        self.n_outputs = problem.n_outputs
        self.forget()

    def forget(self) -> None:
        self._kept = dict[int, Token]()

    def of(self, groups: Groups, gain: float = 0.0) -> Selection:
        """Tokens of `groups`, packed if that allows for the `gain`, or is the quicker way to it."""
        if not self._kept:
            size = 4 * self.design.n_samples * self.design.n_groups * self.design.dim
            far, enough = size > FAR, self.n_outputs == 1 and gain > PACKED
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
            unit[unit < SMALLEST] = 1.0
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
        room = READ_BYTES if self.design.float64 is not None else GATHERED_BYTES
        few = max(1, room // (4 * d * N))
        floats = _aligned((min(few, n), d, length), np.float32) if self.packs else A
        floats[:, :, N:] = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            for part in (slice(first, first + few) for first in range(0, n, few)):
                some = floats[: len(groups[part])] if self.packs else A[part]
                self._fill(some, groups[part], unit[part])
                packed = A[part] if self.packs else None
                prepare(some, gram[part], unit[part], packed, some.shape)
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
            transpose(X, index, center, factor, root, A, (*X.shape, n, d, 0, length))
            return
        index = np.arange(n, dtype=np.int32)
        for rows in self._rows(n):
            columns = self.design.gather(rows, groups)
            shape = (*columns.shape, n, d, rows.start, length)
            transpose(columns, index, center, factor, root[rows], A, shape)

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
    if size >= MUCH and hasattr(mmap, "MADV_HUGEPAGE"):
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
    if not (1e-12 < square.max() < min(1e12, ALIKE**2 * square.min())):
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
    if d > LARGE:
        axes: Floats = np.random.default_rng(0).standard_normal((*grams.shape[:2], 1), np.float32)
        for _ in range(POWERS):
            axes = grams @ (axes / np.maximum(np.linalg.norm(axes, axis=1, keepdims=True), TINY))
        return SLACK * np.maximum(np.linalg.norm(axes[:, :, 0], axis=1).astype(float), TINY)
    squares = grams / size[:, None, None]
    squares = squares @ squares
    fourths = squares @ squares
    length = np.einsum("kij,kij->k", fourths, fourths).astype(np.float64) ** 0.125
    return np.maximum(length * size, TINY)


def _alike(A: NDArray | tuple[NDArray, ...]) -> bool:
    """Whether neighbours are, as in time: some pairs of them, by some of their entries."""
    firsts = range(0, len(A) - 1, -(-len(A) // SOME_PAIRS))
    n_alike = 0
    for k in firsts:
        a, b = (A[j][:SOME_CHANNELS, :SOME_SAMPLES].astype(np.float64) for j in (k, k + 1))
        size = np.sqrt(np.vdot(a, a) * np.vdot(b, b))
        n_alike += bool(LIKE[0] * size < abs(np.vdot(a, b)) < LIKE[1] * size)
    return 2 * n_alike > len(firsts)


def suit(problem: Problem) -> bool:
    """Whether sweeps are for this problem: not where Gram matrices of tokens outgrow X."""
    if problem.design.dim > problem.design.n_samples:
        return False
    few = problem.n_outputs <= (MOST_OUTPUTS // 2 if problem.separable else MOST_OUTPUTS)
    return few and problem.loss.quadratic and problem.penalty.euclidean


class Cycles:
    """Cycles of sweeps from coefficients `Z` ``(n, d, c)``, with correlations `M` there.

    Tokens, ``in_samples`` or by their Gram matrix, are over their units, and `limit` ``(n,)``, what
    the penalty takes, over the largest. There is a `square` of what is left for every part.
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
        # Where tokens in use are more than stays near, going back finds the last ones near.
        self._may_turn = in_samples and self._is_far(n) and _alike(tokens.A)
        self._last: Array = np.zeros(c * (n * d + length) if self._may_turn else 0)

    def run(self, sweeps: int = SWEEPS) -> tuple[float, float]:
        """The objective after one more, and its gap."""
        turns = self._turns
        if not turns:
            self._last[:] = 0.0
        last = self._last if turns else self._last[:0]
        given = self._tokens.A, self._tokens.gram, (*self._shape, turns)
        value, gap = cycle(*given, *self._rest, last, sweeps)
        return self.size**2 * value, self.size**2 * gap

    @property
    def sweeps(self) -> int:
        """Of the next one, at most."""
        return TO_AND_FRO if self._turns else SWEEPS

    @property
    def _turns(self) -> bool:
        return self._may_turn and self._is_far(self._n_used)

    @property
    def _n_used(self) -> int:
        return int(np.count_nonzero(self._Z.any(axis=(1, 2))))

    def _is_far(self, n_tokens: int) -> bool:
        return n_tokens * self._tokens.A[0].nbytes > CACHE

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
        """What one takes, roughly; as many tokens as are in use, if it is not said how many."""
        used = self._n_used if used is None else used
        n, c, token = len(self._Z), self._Z.shape[1], self._tokens.A[0].nbytes
        speed = PACE * (MEMORY_SPEED if self._is_far(used) else CACHE_SPEED)
        return CYCLE + (self.sweeps * used + n) * (VISIT + (1 + 0.5 * c) * token / speed)


class Sweeps(Round):
    """One round on the tokens of `groups`."""

    def __init__(
        self,
        problem: Problem,
        beta: float,
        at: Iterate,
        point: DualPoint,
        groups: Groups,
        gap: float,
        tokens: Selection,
        in_samples: bool,
    ) -> None:
        super().__init__(problem, beta, at, point, groups)
        self.start = self.least = gap
        limit = beta * self.weight[:, 0]
        square = problem.ray(point)[1]
        self.cycles = Cycles(tokens, in_samples, self.Z0, self.M0, limit, square)

    def run(self, target: float, goal: float, clock: Clock) -> bool:
        quick = self._run(target, goal, clock)
        self.best = self.cycles.best
        return quick

    def _run(self, target: float, goal: float, clock: Clock) -> bool:
        stalled, gaps, fall = 0, [self.start], 0.0
        for _ in range(MOST_CYCLES):
            before, sweeps = self.value, self.cycles.sweeps
            if fall > 0:  # what is left may take fewer, if the gap falls on as in the last cycle
                sweeps = min(sweeps, FEWEST + int(self.ahead(target) / fall))
            self.value, gap = self.cycles.run(sweeps)
            fall = log(self.least / gap) / sweeps if 0 < gap < self.least else 0.0
            falls = gap < 0.9 * self.least or self.value < before - LITTLE * self.least
            stalled = 0 if falls else stalled + 1
            if gap < self.least:
                self.least = gap
                self.cycles.keep()
            if self.least <= target * self.value or clock.late():
                return True
            if stalled >= STALLED:  # what is left to gain drowns in rounding
                return self.least < NEAR * self.start
            gaps.append(self.least)
            if len(gaps) > 2 and self._slows(gaps, goal):
                return False
        return False

    def _slows(self, gaps: list[float], goal: float) -> bool:
        """Whether Newton's method is quicker, if the gap goes on to fall as in the last cycles."""
        done = len(gaps) - 1
        if done * self.cycles.seconds(len(self.groups)) < LEAST:
            return False
        seconds = self.cycles.seconds()
        spent = done * seconds
        if spent < LEAST:
            return False
        return self.is_slow(spent, self.ahead(goal) / _fall(gaps) * seconds, self.cycles.Z)


def minimise_quadratic(
    Q: Array,
    M: Array,
    Z: Array,
    radius: Array,
    bulk: float,
    target: float,
    late: Callable[[], bool] = lambda: False,
) -> Array | None:
    """Coefficients ``(cells, size, 1)`` whose gap is about below `target`, by sweeps from `Z`.

    Of the quadratic with Hessian `Q` and descent direction `M` at `Z`, plus ``radius_e ||z_e||``;
    `bulk`, the loss at `Z`, sizes the second-order part of the gap. None where sweeps are slow, or
    time is up.
    """
    cycles = Cycles(from_gram(Q, Z.shape[1]), False, Z, M, radius, np.array([2 * bulk]))
    gaps = list[float]()
    while len(gaps) < MOST_CYCLES and not late():
        gaps.append(cycles.run()[1])
        if gaps[-1] <= target:
            return cycles.Z
        if len(gaps) > RECENT and gaps[-1] > target * np.exp(MOST_CYCLES * _fall(gaps)):
            break
    return None


def _fall(gaps: list[float]) -> float:
    """Logarithm by which the gap falls in a cycle, of late."""
    recent = gaps[-RECENT - 1 :]
    return log(max(recent[0] / recent[-1], 1.0 + 1e-3)) / (len(recent) - 1)


def _by_output(Z: Array) -> Array:
    """``(n, d, c)`` as ``(n, c, d)``."""
    return np.ascontiguousarray(Z.transpose(0, 2, 1))
