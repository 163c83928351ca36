"""TokenScaler: statistics, padding, dtypes, inverse."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import StandardScaler

from convexformer import TokenScaler


@pytest.fixture
def X():
    rng = np.random.default_rng(0)
    return rng.normal(size=(50, 4, 3)) * rng.uniform(0.1, 9, size=(4, 3)) + rng.normal(size=(4, 3))


@pytest.mark.parametrize(("per", "axes"), [("channel", (0, 1)), ("token-channel", 0)])
def test_zero_mean_unit_variance(X, per, axes):
    scaler = TokenScaler(per).fit(X)
    Xs = scaler.transform(X)
    np.testing.assert_allclose(Xs.mean(axis=axes), 0, atol=1e-12)
    np.testing.assert_allclose(Xs.std(axis=axes), 1)
    np.testing.assert_allclose(scaler.inverse_transform(Xs), X)
    assert scaler.mean_.shape == scaler.scale_.shape == ((3,) if per == "channel" else (4, 3))


def test_token_channel_on_a_table_is_scikit_learns_scaler(X):
    flat = X.reshape(50, 12)
    ours = TokenScaler("token-channel", n_tokens=4).fit_transform(flat)
    np.testing.assert_allclose(ours, StandardScaler().fit_transform(flat))
    no_tokens = TokenScaler("token-channel").fit_transform(flat)
    np.testing.assert_allclose(no_tokens, ours)


@pytest.mark.parametrize("per", ["channel", "token-channel"])
def test_padding_counts_for_nothing(X, per):
    mask = np.random.default_rng(1).random((50, 4)) > 0.4
    mask[:, 2] = False  # a token that is never real
    padded = np.where(mask[:, :, None], X, np.nan)
    padded[~mask & (np.arange(4) == 1)] = 1e300
    scaler = TokenScaler(per)
    Xs = scaler.fit_transform(padded, mask=mask)
    assert not np.any(Xs[~mask])
    real = X[mask] if per == "channel" else X[mask[:, 0], 0]
    mean = scaler.mean_ if per == "channel" else scaler.mean_[0]
    scale = scaler.scale_ if per == "channel" else scaler.scale_[0]
    np.testing.assert_allclose(mean, real.mean(axis=0))
    np.testing.assert_allclose(scale, real.std(axis=0))
    if per == "token-channel":
        np.testing.assert_array_equal(scaler.mean_[2], 0)
        np.testing.assert_array_equal(scaler.scale_[2], 1)
    back = scaler.inverse_transform(Xs, mask=mask)
    np.testing.assert_allclose(back[mask], X[mask])
    with pytest.raises(ValueError, match=r"NaN.*mask"):
        scaler.transform(padded)


def test_constant_channels_are_left_unscaled(X):
    X[:, :, 1] = 0.1  # not exact in binary: its mean may round
    scaler = TokenScaler().fit(X)
    assert scaler.scale_[1] == 1
    np.testing.assert_allclose(scaler.transform(X)[:, :, 1], 0, atol=1e-15)
    assert TokenScaler("token-channel").fit(X[:1]).scale_.tolist() == np.ones((4, 3)).tolist()


def test_parts_can_be_left_out(X):
    mean_only = TokenScaler(with_std=False).fit_transform(X)
    np.testing.assert_allclose(mean_only, X - X.mean(axis=(0, 1)))
    std_only = TokenScaler(with_mean=False).fit_transform(X)
    np.testing.assert_allclose(std_only, X / X.std(axis=(0, 1)))


def test_float32_stays_float32_and_is_accurate(X):
    far = (X + 1e4).astype(np.float32)
    scaler = TokenScaler().fit(far)
    np.testing.assert_allclose(scaler.scale_, far.astype(np.float64).std(axis=(0, 1)), rtol=1e-10)
    assert scaler.transform(far).dtype == np.float32
    assert scaler.transform(X).dtype == np.float64


def test_names_go_through(X):
    frame = pd.DataFrame(X.reshape(50, 12), columns=[f"c{j}" for j in range(12)])
    scaler = TokenScaler(n_tokens=4).set_output(transform="pandas")
    assert list(scaler.fit_transform(frame).columns) == list(frame.columns)


def test_memory_is_the_result_and_blocks(monkeypatch):
    monkeypatch.setattr("convexformer.estimators._reading.BLOCK_ENTRIES", 1 << 14)
    X = np.random.default_rng(0).normal(size=(2000, 40, 20)).astype(np.float32)
    scaler = TokenScaler()
    tracemalloc.start()
    scaler.fit(X)
    fit_peak = tracemalloc.get_traced_memory()[1]
    scaler.transform(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert fit_peak < X.nbytes / 5
    assert peak < 1.2 * X.nbytes


@pytest.mark.parametrize(
    "params", [{"per": "sample"}, {"with_mean": 2}, {"with_std": "no"}, {"n_tokens": 0}]
)
def test_bad_parameters(X, params):
    with pytest.raises(ValueError, match=next(iter(params))):
        TokenScaler(**params).fit(X)


def test_other_shape(X):
    with pytest.raises(ValueError, match="fitted on 4 tokens of 3 channels"):
        TokenScaler().fit(X).transform(X[:, :2])


def test_columns_of_a_table_are_scaled_one_by_one():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 3)) * [1.0, 100.0, 1e4] + [0.0, 5.0, -3.0]
    scaler = TokenScaler()
    scaled = scaler.fit_transform(X)
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(scaled.std(axis=0), 1)
    assert scaler.scale_.shape == (3, 1)
    np.testing.assert_allclose(scaler.inverse_transform(scaled), X)
    assert TokenScaler(n_tokens=3).fit(X).scale_.shape == (1,)  # asked for: tokens share channels
