"""What may be passed, what may not, and that X is left alone."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from convexformer import (
    ConvexAttentionClassifier,
    ConvexAttentionClassifierCV,
    ConvexAttentionRegressor,
    TokenScaler,
)


@pytest.fixture(scope="module")
def X():
    return np.random.default_rng(0).normal(size=(40, 4, 3))


@pytest.fixture(scope="module")
def y(X):
    return X[:, 1, 0] - X[:, 2, 2]


class Tensor:
    """What a PyTorch tensor looks like to us."""

    def __init__(self, data, steps=()):
        self.data, self.steps, self.shape = data, steps, data.shape

    def detach(self):
        return Tensor(self.data, (*self.steps, "detach"))

    def cpu(self):
        return Tensor(self.data, (*self.steps, "cpu"))

    def numpy(self):
        if self.steps != ("detach", "cpu"):
            raise RuntimeError("Can't call numpy() on a tensor that requires grad.")
        return self.data

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("read me by numpy()")


# What may be passed -----------------------------------------------------------------------------


def test_flat_input_is_cut_token_by_token(X, y):
    flat = X.reshape(40, 12)
    by_tokens = ConvexAttentionRegressor(n_tokens=4).fit(flat, y)
    reference = ConvexAttentionRegressor().fit(X, y)
    np.testing.assert_array_equal(by_tokens.coef_, reference.coef_)
    np.testing.assert_array_equal(by_tokens.predict(flat), reference.predict(X))


def test_flat_input_without_n_tokens_has_a_token_per_column(X, y):
    flat = X.reshape(40, 12)
    model = ConvexAttentionRegressor(beta=0.4).fit(flat, y)
    assert model.coef_.shape == (1, 12, 1)
    np.testing.assert_array_equal(
        model.coef_, ConvexAttentionRegressor(beta=0.4).fit(flat[:, :, None], y).coef_
    )
    assert {3, 8} <= set(model.tokens_)


def test_pandas_names_columns(X, y):
    frame = pd.DataFrame(X.reshape(40, 12), columns=[f"c{j}" for j in range(12)])
    model = ConvexAttentionRegressor(n_tokens=4).fit(frame, pd.Series(y))
    assert model.feature_names_in_.tolist() == list(frame.columns)
    np.testing.assert_allclose(
        model.predict(frame), ConvexAttentionRegressor().fit(X, y).predict(X)
    )
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"c0": "other"}))
    model.fit(X, y)  # 3-D input has no names
    assert not hasattr(model, "feature_names_in_")


def test_tensors(X, y):
    mask = np.ones((40, 4), dtype=np.int64)
    model = ConvexAttentionRegressor().fit(
        Tensor(X), Tensor(y), sample_weight=Tensor(np.ones(40)), mask=Tensor(mask)
    )
    np.testing.assert_array_equal(
        model.coef_, ConvexAttentionRegressor().fit(X, y, mask=mask).coef_
    )
    np.testing.assert_array_equal(model.predict(Tensor(X)), model.predict(X))
    assert TokenScaler().fit_transform(Tensor(X)).shape == X.shape


def test_tensor_without_numpy_counterpart(X, y):
    class BFloat16(Tensor):
        def numpy(self):
            raise TypeError("Got unsupported ScalarType BFloat16")

        detach = cpu = lambda self: self

    with pytest.raises(ValueError, match=r"X is a tensor.*X\.float\(\)"):
        ConvexAttentionRegressor().fit(BFloat16(X), y)


def test_lists_and_integers(y):
    X = np.random.default_rng(1).integers(0, 3, size=(40, 4, 3))
    from_list = ConvexAttentionRegressor().fit(X.tolist(), y.tolist())
    np.testing.assert_array_equal(
        from_list.coef_, ConvexAttentionRegressor().fit(X.astype(float), y).coef_
    )


def test_float32_is_close_to_float64_and_certified(X, y):
    single = ConvexAttentionRegressor(tol=1e-9).fit(X.astype(np.float32), y)
    double = ConvexAttentionRegressor(tol=1e-9).fit(X, y)
    assert single.certificate_.relative_gap <= 1e-9
    assert single.coef_.dtype == np.float64
    np.testing.assert_allclose(single.coef_, double.coef_, atol=1e-4)
    assert np.any(single.coef_ != double.coef_)


@pytest.mark.parametrize("layout", ["strided", "fortran", "readonly", "memmap"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_layout_is_read_and_left_alone(X, y, layout, dtype, tmp_path):
    plain = X.astype(dtype)
    if layout == "strided":
        odd = np.zeros((80, 4, 6), dtype)[::2, :, ::2]
        odd[...] = plain
    elif layout == "fortran":
        odd = np.asfortranarray(plain)
    elif layout == "readonly":
        odd = plain.copy()
        odd.flags.writeable = False
    else:
        plain.tofile(tmp_path / "X.bin")
        odd = np.memmap(tmp_path / "X.bin", dtype, "r", shape=X.shape)
    model = ConvexAttentionRegressor().fit(odd, y)
    reference = ConvexAttentionRegressor().fit(plain, y)
    np.testing.assert_allclose(model.coef_, reference.coef_, atol=1e-6)
    np.testing.assert_allclose(model.predict(odd), reference.predict(plain), atol=1e-5)
    np.testing.assert_array_equal(odd, plain)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("flat", [False, True])
def test_large_input_is_not_copied(dtype, flat, monkeypatch):
    """Reading X, its mask and its NaNs costs blocks, whatever the size of X."""
    monkeypatch.setattr("convexformer.estimators._reading.BLOCK_ENTRIES", 1 << 14)
    X = np.random.default_rng(0).normal(size=(2000, 40, 20)).astype(dtype)  # 6 or 13 MB
    X[:, 7] = np.nan
    mask = np.ones(X.shape[:2], bool)
    mask[:, 7] = False
    given = X.reshape(2000, -1) if flat else X
    model = ConvexAttentionRegressor(n_tokens=40 if flat else None)
    tracemalloc.start()
    data = model._read(given, X[:, 0, 0], None, mask)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.shares_memory(data.samples.X, X)
    assert data.samples.X.dtype == dtype
    assert peak < X.nbytes / 10


# What may not ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nan_and_inf_are_located(X, y, bad, dtype):
    X = X.astype(dtype)
    X[17, 2, 1] = bad
    words = f"NaN or infinity.*{bad} at sample 17, token 2, channel 1.*mask"
    with pytest.raises(ValueError, match=words):
        ConvexAttentionRegressor().fit(X, y)
    model = ConvexAttentionRegressor().fit(X[18:], y[18:])
    with pytest.raises(ValueError, match=words):
        model.predict(X)
    mask = np.ones((40, 4), bool)
    with pytest.raises(ValueError, match=words):
        model.predict(X, mask=mask)
    mask[17, 2] = False
    assert np.all(np.isfinite(model.predict(X, mask=mask)))


def test_nan_is_located_in_later_blocks(X, y, monkeypatch):
    monkeypatch.setattr("convexformer.estimators._reading.BLOCK_ENTRIES", 24)
    X = X.copy()
    X[31, 3, 0] = np.nan
    with pytest.raises(ValueError, match="sample 31, token 3, channel 0"):
        ConvexAttentionRegressor().fit(X, y)
    mask = np.ones((40, 4), bool)
    mask[31, 3] = False
    ConvexAttentionRegressor().fit(X, y, mask=mask)
    with pytest.raises(ValueError, match="sample 31, token 3, channel 0"):
        ConvexAttentionRegressor().fit(X, y, mask=mask[::-1])


def test_huge_finite_numbers_pass_the_check(y):
    """Their sum overflows, they do not."""
    X = np.full((40, 4, 3), 3e38, dtype=np.float32)
    assert ConvexAttentionRegressor()._read(X, y, None, None).samples.X is X


@pytest.mark.parametrize(
    ("reshape", "words"),
    [
        (lambda X: X[:, 0, 0], "got shape .40,.*Reshape your data"),
        (lambda X: X[None], "got shape .1, 40, 4, 3"),
        (lambda X: X[0, 0, 0], "shape"),
        (lambda X: X[:0], "0 sample"),
        (lambda X: X[:, :0], "empty"),
        (lambda X: X[:, :, :0], "empty"),
        (lambda X: X.reshape(40, 12)[:, :0], "0 feature"),
        (lambda X: [x[: 1 + i % 2].tolist() for i, x in enumerate(X)], "ragged.*Pad.*mask"),
        (lambda X: [x[: 1 + i % 2] for i, x in enumerate(X)], "ragged.*Pad.*mask"),
        (lambda X: X.astype(str).astype(object) + "a", "X must hold numbers.*one-hot"),
        (lambda X: ["ACDEF"] * len(X), "X must hold numbers, got text.*one-hot"),
        (lambda X: X.astype(complex), "Complex"),
        (lambda X: X[:-1], "inconsistent.*39.*40"),
    ],
)
def test_bad_X(X, y, reshape, words):
    with pytest.raises(ValueError, match=words):
        ConvexAttentionRegressor().fit(reshape(X), y)


def test_sparse_X_is_refused(X, y):
    with pytest.raises(TypeError, match="dense"):
        ConvexAttentionRegressor().fit(sparse.csr_array(X.reshape(40, 12)), y)


def test_n_tokens_must_fit(X, y):
    with pytest.raises(ValueError, match="12 columns cannot be cut into n_tokens=5"):
        ConvexAttentionRegressor(n_tokens=5).fit(X.reshape(40, 12), y)
    with pytest.raises(ValueError, match=r"4 tokens.*n_tokens=3"):
        ConvexAttentionRegressor(n_tokens=3).fit(X, y)
    for bad in (0, 2.5, True):
        with pytest.raises(ValueError, match="n_tokens must be a whole number"):
            ConvexAttentionRegressor(n_tokens=bad).fit(X, y)


def test_other_shape_at_predict(X, y):
    model = ConvexAttentionRegressor().fit(X, y)
    for other in (X[:, :3], X[:, :, :2], X.transpose(0, 2, 1)):
        with pytest.raises(ValueError, match="fitted on 4 tokens of 3 channels"):
            model.predict(other)
    with pytest.raises(ValueError, match="fitted on 4 tokens of 3 channels"):
        model.predict(X.reshape(40, 12))  # a column is no token of this model
    with pytest.raises(ValueError, match="reshape a table to"):
        model.predict(X.reshape(40, 12)[:, :6])


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (np.ones((40, 3), bool), r"shape.*\(40, 4\).*, got \(40, 3\)"),
        (np.ones((39, 4), bool), r"\(39, 4\)"),
        (np.ones((40, 4, 3), bool), r"\(40, 4, 3\)"),
        (np.zeros((40, 4), bool), "False everywhere: there is no real token"),
        (np.full((40, 4), 0.5), "booleans or 0 and 1"),
        (np.full((40, 4), "yes"), "booleans or 0 and 1"),
    ],
)
def test_bad_mask(X, y, mask, words):
    with pytest.raises(ValueError, match=words):
        ConvexAttentionRegressor().fit(X, y, mask=mask)


@pytest.mark.parametrize("kind", [ConvexAttentionRegressor, ConvexAttentionClassifier])
def test_targets_of_positions_have_other_estimators(X, kind):
    with pytest.raises(ValueError, match=r"\(40, 4, 3\).*ConvexSequenceRegressor, or tokens=Off"):
        kind().fit(X, X)


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        (np.ones(39), r"shape \(40,\), got \(39,\)"),
        (np.ones((40, 1)), "shape"),
        (2.0, "shape"),
        (-np.ones(40), "Negative values in data passed to sample_weight"),
        (np.zeros(40), "zero for every sample"),
        (np.full(40, np.nan), "NaN"),
    ],
)
def test_bad_sample_weight(X, y, weight, words):
    with pytest.raises(ValueError, match=words):
        ConvexAttentionRegressor().fit(X, y, sample_weight=weight)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda y: None, "requires y"),
        (lambda y: np.where(np.arange(40) == 3, np.nan, y), "NaN"),
        (lambda y: np.where(np.arange(40) == 3, np.inf, y), "infinity"),
        (lambda y: np.where(y > 0, "a", "b"), "y must hold numbers.*classifier"),
        (lambda y: np.zeros((40, 2, 2)), "one vector of them, per sample"),
    ],
)
def test_bad_regression_target(X, y, edit, words):
    with pytest.raises(ValueError, match=words):
        ConvexAttentionRegressor().fit(X, edit(y))


def test_poisson_targets(X, y):
    with pytest.raises(ValueError, match=r"Poisson targets must not be negative"):
        ConvexAttentionRegressor(loss="poisson").fit(X, y)
    with pytest.raises(ValueError, match=r"zero.*without an intercept"):
        ConvexAttentionRegressor(loss="poisson").fit(X, np.zeros(40))


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda y: np.ones(40, int), "only one class"),
        (lambda y: y, "continuous"),
        (lambda y: np.where(np.arange(40) == 3, np.nan, y > 0), "NaN"),
        (lambda y: np.column_stack([y > 0, np.arange(40) % 3]), "should be a 1d array"),
        (lambda y: np.column_stack([y > 0, y < 0]) * 2 - 1, "indicator matrix"),
        (
            lambda y: np.column_stack([y > 0, y < np.inf]).astype(int),
            r"Output 1 has samples of one class",
        ),
        (lambda y: [None] * 40, "label type|NaN"),
    ],
)
def test_bad_classes(X, y, edit, words):
    with pytest.raises(ValueError, match=words):
        ConvexAttentionClassifier().fit(X, edit(y))


def test_class_without_weight(X, y):
    label = np.digitize(y, [-0.5, 0.5])
    with pytest.raises(ValueError, match=r"Class 2 .*has no sample of positive weight"):
        ConvexAttentionClassifier().fit(X, label, sample_weight=(label < 2).astype(float))


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"beta_scale": "log"}, "'relative' or 'absolute'; got 'log'"),
        ({"penalty": "ridge"}, "'token-output', 'token' or 'nuclear'"),
        ({"loss": "absolute"}, "'squared', 'huber' or 'poisson'"),
        ({"loss": "huber", "huber_delta": 0}, "huber_delta"),
        ({"fit_intercept": "no"}, "True or False"),
        ({"warm_start": 3}, "True or False"),
        ({"tol": 0}, "tol must be a positive number; got 0"),
        ({"tol": -1e-6}, "tol"),
        ({"max_iter": 0}, "max_iter"),
        ({"max_iter": 10.5}, "max_iter"),
        ({"max_time": 0}, "max_time.*seconds"),
        ({"token_weights": [1, 1, 1]}, r"shape \(4,\); got \[1, 1, 1\]"),
        ({"token_weights": [1, 1, 1, 0]}, "positive"),
    ],
)
def test_bad_parameters(X, y, params, words):
    with pytest.raises(ValueError, match=words):
        ConvexAttentionRegressor(**params).fit(X, y)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"betas": [0.1, 0.0]}, "vector of positive finite fractions"),
        ({"betas": [0.1, np.nan]}, "positive finite"),
        ({"betas": []}, "vector"),
        ({"betas": 0.1}, "vector"),
        ({"n_betas": 0}, "n_betas"),
        ({"eps": 1.0}, "eps must be below 1"),
        ({"eps": 0}, "eps"),
        ({"selection": "one-se"}, "'best' or 'one-standard-error'"),
        ({"scoring": ["accuracy"]}, "scoring"),
        ({"scoring": "acuracy"}, "scoring"),
    ],
)
def test_bad_cv_parameters(X, y, params, words):
    with pytest.raises(ValueError, match=words):
        ConvexAttentionClassifierCV(**params).fit(X, y > 0)


def test_flattened_input_of_a_3d_model_is_named():
    X = np.random.default_rng(0).normal(size=(20, 4, 3))
    model = ConvexAttentionRegressor().fit(X, X[:, 0, 0])
    with pytest.raises(ValueError, match=r"reshape a table to \(N, 4, 3\), or fit with n_tokens=4"):
        model.predict(X.reshape(20, 12))
    with pytest.raises(ValueError, match=r"one sample as X\[None\]"):
        model.predict(X[0])
    with pytest.raises(ValueError, match=r"X\.reshape\(1, -1\).*channels X\[None\]"):
        model.predict(X[0, 0])
    again = ConvexAttentionRegressor(n_tokens=4).fit(X, X[:, 0, 0])
    np.testing.assert_array_equal(again.predict(X.reshape(20, 12)), model.predict(X))


def test_one_class_is_named_without_numpy():
    with pytest.raises(ValueError, match=r"only one class, 2\.0:"):
        ConvexAttentionClassifier().fit(np.eye(3), np.full(3, 2.0))
