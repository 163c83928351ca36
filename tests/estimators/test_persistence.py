"""Models on disk: the same bits back, and clear words about anything else."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file
from sklearn.model_selection import KFold

import convexformer
from convexformer import (
    ConvexAttentionClassifier,
    ConvexAttentionClassifierCV,
    ConvexAttentionRegressor,
    ConvexAttentionRegressorCV,
    ConvexTransformerRegressor,
    ModelFileError,
    load_model,
)
from convexformer.solvers import Status

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 4, 3))
y = X[:, 1, 0] + 0.3 * rng.normal(size=40)
LABELS = {
    "str": np.array(["a", "bé", "c"]),
    "object": np.array(["a", "bé", "c"], dtype=object),
    "int": np.array([-5, 0, 7]),
    "uint8": np.array([1, 2, 3], dtype=np.uint8),
    "float": np.array([0.0, 1.0, 2.0]),
    "bool": np.array([False, True]),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def header_of(path):
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        return file.metadata()


@pytest.mark.parametrize("kind", LABELS)
def test_classifier_round_trip(path, kind):
    classes = LABELS[kind]
    label = classes[np.digitize(y, [-0.3, 0.3][: len(classes) - 1])]
    model = ConvexAttentionClassifier(beta=0.2, class_weight={classes[0]: 2.0}).fit(X, label)
    model.save(path)
    again = ConvexAttentionClassifier.load(path)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.classes_.dtype == model.classes_.dtype
    assert again.predict(X).dtype == model.predict(X).dtype
    assert again.get_params() == model.get_params()
    assert again.certificate_ == model.certificate_
    assert again.trace_ == model.trace_
    assert again.status_ is Status.CONVERGED
    for name in ("coef_", "intercept_", "tokens_", "token_norms_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(model, name))
    for name in ("beta_", "beta_max_", "n_iter_", "n_tokens_", "n_channels_", "n_features_in_"):
        assert getattr(again, name) == getattr(model, name)


@pytest.mark.parametrize("target", ["one", "column", "several", "poisson", "multilabel"])
def test_targets_round_trip(path, target):
    model = ConvexAttentionRegressor(token_weights=np.arange(1.0, 5.0))
    Y = {"one": y, "column": y[:, None], "several": np.column_stack([y, -y])}.get(target)
    if target == "poisson":
        model.set_params(loss="poisson")
        Y = np.round(np.abs(3 * y))
    if target == "multilabel":
        model = ConvexAttentionClassifier()
        Y = (X[:, :3, 0] > 0).astype(int)
    model.fit(X, Y).save(path)
    again = load_model(path)
    assert type(again) is type(model)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(again.predict(X.astype("f4")), model.predict(X.astype("f4")))


def test_names_and_two_dimensions_round_trip(path):
    frame = pd.DataFrame(X.reshape(40, 12), columns=[f"c{j}" for j in range(12)])
    model = ConvexAttentionRegressor(n_tokens=4).fit(frame, y)
    model.save(path)
    again = ConvexAttentionRegressor.load(path)
    np.testing.assert_array_equal(again.feature_names_in_, model.feature_names_in_)
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))


@pytest.mark.parametrize("kind", [ConvexAttentionRegressorCV, ConvexAttentionClassifierCV])
def test_cv_round_trip(path, kind):
    target = y if kind is ConvexAttentionRegressorCV else y > 0
    model = kind(betas=np.array([0.5, 0.1]), cv=KFold(2)).fit(X, target)
    model.save(path)
    again = kind.load(path)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    for name in ("scores_", "betas_", "mean_scores_", "std_scores_", "standard_errors_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(model, name))
    assert again.beta_fraction_ == model.beta_fraction_
    assert again.betas == [0.5, 0.1]
    assert again.cv is None  # no plain data: not stored


@pytest.mark.parametrize("kind", [pd.Series, torch.tensor, np.array, tuple])
def test_parameters_of_any_array_type_round_trip(path, kind):
    weights = [0.5, 0.25, 1.0, 2.0]
    model = ConvexAttentionRegressorCV(betas=kind([0.5, 0.25, 0.125]), token_weights=kind(weights))
    model.set_params(cv=2).fit(X, y).save(path)
    again = load_model(path)
    assert again.betas == [0.5, 0.25, 0.125]
    assert again.token_weights == weights


def test_given_gates_round_trip(path):
    gates = (np.zeros((1, 4, 3)), np.array([np.inf]))
    model = ConvexTransformerRegressor(gates=gates).fit(X, y)
    model.save(path)
    np.testing.assert_array_equal(load_model(path).predict(X), model.predict(X))


def test_loaded_model_is_whole(path):
    """It can be saved, fitted and predicted with again."""
    model = ConvexAttentionRegressor(verbose=print).fit(X, y)
    model.save(path)
    again = load_model(path)
    assert again.verbose is False
    again.save(path, overwrite=True)
    np.testing.assert_array_equal(load_model(path).coef_, model.coef_)
    np.testing.assert_allclose(again.fit(X, y).coef_, model.coef_)


def test_file_is_plain_safetensors_and_json(path):
    model = ConvexAttentionClassifier().fit(X, y > 0)
    model.save(str(path))
    assert set(load_file(path)) == {"coef_", "intercept_"}
    header = header_of(path)
    assert header["format"] == "convexformer"
    assert header["format_version"] == "2"
    described = json.loads(header["model"])
    assert described["class"] == "ConvexAttentionClassifier"
    assert described["library_version"] == convexformer.__version__
    assert described["certificate"]["relative_gap"] == model.certificate_.relative_gap
    again = path.with_name("again.safetensors")
    model.save(again)
    assert again.read_bytes() == path.read_bytes()


def test_unconverged_model_keeps_its_status(path):
    with pytest.warns(UserWarning, match="Stopped at a relative duality gap"):
        model = ConvexAttentionClassifier(max_time=1e-9).fit(X, y > 0)
    model.save(path)
    again = load_model(path)
    assert again.status_ is model.status_ is Status.TIME
    assert again.certificate_ == model.certificate_


def test_gap_below_zero_by_rounding_is_kept(path):
    model = ConvexAttentionRegressor().fit(X, y)
    proved = model.certificate_
    model._certificate = replace(proved, dual=float(np.nextafter(proved.primal, np.inf)))
    model.save(path)
    assert load_model(path).certificate_ == model.certificate_


def test_own_class_round_trip(path):
    class Derived(ConvexAttentionRegressor):
        pass

    model = Derived().fit(X, y)
    model.save(path)
    np.testing.assert_array_equal(Derived.load(path).coef_, model.coef_)
    with pytest.raises(ModelFileError, match="a class that convexformer does not have"):
        load_model(path)


def test_model_that_was_changed_after_the_fit_is_refused_before_it_is_written(path):
    model = ConvexAttentionRegressor(beta=0.1).fit(X, y)
    model.coef_ = 1e6 * model.coef_
    with pytest.raises(ValueError, match=r"cannot be saved: the penalty of its coeff.*fit again"):
        model.save(path)
    assert not path.exists()


OLD = Path(__file__).with_name("models")


@pytest.mark.parametrize("old", sorted(OLD.glob("*.safetensors")), ids=lambda old: old.stem)
def test_models_of_format_1_predict_as_they_did(old, path):
    with pytest.warns(UserWarning, match="no checksum"):
        model = load_model(old)
    assert type(model).__name__ == old.stem
    with np.load(OLD / "predictions.npz") as stored:
        X, expected = stored["X"], stored[old.stem]
    answer = model.predict(X)
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(answer, expected, rtol=1e-10)
    else:
        np.testing.assert_array_equal(answer, expected)
    if "Transformer" in old.stem:  # fitted when all blocks had the same weight
        assert model.gate_weight == 1.0
    model.save(path)  # of the current format: no warning
    np.testing.assert_array_equal(load_model(path).predict(X), answer)
