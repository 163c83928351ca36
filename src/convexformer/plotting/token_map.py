"""TokenMapDisplay: which tokens a model uses, and what it reads in them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from mpl_toolkits.axes_grid1 import make_axes_locatable
from numpy.typing import ArrayLike

from .._names import largest_first
from . import _style as style
from ._models import Subject

MANY_GATES = 40  # of those in use, the strongest are drawn
MANY_CHANNELS = 64  # beyond this, rows of a heat map can no longer be told apart
MANY_TOKENS = 24  # beyond this, values are no longer printed
CHARACTER = 0.62  # width of a character, as a share of the size of its font


class TokenMapDisplay:
    r"""Map of a model's tokens: norms as bars over a heat map of what they consist of.

    The height of a bar is the token's norm over all outputs and channels,
    :math:`\|Z_k\|_F = (\sum_l \sum_j Z_{kjl}^2)^{1/2}`; a token without a bar is not used at all.
    For gated models it is the sum over gates and outputs,
    :math:`\sum_j \sum_l \|Z_{jk}[:, l]\|_2`, and the map shows them by gate, strongest first.

    Parameters
    ----------
    coef : array-like of shape (c, n, d) or (c, h, n, d)
        Coefficients by output, token and channel; of gated models by output, gate, token and
        channel.
    token_names, channel_names, output_names : sequence of str, optional
        Names along the three axes; numbered from 0 if omitted.
    token_weights : array-like of shape (n,), optional
        Penalty weights of the tokens: norms and coefficients are shown times these, as they would
        be for tokens divided by their weights. Only these can be compared between tokens.
    certificate : Certificate, optional
        Printed small under the map.
    refitted : bool
        Whether the certificate is of the fit that selected the tokens, and `coef` is not.
    unit : str
        What a coefficient means, for the label of the colour bar.

    Attributes
    ----------
    token_norms : ndarray of shape (n,)
        Norm of each token over outputs and channels: the bars.
    output_norms : ndarray of shape (c, n)
        Norm of each token in each output.
    gate_norms : ndarray of shape (h, n) or None
        Norm of each token behind each gate, summed over outputs.
    ax_, figure_ : Axes, Figure
        Where the map is drawn.
    bars_ax_ : Axes
        Where the bars are drawn.
    bars_, image_ : BarContainer, QuadMesh or None
        What is drawn.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer import TokenMapDisplay
    >>> coef = np.zeros((1, 4, 3))
    >>> coef[0, 1] = [2.0, -1.0, -1.0]
    >>> display = TokenMapDisplay(coef, token_names=["P1", "P2", "P3", "P4"]).plot()
    >>> display.ax_.figure is display.figure_
    True
    >>> display.token_norms.round(2)
    array([0.  , 2.45, 0.  , 0.  ])
    """

    def __init__(
        self,
        coef: ArrayLike,
        *,
        token_names: Sequence[Any] | None = None,
        channel_names: Sequence[Any] | None = None,
        output_names: Sequence[Any] | None = None,
        token_weights: ArrayLike | None = None,
        certificate: Any = None,
        refitted: bool = False,
        unit: str = "coefficient",
    ) -> None:
        self.coef: style.Array = np.asarray(coef, dtype=np.float64)
        if self.coef.ndim not in (3, 4):
            wanted = "(c, n, d) or (c, gates, n, d)"
            raise ValueError(f"coef must have shape {wanted}; got {self.coef.shape}.")
        c, n, d = self.coef.shape[0], *self.coef.shape[-2:]
        self.token_names = style.names_for(token_names, n, "tokens")
        self.channel_names = style.names_for(channel_names, d, "channels")
        self.output_names = style.names_for(output_names, c, "outputs")
        self.certificate, self.refitted, self.unit = certificate, refitted, unit
        self._norm = "token norm" if token_weights is None else "weighted norm"
        if token_weights is not None:
            self.coef = self.coef * np.asarray(token_weights, dtype=np.float64)[:, None]
            self.unit += ", times token weight"
        norms = self.output_norms = np.linalg.norm(self.coef, axis=-1)
        self.token_norms: style.Array = np.linalg.norm(norms, axis=0)
        self.gate_norms: style.Array | None = None
        if self.coef.ndim == 4:
            self.gate_norms, self.output_norms = norms.sum(axis=0), norms.sum(axis=1)
            self.token_norms = norms.sum(axis=(0, 1))

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        tokens: Sequence[Any] | None = None,
        channels: Sequence[Any] | None = None,
        outputs: Sequence[Any] | None = None,
        output: int | None = None,
        **options: Any,
    ) -> TokenMapDisplay:
        """Draw the tokens of a fitted estimator.

        Parameters
        ----------
        estimator : fitted estimator
            Anything with ``coef_`` of shape (c, n, d) or (c, gates, n, d); ``certificate_``,
            ``classes_`` and ``token_weights`` are used if there. Of a pipeline, the last step: its
            coefficients are of tokens as the steps before it pass them on.
        tokens, channels, outputs : sequence of str, optional
            Names of tokens, channels and outputs; by default those of the table that the estimator
            was fitted on. A binary classifier has one output, the log-odds
            of its second class: give the names of both classes.
        output : int, optional
            Draw this output alone.
        **options
            `ax` and `title`: see :meth:`plot`.
        """
        subject = Subject(estimator)
        coef = subject.coef
        names = subject.names(coef.shape[-2])
        outputs, unit = subject.outputs(outputs, len(coef))
        if output is not None:
            if output not in range(len(coef)):
                raise ValueError(f"output must be an index, 0 to {len(coef) - 1}; got {output!r}.")
            outputs = [style.names_for(outputs, len(coef), "outputs")[output]]
            coef = coef[[output]]
        display = cls(
            coef,
            token_names=names[0] if tokens is None else tokens,
            channel_names=names[1] if channels is None else channels,
            output_names=outputs,
            token_weights=getattr(subject.model, "token_weights", None),
            unit=unit,
            **subject.proof,
        )
        return display.plot(**options)

    @property
    def tokens_used(self) -> list[str]:
        """Names of the tokens with a nonzero norm, largest first."""
        return [self.token_names[k] for k in largest_first(self.token_norms)]

    @property
    def gates_used(self) -> list[int]:
        """Gates with a nonzero norm, strongest first; none where the model has no gates."""
        return [] if self.gate_norms is None else largest_first(self.gate_norms.sum(axis=1))

    @style.styled()
    def plot(self, ax: Axes | None = None, *, title: str | None = None) -> TokenMapDisplay:
        """Draw.

        Of one output the map has a row per channel, of several a row per output, of a gated model
        a row per gate in use, strongest first. One channel, or more than 64, are bars alone.

        Parameters
        ----------
        ax : Axes, optional
            Where the map goes (the bars sit on top of it); a new figure if omitted.
        title : str, optional
            Instead of a title that names the tokens used.

        Returns
        -------
        TokenMapDisplay
            Itself.
        """
        values, rows, what = self._map()
        width = float(np.clip(0.48 * len(self.token_names), 4.0, 10.5))
        height = 0.96 + float(np.clip(0.25 * len(rows), 0.9, 9.0)) if rows else 1.6
        self.ax_, self.figure_ = style.axes_for(ax, width, height)
        self.bars_ax_: Axes = self.ax_
        self.image_: QuadMesh | None = None
        if rows:
            divider = make_axes_locatable(self.ax_)
            signed, top = what == "channels", np.abs(values).max() or 1.0
            cmap, low = ("RdBu_r", -top) if signed else ("Blues", 0.0)  # white is zero
            self.image_ = style.heat_map(self.ax_, values, rows, cmap=cmap, vmin=low, vmax=top)
            unit = self.unit if signed else self._norm
            unit = textwrap.fill(unit, max(20, int(3.6 * len(rows))))  # about as long as rows
            style.colour_bar(self.image_, divider.append_axes("right", 0.11, pad=0.15), unit)
            self.bars_ax_ = divider.append_axes("top", 0.9, pad=0.06, sharex=self.ax_)
            self.ax_.set_ylabel(what)
        self._draw_bars()
        self._draw_names()
        self.bars_ax_.set_title(self._message() if title is None else title)
        style.finish(ax is None, self.ax_, style.certificate_line(self.certificate, self.refitted))
        return self

    def _map(self) -> tuple[style.Array, list[str], str]:
        """The heat map of this model: its values, names of rows, and what rows are."""
        if self.gate_norms is not None:
            gates = self.gates_used[:MANY_GATES] or [0]
            return self.gate_norms[gates], [str(j) for j in gates], "gates"
        if len(self.coef) > 1:
            what = "classes" if "log-odds" in self.unit else "outputs"
            return self.output_norms, self.output_names, what
        few = 1 < len(self.channel_names) <= MANY_CHANNELS
        return self.coef[0].T, self.channel_names if few else [], "channels"

    def _draw_bars(self) -> None:
        ax, norms = self.bars_ax_, self.token_norms
        self.bars_ = ax.bar(range(len(norms)), norms, width=0.72, color=style.ACCENT)
        if len(norms) <= MANY_TOKENS:
            shorten = partial(np.format_float_positional, precision=2, fractional=False, trim="-")
            labels = [shorten(norm) if norm else "" for norm in norms]
            ax.bar_label(self.bars_, labels, padding=2, fontsize=8, color=style.MUTED)
        ax.set(ylim=(0, 1.15 * (norms.max(initial=0.0) or 1.0)), yticks=[])
        ax.spines[["left", "top", "right"]].set_visible(False)
        ax.spines["bottom"].set_color(style.FAINT)
        ax.set_ylabel(self._norm, fontsize=9, color=style.MUTED)
        ax.tick_params(axis="x", length=0, labelbottom=ax is self.ax_)

    def _draw_names(self) -> None:
        """Names under the map, turned and thinned where they crowd; of unused tokens, pale."""
        ax, names = self.ax_, self.token_names
        ax.set_xlim(-0.5, len(names) - 0.5)
        ax.set_xlabel("tokens")
        self.figure_.draw_without_rendering()  # then the axes have found their place
        room = 72 * ax.bbox.width / self.figure_.dpi / len(names)  # points
        neighbours = max((len(a) + len(b) for a, b in pairwise(names)), default=0) / 2
        turned = CHARACTER * 9.5 * (neighbours + 1) > room  # one character apart
        size = 8.0 if turned else 9.5
        shown = range(0, len(names), math.ceil(1.2 * size / room) if turned else 1)
        ax.set_xticks(shown, [names[k] for k in shown], rotation=90 * turned, fontsize=size)
        for k, label in zip(shown, ax.get_xticklabels(), strict=True):
            label.set_color(style.INK if self.token_norms[k] > 0 else "#a5abb6")

    def _message(self) -> str:
        used, n = self.tokens_used, len(self.token_names)
        if not used:
            return "No token is used: β is at or above β$_{\\max}$"
        if len(used) > 5 or 1 < len(used) == n:
            return f"{style.listing(used[:2])} weigh most; {len(used)} of {n} tokens are used"
        who = "The model" if self.refitted else "The optimum"
        return f"{who} uses {len(used)} of {n} tokens: {style.listing(used)}"
