"""ConvexSequenceRegressor: the scikit-learn face of matrix targets."""

import pickle
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_regressor
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from tests.sequences import RawSequence, make

from convexformer import ConvexAttentionRegressor, ConvexSequenceRegressor, TokenScaler, load_model
from convexformer.problem.heads import decay, recover_sequence_heads

ATTENTION = ["stochastic", "substochastic"]
raw = make(shape=(60, 5, 3, 2))
X, Y = raw.X, raw.Y


@pytest.fixture(scope="module", params=ATTENTION)
def model(request):
    return ConvexSequenceRegressor(attention=request.param).fit(X, Y)


# Fit, predict, score ------------------------------------------------------------------------------


def test_fitted_attributes(model):
    assert model.coef_.shape == (3, 2, 5, 5) and model.intercept_.shape == (2,)
    assert model.certificate_.relative_gap <= model.tol
    assert model.beta_ == pytest.approx(0.1 * model.beta_max_)
    assert model.certificate_.beta == model.beta_
    assert (model.n_tokens_, model.n_channels_, model.n_outputs_) == (5, 3, 2)
    assert model.n_features_in_ == 15
    assert model.n_iter_ == model.trace_[-1].iteration
    assert model.trace_[-1].n_active == np.count_nonzero(np.any(model.coef_, axis=(2, 3)))


def test_certificate_is_that_of_the_coefficients(model):
    again = RawSequence(X, Y, model.attention)
    primal = again.objective(model.coef_, model.intercept_, model.beta_)
    assert primal <= model.certificate_.primal * (1 + 1e-14)
    assert model.certificate_.primal == pytest.approx(primal, rel=1e-11)
    assert primal == pytest.approx(again.oracle(model.beta_), rel=1e-6)


def test_predictions_are_the_formula(model):
    expected = RawSequence(X, Y).scores(model.coef_, model.intercept_)
    np.testing.assert_allclose(model.predict(X), expected, rtol=1e-11, atol=1e-11)
    assert model.predict(X[:1]).shape == (1, 5, 2)


def test_score_is_r2_over_positions(model):
    R, D = Y - model.predict(X), Y - Y.mean(axis=(0, 1))
    expected = 1 - np.mean(np.sum(R**2, axis=(0, 1)) / np.sum(D**2, axis=(0, 1)))
    assert model.score(X, Y) == pytest.approx(expected, rel=1e-12)
    assert 0.5 < expected < 1
    double = np.r_[np.full(30, 2.0), np.ones(30)]
    repeated = np.r_[np.arange(30), np.arange(60)]
    weighted = model.score(X, Y, sample_weight=double)
    assert weighted == pytest.approx(model.score(X[repeated], Y[repeated]), rel=1e-12)


def test_absolute_beta_and_no_intercept():
    relative = ConvexSequenceRegressor(beta=0.2, fit_intercept=False).fit(X, Y)
    assert np.all(relative.intercept_ == 0)
    absolute = ConvexSequenceRegressor(
        beta=relative.beta_, beta_scale="absolute", fit_intercept=False
    ).fit(X, Y)
    np.testing.assert_array_equal(absolute.coef_, relative.coef_)


def test_beta_of_one_uses_nothing():
    model = ConvexSequenceRegressor(beta=1.0).fit(X, Y)
    assert np.all(model.coef_ == 0) and model.certificate_.relative_gap <= 1e-12
    np.testing.assert_allclose(model.predict(X[:1])[0, 0], Y.mean(axis=(0, 1)))
    assert np.all(model.attention_maps_.aggregate == 0)


def test_constant_targets():
    model = ConvexSequenceRegressor().fit(X, np.full((60, 5, 1), 0.1))
    assert model.certificate_.relative_gap == 0 and np.all(model.predict(X) == 0.1)


def test_masks_and_weights():
    masked = make(shape=(60, 5, 3, 2), masked=True, weighted=True)
    arguments = {"sample_weight": masked.sample_weight, "mask": masked.mask}
    model = ConvexSequenceRegressor(beta=0.05).fit(masked.X, masked.Y, **arguments)
    primal = masked.objective(model.coef_, model.intercept_, model.beta_)
    assert primal <= model.certificate_.primal * (1 + 1e-14)
    assert model.certificate_.primal == pytest.approx(primal, rel=1e-11)
    predicted = model.predict(masked.X, mask=masked.mask)
    expected = masked.scores(model.coef_, model.intercept_)
    np.testing.assert_allclose(predicted[masked.mask], expected[masked.mask], atol=1e-11)
    assert np.all(np.isnan(predicted[~masked.mask]))
    score = model.score(masked.X, masked.Y, **arguments)
    assert 0.3 < score < 1
    filled = np.where(masked.mask[:, :, None], masked.Y, 1e9)  # padding is not looked at
    assert model.score(masked.X, filled, **arguments) == score


