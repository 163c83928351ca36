"""The live line, JSON, and files that are written whole or not at all."""

import io
import json
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from sklearn.exceptions import ConvergenceWarning

from convexformer import ConvexAttentionRegressorCV
from convexformer.cli import _console, _outputs
from convexformer.cli._console import InputError
from convexformer.solvers import TracePoint


@pytest.fixture
def terminal(monkeypatch):
    """A terminal that keeps what is written to it."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, highlight=False)
    monkeypatch.setattr(_console, "err", console)
    return screen


def test_the_live_line_shows_gap_groups_and_time(terminal):
    with _console.live("fitting") as report:
        report(TracePoint(3, 0.1, 3.25e-5, 7))
    shown = terminal.getvalue()
    assert "fitting  relative gap" in shown and "3.2e-05" in shown and "7 groups" in shown
    assert "0:00:0" in shown


@pytest.mark.filterwarnings("ignore:The chosen beta")  # of two
def test_folds_and_betas_are_told_as_they_are_done():
    seen = []
    X = np.random.default_rng(0).normal(size=(40, 4, 2))
    report = _console.Report("fitting", lambda description: seen.append(description))
    ConvexAttentionRegressorCV(betas=[1.0, 0.5], cv=2, verbose=report).fit(X, X[:, 0, 0])
    folds = [f"fitting  fold {k} of 2, beta {i} of 2" for k in (1, 2) for i in (1, 2)]
    assert seen[:4] == folds
    assert len(seen) > 4 and all("relative gap" in line for line in seen[4:])


def test_warnings_follow_once_and_in_one_line(terminal):
    with _console.warned():
        for _ in range(2):
            warnings.warn("Stopped at\na gap", ConvergenceWarning, stacklevel=1)
        warnings.warn("not for users", DeprecationWarning, stacklevel=1)
    assert terminal.getvalue().count("Stopped at a gap") == 1
    assert "not for users" not in terminal.getvalue()


def test_json_has_no_nan_and_no_numpy():
    value = {"a": np.float32(1.5), "b": np.array([np.nan, 1.0]), "c": Path("x"), "d": [np.inf]}
    assert json.loads(_console.to_json(value)) == {
        "a": 1.5,
        "b": [None, 1.0],
        "c": "x",
        "d": [None],
    }


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    def fail(*paths):
        raise OSError(28, "No space left on device")

    file = tmp_path / "f.txt"
    file.write_text("old")
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        _outputs.write(file, "new")
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("exists", [False, True])
def test_what_cannot_be_written_is_found_before_work(tmp_path, monkeypatch, exists):
    if exists:
        (tmp_path / "m.st").write_text("old")
    monkeypatch.setattr(_outputs.os, "access", lambda *args: False)
    with pytest.raises(InputError, match="permission denied"):
        _outputs.check_output(tmp_path / "m.st", force=True)
