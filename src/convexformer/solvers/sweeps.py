r"""Sweeps over blocks of tokens, each moved by a proximal step of its own length.

.. math:: Z_B^+ = \mathrm{prox}_{\beta/L_B}\bigl(Z_B + M_B / L_B\bigr), \qquad
          L_B \approx \|X_B\|^2

with the correlations M of the residuals at the moment; for one output of the squared loss. A block
is read once and used twice, blocks that come later see what earlier ones did, and every few sweeps
end with Anderson's extrapolation: steps that move all tokens at once take twice as many passes.
Larger blocks would be fewer calls, but more passes.

Products are in float32, on changes since a point that is known in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import sgemv

from ..problem import DualPoint, Problem
from ..problem.designs import Groups
from .blocks import anderson_shares
from .machine import CACHE, CACHE_SPEED, MEMORY_SPEED
from .rounds import NEAR, Round
from .solution import Clock, Iterate

Array = NDArray[np.float64]
Floats = NDArray[np.float32]

SWEEPS = 5  # of a cycle
MOST_CYCLES = 60  # of a round
LITTLE = 1e-3  # of the gap: less than that an objective does not fall for nothing
STALLED = 2  # cycles in which neither falls, which end a round
RECENT = 2  # cycles by which speed is judged
BLOCK_BYTES, BLOCK_COLUMNS = 1 << 20, 256  # of a block, unless a token is larger
POWERS, SLACK = 4, 1.1  # products that find a block's curvature, and by how much it is enlarged
VISIT, CYCLE = 1.5e-5, 4e-4  # seconds beyond products


@dataclass(frozen=True)
class Block:
    """Some tokens less their means, ``unit * A``, times the root of samples' weights."""

    groups: Groups
    A: Floats  # (N, groups * d)
    unit: float
    square: float  # of the length of A's longest axis, nearly


