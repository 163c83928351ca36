"""No command overwrites a file that it reads, and no model takes the name of a data file."""

import os

import numpy as np
import pytest


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


def test_path_into_a_folder_never_overwrites_its_data(run, csv, tmp_path):
    data = csv.rename(tmp_path / "path.csv")
    before = data.read_bytes()
    options = ("--target", "y", "--drop", "kind", "--out", tmp_path, "--force")
    assert (
        "path.csv is a file that this command reads" in run("path", data, *options, code=2).stderr
    )
    assert data.read_bytes() == before


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


@pytest.mark.parametrize("name", ["m.csv", "m.TSV", "m.npz", "m.npy", "m.parquet", "m.csv.gz"])
def test_models_are_not_named_as_data(run, npz, tmp_path, name):
    error = run("fit", npz, "--target", "y", "--out", tmp_path / name, code=2).stderr
    assert f"{name} is the name of a data file; name it m.safetensors" in error
    assert not (tmp_path / name).exists()
