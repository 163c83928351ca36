r"""Block coordinate descent: tokens move to their best in turn; for the squared loss.

.. math:: Z_k^+ = \arg\min_z \tfrac12 \|r_k - X_k z\|^2 + \beta w_k \|z\|

with :math:`r_k` what the other tokens leave. Every few passes over the tokens end with Anderson's
extrapolation. What a move changes is followed in samples, for which a token is read once and used
twice, or, where samples are many, in coefficients, by the Gram matrix of all tokens. The passes are
compiled, or else NumPy's.
"""

from __future__ import annotations

from math import log

import numpy as np
from numpy.typing import NDArray

from .. import _core
from ..problem import Point
from ..problem.designs import Groups
from . import choose
from .packing import Selection
from .solution import Clock, Task
from .working_set import Round, gram_is_quick, rounds

Array = NDArray[np.float64]

PASSES = 6  # of a cycle, at most; then it extrapolates
LEAST_SECONDS = 1e-3  # before speed is judged


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
        done = len(gaps) - 1
        if done * self.cycles.seconds(len(self.groups)) < LEAST_SECONDS:
            return False
        seconds = self.cycles.seconds()
        spent = done * seconds
        if spent < LEAST_SECONDS:
            return False
        return self.is_slow(spent, self.ahead(goal) / _fall(gaps) * seconds, self.cycles.Z)


def _fall(gaps: list[float]) -> float:
    """Logarithm by which the gap falls in a cycle, of late."""
    recent = gaps[-5:]
    return log(max(recent[0] / recent[-1], 1.0 + 1e-3)) / (len(recent) - 1)


def _by_output(Z: Array) -> Array:
    """``(n, d, c)`` as ``(n, c, d)``."""
    return np.ascontiguousarray(Z.transpose(0, 2, 1))
