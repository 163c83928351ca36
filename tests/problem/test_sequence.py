"""SequenceProblem: objective, duality, row sums, and moments instead of samples."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from tests.sequences import RawSequence, make

from convexformer.problem.positions import dual_norms, norms
from convexformer.problem.sequence import (
    AttentionParts,
    SequenceProblem,
    from_tokens,
    to_tokens,
)

ATTENTION = ["stochastic", "substochastic"]
SETTINGS = list(itertools.product(ATTENTION, [True, False], [True, False], [True, False]))
IDS = [
    f"{attention}-{'intercept' if intercept else 'none'}"
    f"-{'masked' if masked else 'full'}-{'weighted' if weighted else 'even'}"
    for attention, intercept, masked, weighted in SETTINGS
]


@pytest.fixture(params=SETTINGS, ids=IDS)
def raw(request):
    return make(*request.param)


def random_model(raw, seed=0, scale=1.0):
    """Coefficients the program allows, and an intercept."""
    rng = np.random.default_rng(seed)
    n, d, c = *raw.X.shape[1:], raw.Y.shape[2]
    Z = scale * rng.normal(size=(d, c, n, n))
    Z[0, 0] = 0.0
    if raw.attention == "stochastic":
        Z -= Z.mean(axis=3, keepdims=True) - Z.mean(axis=(2, 3), keepdims=True)
    return Z, scale * rng.normal(size=c) * raw.intercept


# Primal -------------------------------------------------------------------------------------------


def test_objective_and_prediction_are_the_textbook_formulas(raw):
    problem = raw.problem()
    Z, b = random_model(raw)
    np.testing.assert_allclose(problem.predict(Z, b), raw.scores(Z, b), rtol=1e-12, atol=1e-12)
    assert problem.objective(Z, b, 0.7) == pytest.approx(raw.objective(Z, b, 0.7), rel=1e-12)
    value, bound = problem.objective(Z, b, 0.7), problem.certificate(Z, b, 0.7).primal
    assert value <= bound <= (1 + 1e-12) * value


def test_best_intercept_is_stationary(raw):
    Z, _ = random_model(raw)
    b = raw.problem().best_intercept(Z)
    if not raw.intercept:
        assert np.all(b == 0)
        return
    R = raw.weight[:, :, None] * (raw.targets - raw.scores(Z, b))
    np.testing.assert_allclose(R.sum(axis=(0, 1)), 0.0, atol=1e-12)


def test_network_of_the_parts_has_the_same_objective(raw):
    """Two heads per channel and output: ``A / a`` and ``B / b``."""
    problem = raw.problem()
    Z, b = random_model(raw)
    parts = problem.parts(Z)
    assert np.all(parts.A >= 0) and np.all(parts.B >= 0)
    np.testing.assert_allclose(parts.A - parts.B, Z, atol=1e-14)
    assert np.all(parts.a[0, 0] == 0) and np.all(parts.b[0, 0] == 0)  # no head where Z is zero
    network = raw.network_objective(parts.A, parts.B, b, 0.7)
    assert network == pytest.approx(problem.objective(Z, b, 0.7), rel=1e-12)


def test_layouts_are_inverse():
    Z = np.arange(2 * 3 * 4 * 4.0).reshape(2, 3, 4, 4)
    assert to_tokens(Z)[3, 1, 2, 0] == Z[1, 0, 2, 3]  # source, channel, target, output
    np.testing.assert_array_equal(from_tokens(to_tokens(Z)), Z)


# Row sums -----------------------------------------------------------------------------------------


def test_feasible_makes_row_sums_equal_and_keeps_zeros():
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(2, 2, 5, 5)) * (rng.random((2, 2, 5, 5)) < 0.5)
    Z[1, 1] = 0.0
    Z[0, :, 0, 0] = 1e3  # rounding of a row is that of its largest entry
    problem = make(shape=(12, 5, 2, 2)).problem()
    repaired = problem.feasible(Z)
    size = np.abs(Z).sum(axis=3).max(axis=2)
    assert all(
        len({sum(map(Fraction, row)) for row in matrix}) == 1  # exactly
        for matrix in repaired.reshape(4, 5, 5).tolist()
    )
    assert np.all(repaired[1, 1] == 0)
    changed = (abs(repaired - Z) > 1e-15 * size[:, :, None, None]).sum(axis=3)
    assert np.all(changed <= 1)
    np.testing.assert_array_equal(problem.feasible(repaired), repaired)
    other = make("substochastic", shape=(12, 5, 2, 2)).problem()
    np.testing.assert_array_equal(other.feasible(Z), Z)


def test_infeasible_coefficients_are_repaired_before_they_are_judged():
    raw = make()
    problem = raw.problem()
    Z = np.random.default_rng(0).normal(size=problem.shape)  # all row sums differ
    repaired = problem.feasible(Z)
    b = np.ones(2)
    assert problem.objective(Z, b, 1.0) == pytest.approx(raw.objective(repaired, b, 1.0), rel=1e-12)
    assert problem.objective(Z, b, 1.0) != pytest.approx(raw.objective(Z, b, 1.0), rel=0.01)


def test_penalty_is_the_largest_row_norm_where_row_sums_are_equal():
    raw = make()
    Z, _ = random_model(raw)
    largest = np.abs(Z).sum(axis=3).max(axis=2)
    np.testing.assert_allclose(norms(to_tokens(Z)), largest, rtol=1e-13)
    # Without equal sums that would be smaller: 1 here, where the network pays 2.
    Z = np.array([[[[1.0, 0.0], [0.0, -1.0]]]])
    assert norms(to_tokens(Z)) == 2.0
    parts = AttentionParts.of(Z, "substochastic")
    assert (parts.a, parts.b) == (1.0, 1.0)


# Dual ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ATTENTION)
def test_dual_norm_is_the_best_attention_matrix(attention):
    """A linear function of a matrix with rows on the simplex is largest at a vertex of each row."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        M = rng.normal(size=(3, 3)) + rng.normal(size=(3, 1))
        rows = list(np.eye(3)) + ([np.zeros(3)] if attention == "substochastic" else [])
        values = [np.sum(M * W) for W in itertools.product(rows, repeat=3)]
        expected = max(max(values), -min(values))
        found = dual_norms(to_tokens(M[None, None]), attention)
        assert found == pytest.approx(expected, rel=1e-14)


