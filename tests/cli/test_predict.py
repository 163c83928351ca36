"""predict: the same numbers as the library, from every kind of file."""

import numpy as np
import pandas as pd
import pytest

import convexformer as cf


@pytest.mark.parametrize("cut", [("--group-by-prefix", "."), ("--n-tokens", 3), ()])
def test_predict_on_the_table_of_the_fit(run, run_json, csv, table, tmp_path, cut):
    out, file = tmp_path / "m.safetensors", tmp_path / "p.csv"
    run("fit", csv, "--target", "kind", "--drop", "y", "--out", out, *cut)
    result = run_json("predict", out, csv, "--out", file)
    assert result["n_samples"] == 80
    found, model = pd.read_csv(file), cf.load_model(out)
    features = table[model.feature_names_in_]
    assert list(found.columns) == ["prediction", "probability down", "probability up"]
    assert list(found["prediction"]) == list(model.predict(features))
    np.testing.assert_allclose(found.iloc[:, 1:], model.predict_proba(features), rtol=1e-9)


def test_predict_from_arrays(run, npz, arrays, tmp_path):
    out, file = tmp_path / "m.safetensors", tmp_path / "p.csv"
    run("fit", npz, "--target", "y", "--out", out)
    expected = cf.load_model(out).predict(arrays["X"])
    np.save(tmp_path / "X.npy", arrays["X"])
    np.savez(tmp_path / "X.npz", X=arrays["X"])
    for data in ("X.npy", "X.npz"):
        shown = run("predict", out, tmp_path / data, "--out", file, "--force").stdout
        assert shown.startswith("Wrote") and "(rows: 80)" in shown
        np.testing.assert_allclose(pd.read_csv(file)["prediction"], expected, rtol=1e-12)


def test_predict_names_what_is_missing(run, csv, npz, table, model, tmp_path):
    out, file = tmp_path / "t.safetensors", tmp_path / "p.csv"
    run("fit", csv, "--target", "y", "--drop", "kind", "--out", out)
    table.rename(columns={"head.x": "head.z"}).to_csv(tmp_path / "o.csv", index=False)
    error = run("predict", out, tmp_path / "o.csv", "--out", file, code=2).stderr
    assert "no column 'head.x'; its columns are head.z" in error
    assert "not fitted on a table" in run("predict", model, csv, "--out", file, code=2).stderr
    assert not file.exists()


def test_models_of_positions_are_explained_but_predict_no_table(
    run, run_json, npz, arrays, tmp_path
):
    out, file = tmp_path / "offsets.safetensors", tmp_path / "p.csv"
    model = cf.ConvexAttentionRegressor(0.3, tokens=cf.Offsets(-1, 1, landmarks=["mean"]))
    model.fit(arrays["X"], np.roll(arrays["X"], 1, axis=1)[:, :, 0]).save(out)
    assert run_json("explain", out)["tokens"][0] == "-1"
    sequence = tmp_path / "sequence.safetensors"
    cf.ConvexSequenceRegressor(0.3).fit(arrays["X"], arrays["X"]).save(sequence)
    for saved, what in ((out, "ConvexAttentionRegressor"), (sequence, "ConvexSequenceRegressor")):
        error = run("predict", saved, npz, "--out", file, code=2).stderr
        assert f"the model ({what}) predicts every position" in error
    assert not file.exists()


def test_predictions_are_not_called_what_they_are_not(run, npz, tmp_path):
    run("fit", npz, "--target", "y", "--out", tmp_path / "m.safetensors")
    error = run("predict", tmp_path / "m.safetensors", npz, "--out", tmp_path / "p.xlsx", code=2)
    assert "p.xlsx must end in .csv" in error.stderr and not (tmp_path / "p.xlsx").exists()
