"""Small data files, and a way to run commands inside the test process."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from convexformer.cli import app

TOKENS = ["head", "body", "tail"]
CHANNELS = ["x", "y"]


@pytest.fixture(scope="session")
def run():
    """``run("fit", path, ...)`` gives exit_code, stdout and stderr; a bug raises."""

    def call(*arguments, code=0):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    return call


@pytest.fixture(scope="session")
def run_json(run):
    """The same with --json: stdout must be one JSON object and nothing else."""

    def call(*arguments):
        out = run(*arguments, "--json").stdout
        assert out.endswith("}\n") and out.count("\n") == 1
        return json.loads(out)

    return call


@pytest.fixture(scope="session")
def arrays():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3, 2))
    score = 2 * X[:, 1, 0] - X[:, 2, 1]
    return {
        "X": X,
        "y": score + 0.1 * rng.normal(size=80),
        "kind": np.where(score > 0, "up", "down"),
    }


@pytest.fixture
def npz(arrays, tmp_path):
    np.savez(tmp_path / "data.npz", token_names=TOKENS, channel_names=CHANNELS, **arrays)
    return tmp_path / "data.npz"


@pytest.fixture
def table(arrays):
    columns = [f"{token}.{channel}" for token in TOKENS for channel in CHANNELS]
    return pd.DataFrame(arrays["X"].reshape(80, 6), columns=columns).assign(
        y=arrays["y"], kind=arrays["kind"]
    )


@pytest.fixture
def csv(table, tmp_path):
    table.to_csv(tmp_path / "data.csv", index=False)
    return tmp_path / "data.csv"


@pytest.fixture
def model(run, npz, tmp_path):
    run("fit", npz, "--target", "kind", "--out", tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"
