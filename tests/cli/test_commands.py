"""fit, path and explain: results, JSON, and errors that leave files untouched."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import convexformer as cf
import convexformer.solvers
from convexformer._model_file import CHECKSUM, checksum


def test_version(run):
    assert run("--version").stdout == f"convexformer {cf.__version__}\n"


@pytest.mark.parametrize("compiled", [True, False])
def test_what_was_not_compiled_is_told(run, monkeypatch, compiled):
    monkeypatch.setattr(cf.solvers, "COMPILED", compiled)
    assert ("Not compiled" in run("--version").stdout) is not compiled


@pytest.mark.parametrize("command", ["demo", "fit", "path", "explain"])
def test_help(run, command):
    assert "--json" in run(command, "--help").stdout


# fit ------------------------------------------------------------------------------------------


def test_fit_saves_the_model_it_describes(run_json, npz, arrays, tmp_path):
    out = tmp_path / "m.safetensors"
    result = run_json("fit", npz, "--target", "kind", "--out", out, "--beta", "0.2")
    model = cf.load_model(out)
    again = cf.ConvexAttentionClassifier(0.2).fit(arrays["X"], arrays["kind"])
    np.testing.assert_array_equal(model.coef_, again.coef_)
    assert result["task"] == "classification" and result["classes"] == ["down", "up"]
    assert result["tokens"][:2] == ["body", "tail"]
    assert result["converged"] and result["relative_gap"] <= 1e-6
    assert result["certificate"]["primal"] == model.certificate_.primal
    assert result["beta"] == pytest.approx(0.2)
    assert model.verbose is False


def test_fit_for_people(run, npz, tmp_path):
    result = run("fit", npz, "--target", "y", "--out", tmp_path / "m.safetensors")
    assert "Regression on 80 x 3 x 2 (samples x tokens x channels)" in result.stdout
    assert "Certified optimum" in result.stdout and "body" in result.stdout


@pytest.mark.parametrize("penalty", ["token", "nuclear"])
def test_fit_options_reach_the_estimator(run, npz, tmp_path, penalty):
    out = tmp_path / "m.safetensors"
    options = ("--task", "regression", "--penalty", penalty, "--tol", "1e-4", "--max-time", "9")
    run("fit", npz, "--target", "y", "--out", out, *options)
    model = cf.load_model(out)
    assert isinstance(model, cf.ConvexAttentionRegressor)
    assert (model.penalty, model.tol, model.max_time) == (penalty, 1e-4, 9.0)


def test_fit_by_cross_validation(run, run_json, csv, tmp_path):
    out = tmp_path / "m.safetensors"
    columns = ("--group-by-prefix", ".", "--drop", "kind")
    result = run_json("fit", csv, "--target", "y", "--out", out, "--cv", 3, *columns)
    assert result["estimator"] == "ConvexAttentionRegressorCV"
    model = cf.load_model(out)
    assert result["beta"] == pytest.approx(model.beta_fraction_)
    assert result["cv"]["score"] == model.best_score_ and result["cv"]["folds"] == 3
    shown = run("fit", csv, "--target", "y", "--out", out, "--cv", 3, "--force", *columns).stdout
    assert f"beta chosen by 3-fold CV among 40, score {model.best_score_:.4g}" in shown


def test_the_betas_of_cross_validation_reach_as_far_as_asked(run, npz, tmp_path):
    out = tmp_path / "m.safetensors"
    words = ("fit", npz, "--target", "y", "--out", out, "--force", "--cv", 3)
    told = run(*words, "--eps", 0.2).stderr
    assert "is the smallest tried" in told and "pass a smaller --eps." in told
    assert cf.load_model(out).betas_[-1] == pytest.approx(0.2)
    run(*words)
    assert cf.load_model(out).betas_[-1] == pytest.approx(1e-3)


def test_cross_validation_that_chooses_no_token_gives_advice_on_options(run, arrays, tmp_path):
    np.savez(tmp_path / "n.npz", X=arrays["X"], y=np.random.default_rng(3).normal(size=80))
    words = ("fit", tmp_path / "n.npz", "--target", "y", "--out", tmp_path / "m.st", "--cv", 3)
    told = run(*words).stderr
    assert "chose the empty model" in told and "(--scale" in told and "TokenS" not in told


def test_explain_says_nothing_of_a_single_channel(run, arrays, tmp_path):
    three = np.digitize(arrays["y"], [-1, 1])
    np.savez(tmp_path / "one.npz", X=arrays["X"][:, :, 0], y=three, r=arrays["y"])
    for target, words in (("y", r"1 .* [02] [+-]\d\S+  [02] [+-]\d"), ("r", r"1 .*█  [+-]\d")):
        out = tmp_path / f"{target}.safetensors"
        run("fit", tmp_path / "one.npz", "--target", target, "--out", out)
        shown = run("explain", out).stdout
        assert "/0" not in shown
        assert re.search(words, shown), shown


@pytest.mark.parametrize("cut", [("--group-by-prefix", "."), ("--n-tokens", 3), ()])
def test_a_model_predicts_on_the_table_it_was_fitted_on(run, table, csv, tmp_path, cut):
    out = tmp_path / "m.safetensors"
    run("fit", csv, "--target", "y", "--drop", "kind", "--out", out, *cut)
    model = cf.load_model(out)
    features = table.drop(columns=["y", "kind"])
    assert list(model.feature_names_in_) == list(features.columns)
    expected = model.predict(features.to_numpy().reshape(80, *model.coef_.shape[1:]))
    np.testing.assert_allclose(model.predict(features), expected, rtol=1e-12)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(features.rename(columns={"head.x": "other"}))


def test_grouped_columns_are_kept_in_the_order_of_the_model(run, run_json, table, tmp_path):
    shuffled = table[["head.x", "body.x", "tail.x", "head.y", "body.y", "tail.y", "y"]]
    shuffled.to_csv(tmp_path / "s.csv", index=False)
    out = tmp_path / "m.safetensors"
    run("fit", tmp_path / "s.csv", "--target", "y", "--out", out, "--group-by-prefix", ".")
    model = cf.load_model(out)
    assert list(model.feature_names_in_) == list(table.columns[:6])
    assert model.score(table[model.feature_names_in_], table["y"]) > 0.9
    assert run_json("explain", out)["tokens"][:2] == ["body", "tail"]


def test_a_fit_out_of_time_warns_and_is_saved(run, npz, tmp_path):
    out = tmp_path / "m.safetensors"
    arguments = ("fit", npz, "--target", "kind", "--out", out, "--max-time", "1e-9", "--json")
    result = run(*arguments, "--tol", "1e-12", "--beta", "0.001")
    assert json.loads(result.stdout)["converged"] is False
    assert "warning: Stopped at a relative duality gap" in result.stderr
    assert out.exists()


@pytest.mark.parametrize("command", ["fit", "path"])
def test_arrays_used_for_their_names_are_told(run, run_json, arrays, tmp_path, command):
    mask = np.ones((80, 3), dtype=bool)
    mask[:24] = False, True, True
    np.savez(
        tmp_path / "m.npz", mask=mask, sample_weight=np.ones(80), token_names=list("abc"), **arrays
    )
    out = tmp_path / ("o.safetensors" if command == "fit" else "o.csv")
    words = (command, tmp_path / "m.npz", "--target", "y", "--out", out, "--force")
    told = run(*words).stderr
    assert "note: mask: 10 % of tokens are padding\n" in told
    assert "note: used for their names: mask, sample_weight, token_names\n" in told
    assert run_json(*words)["notes"][1] == "mask: 10 % of tokens are padding"
    assert "sample_weight" in run(command, "--help").stdout


def test_scales_that_differ_are_told_and_mended(run, run_json, arrays, table, tmp_path):
    wide = table.drop(columns="kind")
    wide[["tail.x", "tail.y"]] *= 1e4
    wide.to_csv(tmp_path / "w.csv", index=False)
    out = tmp_path / "m.safetensors"
    words = ("--target", "y", "--group-by-prefix", ".", "--force", "--out")
    told = run("fit", tmp_path / "w.csv", *words, out).stderr
    assert "note: token scales differ" in told and "use --scale" in told
    result = run_json("fit", tmp_path / "w.csv", *words, out, "--scale")
    assert result["notes"] == [] and result["converged"]
    # The same optimum as that of data divided by their scales.
    scales = np.sqrt(np.var(arrays["X"], axis=0).mean(axis=1))
    divided = cf.ConvexAttentionRegressor(0.1).fit(arrays["X"] / scales[:, None], arrays["y"])
    norms = dict(zip(["head", "body", "tail"], divided.token_norms_, strict=True))
    assert result["tokens"] == sorted(result["tokens"], key=norms.get, reverse=True)
    for token, norm in result["token_norms"].items():
        assert norm == pytest.approx(norms[token], rel=1e-3)
    features = wide.drop(columns="y")
    expected = divided.predict(arrays["X"] / scales[:, None])
    np.testing.assert_allclose(cf.load_model(out).predict(features), expected, rtol=1e-2, atol=1e-2)
    path = run_json("path", tmp_path / "w.csv", *words, tmp_path / "p.csv", "--scale")
    assert path["entry_order"][:2] == ["body", "tail"]


@pytest.mark.parametrize("choose", [("--beta", "0.2"), ("--cv", "3")])
def test_gates_make_a_gated_model(run_json, npz, tmp_path, choose):
    out = tmp_path / "m.safetensors"
    options = ("--gates", "5", "--seed", "3", *choose)
    result = run_json("fit", npz, "--target", "kind", "--out", out, *options)
    model = cf.load_model(out)
    assert type(model).__name__ == result["estimator"]
    assert result["estimator"].startswith("ConvexTransformerClassifier")
    assert (model.n_gates, model.random_state) == (5, 3) and len(model.gate_thresholds_) == 6
    assert result["tokens"] and result["relative_gap"] <= 1e-6


# path -----------------------------------------------------------------------------------------


def test_path_to_a_table(run_json, npz, tmp_path):
    file = tmp_path / "path.csv"
    result = run_json("path", npz, "--target", "y", "--out", file, "--n-betas", 8)
    assert result["entry_order"][:2] == ["body", "tail"] and result["file"] == str(file)
    assert len(result["models"]) == 8 and result["relative_gap"] <= 1e-6
    frame = pd.read_csv(file)
    assert list(frame.columns[-3:]) == ["head", "body", "tail"]
    norms = [model["token_norms"] for model in result["models"]]
    np.testing.assert_allclose(frame[["head", "body", "tail"]], norms, rtol=1e-12)


@pytest.mark.parametrize("name", ["p.csv", "p.png", "p.svg", "p.pdf"])
def test_path_to_one_file(run, npz, tmp_path, name):
    run("path", npz, "--target", "y", "--out", tmp_path / name, "--n-betas", 3)
    assert (tmp_path / name).stat().st_size > 0


def test_path_for_people(run, npz):
    out = run("path", npz, "--target", "kind").stdout
    assert "Tokens enter in the order body tail" in out and "40 of 40 models are certified" in out


def test_a_path_out_of_time_says_how_many_did_not_converge(run, npz):
    words = ("path", npz, "--target", "kind", "--max-time", "1e-9", "--tol", "1e-12")
    shown = " ".join(run(*words).stdout.split())
    result = json.loads(run(*words, "--json").stdout)
    failed = sum(not model["converged"] for model in result["models"])
    assert failed > 0 and f"{40 - failed} of 40 models are certified" in shown


def test_constant_targets_need_no_token(run, run_json, arrays, tmp_path):
    np.savez(tmp_path / "c.npz", X=arrays["X"], y=np.full(80, 2.5))
    fit = ("fit", tmp_path / "c.npz", "--target", "y", "--task", "regression", "--force")
    result = run_json(*fit, "--out", tmp_path / "m.safetensors")
    assert result["tokens"] == [] and result["relative_gap"] == 0 and result["beta"] is None
    assert "0 of 3 tokens are used." in run(*fit, "--out", tmp_path / "m.safetensors").stdout
    options = ("--target", "y", "--task", "regression")
    assert "No token enters" in run("path", tmp_path / "c.npz", *options).stdout


# explain --------------------------------------------------------------------------------------


def test_explain_remembers_names(run_json, model):
    result = run_json("explain", model)
    assert result["tokens"][:2] == ["body", "tail"]
    largest = result["reads"]["body"][0]
    assert largest["channel"] == "x" and largest["coefficient"] > 0


def test_explain_a_gated_model(run, run_json, arrays, tmp_path):
    gates = {"n_gates": 5, "gate_weight": 1.0, "random_state": 0}
    model = cf.ConvexTransformerClassifier(0.2, **gates, tol=1e-3)
    model.fit(arrays["X"], arrays["kind"]).save(tmp_path / "g.safetensors")
    result = run_json("explain", tmp_path / "g.safetensors", "--figure", tmp_path / "g.png")
    assert set(result["gates"]) == set(np.flatnonzero(model.gate_norms_).tolist())
    assert result["token_norms"]["1"] == pytest.approx(model.token_norms_[1])
    term = result["reads"]["1"][0]
    channel = int(term["channel"])
    assert term["coefficient"] == model.coef_[0, term["gate"], 1, channel]
    assert (tmp_path / "g.png").stat().st_size > 0
    assert "of 6 gates are used" in run("explain", tmp_path / "g.safetensors").stdout


def test_fit_says_how_many_gates_are_used(run, npz, tmp_path):
    fit = ("fit", npz, "--target", "y", "--gates", "5", "--beta")
    weak = run(*fit, "0.001", "--out", tmp_path / "weak.safetensors").stdout
    assert re.search(r"tokens and [2-6] of 6 gates\s+are used at beta = 0.001", weak)
    strong = run(*fit, "0.999", "--out", tmp_path / "strong.safetensors").stdout
    assert "1 of 6 gates are used" in strong


def test_without_the_open_gate_none_is_said_to_be_always_open(run, run_json, arrays, tmp_path):
    opens_at_0 = np.zeros((1, 3, 2))
    opens_at_0[0, 1] = 1.0
    model = cf.ConvexTransformerClassifier(
        0.2, gates=(opens_at_0, np.zeros(1)), open_gate=False, tol=1e-3
    )
    model.fit(arrays["X"], arrays["kind"]).save(tmp_path / "g.safetensors")
    result = run_json("explain", tmp_path / "g.safetensors")
    assert (result["gates"], result["always_open"]) == ([0], [])
    shown = run("explain", tmp_path / "g.safetensors").stdout
    assert "1 of 1 gates are used" in shown and "(gate 0)" in shown


def test_explain_cuts_nothing_where_lines_are_short(run, arrays, tmp_path, monkeypatch):
    model = cf.ConvexTransformerClassifier(0.2, n_gates=5, random_state=0, tol=1e-3)
    model.fit(arrays["X"], arrays["kind"])
    model.channel_names_ = np.array(["hydrophobicity", "charge at neutral pH"])
    model.save(tmp_path / "g.safetensors")
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("explain", tmp_path / "g.safetensors").stdout
    assert "…" not in shown and max(map(len, shown.splitlines())) <= 80
    row = next(line.split() for line in shown.splitlines() if line.startswith("1 "))
    assert row[1] == f"{model.token_norms_[1]:#.3g}"


def test_explain_with_other_names_and_a_figure(run, model, tmp_path):
    figure = tmp_path / "map.png"
    out = run("explain", model, "--tokens", "A,B,C", "--channels", "p,q", "--figure", figure).stdout
    assert "B" in out and "p +" in out and "+ speaks for up" in out
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_explain_several_classes(run, run_json, arrays, tmp_path):
    three = np.digitize(arrays["y"], [-1, 1])
    np.savez(tmp_path / "three.npz", X=arrays["X"], y=three)
    out = tmp_path / "m.safetensors"
    run("fit", tmp_path / "three.npz", "--target", "y", "--out", out)
    result = run_json("explain", out)
    assert result["n_outputs"] == 3
    assert {term["output"] for terms in result["reads"].values() for term in terms} <= set("012")
    assert "2/0 +" in run("explain", out).stdout


# errors ---------------------------------------------------------------------------------------


def snapshot(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("fit none.npz --target y --out m.st", "there is no file"),
        ("fit data.npz --target z --out m.st", "no array 'z'; it holds"),
        ("fit data.npz --target y --out old.st", "old.st exists; use --force"),
        ("fit none.npz --target y --out old.st", "there is no file"),
        ("fit data.npz --target z --out old.st", "no array 'z'; it holds"),
        ("path data.npz --target z --out old.csv", "no array 'z'; it holds"),
        ("predict good.st none.npz --out old.csv", "there is no file none.npz"),
        ("predict good.st data.npz --out old.csv", "old.csv exists; use --force"),
        ("fit data.npz --target X --out m.st", "ConvexSequenceRegressor, or tokens=Offsets"),
        ("fit data.npz --target y --out no/m.st", "does not exist; create it"),
        ("fit data.npz --target y --out data.npz/m.st", "does not exist; create it"),
        ("fit data.npz --target y --out folder --force", "is a directory"),
        ("fit data.npz --target y --out m.st --n-tokens 7", "X has 3 tokens"),
        ("fit data.npz --target y --out m.st --beta -1", "beta must be a positive number"),
        ("fit data.npz --target y --out m.st --beta 0.1 --cv 3", "give --cv or --beta"),
        ("fit data.npz --target y --out m.st --eps 0.1", "give --cv as well"),
        ("fit data.npz --target y --out m.st --tol 0", "tol must be a positive number"),
        ("fit nan.npz --target y --out m.st", "X contains NaN or infinity"),
        ("fit short.npz --target y --out m.st", "inconsistent"),
        ("fit flat.npz --target y --out m.st", "X must be 3-D"),
        ("fit one.npz --target y --out m.st --task classification", "y has only one class"),
        ("fit words.npz --target y --out m.st", "X must hold numbers, got text"),
        ("path data.npz --target y --out old.csv", "old.csv exists; use --force"),
        ("path data.npz --target y --out p.docx", "must end in .csv or .png"),
        ("path data.npz --target y --out folder", "must end in .csv or .png"),
        ("path data.npz --target y --out no/p.csv", "does not exist; create it"),
        ("path data.npz --target y --eps 2", "eps"),
        ("explain none.st", "there is no file"),
        ("explain data.npz", "no safetensors file"),
        ("explain spoilt.st", "checksum does not agree"),
        ("predict spoilt.st data.npz --out new.csv", "checksum does not agree"),
        ("explain cut.st", "truncated"),
        ("explain newer.st", "format version 9"),
        ("explain foreign.st", "holds no convexformer model"),
        ("explain good.st --tokens A,B", "a list of 3 names, got 2"),
        ("explain good.st --tokens A,B,A", "same name twice"),
        ("explain good.st --figure map.bmp", "must end in .png or"),
        ("explain good.st --figure old.png", "old.png exists; use --force"),
        ("demo --out demo", "tokens.png exists; use --force"),
        ("demo --out old", "old is a file"),
        ("demo --out no/demo", "does not exist; create it"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_bad_input_is_one_line_and_touches_nothing(
    place, run, monkeypatch, arguments, message, as_json
):
    monkeypatch.chdir(place)
    before = snapshot(place)
    result = run(*arguments.split(), *(["--json"] if as_json else []), code=2)
    if as_json:
        assert message in json.loads(result.stdout)["error"]
    else:
        assert result.stdout == ""
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert message in result.stderr
    assert snapshot(place) == before


@pytest.fixture(scope="module")
def place(tmp_path_factory, arrays):
    """A folder with good and bad files of every kind."""
    folder = tmp_path_factory.mktemp("place")
    X, y = arrays["X"], arrays["y"]
    bad = X.copy()
    bad[3, 1, 0] = np.nan
    np.savez(folder / "data.npz", X=X, y=y)
    np.savez(folder / "nan.npz", X=bad, y=y)
    np.savez(folder / "short.npz", X=X, y=y[:-1])
    np.savez(folder / "flat.npz", X=y, y=y)
    np.savez(folder / "one.npz", X=X, y=np.zeros(80))
    np.savez(folder / "words.npz", X=np.full((80, 3, 2), "a"), y=y)
    cf.ConvexAttentionRegressor().fit(X, y).save(folder / "good.st")
    model = (folder / "good.st").read_bytes()
    (folder / "cut.st").write_bytes(model[:-20])
    (folder / "spoilt.st").write_bytes(model[:-40] + b"8 others" + model[-32:])
    (folder / "newer.st").write_bytes(_of_version(model, b"9"))
    from safetensors.numpy import save_file

    save_file({"a": np.zeros(3)}, folder / "foreign.st")
    (folder / "folder").mkdir()
    (folder / "demo").mkdir()
    for name in ("old.st", "old.csv", "old.png", "old", "demo/tokens.png"):
        (folder / name).write_text("precious")
    return folder


def _of_version(model, version):
    """The same model as a file of another format."""
    newer = bytearray(model.replace(b'"format_version":"2"', b'"format_version":"%s"' % version))
    newer[CHECKSUM] = checksum(newer)
    assert newer != model
    return newer


def test_old_models_are_read_with_a_warning(run):
    old = (
        Path(__file__).parents[1]
        / "estimators"
        / "models"
        / "ConvexAttentionClassifier.safetensors"
    )
    result = run("explain", old)
    assert "Certified optimum" in result.stdout
    assert result.stderr.startswith("warning: ") and "has no checksum (format 1)" in result.stderr
    assert result.stderr.count("\n") == 1


def test_force_overwrites(run, model, npz, tmp_path):
    figure = tmp_path / "map.png"
    figure.write_text("old")
    run("explain", model, "--figure", figure, "--force")
    assert figure.read_bytes().startswith(b"\x89PNG")
    before = model.read_bytes()
    run("fit", npz, "--target", "y", "--out", model, "--force")
    assert model.read_bytes() != before
