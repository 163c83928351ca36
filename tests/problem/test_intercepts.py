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


@pytest.mark.parametrize(("name", "c"), [("logistic", 1), ("softmax", 3)])
def test_what_is_beyond_bounds_is_drawn_inside(name, c):
    problem = small(name, c=c, weighted=True).problem()
    V = np.asfortranarray(3.0 * some_scores(problem))
    V -= V.mean(axis=1, keepdims=True) if c > 1 else 0.0
    assert intercepts.confined(problem.loss, V, problem.Y, problem.weight) is None
    lower, upper = problem._bounds
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
    with pytest.raises(ValueError, match="range"):
        intercepts._intercepts.balanced((0, 1), 2, F, F, F, F.copy(), b)
