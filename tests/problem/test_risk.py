"""The empirical risk: its intercept, its dual points, and what an evaluation takes."""

import numpy as np
import pytest
from tests.generated import small

from convexformer.problem import (
    Logistic,
    Problem,
    Softmax,
    Squared,
    Token,
    TokenDesign,
    TokenOutput,
)
from convexformer.problem.risk import EmpiricalRisk
from convexformer.problem.softmax_hessian import joint_newton


def some_scores(problem, scale=1.0):
    return scale * np.random.default_rng(4).normal(size=problem.Y.shape)


@pytest.mark.parametrize("name", ["logistic", "softmax", "poisson", "huber"])
def test_a_point_is_evaluated_a_few_times_and_never_again(name, monkeypatch):
    """Once each for the slope in the intercept, the loss, and the dual point; X is not read."""
    problem, calls = small(name, c=3, weighted=True).problem(), []
    S, Z = some_scores(problem), np.zeros(problem.shape)
    b = problem.risk.best_intercept(S, problem.null.b)
    expansion = type(problem.loss).expansion

    def counted(self, F, Y):
        calls.append(F)
        return expansion(self, F, Y)

    monkeypatch.setattr(type(problem.loss), "expansion", counted)
    point = problem.at(Z, b, S=S)
    gap = point.gap(problem.beta_max)
    first = len(calls)
    assert first <= (4 if name == "huber" else 3)
    assert (point.gap(problem.beta_max), point.V is point.V) == (gap, True)
    point.primal(1.0), point.dual(1.0), point.norms
    assert len(calls) == first


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["logistic", "softmax"])
def test_a_moved_intercept_is_best_to_first_order(name, weighted):
    problem = small(name, c=3, weighted=weighted).problem()
    S = some_scores(problem, 0.3)
    b = problem.risk.best_intercept(S, problem.null.b)
    turn = np.random.default_rng(0).normal(size=S.shape) + np.array([1.0, -2.0, 0.5])
    errors = []
    for size in (0.1, 0.01):
        best = problem.risk.best_intercept(S + size * turn, b)
        moved = problem.risk.moved_intercept(S + b, b, size * turn)
        gauge = best.mean() - moved.mean() if problem.loss.joint else 0.0
        errors.append(np.abs(best - moved - gauge).max())
    assert errors[1] < 0.02 * errors[0] < 0.02 * 0.05


def test_steps_of_joint_intercepts_are_the_least_of_all():
    rng = np.random.default_rng(1)
    P = rng.dirichlet(np.ones(4), size=30)
    H = rng.uniform(size=(30, 1)) * P
    e = rng.normal(size=4)
    e -= e.mean()
    step = joint_newton(H.sum(axis=0), H.T @ P)(e)
    curvature = np.diag(H.sum(axis=0)) - H.T @ P
    np.testing.assert_allclose(step, np.linalg.pinv(curvature) @ e, rtol=1e-10)


def test_a_class_of_no_probability_does_not_break_a_step():
    P = np.array([[0.4, 0.6, 0.0], [0.1, 0.9, 0.0]])
    step = joint_newton(P.sum(axis=0), P.T @ P)(np.array([0.1, -0.1, 0.0]))
    assert np.all(np.isfinite(step))
    assert step[0] > step[1]


@pytest.mark.parametrize("c", [2, 3, 5])
def test_correlations_of_a_softmax_are_those_of_its_dual_point(c):
    problem = small("softmax", c=c, weighted=True).problem()
    S = some_scores(problem, 0.5)
    point = problem.at(np.zeros(problem.shape), problem.null.b, S=S)
    np.testing.assert_allclose(point.V.sum(axis=1), 0.0, atol=1e-15)
    np.testing.assert_allclose(point.M, problem.design.correlate(point.V), rtol=1e-12, atol=1e-13)