def test_weak_duality_at_random_models(raw):
    """No dual value is above the objective of any model."""
    problem = raw.problem()
    for beta in np.array([0.01, 0.3, 0.999, 2.0]) * problem.beta_max:
        models = [random_model(raw, seed, scale) for seed in range(5) for scale in (0.01, 0.3, 3)]
        certificates = [problem.certificate(Z, b, beta) for Z, b in models]
        assert max(c.dual for c in certificates) <= min(c.primal for c in certificates)
        assert max(c.dual for c in certificates) > 0


def test_dual_values_are_below_the_optimum(raw):
    problem = raw.problem()
    beta = 0.2 * problem.beta_max
    optimum = raw.oracle(beta)
    for seed in range(20):
        Z, b = random_model(raw, seed, 0.3)
        assert problem.certificate(Z, b, beta).dual <= optimum * (1 + 1e-8)


def test_beta_max_is_the_dual_norm_at_the_null_model(raw):
    W = raw.weight[:, :, None]
    mean = np.sum(W * raw.targets, axis=(0, 1)) / raw.weight.sum() * raw.intercept
    M = np.einsum("irl,ikj->jlrk", W * (raw.targets - mean), raw.tokens)
    above, below = M.max(axis=3), (-M).max(axis=3)
    if raw.attention == "substochastic":
        above, below = np.maximum(above, 0), np.maximum(below, 0)
    expected = max(above.sum(axis=2).max(), below.sum(axis=2).max())
    assert raw.problem().beta_max == pytest.approx(expected, rel=1e-10)


