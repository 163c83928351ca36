"""Newton steps of losses that are not quadratic: their length, their stages, their curvature."""

import numpy as np
import pytest

from convexformer.problem import Logistic, Problem, Softmax, TokenDesign, TokenOutput
from convexformer.problem.softmax_hessian import softmax_quadratic
from convexformer.solvers import newton, solve
from convexformer.solvers.quadratic_model import SecondOrderModel
from convexformer.solvers.solution import Clock


def made(N=300, n=6, d=3, seed=0, classes=None, **more):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, n, d)) + rng.normal(size=(N, 1, d))
    F = np.einsum("nkd,kdc->nc", X[:, :3], rng.normal(size=(3, d, classes or 1)))
    F += rng.gumbel(size=F.shape)
    Y = np.eye(classes)[F.argmax(axis=1)] if classes else np.where(F > 0, 1.0, -1.0)
    loss = Softmax() if classes else Logistic()
    return Problem(TokenDesign(X), loss, TokenOutput(), Y, **more)


@pytest.fixture
def betas(monkeypatch):
    """Penalty strengths of the models that are minimised."""
    seen, minimiser = [], SecondOrderModel.minimiser

    def recorded(self, target, floor):
        seen.append(self.beta)
        return minimiser(self, target, floor)

    monkeypatch.setattr(SecondOrderModel, "minimiser", recorded)
    return seen


# Stages -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [None, 3])
def test_small_models_need_no_stages(classes, betas):
    problem = made(classes=classes)
    beta = 0.01 * problem.beta_max
    assert solve(problem, beta, strategy="newton").converged
    assert set(betas) == {beta}


@pytest.mark.parametrize("classes", [None, 3])
@pytest.mark.parametrize("fails", [False, True])
def test_stages_make_up_for_a_step_that_was_too_far(classes, fails, betas, monkeypatch):
    problem = made(classes=classes)
    beta, search = 0.01 * problem.beta_max, newton._search

    def short_at_first(stage, at, Z, far, late):
        if np.any(at.Z) or stage > beta:
            return search(stage, at, Z, far, late)
        return (None, 0.0) if fails else (problem.at(0.01 * Z, at.b), 0.01)

    monkeypatch.setattr(newton, "_search", short_at_first)
    assert solve(problem, beta, strategy="newton").converged
    first = betas.index(beta)
    assert any(b > 2 * beta for b in betas[first:]) and betas[-1] == beta


# Length -------------------------------------------------------------------------------------------


def test_a_step_goes_on_for_as_long_as_that_is_better():
    problem = made()
    beta = 0.02 * problem.beta_max
    at, late = problem.null, Clock(1).late
    Z = 1e-3 * at.M / np.linalg.norm(at.M)
    near, t = newton._search(beta, at, Z, False, late)
    far, longer = newton._search(beta, at, Z, True, late)
    assert t == 1.0 and longer > 10.0
    assert far.primal(beta) < near.primal(beta)
    np.testing.assert_allclose(far.Z, longer * Z)
    assert problem.at(1.5 * far.Z, far.b).primal(beta) > far.primal(beta)
    value, widest = problem.risk.value, 1.2 * np.ptp(problem.scores(Z))
    problem.risk.value = lambda F: np.nan if np.ptp(F) > widest else value(F)  # numbers end
    assert newton._search(beta, at, Z, True, late)[1] == 1.0


# Curvature ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_curvatures_in_float32_keep_the_scale_of_x(scale):
    problem = made(classes=3)
    X = scale * problem.design.X
    F = np.random.default_rng(1).normal(size=problem.Y.shape)
    groups = np.arange(6)
    for loss, Y in ((Softmax(), problem.Y), (Logistic(), 2 * problem.Y - 1)):
        other = Problem(TokenDesign(X), loss, TokenOutput(), Y)
        low, exact = (other.quadratic(groups, F, dtype=t) for t in (np.float32, np.float64))
        for a, b in zip(low, exact, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max())


@pytest.mark.parametrize("intercept", [True, False])
def test_a_softmax_curvature_of_all_pairs_holds_that_of_some(intercept):
    problem = made(classes=4)
    rng = np.random.default_rng(2)
    P = rng.dirichlet(np.full(4, 0.2), size=300)
    groups, some = np.arange(6), rng.uniform(size=(6, 4)) < 0.6
    weight, center = rng.uniform(size=300), problem.center if intercept else None
    both = [
        softmax_quadratic(problem.design, groups, cells, P, weight, center)
        for cells in (np.ones_like(some), some)
    ]
    keep = np.flatnonzero(np.repeat(some.ravel(), 3))
    if intercept:  # eliminated from all alike
        np.testing.assert_allclose(both[0][np.ix_(keep, keep)], both[1], rtol=1e-9, atol=1e-11)
    else:
        np.testing.assert_allclose(both[0][np.ix_(keep, keep)], both[1], rtol=1e-10, atol=1e-12)


def test_a_sample_of_another_size_does_not_stop_it():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 40, 8))
    F = X[:, :6].sum(axis=(1, 2))[:, None] / 5 + rng.normal(size=(3000, 1))
    X[1] *= 1e25
    problem = Problem(TokenDesign(X), Logistic(), TokenOutput(), np.where(F > 0, 1.0, -1.0))
    assert solve(problem, 0.01 * problem.beta_max).converged


def test_where_nothing_is_wanted_but_by_rounding_it_ends():
    for seed in range(30):
        rng = np.random.default_rng(seed)
        X = np.repeat(rng.normal(size=(14, 30, 4)), 3, axis=0)  # every sample is in every class
        problem = Problem(TokenDesign(X), Softmax(), TokenOutput(), np.tile(np.eye(3), (14, 1)))
        if problem.beta_max > 0:
            found = solve(problem, 0.9 * problem.beta_max, strategy="newton", max_time=1)
            assert found.certificate.relative_gap < 1e-12
