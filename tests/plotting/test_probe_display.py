"""ProbeDisplay: bars and maps hold what the probe found."""

import numpy as np
import pytest
from matplotlib.text import Text

from convexformer import Certificate, HeadProbe, LayerProbe, ProbeDisplay

NAMES = ("-1", "0", "+1", "first", "mean")


@pytest.fixture(scope="module")
def result():
    rng = np.random.default_rng(0)
    heads = [
        HeadProbe(
            head=h,
            share=share,
            share_error=0.01,
            attention_share=share - 0.1,
            model_attention_share=share - 0.2,
            names=NAMES,
            strengths=rng.uniform(size=5),
            weights=rng.uniform(size=5),
            attention=rng.dirichlet(np.ones(5)),
            model_attention=rng.dirichlet(np.ones(5)),
            certificate=Certificate(2.0, 2.0 - 1e-7 * (h + 1), 0.1, 1.0),
            betas=np.array([1.0, 0.1]),
            validation=np.array([0.0, share]),
        )
        for h, share in enumerate((0.8, 0.5, -0.05))
    ]
    return LayerProbe("small", 1, 3, False, (60, 20, 20), (600, 210, 190), heads, 1e-6, 0, 1.5)


def texts(display):
    return [text.get_text() for text in display.figure_.findobj(Text)]


def test_bars_and_maps_are_what_was_found(result):
    display = ProbeDisplay.from_probe(result)
    widths = [patch.get_width() for patch in display.bars_ax_.patches]
    assert widths == pytest.approx([0.8, 0.5, 0.0])
    for ax, kind in ((display.static_ax_, "attention"), (display.model_ax_, "model_attention")):
        shown = ax.collections[0].get_array()
        np.testing.assert_allclose(shown, [getattr(head, kind) for head in result.heads])
        assert [tick.get_text() for tick in ax.get_xticklabels()] == list(NAMES)
    words = " ".join(texts(display)).replace("\n", " ")
    assert "layer 1 of small" in words and "at most 1.5e-07" in words
    assert f"in {result.agreement} of 3 heads" in words
    labels = [text.get_text() for text in display.bars_ax_.get_legend().get_texts()]
    assert all(label.endswith("(below 0 at the edge)") for label in labels) and len(labels) == 2
    titled = ProbeDisplay.from_probe(result, title="mine")
    assert "mine" in texts(titled)


def test_everything_drawn_is_on_the_page(result):
    figure = ProbeDisplay.from_probe(result).figure_
    box = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height
