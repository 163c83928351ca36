"""The weighted loss and its intercept: each point is evaluated once, and steps start well."""

import numpy as np
import pytest
from tests.generated import small

from convexformer.problem import Logistic, Softmax
from convexformer.problem.joint import joint_newton


def some_scores(problem, scale=1.0):
    return scale * np.random.default_rng(4).normal(size=problem.Y.shape)


@pytest.mark.parametrize("name", ["logistic", "softmax", "poisson", "huber"])
def test_a_point_is_evaluated_once(name, monkeypatch):
    problem, calls = small(name, c=3, weighted=True).problem(), []
    expansion = type(problem.loss).expansion

    def counted(self, F, Y):
        calls.append(F)
        return expansion(self, F, Y)

    monkeypatch.setattr(type(problem.loss), "expansion", counted)
    F = some_scores(problem) + problem.null_intercept
    calls.clear()
    problem.loss_value(F)
    problem.dual_point(F)
    problem.curvature(F)
    assert len(calls) == 1
    problem.loss_value(F + 0.1)
    assert len(calls) == 2
    assert problem.with_loss(problem.loss)._expanded is None


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["logistic", "softmax"])
def test_a_moved_intercept_is_best_to_first_order(name, weighted):
    problem = small(name, c=3, weighted=weighted).problem()
    S = some_scores(problem, 0.3)
    b = problem.best_intercept(S, problem.null_intercept)
    turn = np.random.default_rng(0).normal(size=S.shape) + np.array([1.0, -2.0, 0.5])
    errors = []
    for size in (0.1, 0.01):
        best = problem.best_intercept(S + size * turn, b)
        moved = problem.moved_intercept(S + b, b, size * turn)
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
    point = problem.dual_point(S + problem.best_intercept(S, problem.null_intercept))
    np.testing.assert_allclose(point.V.sum(axis=1), 0.0, atol=1e-15)
    np.testing.assert_allclose(point.M, problem.design.correlate(point.V), rtol=1e-12, atol=1e-13)


def test_dual_values_at_the_ends_of_the_domain():
    Y = np.array([[1.0], [-1.0]])
    for V in (np.zeros((2, 1)), Y):
        np.testing.assert_array_equal(Logistic().dual_value(V, Y), 0.0)
    one_hot = np.eye(3)
    for V in (np.zeros((3, 3)), one_hot - np.roll(one_hot, 1, axis=1)):
        np.testing.assert_array_equal(Softmax().dual_value(V, one_hot), 0.0)


def test_what_is_kept_is_not_the_callers():
    problem = small("logistic").problem()
    F = np.zeros_like(problem.Y)
    before = problem.loss_value(F)
    F += problem.Y  # towards the targets
    assert problem.loss_value(F) < before
