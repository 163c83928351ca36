"""CertificateDisplay: the trace of a proof."""

import numpy as np
import pytest
from matplotlib import pyplot as plt
from sklearn.pipeline import make_pipeline

from convexformer import CertificateDisplay, ConvexAttentionRegressor


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 6, 3))
    return ConvexAttentionRegressor().fit(X, X[:, 2, 0] + rng.normal(size=100))


def test_line_is_the_trace(model):
    display = CertificateDisplay.from_estimator(model)
    seconds = [point.seconds for point in model.trace_]
    np.testing.assert_array_equal(display.line_.get_xdata(), seconds)
    gaps = [point.relative_gap for point in model.trace_]
    np.testing.assert_array_equal(display.relative_gaps, gaps)
    np.testing.assert_array_equal(display.line_.get_ydata(), np.maximum(gaps, 1e-16))
    assert display.ax_.get_yscale() == "log" and display.ax_.get_xlabel() == "seconds"


def test_title_tolerance_and_certificate_are_told(model):
    display = CertificateDisplay.from_estimator(model)
    gap = f"{model.certificate_.relative_gap:.1e}"
    assert display.ax_.get_title(loc="left").startswith(f"Proved optimal to {gap}")
    texts = " ".join(text.get_text() for text in display.ax_.texts)
    assert "tolerance 1e-06" in texts and f"relative duality gap {gap}" in texts


def test_of_a_refitted_model_the_selection_is_proved():
    X = np.random.default_rng(0).normal(size=(50, 3, 2))
    model = ConvexAttentionRegressor(0.3, refit=True).fit(X, X[:, 1, 0])
    display = CertificateDisplay.from_estimator(make_pipeline(model))
    assert display.ax_.get_title(loc="left").startswith("Selection proved optimal to ")
    notes = " ".join(text.get_text() for text in display.ax_.texts)
    assert notes.replace("\n", " ").endswith("These are not the certified optimum.")


def test_a_fit_that_stopped_early_says_so():
    display = CertificateDisplay([0.0, 1.0], [0.5, 1e-3], tol=1e-6).plot()
    assert "not yet optimal" in display.ax_.get_title(loc="left")


def test_gaps_below_zero_are_kept_and_drawn_at_the_floor():
    display = CertificateDisplay([0.0, 1.0], [0.5, -1e-16]).plot()
    assert display.relative_gap == -1e-16
    assert display.line_.get_ydata()[-1] == 1e-16


def test_given_axes_are_used(model):
    figure, ax = plt.subplots()
    display = CertificateDisplay.from_estimator(model, ax=ax, title="mine")
    assert display.ax_ is ax and display.figure_ is figure and ax.get_title(loc="left") == "mine"


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="has no trace_; fit it first"):
        CertificateDisplay.from_estimator(ConvexAttentionRegressor())
    with pytest.raises(ValueError, match="vectors of one length"):
        CertificateDisplay([0.0, 1.0], [0.5])