@pytest.mark.parametrize("convert", [np.ndarray.tolist, torch.tensor, np.asfortranarray])
def test_other_containers(convert):
    model = ConvexSequenceRegressor(beta=0.3).fit(convert(X), convert(Y))
    np.testing.assert_allclose(
        model.coef_, ConvexSequenceRegressor(beta=0.3).fit(X, Y).coef_, atol=1e-12
    )


def test_float32():
    single = X.astype("f4")
    model = ConvexSequenceRegressor().fit(single, Y)
    assert model.certificate_.relative_gap <= 1e-6
    assert model.predict(single).dtype == np.float64


# Attention ----------------------------------------------------------------------------------------


def test_attention_maps_put_the_coefficients_together(model):
    maps = model.attention_maps_
    Z = maps.positive_weights[:, :, None, None] * maps.positive
    Z = Z - maps.negative_weights[:, :, None, None] * maps.negative
    np.testing.assert_allclose(Z, model.coef_, atol=1e-13)
    penalty = RawSequence(X, Y).penalty(model.coef_)
    assert maps.positive_weights.sum() + maps.negative_weights.sum() == pytest.approx(penalty)
    for part, weight in (
        (maps.positive, maps.positive_weights),
        (maps.negative, maps.negative_weights),
    ):
        assert np.all(part >= 0)
        sums = part.sum(axis=3)[weight > 0]
        if model.attention == "stochastic":
            np.testing.assert_allclose(sums, 1.0, rtol=1e-12)
        else:
            assert np.all(sums <= 1 + 1e-12)
            np.testing.assert_allclose(sums.max(axis=1), 1.0, rtol=1e-12)
        assert np.all(part[weight == 0] == 0)
    np.testing.assert_allclose(maps.aggregate.sum(axis=1), 1.0, rtol=1e-12)


def test_maps_find_who_reads_whom():
    rng = np.random.default_rng(0)
    tokens = rng.normal(size=(300, 5, 2))
    reads = np.array([3, 0, 0, 4, 1])
    targets = tokens[:, reads, :1] - tokens[:, reads, 1:] + 0.1 * rng.normal(size=(300, 5, 1))
    maps = ConvexSequenceRegressor(beta=0.3).fit(tokens, targets).attention_maps_
    np.testing.assert_array_equal(maps.aggregate.argmax(axis=1), reads)
    np.testing.assert_array_equal(maps.positive[0, 0].argmax(axis=1), reads)
    np.testing.assert_array_equal(maps.negative[1, 0].argmax(axis=1), reads)
    assert maps.negative_weights[0, 0] < 0.01 * maps.positive_weights[0, 0]


def test_parts_are_the_heads_of_the_network(model):
    parts = model._parts()
    np.testing.assert_allclose(parts.A - parts.B, model.coef_, atol=1e-14)
    heads = recover_sequence_heads(parts.A, parts.B, model.attention)
    assert decay(heads) / 2 == pytest.approx(np.sum(parts.a + parts.b), rel=1e-12)
    np.testing.assert_allclose(heads.coefficients(), model.coef_, atol=1e-13)
    network = RawSequence(X, Y, model.attention)
    objective = network.network_objective(parts.A, parts.B, model.intercept_, model.beta_)
    assert objective == pytest.approx(model.certificate_.primal, rel=1e-10)


@pytest.mark.parametrize("intercept", [True, False])
def test_network_has_the_same_objective_and_predictions(model, intercept):
    model = clone(model).set_params(fit_intercept=intercept).fit(X, Y)
    network = model.to_network()
    objective = network.objective(torch.tensor(X), torch.tensor(Y), "squared", model.beta_)
    assert objective.item() == pytest.approx(model.certificate_.primal, rel=1e-10)
    predicted = network(torch.tensor(X)).detach().numpy()
    np.testing.assert_allclose(predicted, model.predict(X), atol=1e-8)


