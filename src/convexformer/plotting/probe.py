"""ProbeDisplay: how static the heads of a layer are, and where they look."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from . import _style as style
from ._style import Array, styled

if TYPE_CHECKING:
    from ..probes import LayerProbe

CELL = 0.22  # inches
BARS = 2.6
GAP, LEFT, RIGHT, TOP, BOTTOM = 0.35, 0.65, 0.7, 0.75, 0.95
LINE = 0.16  # of the notes


class ProbeDisplay:
    """Shares of static mixing as bars, beside two maps: static attention and the model's own.

    Colours go with the square root of attention, so that what is small can be seen.

    Parameters
    ----------
    result : LayerProbe
        Of :func:`convexformer.probe`.

    Attributes
    ----------
    figure_ : Figure
    bars_ax_, static_ax_, model_ax_ : Axes
        Shares; static attention by head and place; the model's own mean attention.
    """

    def __init__(self, result: LayerProbe) -> None:
        self.result = result
        heads = result.heads
        self.shares: Array = np.array([head.share for head in heads])
        self.static: Array = np.stack([head.attention for head in heads])  # (heads, places)
        self.model: Array = np.stack([head.model_attention for head in heads])

    @classmethod
    def from_probe(cls, result: LayerProbe, *, title: str | None = None) -> ProbeDisplay:
        """Draw the result of a probe."""
        return cls(result).plot(title=title)

    @styled
    def plot(self, *, title: str | None = None) -> ProbeDisplay:
        """Draw.

        Parameters
        ----------
        title : str, optional
            Instead of one that names the model and the layer.

        Returns
        -------
        ProbeDisplay
            Itself.
        """
        self._page()
        self._bars()
        top = max(float(self.static.max()), float(self.model.max()))
        self._map(self.static_ax_, self.static, top, "static attention that explains most")
        image = self._map(self.model_ax_, self.model, top, "the model's own mean attention")
        self._colour_bar(image)
        result = self.result
        if title is None:
            title = f"How static are the heads of layer {result.layer} of {result.model}?"
        self._text(title, self._height - 0.3, fontsize=12, fontweight="bold")
        return self

    def _page(self) -> None:
        from matplotlib import pyplot as plt  # chooses a backend: only when a figure is wanted

        heads, places = self.static.shape
        high, wide = max(CELL * heads, 1.0), max(CELL * places, 2.3)  # titles need room
        self._width = LEFT + BARS + 2 * (GAP + wide) + RIGHT
        notes = textwrap.wrap(self._notes(), int(17 * self._width))
        bottom = BOTTOM + LINE * len(notes)
        self._height = TOP + high + bottom
        self.figure_: Figure = plt.figure(figsize=(self._width, self._height))
        lefts = np.cumsum([LEFT, BARS + GAP, wide + GAP])
        y, height = bottom / self._height, high / self._height
        self.bars_ax_, self.static_ax_, self.model_ax_ = (
            self.figure_.add_axes((self._x(left), y, self._x(width), height))
            for left, width in zip(lefts, (BARS, wide, wide), strict=True)
        )
        look = {"color": style.MUTED, "fontsize": 7.5, "linespacing": 1.5, "va": "bottom"}
        self._text("\n".join(notes), 0.12, **look)

    def _text(self, words: str, height: float, **look: Any) -> None:
        """Write on the left, `height` inches from the foot of the page."""
        self.figure_.text(self._x(0.12), height / self._height, words, **look)

    def _x(self, inches: float) -> float:
        return inches / self._width

    def _bars(self) -> None:
        ax, heads = self.bars_ax_, self.result.heads
        at = np.arange(len(heads))
        ax.barh(at, np.maximum(self.shares, 0.0), height=0.62, color=style.ACCENT, alpha=0.85)
        errors = [head.share_error for head in heads]
        ax.errorbar(self.shares, at, xerr=errors, fmt="none", ecolor=style.INK, elinewidth=1.0)
        for place, head in enumerate(heads):
            if head.constant:
                words = "writes the same everywhere"
                ax.text(0.02, place, words, color=style.MUTED, fontsize=8, va="center")
        own = [head.model_attention_share for head in heads]
        marks: tuple[tuple[str, str, float, str, list[float]], ...] = (
            ("|", style.HUES[1], 9.0, "static attention", [h.attention_share for h in heads]),
            (".", style.INK, 6.0, "its own mean attention", own),
        )
        for marker, color, size, label, values in marks:
            shown = np.maximum(values, 0.0)
            label += " (below 0 at the edge)" * bool(np.any(np.array(values) < 0.0))
            ax.plot(shown, at, marker, color=color, ms=size, mew=2.0, label=label)
        ax.set_xlim(0, 1)
        ax.set_ylim(len(heads) - 0.5, -0.5)
        ax.set_yticks(at, [str(head.head) for head in heads])
        ax.set_ylabel("head")
        ax.set_title("share of its output, unseen text", fontsize=9.5, fontweight="normal", pad=6)
        ax.grid(axis="x", color=style.FAINT, linewidth=0.6)
        ax.tick_params(axis="y", length=0)
        ax.legend(
            loc="upper left", bbox_to_anchor=(-0.06, -0.07), frameon=False, fontsize=8, ncols=2,
            handletextpad=0.2, columnspacing=1.0, borderaxespad=0.6,
        )  # fmt: skip

    def _map(self, ax: Axes, values: Array, top: float, title: str) -> Any:
        heads, places = values.shape
        image = ax.pcolormesh(
            np.arange(places + 1) - 0.5, np.arange(heads + 1) - 0.5, values,
            cmap="Blues", norm=PowerNorm(0.5, 0.0, top), edgecolors="white", linewidth=0.6,
        )  # fmt: skip
        ax.set_ylim(heads - 0.5, -0.5)
        ax.set_yticks([])
        ax.set_xticks(np.arange(places), self.result.heads[0].names, rotation=90, fontsize=8)
        ax.set_title(title, fontsize=9.5, fontweight="normal", pad=6)
        style.bare(ax)
        return image

    def _colour_bar(self, image: Any) -> None:
        box = self.model_ax_.get_position()
        place = (box.x1 + self._x(0.15), box.y0, self._x(0.1), box.height)
        bar = self.figure_.colorbar(image, cax=self.figure_.add_axes(place))
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=8, length=0)

    def _notes(self) -> str:
        result = self.result
        n = len(result.varying)
        return (
            f"Bars: certified static mixing, relative duality gap at most {result.worst_gap:.1e}; "
            f"tested on {result.n_texts[2]} texts ({result.n_targets[2]} targets), lines are "
            f"standard errors. The offset it weighs most is that of the model's mean attention "
            f"in {result.agreement} of {n} heads. Of 'mean', the model's map shows what is left."
        )
