"""Intercepts of curved losses, compiled: what NumPy finds."""

import numpy as np
import pytest
from tests.generated import small

from convexformer import _core
from convexformer._core import _numpy

KERNELS = ("loss_point", "balance")

pytestmark = pytest.mark.usefixtures("compiled")


def in_numpy(monkeypatch, really=True):
    """Leave intercepts to the methods for any loss."""
    for name in KERNELS if really else ():
        monkeypatch.setattr(_core, name, getattr(_numpy, name))


def at(problem, S, b):
    """The compiled point, or None, and whether its intercept is the best."""
    return problem.risk._settle_compiled(S, b)


def some_scores(problem, scale=1.0):
    return scale * np.random.default_rng(4).normal(size=problem.Y.shape)


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("name", "c"), [("logistic", 1), ("softmax", 3), ("softmax", 7)])
def test_compiled_intercepts_are_numpys(name, c, weighted, scale, monkeypatch):
    problem = small(name, c=c, weighted=weighted).problem()
    S = np.asfortranarray(some_scores(problem, scale))
    assert problem.risk._compiled
    found = []
    for compiled in (True, False):
        in_numpy(monkeypatch, not compiled)
        parts = problem.loss.expansion(S + problem.null.b, problem.Y)[1:]
        V, step = problem.risk.balancing(*parts)
        found.append((V, step))
    for here, there in zip(*found, strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found[0][0].sum(axis=0), 0.0, atol=1e-12)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("name", "c"), [("logistic", 1), ("softmax", 2), ("softmax", 5)])
def test_a_compiled_point_is_numpys(name, c, weighted, intercept, monkeypatch):
    problem = small(name, c=c, weighted=weighted, intercept=intercept).problem()
    S = np.asfortranarray(some_scores(problem))
    S.flags.writeable = False
    off = np.linspace(0.1, -0.2, c) if intercept else np.zeros(c)
    best = problem.risk.best_intercept(S, np.zeros(c))
    for b, settled in ((best, True), (best + off, not intercept)):
        found, is_best = at(problem, S, b)
        assert is_best == settled
        F, V = found.F, found.V
        in_numpy(monkeypatch)
        assert at(problem, S, b)[0] is None
        assert found.loss == pytest.approx(problem.risk.value(S + b), rel=1e-13)
        np.testing.assert_array_equal(F, S + b)
        np.testing.assert_allclose(V, problem.risk.dual_point(S + b), rtol=1e-9, atol=1e-12)
        monkeypatch.undo()


def test_a_settled_point_has_its_dual_point(monkeypatch):
    problem = small("logistic", weighted=True).problem()
    S = np.asfortranarray(some_scores(problem))
    found = problem.risk.settle(S, np.zeros(1))
    assert found.V is not None
    in_numpy(monkeypatch)
    other = problem.risk.settle(S, np.zeros(1))
    assert other.V is None
    np.testing.assert_allclose(found.b, other.b, atol=1e-9)
    np.testing.assert_allclose(found.F, other.F, atol=1e-9)
    assert found.loss == pytest.approx(other.loss, rel=1e-12)
    np.testing.assert_allclose(found.V, problem.risk.dual_point(found.F), rtol=1e-9, atol=1e-12)


def test_scores_beyond_all_bounds_are_left_to_numpy():
    problem = small("logistic").problem()
    for S in (np.full_like(problem.Y, 1e6), np.full_like(problem.Y, np.nan)):
        assert at(problem, S, np.zeros(1))[0] is None


@pytest.mark.parametrize(("name", "c"), [("logistic", 1), ("softmax", 3)])
def test_what_is_beyond_bounds_is_drawn_inside(name, c):
    problem = small(name, c=c, weighted=True).problem()
    V = np.asfortranarray(3.0 * some_scores(problem))
    V -= V.mean(axis=1, keepdims=True) if c > 1 else 0.0
    lower, upper = problem.risk.bounds
    inside = problem.risk._inside(V)
    assert np.all((inside >= lower - 1e-15) & (inside <= upper + 1e-15))


def test_compiled_intercepts_refuse_arrays_of_other_sizes():
    F, b = np.zeros(4), np.zeros(1)
    with pytest.raises(ValueError, match="numbers of type"):
        _core.loss_point((4, 1), 2, F, F, F, b, F, F[1:])
    with pytest.raises(ValueError, match="range"):
        _core.balance((0, 1), 2, F, F, F, F.copy(), b)
