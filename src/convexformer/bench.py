r"""A small race on the reader's own machine: seconds to a certified gap.

The full contest, against every peer, is in ``benchmarks/`` of the repository. Here each cell is
solved at a few fractions of beta_max; where a peer that fits is installed (scikit-learn's ``Lasso``
for scalar tokens, celer's ``GroupLasso``) it runs on the same arrays, at the loosest of its
tolerances whose coefficients have the same gap, recomputed from them.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .problem import Problem, Squared, TokenDesign, TokenOutput
from .solvers import Solution, solve

Array = NDArray[np.float64]
T = TypeVar("T")

FRACTIONS = (0.5, 0.1, 0.02)
GAP = 1e-6
REPETITIONS, LONG = 5, 1.0  # runs, unless they take so many seconds


@dataclass(frozen=True)
class Cell:
    """Sizes of made data; five tokens count."""

    name: str
    n_samples: int
    n_tokens: int
    dim: int
    correlated: bool = False

    def arrays(self) -> tuple[Array, Array]:
        """``X (N, n, d)`` and ``y (N, 1)``.

        Correlated tokens follow an AR(1) process over positions.
        """
        rng = np.random.default_rng(0)
        X = rng.normal(size=(self.n_samples, self.n_tokens, self.dim))
        if self.correlated:
            for k in range(1, self.n_tokens):
                X[:, k] = 0.9 * X[:, k - 1] + np.sqrt(1 - 0.81) * X[:, k]
        tokens = rng.choice(self.n_tokens, min(5, self.n_tokens), replace=False)
        f = np.einsum("ikd,kd->i", X[:, tokens], rng.normal(size=(len(tokens), self.dim)))
        return X, (f / f.std() + 0.5 * rng.normal(size=len(f)))[:, None]


CELLS = (
    Cell("isotropic", 1000, 50, 32),
    Cell("correlated", 500, 32, 64, correlated=True),
    Cell("tall", 40_000, 16, 16),
    Cell("scalar", 1000, 200, 1, correlated=True),
)


@dataclass(frozen=True)
class Timing:
    """One contestant in one cell."""

    cell: str
    shape: tuple[int, int, int]
    fraction: float
    solver: str
    seconds: float
    relative_gap: float
    tokens: int


def race(
    cells: tuple[Cell, ...] = CELLS, fractions: tuple[float, ...] = FRACTIONS
) -> Iterator[Timing]:
    """Time ours, and peers that are installed, cell by cell; processor seconds.

    Examples
    --------
    >>> from convexformer.bench import Cell, race
    >>> timing = next(race((Cell("tiny", 50, 4, 3),), fractions=(0.1,)))
    >>> timing.solver, timing.relative_gap <= 1e-6
    ('convexformer', True)
    """
    for cell in cells:
        X, y = cell.arrays()
        for fraction in fractions:
            seconds, (problem, solution) = _repeated(partial(_solved, X, y, fraction))
            beta = solution.certificate.beta
            gap = solution.certificate.relative_gap
            used = int(np.count_nonzero(np.any(solution.Z, axis=(1, 2))))
            yield Timing(cell.name, X.shape, fraction, "convexformer", seconds, gap, used)
            for name, model in _peers(cell):
                yield _timed(cell, problem, X, y, beta, fraction, name, model)


def _solved(X: Array, y: Array, fraction: float) -> tuple[Problem, Solution]:
    problem = Problem(TokenDesign(X), Squared(), TokenOutput(), y)
    return problem, solve(problem, fraction * problem.beta_max, tol=GAP)


def _repeated(run: Callable[[], T]) -> tuple[float, T]:
    """Median seconds of some runs, or of one that takes long, and what the last one returns."""
    times: list[float] = []
    while len(times) < REPETITIONS and sum(times) < LONG:
        start = time.process_time()
        found = run()
        times.append(time.process_time() - start)
    return median(times), found


def _peers(cell: Cell) -> Iterator[tuple[str, Callable[..., Any]]]:
    if cell.dim == 1:
        from sklearn.linear_model import Lasso

        yield "scikit-learn", lambda alpha, tol: Lasso(alpha, tol=tol, max_iter=10**6)
    if find_spec("celer"):
        group_lasso = import_module("celer").GroupLasso
        yield "celer", lambda alpha, tol: group_lasso(cell.dim, alpha, tol=tol)


def _timed(
    cell: Cell,
    problem: Problem,
    X: Array,
    y: Array,
    beta: float,
    fraction: float,
    name: str,
    model: Callable[..., Any],
) -> Timing:
    """The first run of a sweep of tolerances that meets the gap, or the last."""
    A = np.asfortranarray(X.reshape(len(X), -1))
    for tol in (1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-10):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a loose tolerance that was not met shows in the gap
            seconds, fitted = _repeated(partial(model(beta / len(X), tol).fit, A, y[:, 0]))
        Z = np.asarray(fitted.coef_, dtype=np.float64).reshape(problem.shape)
        certificate = problem.certificate(Z, np.array([fitted.intercept_]), beta)
        if certificate.relative_gap <= GAP:
            break
    used = int(np.count_nonzero(np.any(Z, axis=(1, 2))))
    return Timing(cell.name, X.shape, fraction, name, seconds, certificate.relative_gap, used)
