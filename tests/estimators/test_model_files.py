"""Files that cannot be loaded: damaged, of another kind, or of parts that do not agree."""

import json
import os
import pickle

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from safetensors.numpy import save as to_bytes

from convexformer import (
    ConvexAttentionClassifier,
    ConvexAttentionRegressor,
    ConvexAttentionRegressorCV,
    ModelFileError,
    Offsets,
    _model_file,
    load_model,
)

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 4, 3))
y = X[:, 1, 0] + 0.3 * rng.normal(size=40)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.fixture(scope="module")
def model():
    return ConvexAttentionRegressor().fit(X, y)


def header_of(path):
    with safe_open(path, framework="numpy") as file:
        return file.metadata()


def reason(path):
    with pytest.raises(ModelFileError) as caught:
        load_model(path)
    assert str(caught.value) == f"{path} cannot be loaded as a model: {caught.value.reason}"
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert caught.value.path == path
    return caught.value.reason


def test_truncated_files(path, model):
    model.save(path)
    whole = path.read_bytes()
    for size in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert "truncated" in reason(path)


def test_any_changed_byte_is_noticed(path, model):
    model.save(path)
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(changed)
        assert reason(path)


def test_other_files(path, tmp_path):
    path.write_text("label,score\n1,0.5\n" * 100)
    assert "no safetensors file" in reason(path)
    save_file({"weights": np.ones(3)}, path)
    assert "holds no convexformer model" in reason(path)
    with pytest.raises(FileNotFoundError):
        load_model(path.with_name("absent"))
    assert "no regular file" in reason(tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no named pipes in folders")
def test_pipe_is_refused_at_once(path):
    os.mkfifo(path)
    assert "no regular file" in reason(path)


def forge(path, arrays=None, version=None, **changes):
    """Write a model's file anew, changed and with a checksum that agrees."""
    described = json.loads(header_of(path)["model"])
    for name, value in changes.items():
        described[name] = described[name] | value if isinstance(value, dict) else value
    stored = load_file(path) | (arrays or {})
    content = _model_file.pack(described, {k: v for k, v in stored.items() if v is not None})
    if version is not None:
        content = content.replace(b'_version":"2"', f'_version":"{version}"'.encode())
        content[_model_file.CHECKSUM] = _model_file.checksum(content)
    path.write_bytes(content)


def test_later_formats_ask_for_an_upgrade(path, model):
    model.save(path)
    forge(path, version=3)
    assert "format version 3" in reason(path)
    assert reason(path).endswith("reads versions up to 2. Upgrade convexformer.")
    forge(path, version="x")
    assert "invalid literal" in reason(path)


def test_a_checksum_cannot_be_left_out(path, model):
    """A file written anew by another program, and one that pretends to be of format 1."""
    model.save(path)
    header = header_of(path)
    save_file(load_file(path), path, metadata={k: v for k, v in header.items() if k != "checksum"})
    assert "checksum is missing" in reason(path)
    del header["checksum"]
    path.write_bytes(to_bytes(load_file(path), metadata=header | {"format_version": "1"}))
    with pytest.warns(UserWarning, match="no checksum"):
        load_model(path)


def test_other_class(path, model):
    model.save(path)
    with pytest.raises(
        ModelFileError, match="holds a ConvexAttentionRegressor, not a ConvexAttentionC"
    ):
        ConvexAttentionClassifier.load(path)
    for name in ("TokenScaler", "load_model", "Persistent", "plotting", None, 3, ["x"]):
        forge(path, **{"class": name})
        assert "a class that convexformer does not have" in reason(path)


Z = np.zeros((1, 4, 3))
FORGED = {
    "array missing": ({"arrays": {"intercept_": None}}, "no whole ConvexAttentionRegressor"),
    "rank": ({"arrays": {"coef_": Z[0]}}, r"coef_ of shape \(4, 3\) should be"),
    "outputs": ({"arrays": {"intercept_": np.ones(2)}}, "agree with the other arrays"),
    "empty": ({"arrays": {"coef_": Z[:, :, :0]}}, "agree with the other arrays"),
    "tokens": ({"arrays": {"coef_": Z[:, :2]}, "params": {"n_tokens": 4}}, "ask for 4 tokens"),
    "NaN": ({"arrays": {"coef_": Z + np.nan}}, "coef_ holds NaN"),
    "infinity": ({"arrays": {"intercept_": np.array([np.inf])}}, "intercept_ holds NaN or inf"),
    "too large": ({"arrays": {"coef_": Z + 1e200}}, "exceeds the objective"),
    "penalty": ({"arrays": {"coef_": Z + 1e3}}, "exceeds the objective"),
    "half refitted": ({"arrays": {"ridge_": np.ones(1)}}, "no whole"),
    "no trace": ({"trace": None}, "it is damaged"),
    "status": ({"status": "SOLVED"}, "it is damaged .*SOLVED"),
    "gap": ({"certificate": {"gap": 0.0}}, "not primal - dual"),
    "dual": ({"certificate": {"dual": 1e9, "gap": -1e9}}, "not primal - dual"),
    "negative": ({"certificate": {"beta": -1.0}}, "beta is negative"),
    "text": ({"certificate": {"beta": "1"}}, "not primal - dual"),
    "unproved": ({"params": {"tol": 1e-300}, "status": "CONVERGED"}, "gap is above tol"),
    "parameter": ({"params": {"gates": 3}}, "unexpected keyword argument .gates"),
    "bad parameter": ({"params": {"penalty": "ridge"}}, "penalty must be 'token"),
    "odd parameter": ({"params": {"beta": {"a": 1}}}, "it is damaged"),
    "many tokens": ({"params": {"tokens": {"offsets": [-(10**18), 10**18, []]}}}, "ask for"),
    "names": ({"token_names_": {"dtype": "<U1", "values": ["a"]}}, "must be 4 labels"),
    "wide names": ({"token_names_": {"dtype": "<U99999999", "values": [*"abcd"]}}, "that fit"),
    "longer text": ({"token_names_": {"dtype": "<U1", "values": [*"abc", "de"]}}, "that fit"),
    "iterations": ({"values": {"n_iter_": None}}, "it is damaged"),
}  # fmt: skip


@pytest.mark.parametrize("case", FORGED)
def test_parts_must_agree_whatever_the_checksum_says(path, model, case):
    changes, expected = FORGED[case]
    model.save(path)
    forge(path)
    load_model(path)  # unchanged
    if "token_names_" in changes:
        described = json.loads(header_of(path)["model"]) | changes
        path.write_bytes(_model_file.pack(described, load_file(path)))
    else:
        forge(path, **changes)
    with pytest.raises(ModelFileError, match=expected):
        load_model(path)


def test_parts_of_a_cross_validated_model_must_agree(path):
    """What the scores of the folds say is computed from them, never read."""
    model = ConvexAttentionRegressorCV(n_betas=4, cv=3).fit(X, y)
    model.save(path)
    again = load_model(path)
    for name in ("mean_scores_", "std_scores_", "standard_errors_", "best_index_", "best_score_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(model, name))
    assert again.beta_fraction_ == model.beta_fraction_
    forge(path, arrays={"betas_": np.ones(3)})
    assert "agree with the other arrays" in reason(path)


@pytest.mark.parametrize(
    "header",
    [b"[" * 100_000, b"[]", b'{"a":' + b"9" * 5000 + b"}", b"\xff", b"{"],
    ids=["deep", "list", "huge", "bytes", "open"],
)
def test_odd_headers(path, header):
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    assert reason(path)


def test_offsets_round_trip(path):
    Y = np.zeros(X.shape[:2])
    Y[:, 1:] = X[:, :-1, 0]
    model = ConvexAttentionRegressor(tokens=Offsets(-1, 1, ("first",))).fit(X, Y)
    model.save(path)
    again = load_model(path)
    assert again.tokens == model.tokens
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    for tokens in ([-1, 3, []], [-1, 1, [[]]], [1, -1, []], [None, 1, []], [0]):
        model.save(path, overwrite=True)
        forge(path, params={"tokens": {"offsets": tokens}})
        with pytest.raises(ModelFileError):
            load_model(path)