class Blocks:
    """Tokens in blocks, kept once they have been read."""

    def __init__(self, problem: Problem) -> None:
        self.design, self.center = problem.design, problem.center
        plain = bool(np.all(problem.weight == 1.0))
        self.root = None if plain else np.sqrt(problem.weight)
        columns = min(BLOCK_COLUMNS, BLOCK_BYTES // (4 * self.design.n_samples))
        self.per_block = max(1, columns // self.design.dim)
        self.forget()

    def forget(self) -> None:
        self._kept = list[Block]()

    def of(self, groups: Groups) -> list[Block]:
        """Blocks with these groups, and perhaps some more."""
        known = [k for block in self._kept for k in block.groups.tolist()]
        new = np.setdiff1d(groups, known)
        # Blocks that are too many for their tokens, or mostly of no use, are put together anew.
        most = 2 + 2 * (len(known) + len(new)) // self.per_block
        if len(self._kept) + len(new) // self.per_block > most or len(known) > 2 * len(groups):
            self.forget()
            new = groups
        for first in range(0, len(new), self.per_block):
            self._kept.append(self._read(new[first : first + self.per_block]))
        wanted = set(groups.tolist())
        return [block for block in self._kept if not wanted.isdisjoint(block.groups.tolist())]

    def _tokens(self, groups: Groups) -> Iterator[tuple[slice, Array]]:
        """Which columns of a block a token has, and the token in float64."""
        d = self.design.dim
        for j, k in enumerate(groups.tolist()):
            token = self.design.whole(np.array([k]), np.float64)
            if self.center is not None:
                token = token - self.center[k]
            if self.root is not None:
                token = self.root[:, None] * token
            yield slice(j * d, (j + 1) * d), token

    def _read(self, groups: Groups) -> Block:
        shape = (self.design.n_samples, len(groups) * self.design.dim)
        A: Floats = np.empty(shape, dtype=np.float32)
        with np.errstate(over="ignore"):
            for part, token in self._tokens(groups):
                A[:, part] = token
            total, unit = float(np.vdot(A, A)), 1.0
        if not 1e-12 * A.size < total < 1e12 * A.size:  # squares must fit float32
            unit = max(float(np.max(np.abs(token))) for _, token in self._tokens(groups)) or 1.0
            for part, token in self._tokens(groups):
                A[:, part] = token / unit
        return Block(groups, A, unit, _longest_square(A))


def _longest_square(A: Floats) -> float:
    """``||A||^2``, or a little more, by a few products from an axis at random."""
    start: Any = np.random.default_rng(0).standard_normal(A.shape[1], dtype=np.float32)
    axis, size = start, float(np.linalg.norm(start))
    for _ in range(POWERS):
        axis = (A @ (axis / np.float32(size))) @ A
        size = max(float(np.linalg.norm(axis)), 1e-30)
    return SLACK * size


@dataclass(frozen=True)
class _Visit:
    """What moving a block takes, but for where it is."""

    A: Floats
    unit: float
    rows: slice  # of the coefficients
    gain: float  # of a coefficient per product of A with a change of the dual point
    first: Array  # what the first dual point adds to the coefficients
    limit: Array  # by which their norms shrink

    @classmethod
    def of(cls, block: Block, rows: slice, pull: float, M: Array, limit: Array) -> _Visit:
        step = 1.0 / (pull * block.unit**2 * block.square)
        gain = 1.0 / (block.unit * block.square)
        return cls(block.A, block.unit, rows, gain, step * M, step * limit)


def suit(problem: Problem) -> bool:
    """Whether sweeps are for this problem."""
    return problem.n_outputs == 1 and problem.loss.quadratic


class Sweeps(Round):
    """One round on the tokens of `blocks`.

    Dual points, scores and coefficients are over the size of the first dual point, correlations
    over beta; the former two are also times the root of samples' weights.
    """

    def __init__(
        self,
        problem: Problem,
        beta: float,
        at: Iterate,
        point: DualPoint,
        groups: Groups,
        blocks: Blocks,
    ) -> None:
        self.blocks = blocks.of(groups)
        self.root = 1.0 if blocks.root is None else blocks.root
        super().__init__(
            problem, beta, at, point, np.concatenate([block.groups for block in self.blocks])
        )
        ends = np.cumsum([0] + [len(block.groups) for block in self.blocks])
        self.rows = [slice(a, b) for a, b in pairwise(ends.tolist())]
        V = point.V[:, 0]
        v = np.divide(V, self.root, out=np.zeros_like(V), where=V != 0.0)
        self.size = float(np.max(np.abs(v))) or 1.0
        self.pull = self.size / beta  # correlations in units of theirs, per product in its units
        self.v_first = v / self.size
        self.e: Floats = np.zeros(len(V), dtype=np.float32)  # change of the dual point since
        self.limit = self.weight[:, 0]
        self.Z = self.Z0[:, :, 0] / self.size
        self.M = self.M_first = self.M0[:, :, 0] / beta
        self.visits = [
            _Visit.of(block, rows, self.pull, self.M_first[rows], self.limit[rows])
            for block, rows in zip(self.blocks, self.rows, strict=True)
        ]

    def run(self, target: float, goal: float, clock: Clock) -> bool:
        self.start = self.least = self.gap(self.value, self.point.V, self.M0)
        stalled, gaps = 0, [self.start]
        for cycle in range(1, MOST_CYCLES):
            before = self.value
            self._cycle()
            gap = self._measure()
            falls = gap < 0.9 * self.least or self.value < before - LITTLE * self.least
            stalled = 0 if falls else stalled + 1
            if gap < self.least:
                self.least, self.best = gap, self.size * self.Z[:, :, None]
            if self.least <= target or clock.late():
                return True
            if stalled >= STALLED:  # what is left to gain drowns in rounding
                return self.least < NEAR * self.start
            gaps.append(self.least)
            if cycle > 1 and self._slows(gaps, goal):
                return False
        return False

    def _cycle(self) -> None:
        """Some sweeps over blocks in use, or with something to gain, and an extrapolation."""
        live = np.any(self.Z, axis=1) | (np.einsum("kd,kd->k", self.M, self.M) > self.limit**2)
        self.live = [j for j, rows in enumerate(self.rows) if np.any(live[rows])]
        trail = [(self.Z.copy(), self.e.copy())]
        for _ in range(SWEEPS):
            for j in self.live:
                self._move(self.visits[j])
            trail.append((self.Z.copy(), self.e.copy()))
        self._extrapolate(trail)

    def _move(self, visit: _Visit) -> None:
        """Move the tokens of one block."""
        old = self.Z[visit.rows]
        new = (self.e @ visit.A).reshape(old.shape).astype(np.float64)
        new *= visit.gain
        new += visit.first
        new += old
        norms = np.sqrt(np.einsum("kd,kd->k", new, new))
        new *= (1.0 - visit.limit / np.maximum(norms, visit.limit))[:, None]
        move = (new - old).ravel()
        self.Z[visit.rows] = new
        self.e = sgemv(-visit.unit, visit.A.T, move, 1.0, self.e, trans=1, overwrite_y=1)

    def _extrapolate(self, trail: list[tuple[Array, Floats]]) -> None:
        """Go to the affine combination of points whose moves cancel best, if that is better."""
        points = np.array([Z.ravel() for Z, _ in trail])
        share = anderson_shares(np.diff(points, axis=0))
        Z = (share @ points[1:]).reshape(self.Z.shape)
        e = share.astype(np.float32) @ np.array([e for _, e in trail[1:]])
        if self._objective(Z, e) < self._objective(self.Z, self.e):
            self.Z, self.e = Z, e

    def _objective(self, Z: Array, e: Floats) -> float:
        """Less what it was at the origin but for the penalty, in units of this round."""
        penalty = float(self.limit @ np.sqrt(np.einsum("kd,kd->k", Z, Z)))
        return self.pull * float((self.v_first + 0.5 * e) @ e) + penalty

    def _measure(self) -> float:
        """The gap, from all correlations."""
        parts = [block.unit * (self.e @ block.A).astype(float) for block in self.blocks]
        self.M = self.M_first + self.pull * np.concatenate(parts).reshape(self.M.shape)
        self.value = self.origin.loss + self.beta * self.size * self._objective(self.Z, self.e)
        V = self.point.V + (self.size * self.root * self.e.astype(float))[:, None]
        return self.gap(self.value, V, self.beta * self.M[:, :, None])

    def _slows(self, gaps: list[float], goal: float) -> bool:
        """Whether Newton's method is quicker, if the gap goes on to fall as in the last cycles."""
        ahead = np.log(max(self.least / goal, 1.0))
        recent = gaps[-RECENT - 1 :]
        fall = np.log(max(recent[0] / recent[-1], 1.0 + 1e-3)) / (len(recent) - 1)
        each = self._cycle_seconds()
        return self.is_slow((len(gaps) - 1) * each, ahead / fall * each, self.Z[:, :, None])

    def _cycle_seconds(self) -> float:
        size = sum(self.blocks[j].A.size for j in self.live)
        speed = CACHE_SPEED if 4 * size < CACHE else MEMORY_SPEED
        return CYCLE + SWEEPS * (len(self.live) * VISIT + 6 * size / speed)
