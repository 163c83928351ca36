"""How files are written: whole or not at all, by one process or by many, over files and links."""

import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from convexformer import ConvexAttentionClassifier, ConvexAttentionRegressor, load_model

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 4, 3))
y = X[:, 1, 0] + 0.3 * rng.normal(size=40)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.fixture(scope="module")
def model():
    return ConvexAttentionRegressor().fit(X, y)


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


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
def test_mode_is_kept_and_new_files_follow_the_umask(path, model):
    before = os.umask(0o027)
    try:
        model.save(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o604)
        model.save(path, overwrite=True)
        assert stat.S_IMODE(path.stat().st_mode) == 0o604
    finally:
        os.umask(before)


@pytest.mark.skipif(os.name == "nt", reason="symlinks need rights on Windows")
@pytest.mark.parametrize("exists", [True, False])
def test_symlink_stays_and_its_target_is_written(path, tmp_path, model, exists):
    target = tmp_path / "folder" / "target"
    target.parent.mkdir()
    if exists:
        target.write_text("old")
    path.symlink_to(Path("folder") / "target")
    model.save(path, overwrite=exists)
    assert path.is_symlink()
    assert not target.is_symlink()
    np.testing.assert_array_equal(load_model(target).coef_, model.coef_)
    assert os.listdir(target.parent) == ["target"]


@pytest.mark.skipif(os.name == "nt", reason="symlinks need rights on Windows")
def test_circular_symlink_is_refused(path, model):
    path.symlink_to(path)
    with pytest.raises(OSError, match="leads back to itself"):
        model.save(path)
    assert path.is_symlink()


def test_file_and_folder_are_synced_in_order(path, model, monkeypatch):
    done = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda f: (done.append(stat.S_IFMT(os.fstat(f).st_mode)), sync(f))
    )
    monkeypatch.setattr(os, "replace", lambda *paths: (done.append("replace"), replace(*paths)))
    model.save(path)
    expected = [stat.S_IFREG, "replace", stat.S_IFDIR]
    assert done == expected[: 2 if os.name == "nt" else 3]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, MemoryError])
@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_nothing_is_left_of_an_interrupted_save(path, model, monkeypatch, step, error):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(error):
        model.save(path)
    assert not os.listdir(path.parent)


SAVE_FOREVER = """
    import sys
    from convexformer import load_model
    model = load_model(sys.argv[1])
    print("ready", flush=True)
    while True:
        model.save(sys.argv[2], overwrite=True)
"""


def saving_process(source, path):
    """A process that saves a model again and again, when it has begun to."""
    code = [sys.executable, "-c", textwrap.dedent(SAVE_FOREVER), str(source), str(path)]
    process = subprocess.Popen(code, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def test_parts_of_killed_saves_are_removed_and_those_of_living_ones_kept(path, tmp_path, model):
    killed, living = (tmp_path / f".model.safetensors.{name}.part" for name in ("12ab", "34cd"))
    other = tmp_path / ".other.safetensors.12ab.part"
    for part in (killed, living, other):
        part.write_text("half")
    for part in (killed, other):
        os.utime(part, (0, 0))
    model.save(path)
    assert not killed.exists() and living.exists() and other.exists()


@pytest.mark.skipif(os.name == "nt", reason="readers keep files from being replaced")
def test_savers_and_readers_do_not_disturb_each_other(path, tmp_path, model):
    source = tmp_path / "source"
    model.save(source)
    model.save(path)
    process = saving_process(source, path)
    try:
        for _ in range(30):
            model.save(path, overwrite=True)
            np.testing.assert_array_equal(load_model(path).coef_, model.coef_)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
