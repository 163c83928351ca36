"""No command overwrites a file that it reads; odd names and sizes of tables do no harm."""

import os

import numpy as np


def test_fit_and_path_never_overwrite_their_data(run, csv, tmp_path):
    before = csv.read_bytes()
    (tmp_path / "link.safetensors").symlink_to(csv)
    os.link(csv, tmp_path / "hard.safetensors")
    for out in ("data.csv", "link.safetensors", "hard.safetensors"):
        for command in ("fit", "path")[: 2 if out == "data.csv" else 1]:
            for force in ((), ("--force",)):
                options = ("--target", "y", "--drop", "kind", "--out", tmp_path / out, *force)
                error = run(command, csv, *options, code=2).stderr
                assert f"{out} is a file that this command reads" in error
    assert csv.read_bytes() == before


def test_predict_never_overwrites_its_data(run, csv, tmp_path):
    model = tmp_path / "m.safetensors"
    run("fit", csv, "--target", "y", "--drop", "kind", "--out", model)
    before = csv.read_bytes()
    error = run("predict", model, csv, "--out", csv, "--force", code=2).stderr
    assert "data.csv is a file that this command reads" in error and csv.read_bytes() == before


def test_explain_never_overwrites_its_model(run, model, tmp_path):
    figure = model.rename(tmp_path / "model.png")
    before = figure.read_bytes()
    error = run("explain", figure, "--figure", figure, "--force", code=2).stderr
    assert "model.png is a file that this command reads" in error
    assert figure.read_bytes() == before


def test_targets_of_a_second_file_are_kept(run, arrays, tmp_path):
    np.save(tmp_path / "X.npy", arrays["X"])
    np.save(tmp_path / "y.npy", arrays["y"])
    os.link(tmp_path / "y.npy", tmp_path / "m.safetensors")
    options = ("--target", tmp_path / "y.npy", "--out", tmp_path / "m.safetensors", "--force")
    assert "this command reads" in run("fit", tmp_path / "X.npy", *options, code=2).stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), arrays["y"])


def test_predict_says_that_a_table_has_no_rows(run, csv, table, tmp_path):
    model = tmp_path / "m.safetensors"
    run("fit", csv, "--target", "y", "--drop", "kind", "--out", model)
    table.iloc[:0].to_csv(tmp_path / "e.csv", index=False)
    error = run("predict", model, tmp_path / "e.csv", "--out", tmp_path / "p.csv", code=2).stderr
    assert "with 0 sample(s)" in error


def test_too_many_folds_are_told(run, npz, tmp_path):
    words = ("fit", npz, "--out", tmp_path / "m.safetensors", "--cv", 500, "--target")
    error = run(*words, "y", code=2).stderr
    assert "n_splits=500 greater than the number of samples: n_samples=80" in error
    assert "n_splits=500" in run(*words, "kind", code=2).stderr


def test_one_sample_is_fitted_with_a_warning(run, table, tmp_path):
    table.drop(columns="kind").iloc[:1].to_csv(tmp_path / "one.csv", index=False)
    told = run("fit", tmp_path / "one.csv", "--target", "y", "--out", tmp_path / "m.safetensors")
    assert "Regression on 1 x " in told.stdout
    assert "warning: X has one sample" in told.stderr
