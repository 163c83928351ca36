"""PathDisplay: the order in which tokens enter as the penalty is relaxed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from mpl_toolkits.axes_grid1 import make_axes_locatable
from numpy.typing import ArrayLike, NDArray

from .._names import entry_order
from . import _style as style
from ._models import Subject
from ._style import Array, styled

TICKS = [m * 10.0**e for e in range(-8, 1) for m in (1, 2, 5)]
SCORE_SHARE = 0.45  # height of the panel of scores, over that of the norms
PANEL_GAP = 0.12  # inches


class PathDisplay:
    r"""Token norms :math:`\|Z_k\|` against the penalty strength :math:`\beta/\beta_{max}`.

    On the left, at :math:`\beta_{max}`, no token is used; to the right the penalty is relaxed and
    tokens enter one after the other. Along the top: how many are used.

    Parameters
    ----------
    betas : array-like of shape (B,)
        Fractions of ``beta_max``, positive.
    token_norms : array-like of shape (B, n), optional
        If omitted, scores alone are drawn.
    norm_name : str
        What the norms are.
    token_names : sequence of str, optional
        Numbered from 0 if omitted.
    scores : array-like of shape (B,), optional
        A score per beta, drawn in a panel below.
    score_errors : array-like of shape (B,), optional
        Standard errors of `scores`, drawn as a band.
    score_name : str
    marks : mapping of str to float, optional
        Betas to mark by a vertical line, by the name to write on it.
    worst_gap : float, optional
        Largest relative duality gap along the path, printed small.

    Attributes
    ----------
    n_tokens_used : ndarray of shape (B,) or None
    ax_, figure_ : Axes, Figure
    score_ax_ : Axes or None
        Where the scores are: the lower panel, or `ax_` where there are no norms.
    lines_ : list of Line2D
        One per token.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer import PathDisplay
    >>> norms = np.array([[0.0, 0.0], [0.0, 0.5], [0.2, 0.9]])
    >>> display = PathDisplay([1.0, 0.5, 0.25], norms, token_names=["P1", "P2"]).plot()
    >>> display.ax_.get_title(loc="left")
    'P2 enters first, then P1'
    """

    def __init__(
        self,
        betas: ArrayLike,
        token_norms: ArrayLike | None = None,
        *,
        norm_name: str = "token norm",
        token_names: Sequence[Any] | None = None,
        scores: ArrayLike | None = None,
        score_errors: ArrayLike | None = None,
        score_name: str = "score",
        marks: Mapping[str, float] | None = None,
        worst_gap: float | None = None,
    ) -> None:
        betas = np.asarray(betas, dtype=np.float64)
        if betas.ndim != 1 or not len(betas) or not np.all(betas > 0):
            raise ValueError(
                f"betas must be a non-empty vector of positive numbers, got shape {betas.shape}; "
                "the axis is logarithmic, so leave beta = 0 out."
            )
        if token_norms is None and scores is None:
            raise ValueError("There is nothing to draw: give token_norms, scores or both.")
        order = np.argsort(-betas, kind="stable")
        self.betas: Array = betas[order]
        self.token_norms = _by_beta(token_norms, order, "token_norms", 2)
        n_tokens = 0 if self.token_norms is None else self.token_norms.shape[1]
        self.token_names = style.names_for(token_names, n_tokens, "", "tokens")
        self.scores = _by_beta(scores, order, "scores", 1)
        self.score_errors = _by_beta(score_errors, order, "score_errors", 1)
        self.norm_name, self.score_name = norm_name, score_name
        self.marks, self.worst_gap = dict(marks or {}), worst_gap
        self.n_tokens_used: NDArray[np.int64] | None = None
        if self.token_norms is not None:
            self.n_tokens_used = np.count_nonzero(self.token_norms, axis=1)

    @classmethod
    def from_path(
        cls,
        path: Any,
        *,
        tokens: Sequence[Any] | None = None,
        ax: Axes | None = None,
        title: str | None = None,
        **options: Any,
    ) -> PathDisplay:
        """Draw the result of :func:`convexformer.attention_path`, of a gated model too.

        Norms are shown times the token weights of the path, where it has any.

        Parameters
        ----------
        path : AttentionPath
        tokens : sequence of str, optional
            Names of the tokens; by default those of the path.
        ax, title
            See :meth:`plot`.
        **options
            `scores`, `score_errors`, `score_name` and `marks`: see the class.
        """
        if not hasattr(path, "betas"):
            raise ValueError(
                f"PathDisplay.from_path draws what attention_path returns; got "
                f"{type(path).__name__}. For a cross-validated estimator see "
                "PathDisplay.from_estimator."
            )
        display = cls(
            path.betas,
            path.weighted_norms,
            norm_name=_norm_name(path),
            token_names=path.token_names if tokens is None else tokens,
            worst_gap=max(certificate.relative_gap for certificate in path.certificates),
            **options,
        )
        return display.plot(ax, title=title)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        score_name: str | None = None,
        ax: Axes | None = None,
        title: str | None = None,
    ) -> PathDisplay:
        """Draw the scores of a cross-validated estimator, with the beta that it chose.

        Parameters
        ----------
        estimator : fitted ConvexAttention*CV or ConvexTransformer*CV
            Or a pipeline that ends in one.
        score_name : str, optional
            By default, what `scoring` is called.
        ax, title
            See :meth:`plot`.
        """
        subject = Subject.of(estimator)
        estimator = subject.model
        if not hasattr(estimator, "mean_scores_"):
            raise ValueError(
                f"{type(estimator).__name__} has no mean_scores_: PathDisplay.from_estimator needs "
                "a fitted CV estimator. For a path of token norms, see PathDisplay.from_path."
            )
        if score_name is None:
            named = isinstance(getattr(estimator, "scoring", None), str)
            score_name = estimator.scoring.replace("_", " ") if named else "minus the mean loss"
        chosen = float(estimator.beta_fraction_)
        display = cls(
            estimator.betas_,
            scores=estimator.mean_scores_,
            score_errors=estimator.standard_errors_,
            score_name=f"{score_name}\n({len(estimator.scores_)} folds, ± 1 standard error)",
            marks={"chosen": chosen},
        )
        if title is None:
            title = rf"Cross-validation chooses {chosen:.3g} β$_{{\max}}$"
            title += " for refitted models" if subject.refitted else ""
        return display.plot(ax, title=title)

    @styled
    def plot(self, ax: Axes | None = None, *, title: str | None = None) -> PathDisplay:
        """Draw.

        Parameters
        ----------
        ax : Axes, optional
            Where the norms go (scores hang below it); a new figure if omitted.
        title : str, optional
            Instead of a title that names the tokens in order of entry.

        Returns
        -------
        PathDisplay
            Itself.
        """
        both = self.token_norms is not None and self.scores is not None
        self.ax_, self.figure_ = style.axes_for(ax, 6.2, 4.8 if both else 3.4)
        self.lines_: list[Line2D] = []
        self.score_ax_: Axes | None = None
        bottom = self.ax_
        if self.token_norms is not None:
            self._norms(self.token_norms)
        if both:
            bottom = make_axes_locatable(self.ax_).append_axes(
                "bottom", f"{SCORE_SHARE:.0%}", pad=PANEL_GAP, sharex=self.ax_
            )
            self.ax_.tick_params(labelbottom=False)
        if self.scores is not None:
            self.score_ax_ = bottom
            self._scores(bottom, self.scores)
        self._beta_axis(bottom)
        self._marks(bottom)
        pad = 10 if self.n_tokens_used is None else 22
        self.ax_.set_title(self._message() if title is None else title, pad=pad)
        if self.worst_gap is not None:
            each = (
                f"Each of the {len(self.betas)} models comes with a certificate: relative duality"
            )
            style.footnote(bottom, f"{each} gap at most {self.worst_gap:.1e}.", drop=40)
        if ax is None:
            style.fit_page(self.ax_)
        return self

    def _norms(self, norms: Array) -> None:
        """A line per token; the largest at the right end get a colour and a label."""
        ax, order = self.ax_, np.argsort(-norms[-1], kind="stable")
        prominent = [int(k) for k in order[: len(style.HUES)] if norms[-1, k] > 0]
        colors = dict(zip(prominent, style.HUES, strict=False))
        for k, name in enumerate(self.token_names):
            look: dict[str, Any] = {"color": "#b4bac4", "linewidth": 0.9, "zorder": 1.5}
            if k in colors:
                look = {"color": colors[k]}
            (line,) = ax.plot(self.betas, _from_entry(norms[:, k]), label=name, **look)
            self.lines_.append(line)
        ax.set_ylim(0, 1.06 * (norms.max() or 1.0))
        ax.set_ylabel(self.norm_name)
        style.lined(ax)
        labels = [(self.token_names[k], float(norms[-1, k]), hue) for k, hue in colors.items()]
        hidden = norms[-1, order[len(colors) : np.count_nonzero(norms[-1])]]
        if len(hidden):
            labels.append((f"{len(hidden)} more", float(hidden[0]), style.MUTED))
        style.end_labels(ax, self.betas[-1], labels, self._height())
        self._counts(np.count_nonzero(norms, axis=1))

    def _height(self) -> float:
        """Height in inches of the panel of norms, as far as it is known before layout."""
        height = float(self.ax_.get_position(original=True).height * self.figure_.get_figheight())
        return height if self.scores is None else (height - PANEL_GAP) / (1 + SCORE_SHARE)

    def _scores(self, ax: Axes, scores: Array) -> None:
        ax.plot(self.betas, scores, color=style.ACCENT, marker="o", markersize=3)
        if self.score_errors is not None:
            low, high = scores - self.score_errors, scores + self.score_errors
            ax.fill_between(self.betas, low, high, color=style.ACCENT, alpha=0.15, linewidth=0)
        ax.set_ylabel(self.score_name)
        style.lined(ax)
        ax.locator_params(axis="y", nbins=4)

    def _beta_axis(self, bottom: Axes) -> None:
        """Logarithmic, from beta_max on the left to weak penalties on the right."""
        high, low = self.betas[0], self.betas[-1]
        if low == high:
            low, high = low / 1.5, high * 1.5
        self.ax_.set_xscale("log")
        self.ax_.set_xlim(high, low)
        ticks = [tick for tick in TICKS if 0.999 * low <= tick <= 1.001 * high]
        self.ax_.xaxis.set_major_locator(FixedLocator(ticks))
        self.ax_.xaxis.set_minor_locator(NullLocator())
        self.ax_.xaxis.set_major_formatter(FuncFormatter(lambda beta, _: f"{beta:g}"))
        bottom.set_xlabel(r"penalty strength  β / β$_{\max}$   (weaker →)")

    def _counts(self, counts: NDArray[np.intp]) -> None:
        """Number of tokens used, written along the top where there is room."""
        top = self.ax_.get_xaxis_transform()
        span = np.log(self.betas[0] / self.betas[-1]) or 1.0
        last = -np.inf
        for beta, count in zip(self.betas, counts, strict=True):
            place = np.log(self.betas[0] / beta) / span
            if place - last < 0.055:
                continue
            last = place
            style.note(self.ax_, str(count), (beta, 1.015), within=top, ha="center")
        style.note(
            self.ax_, "tokens used", (0, 1.015), (-10, 0), within="axes fraction", ha="right"
        )

    def _marks(self, bottom: Axes) -> None:
        for name, beta in self.marks.items():
            for ax in {id(a): a for a in (self.ax_, bottom)}.values():
                ax.axvline(beta, color=style.INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
            # Norms leave room on top, scores below.
            y, va = (0.04, "bottom") if self.token_norms is None else (0.97, "top")
            look = {"ha": "right", "va": va, "fontsize": 8.5, "color": style.INK}
            within = ("data", "axes fraction")
            style.note(self.ax_, name, (beta, y), (-4, 0), within=within, **look)

    def entry_order(self) -> list[str]:
        """Names of the tokens in the order in which they enter (largest first where they tie)."""
        norms = np.zeros((1, 0)) if self.token_norms is None else self.token_norms
        return [self.token_names[k] for k in entry_order(norms)]

    def _message(self) -> str:
        if self.token_norms is None:
            return "Score by penalty strength"
        order = self.entry_order()
        if not order:
            return "No token enters: every β is at or above β$_{\\max}$"
        if len(order) == 1:
            return f"{order[0]} is the only token to enter"
        return f"{order[0]} enters first, then {style.listing(order[1:4])}"


def _norm_name(path: Any) -> str:
    name = "token norm" if path.token_weights is None else "weighted norm"
    return name if path.gate_thresholds is None else f"{name}, summed over gates"


def _from_entry(norms: Array) -> Array:
    """`norms` without the zeros that lead up to a token's entry, but for the last of them."""
    first = int(np.argmax(norms > 0)) if np.any(norms > 0) else len(norms)
    return np.where(np.arange(len(norms)) >= first - 1, norms, np.nan)


def _by_beta(
    values: ArrayLike | None, order: NDArray[np.intp], what: str, rank: int
) -> Array | None:
    """`values`, one entry or row per beta, in the order in which betas decrease."""
    if values is None:
        return None
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != rank or len(array) != len(order):
        wanted = f"({len(order)},)" if rank == 1 else f"({len(order)}, n)"
        raise ValueError(f"{what} must have shape {wanted}, by beta; got {array.shape}.")
    return array[order]
