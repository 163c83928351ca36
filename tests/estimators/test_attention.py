"""Fits, tasks, weights and predictions of the two estimators with a given beta."""

import copy
import pickle

import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from convexformer import (
    Certificate,
    ConvexAttentionClassifier,
    ConvexAttentionRegressor,
    beta_max,
)
from convexformer.problem import (
    Logistic,
    Nuclear,
    Problem,
    Softmax,
    Squared,
    Token,
    TokenDesign,
    TokenOutput,
)

TIGHT = {"tol": 1e-10}


@pytest.fixture(scope="module")
def X():
    return np.random.default_rng(0).normal(size=(60, 5, 3))


@pytest.fixture(scope="module")
def y(X):
    return 2 * X[:, 1, 0] - X[:, 3, 2] + 0.3 * np.random.default_rng(1).normal(size=len(X)) + 4


@pytest.fixture(scope="module")
def labels(X):
    scores = X[:, 0] @ np.diag([2.0, 2.0, 2.0]) + np.random.default_rng(2).gumbel(size=(len(X), 3))
    return np.array(["no", "maybe", "yes"])[np.argmax(scores, axis=1)]


def objective(model, loss, penalty, X, Y, beta, weight=None):
    """P at the model's coefficients, from the problem alone."""
    problem = Problem(TokenDesign(X), loss, penalty, Y, sample_weight=weight)
    return problem.certificate(model.coef_.transpose(1, 2, 0), model.intercept_, beta)


# Optimality and attributes ---------------------------------------------------------------------


def test_regressor_attributes(X, y):
    model = ConvexAttentionRegressor(beta=0.3).fit(X, y)
    assert model.coef_.shape == (1, 5, 3)
    assert model.intercept_.shape == (1,)
    assert isinstance(model.certificate_, Certificate)
    assert model.certificate_.relative_gap <= 1e-6
    assert model.tokens_.tolist() == [1, 3]
    np.testing.assert_allclose(model.token_norms_, np.linalg.norm(model.coef_[0], axis=1))
    assert (model.n_tokens_, model.n_channels_, model.n_features_in_) == (5, 3, 15)
    assert model.beta_ == pytest.approx(0.3 * model.beta_max_)
    assert model.beta_max_ == pytest.approx(beta_max(ConvexAttentionRegressor(), X, y))
    assert model.trace_[-1].relative_gap <= 1e-6
    assert model.n_iter_ >= 1
    expected = np.einsum("ikd,kd->i", X, model.coef_[0]) + model.intercept_[0]
    np.testing.assert_allclose(model.predict(X), expected, rtol=1e-12)
    assert model.score(X, y) > 0.5


def test_certificate_is_of_the_stated_problem(X, y):
    model = ConvexAttentionRegressor(beta=0.1).fit(X, y)
    again = objective(model, Squared(), TokenOutput(), X, y[:, None], model.beta_)
    assert again.primal == pytest.approx(model.certificate_.primal, rel=1e-12)
    assert again.relative_gap <= 1e-6


def test_binary_is_logistic_with_one_row(X, labels):
    y = labels == "yes"
    model = ConvexAttentionClassifier(beta=0.1).fit(X, y)
    assert model.coef_.shape == (1, 5, 3)
    assert model.classes_.tolist() == [False, True]
    again = objective(
        model, Logistic(), TokenOutput(), X, np.where(y, 1.0, -1.0)[:, None], model.beta_
    )
    assert again.relative_gap <= 1e-6
    f = model.decision_function(X)
    assert f.shape == (60,)
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], expit(f))
    np.testing.assert_array_equal(model.predict(X), f > 0)


@pytest.mark.parametrize(("penalty", "kind"), [("token-output", TokenOutput), ("token", Token)])
def test_multiclass_is_joint_softmax(X, labels, penalty, kind):
    model = ConvexAttentionClassifier(beta=0.4, penalty=penalty).fit(X, labels)
    assert model.classes_.tolist() == ["maybe", "no", "yes"]
    Y = (labels[:, None] == model.classes_).astype(float)
    assert objective(model, Softmax(), kind(), X, Y, model.beta_).relative_gap <= 1e-6
    F = model.decision_function(X)
    assert F.shape == (60, 3)
    np.testing.assert_allclose(model.predict_proba(X), softmax(F, axis=1))
    np.testing.assert_array_equal(model.predict(X), model.classes_[F.argmax(axis=1)])
    assert model.token_norms_.shape == (3, 5)
    if penalty == "token":  # a token is used by all classes or by none
        used = model.token_norms_ > 0
        assert np.array_equal(np.any(used, axis=0), np.all(used, axis=0))
        assert not np.all(used)


