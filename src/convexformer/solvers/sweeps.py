r"""Sweeps over tokens, each moved to its best in turn; for the squared loss.

.. math:: Z_k^+ = \arg\min_z \tfrac12 \|r_k - X_k z\|^2 + \beta w_k \|z\|

with :math:`r_k` what the other tokens leave. Tokens that come later see what earlier ones did, and
every few sweeps end with Anderson's extrapolation. Where neighbours are alike, as in time, and
those in use are more than stays near, sweeps go to and fro instead, each to the best point of the
plane along its move and the last one.

What a move changes is followed in samples, for which a token is read once and used twice, or,
where these are many, in coefficients, by the Gram matrix of all tokens. The sweeps themselves are
compiled (``_sweeps.c``), or else NumPy's (:mod:`~convexformer.solvers.cycle_numpy`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import log

import numpy as np
from numpy.typing import NDArray

from ..problem import DualPoint, Problem
from ..problem.designs import Groups
from .cycle_numpy import SWEEPS, TO_AND_FRO
from .machine import CACHE, CACHE_SPEED, COMPILED, MEMORY_SPEED, WIDE
from .ready import Selection, alike, from_gram
from .rounds import NEAR, Round
from .solution import Clock, Iterate

if COMPILED:
    from ._sweeps import cycle
else:
    from .cycle_numpy import cycle

Array = NDArray[np.float64]

MOST_CYCLES = 60  # of a round
LITTLE = 1e-3  # of the gap: less than that an objective does not fall for nothing
FEWEST = 2  # sweeps of a cycle, and by how many more than it seems to take
STALLED = 2  # cycles in which neither falls, which end a round
RECENT = 4  # cycles by which speed is judged
MOST_OUTPUTS = 16  # that move together; of cells of their own, which large products serve, half
PACE = 2.0 if WIDE else 1.0  # of products with tokens, over what a machine is taken for
LEAST = 1e-3  # seconds before speed is judged
VISIT, CYCLE = (2e-7, 5e-5) if COMPILED else (6e-5, 4e-4)  # seconds beyond products


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
        self._may_turn = in_samples and self._is_far(n) and alike(tokens.A)
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
            sweeps = self._in_time(sweeps, clock)
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

    def _in_time(self, sweeps: int, clock: Clock) -> int:
        """As many sweeps as there seems to be time for."""
        if clock.left is None:
            return sweeps
        each = self.cycles.seconds() / self.cycles.sweeps
        return max(1, min(sweeps, int(clock.slice(clock.left) / each)))

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
