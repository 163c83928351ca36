"""Intercepts of curved losses, compiled: what NumPy finds."""

import numpy as np
import pytest
from tests.generated import small

from convexformer.problem import intercepts

pytestmark = pytest.mark.skipif(not intercepts.COMPILED, reason="nothing was compiled")


def some_scores(problem, scale=1.0):
    return scale * np.random.default_rng(4).normal(size=problem.Y.shape)


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("name", "c"), [("logistic", 1), ("softmax", 3), ("softmax", 7)])
def test_compiled_intercepts_are_numpys(name, c, weighted, scale, monkeypatch):
    problem = small(name, c=c, weighted=weighted).problem()
    S = np.asfortranarray(some_scores(problem, scale))
    start = np.linspace(-1.0, 1.0, c) - (0.5 if c == 1 else 0.0)
    assert intercepts.suit(problem.loss, S, problem.Y)
    found = []
    for compiled in (True, False):
        monkeypatch.setattr(intercepts, "COMPILED", compiled)
        b = problem.best_intercept(S, start)
        parts = problem.loss.expansion(S + problem.null_intercept, problem.Y)[1:]
        V, step = problem.balanced(*parts)
        found.append((b - b.mean() * (c > 1), V, step, problem._inside(V)))
    for here, there in zip(*found, strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found[0][1].sum(axis=0), 0.0, atol=1e-12)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("name", "c"), [("logistic", 1), ("softmax", 2), ("softmax", 5)])
def test_a_compiled_point_is_numpys(name, c, weighted, intercept, monkeypatch):
    problem = small(name, c=c, weighted=weighted, intercept=intercept).problem()
    S = np.asfortranarray(some_scores(problem))
    S.flags.writeable = False
    off = np.linspace(0.1, -0.2, c) if intercept else np.zeros(c)
    best = problem.best_intercept(S, np.zeros(c))
    for b, settled in ((best, True), (best + off, not intercept)):
        found = problem.point(S, b)
        assert found is problem.point(S, b.copy())  # it is kept
        assert found.settled == settled
        F, V, direction = found.F, found.V, problem.dual_direction(found.F)[0]
        assert direction is V
        monkeypatch.setattr(intercepts, "COMPILED", False)
        assert problem.point(S, b + 1.0) is None
        assert found.loss == pytest.approx(problem.loss_at(S, b), rel=1e-13)
        np.testing.assert_array_equal(F, S + b)
        np.testing.assert_allclose(V, problem.dual_direction(S + b)[0], rtol=1e-9, atol=1e-12)
        monkeypatch.undo()


def test_scores_beyond_all_bounds_are_left_to_numpy():
    problem = small("logistic").problem()
    for S in (np.full_like(problem.Y, 1e6), np.full_like(problem.Y, np.nan)):
        assert problem.point(S, np.zeros(1)) is None


@pytest.mark.parametrize(("name", "c"), [("logistic", 1), ("softmax", 3)])
def test_what_is_beyond_bounds_is_drawn_inside(name, c):
    problem = small(name, c=c, weighted=True).problem()
    V = np.asfortranarray(3.0 * some_scores(problem))
    V -= V.mean(axis=1, keepdims=True) if c > 1 else 0.0
    assert intercepts.confined(problem.loss, V, problem.Y, problem.weight) is None
    lower, upper = problem.bounds
    inside = problem._inside(V)
    assert np.all((inside >= lower - 1e-15) & (inside <= upper + 1e-15))


def test_compiled_intercepts_refuse_arrays_of_other_sizes():
    F, b = np.zeros(4), np.zeros(1)
    for way, arrays in (
        (intercepts._intercepts.best, (F, F, F[1:], b)),
        (intercepts._intercepts.confined, (F, F, F, F[1:])),
    ):
        with pytest.raises(ValueError, match="numbers of type"):
            way((4, 1), *arrays)
    with pytest.raises(ValueError, match="numbers of type"):
        intercepts._intercepts.point((4, 1), 2, F, F, F, b, F, F[1:])
    with pytest.raises(ValueError, match="range"):
        intercepts._intercepts.balanced((0, 1), 2, F, F, F, F.copy(), b)
