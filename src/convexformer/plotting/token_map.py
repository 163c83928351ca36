"""TokenMapDisplay: which tokens a model uses, and what it reads in them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from mpl_toolkits.axes_grid1 import make_axes_locatable
from numpy.typing import ArrayLike

from . import _style as style
from ._models import Subject

Groups = Mapping[str, Sequence[str]]  # of channels, by name

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
            shape = self.coef.shape
            raise ValueError(f"coef must have shape (c, n, d) or (c, gates, n, d); got {shape}.")
        self.gated = self.coef.ndim == 4
        c, n, d = self.coef.shape[0], *self.coef.shape[-2:]
        self.token_names = style.names_for(token_names, n, "tokens")
        self.channel_names = style.names_for(channel_names, d, "channels")
        self.output_names = style.names_for(output_names, c, "outputs")
        self.certificate, self.refitted, self.unit = certificate, refitted, unit
        self._norm = "token norm" if token_weights is None else "weighted norm"
        if token_weights is not None:
            self.coef = self.coef * np.asarray(token_weights, dtype=np.float64)[:, None]
            self.unit += ", times token weight"
        norms = np.linalg.norm(self.coef, axis=-1)
        self.output_norms: style.Array = norms.sum(axis=1) if self.gated else norms
        self.gate_norms: style.Array | None = norms.sum(axis=0) if self.gated else None
        self.token_norms: style.Array = (
            self.output_norms.sum(axis=0) if self.gated else np.linalg.norm(norms, axis=0)
        )

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
            `ax`, `kind`, `channel_groups` and `title`: see :meth:`plot`.
        """
        subject = Subject(estimator)
        coef = subject.coef
        tokens, known = subject.names(coef.shape[-2], tokens)
        outputs, unit = subject.outputs(outputs, len(coef))
        if output is not None:
            if output not in range(len(coef)):
                raise ValueError(f"output must be an index, 0 to {len(coef) - 1}; got {output!r}.")
            outputs = [style.names_for(outputs, len(coef), "outputs")[output]]
            coef = coef[[output]]
        names: Any = {"token_names": tokens, "channel_names": channels or known}
        weights = getattr(subject.model, "token_weights", None)
        names |= {"output_names": outputs, "unit": unit, "token_weights": weights}
        return cls(coef, **names, **subject.proof).plot(**options)

    @property
    def tokens_used(self) -> list[str]:
        """Names of the tokens with a nonzero norm, largest first."""
        return [self.token_names[k] for k in style.largest_first(self.token_norms)]

    @property
    def gates_used(self) -> list[int]:
        """Gates with a nonzero norm, strongest first; none where the model has no gates."""
        return [] if self.gate_norms is None else style.largest_first(self.gate_norms.sum(axis=1))

    @style.styled()
    def plot(
        self,
        ax: Axes | None = None,
        *,
        kind: str = "auto",
        channel_groups: Groups | None = None,
        title: str | None = None,
    ) -> TokenMapDisplay:
        """Draw.

        Parameters
        ----------
        ax : Axes, optional
            Where the map goes (the bars sit on top of it); a new figure if omitted.
        kind : {"auto", "bars", "channels", "outputs", "gates"}
            "channels": heat map channels x tokens, of a model with one output. "outputs": heat map
            of norms, outputs x tokens, of one with several. "gates": heat map of norms, gates x
            tokens, of a gated model; only gates in use, strongest first. "bars": norms alone.
            "auto" is the one that fits the model.
        channel_groups : mapping of str to sequence of str, optional
            Channels to put together, in this order, under the name of their group.
        title : str, optional
            Instead of a title that names the tokens used.

        Returns
        -------
        TokenMapDisplay
            Itself.
        """
        shown, values, rows, what = self._map(channel_groups or {})
        if kind not in ("auto", "bars", shown):
            raise ValueError(
                f"kind must be auto, bars or {shown} for this model; got {kind!r}. For channels of "
                "one output, give output=."
            )
        many = shown == "channels" and not 1 < len(rows) <= MANY_CHANNELS
        if kind == "bars" or (kind == "auto" and many):
            shown, rows = "bars", []
        width = float(np.clip(0.48 * len(self.token_names), 4.0, 10.5))
        height = 0.96 + float(np.clip(0.25 * len(rows), 0.9, 9.0)) if rows else 1.6
        self.ax_, self.figure_ = style.axes_for(ax, width, height)
        self.bars_ax_: Axes = self.ax_
        self.image_: QuadMesh | None = None
        if rows:
            divider = make_axes_locatable(self.ax_)
            signed, top = shown == "channels", np.abs(values).max() or 1.0
            look: Any = {"cmap": "Blues", "vmin": 0.0, "vmax": top}
            look |= {"cmap": "RdBu_r", "vmin": -top} if signed else {}  # white is zero
            self.image_ = style.heat_map(self.ax_, values, rows, **look)
            unit = self.unit if signed else self._norm
            unit = textwrap.fill(unit, max(20, int(3.6 * len(rows))))  # about as long as rows
            style.colour_bar(self.image_, divider.append_axes("right", 0.11, pad=0.15), unit)
            self.bars_ax_ = divider.append_axes("top", 0.9, pad=0.06, sharex=self.ax_)
            self.ax_.set_ylabel(what)
        if shown == "channels" and channel_groups:
            self._draw_groups(channel_groups)
        self._draw_bars()
        self._draw_names()
        self.bars_ax_.set_title(self._message() if title is None else title)
        style.finish(ax is None, self.ax_, style.certificate_line(self.certificate, self.refitted))
        return self

    def _map(self, groups: Groups) -> tuple[str, style.Array, list[str], str]:
        """The heat map of this model: its kind, values, names of rows, and what rows are."""
        if self.gate_norms is not None:
            gates = self.gates_used[:MANY_GATES] or [0]
            return "gates", self.gate_norms[gates], [str(j) for j in gates], "gates"
        if len(self.coef) > 1:
            what = "classes" if "log-odds" in self.unit else "outputs"
            return "outputs", self.output_norms, self.output_names, what
        names = [name for members in groups.values() for name in members]
        unknown = [str(name) for name in names if name not in self.channel_names]
        if unknown:
            raise ValueError(
                f"channel_groups names {style.listing(unknown)}, which the model does not have; "
                f"its channels are {', '.join(self.channel_names)}."
            )
        names += [name for name in self.channel_names if name not in names]
        order = [self.channel_names.index(name) for name in names]
        return "channels", self.coef[0].T[order], names, "" if groups else "channels"

    def _draw_groups(self, groups: Groups) -> None:
        """Names of the channel groups left of the channels, white gaps between the groups."""
        look: Any = {"within": ("axes fraction", "data"), "ha": "right", "va": "center"}
        edges = np.cumsum([0, *map(len, groups.values())]).tolist()
        last = len(self.channel_names)
        for name, start, end in zip([*groups, "other"], edges, [*edges[1:], last], strict=True):
            if start < end:
                self.ax_.axhline(start - 0.5, color="white", linewidth=3.5)
                middle = (start + end - 1) / 2
                style.note(self.ax_, name, (0, middle), (-26, 0), fontsize=9, **look)

    def _draw_bars(self) -> None:
        ax, norms = self.bars_ax_, self.token_norms
        self.bars_ = ax.bar(range(len(norms)), norms, width=0.72, color=style.ACCENT)
        if len(norms) <= MANY_TOKENS:
            look: Any = {"padding": 2, "fontsize": 8, "color": style.MUTED}
            ax.bar_label(self.bars_, fmt=style.short, **look)
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
        room = style.size_in_points(ax)[0] / len(names)
        neighbours = max((len(a) + len(b) for a, b in pairwise(names)), default=0) / 2
        turned = CHARACTER * 9.5 * (neighbours + 1) > room  # one character apart
        size = float(np.clip(room / 1.35, 7.5, 9.0)) if turned else 9.5
        shown = range(0, len(names), math.ceil(1.2 * size / room) if turned else 1)
        words = [names[k] for k in shown]
        ax.set_xticks(shown, words, rotation=90 * turned, fontsize=size)
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
