"""The public face: what is there, and what importing it costs."""

import subprocess
import sys

import pytest

import convexformer


@pytest.mark.parametrize("name", convexformer.__all__)
def test_everything_promised_is_there(name):
    assert getattr(convexformer, name) is not None
    assert name in dir(convexformer)


def test_submodules_by_attribute():
    assert callable(convexformer.datasets.hla)
    assert convexformer.plotting.PathDisplay is convexformer.PathDisplay


def test_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'unheard'"):
        _ = convexformer.unheard


def test_import_is_quick_and_light():
    code = """
import sys, time
import sklearn.base, sklearn.utils.validation
start = time.process_time()
import convexformer
print(time.process_time() - start)
assert "torch" not in sys.modules
assert "matplotlib.pyplot" not in sys.modules and "convexformer.plotting" not in sys.modules
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(out.stdout) < 1.0
