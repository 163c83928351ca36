"""A point: what belongs to coefficients, against formulas written a second time."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from tests.generated import small
from tests.problem.test_problem import IDS, SETTINGS, random_model

from convexformer.problem import Problem, Squared, TokenDesign, TokenOutput
from convexformer.solvers import solve


@pytest.fixture(params=SETTINGS, ids=IDS)
def raw(request):
    return small(*request.param, c=3, weighted=True)


def dual_objective(raw, V):
    """``-sum_i a_i loss*(-V_i / a_i)`` by the conjugates as the theory tabulates them."""
    keep = raw.weight > 0
    a, Y = raw.weight[keep, None], raw.Y[keep]
    U = V[keep] / a

    def entropy(p):  # p log p, 0 at 0
        return np.where(p > 0, p * np.log(np.where(p > 0, p, 1.0)), 0.0)

    if raw.loss in ("squared", "huber"):
        value = Y * U - U**2 / 2
    elif raw.loss == "logistic":
        value = -entropy(Y * U) - entropy(1 - Y * U)
    elif raw.loss == "softmax":
        value = -entropy(Y - U)
    else:  # half the deviance
        value = (Y - U) - entropy(Y - U) + entropy(Y) - Y
    return float(np.sum(a * value))


def norms_of(raw, M):
    axis = 1 if raw.penalty == "token-output" else (1, 2)
    norms = np.sqrt(np.sum(M**2, axis=axis)).reshape(len(M), -1)
    return norms / raw.groups[:, None]


def test_a_point_is_what_the_formulas_say(raw):
    problem = raw.problem()
    Z, b = random_model(raw, scale=0.2)
    point = problem.at(Z, problem.inner_intercept(Z, b))
    beta = 0.3 * problem.beta_max
    # The primal side, at an intercept that no other one beats.
    value = raw.objective(Z, point.intercept, beta)
    assert point.primal(beta) == pytest.approx(value, rel=1e-12)
    rng = np.random.default_rng(0)
    for size in (1e-3, 1e-1) if raw.intercept else ():
        other = point.intercept + size * rng.normal(size=len(b))
        assert raw.objective(Z, other, beta) >= value - 1e-12 * abs(value)
    F = raw.scores(Z, point.intercept)
    shared = F.mean(axis=1, keepdims=True) if raw.loss == "softmax" else 0.0
    own = point.F + problem.shift
    own = own - own.mean(axis=1, keepdims=True) if raw.loss == "softmax" else own
    seen = raw.weight > 0
    np.testing.assert_allclose(own[seen], (F - shared)[seen], rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(point.used, np.any(Z, axis=(1, 2)))
    # The dual side: the point is feasible but for the norm ball, and scaled into it.
    M = np.einsum("ikd,ic->kdc", raw.tokens, point.V)
    np.testing.assert_allclose(point.M, M, rtol=1e-9, atol=1e-9 * np.abs(M).max())
    np.testing.assert_allclose(point.norms, norms_of(raw, M), rtol=1e-9, atol=1e-12)
    limits = beta / np.maximum(norms_of(raw, M).max(axis=0), 1e-300)
    scale = np.minimum(1.0, limits if problem.separable else limits.min())
    V = scale * point.V
    if raw.loss in ("huber",):
        assert np.all(np.abs(V) <= 1.35 * raw.weight[:, None] * (1 + 1e-12))
    # Targets of a residual loss are shifted, which only matters where V does not sum to zero.
    expected = dual_objective(raw, V)
    if raw.loss == "squared":  # where longer is better the point is stretched as well
        assert point.dual(beta) >= expected - 1e-10 * abs(value)
        top = np.sum(point.V * raw.Y, axis=0)
        keep = raw.weight > 0
        bottom = np.sum(point.V[keep] ** 2 / raw.weight[keep, None], axis=0)
        if not problem.separable:
            top, bottom = top.sum(keepdims=True), bottom.sum(keepdims=True)
            limits = limits.min(keepdims=True)
        best = np.clip(top / bottom, 0.0, limits)
        expected = float(np.sum(best * top - best**2 * bottom / 2))
    assert point.dual(beta) == pytest.approx(expected, rel=1e-9, abs=1e-9 * abs(value))
    gap = (value - expected) / value
    assert point.gap(beta) == pytest.approx(gap, rel=1e-8, abs=1e-11)


def test_a_point_is_at_least_as_good_as_its_certificate(raw):
    problem = raw.problem()
    beta = 0.3 * problem.beta_max
    found = solve(problem, beta, tol=1e-8)
    point = problem.at(found.Z, problem.inner_intercept(found.Z, found.intercept))
    assert abs(point.gap(beta) - found.certificate.relative_gap) <= 1e-8
    assert point.primal(beta) <= found.certificate.primal * (1 + 1e-12)
    other = problem.certificate(point.Z, point.intercept, beta)
    assert other.relative_gap <= 1.1e-8


def test_what_is_given_is_not_computed(raw, monkeypatch):
    problem = raw.problem()
    Z, b = random_model(raw, scale=0.2)
    b = problem.inner_intercept(Z, b)
    point = problem.at(Z, b)
    expected = point.gap(1.0)
    for name in ("predict", "correlate", "follow"):
        monkeypatch.setattr(TokenDesign, name, lambda *_: pytest.fail("a pass more"))
    again = problem.at(Z, b, S=point.S, M=point.M)
    assert again.gap(1.0) == pytest.approx(expected, rel=1e-12)
    assert point.gap(2.0) != expected  # another beta takes no pass either


def test_the_null_point_is_the_model_without_tokens(raw):
    problem = raw.problem()
    null, again = problem.null, problem.at(np.zeros(problem.shape))
    assert not null.used.any() and null.penalty == 0.0
    assert null.loss == pytest.approx(again.loss, rel=1e-12)
    assert null.loss == pytest.approx(raw.objective(null.Z, null.intercept, 1.0), rel=1e-12)
    np.testing.assert_allclose(null.norms, again.norms, rtol=1e-7, atol=1e-9)
    assert null.norms.max() == pytest.approx(problem.beta_max, rel=1e-12)


# Immutability -------------------------------------------------------------------------------------


def test_a_point_cannot_be_changed():
    problem = small("logistic", c=2).problem()
    point = problem.at(np.zeros(problem.shape))
    for name in ("Z", "S", "b", "F", "loss", "V", "M", "norms"):
        with pytest.raises(FrozenInstanceError):
            setattr(point, name, 0.0)
    assert point != problem.at(np.zeros(problem.shape)) and len({point, problem.null}) == 2


@pytest.mark.parametrize("name", ["squared", "logistic", "softmax", "poisson"])
@pytest.mark.parametrize("intercept", [True, False])
def test_solving_changes_no_point(name, intercept):
    problem = small(name, "token", intercept, c=3).problem()
    beta = 0.1 * problem.beta_max
    start = solve(problem, 0.2 * problem.beta_max)
    points = [problem.null, problem.at(start.Z, problem.inner_intercept(start.Z, start.intercept))]
    names = ("Z", "S", "b", "F", "V", "M", "norms")
    before = [[np.copy(getattr(p, name)) for name in names] for p in points]
    gaps = [p.gap(beta) for p in points]
    for strategy in (None, "newton", "accelerated-gradient"):
        solve(problem, beta, init=start, strategy=strategy)
    problem.certificate(start.Z, start.intercept, beta)
    for point, old in zip(points, before, strict=True):
        for name, array in zip(names, old, strict=True):
            np.testing.assert_array_equal(getattr(point, name), array)
    assert gaps == [p.gap(beta) for p in points]


def test_copies_of_a_problem_have_points_of_their_own():
    problem = small("squared", c=3).problem()
    assert problem.null.problem is problem
    for other in (
        problem.outputs([0, 2]),
        problem._with_targets(problem.Y[:, :2], problem.shift[:2]),
        problem.with_loss(small("huber").problem().loss),
    ):
        assert other.null.problem is other and other.null is not problem.null
        np.testing.assert_allclose(other.null.M, other.correlations(other.null.V), atol=1e-10)
        fresh = other.at(np.zeros(other.shape))
        assert other.null.loss == pytest.approx(fresh.loss, rel=1e-12)


# Threads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["squared", "logistic", "softmax"])
def test_threads_share_a_problem_and_its_points(name):
    alone, shared = (small(name, "token", c=3, seed=5).problem() for _ in range(2))
    rng = np.random.default_rng(0)
    models = [0.1 * k * rng.normal(size=shared.shape) for k in range(8)]
    expected = [alone.at(Z).gap(1.0) for Z in models]
    point = shared.at(models[3])  # nothing is computed before threads ask

    def work(k):
        own = shared.at(models[k]).gap(1.0)
        return own, point.gap(1.0), shared.null.gap(2.0), shared.beta_max

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, [*range(8)] * 20))
    for k, (own, common, null, beta_max) in zip(itertools.cycle(range(8)), found):
        assert own == pytest.approx(expected[k], rel=1e-12)
        assert common == pytest.approx(expected[3], rel=1e-12)
        assert (null, beta_max) == (alone.null.gap(2.0), alone.beta_max)


def test_threads_solve_one_problem_at_once():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 12, 4))
    Y = X[:, 2, :1] - X[:, 5, 1:2] + rng.normal(size=(200, 1))
    problem = Problem(TokenDesign(X), Squared(), TokenOutput(), Y)
    fractions = [0.5, 0.3, 0.1, 0.03] * 4
    expected = [solve(problem, f * problem.beta_max).certificate for f in fractions[:4]]
    fresh = Problem(TokenDesign(X), Squared(), TokenOutput(), Y)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda f: solve(fresh, f * fresh.beta_max).certificate, fractions))
    for one, other in zip(found, 4 * expected, strict=True):
        assert one.primal == pytest.approx(other.primal, rel=1e-12)
        assert one.relative_gap <= 1e-6
