"""Tolerances and betas that float64 cannot serve: a solve ends soon, and says why."""

import numpy as np
import pytest
from tests.raw import LOSSES, Raw

from convexformer.solvers import Solution, Status, solve
from convexformer.solvers.solution import Progress

PENALTIES = {"token-output": 1, "token": 3}  # and numbers of outputs
MOST_ITERATIONS = 1000  # of a solve that ends by itself; a stuck one takes as many as it may
ENDS = {Status.PRECISION, Status.CONVERGED}


def wide(loss: str, penalty: str) -> Raw:
    """200 samples of 6 numbers, as one may read them from a table."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 6, 1))
    c = 3 if loss == "softmax" else PENALTIES[penalty]
    F = 2 * X[:, 1] - X[:, 4] + rng.normal(size=(200, c)) * 0.3
    noise = rng.normal(size=F.shape)
    Y = {
        "squared": F,
        "huber": F,
        "logistic": np.where(F + noise > 0, 1.0, -1.0),
        "poisson": rng.poisson(np.exp(0.4 * F)).astype(float),
        "softmax": np.eye(c)[np.argmax(F * np.arange(c) + noise, axis=1)],
    }[loss]
    return Raw(X, Y, loss, penalty)


def fit(raw: Raw, fraction: float, tol: float) -> Solution:
    problem = raw.problem()
    return solve(problem, fraction * problem.beta_max, tol=tol, max_iter=MOST_ITERATIONS)


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_tolerance_below_rounding_ends_with_the_best_gap(loss, penalty):
    raw = wide(loss, penalty)
    for fraction in (0.1, 0.01):
        reached = max(fit(raw, fraction, 1e-12).certificate.relative_gap, 1e-14)
        for tol in (1e-16, 1e-20):
            solution = fit(raw, fraction, tol)
            assert solution.status in ENDS
            assert solution.certificate.relative_gap <= 10 * reached


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_beta_below_rounding_ends(loss, penalty):
    raw = wide(loss, penalty)
    for fraction in (1e-20, 1e-300):
        solution = fit(raw, fraction, 1e-6)
        assert solution.status in ENDS
        assert 0.0 <= solution.certificate.relative_gap <= 1.0


def test_few_samples_of_many_channels_end_too():
    """Here the Newton models took a hundred steps each on falls that were but rounding."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 20, 3))
    raw = Raw(X, X[:, 1, :1] - X[:, 4, :1] + 0.3 * rng.normal(size=(30, 1)), "squared")
    reached = fit(raw, 0.01, 1e-12).certificate.relative_gap
    for tol in (1e-16, 1e-20):
        solution = fit(raw, 0.01, tol)
        assert solution.status is Status.PRECISION
        assert solution.n_iter < 200
        assert solution.certificate.relative_gap <= 10 * reached


def test_progress_is_a_smaller_gap_or_a_lower_objective():
    falling, closing = Progress(), Progress()
    assert not any(falling.ended(0.5, 1.0 - 1e-12 * step) for step in range(50))
    assert not any(closing.ended(0.8**step, 1.0) for step in range(50))
    still = Progress()
    assert [still.ended(0.5, 1.0) for _ in range(4)] == [False] * 3 + [True]
