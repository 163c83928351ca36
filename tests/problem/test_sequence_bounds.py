"""Certificates of matrix targets hold in exact arithmetic: judged by mpmath at hostile scales."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from mpmath import mpf
from tests.sequences import as_targets

from convexformer.problem import Huber, Logistic, Poisson, Softmax, Squared
from convexformer.problem.sequence import SequenceProblem
from convexformer.solvers import Status
from convexformer.solvers.matrix_targets import solve_sequence

LOSSES = ("squared", "huber", "logistic", "softmax", "poisson")
MEANS = (0.0, 1.0, 1e4, 1e8, 1e12, 1e16)  # of channels, in spreads
SCALES = (1.0, 1.0, 1.0, 1e-60, 1e60)  # of X
DIGITS = 80
PROBLEMS, SHARDS = 40, 4


class Hostile:
    """A small problem with hostile means, scales, weights or padding, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.name = LOSSES[seed % 5]
        N, n, d = (int(rng.integers(*ends)) for ends in ((5, 9), (1, 4), (1, 3)))
        c = {"logistic": 1, "softmax": 3}.get(self.name, 2)
        spread = rng.normal(size=(N, n, d))
        self.X = (spread + rng.choice(MEANS) * rng.choice([-1.0, 1.0], size=d)) * rng.choice(SCALES)
        noisy = spread.sum(axis=2, keepdims=True) + rng.normal(size=(N, n, c))
        self.Y = as_targets(noisy, self.name)
        self.Y[:3, 0] = {
            "logistic": np.array([[1.0], [-1.0], [1.0]]),
            "softmax": np.eye(3),
        }.get(self.name, self.Y[:3, 0] + 1.0)
        self.loss = {
            "squared": Squared(),
            "huber": Huber(0.7),
            "logistic": Logistic(),
            "softmax": Softmax(),
            "poisson": Poisson(),
        }[self.name]
        self.mask = rng.random((N, n)) < 0.8 if rng.random() < 0.3 else None
        if self.mask is not None:
            self.mask[:3, 0] = True
        self.weight = rng.exponential(size=N) + 0.01 if rng.random() < 0.5 else np.ones(N)
        self.attention = ("stochastic", "substochastic")[int(rng.integers(2))]
        self.intercept = bool(rng.random() < 0.7)
        self.fraction = float(rng.choice([0.9, 0.3, 0.1]))

    def problem(self) -> SequenceProblem:
        options = (self.attention, self.weight, self.mask, self.intercept, self.loss)
        return SequenceProblem(self.X, self.Y, *options)

    def objective(self, Z, b, beta: float):
        """``P(Z, b)`` to `DIGITS` digits; `b` are floats or fractions."""
        real = np.ones(self.X.shape[:2], bool) if self.mask is None else self.mask
        X = np.where(real[:, :, None], self.X, 0.0)
        d, c, n, _ = Z.shape
        total = mpf(0)
        for i, r in zip(*np.nonzero(real), strict=True):
            scores = [
                sum(
                    (
                        Fraction(X[i, k, j]) * Fraction(Z[j, k_out, r, k])
                        for j in range(d)
                        for k in range(n)
                    ),
                    start=Fraction(b[k_out]),
                )
                for k_out in range(c)
            ]
            total += mpf(self.weight[i]) * self._loss([_mp(f) for f in scores], self.Y[i, r])
        penalty = Fraction(0)
        for matrix in Z.reshape(-1, n, n).tolist():
            rows = [[Fraction(z) for z in row] for row in matrix]
            if self.attention == "stochastic":
                assert len({sum(row) for row in rows}) == 1  # feasible to the last digit
            penalty += max(sum(z for z in row if z > 0) for row in rows)
            penalty += max(sum(-z for z in row if z < 0) for row in rows)
        return total + mpf(beta) * _mp(penalty)

    def _loss(self, f, y):
        if self.name == "softmax":
            return mpmath.log(sum(map(mpmath.exp, f))) - f[int(np.argmax(y))]
        return sum(
            self._entry(score, mpf(float(target))) for score, target in zip(f, y, strict=True)
        )

    def _entry(self, f, y):
        if self.name == "squared":
            return (f - y) ** 2 / 2
        if self.name == "huber":
            r, delta = abs(f - y), mpf(self.loss.delta)
            return r * r / 2 if r <= delta else delta * (r - delta / 2)
        if self.name == "logistic":
            return mpmath.log1p(mpmath.exp(-y * f))
        return mpmath.exp(f) - y * f + (y * mpmath.log(y) - y if y > 0 else 0)


def _mp(value: Fraction):
    return mpf(value.numerator) / mpf(value.denominator)


def check(seed: int, weight_decades: int = 0) -> Status:
    """Solve a hostile problem, and judge the certificates of its solution and of worse models.

    Weights of samples are multiplied by powers of ten up to plus or minus `weight_decades`.
    """
    hostile = Hostile(seed)
    if weight_decades:
        powers = np.random.default_rng(seed).integers(
            -weight_decades, weight_decades, size=len(hostile.weight)
        )
        hostile.weight = hostile.weight * 10.0**powers
    problem = hostile.problem()
    beta = hostile.fraction * problem.beta_max
    if beta == 0:
        return Status.CONVERGED
    solution = solve_sequence(problem, beta, max_time=2.0, max_iter=2000)
    shaken = np.random.default_rng(seed).uniform(0.5, 1.5, problem.shape)
    b = solution.intercept
    models = [(solution.Z, solution.certificate)]
    for Z in (np.zeros(problem.shape), problem.feasible(solution.Z * shaken)):
        models.append((Z, problem.certificate(Z, b, beta)))
    with mpmath.workdps(DIGITS):
        values = [hostile.objective(Z, b.tolist(), beta) for Z, _ in models]
        for value, (_, certificate) in zip(values, models, strict=True):
            assert value <= mpf(certificate.primal), (seed, value, certificate)
            assert mpf(certificate.dual) <= min(values), (seed, min(values), certificate)
            assert certificate.gap >= 0, (seed, certificate)
    return solution.status


@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_certificate_is_wrong_in_exact_arithmetic(shard):
    statuses = [check(seed) for seed in range(shard, PROBLEMS, SHARDS)]
    assert statuses.count(Status.CONVERGED) >= 0.5 * len(statuses)  # many are solved, too


def test_a_model_that_cannot_be_factorised_ends_the_solve_with_a_certificate():
    """Means 1e8 spreads away and weights 1e28 apart hide a Gram matrix's smallest eigenvalue."""
    assert check(1188, weight_decades=20) is Status.PRECISION


def test_means_of_1e7_spreads_are_certified_where_they_act_as_an_intercept():
    """Rows of stochastic attention let a channel's constant pass unchanged."""
    rng = np.random.default_rng(0)
    spread = rng.integers(-8, 9, size=(30, 4, 2)).astype(float)
    Y = np.where(spread[:, ::-1, :1] + rng.normal(size=(30, 4, 1)) > 0, 1.0, -1.0)
    near = SequenceProblem(spread, Y, loss=Logistic())
    far = SequenceProblem(spread + 1e7, Y, loss=Logistic())
    beta = 0.3 * near.beta_max
    solution = solve_sequence(near, beta, tol=1e-8)
    lift = 1e7 * solution.Z.sum(axis=(0, 2, 3)) / 4
    found = far.certificate(solution.Z, solution.intercept - lift, beta)
    assert found.dual == pytest.approx(solution.certificate.dual, rel=1e-6)
    assert found.relative_gap <= 1e-6
