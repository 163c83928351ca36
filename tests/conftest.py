"""Let every way of starting pytest find the shared helpers of this folder; and both cores."""

import importlib
import sys
from pathlib import Path

import pytest

from convexformer import _core
from convexformer._core import _numpy

ROOT = str(Path(__file__).resolve().parents[1])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)


@pytest.fixture
def compiled():
    """The compiled core, where there is one."""
    if not _core.COMPILED:
        pytest.skip("nothing was compiled")
    return importlib.import_module("convexformer._core._compiled")


@pytest.fixture(params=["compiled", "numpy"])
def core(request, monkeypatch):
    """Both cores, in turn: whatever calls a kernel calls that of this one."""
    chosen = request.getfixturevalue("compiled") if request.param == "compiled" else _numpy
    for name in _core.KERNELS:
        monkeypatch.setattr(_core, name, getattr(chosen, name))
    monkeypatch.setattr(_core, "COMPILED", request.param == "compiled")
    return chosen


@pytest.fixture(autouse=True)
def backend(monkeypatch):
    """Commands that run in this process choose a backend of matplotlib; none outlives its test."""
    monkeypatch.delenv("MPLBACKEND", raising=False)