def test_zero_is_optimal_just_above_beta_max_and_not_just_below(raw):
    problem = raw.problem()
    zero = np.zeros(problem.shape)
    b = problem.best_intercept(zero)
    above = problem.certificate(zero, b, 1.0001 * problem.beta_max)
    assert -1e-12 <= above.relative_gap <= 1e-12
    assert problem.certificate(zero, b, 0.999 * problem.beta_max).relative_gap > 1e-8


def test_the_printed_program_is_a_lower_bound():
    raw = make()
    Z, b = random_model(raw)
    printed = RawSequence(raw.X, raw.Y, "substochastic").problem()
    assert printed.objective(Z, b, 0.7) == pytest.approx(raw.problem().objective(Z, b, 0.7))
    assert printed.beta_max >= (1 - 1e-12) * raw.problem().beta_max


def test_adding_a_constant_to_a_channel_moves_only_the_intercept():
    raw = make()
    Z, b = random_model(raw)
    shift = np.array([1e3, -50.0])
    moved = RawSequence(raw.X + shift, raw.Y)
    lift = np.einsum("jlrk,j->rl", Z, shift)
    np.testing.assert_allclose(lift, lift[:1].repeat(4, axis=0), rtol=1e-10)
    one, other = raw.problem(), moved.problem()
    assert other.beta_max == pytest.approx(one.beta_max, rel=1e-10)
    first, second = one.certificate(Z, b, 0.7), other.certificate(Z, b - lift[0], 0.7)
    assert second.primal == pytest.approx(first.primal, rel=1e-9)
    assert second.dual == pytest.approx(first.dual, rel=1e-9)


# Weights, masks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ATTENTION)
def test_sample_weight_is_repetition(attention):
    raw = make(attention, weighted=True)
    assert np.any(raw.sample_weight == 0) and np.any(raw.sample_weight == 2)
    times = raw.sample_weight.astype(int)
    repeated = RawSequence(np.repeat(raw.X, times, 0), np.repeat(raw.Y, times, 0), attention)
    one, other = raw.problem(), repeated.problem()
    assert one.beta_max == pytest.approx(other.beta_max, rel=1e-12)
    Z, b = random_model(raw)
    first, second = (p.certificate(Z, b, 0.3 * one.beta_max) for p in (one, other))
    assert first.primal == pytest.approx(second.primal, rel=1e-12)
    assert first.dual == pytest.approx(second.dual, rel=1e-10)


def test_masked_targets_do_not_count_and_masked_tokens_are_zero():
    raw = make(masked=True)
    filled = RawSequence(np.nan_to_num(raw.X, nan=7.0), np.nan_to_num(raw.Y, nan=-9.0))
    filled.mask = raw.mask
    Z, b = random_model(raw)
    assert raw.problem().certificate(Z, b, 0.7) == filled.problem().certificate(Z, b, 0.7)


def test_float32_is_read_as_it_is():
    raw = make()
    single = RawSequence(raw.X.astype("f4"), raw.Y)
    double = RawSequence(raw.X.astype("f4").astype("f8"), raw.Y)
    Z, b = random_model(raw)
    assert single.problem().certificate(Z, b, 0.7) == double.problem().certificate(Z, b, 0.7)


def test_constant_targets_are_fitted_exactly():
    raw = RawSequence(make().X, np.full((12, 4, 2), 0.1))
    problem = raw.problem()
    assert problem.beta_max == 0
    certificate = problem.certificate(np.zeros(problem.shape), np.full(2, 0.1), 1.0)
    assert certificate.primal == certificate.dual == certificate.relative_gap == 0


# Moments ------------------------------------------------------------------------------------------


