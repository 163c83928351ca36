"""Where the next point of a path starts: on the curve through the last ones, if that is better."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..problem import Problem
from .solution import Solution, Status

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
        last, problem = self.stops[-1], self.problem
        Z, proof = last.solution.Z, last.solution.certificate
        best = proof.primal + (beta - last.beta) * problem.penalty.value(Z)
        for count in range(len(self.stops), 1, -1):  # the curve through most is best, as a rule
            stops = self.stops[-count:]
            shares = _shares([stop.beta for stop in stops], beta)
            Z, known = self._combined(stops, shares)
            S = known[0] if known else problem.scores(Z)
            b, _, loss = problem.settle(Z, S, problem.inner_intercept(Z, last.solution.intercept))
            if loss + beta * problem.penalty.value(Z) < best:
                if known:
                    problem.foresee(Z, *known)
                return Solution(Z, problem.outer_intercept(Z, b), proof, Status.ITERATIONS)
        return last.solution

    def _combined(
        self, stops: list[_Stop], shares: list[float]
    ) -> tuple[Array, tuple[Array, Array] | None]:
        """Coefficients, but of tokens that the last solution does without; and what is known."""
        Z = _sum(shares, [stop.solution.Z for stop in stops])
        gone = Z.any(axis=(1, 2)) & ~stops[-1].solution.Z.any(axis=(1, 2))
        if gone.any():
            Z[gone] = 0.0
            return Z, None
        known = [stop.known for stop in stops if stop.known is not None]
        if len(known) < len(stops):
            return Z, None
        S, M = (_sum(shares, list(parts)) for parts in zip(*known, strict=True))
        S.flags.writeable = False
        return Z, (S, M)


def _sum(shares: list[float], parts: list[Array]) -> Array:
    total = shares[0] * parts[0]
    for share, part in zip(shares[1:], parts[1:], strict=True):
        total += share * part
    return total


def _shares(betas: list[float], beta: float) -> list[float]:
    """Of values at `betas` in that at `beta`, on the polynomial through them."""
    return [
        prod((beta - other) / (own - other) for other in betas if other != own) for own in betas
    ]
