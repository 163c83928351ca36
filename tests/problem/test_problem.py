"""Problem: objective, intercept, beta_max, sample weights and second-order models."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq
from tests.generated import small
from tests.raw import LOSSES, Raw

from convexformer.problem import (
    Logistic,
    Problem,
    Softmax,
    Squared,
    Token,
    TokenDesign,
    TokenOutput,
)
from convexformer.solvers import solve

NAMES = list(LOSSES)
SETTINGS = list(itertools.product(NAMES, ["token-output", "token"], [True, False], [True, False]))
IDS = [
    f"{loss}-{penalty}-{'intercept' if intercept else 'none'}-{'masked' if masked else 'full'}"
    for loss, penalty, intercept, masked in SETTINGS
]


@pytest.fixture(params=SETTINGS, ids=IDS)
def raw(request):
    """Every loss, penalty, intercept or not, mask or not; weights of both kinds; three outputs."""
    return small(*request.param, c=3, weighted=True)


def random_model(raw, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    Z = scale * rng.normal(size=(*raw.X.shape[1:], raw.Y.shape[1]))
    Z[rng.random(len(Z)) < 0.3] = 0.0
    return Z, scale * rng.normal(size=raw.Y.shape[1]) * raw.intercept


def test_objective_and_prediction_are_the_textbook_formulas(raw):
    problem = raw.problem()
    Z, b = random_model(raw, scale=0.3)
    np.testing.assert_allclose(problem.predict(Z, b), raw.scores(Z, b), rtol=1e-12, atol=1e-12)
    assert problem.objective(Z, b, 0.7) == pytest.approx(raw.objective(Z, b, 0.7), rel=1e-12)
    primal, value = problem.certificate(Z, b, 0.7).primal, problem.objective(Z, b, 0.7)
    assert value <= primal <= value * (1 + 1e-11)


def test_inner_and_outer_intercepts_are_inverse(raw):
    problem = raw.problem()
    Z, b = random_model(raw)
    inner = problem.inner_intercept(Z, b)
    if raw.loss == "softmax" and raw.intercept:  # of equivalent ones, the balanced one comes back
        b = b - b.mean()
    np.testing.assert_allclose(problem.outer_intercept(Z, inner), b, atol=1e-13)


# Intercept ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0.0, 30.0, -800.0, 800.0])
@pytest.mark.parametrize("scale", [0.0, 1.0, 40.0])
@pytest.mark.parametrize("name", NAMES)
def test_best_intercept_is_stationary_from_anywhere(name, scale, start):
    raw = small(name, c=3, weighted=True)
    problem = raw.problem()
    S = problem.scores(random_model(raw, scale=scale)[0])
    b = problem.risk.best_intercept(S, np.full(3, start))
    V = raw.weight[:, None] * problem.loss.dual_point(S + b, problem.Y)
    assert np.all(np.isfinite(b))
    assert np.all(np.abs(V.sum(axis=0)) <= 1e-9 * (np.abs(V).sum(axis=0) + 1e-300))


def test_best_huber_intercept_where_every_residual_is_in_the_tail():
    Y = np.array([-1e6, -2e6, 1e6, 3e6, 5.0])[:, None]
    problem = Raw(np.zeros((5, 1, 1)), Y, "huber").problem()
    b = problem.null.b + problem.shift
    assert b == pytest.approx(5.0, abs=1.35)


def test_no_intercept_means_zero():
    problem = small("logistic", intercept=False).problem()
    assert problem.risk.best_intercept(np.ones((30, 1)), np.ones(1)) == [0.0]
    assert problem.null.b == [0.0]


# V at Z = 0, and beta_max -------------------------------------------------------------------------


def huber_location(y, a, delta=1.35):
    return brentq(lambda m: a @ np.clip(y - m, -delta, delta), y.min(), y.max(), xtol=1e-14)


def table(raw):
    """V at Z = 0 as the theory tabulates it, times the sample weights."""
    Y, a, c = raw.Y, raw.weight, raw.Y.shape[1]
    mean = a @ Y / a.sum()
    if raw.loss == "squared":
        V = Y - mean * raw.intercept
    elif raw.loss == "huber":
        m = np.array([huber_location(y, a) for y in Y.T]) * raw.intercept
        V = np.clip(Y - m, -1.35, 1.35)
    elif raw.loss == "logistic":
        V = (Y + 1) / 2 - (mean + 1) / 2 if raw.intercept else Y / 2
    elif raw.loss == "softmax":
        V = Y - (mean if raw.intercept else 1 / c)
    else:
        V = Y - (mean if raw.intercept else 1.0)
    return a[:, None] * V


def test_dual_point_of_the_null_model(raw):
    np.testing.assert_allclose(raw.problem().null.V, table(raw), rtol=1e-9, atol=1e-12)


def test_beta_max_is_the_dual_norm_at_the_null_model(raw):
    M = np.einsum("ikd,ic->kdc", raw.tokens, table(raw)) / raw.groups[:, None, None]
    norms = (
        np.linalg.norm(M, axis=1) if raw.penalty == "token-output" else np.sqrt((M**2).sum((1, 2)))
    )
    assert raw.problem().beta_max == pytest.approx(norms.max(), rel=1e-9)


def test_zero_is_optimal_just_above_beta_max_and_not_just_below(raw):
    problem = raw.problem()
    zero = np.zeros(problem.shape)
    b = problem.outer_intercept(zero, problem.null.b)
    above = problem.certificate(zero, b, 1.0001 * problem.beta_max)
    assert -1e-12 <= above.relative_gap <= 1e-12
    below = 0.999 * problem.beta_max
    assert problem.certificate(zero, b, below).relative_gap > 1e-9
    point = problem.null  # a step along the most correlated cell descends
    cell = problem.penalty.dual_norms(point.M) == point.norms.max()
    Z = np.where(cell[:, None, :], point.M, 0.0)
    descent = [raw.objective(t * Z, b, below) for t in np.geomspace(1e-12, 1e-3, 60)]
    assert min(descent) < raw.objective(zero, b, below)


def test_scaling_x_scales_beta_max():
    raw = small("poisson", c=2)
    scaled = Raw(1e6 * raw.X, raw.Y, "poisson")
    assert scaled.problem().beta_max == pytest.approx(1e6 * raw.problem().beta_max, rel=1e-12)


# Sample weights, masks ----------------------------------------------------------------------------


def repeated(raw):
    """The same problem with rows repeated as often as their weight says."""
    times = raw.weight.astype(int)
    mask = None if raw.mask is None else np.repeat(raw.mask, times, axis=0)
    X, Y = np.repeat(raw.X, times, axis=0), np.repeat(raw.Y, times, axis=0)
    more = {"mask": mask, "penalty_weights": raw.penalty_weights}
    return Raw(X, Y, raw.loss, raw.penalty, raw.intercept, **more)


def test_sample_weight_is_repetition(raw):
    assert np.any(raw.weight == 0) and np.any(raw.weight > 1)
    one, other = raw.problem(), repeated(raw).problem()
    assert one.beta_max == pytest.approx(other.beta_max, rel=1e-10)
    Z, b = random_model(raw, scale=0.3)
    first, second = (p.certificate(Z, b, 0.3 * one.beta_max) for p in (one, other))
    assert first.primal == pytest.approx(second.primal, rel=1e-12)
    assert first.dual == pytest.approx(second.dual, rel=1e-8)


def test_samples_of_weight_zero_are_not_seen(raw):
    problem = raw.problem()
    nobody = raw.weight == 0
    raw.X = np.where(nobody[:, None, None], 1e3 * np.roll(np.nan_to_num(raw.X), 1, axis=0), raw.X)
    raw.Y = np.where(nobody[:, None], np.roll(raw.Y, 1, axis=1), raw.Y)
    other = raw.problem()
    Z, b = random_model(raw, scale=0.1)
    assert other.beta_max == pytest.approx(problem.beta_max, rel=1e-10)
    first, second = (p.certificate(Z, b, 0.3 * p.beta_max) for p in (problem, other))
    assert first.primal == pytest.approx(second.primal, rel=1e-12)
    assert first.dual == pytest.approx(second.dual, rel=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_an_outlier_of_weight_zero_does_not_overflow(name):
    """Weight zero takes a broken row out of the fit, whatever the loss would be there."""
    raw = small(name, c=2, weighted=True)
    raw.X[raw.weight == 0] *= 1e6
    problem = raw.problem()
    Z, b = random_model(raw, scale=0.1)
    certificate = problem.certificate(Z, b, 0.3 * problem.beta_max)
    kept = repeated(raw).problem().certificate(Z, b, 0.3 * problem.beta_max)
    assert certificate.primal == pytest.approx(kept.primal, rel=1e-10)
    assert certificate.dual == pytest.approx(kept.dual, rel=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_masked_tokens_are_zero_rows(name):
    raw = small(name, masked=True, c=3)
    dense = Raw(raw.tokens, raw.Y, name)
    Z, b = random_model(raw, scale=0.3)
    first, second = (r.problem().certificate(Z, b, 1.0) for r in (raw, dense))
    assert first.primal == pytest.approx(second.primal, rel=1e-13)
    assert first.dual == pytest.approx(second.dual, rel=1e-10)


# Second order -------------------------------------------------------------------------------------


def reduced_gradient(problem, Z):
    """Gradient in Z of the loss with the intercept minimised out."""
    S = problem.scores(Z)
    F = S + problem.risk.best_intercept(S, problem.null.b)
    V = problem.weight[:, None] * problem.loss.dual_point(F, problem.Y)
    return -problem.design.correlate(V), F


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_quadratic_is_the_hessian_with_the_intercept_minimised_out(name, intercept):
    raw = small(name, intercept=intercept, c=3, weighted=True, masked=True)
    problem = raw.problem()
    Z, _ = random_model(raw, seed=4, scale=0.2)
    groups, step = np.array([3, 0]), 1e-5
    _, F = reduced_gradient(problem, Z)
    models = problem.quadratic(groups, F)
    d, c = problem.design.dim, problem.n_outputs
    hessian = np.zeros((2, c, d, 2, c, d))  # (group, output, channel) twice
    for g, (k, j, m) in zip(
        itertools.product(range(2), range(c), range(d)),
        itertools.product(groups, range(c), range(d)),
        strict=True,
    ):
        D = np.zeros_like(Z)
        D[k, m, j] = step
        slope = reduced_gradient(problem, Z + D)[0] - reduced_gradient(problem, Z - D)[0]
        hessian[g] = slope[groups].transpose(0, 2, 1) / (2 * step)
    if problem.loss.joint:
        assert len(models) == 1
        np.testing.assert_allclose(models[0], hessian.reshape(2 * c * d, -1), rtol=1e-5, atol=1e-6)
        return
    assert len(models) == (1 if problem.loss.quadratic else c)
    for j in range(c):
        expected = hessian[:, j, :, :, j].reshape(2 * d, 2 * d)
        model = models[0] if len(models) == 1 else models[j]
        np.testing.assert_allclose(model, expected, rtol=1e-5, atol=1e-6)
        others = np.delete(hessian[:, j], j, axis=3)
        np.testing.assert_allclose(others, 0, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_quadratic_has_no_negative_curvature(name):
    raw = small(name, c=3)
    raw.X = raw.X + 1e4  # where eliminating the intercept could leave rounding below zero
    problem = raw.problem()
    F = problem.scores(random_model(raw, scale=0.3)[0]) + problem.null.b
    for Q in problem.quadratic(np.arange(5), F):
        np.testing.assert_allclose(Q, Q.T, atol=1e-10 * np.abs(Q).max())
        values = np.linalg.eigvalsh(Q)
        assert values[0] >= -1e-9 * values[-1]


# Errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("Y", "weight", "penalty", "words"),
    [
        (np.ones(4), None, TokenOutput(), "Y must have shape \\(4, c\\), got \\(4,\\)"),
        (np.ones((3, 1)), None, TokenOutput(), "Y must have shape \\(4, c\\), got \\(3, 1\\)"),
        (np.full((4, 1), np.nan), None, TokenOutput(), "NaN or infinity"),
        (np.full((4, 1), np.inf), None, TokenOutput(), "NaN or infinity"),
        (np.ones((4, 1)), np.ones(3), TokenOutput(), "sample_weight must have shape \\(4,\\)"),
        (np.ones((4, 1)), -np.ones(4), TokenOutput(), "finite, not negative, and not all zero"),
        (np.ones((4, 1)), np.zeros(4), TokenOutput(), "finite, not negative, and not all zero"),
        (np.ones((4, 1)), np.full(4, np.nan), Token(), "finite, not negative, and not all zero"),
        (np.ones((4, 1)), None, Token([1.0, 2.0, 3.0]), "3 weights for 2 tokens"),
    ],
)
def test_mismatched_input_is_refused_in_words(Y, weight, penalty, words):
    with pytest.raises(ValueError, match=words):
        Problem(TokenDesign(np.ones((4, 2, 1))), Squared(), penalty, Y, weight)


def test_constant_columns_beside_an_intercept_have_no_beta_max():
    rng = np.random.default_rng(0)
    for _ in range(100):
        X = np.full((20_000, 5, 1), 10.0 ** rng.integers(-6, 6) * rng.choice([1.0, 1 / 3, np.pi]))
        Y = 10.0 ** rng.integers(-8, 1) * rng.normal(size=(len(X), 2)) + 100.0
        assert Problem(TokenDesign(X), Squared(), Token(), Y).beta_max == 0.0


def test_a_large_constant_column_does_not_silence_the_others():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 10, 4))
    y = 0.05 * X[:, 1, :1] + rng.normal(size=(2000, 1))
    expected = Problem(TokenDesign(X), Squared(), Token(), y).beta_max
    X[:, 0, 0] = 1.7e12  # milliseconds
    assert Problem(TokenDesign(X), Squared(), Token(), y).beta_max >= 0.99 * expected


def test_samples_without_weight_do_not_silence_the_others():
    rng = np.random.default_rng(0)
    X, y, weight = rng.normal(size=(200, 5, 3)), rng.normal(size=(200, 1)), np.ones(200)
    X[0], weight[0] = 1e15, 0.0
    found = Problem(TokenDesign(X), Squared(), Token(), y, weight, intercept=False).beta_max
    rest = Problem(TokenDesign(X[1:]), Squared(), Token(), y[1:], intercept=False).beta_max
    assert found == pytest.approx(rest)


def test_noise_is_judged_token_by_token():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 10, 4)).astype(np.float32)
    y = X[:, 1, :1] + rng.normal(size=(2000, 1))
    expected = Problem(TokenDesign(X), Squared(), Token(), y).beta_max
    X[:, 0, 0] = 1.7e12
    problem = Problem(TokenDesign(X), Squared(), Token(), y)
    assert problem.beta_max >= 0.99 * expected


@pytest.mark.parametrize("loss", [Squared(), Logistic(), Softmax()])
@pytest.mark.parametrize("kind", ["f4", ">f8", "i8", "unaligned", "strided"])
def test_coefficients_of_any_kind_are_certified_in_float64(loss, kind):
    rng = np.random.default_rng(0)
    X, c = rng.normal(size=(30, 4, 3)), 3 if loss.joint else 1
    Y = np.eye(3)[rng.integers(3, size=30)] if loss.joint else np.sign(rng.normal(size=(30, 1)))
    Z = np.rint(3 * rng.normal(size=(4, 3, c)))
    given = np.zeros((8, 3, c))[::2] if kind == "strided" else Z.astype("f8")
    if kind == "unaligned":
        given = np.zeros(Z.nbytes + 1, dtype=np.uint8)[1:].view(np.float64).reshape(Z.shape)
    elif kind != "strided":
        given = Z.astype(kind)
    given[:] = Z
    b = np.ones(c)
    problem = Problem(TokenDesign(X), loss, TokenOutput(), Y)
    fresh = Problem(TokenDesign(X), loss, TokenOutput(), Y)
    assert problem.certificate(given, b.astype(given.dtype), 0.5) == fresh.certificate(Z, b, 0.5)
    assert problem.objective(given, b, 0.5) == fresh.objective(Z, b, 0.5)
    np.testing.assert_allclose(TokenDesign(X).predict(given), TokenDesign(X).predict(Z))
    start = solve(fresh, 0.1 * fresh.beta_max)
    again = replace(start, Z=given, intercept=b.astype(given.dtype))
    assert solve(problem, 0.1 * problem.beta_max, init=again).converged


def test_what_users_change_later_is_not_seen():
    rng = np.random.default_rng(0)
    X, Y, weight = rng.normal(size=(30, 4, 3)), rng.normal(size=(30, 1)), np.ones(30)
    tokens = np.ones(4)
    problem = Problem(TokenDesign(X), Squared(), TokenOutput(tokens), Y, weight)
    Z = rng.normal(size=(4, 3, 1))
    view, b = Z[:], np.zeros(1)
    Z.flags.writeable = False  # which says nothing of older views
    before = problem.certificate(Z, b, 1.0)
    weight *= 5.0
    tokens *= 5.0
    assert problem.certificate(Z, b, 1.0) == before
    view[0] = 7.0
    fresh = Problem(TokenDesign(X), Squared(), TokenOutput(), Y)
    assert problem.certificate(Z, b, 1.0) == fresh.certificate(Z, b, 1.0)


def test_rounding_of_the_last_class_is_no_correlation():
    for seed in range(60):
        rng = np.random.default_rng(seed)
        X = np.zeros((1, 9, 10))  # the same for every sample
        X[0, np.arange(9), rng.integers(10, size=9)] = rng.choice([1, 2.5, -1, 1e-3], 9)
        labels = rng.choice(13, size=256, p=rng.dirichlet(np.ones(13)))
        Y = np.eye(13)[:, np.unique(labels)][labels]
        problem = Problem(TokenDesign(np.repeat(X, 256, axis=0)), Softmax(), TokenOutput(), Y)
        assert problem.beta_max == 0.0
