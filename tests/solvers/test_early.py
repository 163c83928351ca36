"""A start from some samples: one pass over X where these tell enough, and no harm elsewhere."""

import numpy as np
import pytest

from convexformer.problem import Problem, Squared, TokenDesign, TokenOutput, nonzeros, tokens
from convexformer.solvers import descent, early, solve
from convexformer.solvers.solution import Clock
from convexformer.solvers.workspace import Workspace

pytestmark = pytest.mark.skipif(not nonzeros.COMPILED, reason="nothing was compiled")

N, n, d = 4000, 7, 3


@pytest.fixture(autouse=True)
def far(monkeypatch):
    """As if X were beyond the cache, and samples many."""
    monkeypatch.setattr(tokens, "FAR_BYTES", 0)
    monkeypatch.setattr(early, "LEAST", 0)


@pytest.fixture
def passes(monkeypatch):
    """Passes over X."""
    made = []
    for name in ("follow", "correlate", "predict"):
        plain = getattr(TokenDesign, name)
        counted = lambda self, *given, plain=plain: made.append(1) or plain(self, *given)
        monkeypatch.setattr(TokenDesign, name, counted)
    return made


def made(weighted=False, intercept=False, scale=1.0, mean=1.0):
    rng = np.random.default_rng(0)
    X, weight = rng.normal(size=(N, n, d)) + mean, rng.uniform(0, 2, N) if weighted else None
    y = X[:, 1, :1] - X[:, 4, 1:2] + rng.normal(size=(N, 1)) + 0.5 * mean
    penalty = TokenOutput(np.linspace(0.5, 1.5, n)) if weighted else TokenOutput()
    return Problem(TokenDesign(scale * X), Squared(), penalty, y, weight, intercept)


@pytest.mark.parametrize("fraction", [0.5, 0.1, 0.01])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_the_optimum_and_its_certificate_are_the_same(weighted, intercept, fraction):
    known, fresh = (made(weighted, intercept) for _ in range(2))
    beta = fraction * known.beta_max
    assert early.fits(fresh) is not intercept and not early.fits(known)
    found, expected = (solve(problem, beta, tol=1e-9) for problem in (fresh, known))
    assert found.converged
    assert found.certificate.beta_max == pytest.approx(known.beta_max, rel=1e-12)
    assert found.certificate.primal == pytest.approx(expected.certificate.primal, rel=2e-9)
    np.testing.assert_allclose(found.Z, expected.Z, atol=1e-3)
    again = made(weighted, intercept).certificate(found.Z, found.intercept, beta)
    assert again.relative_gap == pytest.approx(found.certificate.relative_gap, abs=1e-12)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_one_pass_does_for_all(passes, scale, intercept):
    beta = 0.4 * made(scale=scale, intercept=intercept).beta_max
    passes.clear()
    found = solve(made(scale=scale, intercept=intercept), beta)
    assert found.converged and found.n_iter == found.trace[-1].iteration == 1
    assert len(passes) == 1 + intercept + 1  # another one for means, one for the certificate


def test_norms_are_expected_as_they_are():
    problem = made(mean=0.0)
    norms = early._expected_norms(problem, problem.null_direction)
    exact = problem.dual_point(np.zeros_like(problem.Y) + problem.null_intercept).norms
    assert norms.shape == exact.shape
    assert np.abs(norms - exact).max() < 0.15 * exact.max()
    assert set(np.argsort(norms[:, 0])[-2:]) == {1, 4}


def test_what_samples_did_not_show_is_found_all_the_same():
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(N, n, d)), rng.normal(size=(N, 1))
    shown = np.arange(N) % (N // early.BLOCKS) < early.PART * N / early.BLOCKS
    y += np.where(shown[:, None], X[:, 2, :1], 2 * X[:, 5, :1])
    problems = [
        Problem(TokenDesign(X), Squared(), TokenOutput(), y, intercept=False) for _ in range(2)
    ]
    beta = 0.3 * problems[0].beta_max
    found, expected = (solve(problem, beta, tol=1e-8) for problem in problems[::-1])
    assert found.converged and np.any(found.Z[5])
    np.testing.assert_allclose(found.Z, expected.Z, atol=1e-3)


def test_the_worst_violators_will_do_where_all_are_too_many(monkeypatch):
    problem, known = made(mean=0.0), made(mean=0.0)
    beta = 0.01 * known.beta_max
    expected = solve(known, beta, tol=1e-8)
    monkeypatch.setattr(descent, "gram_is_quick", lambda problem, n_groups, *rest: n_groups <= 2)
    found = early.solve(problem, beta, 1e-8, Clock(10), Workspace(problem))
    assert set(np.flatnonzero(found.Z.any(axis=(1, 2)))) == {1, 4}
    assert np.count_nonzero(expected.Z.any(axis=(1, 2))) > 2 and not found.converged
    found = solve(made(mean=0.0), beta, tol=1e-8)
    assert found.converged
    np.testing.assert_allclose(found.Z, expected.Z, atol=1e-3)


@pytest.mark.parametrize("fraction", [1.0 + 1e-12, 1.001, 1.5])
@pytest.mark.parametrize("intercept", [True, False])
def test_nothing_is_used_from_beta_max_on(monkeypatch, fraction, intercept):
    beta = fraction * made(intercept=intercept).beta_max
    expected = early._expected_norms
    for more in (1.0, 3.0):  # whatever samples tell
        monkeypatch.setattr(early, "_expected_norms", lambda *given, m=more: m * expected(*given))
        found = solve(made(intercept=intercept), beta)
        assert found.converged and not np.any(found.Z)
    just = solve(made(intercept=intercept), 0.999 * beta / fraction)
    assert just.converged and np.any(just.Z)


def test_limits_and_wrong_values_are_as_ever():
    with pytest.raises(ValueError, match="Scale X or y"):
        solve(made(scale=1e160), 1.0)
    for beta in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="beta"):
            solve(made(), beta)
    assert solve(made(), 5.0, max_iter=0).n_iter == 0
    assert not solve(made(), 5.0, tol=1e-12, max_time=0.0).converged


def test_there_is_nothing_to_start_from_without_tokens_to_use():
    problem = made()
    norms = early._expected_norms(problem, problem.null_direction)
    assert early.solve(problem, 2 * norms.max(), 1e-6, Clock(10), Workspace(problem)) is None
    constant = Problem(
        TokenDesign(problem.design.X), Squared(), TokenOutput(), np.ones((N, 1)), intercept=True
    )
    assert solve(constant, 1.0).converged