def test_multilabel_is_one_logistic_per_label(X):
    Y = (X[:, :3, 0] + 0.5 * X[:, 1:4, 1] > 0).astype(int)
    model = ConvexAttentionClassifier(beta=0.05, beta_scale="absolute", **TIGHT).fit(X, Y)
    assert model.coef_.shape == (3, 5, 3)
    predicted = model.predict(X)
    assert predicted.shape == Y.shape
    assert set(np.unique(predicted)) <= {0, 1}
    np.testing.assert_allclose(model.predict_proba(X), expit(model.decision_function(X)))
    alone = ConvexAttentionClassifier(beta=0.05, beta_scale="absolute", **TIGHT).fit(X, Y[:, 1])
    np.testing.assert_allclose(model.coef_[1], alone.coef_[0], atol=1e-4)
    assert model.score(X, Y) == np.mean(np.all(predicted == Y, axis=1))


def test_log_probabilities_stay_finite(X, labels):
    for y in (labels, labels == "yes"):
        model = ConvexAttentionClassifier(beta=0.5).fit(X, y)
        model.coef_ = model.coef_ * 1e5
        log_p = model.predict_log_proba(X)
        assert np.all(np.isfinite(log_p))
        assert log_p.min() < -1e3


@pytest.mark.parametrize("loss", ["squared", "huber", "poisson"])
@pytest.mark.parametrize("penalty", ["token-output", "token"])
def test_several_outputs(X, y, loss, penalty):
    Y = np.column_stack([np.round(np.abs(y)), np.round(np.abs(X[:, 2, 0] * 3)), np.arange(60) % 4])
    model = ConvexAttentionRegressor(beta=0.2, loss=loss, penalty=penalty).fit(X, Y)
    assert model.coef_.shape == (3, 5, 3)
    assert model.predict(X).shape == (60, 3)
    assert model.certificate_.relative_gap <= 1e-6
    if loss == "poisson":
        assert np.all(model.predict(X) > 0)
        scores = np.einsum("ikd,ckd->ic", X, model.coef_) + model.intercept_
        np.testing.assert_allclose(model.predict(X), np.exp(scores))


def test_column_targets_keep_their_shape(X, y):
    column = ConvexAttentionRegressor(beta=0.2).fit(X, y[:, None]).predict(X)
    assert column.shape == (60, 1)
    np.testing.assert_array_equal(
        column[:, 0], ConvexAttentionRegressor(beta=0.2).fit(X, y).predict(X)
    )


# beta ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [1.0, 1.5, 1e6])
def test_no_token_from_beta_max_on(X, y, beta):
    model = ConvexAttentionRegressor(beta=beta).fit(X, y)
    assert not np.any(model.coef_)
    assert len(model.tokens_) == 0
    np.testing.assert_allclose(model.predict(X), y.mean())
    assert abs(model.certificate_.relative_gap) <= 1e-12


def test_some_token_just_below_beta_max(X, y):
    assert len(ConvexAttentionRegressor(beta=0.999).fit(X, y).tokens_) == 1


def test_absolute_and_relative_beta_agree(X, y):
    relative = ConvexAttentionRegressor(beta=0.25).fit(X, y)
    absolute = ConvexAttentionRegressor(beta=relative.beta_, beta_scale="absolute").fit(X, y)
    np.testing.assert_array_equal(relative.coef_, absolute.coef_)


@pytest.mark.parametrize("case", ["constant y", "zero X", "one sample"])
def test_beta_max_zero_gives_the_null_model(X, y, case):
    X = np.zeros_like(X) if case == "zero X" else X
    y = np.full(60, 3.5) if case == "constant y" else y
    if case == "one sample":
        X, y = X[:1], y[:1]
    model = ConvexAttentionRegressor(beta=0.1).fit(X, y)
    assert model.beta_max_ == 0
    assert not np.any(model.coef_)
    assert model.certificate_.gap == pytest.approx(0, abs=1e-12 * max(1, model.certificate_.primal))