# Conventions --------------------------------------------------------------------------------------


def test_parameters_clone_and_pickle(model):
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        copy.predict(X)
    with pytest.raises(NotFittedError):
        _ = copy.attention_maps_
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert is_regressor(model)
    assert repr(ConvexSequenceRegressor(beta=0.2)) == "ConvexSequenceRegressor(beta=0.2)"


def test_selection_and_pipelines():
    scores = cross_val_score(ConvexSequenceRegressor(beta=0.05), X, Y, cv=3)
    assert scores.shape == (3,) and np.all(scores > 0.3)
    search = GridSearchCV(ConvexSequenceRegressor(tol=1e-3), {"beta": [0.9, 0.1]}, cv=2).fit(X, Y)
    assert search.best_params_ == {"beta": 0.1}
    pipeline = make_pipeline(TokenScaler(), ConvexSequenceRegressor()).fit(X, Y)
    assert pipeline.predict(X).shape == Y.shape


def test_save_and_load(model, tmp_path):
    path = tmp_path / "model.safetensors"
    model.save(path)
    for again in (ConvexSequenceRegressor.load(path), load_model(path)):
        assert type(again) is ConvexSequenceRegressor
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
        np.testing.assert_array_equal(again.coef_, model.coef_)
        assert again.get_params() == model.get_params()
        assert again.certificate_ == model.certificate_ and again.trace_ == model.trace_
        assert (again.n_outputs_, again.n_iter_) == (model.n_outputs_, model.n_iter_)
    with pytest.raises(ValueError, match="holds a ConvexSequenceRegressor"):
        ConvexAttentionRegressor.load(path)


def test_unreached_tolerance_warns_and_leaves_a_usable_model():
    model = ConvexSequenceRegressor(beta=0.001, tol=1e-12, max_iter=3)
    with pytest.warns(ConvergenceWarning, match=r"relative duality gap of .* above tol=1e-12"):
        model.fit(X, Y)
    assert model.certificate_.relative_gap > 1e-12 and model.n_iter_ == 3
    assert np.all(np.isfinite(model.predict(X)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ConvexSequenceRegressor().fit(X, Y)


def test_verbose(capsys):
    model = ConvexSequenceRegressor(verbose=True).fit(X, Y)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(model.trace_)
    assert lines[-1].startswith("[ConvexSequenceRegressor] iteration")
    seen = []
    model.set_params(verbose=seen.append).fit(X, Y)
    assert seen == model.trace_ and capsys.readouterr().out == ""


# Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"beta": 0}, "0 removes the penalty"),
        ({"beta": -1.0}, "beta must be a positive number"),
        ({"beta_scale": "log"}, "beta_scale must be 'relative'"),
        ({"attention": "softmax"}, "attention must be 'stochastic' or 'substochastic'"),
        ({"fit_intercept": "yes"}, "fit_intercept must be True or False"),
        ({"tol": 0.0}, "tol must be a positive number"),
        ({"max_iter": 0}, "max_iter must be a whole number"),
        ({"max_time": -1}, "max_time must be a positive number"),
    ],
)
def test_wrong_parameters_are_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        ConvexSequenceRegressor(**parameters).fit(X, Y)


def broken(array, value):
    array = array.copy()
    array[3, 2, 1] = value
    return array


@pytest.mark.parametrize(
    ("tokens", "targets", "message"),
    [
        (X[:, :, 0], Y, "X must be 3-D"),
        (X, None, "requires y"),
        (X, Y[:, :, 0], r"outputs\) = \(60, 5, any\), .* got \(60, 5\).*y\[:, :, None\]"),
        (X, Y[:, 0], "y must have shape"),
        (X, Y[:50], "y must have shape"),
        (X, Y[:, :4], "y must have shape"),
        (X, np.full(Y.shape, "a"), "y must hold numbers"),
        (broken(X, np.nan), Y, "Input X contains NaN.* sample 3, token 2, channel 1"),
        (X, broken(Y, np.inf), "Input y contains infinity"),
    ],
)
def test_wrong_data_are_refused(tokens, targets, message):
    with pytest.raises(ValueError, match=message):
        ConvexSequenceRegressor().fit(tokens, targets)


def test_other_shapes_are_refused_at_prediction(model):
    with pytest.raises(ValueError, match=r"X has shape \(60, 4, 3\), but this"):
        model.predict(X[:, :4])
