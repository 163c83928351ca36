"""TokenMapDisplay: the right numbers in the right places, under the right names."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from convexformer import (
    ConvexAttentionClassifier,
    ConvexAttentionRegressor,
    ConvexSequenceRegressor,
    ConvexTransformerClassifier,
    ConvexTransformerRegressor,
    PooledTokens,
    TokenMapDisplay,
    TokenScaler,
)

TOKENS = ["P1", "P2", "P3", "P4", "P5"]
CHANNELS = ["a", "b", "c"]


@pytest.fixture(scope="module")
def binary():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 5, 3))
    y = np.where(X[:, 1, 0] - X[:, 3, 2] + 0.3 * rng.normal(size=150) > 0, "yes", "no")
    return ConvexAttentionClassifier(beta=0.3).fit(X, y)


@pytest.fixture(scope="module")
def several():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(150, 5, 3))
    y = np.argmax(X[:, 2] + 0.3 * rng.normal(size=(150, 3)), axis=1)
    return ConvexAttentionClassifier(beta=0.2).fit(X, y)


def test_bars_are_the_norms_and_cells_the_coefficients(binary):
    display = TokenMapDisplay.from_estimator(binary, tokens=TOKENS, channels=CHANNELS)
    heights = [bar.get_height() for bar in display.bars_]
    np.testing.assert_allclose(heights, binary.token_norms_, rtol=1e-12)
    cells = np.asarray(display.image_.get_array()).reshape(3, 5)
    np.testing.assert_array_equal(cells, binary.coef_[0].T)
    low, high = display.image_.get_clim()
    assert low == -high == -np.abs(binary.coef_).max()  # white is zero
    assert display.tokens_used == ["P2", "P4"] or display.tokens_used == ["P4", "P2"]


def test_names_are_on_the_axes_and_the_title_tells(binary):
    display = TokenMapDisplay.from_estimator(binary, tokens=TOKENS, channels=CHANNELS)
    assert [label.get_text() for label in display.ax_.get_xticklabels()] == TOKENS
    assert [label.get_text() for label in display.ax_.get_yticklabels()] == CHANNELS
    title = display.bars_ax_.get_title(loc="left")
    assert title.startswith("The optimum uses 2 of 5 tokens: P")
    labels = [ax.get_ylabel().replace("\n", " ") for ax in display.figure_.axes]
    assert "contribution to the log-odds of “yes”" in labels
    notes = " ".join(text.get_text() for text in display.ax_.texts)
    assert f"relative duality gap {binary.certificate_.relative_gap:.1e}" in notes


def test_unused_tokens_are_pale(binary):
    display = TokenMapDisplay.from_estimator(binary, tokens=TOKENS)
    labels = display.ax_.get_xticklabels()
    colours = {label.get_text(): label.get_color() for label in labels}
    assert colours["P1"] == colours["P3"] == colours["P5"] != colours["P2"] == colours["P4"]


def test_several_outputs_are_a_map_of_norms(several):
    display = TokenMapDisplay.from_estimator(several, outputs=["A", "B", "C"])
    cells = np.asarray(display.image_.get_array()).reshape(3, 5)
    np.testing.assert_allclose(cells, several.token_norms_, rtol=1e-12)
    assert [label.get_text() for label in display.ax_.get_yticklabels()] == ["A", "B", "C"]
    heights = [bar.get_height() for bar in display.bars_]
    np.testing.assert_allclose(heights, np.linalg.norm(several.token_norms_, axis=0), rtol=1e-12)


def test_one_of_several_outputs(several):
    display = TokenMapDisplay.from_estimator(several, output=1)
    assert display.output_names == ["1"]
    np.testing.assert_array_equal(display.coef, several.coef_[[1]])
    for wrong in (5, -1, "a"):
        with pytest.raises(ValueError, match=r"output must be an index, 0 to 2; got"):
            TokenMapDisplay.from_estimator(several, output=wrong)


def test_given_axes_are_used(binary):
    figure, axes = plt.subplots(1, 2)
    size = figure.get_size_inches().copy()
    for ax in axes:
        display = TokenMapDisplay.from_estimator(binary, ax=ax)
        assert display.ax_ is ax and display.figure_ is figure
    np.testing.assert_array_equal(figure.get_size_inches(), size)
    assert len(plt.get_fignums()) == 1


def test_axes_in_a_subfigure(binary):
    figure = plt.figure()
    ax = figure.subfigures(1, 2)[0].subplots()
    assert TokenMapDisplay.from_estimator(binary, ax=ax).figure_ is figure


def test_nothing_drawn_is_cut_off(binary):
    long = [f"a very long channel name {j}" for j in range(3)]
    display = TokenMapDisplay.from_estimator(binary, tokens=TOKENS, channels=long)
    box, size = display.figure_.get_tightbbox(), display.figure_.get_size_inches()
    assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= size[0] and box.y1 <= size[1]


@pytest.mark.parametrize(
    ("n", "d", "kind"), [(1, 1, "bars"), (200, 3, "channels"), (3, 99, "bars")]
)
def test_odd_shapes(n, d, kind):
    display = TokenMapDisplay(np.ones((1, n, d))).plot()
    assert (display.image_ is None) == (kind == "bars")
    assert len(display.ax_.get_xticks()) <= 80
    display.figure_.canvas.draw()


def test_an_empty_model_says_so():
    display = TokenMapDisplay(np.zeros((1, 3, 2))).plot()
    assert display.bars_ax_.get_title(loc="left").startswith("No token is used")


def test_bad_input_is_named(binary):
    with pytest.raises(ValueError, match="tokens has 2 names, the model has 5 tokens"):
        TokenMapDisplay.from_estimator(binary, tokens=["a", "b"])
    with pytest.raises(ValueError, match="not fitted"):
        TokenMapDisplay.from_estimator(ConvexAttentionRegressor())
    with pytest.raises(ValueError, match=r"\(c, n, d\)"):
        TokenMapDisplay(np.zeros((3, 2)))


def test_tables_name_tokens_and_pipelines_are_unwrapped():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(60, 4)), columns=["a.x", "a.y", "b.x", "b.y"])
    model = ConvexAttentionRegressor(n_tokens=2).fit(table, table["b.x"])
    display = TokenMapDisplay.from_estimator(model)
    assert display.token_names == ["a", "b"] and display.channel_names == ["x", "y"]
    assert (display.ax_.get_xlabel(), display.ax_.get_ylabel()) == ("tokens", "channels")
    pipeline = make_pipeline(TokenScaler(), ConvexAttentionRegressor()).fit(table, table["b.x"])
    assert TokenMapDisplay.from_estimator(pipeline).tokens_used == ["b.x"]
    assert TokenMapDisplay.from_estimator(model, tokens=["p", "q"]).token_names == ["p", "q"]


def test_outputs_of_a_classifier_are_called_classes(several):
    assert TokenMapDisplay.from_estimator(several).ax_.get_ylabel() == "classes"


@pytest.mark.parametrize("n_classes", [2, 3])
def test_gated_models_show_gates_by_strength(n_classes):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3, 2))
    y = np.digitize(np.abs(X[:, 1, 0]), [0.7, 1.4][: n_classes - 1])
    model = ConvexTransformerClassifier(0.2, n_gates=6, random_state=0, tol=1e-3).fit(X, y)
    display = TokenMapDisplay.from_estimator(model)
    heights = [bar.get_height() for bar in display.bars_]
    np.testing.assert_allclose(heights, np.atleast_2d(model.token_norms_).sum(axis=0))
    norms = model.gate_norms_[display.gates_used]
    assert np.all(norms > 0) and np.all(np.diff(norms) <= 0)
    assert len(norms) == np.count_nonzero(model.gate_norms_)
    cells = np.asarray(display.image_.get_array()).reshape(len(norms), 3)
    np.testing.assert_allclose(cells.sum(axis=1), norms)
    assert display.ax_.get_ylabel() == "gates"


def told(display):
    return " ".join(text.get_text() for text in display.ax_.texts).replace("\n", " ")


def test_refitted_models_do_not_claim_the_optimum():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 4, 2))
    model = ConvexAttentionRegressor(0.3, refit=True).fit(X, X[:, 2, 0] + X[:, 1, 1])
    display = TokenMapDisplay.from_estimator(model)
    assert display.bars_ax_.get_title(loc="left").startswith("The model uses 2 of 4 tokens")
    gap = model.selection_certificate_.relative_gap
    assert "Refitted: tokens were selected by a certified fit" in told(display)
    assert f"gap {gap:.1e}" in told(display)
    assert "not the certified optimum" in told(display)
    assert "No model of this class" not in told(display)


@pytest.mark.parametrize("gated", [False, True])
def test_weights_put_tokens_on_one_scale(gated):
    rng = np.random.default_rng(0)
    scales = np.array([1.0, 1e3, 1e-2])
    X = rng.normal(size=(200, 3, 2))
    y = X[:, 0, 0] + 2 * X[:, 1, 1] + 3 * X[:, 2, 0]
    options = {"n_gates": 4, "random_state": 0} if gated else {}
    kind = ConvexTransformerRegressor if gated else ConvexAttentionRegressor
    plain = TokenMapDisplay.from_estimator(kind(**options, tol=1e-10).fit(X, y))
    model = kind(**options, tol=1e-10, token_weights=scales)
    if gated:  # the same gates, in units of the scaled tokens
        drawn = kind(**options).fit(X, y).gate_directions_[1:]
        model.set_params(gates=(drawn / scales[:, None], np.zeros(4)))
    display = TokenMapDisplay.from_estimator(model.fit(X * scales[:, None], y))
    np.testing.assert_allclose(display.token_norms, plain.token_norms, rtol=1e-3)
    assert display.bars_ax_.get_ylabel() == "weighted norm"
    assert plain.bars_ax_.get_ylabel() == "token norm"
    if not gated:
        np.testing.assert_allclose(display.coef, plain.coef, atol=1e-3)
        assert display.unit == "coefficient, times token weight"


def test_scaled_tokens_say_so():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 4, 2))
    y = np.where(X[:, 2, 0] > 0, "yes", "no")
    pipeline = make_pipeline(TokenScaler(), ConvexAttentionClassifier(0.3)).fit(X, y)
    unit = TokenMapDisplay.from_estimator(pipeline).unit
    assert unit == "contribution to the log-odds of “yes” per standard deviation"
    centred = make_pipeline(TokenScaler(with_std=False), ConvexAttentionClassifier(0.3)).fit(X, y)
    assert TokenMapDisplay.from_estimator(centred).unit.endswith("“yes”")
    search = GridSearchCV(pipeline, {"convexattentionclassifier__beta": [0.3, 0.5]}, cv=2).fit(X, y)
    assert TokenMapDisplay.from_estimator(search).tokens_used[0] == "2"


def test_numbers_are_short():
    display = TokenMapDisplay(np.array([0.0123, 1.0, 57.3, 99.9, 1234.5, 0.0])[None, :, None])
    shown = [text.get_text() for text in display.plot().bars_ax_.texts]
    assert shown[:6] == ["0.012", "1", "57", "100", "1200", ""]


def test_labels_of_low_maps_are_wrapped():
    display = TokenMapDisplay(
        np.ones((1, 4, 2)), unit="contribution to the log-odds of “yes”"
    ).plot()
    labels = [ax.get_ylabel() for ax in display.figure_.axes]
    assert "contribution to the\nlog-odds of “yes”" in labels


def test_matrix_targets_have_no_token_map():
    X = np.random.default_rng(0).normal(size=(30, 4, 2))
    model = ConvexSequenceRegressor(0.3).fit(X, X[:, ::-1])
    with pytest.raises(ValueError, match="ConvexSequenceRegressor has no tokens that all targets"):
        TokenMapDisplay.from_estimator(model)


@pytest.mark.parametrize("steps", [[PooledTokens()], [TokenScaler(), PooledTokens()]])
def test_steps_that_add_tokens(steps):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 5, 3))
    pipeline = make_pipeline(*steps, ConvexAttentionRegressor()).fit(X, X[:, 0, 0])

    def names(model, **options):
        return TokenMapDisplay.from_estimator(model, **options).token_names

    assert names(pipeline) == ["0", "1", "2", "3", "4", "5", "6"]
    assert names(pipeline, tokens=list("ABCDEFG")) == list("ABCDEFG")
    table = pd.DataFrame(X[:, :, 0], columns=TOKENS)
    assert names(clone(pipeline).fit(table, X[:, 0, 0])) == [*TOKENS, "mean_0", "log-std_0"]


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(
    "names",
    [
        ["-1", "0", "+1", "mean", "separators"],
        [f"{0.32 * k:.2f} s" for k in range(8)],
        [f"position {k}" for k in range(40)],
        [str(k) for k in range(100)],
        list("ABCDE"),
    ],
)
def test_names_do_not_overlap(names, own):
    ax = None if own else plt.figure(figsize=(4, 3)).add_subplot()
    coef = np.random.default_rng(0).normal(size=(1, len(names), 3))
    display = TokenMapDisplay(coef, token_names=names).plot(ax)
    display.figure_.draw_without_rendering()
    boxes = [label.get_window_extent() for label in display.ax_.get_xticklabels()]
    assert all(a.x1 < b.x0 for a, b in pairwise(boxes))
    assert len(boxes) >= min(len(names), 20)
    if names == list("ABCDE"):  # nothing is turned that need not be
        assert display.ax_.get_xticklabels()[0].get_rotation() == 0
