"""What a solver returns, and what all strategies share: the task, its clock and its trace."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..problem import Certificate, Point, Problem
from ..problem.arrays import Array

if TYPE_CHECKING:
    from .workspace import Workspace


FINEST_GAP = 1e-15  # relative gap: an objective in float64 rounds by about as much
ROUNDING = 1e-14  # relative fall of an objective that rounding explains
ON_INTERRUPT = ("raise", "keep")


class TracePoint(NamedTuple):
    """One line of a solver's trace; the gap is computed at that point, not estimated."""

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
        "No further progress: rounding of float64, or an ill-conditioned problem, keeps the "
        "certified gap above the tolerance. Centre or scale X (TokenScaler), raise beta, or "
        "raise tol."
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
    strategy : str
        What found the solution, see :mod:`convexformer.solvers.choose`; several joined by " + "
        where one took over from another. Empty where no token is used, at beta_max and above.
    """

    Z: Array
    intercept: Array
    certificate: Certificate
    status: Status
    n_iter: int = 0
    trace: list[TracePoint] = field(default_factory=list)
    strategy: str = ""

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
    reserve: float = 0.0  # seconds of `max_time` reserved for evaluating what steps found
    trace: list[TracePoint] = field(default_factory=list)
    n_iter: int = 0
    strategies: list[str] = field(default_factory=list)  # in the order of their first use
    _start: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

    @property
    def left(self) -> float | None:
        """Seconds left, None if there is no limit."""
        return None if self.max_time is None else max(0.0, self.max_time - self.seconds)

    def late(self) -> bool:
        """Whether to stop: time is up, but for what is reserved, or Ctrl-C asked to."""
        if self.asked():
            return True
        return self.max_time is not None and self.seconds >= self.max_time - self.reserve

    def slice(self, most: float) -> float:
        """Seconds that a step which cannot be stopped may take: what is left, up to `most`."""
        return most if self.left is None else min(most, max(0.0, self.left - self.reserve))

    def keep_back(self, seconds: float) -> None:
        """Reserve so much time, but not most of it, for evaluating what steps find."""
        if self.max_time is not None:
            self.reserve = max(self.reserve, min(seconds, 0.25 * self.max_time))

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

    def use(self, strategies: Iterable[str]) -> None:
        """Note what is at work."""
        self.strategies += [name for name in strategies if name not in self.strategies]


@dataclass
class Task:
    """What a strategy is asked to do: minimise `problem` at `beta` to the relative gap `tol`."""

    problem: Problem
    beta: float
    tol: float
    clock: Clock
    work: Workspace

    def measure(self, at: Point) -> float:
        """The relative gap of `at`, recorded in the trace; time for such a pass is reserved."""
        before = self.clock.seconds
        gap = at.gap(self.beta)
        self.clock.keep_back(2 * (self.clock.seconds - before))  # over X, both ways
        last = self.clock.trace[-1] if self.clock.trace else None
        if last is None or (last.iteration, last.relative_gap) != (self.clock.n_iter, gap):
            self.clock.record(gap, at.Z)
        return gap


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

    patience: int = 3
    least: float = np.inf  # gap
    value: float = np.inf  # objective at the last progress
    idle: int = 0  # iterations since

    def ended(self, gap: float, value: float) -> bool:
        """Whether neither the gap nor the objective has fallen for some iterations."""
        if gap < 0.9 * self.least or value < self.value - ROUNDING * abs(value):
            self.idle, self.value = 0, min(self.value, value)
        else:
            self.idle += 1
        self.least = min(self.least, gap)
        return self.idle >= self.patience


class InterruptHandler:
    """A signal handler: the first Ctrl-C asks to stop, the second does what it did before."""

    def __init__(self, previous: Callable[[int, FrameType | None], Any]) -> None:
        self.asked, self.previous = False, previous

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            self.previous(number, frame)
        self.asked = True


@contextmanager
def interruption(on_interrupt: str) -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C has asked to stop since the block began, as a function.

    With "keep" the first Ctrl-C only asks, and the second raises KeyboardInterrupt; "raise" leaves
    both to Python. Signals reach the main thread alone, so in other threads nobody ever asks. A
    block inside another one shares its handler.

    Examples
    --------
    >>> import signal
    >>> from convexformer.solvers.solution import interruption
    >>> with interruption("keep") as asked:
    ...     signal.raise_signal(signal.SIGINT)  # as Ctrl-C does
    ...     asked()
    True
    """
    if on_interrupt not in ON_INTERRUPT:
        raise ValueError(f"on_interrupt must be one of {ON_INTERRUPT}, got {on_interrupt!r}.")
    main = threading.current_thread() is threading.main_thread()
    previous = signal.getsignal(signal.SIGINT) if main and on_interrupt == "keep" else None
    if isinstance(previous, InterruptHandler):
        yield lambda: previous.asked
    elif not callable(previous):  # also where the process ignores Ctrl-C
        yield lambda: False
    else:
        handler = InterruptHandler(previous)
        try:
            signal.signal(signal.SIGINT, handler)
            yield lambda: handler.asked
        finally:
            signal.signal(signal.SIGINT, previous)
