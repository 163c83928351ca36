"""Figures in tests are drawn without a screen and closed afterwards."""

import matplotlib
import pytest


@pytest.fixture(autouse=True)
def _headless():
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    before = dict(matplotlib.rcParams)
    yield
    plt.close("all")
    assert dict(matplotlib.rcParams) == before, "a display changed the user's settings"
