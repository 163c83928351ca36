"""PathDisplay: lines, counts, marks and scores of a path."""

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from sklearn.pipeline import make_pipeline

from convexformer import (
    ConvexAttentionRegressor,
    ConvexAttentionRegressorCV,
    ConvexTransformerRegressor,
    ConvexTransformerRegressorCV,
    Offsets,
    PathDisplay,
    TokenScaler,
    attention_path,
)

TOKENS = [f"P{k}" for k in range(1, 13)]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 12, 2))
    return X, 2 * X[:, 4, 0] + X[:, 7, 1] + 0.5 * rng.normal(size=120)


@pytest.fixture(scope="module")
def path(data):
    return attention_path(ConvexAttentionRegressor(), *data, n_betas=12)


def test_lines_are_the_norms_from_entry_on(path):
    display = PathDisplay.from_path(path, tokens=TOKENS)
    for k, line in enumerate(display.lines_):
        drawn = line.get_ydata()
        shown = np.isfinite(drawn)
        np.testing.assert_array_equal(drawn[shown], path.token_norms[shown, k])
        assert np.all(path.token_norms[~shown, k] == 0)
    np.testing.assert_array_equal(display.lines_[0].get_xdata(), path.betas)
    np.testing.assert_array_equal(display.n_tokens_used, path.n_tokens_used)


def test_order_of_entry_is_the_title(path):
    display = PathDisplay.from_path(path, tokens=TOKENS)
    assert display.entry_order()[:2] == ["P5", "P8"]
    assert display.ax_.get_title(loc="left").startswith("P5 enters first, then P8")
    assert display.score_ax_ is None
    left, right = display.ax_.get_xlim()
    assert left > right  # the penalty weakens to the right


def test_tokens_have_their_own_names(data):
    X, y = data
    tied = ConvexAttentionRegressor(tokens=Offsets(-2, 2))
    offsets = attention_path(tied, X, X[:, :, 0], n_betas=3)
    title = PathDisplay.from_path(offsets).ax_.get_title(loc="left")
    assert title == "0 is the only token to enter"
    table = pd.DataFrame(X[:, :, 0], columns=TOKENS)
    assert (
        PathDisplay.from_path(
            attention_path(ConvexAttentionRegressor(), table, y, n_betas=3)
        ).token_names
        == TOKENS
    )
    assert (
        PathDisplay.from_path(
            attention_path(ConvexAttentionRegressor(), X, y, n_betas=3)
        ).token_names[-1]
        == "11"
    )


def test_a_model_is_no_path(data):
    model = ConvexAttentionRegressor()
    for wrong in (model, model.fit(*data)):
        with pytest.raises(ValueError, match=r"got ConvexAttentionRegressor.*from_estimator"):
            PathDisplay.from_path(wrong)


def test_largest_tokens_are_in_the_legend_and_the_rest_counted(path):
    display = PathDisplay.from_path(path, tokens=TOKENS)
    shown = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert set(shown[:2]) == {"P5", "P8"}
    hidden = path.n_tokens_used[-1] - 9
    assert hidden > 0 and shown[-1] == f"{hidden} more" and len(shown) == 10
    (top,) = display.ax_.child_axes
    counts = [int(label.get_text()) for label in top.get_xticklabels()]
    np.testing.assert_array_equal(counts, path.n_tokens_used)


def test_scores_and_marks_are_drawn_below(path):
    scores = np.linspace(0, 1, 12)
    display = PathDisplay.from_path(
        path, scores=scores, score_name="AUC", marks={"best": float(path.betas[3])}
    )
    assert display.score_ax_ is not display.ax_
    assert display.score_ax_.get_ylabel() == "AUC"
    np.testing.assert_array_equal(display.score_ax_.lines[0].get_ydata(), scores)
    assert "best" in {text.get_text() for text in display.ax_.texts}
    assert any(np.all(line.get_xdata() == path.betas[3]) for line in display.score_ax_.lines)


def test_any_order_of_betas(path):
    shuffled = np.random.default_rng(0).permutation(12)
    display = PathDisplay(path.betas[shuffled], path.token_norms[shuffled], scores=shuffled)
    np.testing.assert_array_equal(display.betas, path.betas)
    np.testing.assert_array_equal(display.token_norms, path.token_norms)
    np.testing.assert_array_equal(display.scores, np.arange(12))


def test_cross_validation_shows_scores_and_choice(data):
    model = ConvexAttentionRegressorCV(cv=3, n_betas=8).fit(*data)
    display = PathDisplay.from_estimator(model)
    assert display.score_ax_ is display.ax_
    np.testing.assert_array_equal(display.scores, model.mean_scores_)
    assert display.marks == {"chosen": model.beta_fraction_}
    assert f"{model.beta_fraction_:.3g}" in display.ax_.get_title(loc="left")
    assert "3 folds" in display.ax_.get_ylabel()


def test_given_axes_are_used(path):
    figure, ax = plt.subplots()
    display = PathDisplay.from_path(path, ax=ax, scores=np.zeros(12), title="mine")
    assert display.ax_ is ax and display.figure_ is figure and ax.get_title(loc="left") == "mine"


def test_a_path_without_tokens_and_one_beta():
    display = PathDisplay([1.0], np.zeros((1, 3))).plot()
    assert display.ax_.get_title(loc="left").startswith("No token enters")
    display.figure_.canvas.draw()


def test_bad_input_is_named(path):
    with pytest.raises(ValueError, match="leave beta = 0 out"):
        PathDisplay([1.0, 0.0], np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"token_norms must have shape \(2, n\)"):
        PathDisplay([1.0, 0.5], np.zeros((3, 3)))
    with pytest.raises(ValueError, match="nothing to draw"):
        PathDisplay([1.0])
    with pytest.raises(ValueError, match=r"scores must have shape \(12,\)"):
        PathDisplay.from_path(path, scores=[1.0])
    with pytest.raises(ValueError, match="needs a fitted CV estimator"):
        PathDisplay.from_estimator(ConvexAttentionRegressorCV())


def test_gated_and_weighted_paths(data):
    X, y = data
    weights = np.linspace(0.5, 2.0, 12)
    gated = ConvexTransformerRegressor(n_gates=3, random_state=0, token_weights=weights)
    path = attention_path(gated, X, y, n_betas=5, eps=0.1)
    display = PathDisplay.from_path(path)
    np.testing.assert_allclose(display.token_norms, path.token_norms * weights)
    assert display.ax_.get_ylabel() == "weighted norm, summed over gates"
    assert display.entry_order()[0] == "4"
    plain = PathDisplay.from_path(
        attention_path(ConvexAttentionRegressor(), X, y, n_betas=5, eps=0.1)
    )
    assert plain.ax_.get_ylabel() == "token norm"


def test_cross_validation_of_gated_models_refitted_models_and_pipelines(data):
    options = {"n_betas": 4, "eps": 0.1, "cv": 2}
    gated = ConvexTransformerRegressorCV(n_gates=3, random_state=0, **options)
    refitted = ConvexAttentionRegressorCV(refit=True, **options)
    for model, end in ((gated, "β$_{\\max}$"), (refitted, "β$_{\\max}$ for refitted models")):
        pipeline = make_pipeline(TokenScaler(), model).fit(*data)
        display = PathDisplay.from_estimator(pipeline)
        np.testing.assert_array_equal(display.scores, pipeline[-1].mean_scores_)
        assert display.ax_.get_title(loc="left").endswith(end)
