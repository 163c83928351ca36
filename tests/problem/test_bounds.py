"""Certificates hold in exact arithmetic: judged by mpmath on problems made to round badly."""

import os
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from mpmath import mpf

from convexformer.problem import (
    PENALTIES,
    GatedDesign,
    Huber,
    Logistic,
    Poisson,
    Problem,
    Softmax,
    Squared,
    TokenDesign,
)
from convexformer.problem.bounds import exact_dot, exactly_balanced
from convexformer.solvers import Status, solve

MEANS = (0.0, 1.0, 1e4, 1e8, 1e10, 1e12, 1e14, 1e16)  # of columns, in spreads
SCALES = (1.0, 1.0, 1e-100, 1e-30, 1e30, 1e100)
LOSSES = ("squared", "huber", "logistic", "softmax", "poisson")
DIGITS = 80
SHARDS = 8
PROBLEMS = int(os.environ.get("HOSTILE", "200"))  # `make certificates` judges 4,000


class Hostile:
    """A small problem with hostile means, scales, weights, gates or padding, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        N, n, d = (int(rng.integers(*ends)) for ends in ((4, 14), (1, 4), (1, 4)))
        name = LOSSES[seed % 5]
        mean = rng.choice(MEANS) * rng.choice([-1.0, 1.0], size=(n, d))
        X = rng.normal(size=(N, n, d))
        scores = X.reshape(N, -1) @ rng.normal(size=(n * d, 3 if name == "softmax" else 1))
        x_scale = rng.choice(SCALES)
        y_scale = rng.choice(SCALES[:-1]) if name in ("squared", "huber") else 1.0
        if not 1e-120 < x_scale * y_scale < 1e120:  # such products are refused
            y_scale = 1.0
        if rng.random() < 0.2:
            X = np.rint(4 * X)
        self.X = (X + mean) * x_scale
        self.mask = rng.random((N, n)) < 0.8 if rng.random() < 0.25 else None
        noisy = scores + rng.normal(size=scores.shape)
        self.loss, self.Y = self._targets(name, noisy, y_scale, rng)
        self.weight = rng.exponential(size=N) * rng.choice([1e-20, 1.0, 1e20])
        if rng.random() < 0.5:
            self.weight = np.ones(N)
        elif rng.random() < 0.3:
            self.weight[: N // 4] = 0.0
        penalty = list(PENALTIES)[int(rng.integers(3))]
        self.dtype = np.float32 if rng.random() < 0.1 and abs(np.log(x_scale)) < 1 else np.float64
        gates = int(rng.integers(1, 4)) if rng.random() < 0.15 else 0
        self.gates = rng.random((N, gates)) < 0.6 if gates else None
        groups = n * max(gates, 1)
        self.token_weights = rng.uniform(0.5, 2.0, groups) if rng.random() < 0.3 else None
        self.penalty, self.penalty_name = PENALTIES[penalty](self.token_weights), penalty
        self.intercept = bool(rng.random() < 0.7)
        self.fraction = float(rng.choice([0.9, 0.3, 0.1, 0.01]))

    @staticmethod
    def _targets(name, noisy, scale, rng):
        if name == "squared":
            return Squared(), (noisy + rng.choice([0.0, 1e6])) * scale
        if name == "huber":
            return Huber(0.7 * scale), noisy * scale
        if name == "logistic":
            y = np.where(noisy > 0, 1.0, -1.0)
            y[-2], y[-1] = 1.0, -1.0
            return Logistic(), y
        if name == "softmax":
            labels = np.argmax(noisy, axis=1)
            labels[-3:] = 0, 1, 2
            return Softmax(), np.eye(3)[labels]
        return Poisson(), np.rint(np.exp(np.clip(noisy, -2, 3))) + (np.arange(len(noisy)) == 1)[
            :, None
        ]

    def problem(self) -> Problem:
        design = TokenDesign(self.X.astype(self.dtype), self.mask)
        if self.gates is not None:
            design = GatedDesign(design, self.gates)
        self.columns = design.gather(slice(0, len(self.X)), np.arange(design.n_groups))
        return Problem(design, self.loss, self.penalty, self.Y, self.weight, self.intercept)

    # Exactly -----------------------------------------------------------------------------------

    def objective(self, Z, b, beta: float):
        """``P(Z, b)`` to `DIGITS` digits; `b` are floats or fractions."""
        total = mpf(0)
        for x, y, a in zip(self.columns, self.Y, self.weight, strict=True):
            used = [
                sum(map(_product, x.tolist(), z.tolist()), start=Fraction(b[j]))
                for j, z in enumerate(Z.reshape(-1, Z.shape[2]).T)
            ]
            total += mpf(a) * self._loss(used, y.tolist())
        return total + mpf(beta) * self._penalty(Z)

    def _loss(self, scores, y):
        f = [_mp(score) for score in scores]
        if isinstance(self.loss, Softmax):
            return mpmath.log(sum(map(mpmath.exp, f))) - f[y.index(1.0)]
        (f,), (y,) = f, y
        if isinstance(self.loss, Squared):
            return (f - mpf(y)) ** 2 / 2
        if isinstance(self.loss, Huber):
            r, delta = abs(f - mpf(y)), mpf(self.loss.delta)
            return r * r / 2 if r <= delta else delta * (r - delta / 2)
        if isinstance(self.loss, Logistic):
            return mpmath.log1p(mpmath.exp(-mpf(y) * f))
        rest = mpf(y) * mpmath.log(mpf(y)) - mpf(y) if y > 0 else mpf(0)
        return mpmath.exp(f) - mpf(y) * f + rest

    def _penalty(self, Z):
        weights = np.ones(len(Z)) if self.token_weights is None else self.token_weights
        total = mpf(0)
        for z, w in zip(Z, weights, strict=True):
            if self.penalty_name == "nuclear" and Z.shape[2] > 1:
                size = sum(mpmath.svd_r(mpmath.matrix(z.tolist()), compute_uv=False))
            elif self.penalty_name == "token":
                size = mpmath.sqrt(sum(mpf(v) ** 2 for v in z.ravel().tolist()))
            else:
                columns = [[mpf(v) ** 2 for v in column] for column in z.T.tolist()]
                size = sum(mpmath.sqrt(sum(column)) for column in columns)
            total += mpf(w) * size
        return total

    def good_value(self, Z, beta: float):
        """Objective of `Z` with an intercept that no rounding of float64 limits."""
        flat = self.columns.tolist()
        start = [Fraction(v) for v in flat[np.argmax(self.weight > 0)]]
        D = np.array(
            [[float(Fraction(v) - s) for v, s in zip(x, start, strict=True)] for x in flat]
        )
        moved = Problem(
            TokenDesign(D.reshape(len(D), *Z.shape[:2])),
            self.loss,
            self.penalty,
            self.Y,
            self.weight,
        )
        b = moved.at(Z, moved.null.b).intercept
        lift = [
            sum(map(_product, map(float, start), z.tolist())) for z in Z.reshape(-1, Z.shape[2]).T
        ]
        return self.objective(
            Z, [Fraction(v) - up for v, up in zip(b.tolist(), lift, strict=True)], beta
        )


def _product(a: float, b: float) -> Fraction:
    return Fraction(a) * Fraction(b)


def _mp(value: Fraction):
    return mpf(value.numerator) / mpf(value.denominator)


def check(seed: int) -> Status:
    """Solve a hostile problem, and judge the certificates of its solution and of worse models."""
    hostile = Hostile(seed)
    problem = hostile.problem()
    beta = hostile.fraction * problem.beta_max
    solution = solve(problem, beta, max_time=2.0)
    rng = np.random.default_rng(seed)
    models = [
        (solution.Z, solution.intercept, solution.certificate),
        *(
            (Z, solution.intercept, problem.certificate(Z, solution.intercept, beta))
            for Z in (np.zeros(problem.shape), solution.Z * rng.uniform(0.5, 1.5, problem.shape))
        ),
    ]
    with mpmath.workdps(DIGITS):
        values = [hostile.objective(Z, b.tolist(), beta) for Z, b, _ in models]
        least = min(values)
        if hostile.intercept:
            least = min(least, hostile.good_value(solution.Z, beta))
        for value, (_, _, certificate) in zip(values, models, strict=True):
            assert value <= mpf(certificate.primal), (seed, value, certificate)
            assert mpf(certificate.dual) <= least, (seed, least, certificate)
            assert certificate.gap >= 0, (seed, certificate)
    assert solution.converged == (solution.certificate.relative_gap <= 1e-6)
    return solution.status


@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_certificate_is_wrong_in_exact_arithmetic(shard):
    statuses = [check(seed) for seed in range(shard, PROBLEMS, SHARDS)]
    assert statuses.count(Status.CONVERGED) >= 0.6 * len(statuses)  # most are solved, too


def test_means_of_1e16_spreads_are_told_as_they_are():
    """Once primal = dual = 173.89 was certified here, although ``Z = .5`` attains 5e-4."""
    k = np.random.default_rng(0).integers(-5, 6, size=50)
    X = (1e16 + 2.0 * k).reshape(50, 1, 1)
    problem = Problem(TokenDesign(X), Squared(), PENALTIES["token"](), k[:, None].astype(float))
    attained = problem.certificate(np.full((1, 1, 1), 0.5), np.array([-5e15]), 1e-3)
    assert attained.primal == pytest.approx(5e-4) and attained.dual <= 5e-4
    solution = solve(problem, 1e-3)
    assert solution.status in (Status.PRECISION, Status.CONVERGED)
    assert 4.99e-4 <= solution.certificate.dual <= 5e-4 <= solution.certificate.primal


def test_certificates_read_nothing_that_a_solver_left():
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(40, 5, 3)), rng.normal(size=(40, 1))
    problem = Problem(TokenDesign(X), Squared(), PENALTIES["token"](), Y)
    solution = solve(problem, 0.1 * problem.beta_max)
    expected = problem.certificate(solution.Z, solution.intercept, solution.certificate.beta)
    lie = np.zeros((40, 1))
    lies = {"V": lie, "M": np.zeros(problem.shape), "norms": np.zeros((5, 1)), "loss": 0.0}
    problem.null.__dict__.update(lies)  # the only point that a problem keeps
    found = problem.certificate(solution.Z, solution.intercept, solution.certificate.beta)
    assert found == expected


@pytest.mark.parametrize("unit", [1e-100, 1e-30, 1e90])
@pytest.mark.parametrize("name", ["squared", "logistic", "softmax"])
def test_the_unit_of_x_changes_nothing_but_the_unit_of_coefficients(name, unit):
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(60, 6, 3)), rng.normal(size=(60, 1))
    loss, Y = {
        "squared": (Squared(), y),
        "logistic": (Logistic(), np.sign(y)),
        "softmax": (Softmax(), np.eye(3)[rng.integers(3, size=60)]),
    }[name]
    unit = 2.0 ** np.round(np.log2(unit))  # a power of two: then every digit agrees
    one, other = (Problem(TokenDesign(A), loss, PENALTIES["token"](), Y) for A in (X, unit * X))
    assert other.beta_max == pytest.approx(unit * one.beta_max, rel=1e-12)
    first, second = (solve(p, 0.1 * p.beta_max, tol=1e-9) for p in (one, other))
    assert first.converged and second.converged
    np.testing.assert_allclose(unit * second.Z, first.Z, rtol=1e-3, atol=1e-6)
    assert second.certificate.primal == pytest.approx(first.certificate.primal, rel=3e-9)
    assert second.n_iter <= first.n_iter + 5


def test_sums_are_exact():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 300)) * 10.0 ** rng.integers(-20, 20, size=(2, 300))
    assert exact_dot(a, b) == float(sum(map(_product, a.tolist(), b.tolist())))
    problem = Hostile(8).problem()
    V = problem.null.V
    near = exactly_balanced(problem, V)
    assert all(sum(map(Fraction, column)) == 0 for column in near.T.tolist())
    np.testing.assert_allclose(near, V, atol=1e-12 * np.abs(V).max())


def test_objectives_that_leave_float64_prove_nothing():
    """Squares of residuals are denormal here: once such a fit was certified from their few bits."""
    rng = np.random.default_rng(0)
    X, y = 1e40 * rng.normal(size=(20, 3, 2)), 1e-149 * rng.normal(size=(20, 1))
    problem = Problem(TokenDesign(X), Squared(), PENALTIES["token"](), y, np.full(20, 1e-20))
    certificate = problem.certificate(np.zeros((3, 2, 1)), np.zeros(1), 1e-131)
    with mpmath.workdps(DIGITS):
        value = sum(mpf(1e-20) * mpf(v) ** 2 / 2 for v in y.ravel().tolist())
        assert value <= mpf(certificate.primal)
    assert certificate.dual == 0.0 and certificate.relative_gap == 1.0


def test_a_sample_without_weight_has_no_part_in_a_balanced_dual_point():
    rng = np.random.default_rng(0)
    weight = rng.random(7)
    weight[0] = 0.0
    design = TokenDesign(rng.normal(size=(7, 2, 3)))
    problem = Problem(design, Squared(), PENALTIES["token"](), rng.normal(size=(7, 2)), weight)
    V = exactly_balanced(problem, problem.null.V)
    assert not V[0].any() and not V.sum(axis=0).any()
    np.testing.assert_allclose(V, problem.null.V, atol=1e-14)
