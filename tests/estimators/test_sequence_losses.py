"""Positions with labels, counts and outliers: the classifier, and other losses of the regressor."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from tests.sequences import RawSequence, make

from convexformer import ConvexSequenceClassifier, ConvexSequenceRegressor, load_model

SHAPE = (60, 4, 2, 3)
NAMES = np.array(["green", "red", "blue"])
SETTINGS = [
    (attention, masked) for attention in ("stochastic", "substochastic") for masked in (False, True)
]


def labelled(raw: RawSequence):
    """Labels of one-hot targets, or of -1 and +1, with rubbish at padding."""
    Y = np.nan_to_num(raw.Y, nan=-1.0)
    labels = (
        NAMES[Y.argmax(axis=2)] if raw.loss == "softmax" else NAMES[(Y[:, :, 0] > 0).astype(int)]
    )
    return labels if raw.mask is None else np.where(raw.mask, labels, "padding")


def classified(loss, attention="stochastic", masked=False, **parameters):
    shape = (*SHAPE[:3], 3 if loss == "softmax" else 1)
    raw = make(attention, masked=masked, weighted=True, shape=shape, loss=loss)
    y = labelled(raw)
    model = ConvexSequenceClassifier(attention=attention, **parameters)
    return raw, y, model.fit(raw.X, y, sample_weight=raw.sample_weight, mask=raw.mask)


def sorted_targets(raw, model):
    """`raw` with outputs in the order of sorted classes, as the model has them."""
    if raw.loss == "logistic":  # green < red as -1 < +1
        return raw
    order = [NAMES.tolist().index(name) for name in model.classes_]
    options = (raw.attention, raw.intercept, raw.mask, raw.sample_weight, raw.loss)
    return RawSequence(raw.X, raw.Y[:, :, order], *options)


# Classifier ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("attention", "masked"), SETTINGS)
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_classifier_is_at_the_optimum_of_its_loss(loss, attention, masked):
    raw, _, model = classified(loss, attention, masked)
    again = sorted_targets(raw, model)
    primal = again.objective(model.coef_, model.intercept_, model.beta_)
    certificate = model.certificate_
    assert certificate.relative_gap <= 1e-6
    assert primal == pytest.approx(certificate.primal, rel=1e-11)
    optimum = again.oracle(model.beta_)
    assert primal == pytest.approx(optimum, rel=1e-6)
    assert certificate.dual <= optimum * (1 + 1e-9)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_predictions_are_those_of_the_scores(loss, masked):
    raw, y, model = classified(loss, masked=masked)
    real = np.ones(y.shape, bool) if raw.mask is None else raw.mask
    F = sorted_targets(raw, model).scores(model.coef_, model.intercept_)
    P, labels = model.predict_proba(raw.X, raw.mask), model.predict(raw.X, raw.mask)
    if loss == "logistic":
        share = 1 / (1 + np.exp(-F[:, :, 0]))
        expected = np.stack([1 - share, share], axis=2)
        decisions = F[:, :, 0]
    else:
        expected = np.exp(F) / np.exp(F).sum(axis=2, keepdims=True)
        decisions = F
    assert P.shape == (*y.shape, len(model.classes_))
    np.testing.assert_allclose(P[real], expected[real], atol=1e-10)
    np.testing.assert_array_equal(labels[real], model.classes_[expected.argmax(axis=2)][real])
    found = model.decision_function(raw.X, raw.mask)
    np.testing.assert_allclose(found[real], decisions[real], atol=1e-10)
    logs = model.predict_log_proba(raw.X, raw.mask)
    np.testing.assert_allclose(np.exp(logs[real]), P[real], rtol=1e-12)
    for array in (P, found, logs):
        assert np.all(np.isnan(array[~real]))
    assert np.all(labels[~real] == "")
    weights = np.broadcast_to(raw.sample_weight[:, None], y.shape)[real]
    accuracy = np.average(labels[real] == y[real], weights=weights)
    assert model.score(raw.X, y, raw.sample_weight, raw.mask) == pytest.approx(accuracy)
    assert accuracy > 0.5


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_network_of_a_classifier_has_the_same_objective(loss):
    raw, _, model = classified(loss)
    again, parts = sorted_targets(raw, model), model._parts()
    objective = again.network_objective(parts.A, parts.B, model.intercept_, model.beta_)
    assert objective == pytest.approx(model.certificate_.primal, rel=1e-10)
    network = model.to_network()
    scores = network(torch.tensor(raw.X)).detach().numpy()
    np.testing.assert_allclose(scores, again.scores(model.coef_, model.intercept_), atol=1e-8)


@pytest.mark.parametrize("kind", [int, bool, str, object])
def test_labels_keep_their_type(kind):
    raw = make(shape=(40, 3, 2, 1), loss="logistic")
    y = (raw.Y[:, :, 0] > 0).astype(int)
    y = np.array(["no", "yes"], dtype=object)[y] if kind is object else y.astype(kind)
    model = ConvexSequenceClassifier().fit(raw.X, y)
    labels = model.predict(raw.X)
    assert labels.dtype == model.classes_.dtype == y.dtype and labels.shape == y.shape


def test_classifier_conventions(tmp_path):
    raw, y, model = classified("softmax")
    assert is_classifier(model) and model.classes_.tolist() == sorted(NAMES)
    assert (model.n_tokens_, model.n_channels_, model.n_outputs_) == (4, 2, 3)
    with pytest.raises(NotFittedError):
        clone(model).predict(raw.X)
    path = tmp_path / "model.safetensors"
    model.save(path)
    for again in (load_model(path), pickle.loads(pickle.dumps(model))):
        assert type(again) is ConvexSequenceClassifier
        np.testing.assert_array_equal(again.predict(raw.X), model.predict(raw.X))
        np.testing.assert_array_equal(again.predict_proba(raw.X), model.predict_proba(raw.X))
        assert again.get_params() == model.get_params()
        assert again.certificate_ == model.certificate_
    search = GridSearchCV(ConvexSequenceClassifier(tol=1e-3), {"beta": [0.99, 0.1]}, cv=2)
    assert search.fit(raw.X, y).best_params_ == {"beta": 0.1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": None}, "requires y"),
        ({"y": np.eye(3)[np.zeros((60, 4), int)]}, r"one label per position.*pass y.argmax"),
        ({"y": np.zeros(60)}, "one label per position"),
        ({"y": np.zeros((60, 4))}, "y has only one class, 0.0"),
        ({"y": np.random.default_rng(0).normal(size=(60, 4))}, "Unknown label type"),
        ({"y": np.where(np.eye(60, 4) > 0, np.nan, 1.0)}, "y contains NaN"),
        (
            {"sample_weight": np.eye(60)[3]},
            r"Class \d .*has no sample of positive weight|samples of one class",
        ),
    ],
)
def test_wrong_labels_are_refused_in_words(change, message):
    raw = make(shape=(60, 4, 2, 3), loss="softmax")
    y = np.arange(3)[raw.Y.argmax(axis=2)]
    y[3] = 0
    with pytest.raises(ValueError, match=message):
        ConvexSequenceClassifier().fit(raw.X, **({"y": y} | change))


# Regressor ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("attention", "masked"), SETTINGS)
@pytest.mark.parametrize("loss", ["huber", "poisson"])
def test_regressor_is_at_the_optimum_of_its_loss(loss, attention, masked):
    raw = make(attention, masked=masked, weighted=True, shape=(*SHAPE[:3], 2), loss=loss)
    model = ConvexSequenceRegressor(attention=attention, loss=loss)
    model.fit(raw.X, raw.Y, raw.sample_weight, raw.mask)
    primal = raw.objective(model.coef_, model.intercept_, model.beta_)
    assert model.certificate_.relative_gap <= 1e-6
    assert primal == pytest.approx(model.certificate_.primal, rel=1e-11)
    assert primal == pytest.approx(raw.oracle(model.beta_), rel=1e-6)
    parts = model._parts()
    network = raw.network_objective(parts.A, parts.B, model.intercept_, model.beta_)
    assert network == pytest.approx(primal, rel=1e-10)
    scores = raw.scores(model.coef_, model.intercept_)
    expected = np.exp(scores) if loss == "poisson" else scores
    real = np.ones(raw.X.shape[:2], bool) if raw.mask is None else raw.mask
    np.testing.assert_allclose(model.predict(raw.X, raw.mask)[real], expected[real], rtol=1e-9)
    assert model.score(raw.X, raw.Y, raw.sample_weight, raw.mask) > 0.2


def test_outliers_move_a_huber_fit_less():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4, 2))
    clean = np.roll(X, 1, axis=1)[:, :, :1]
    Y = clean + 100 * (rng.random(clean.shape) < 0.05)
    huber, squared = (
        ConvexSequenceRegressor(0.1, loss=loss, huber_delta=0.5).fit(X, Y)
        for loss in ("huber", "squared")
    )
    errors = [np.mean((model.predict(X) - clean) ** 2) for model in (huber, squared)]
    assert errors[0] < 0.1 * errors[1]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"loss": "logistic"}, "loss must be 'squared', 'huber' or 'poisson'"),
        ({"loss": "huber", "huber_delta": 0}, "huber_delta must be a positive number"),
        ({"loss": "huber", "refit": True}, "is least squares, and loss is 'huber'"),
        ({"loss": "poisson"}, "Poisson targets must not be negative"),
    ],
)
def test_wrong_parameters_are_refused(parameters, message):
    raw = make(shape=(20, 3, 2, 1))
    with pytest.raises(ValueError, match=message):
        ConvexSequenceRegressor(**parameters).fit(raw.X, raw.Y - 10.0)


def test_counts_at_padding_may_be_anything():
    raw = make(masked=True, shape=(30, 4, 2, 1), loss="poisson")
    Y = np.where(raw.mask[:, :, None], raw.Y, -5.0)
    models = [
        ConvexSequenceRegressor(loss="poisson").fit(raw.X, y, mask=raw.mask) for y in (raw.Y, Y)
    ]
    np.testing.assert_array_equal(models[0].coef_, models[1].coef_)


def test_limits_hold_for_every_loss():
    for loss in ("logistic", "softmax"):
        with pytest.warns(ConvergenceWarning, match="above tol=1e-12"):
            _, _, model = classified(loss, beta=0.001, tol=1e-12, max_iter=7)
        assert model.n_iter_ == 7 and model.certificate_.relative_gap > 1e-12
