"""Losses: derivatives, Fenchel-Young, and no lost digits at the extremes."""

from decimal import Decimal, localcontext

import numpy as np
import pytest
from tests.generated import small
from tests.raw import LOSSES

from convexformer import _core
from convexformer._core import _numpy
from convexformer.problem import Huber, Logistic, Poisson, Softmax, Squared

NAMES = list(LOSSES)
STEP = 1e-6


def sample(name, N=200, c=3, seed=0):
    """Scores and valid targets of a loss, the targets not fitted to the scores."""
    rng = np.random.default_rng(seed)
    F = 2 * rng.normal(size=(N, c))
    if name == "logistic":
        return F, rng.choice([-1.0, 1.0], size=(N, c))
    if name == "softmax":
        return F, np.eye(c)[rng.integers(c, size=N)]
    if name == "poisson":
        return F, rng.poisson(2.0, size=(N, c)).astype(float)
    return F, 2 * rng.normal(size=(N, c))


def difference(function, F, direction):
    """Central difference, from steps that are exact in floating point."""
    up, down = F + STEP * direction, F - STEP * direction
    return (function(up) - function(down)) / (2 * STEP)


@pytest.mark.parametrize("name", NAMES)
def test_value_is_the_textbook_formula(name):
    raw = small(name, c=3)
    F = np.random.default_rng(1).normal(size=raw.Y.shape)
    np.testing.assert_allclose(LOSSES[name].value(F, raw.Y), raw._loss(F), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", NAMES)
def test_dual_point_is_minus_the_gradient(name):
    F, Y = sample(name)
    loss = LOSSES[name]
    V = loss.dual_point(F, Y)
    for column in range(F.shape[1]):
        direction = np.eye(F.shape[1])[column]
        slope = difference(lambda G: loss.value(G, Y).sum(axis=1), F, direction)
        np.testing.assert_allclose(-V[:, column], slope, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("scale", [1.0, 30.0, 500.0])
@pytest.mark.parametrize("name", NAMES)
def test_the_expansion_is_its_parts(name, scale):
    F, Y = sample(name)
    loss, F = LOSSES[name], scale * F if name != "poisson" else F
    parts = loss.value(F, Y), loss.dual_point(F, Y), loss.curvature(F, Y)
    for found, expected in zip(loss.expansion(F, Y), parts, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("name", NAMES)
def test_curvature_is_the_derivative_of_the_gradient(name):
    F, Y = sample(name)
    loss = LOSSES[name]
    F = np.where(np.abs(np.abs(F - Y) - 1.35) < 2 * STEP, Y, F)  # Huber has kinks there
    H = loss.curvature(F, Y)
    for column in range(F.shape[1]):
        direction = np.eye(F.shape[1])[column]
        slope = difference(lambda G: -loss.dual_point(G, Y), F, direction)
        expected = H * direction
        if loss.joint:  # H holds the probabilities, diag(p) - p p' is the curvature
            expected = H * direction - H * H[:, [column]]
        np.testing.assert_allclose(expected, slope, rtol=1e-6, atol=1e-8)


def test_damped_huber_curvature_is_a_majorant():
    F, Y = sample("huber")
    loss = Huber()
    V, w = loss.dual_point(F, Y), loss.curvature(F, Y, damping=1.0)
    for t in np.linspace(-20, 20, 81):
        model = loss.value(F, Y) - V * t + 0.5 * w * t**2
        assert np.all(loss.value(F + t, Y) <= model + 1e-12)
    assert np.all(loss.curvature(F, Y, damping=0.5) >= loss.curvature(F, Y))


def dual_candidates(loss, Y, rng):
    """Points of the conjugate's domain, its ends included, for one column at a time."""
    if loss.joint:
        return [Y - rng.dirichlet(np.full(Y.shape[1], 0.3), size=len(Y)) for _ in range(5)]
    lower, upper = loss.bounds(Y)
    lower, upper = np.maximum(lower, -50) + 0 * Y, np.minimum(upper, 50) + 0 * Y
    return [lower + t * (upper - lower) for t in (0, 1e-9, 0.3, 0.9, 1)]


@pytest.mark.parametrize("name", NAMES)
def test_fenchel_young(name):
    F, Y = sample(name)
    loss = LOSSES[name]

    def line(V):
        """``D(V) - F V``, which touches the loss at the dual point and is nowhere above it."""
        return loss.dual_value(V, Y).sum(axis=1) - np.sum(F * V, axis=1)

    value = loss.value(F, Y).sum(axis=1)
    for V in dual_candidates(loss, Y, np.random.default_rng(3)):
        assert np.all(line(V) <= value + 1e-12 * (1 + np.abs(value)))
        assert np.mean(line(V) < value - 1e-6) > 0.5, "the candidates should differ from V"
    np.testing.assert_allclose(line(loss.dual_point(F, Y)), value, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_dual_point_lies_within_the_bounds(name):
    F, Y = sample(name)
    for scale in (1.0, 100.0):
        V = LOSSES[name].dual_point(scale * F, Y)
        lower, upper = LOSSES[name].bounds(Y)
        assert np.all((lower <= V) & (upper >= V))


# Extremes: compared with arithmetic of 400 digits -------------------------------------------------


def exact(function, *columns):
    """Evaluate a function of Decimals on arrays of floats."""
    with localcontext() as context:
        context.prec = 400  # 1 + exp(-800) needs 364 of them
        context.Emin, context.Emax = -(10**6), 10**6
        rows = zip(*(np.ravel(c) for c in columns), strict=True)
        return np.array([float(function(*map(Decimal, map(float, row)))) for row in rows])


def plogp(p):
    return p * p.ln() if p > 0 else Decimal(0)


SCORES = np.array([-800, -700, -100, -37, -36, -1e-3, -1e-9, 0, 1e-9, 1e-3, 1, 36, 37, 100, 800.0])


@pytest.mark.parametrize("y", [-1.0, 1.0])
def test_logistic_keeps_its_digits(y):
    F, Y = SCORES[:, None], np.full((len(SCORES), 1), y)
    loss = Logistic()
    value = exact(lambda f, y: (1 + (-y * f).exp()).ln(), F, Y)
    V = exact(lambda f, y: y / (1 + (y * f).exp()), F, Y)
    H = exact(lambda f: 1 / (1 + f.exp()) / (1 + (-f).exp()), F)
    np.testing.assert_allclose(loss.value(F, Y).ravel(), value, rtol=1e-13)
    np.testing.assert_allclose(loss.dual_point(F, Y).ravel(), V, rtol=1e-13)
    np.testing.assert_allclose(loss.curvature(F, Y).ravel(), H, rtol=1e-13)


@pytest.mark.parametrize("y", [-1.0, 1.0])
def test_logistic_dual_value_keeps_its_digits(y):
    q = np.array([0, 1e-300, 1e-20, 1e-9, 0.3, 0.5, 1 - 1e-9, 1.0])
    D = exact(lambda q: -plogp(q) - plogp(1 - q), q)
    V = (y * q)[:, None]
    np.testing.assert_allclose(Logistic().dual_value(V, np.full_like(V, y)).ravel(), D, rtol=1e-13)


def softmax_rows():
    """Rows of scores from uniform to saturated, each with every class as its label."""
    rows = [[0, 0, 0], [0, 1e-9, -1e-9], [1, 2, 3], [40, 0, 0], [100, 60, 0], [800, -800, 0]]
    F = np.repeat(np.array(rows, float), 3, axis=0)
    return F, np.tile(np.eye(3), (len(rows), 1))


def test_softmax_keeps_its_digits():
    F, Y = softmax_rows()
    loss = Softmax()

    def value(*row):
        f, y = row[:3], row[3:]
        chosen = sum(a * b for a, b in zip(f, y, strict=True))
        return sum((a - chosen).exp() for a in f).ln()

    def entry(column):
        def V(*row):
            f, y = row[:3], row[3:]
            return y[column] - f[column].exp() / sum(a.exp() for a in f)

        return V

    columns = [*F.T, *Y.T]
    np.testing.assert_allclose(loss.value(F, Y).ravel(), exact(value, *columns), rtol=1e-13)
    V = loss.dual_point(F, Y)
    for column in range(3):
        np.testing.assert_allclose(V[:, column], exact(entry(column), *columns), rtol=1e-13)


def test_softmax_dual_value_keeps_its_digits():
    F, Y = softmax_rows()
    V = Softmax().dual_point(F, Y)

    def entropy(*row):
        return -sum(plogp(max(y - v, Decimal(0))) for v, y in zip(row[:3], row[3:], strict=True))

    D = exact(entropy, *V.T, *Y.T)
    np.testing.assert_allclose(Softmax().dual_value(V, Y).ravel(), D, rtol=1e-12, atol=1e-300)


def poisson_grid():
    """Zero, small, fractional and huge counts, at scores far below, near and above the best."""
    Y = np.array([0.0, 1e-3, 1.0, 1 + 1e-7, 5.0, 1e6, 1e12])
    best = np.log(np.where(Y > 0, Y, 1.0))
    T = np.array([-800, -30, -1, -1e-2, -1e-5, -1e-9, 0, 1e-9, 1e-5, 1e-2, 1, 30, 600])
    F = (best[:, None] + T).reshape(-1, 1)
    return F, np.repeat(Y, len(T))[:, None]


def test_poisson_value_keeps_its_digits():
    """``e^T - 1 - T`` is ``T^2 / 2`` for a good fit, of which cancellation would leave little."""
    F, Y = poisson_grid()

    def value(f, y):
        return f.exp() - y * f + plogp(y) - y

    # F and log y are rounded: no more can be asked than the value at a nearby T = F - log y
    shift = 4e-16 * (np.abs(F) + np.abs(np.log(np.where(Y > 0, Y, 1.0)))).ravel()
    slope = np.abs(exact(lambda f, y: f.exp() - y, F, Y))
    expected = exact(value, F, Y)
    error = np.abs(Poisson().value(F, Y).ravel() - expected)
    bound = 1e-13 * expected + shift * slope + np.ravel(Y) * shift**2 + 1e-300
    assert np.all(error <= bound), np.max(error / bound)


def test_poisson_dual_value_keeps_its_digits():
    Y = np.array([0.0, 1.0, 1 + 1e-7, 5.0, 1e6, 1e12])
    ratio = np.array([-1e6, -1, -1e-3, -1e-6, -1e-9, 0, 1e-9, 1e-6, 1e-3, 0.5, 1 - 1e-9, 1])
    V = (np.where(Y > 0, Y, 1)[:, None] * ratio).reshape(-1, 1)
    Y = np.repeat(Y, len(ratio))[:, None]
    inside = (V <= Y).ravel()
    V, Y = V[inside], Y[inside]
    D = exact(lambda v, y: (y - v) - plogp(y - v) + plogp(y) - y, V, Y)
    # v log y carries the rounding of log y, and more than that cannot be asked
    line = exact(lambda v, y: v * (y.ln() if y > 0 else 0), V, Y)
    computed = Poisson().dual_value(V, Y).ravel()
    bound = 1e-13 * (np.abs(D) + np.abs(line)) + 1e-300
    assert np.all(np.abs(computed - D) <= bound), np.max(np.abs(computed - D) / bound)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_nan_at_absurd_scores(name):
    _, Y = sample(name, N=60)
    loss = LOSSES[name]
    for score in (-1e150, -1e10, -800.0, 800.0, 1e10, 1e150):
        F = np.full_like(Y, score)
        assert not np.any(np.isnan(loss.value(F, Y)))
        assert not np.any(np.isnan(loss.dual_point(F, Y)))
        assert not np.any(np.isnan(loss.curvature(F, Y)))
        assert np.all(loss.value(F, Y) >= 0)


# Constants, bounds, targets -----------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_constant_minimises_the_weighted_loss(name):
    _, Y = sample(name)
    a = np.random.default_rng(2).uniform(0, 2, size=len(Y))
    F = np.broadcast_to(LOSSES[name].constant(Y, a), Y.shape)
    V = a[:, None] * LOSSES[name].dual_point(F, Y)
    np.testing.assert_allclose(V.sum(axis=0), 0, atol=1e-11)


@pytest.mark.parametrize("name", ["squared", "huber", "poisson"])
def test_closed_intercept_minimises_the_weighted_loss(name):
    S, Y = sample(name)
    a = np.random.default_rng(2).uniform(0, 2, size=len(Y))
    V = a[:, None] * LOSSES[name].dual_point(S + LOSSES[name].intercept(S, Y, a), Y)
    np.testing.assert_allclose(V.sum(axis=0), 0, atol=1e-11)


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("ties", [False, True])
def test_huber_intercept_balances_residuals_of_any_size(size, ties):
    """Piecewise linear slope: all within delta, a mixture, all but a few in the tails, or tied."""
    rng = np.random.default_rng(5)
    Y = size * rng.standard_t(1.5, size=(41, 4))
    Y = np.round(Y / size) * size if ties else Y
    a = rng.uniform(0, 2, size=41) * (rng.random(41) < 0.8)
    V = a[:, None] * Huber().dual_point(Huber().constant(Y, a) + 0 * Y, Y)
    assert np.all(np.abs(V.sum(axis=0)) <= 1e-9 * a.sum())


@pytest.mark.parametrize("name", ["logistic", "softmax"])
def test_other_losses_have_no_closed_intercept(name):
    S, Y = sample(name)
    assert LOSSES[name].intercept(S, Y, np.ones(len(Y))) is None


@pytest.mark.parametrize("delta", [0.0, -1.0, np.nan, np.inf])
def test_huber_needs_a_positive_delta(delta):
    with pytest.raises(ValueError, match="delta must be a positive number"):
        Huber(delta)


def test_flags_say_what_solvers_may_rely_on():
    assert [loss.joint for loss in LOSSES.values()] == [False, False, False, True, False]
    assert [loss.quadratic for loss in LOSSES.values()] == [True, False, False, False, False]
    assert [loss.translates for loss in LOSSES.values()] == [True, True, False, False, False]
    assert Squared() == Squared() and Huber(1.0) != Huber(2.0)


@pytest.mark.parametrize(
    ("loss", "Y", "words"),
    [
        (Logistic(), [[0.0], [1.0]], "must be -1 or \\+1"),
        (Softmax(), [[0.5, 0.5], [1.0, 0.0]], "one-hot rows"),
        (Softmax(), [[1.0, 1.0], [1.0, 0.0]], "one-hot rows"),
        (Softmax(), [[2.0, -1.0], [1.0, 0.0]], "one-hot rows"),
        (Poisson(), [[-1.0], [2.0]], "must not be negative, got -1"),
    ],
)
def test_invalid_targets_are_refused_in_words(loss, Y, words):
    for intercept in (True, False):
        with pytest.raises(ValueError, match=words):
            loss.check_targets(np.array(Y), np.ones(2), intercept)


@pytest.mark.parametrize(
    ("loss", "Y", "words"),
    [
        (Logistic(), [[1.0, 1.0], [-1.0, 1.0]], "Output 1 has samples of one class only"),
        (Softmax(), [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], "Class 1 has no sample"),
        (Poisson(), [[0.0], [0.0]], "All counts of an output are zero"),
    ],
)
def test_targets_without_a_minimiser_are_refused_only_with_an_intercept(loss, Y, words):
    with pytest.raises(ValueError, match=words):
        loss.check_targets(np.array(Y), np.ones(2), True)
    loss.check_targets(np.array(Y), np.ones(2), False)


@pytest.mark.parametrize("scale", [0.0, 1e-9, 1.0, 30.0, 800.0])
@pytest.mark.parametrize("c", [1, 2, 7])
@pytest.mark.parametrize("name", ["logistic", "softmax"])
def test_compiled_losses_are_numpys(name, c, scale, compiled, monkeypatch):
    loss, (F, Y) = LOSSES[name], sample(name, N=611, c=c)
    F, Y = np.asfortranarray(scale * F), np.asfortranarray(Y)
    if name == "logistic":
        F, Y = np.ascontiguousarray(F), np.ascontiguousarray(Y)
    V = loss.dual_point(F, Y)
    shrunk = [np.asfortranarray(t * V) if name == "softmax" else t * V for t in (1.0, 0.7, 0.0)]

    def everything():
        return [*loss.expansion(F, Y), *(loss.dual_value(v, Y) for v in shrunk)]

    in_c = everything()
    for kernel in ("logistic_expansion", "logistic_dual", "softmax_expansion", "softmax_dual"):
        monkeypatch.setattr(_core, kernel, getattr(_numpy, kernel))
    for found, expected in zip(in_c, everything(), strict=True):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-300)


def test_compiled_losses_refuse_arrays_of_other_sizes(compiled):
    F, short = np.zeros((5, 1)), np.zeros((4, 1))
    with pytest.raises(ValueError, match="5 numbers"):
        compiled.logistic_dual((5, 1), F, F, short)
