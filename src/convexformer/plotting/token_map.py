"""TokenMapDisplay: which tokens a model uses, and what it reads in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.container import BarContainer
from mpl_toolkits.axes_grid1 import make_axes_locatable
from numpy.typing import ArrayLike

from . import _style as style
from ._models import Subject, check_index
from ._style import Array, styled

Kind = Literal["auto", "bars", "channels", "outputs", "gates"]

KINDS = ("auto", "bars", "channels", "outputs", "gates")
MANY_GATES = 40  # of those in use, the strongest are drawn
MANY_CHANNELS = 64  # beyond this, rows of a heat map can no longer be told apart
MANY_TOKENS = 24  # beyond this, values are no longer printed
BARS_INCHES = 0.9
BAR_INCHES = (0.11, 0.15)  # width of the colour bar, and of the gap before it
NO_TOKENS = 80  # beyond this, no lines are drawn between cells


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
        self.coef: Array = np.asarray(coef, dtype=np.float64)
        if self.coef.ndim not in (3, 4):
            raise ValueError(
                "coef must have shape (c, n, d), or (c, gates, n, d) for gated models; got shape "
                f"{self.coef.shape}."
            )
        self.gated = self.coef.ndim == 4
        c, n, d = self.coef.shape[0], *self.coef.shape[-2:]
        self.token_names = style.names_for(token_names, n, "", "tokens")
        self.channel_names = style.names_for(channel_names, d, "", "channels")
        self.output_names = style.names_for(output_names, c, "", "outputs")
        self.certificate, self.refitted, self.unit = certificate, refitted, unit
        self._norm = "token norm" if token_weights is None else "weighted norm"
        if token_weights is not None:
            self.coef = self.coef * np.asarray(token_weights, dtype=np.float64)[:, None]
            self.unit += ", times token weight"
        norms = np.linalg.norm(self.coef, axis=-1)
        self.output_norms: Array = norms.sum(axis=1) if self.gated else norms
        self.gate_norms: Array | None = norms.sum(axis=0) if self.gated else None
        self.token_norms: Array = (
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
        ax: Axes | None = None,
        kind: Kind = "auto",
        channel_groups: Mapping[str, Sequence[str]] | None = None,
        title: str | None = None,
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
        ax, kind, channel_groups, title
            See :meth:`plot`.
        """
        subject = Subject.of(estimator)
        coef = subject.coef
        if coef.ndim > 2:
            tokens, known = subject.names(coef.shape[-2], tokens)
            channels = channels or known
        names, unit = subject.outputs(outputs, len(coef))
        if output is not None:
            check_index(output, len(coef))
            names = [style.names_for(names, len(coef), "", "outputs")[output]]
            coef = coef[[output]]
        display = cls(
            coef,
            token_names=tokens,
            channel_names=channels,
            output_names=names,
            token_weights=subject.token_weights,
            certificate=subject.certificate,
            refitted=subject.refitted,
            unit=unit,
        )
        return display.plot(ax, kind=kind, channel_groups=channel_groups, title=title)

    @property
    def tokens_used(self) -> list[str]:
        """Names of the tokens with a nonzero norm, largest first."""
        order = np.argsort(-self.token_norms, kind="stable")
        return [self.token_names[k] for k in order if self.token_norms[k] > 0]

    @property
    def gates_used(self) -> list[int]:
        """Gates with a nonzero norm, strongest first; none where the model has no gates."""
        if self.gate_norms is None:
            return []
        norms = self.gate_norms.sum(axis=1)
        return [int(j) for j in np.argsort(-norms, kind="stable") if norms[j] > 0]

    @styled
    def plot(
        self,
        ax: Axes | None = None,
        *,
        kind: Kind = "auto",
        channel_groups: Mapping[str, Sequence[str]] | None = None,
        title: str | None = None,
    ) -> TokenMapDisplay:
        """Draw.

        Parameters
        ----------
        ax : Axes, optional
            Where the map goes (the bars sit on top of it); a new figure if omitted.
        kind : {"auto", "bars", "channels", "outputs", "gates"}
            "channels": heat map channels x tokens, for one output. "outputs": heat map of norms,
            outputs x tokens. "gates": heat map of norms, gates x tokens, only gates in use,
            strongest first. "bars": norms alone. "auto" chooses by shape.
        channel_groups : mapping of str to sequence of str, optional
            Channels to put together, in this order, under the name of their group.
        title : str, optional
            Instead of a title that names the tokens used.

        Returns
        -------
        TokenMapDisplay
            Itself.
        """
        order, groups = self._arranged(channel_groups)
        kind = self._kind(kind)
        values, names, label = self._rows(kind, order)
        self.ax_, self.figure_ = style.axes_for(ax, *self._size(len(names)))
        self.image_: QuadMesh | None = None
        self.bars_ax_: Axes = self.ax_
        self._divider = make_axes_locatable(self.ax_)
        if len(names):
            self._heat(values, names, signed=kind == "channels")
            self.ax_.set_ylabel("" if kind == "channels" and groups else label)
        if kind == "channels":
            self._bracket(groups)
        if kind != "bars":
            self.bars_ax_ = self._divider.append_axes("top", BARS_INCHES, pad=0.06, sharex=self.ax_)
        self._bars()
        below = self._tokens_axis()
        self.bars_ax_.set_title(self._message() if title is None else title)
        if self.certificate is not None:
            line = style.certificate_line(self.certificate, self.refitted)
            style.footnote(self.ax_, line, drop=30 + below.depth)
        if ax is None:
            style.fit_page(self.ax_)
        return self

    def _kind(self, kind: Kind) -> Kind:
        """The kind asked for, if it can be drawn; of "auto", the one that suits the shape."""
        c, d = self.coef.shape[0], self.coef.shape[-1]
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}.")
        if self.gated and kind == "channels":
            raise ValueError("kind='channels' needs a model without gates; use 'gates' or 'bars'.")
        if not self.gated and kind == "gates":
            raise ValueError("kind='gates' needs a gated model; this one has no gates.")
        if kind == "channels" and c > 1:
            raise ValueError(f"kind='channels' shows one output and there are {c}; give output=.")
        several: Kind = "gates" if self.gated else "outputs"
        single: Kind = "channels" if 1 < d <= MANY_CHANNELS else "bars"
        return kind if kind != "auto" else several if self.gated or c > 1 else single

    def _rows(self, kind: Kind, order: Sequence[int]) -> tuple[Array, list[str], str]:
        """What the heat map shows, the names of its rows, and what these are."""
        if kind == "channels":
            names = [self.channel_names[j] for j in order]
            return self.coef[0].T[order], names, "channels"
        if kind == "outputs":
            what = "classes" if "log-odds" in self.unit else "outputs"
            return self.output_norms, self.output_names, what
        if kind == "gates" and self.gate_norms is not None:
            gates = self.gates_used[:MANY_GATES] or [0]
            return self.gate_norms[gates], [str(j) for j in gates], "gates"
        return self.coef[:0], [], ""

    def _size(self, rows: int) -> tuple[float, float]:
        """Inches, by the number of cells; few of them are drawn larger, many smaller."""
        width = float(np.clip(0.48 * len(self.token_names), 4.0, 10.5))
        if rows == 0:
            return width, 1.6
        return width, BARS_INCHES + 0.06 + float(np.clip(0.25 * rows, 0.9, 9.0))

    def _arranged(
        self, groups: Mapping[str, Sequence[str]] | None
    ) -> tuple[list[int], list[tuple[str, int]]]:
        """Order of the channels, and (name, size) of each group; what is in no group comes last."""
        index = {name: j for j, name in enumerate(self.channel_names)}
        if groups is None:
            return list(index.values()), []
        unknown = [str(ch) for members in groups.values() for ch in members if ch not in index]
        if unknown:
            raise ValueError(
                f"channel_groups names {style.listing(unknown)}, which the model does not have; "
                f"its channels are {', '.join(index)}."
            )
        order = [index[ch] for members in groups.values() for ch in members]
        rest = [j for j in index.values() if j not in set(order)]
        sizes = [(name, len(members)) for name, members in groups.items()]
        return order + rest, sizes + ([("other", len(rest))] if rest else [])

    def _heat(self, values: Array, names: Sequence[str], *, signed: bool) -> None:
        """Heat map, first row on top: diverging about zero, or from zero up for norms."""
        ax, largest = self.ax_, float(np.abs(values).max(initial=0.0)) or 1.0
        self.image_ = ax.pcolormesh(
            np.arange(values.shape[1] + 1) - 0.5,
            np.arange(values.shape[0] + 1) - 0.5,
            values,
            cmap="RdBu_r" if signed else "Blues",
            vmin=-largest if signed else 0.0,
            vmax=largest,
            edgecolor="white",
            linewidth=0.6 if values.shape[1] <= NO_TOKENS else 0.0,
        )
        ax.set_ylim(len(names) - 0.5, -0.5)
        ax.set_yticks(range(len(names)), names)
        style.bare(ax)
        width, pad = BAR_INCHES
        cax = self._divider.append_axes("right", width, pad=pad)
        bar = self.figure_.colorbar(self.image_, cax=cax)
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0, labelsize=8)
        bar.ax.locator_params(nbins=5)
        bar.set_label(style.wrapped(self.unit if signed else self._norm, len(names)), fontsize=9)

    def _bracket(self, groups: Sequence[tuple[str, int]]) -> None:
        """Names of the channel groups left of the channels, white gaps between the groups."""
        start = 0
        for name, size in groups:
            look = {"ha": "right", "va": "center", "fontsize": 9}
            at, within = (0, start + (size - 1) / 2), ("axes fraction", "data")
            style.note(self.ax_, name, at, (-26, 0), within=within, **look)
            start += size
            if start < len(self.channel_names):
                self.ax_.axhline(start - 0.5, color="white", linewidth=3.5)

    def _bars(self) -> None:
        ax, norms = self.bars_ax_, self.token_norms
        self.bars_: BarContainer = ax.bar(range(len(norms)), norms, width=0.72, color=style.ACCENT)
        if len(norms) <= MANY_TOKENS:
            values = [style.short(norm) if norm > 0 else "" for norm in norms]
            ax.bar_label(self.bars_, values, padding=2, fontsize=8, color=style.MUTED)
        ax.set_ylim(0, 1.15 * (norms.max(initial=0.0) or 1.0))
        ax.set_yticks([])
        ax.spines[["left", "top", "right"]].set_visible(False)
        ax.spines["bottom"].set_color(style.FAINT)
        ax.set_ylabel(self._norm, fontsize=9, color=style.MUTED)

    def _tokens_axis(self) -> style.NamesBelow:
        """Names under the map; those of unused tokens are pale."""
        n = len(self.token_names)
        inches = self.ax_.get_position(original=True).width * self.figure_.get_figwidth()
        inches -= 0.0 if self.image_ is None else sum(BAR_INCHES)
        below = style.NamesBelow.of(self.token_names, inches / n)
        shown = range(0, n, below.step)
        self.ax_.set_xlim(-0.5, n - 0.5)
        self.ax_.set_xticks(
            shown,
            [self.token_names[k] for k in shown],
            rotation=90 if below.turned else 0,
            fontsize=below.size,
        )
        self.ax_.tick_params(axis="x", length=0, labelbottom=True)
        self.ax_.set_xlabel("tokens")
        for k, label in zip(shown, self.ax_.get_xticklabels(), strict=True):
            used = self.token_norms[k] > 0
            label.set_color(style.INK if used else "#a5abb6")
        if self.bars_ax_ is not self.ax_:
            self.bars_ax_.tick_params(axis="x", length=0, labelbottom=False)
        return below

    def _message(self) -> str:
        used, n = self.tokens_used, len(self.token_names)
        if not used:
            return "No token is used: β is at or above β$_{\\max}$"
        if len(used) < n and len(used) <= 5:
            verb = "uses one token of" if len(used) == 1 else f"uses {len(used)} tokens of"
            who = "The model" if self.refitted else "The optimum"
            return f"{who} {verb} {n}: {style.listing(used)}"
        top = style.listing(used[:2])
        return f"{top} weigh most; {len(used)} of {n} tokens are used" if n > 1 else "One token"
