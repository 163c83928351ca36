"""ProbeDisplay: how static the heads of a layer are, and where they look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import PowerNorm
from mpl_toolkits.axes_grid1 import make_axes_locatable

from . import _style as style

if TYPE_CHECKING:
    from ..probes import LayerProbe

CELL = 0.22  # inches, as the next two
BARS = 2.6
GAP = 0.35
SUBTITLE: Any = {"loc": "center", "fontsize": 9.5, "fontweight": "normal", "pad": 6}
LEGEND: Any = {"frameon": False, "fontsize": 8, "handletextpad": 0.2, "borderpad": 0}
MARKS: Any = (  # shares of attention beside those of all static mixing
    ("attention_share", "static attention", {"c": style.HUES[1], "marker": "|", "ls": "", "ms": 9}),
    ("model_attention_share", "its own mean attention", {"c": style.INK, "marker": ".", "ls": ""}),
)
MAPS = ("static attention that explains most", "the model's own mean attention")


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
        self.shares: style.Array = np.array([head.share for head in heads])
        self.static: style.Array = np.stack([head.attention for head in heads])  # (heads, places)
        self.model: style.Array = np.stack([head.model_attention for head in heads])

    @classmethod
    def from_probe(cls, result: LayerProbe, *, title: str | None = None) -> ProbeDisplay:
        """Draw the result of a probe."""
        return cls(result).plot(title=title)

    @style.styled()
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
        result, (heads, places) = self.result, self.static.shape
        high, wide = max(CELL * heads, 1.0), max(CELL * places, 2.3)  # titles need room
        self.bars_ax_, self.figure_ = style.axes_for(None, BARS + 2 * (GAP + wide) + 0.25, high)
        divider = make_axes_locatable(self.bars_ax_)
        self._draw_bars()
        top = max(self.static.max(), self.model.max())
        look: Any = {"cmap": "Blues", "norm": PowerNorm(0.5, 0.0, top)}
        axes = [divider.append_axes("right", wide, pad=GAP) for _ in range(2)]
        self.static_ax_, self.model_ax_ = axes
        for ax, values, words in zip(axes, (self.static, self.model), MAPS, strict=True):
            image = style.heat_map(ax, values, (), **look)
            ax.set_xticks(range(places), result.heads[0].names, rotation=90, fontsize=8)
            ax.set_xlabel("place")
            ax.set_title(words, **SUBTITLE)
        style.colour_bar(image, divider.append_axes("right", 0.1, pad=0.15))
        if title is None:
            title = f"How static are the heads of layer {result.layer} of {result.model}?"
        look = {"fontsize": 12, "fontweight": "bold", "color": style.INK, "within": "axes fraction"}
        style.note(self.bars_ax_, title, (0, 1), (-38, 30), **look)
        style.finish(True, self.bars_ax_, self._notes(), self.static_ax_)
        return self

    def _draw_bars(self) -> None:
        ax, heads = self.bars_ax_, self.result.heads
        at = np.arange(len(heads))
        ax.barh(at, np.maximum(self.shares, 0.0), height=0.62, color=style.ACCENT, alpha=0.85)
        errors = [head.share_error for head in heads]
        ax.errorbar(self.shares, at, xerr=errors, fmt="none", ecolor=style.INK, elinewidth=1.0)
        for place, head in enumerate(heads):
            if head.constant:
                style.note(ax, "writes the same everywhere", (0.02, place), va="center")
        for name, label, look in MARKS:
            shares = [getattr(head, name) for head in heads]
            label += " (below 0 at the edge)" if min(shares) < 0 else ""
            ax.plot(np.maximum(shares, 0.0), at, label=label, markeredgewidth=2.0, **look)
        ax.set(xlim=(0, 1), ylim=(len(heads) - 0.5, -0.5), ylabel="head")
        ax.set_yticks(at, [str(head.head) for head in heads])
        ax.set_title("share of its output, unseen text", **SUBTITLE)
        style.lined(ax, "x")
        ax.tick_params(axis="y", length=0)
        ax.legend(loc="upper left", bbox_to_anchor=(-0.06, 0), borderaxespad=2.2, **LEGEND)

    def _notes(self) -> str:
        result = self.result
        return (
            f"Bars: certified static mixing, relative duality gap at most {result.worst_gap:.1e}; "
            f"tested on {result.n_texts[2]} texts ({result.n_targets[2]} targets), lines are "
            f"standard errors. The offset it weighs most is that of the model's mean attention "
            f"in {result.agreement} of {len(result.varying)} heads. Of 'mean', the model's map "
            "shows what is left."
        )
