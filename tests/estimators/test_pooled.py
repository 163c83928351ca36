"""PooledTokens against the formulas, with and without padding."""

import numpy as np
import pytest
import sklearn
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from convexformer import ConvexAttentionClassifier, PooledTokens


@parametrize_with_checks([PooledTokens()])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_tokens_are_mean_and_log_deviation():
    X = np.random.default_rng(0).normal(size=(20, 5, 3))
    Xp = PooledTokens(epsilon=1e-9).fit_transform(X)
    np.testing.assert_array_equal(Xp[:, :5], X)
    np.testing.assert_allclose(Xp[:, 5], X.mean(axis=1))
    np.testing.assert_allclose(Xp[:, 6], np.log(X.std(axis=1)), atol=1e-6)


def test_padding_is_left_out():
    rng = np.random.default_rng(0)
    X, mask = rng.normal(size=(20, 5, 3)), np.arange(5) < rng.integers(1, 6, size=(20, 1))
    broken = np.where(mask[:, :, None], X, np.nan)
    Xp = PooledTokens().fit(broken, mask=mask).transform(broken, mask=mask)
    for x, real, xp in zip(X, mask, Xp, strict=True):
        np.testing.assert_allclose(xp[5], x[real].mean(axis=0))
        np.testing.assert_allclose(xp[6], 0.5 * np.log(x[real].var(axis=0) + 1e-6))
        assert not np.any(xp[:5][~real])


def test_one_step_is_two_steps_with_padding():
    rng = np.random.default_rng(0)
    X, mask = rng.normal(size=(20, 5, 3)), np.arange(5) < rng.integers(1, 6, size=(20, 1))
    both = PooledTokens().fit(X, mask=mask).transform(X, mask=mask)
    np.testing.assert_array_equal(PooledTokens().fit_transform(X, mask=mask), both)


def test_masks_end_at_pooling_in_a_pipeline():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(70, 5, 3)), np.arange(70) % 2
    mask = np.arange(5) < rng.integers(1, 6, size=(70, 1))
    with sklearn.config_context(enable_metadata_routing=True):
        pooled = PooledTokens().set_fit_request(mask=True).set_transform_request(mask=True)
        model = ConvexAttentionClassifier(0.3).set_fit_request(mask=False)
        routed = make_pipeline(pooled, model).fit(X, y, mask=mask)
        with pytest.raises(ValueError, match="After PooledTokens pass none"):
            make_pipeline(pooled, model.set_fit_request(mask=True)).fit(X, y, mask=mask)
    Xp = PooledTokens().fit_transform(X, mask=mask)
    by_hand = ConvexAttentionClassifier(0.3).fit(Xp, y)
    np.testing.assert_array_equal(routed[-1].coef_, by_hand.coef_)
    real = np.column_stack([mask, np.ones((70, 2), dtype=bool)])
    masked = ConvexAttentionClassifier(0.3).fit(Xp, y, mask=real)
    np.testing.assert_allclose(by_hand.coef_, masked.coef_, atol=1e-12)


@pytest.mark.parametrize("epsilon", [-1, 0, np.nan])
def test_the_logarithm_stays_finite(epsilon):
    X = np.random.default_rng(0).normal(size=(20, 1, 3))
    with pytest.raises(ValueError, match="epsilon must be a positive number"):
        PooledTokens(epsilon).fit(X)
    assert np.isfinite(PooledTokens().fit_transform(X)).all()


def test_flat_tables_stay_flat_and_named():
    X = np.random.default_rng(0).normal(size=(20, 6))
    pooled = PooledTokens(n_tokens=3).fit(X)
    assert pooled.transform(X).shape == (20, 10)
    assert list(pooled.get_feature_names_out()[-4:]) == [
        "mean_0",
        "mean_1",
        "log-std_0",
        "log-std_1",
    ]


def test_a_linear_layer_learns_from_variation():
    rng = np.random.default_rng(0)
    y = np.arange(200) % 2
    X = rng.normal(size=(200, 8, 2)) * (1.0 + y)[:, None, None]
    plain = ConvexAttentionClassifier(0.1).fit(X, y)
    pooled = make_pipeline(PooledTokens(), ConvexAttentionClassifier(0.1)).fit(X, y)
    assert pooled.score(X, y) > 0.9 > plain.score(X, y)
    assert 9 in pooled[-1].tokens_
