"""``fit --refit``: better few tokens, and no word of a certified optimum."""

import numpy as np
import pytest

import convexformer as cf


@pytest.fixture
def refitted(run_json, npz, tmp_path):
    out = tmp_path / "refitted.safetensors"
    options = ("--beta", "0.4", "--refit")
    return out, run_json("fit", npz, "--target", "y", "--out", out, *options)


def test_json_names_the_certificate_of_the_selection(refitted, arrays, run_json):
    out, result = refitted
    model = cf.load_model(out)
    again = cf.ConvexAttentionRegressor(0.4, refit=True).fit(arrays["X"], arrays["y"])
    np.testing.assert_array_equal(model.coef_, again.coef_)
    for described in (result, run_json("explain", out)):
        assert described["refit"] is True and described["converged"] is True
        assert "certificate" not in described and "relative_gap" not in described
        assert described["selection_certificate"] == model.selection_certificate_.to_dict()
        assert described["ridge"] == model.ridge_.tolist()
        assert described["beta"] == pytest.approx(0.4)
        norms = described["token_norms"]
        assert norms == pytest.approx(
            {"body": model.token_norms_[1], "tail": model.token_norms_[2]}
        )


def test_people_are_told(refitted, run, npz, tmp_path):
    shown = [run("explain", refitted[0], "--figure", tmp_path / "map.png").stdout]
    out = tmp_path / "other.safetensors"
    shown.append(run("fit", npz, "--target", "kind", "--out", out, "--refit", "--cv", 3).stdout)
    for text in shown:
        words = " ".join(text.split())
        assert "Refitted, not the certified optimum" in words
        assert "Tokens were selected by a certified optimum" in words
        assert "no model of this class" not in words


def test_predictions_are_the_refitted_ones(refitted, run, npz, arrays, tmp_path):
    import pandas as pd

    run("predict", refitted[0], npz, "--out", tmp_path / "p.csv")
    model = cf.load_model(refitted[0])
    predicted = pd.read_csv(tmp_path / "p.csv")["prediction"]
    np.testing.assert_allclose(predicted, model.predict(arrays["X"]))
    shrunk = np.tensordot(arrays["X"], model.selection_coef_[0], axes=2)
    assert np.std(predicted) > 1.2 * np.std(shrunk)


def test_without_refit(run_json, npz, tmp_path):
    result = run_json("fit", npz, "--target", "y", "--out", tmp_path / "m.safetensors")
    assert result["refit"] is False and "certificate" in result and "ridge" not in result


def test_explain_does_not_know_matrix_targets(run, tmp_path):
    X = np.random.default_rng(0).normal(size=(30, 4, 2))
    out = tmp_path / "sequence.safetensors"
    cf.ConvexSequenceRegressor(0.3, refit=True).fit(X, X[:, ::-1]).save(out)
    words = " ".join(run("explain", out, code=2).stderr.split())
    assert "(ConvexSequenceRegressor) predicts every position" in words