def coefficients_and_correlations(model, Z):
    """Coefficients with the best intercept, and minus the gradient there, by blocks."""
    T = np.zeros(model.cross.shape)
    T[: model.p] = to_tokens(Z).reshape(model.p, *T.shape[1:])
    T = model.settled(T)
    return T, model.blocks(model.cross - model.apply(T))


def test_moments_have_the_gradient_and_the_gap(raw):
    problem = raw.problem()
    Z, _ = random_model(raw)
    b = problem.best_intercept(Z)
    moments = problem.moments
    T, M = coefficients_and_correlations(moments, Z)
    V = raw.weight[:, :, None] * (raw.targets - raw.scores(Z, b))
    X = raw.tokens
    if raw.attention == "stochastic" and raw.intercept and raw.mask is None:  # read less its means
        X = X - np.average(X.mean(axis=1), axis=0, weights=raw.weight[:, 0])
    expected = np.einsum("irl,ikj->kjrl", V, X)
    np.testing.assert_allclose(M, expected, atol=1e-10)
    beta = 0.3 * problem.beta_max
    primal, dual = moments.bounds(T, beta, raw.attention)
    gap = problem.certificate(Z, b, beta).relative_gap
    assert (primal - dual) / primal == pytest.approx(gap, rel=1e-8)


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("attention", ATTENTION)
def test_quadratic_models_are_their_formula(attention, intercept, joint):
    """Any weights, and outputs that meet as those of a softmax do."""
    raw = make(attention, intercept, shape=(12, 4, 2, 3))
    problem, rng = raw.problem(), np.random.default_rng(1)
    w, Y = rng.uniform(0.1, 1.0, raw.Y.shape), rng.normal(size=raw.Y.shape)
    W = np.einsum("irl,lm->irlm", w, np.eye(3))
    if joint:
        W -= np.einsum("irl,irm->irlm", w, w) / w.sum(axis=2)[:, :, None, None]
    model, (Z, _) = problem.model(w, Y, joint), random_model(raw)
    S = raw.scores(Z, np.zeros(3))
    b = np.zeros(3)
    if intercept:
        total, slope = W.sum(axis=(0, 1)), np.einsum("irlm,irm->l", W, Y - S)
        b = np.linalg.lstsq(total, slope, rcond=1e-12)[0]
    V = np.einsum("irlm,irm->irl", W, Y - S - b)
    T, M = coefficients_and_correlations(model, Z)
    X = raw.tokens
    if attention == "stochastic" and intercept:
        X = X - X.mean(axis=(0, 1))
    expected = np.einsum("irl,ikj->kjrl", V, X)
    np.testing.assert_allclose(M, expected, atol=1e-10)
    primal, dual = model.bounds(T, 0.7, attention)
    assert primal == pytest.approx(0.5 * np.sum(V * (Y - S - b)) + 0.7 * raw.penalty(Z), rel=1e-10)
    assert dual <= primal


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention": "softmax"}, "attention must be one of"),
        ({"Y": np.zeros((12, 3, 2))}, r"Y must have shape \(12, 4, c\), got \(12, 3, 2\)"),
        ({"Y": np.zeros((12, 4))}, "Y must have shape"),
        ({"Y": np.full((12, 4, 2), np.nan)}, "Y contains NaN"),
        ({"X": np.zeros((12, 4, 2), dtype=int)}, "X must be a float32 or float64"),
        ({"sample_weight": np.ones(11)}, "sample_weight must have shape"),
        ({"sample_weight": -np.ones(12)}, "finite, not negative"),
        ({"sample_weight": np.zeros(12)}, "not all zero"),
        ({"mask": np.zeros((12, 4), dtype=bool)}, "not all zero"),
    ],
)
def test_wrong_input_is_refused_in_words(change, message):
    raw = make()
    with pytest.raises(ValueError, match=message):
        SequenceProblem(**({"X": raw.X, "Y": raw.Y} | change))