def test_dual_values_at_the_ends_of_the_domain():
    Y = np.array([[1.0], [-1.0]])
    for V in (np.zeros((2, 1)), Y):
        np.testing.assert_array_equal(Logistic().dual_value(V, Y), 0.0)
    one_hot = np.eye(3)
    for V in (np.zeros((3, 3)), one_hot - np.roll(one_hot, 1, axis=1)):
        np.testing.assert_array_equal(Softmax().dual_value(V, one_hot), 0.0)


def test_nothing_is_kept_between_calls():
    problem = small("logistic").problem()
    F = np.zeros_like(problem.Y)
    before, V = problem.risk.value(F), problem.risk.dual_point(F)
    F += problem.Y  # towards the targets
    assert problem.risk.value(F) < before
    assert np.abs(problem.risk.dual_point(F)).max() < np.abs(V).max()


@pytest.mark.parametrize("seed", range(8))
def test_intercepts_of_a_softmax_go_to_and_fro(seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(30, 4, 3)) + rng.normal(size=(4, 3))
    Y = np.eye(3)[rng.permutation(30) % 3]
    problem = Problem(TokenDesign(X), Softmax(), Token(), Y)
    Z = rng.normal(size=problem.shape)
    b = problem.inner_intercept(Z, problem.outer_intercept(Z, rng.normal(size=3)))
    outer = problem.outer_intercept(Z, b)
    assert abs(outer.mean()) < 1e-13
    np.testing.assert_array_equal(problem.inner_intercept(Z, outer), b)


# The squared loss ---------------------------------------------------------------------------------

SIZES = [(200, 1), (37, 3), (5, 20), (9, 16), (1, 1)]


def squared(N, c, weights):
    rng = np.random.default_rng(0)
    weight = np.ones(N) if weights == "ones" else rng.uniform(0.5, 2.0, N)
    if weights == "some":
        weight[: N // 3] = 0.0
    return rng.normal(size=(N, c)), rng.normal(size=(N, c)), weight


def settled(S, Y, a, intercept):
    return EmpiricalRisk(Squared(), Y, a, intercept).settle(S, np.zeros(S.shape[1]))


@pytest.mark.parametrize("weights", ["ones", "all", "some"])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_residual_is_what_scores_leave(size, intercept, weights):
    S, Y, a = squared(*size, weights)
    left = settled(S, Y, a, intercept)
    b = np.average(Y - S, axis=0, weights=a) if intercept else np.zeros(size[1])
    np.testing.assert_allclose(left.b, b, atol=1e-14)
    np.testing.assert_allclose(left.F, S + b, atol=1e-14)
    R = Y - S - b
    np.testing.assert_allclose(left.V, a[:, None] * R, atol=1e-14)
    assert left.loss == pytest.approx(0.5 * np.sum(a @ R**2), rel=1e-13)
    problem = Problem(TokenDesign(np.ones((len(Y), 1, 1))), Squared(), TokenOutput(), Y, a, False)
    top, bottom = problem.ray(left.V)
    np.testing.assert_allclose(top, a @ (R * Y), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(bottom, a @ R**2, rtol=1e-12, atol=1e-13)
    if intercept:
        assert np.all(np.abs(left.V.sum(axis=0)) < 1e-13)


def test_a_sample_without_weight_counts_for_nothing():
    S, Y, a = squared(12, 2, "some")
    rest = a > 0
    alone = settled(S[rest], Y[rest], a[rest], True)
    S[~rest] = np.inf
    left = settled(S, Y, a, True)
    np.testing.assert_allclose(left.V[rest], alone.V, atol=1e-14)
    assert np.all(left.V[~rest] == 0.0)
    assert left.loss == pytest.approx(alone.loss, rel=1e-13)


def test_scores_that_are_not_contiguous():
    S, Y, a = squared(30, 3, "all")
    whole, strided = (settled(part, Y, a, True) for part in (S, np.asfortranarray(S)))
    np.testing.assert_array_equal(whole.V, strided.V)
