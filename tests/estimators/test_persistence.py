"""Models on disk: the same bits back, and clear words about anything else."""

import json
import os

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import KFold

import convexformer
from convexformer import (
    ConvexAttentionClassifier,
    ConvexAttentionClassifierCV,
    ConvexAttentionRegressor,
    ConvexAttentionRegressorCV,
    load_model,
)

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
    assert header["format_version"] == "1"
    described = json.loads(header["model"])
    assert described["class"] == "ConvexAttentionClassifier"
    assert described["library_version"] == convexformer.__version__
    assert described["certificate"]["relative_gap"] == model.certificate_.relative_gap


# Refusals --------------------------------------------------------------------------------------


def test_existing_file_is_kept(path):
    model = ConvexAttentionRegressor().fit(X, y)
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        model.save(path)
    assert path.read_text() == "precious"
    model.save(path, overwrite=True)
    assert load_model(path).beta == 0.1


def test_failed_write_leaves_everything_as_it_was(path, monkeypatch):
    model = ConvexAttentionRegressor().fit(X, y)
    path.write_text("precious")

    def fail(*paths):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        model.save(path, overwrite=True)
    assert path.read_text() == "precious"
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_save_needs_a_folder_and_a_fit(tmp_path):
    with pytest.raises(NotFittedError):
        ConvexAttentionRegressor().save(tmp_path / "m.safetensors")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        ConvexAttentionRegressor().fit(X, y).save(tmp_path / "nowhere" / "m.safetensors")


def test_odd_labels_are_refused_before_anything_is_written(path):
    dates = np.array(["2020-01-01", "2021-01-01"], dtype="M8[D]")[(y > 0).astype(int)]
    model = ConvexAttentionClassifier().fit(X, y > 0)
    model.classes_ = np.unique(dates)
    with pytest.raises(ValueError, match="classes_ of dtype datetime64"):
        model.save(path)
    assert not path.exists()


def test_truncated_files(path):
    ConvexAttentionRegressor().fit(X, y).save(path)
    whole = path.read_bytes()
    for size in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"truncated, damaged or of another kind"):
            load_model(path)


def test_other_files(path):
    path.write_text("label,score\n1,0.5\n" * 100)
    with pytest.raises(ValueError, match="cannot be read as a safetensors file"):
        load_model(path)
    save_file({"weights": np.ones(3)}, path)
    with pytest.raises(ValueError, match="holds no convexformer model"):
        load_model(path)
    with pytest.raises(FileNotFoundError):
        load_model(path.with_name("absent"))


def rewrite(path, **changes):
    header, arrays = header_of(path), load_file(path)
    save_file(arrays, path, metadata={**header, **changes})


def test_other_version(path):
    ConvexAttentionRegressor().fit(X, y).save(path)
    rewrite(path, format_version="2")
    with pytest.raises(ValueError, match=r"format version 2; this convexformer .* reads version 1"):
        load_model(path)


def test_other_class(path):
    ConvexAttentionRegressor().fit(X, y).save(path)
    with pytest.raises(
        ValueError, match="holds a ConvexAttentionRegressor, not a ConvexAttentionC"
    ):
        ConvexAttentionClassifier.load(path)
    described = json.loads(header_of(path)["model"])
    for name in ("TokenScaler", "load_model", "Unheard"):
        rewrite(path, model=json.dumps({**described, "class": name}))
        with pytest.raises(ValueError, match=f"holds a {name}"):
            load_model(path)


def test_missing_and_unknown_parts(path):
    ConvexAttentionRegressor().fit(X, y).save(path)
    described = json.loads(header_of(path)["model"])
    newer = {**described, "params": {**described["params"], "gates": 3}}
    rewrite(path, model=json.dumps(newer))
    with pytest.raises(ValueError, match=r"not a whole ConvexAttentionRegressor.*gates"):
        load_model(path)
    del described["certificate"]
    rewrite(path, model=json.dumps(described))
    with pytest.raises(ValueError, match=r"not a whole.*certificate"):
        load_model(path)
    for damaged in ("", "{", "{}"):
        rewrite(path, model=damaged)
        with pytest.raises(ValueError, match=r"damaged|without a class"):
            load_model(path)
