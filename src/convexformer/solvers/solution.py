"""What a solver returns, and the clock and trace that all solvers share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..problem import Certificate, DualPoint, Problem

Array = NDArray[np.float64]

MOST_KEPT_BACK = 0.25  # of max_time
FINEST = 1e-15  # relative gap: by about as much an objective in float64 rounds
PATIENCE = 3  # iterations in a row without progress before a solve ends
LESS = 0.9  # factor by which a gap must fall to count as progress
ROUNDING = 1e-14  # relative fall of an objective that rounding explains


class TracePoint(NamedTuple):
    """One line of a solver's trace; the gap is certified, not estimated."""

    iteration: int
    seconds: float
    relative_gap: float
    n_active: int


Callback = Callable[[TracePoint], None]


class Status(Enum):
    """Why a solver stopped; the value of each member is its help text."""

    CONVERGED = "The certified relative gap reached the tolerance."
    TIME = "max_time ran out before the gap reached the tolerance. Raise max_time or tol."
    ITERATIONS = "max_iter ran out before the gap reached the tolerance. Raise max_iter or tol."
    PRECISION = (
        "Rounding of float64 keeps the certified gap above the tolerance. Centre or scale X "
        "(TokenScaler), raise beta, or raise tol."
    )
    INTERRUPTED = "Interrupted before the gap reached the tolerance. The best iterate was kept."

    def __str__(self) -> str:
        return self.value


def advice(statuses: Iterable[Status]) -> str:
    """Why solvers stopped before they converged, and what to do; every reason once.

    Examples
    --------
    >>> from convexformer.solvers import Status
    >>> from convexformer.solvers.solution import advice
    >>> advice([Status.CONVERGED, Status.TIME, Status.TIME])
    'max_time ran out before the gap reached the tolerance. Raise max_time or tol.'
    """
    stopped = dict.fromkeys(status for status in statuses if status is not Status.CONVERGED)
    return " ".join(status.value for status in stopped)


@dataclass
class Solution:
    """Coefficients with their proof.

    Attributes
    ----------
    Z : ndarray of shape (groups, d, c)
    intercept : ndarray of shape (c,)
    certificate : Certificate
        Computed in float64 from `Z` and `intercept` alone.
    status : Status
        Why the solver stopped.
    n_iter : int
    trace : list of TracePoint
    """

    Z: Array
    intercept: Array
    certificate: Certificate
    status: Status
    n_iter: int = 0
    trace: list[TracePoint] = field(default_factory=list)

    @property
    def converged(self) -> bool:
        """Whether the relative gap reached the tolerance."""
        return self.status is Status.CONVERGED


@dataclass
class Clock:
    """Time and iterations a solve may spend, and the trace of what it reached."""

    max_iter: int
    max_time: float | None = None
    callback: Callback | None = None
    asked: Callable[[], bool] = lambda: False  # whether Ctrl-C asked to stop
    reserve: float = 0.0  # seconds of `max_time` kept back to evaluate what steps found
    trace: list[TracePoint] = field(default_factory=list)
    n_iter: int = 0
    _start: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

    @property
    def left(self) -> float | None:
        """Seconds left, None if there is no limit."""
        return None if self.max_time is None else max(0.0, self.max_time - self.seconds)

    def late(self) -> bool:
        """Whether to stop: time is up, but for what is kept back, or Ctrl-C asked to."""
        if self.asked():
            return True
        return self.max_time is not None and self.seconds >= self.max_time - self.reserve

    def slice(self, most: float) -> float:
        """Seconds that a step which cannot be stopped may take: what is left, up to `most`."""
        return most if self.left is None else min(most, max(0.0, self.left - self.reserve))

    def keep_back(self, seconds: float) -> None:
        """Keep so much time, but not most of it, to evaluate what steps found."""
        if self.max_time is not None:
            self.reserve = max(self.reserve, min(seconds, MOST_KEPT_BACK * self.max_time))

    def part(self, max_iter: int) -> Clock:
        """A clock for a part of the work that is left, with a trace of its own."""
        return Clock(max_iter, self.left, asked=self.asked, reserve=self.reserve)

    @property
    def expired(self) -> bool:
        return self.late() or self.n_iter >= self.max_iter

    def status(self, converged: bool) -> Status:
        """Why a solver that stops now does so."""
        if converged:
            return Status.CONVERGED
        if self.asked():
            return Status.INTERRUPTED
        if self.late():
            return Status.TIME
        return Status.ITERATIONS if self.n_iter >= self.max_iter else Status.PRECISION

    def record(self, relative_gap: float, Z: Array) -> None:
        active = int(np.count_nonzero(Z.any(axis=(1, 2))))
        point = TracePoint(self.n_iter, self.seconds, relative_gap, active)
        self.trace.append(point)
        if self.callback is not None:
            self.callback(point)


@dataclass
class Progress:
    """Whether a solve still gets anywhere, or has reached what float64 can tell apart.

    Progress is a gap that is clearly below the least one so far, or an objective that is below its
    value at the last progress by more than rounding.

    Examples
    --------
    >>> from convexformer.solvers.solution import Progress
    >>> progress = Progress()
    >>> [progress.ended(gap=1e-13, value=2.0) for _ in range(4)]
    [False, False, False, True]
    """

    patience: int = PATIENCE
    least: float = np.inf  # gap
    value: float = np.inf  # objective at the last progress
    idle: int = 0  # iterations since

    def ended(self, gap: float, value: float) -> bool:
        """Whether neither the gap nor the objective has fallen for some iterations."""
        if gap < LESS * self.least or value < self.value - ROUNDING * abs(value):
            self.idle, self.value = 0, min(self.value, value)
        else:
            self.idle += 1
        self.least = min(self.least, gap)
        return self.idle >= self.patience


@dataclass
class Iterate:
    """Coefficients, their centred scores, the best intercept there, and the loss."""

    Z: Array  # (groups, d, c)
    S: Array  # (N, c)
    b: Array  # (c,), inner
    F: Array  # (N, c), scores with the intercept
    loss: float
    penalty: float  # without beta

    @classmethod
    def at(cls, problem: Problem, Z: Array, S: Array, b: Array) -> Iterate:
        b, F, loss = problem.settle(Z, S, b)
        return cls(Z, S, b, F, loss, problem.penalty.value(Z))

    @classmethod
    def start(cls, problem: Problem, init: Solution | None, beta: float) -> Iterate:
        """From `init`, or from zero where there is none or it is the worse of the two."""
        b, F, loss = problem.null
        if init is not None:
            inner = problem.inner_intercept(init.Z, init.intercept)
            warm = cls.at(problem, init.Z, problem.scores(init.Z), inner)
            if warm.primal(beta) <= loss:
                return warm
        S = np.zeros(F.shape, order=problem.loss.order)
        return cls(np.zeros(problem.shape), S, b, F, loss, 0.0)

    def primal(self, beta: float) -> float:
        return self.loss + beta * self.penalty

    def gap(self, problem: Problem, point: DualPoint, beta: float) -> float:
        """Relative gap."""
        primal = self.primal(beta)
        gap = primal - problem.dual_value(point, beta)
        return gap / primal if primal > 0 else gap
