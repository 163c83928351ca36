"""The largest correlation, found in float32 and measured in float64."""

import numpy as np
import pytest

from convexformer.problem import PENALTIES, Problem, Squared, TokenDesign, dual
from convexformer.problem.foremost import foremost

EVERYTHING = np.arange(12)


def data(scale=1.0, seed=0, d=5):
    rng = np.random.default_rng(seed)
    X = (scale * rng.normal(size=(80, 12, d))).astype(np.float32)
    return X, X[:, 3].astype(float) @ rng.normal(size=(d, 6)) / scale + rng.normal(size=(80, 6))


@pytest.mark.parametrize("penalty", list(PENALTIES))
@pytest.mark.parametrize("weights", [None, np.linspace(0.5, 2.0, 12)])
@pytest.mark.parametrize("d", [5, 700])
def test_few_groups_and_the_largest_among_them(penalty, weights, d):
    for seed in range(5):
        X, V = data(seed=seed, d=d)
        design, penalises = TokenDesign(X), PENALTIES[penalty](weights)
        norms = penalises.dual_norms(design.correlate(V)).max(axis=1)
        found = foremost(design, penalises, V)
        assert np.argmax(norms) in found
        assert len(found) < 4


def test_all_that_rounding_cannot_tell_apart():
    X, V = data()
    X[:, 7] = X[:, 3] * np.float32(1 + 3e-7)
    assert {3, 7} <= set(foremost(TokenDesign(X), PENALTIES["token"](), V).tolist())


def test_groups_that_cancel_in_float32_are_not_passed_over():
    X, V = np.zeros((3000, 3, 1), np.float32), np.ones((3000, 1))
    X[::2, 0], X[1::2, 0] = 1.0, -1.0  # nothing is left but what rounding may add
    X[0, 1] = 1e-3
    X[0, 2] = 1e-9
    assert foremost(TokenDesign(X), PENALTIES["token"](), V).tolist() == [0, 1]


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_out_of_range_no_group_is_passed_over(scale):
    X, V = data(scale)
    np.testing.assert_array_equal(foremost(TokenDesign(X), PENALTIES["token"](), V), EVERYTHING)


def test_designs_in_float64_and_nothing_to_correlate():
    X, V = data()
    token = PENALTIES["token"]()
    np.testing.assert_array_equal(foremost(TokenDesign(X.astype(float)), token, V), EVERYTHING)
    np.testing.assert_array_equal(foremost(TokenDesign(X), token, 0 * V), EVERYTHING)


@pytest.mark.parametrize("penalty", list(PENALTIES))
def test_beta_max_is_the_same_by_either_way(penalty, monkeypatch):
    X, Y = data()
    weights = np.linspace(1.5, 0.5, 12)
    whole = Problem(TokenDesign(X), Squared(), PENALTIES[penalty](weights), Y).beta_max
    monkeypatch.setattr(dual, "MOST_KEPT", 0)
    assert Problem(
        TokenDesign(X), Squared(), PENALTIES[penalty](weights), Y
    ).beta_max == pytest.approx(whole, rel=1e-13)


def test_tokens_whose_squares_are_lost_are_not_passed_over():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        scale = np.array([1.0] + 39 * [1e-24])  # the penalty's weights make up for it
        base = rng.normal(size=(200, 1, 1))
        X = base * (1 + 1e-7 * rng.normal(size=(200, 40, 1))) * scale[:, None]
        design, penalty = TokenDesign(X.astype(np.float32)), PENALTIES["token"](scale)
        V = base[:, 0] + 0.1 * rng.normal(size=(200, 1))
        assert np.argmax(penalty.dual_norms(design.correlate(V))) in foremost(design, penalty, V)