@pytest.mark.parametrize("beta", [0, 0.0, -0.1, np.nan, np.inf, "0.1", None, True])
def test_bad_beta(X, y, beta):
    with pytest.raises(ValueError, match="beta"):
        ConvexAttentionRegressor(beta=beta).fit(X, y)


def test_beta_zero_says_what_to_do(X, y):
    with pytest.raises(ValueError, match=r"removes the penalty and with it the certificate.*1e-4"):
        ConvexAttentionRegressor(beta=0).fit(X, y)


# Weights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["squared", "huber", "poisson"])
def test_weights_equal_repetition(X, y, loss):
    y = np.round(np.abs(y))
    weight = np.random.default_rng(3).integers(0, 4, size=60)
    model = ConvexAttentionRegressor(beta=0.2, loss=loss, **TIGHT)
    weighted = clone(model).fit(X, y, sample_weight=weight)
    repeated = clone(model).fit(np.repeat(X, weight, axis=0), np.repeat(y, weight))
    assert weighted.beta_max_ == pytest.approx(repeated.beta_max_, rel=1e-10)
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=1e-4)
    np.testing.assert_allclose(weighted.intercept_, repeated.intercept_, atol=1e-4)


@pytest.mark.parametrize("class_weight", [None, "balanced"])
def test_zero_weights_equal_removal(X, labels, class_weight):
    weight = (np.arange(60) % 3 > 0).astype(float)
    model = ConvexAttentionClassifier(beta=0.2, class_weight=class_weight, **TIGHT)
    weighted = clone(model).fit(X, labels, sample_weight=weight)
    removed = clone(model).fit(X[weight > 0], labels[weight > 0])
    assert weighted.beta_max_ == pytest.approx(removed.beta_max_, rel=1e-10)
    np.testing.assert_allclose(weighted.coef_, removed.coef_, atol=1e-4)


def test_class_weight_is_sample_weight(X, labels):
    weights = {"yes": 3.0, "no": 0.5}
    by_class = ConvexAttentionClassifier(class_weight=weights).fit(X, labels)
    weight = np.array([weights.get(label, 1.0) for label in labels])
    by_sample = ConvexAttentionClassifier().fit(X, labels, sample_weight=weight)
    np.testing.assert_array_equal(by_class.coef_, by_sample.coef_)


def test_balanced_gives_classes_equal_weight(X, labels):
    counts = {label: np.sum(labels == label) for label in np.unique(labels)}
    assert len(set(counts.values())) > 1
    given = {label: 60 / (3 * count) for label, count in counts.items()}
    balanced = ConvexAttentionClassifier(class_weight="balanced").fit(X, labels)
    by_hand = ConvexAttentionClassifier(class_weight=given).fit(X, labels)
    np.testing.assert_allclose(balanced.coef_, by_hand.coef_, atol=1e-8)
    null = ConvexAttentionClassifier(beta=1, class_weight="balanced").fit(X, labels)
    np.testing.assert_allclose(null.predict_proba(X), 1 / 3, atol=1e-8)


@pytest.mark.parametrize(
    ("class_weight", "words"),
    [
        ({"perhaps": 2.0}, "classes of y.*perhaps"),
        ({"yes": 0.0}, "positive"),
        ({"yes": -1.0}, "positive"),
        ("even", "balanced"),
        ([1, 2], "balanced"),
    ],
)
def test_bad_class_weight(X, labels, class_weight, words):
    with pytest.raises(ValueError, match=words):
        ConvexAttentionClassifier(class_weight=class_weight).fit(X, labels)


def test_class_weight_refuses_multilabel(X):
    with pytest.raises(ValueError, match="multilabel"):
        ConvexAttentionClassifier(class_weight="balanced").fit(X, (X[:, :2, 0] > 0).astype(int))


def test_token_weights_are_scales(X, y):
    """Penalty factor w on a token equals no factor on the token divided by w."""
    w = np.array([1.0, 5.0, 1.0, 0.5, 2.0])
    weighted = ConvexAttentionRegressor(beta=0.1, token_weights=w, **TIGHT).fit(X, y)
    scaled = ConvexAttentionRegressor(beta=0.1, **TIGHT).fit(X / w[:, None], y)
    assert weighted.beta_max_ == pytest.approx(scaled.beta_max_)
    np.testing.assert_allclose(weighted.coef_ * w[:, None], scaled.coef_, atol=1e-4)


