"""Displays in a notebook: every cell that draws shows its figure, the user's own cells included."""

import nbformat
import pytest
from nbclient import NotebookClient

DISPLAY = """\
from convexformer import CertificateDisplay
CertificateDisplay([0.0, 0.1, 0.2], [0.5, 1e-3, 2e-7], tol=1e-6).plot();"""
OWN = """\
from matplotlib import pyplot
pyplot.plot([1, 2, 3]);"""
STATE = """\
import matplotlib
print(matplotlib.get_backend(), matplotlib.is_interactive(), matplotlib.rcParams["font.size"])"""
PATIENCE = 300  # seconds: a busy machine starts kernels slowly
FONT_SIZE = 7.0  # points; differs from matplotlib's default and from that of our figures


def run(*cells):
    """Execute code cells in one kernel; return the outputs of each."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=PATIENCE, startup_timeout=PATIENCE).execute()
    return [cell.outputs for cell in notebook.cells]


def images(outputs):
    """How many of the outputs of a cell are pictures."""
    return sum("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.parametrize("first", ["pass", "import matplotlib.pyplot", "%matplotlib inline"])
def test_every_figure_is_shown_once(first):
    outputs = run(first, DISPLAY, OWN, DISPLAY, OWN)
    assert [images(cell) for cell in outputs] == [0, 1, 1, 1, 1]


def test_backend_interactive_state_and_settings_stay_those_of_the_notebook():
    """Also settings that the backend applies when the first figure activates it."""
    own = f'%config InlineBackend.rc = {{"font.size": {FONT_SIZE}}}'
    *_, without, _ = run(own, OWN, STATE, "pass")
    *_, with_display = run(own, DISPLAY, STATE)
    assert with_display[0]["text"] == without[0]["text"]
    assert f"True {FONT_SIZE}" in with_display[0]["text"]
