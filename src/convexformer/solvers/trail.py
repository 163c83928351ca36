"""Where the next point of a path starts: on the curve through the last ones, if that is better."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..problem import Problem
from .solution import Solution

Array = NDArray[np.float64]

MOST = 3  # solutions that a curve goes through


@dataclass(frozen=True)
class _Stop:
    """A solution, and what is known of it."""

    solution: Solution
    known: tuple[Array, Array] | None  # scores and correlations

    @property
    def beta(self) -> float:
        return self.solution.certificate.beta


class Trail:
    """The last solutions of a path.

    Where the loss is quadratic scores and correlations follow coefficients linearly, hence those of
    a combination of solutions take no pass over X.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.stops = list[_Stop]()

    def add(self, solution: Solution) -> None:
        known = self.problem.recall(solution.Z) if self.problem.loss.quadratic else None
        self.stops = [stop for stop in self.stops if stop.beta != solution.certificate.beta]
        self.stops = [*self.stops, _Stop(solution, known)][-MOST:]

    def ahead(self, beta: float) -> Solution | None:
        """A start for `beta`; None before there is a solution."""
        if not self.stops:
            return None
        last, problem = self.stops[-1].solution, self.problem
        best = problem.objective(last.Z, last.intercept, beta)
        start = last
        for count in range(2, len(self.stops) + 1):
            stops = self.stops[-count:]
            shares = _shares([stop.beta for stop in stops], beta)
            Z, b = self._combined(stops, shares)
            value = problem.objective(Z, b, beta)
            if value >= best:
                break
            best, start = value, replace(last, Z=Z, intercept=b)
        return start

    def _combined(self, stops: list[_Stop], shares: Array) -> tuple[Array, Array]:
        """Coefficients, but of tokens that the last solution does without, and intercept."""
        Zs = np.array([stop.solution.Z for stop in stops])
        used: NDArray[np.bool_] = np.any(Zs, axis=(2, 3))
        gone = used.any(axis=0) & ~used[-1]
        Z = _sum(shares, Zs)
        Z[gone] = 0.0
        known = [stop.known for stop in stops if stop.known is not None]
        if len(known) == len(stops) and not gone.any():
            S, M = (_sum(shares, np.array(parts)) for parts in zip(*known, strict=True))
            self.problem.foresee(Z, S, M)
        return Z, _sum(shares, np.array([stop.solution.intercept for stop in stops]))


def _sum(shares: Array, parts: Array) -> Array:
    return np.asarray(np.tensordot(shares, parts, axes=1))


def _shares(betas: list[float], beta: float) -> Array:
    """Of values at `betas` in that at `beta`, on the polynomial through them."""
    return np.array(
        [
            np.prod([(beta - other) / (own - other) for other in betas if other != own])
            for own in betas
        ]
    )