# Running ---------------------------------------------------------------------------------------


def test_warm_start_reuses_the_solution(X, labels):
    cold = ConvexAttentionClassifier(0.1, penalty="nuclear", warm_start=True).fit(X, labels)
    n_iter, coef = cold.n_iter_, cold.coef_
    warm = cold.fit(X, labels)
    assert warm.n_iter_ < n_iter
    np.testing.assert_allclose(warm.coef_, coef, atol=1e-3)
    assert warm.certificate_.relative_gap <= 1e-6
    other = warm.fit(X[:, :3], labels)  # another shape: a cold start, no error
    assert other.coef_.shape == (3, 3, 3)
    assert other.certificate_.relative_gap <= 1e-6


def test_unconverged_fit_warns_and_tells_its_gap(X, labels):
    with pytest.warns(ConvergenceWarning, match=r"relative duality gap of \d\.\de-?\+?\d\d"):
        model = ConvexAttentionClassifier(0.01, penalty="nuclear", max_iter=3).fit(X, labels)
    Y = (labels[:, None] == model.classes_).astype(float)
    true = objective(model, Softmax(), Nuclear(), X, Y, model.beta_)
    assert true.relative_gap > 1e-6
    assert model.certificate_.relative_gap == pytest.approx(true.relative_gap, rel=1e-6)
    assert model.predict(X).shape == (60,)


def test_max_time_stops(X, labels):
    with pytest.warns(ConvergenceWarning):
        model = ConvexAttentionClassifier(beta=1e-3, max_time=1e-9, tol=1e-12).fit(X, labels)
    assert model.certificate_.relative_gap > 1e-12


def test_verbose_prints_and_calls(X, y, capsys):
    ConvexAttentionRegressor(beta=0.2, verbose=True).fit(X, y)
    assert "relative gap" in capsys.readouterr().out
    points = []
    model = ConvexAttentionRegressor(beta=0.2, verbose=points.append).fit(X, y)
    assert capsys.readouterr().out == ""
    assert points == model.trace_


def test_mask_is_zero_rows(X, y):
    mask = np.random.default_rng(4).random((60, 5)) > 0.3
    padded = np.where(mask[:, :, None], X, np.nan)
    zeroed = np.where(mask[:, :, None], X, 0.0)
    masked = ConvexAttentionRegressor(beta=0.1).fit(padded, y, mask=mask)
    plain = ConvexAttentionRegressor(beta=0.1).fit(zeroed, y)
    np.testing.assert_allclose(masked.coef_, plain.coef_, atol=1e-8)
    np.testing.assert_allclose(masked.predict(padded, mask=mask), plain.predict(zeroed), atol=1e-7)
    assert masked.score(padded, y, mask=mask) == pytest.approx(plain.score(zeroed, y))
    assert not np.allclose(masked.predict(X), masked.predict(padded, mask=mask))


def test_classifier_methods_take_a_mask(X, labels):
    mask = np.ones((60, 5), dtype=int)
    mask[:, 0] = 0
    model = ConvexAttentionClassifier().fit(X, labels, mask=mask)
    assert 0 not in model.tokens_
    for method in ("predict", "predict_proba", "predict_log_proba", "decision_function"):
        getattr(model, method)(np.where(mask[:, :, None], X, np.inf), mask=mask)
    assert 0 <= model.score(X, labels, mask=mask) <= 1


# Objects ---------------------------------------------------------------------------------------


def test_clone_copy_pickle_repr(X, labels):
    model = ConvexAttentionClassifier(beta=0.2, class_weight={"yes": 2.0}).fit(X, labels)
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), copy.copy(model)):
        np.testing.assert_array_equal(twin.predict_proba(X), model.predict_proba(X))
        assert twin.certificate_ == model.certificate_
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        clone(model).predict(X)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        _ = clone(model).certificate_
    assert "beta=0.2" in repr(model)
    assert "ConvexAttentionClassifier" in model._repr_html_()
