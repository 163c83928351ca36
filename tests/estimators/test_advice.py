"""What is said of input that cannot be used, and whether the advice, once followed, helps."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.feature_selection import RFE, SelectFromModel

import convexformer as cf
from convexformer.datasets import one_hot


@pytest.fixture(scope="module")
def X():
    return np.random.default_rng(0).normal(size=(60, 4, 3))


@pytest.fixture(scope="module")
def y(X):
    return X[:, 1, 0] - X[:, 2, 2]


# One sample -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n_tokens", [None, 4])
def test_one_sample_of_tokens_and_channels(X, y, n_tokens):
    model = cf.ConvexAttentionRegressor(n_tokens=n_tokens).fit(X, y)
    with pytest.raises(ValueError, match=r"X has shape \(4, 3\).*one sample as X\[None\]"):
        model.predict(X[0])
    np.testing.assert_allclose(model.predict(X[0][None]), model.predict(X)[:1], rtol=1e-12)


def test_one_sample_of_single_numbers(X, y):
    table = X.reshape(60, 12)
    model = cf.ConvexAttentionRegressor().fit(table, y)
    with pytest.raises(ValueError, match=r"X has shape \(12, 1\).*one sample as X\[None\]"):
        model.predict(table[0][:, None])
    with pytest.raises(ValueError, match=r"one row of a table X\.reshape\(1, -1\)"):
        model.predict(table[0])
    assert model.predict(table[0].reshape(1, -1)).shape == (1,)


def test_a_table_with_one_row_or_one_token_is_no_single_sample():
    X = np.random.default_rng(0).normal(size=(30, 1, 3))
    model = cf.ConvexAttentionRegressor(n_tokens=1).fit(X, X[:, 0, 0])
    assert model.predict(X[:1, 0]).shape == (1,)


# Text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        ["ACGT", "TTGA"] * 30,
        np.array(["ACGT", "TTGA"] * 30),
        np.array(["ACGT", "TTGA"] * 30, dtype=object),
        np.array(["ACGT", "TTGA"] * 30, dtype=np.dtypes.StringDType()),
        pd.Series(["ACGT", "TTGA"] * 30),
        pd.Series(["ACGT", "TTGA"] * 30, dtype=object),
        pd.Series(["ACGT", "TTGA"] * 30, dtype="category"),
    ],
)
def test_sequences_of_letters_are_to_be_encoded(X, y, text):
    words = r"X must hold numbers, got text of shape \(60,\).*convexformer\.datasets\.one_hot"
    with pytest.raises(ValueError, match=words):
        cf.ConvexAttentionRegressor().fit(text, y)
    model = cf.ConvexAttentionRegressor().fit(X, y)
    with pytest.raises(ValueError, match=words):
        model.predict(text)
    assert cf.ConvexAttentionRegressor().fit(one_hot(list(text), list("ACGT")), y).n_tokens_ == 4


@pytest.mark.parametrize("wrap", [np.array, pd.DataFrame])
def test_tables_of_letters_are_to_be_encoded(y, wrap):
    with pytest.raises(ValueError, match=r"X must hold numbers.*'A'.*OneHotEncoder"):
        cf.ConvexAttentionRegressor().fit(wrap([["A", "C"], ["G", "T"]] * 30), y)


@pytest.mark.parametrize("wrap", [np.array, pd.Series])
def test_labels_are_for_a_classifier(X, wrap):
    labels = wrap(["a", "b"] * 30)
    with pytest.raises(ValueError, match=r"y must hold numbers.*ConvexAttentionClassifier"):
        cf.ConvexAttentionRegressor().fit(X, labels)
    assert cf.ConvexAttentionClassifier().fit(X, labels).classes_.tolist() == ["a", "b"]


# More than three axes -------------------------------------------------------------------------


def test_images_become_tokens(y):
    images = np.random.default_rng(0).normal(size=(60, 5, 6, 3))
    with pytest.raises(ValueError, match=r"got shape \(60, 5, 6, 3\).*X\.reshape\(len\(X\), -1"):
        cf.ConvexAttentionRegressor().fit(images, y)
    assert cf.ConvexAttentionRegressor().fit(images.reshape(len(images), -1, 3), y).n_tokens_ == 30


# Selection of columns -------------------------------------------------------------------------


@pytest.mark.parametrize("threshold", [None, 1e-12, "median"])
def test_select_from_model_selects_whole_tokens(X, y, threshold):
    model = cf.ConvexAttentionClassifier(0.3, n_tokens=4)
    select = SelectFromModel(
        model, importance_getter="feature_importances_", threshold=threshold
    ).fit(X.reshape(60, 12), y > 0)
    assert select.get_support(indices=True).tolist() == [3, 4, 5, 6, 7, 8]
    chosen = select.transform(X.reshape(60, 12)).reshape(60, 2, 3)
    np.testing.assert_array_equal(chosen, X[:, 1:3])


def test_recursive_elimination(X, y):
    model = cf.ConvexAttentionRegressor(0.05, n_tokens=None)
    rfe = RFE(model, n_features_to_select=2, importance_getter="feature_importances_")
    assert rfe.fit(X.reshape(60, 12), y).get_support(indices=True).tolist() == [3, 8]


@pytest.mark.parametrize(
    "model",
    [
        cf.ConvexAttentionClassifier(0.3),
        cf.ConvexTransformerClassifier(0.3, n_gates=3, random_state=0),
    ],
)
@pytest.mark.parametrize("classes", [2, 3])
def test_importances_are_norms_of_tokens(X, y, model, classes):
    model.fit(X, np.digitize(y, [0] if classes == 2 else [-0.5, 0.5]))
    assert model.feature_importances_.shape == (model.n_features_in_,)
    by_token = model.feature_importances_.reshape(4, 3)
    assert np.all(by_token == by_token[:, :1])
    squares = np.square(model.coef_).sum(
        axis=tuple(k for k in range(model.coef_.ndim) if k != model.coef_.ndim - 2)
    )
    np.testing.assert_allclose(by_token[:, 0], np.sqrt(squares), rtol=1e-12)


def test_offsets_have_no_columns(X):
    model = cf.ConvexAttentionRegressor(0.3, tokens=cf.Offsets(-1, 1)).fit(X, X[:, :, 0])
    assert not hasattr(model, "feature_importances_")


# The empty model ------------------------------------------------------------------------------


@pytest.mark.parametrize("selection", ["best", "one-standard-error"])
def test_cross_validation_that_chooses_no_token_warns(X, selection):
    noise = np.random.default_rng(0).normal(size=60)
    with pytest.warns(UserWarning, match=r"chose the empty model.*TokenScaler.*samples") as told:
        model = cf.ConvexAttentionRegressorCV(n_betas=8, eps=0.1, cv=4, selection=selection).fit(
            X, noise
        )
    assert len(model.tokens_) == 0
    text = str(next(w.message for w in told if "empty" in str(w.message)))
    assert ("selection='best'" in text) == (selection != "best")


def test_cross_validation_that_chooses_tokens_does_not_warn(X, y):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="The chosen beta")
        model = cf.ConvexAttentionRegressorCV(n_betas=8, cv=4).fit(X, y)
    assert len(model.tokens_)


# Text that spells numbers, complex numbers ----------------------------------------------------


@pytest.mark.parametrize(
    "wrap", [lambda a: a.astype(str), lambda a: a.astype("S"), lambda a: a.astype(str).tolist()]
)
def test_text_that_spells_numbers_is_no_number(X, y, wrap):
    for tokens in (X, X.reshape(60, 12)):
        with pytest.raises(ValueError, match=r"X must hold numbers.*asarray\(X, float\)"):
            cf.ConvexAttentionRegressor().fit(wrap(tokens), y)
    with pytest.raises(ValueError, match=r"y must hold numbers.*asarray\(y, float\)"):
        cf.ConvexAttentionRegressor().fit(X, wrap(y))
    with pytest.raises(ValueError, match=r"y must hold numbers.*asarray\(y, float\)"):
        cf.ConvexSequenceRegressor().fit(X, wrap(X))


def test_a_table_with_one_column_of_text(X, y):
    frame = pd.DataFrame(X[:, :, 0]).astype({2: str})
    with pytest.raises(ValueError, match="X must hold numbers"):
        cf.ConvexAttentionRegressor().fit(frame, y)


def test_text_is_shown_as_it_is(X):
    with pytest.raises(ValueError, match=r"such as 'neg'\. Encode"):
        cf.ConvexAttentionRegressor().fit(X, np.array(["neg", "pos"] * 30))


def test_one_sample_warns(X, y):
    with pytest.warns(UserWarning, match="one sample cannot tell") as told:
        cf.ConvexAttentionRegressor().fit(X[:1], y[:1])
    assert told[0].filename == __file__
