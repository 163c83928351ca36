"""Six small problems, one per program, each with its certified floor and its networks.

The data are random and in general position, so that every block of the optimum needs its head.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from convexformer import problem as programs
from convexformer.nn import GatedFCN, Network, SequenceAttention, SimplexAttention
from convexformer.problem.heads import head_count, recover_heads, recover_sequence_heads
from convexformer.problem.sequence import SequenceProblem
from convexformer.solvers import Solution, solve
from convexformer.solvers.matrix_targets import solve_sequence

from ..lab import read_config

Array = NDArray[np.float64]

BETA = 0.1  # of beta_max
TOL = 1e-9  # relative gap asked of the floor
RANK_TOL = 1e-6  # singular values that the solver has not quite brought to zero are no heads
EXACT: dict[str, Any] = {"parametrization": "projection", "dtype": torch.float64}
"""Attention by exact projection: the optimum is at vertices, which a softmax only approaches."""


@dataclass(frozen=True)
class Case:
    """A problem, the floor that no network of its class can pass, and those networks.

    Attributes
    ----------
    name, label : str
    X, Y : ndarray
    loss : str
    certificate : programs.Certificate
        Of the convex program; its dual value is the floor.
    solver_seconds : float
        Processor time that solving the convex program took.
    enough : int
        Heads with which a network has the certified optimum.
    make : callable
        ``make(heads)`` is one network with a random start.
    """

    name: str
    label: str
    X: Array
    Y: Array
    loss: str
    certificate: programs.Certificate
    solver_seconds: float
    enough: int
    make: Callable[[int], Network]

    @property
    def beta(self) -> float:
        """Penalty strength, absolute."""
        return self.certificate.beta

    def heads(self, quick: bool = False) -> list[int]:
        """Numbers of heads to train: 1, 2, 4, ..., enough, and twice that; none between if quick.

        Examples
        --------
        >>> from experiments.equivalence.problems import CASES
        >>> CASES["token-output-3"]().heads()
        [1, 2, 4, 6, 12]
        """
        powers = [] if quick else [2**k for k in range(self.enough.bit_length())]
        return sorted({1, *powers, self.enough, 2 * self.enough})

    @property
    def curvature(self) -> float:
        """Largest curvature of the loss in the coefficients: the unit of SGD's learning rate."""
        spectral = float(np.linalg.norm(self.X.reshape(len(self.X), -1), 2))
        return spectral**2 * (0.5 if self.loss == "softmax" else 1.0)

    @property
    def fingerprint(self) -> str:
        """Changes with the data or the penalty strength, and with nothing else."""
        digest = hashlib.sha256(self.X.tobytes() + self.Y.tobytes())
        digest.update(f"{self.loss} {self.beta:.9g} {self.enough}".encode())
        return digest.hexdigest()[:12]


def attention(name: str, label: str, penalty: str, loss: str, shape: tuple[int, ...]) -> Case:
    """Vector targets; `shape` is ``(N, n, d, c)``."""
    N, n, d, c = shape
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, n, d))
    F = np.einsum("ikd,kdc->ic", X, rng.normal(size=(n, d, c))) + 0.3 * rng.normal(size=(N, c))
    Y = np.eye(c)[np.argmax(F, axis=1)] if loss == "softmax" else F
    measure: programs.Loss = programs.Softmax() if loss == "softmax" else programs.Squared()
    problem = programs.Problem(
        programs.TokenDesign(X), measure, programs.PENALTIES[penalty](), Y, intercept=False
    )
    solution, seconds = _timed(lambda: solve(problem, BETA * problem.beta_max, tol=TOL))
    enough = head_count(solution.Z, penalty, rank_tol=RANK_TOL)
    make = partial(SimplexAttention, n, d, c, penalty=penalty, **EXACT)
    return Case(name, label, X, Y, loss, solution.certificate, seconds, enough, make)


def gated(name: str, label: str) -> Case:
    """Three gates, one of them always open; head j is under gate j mod 3."""
    g, n, d = 3, 3, 2
    rng = np.random.default_rng(1)
    X = rng.normal(size=(24, n, d))
    U = rng.normal(size=(g, n, 1)) * rng.normal(size=(g, 1, d))  # rank one, as in the paper
    gates = programs.Gates(U, np.array([-np.inf, 0.0, 0.0]))
    design = programs.GatedDesign(programs.TokenDesign(X), gates.open(programs.TokenDesign(X)))
    Y = design.predict(rng.normal(size=(g * n, d, 1))) + 0.2 * rng.normal(size=(24, 1))
    problem = programs.Problem(
        design, programs.Squared(), programs.PENALTIES["token-output"](), Y, intercept=False
    )
    solution, seconds = _timed(lambda: solve(problem, BETA * problem.beta_max, tol=TOL))
    needed = np.bincount(recover_heads(solution.Z, "token-output").groups // n, minlength=g)
    # The last head that gate j needs is head number j + g (needed[j] - 1).
    enough = max(j + g * (int(count) - 1) + 1 for j, count in enumerate(needed))
    directions, thresholds = torch.tensor(gates.directions), torch.tensor(gates.thresholds)

    def make(heads: int) -> Network:
        return GatedFCN(directions, thresholds, 1, torch.arange(heads) % g, **EXACT)

    return Case(name, label, X, Y, "squared", solution.certificate, seconds, enough, make)


def matrix(name: str, label: str) -> Case:
    """Matrix targets: every position reads its right neighbour, with a strength of its own."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(8, 3, 2))
    strength = np.array([2.0, 1.0, 0.0])[:, None]
    Y = strength * np.roll(X[:, :, :1], -1, axis=1) + 0.1 * rng.normal(size=(8, 3, 1))
    problem = SequenceProblem(X, Y, "stochastic", intercept=False)
    solution, seconds = _timed(lambda: solve_sequence(problem, BETA * problem.beta_max, tol=TOL))
    parts = problem.parts(solution.Z)
    enough = len(recover_sequence_heads(parts.A, parts.B))
    make = partial(SequenceAttention, 3, 2, 1, **EXACT)
    return Case(name, label, X, Y, "squared", solution.certificate, seconds, enough, make)


def _timed(run: Callable[[], Solution]) -> tuple[Solution, float]:
    run()  # what is loaded at first use is no part of the solver's time
    with threadpool_limits(1):
        start = time.process_time()
        return run(), time.process_time() - start


CASES: dict[str, Callable[[], Case]] = {
    **{
        name: partial(attention, name, **options)
        for name, options in read_config(__file__, "problems.toml").items()
    },
    "gated": partial(gated, "gated", "gated, 3 gates"),
    "matrix": partial(matrix, "matrix", "matrix targets, stochastic"),
}
