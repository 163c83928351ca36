"""PathDisplay: the order in which tokens enter as the penalty is relaxed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator
from mpl_toolkits.axes_grid1 import make_axes_locatable
from numpy.typing import ArrayLike

from .._names import entry_order, largest_first
from . import _style as style
from ._models import Subject

MOST_COUNTS = 16  # numbers of tokens that have room along the top
LEGEND: Any = {"frameon": False, "labelcolor": "linecolor", "handlelength": 1.2, "fontsize": 9.5}


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
    n_tokens_used : ndarray of shape (B,)
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
            raise ValueError("betas must be a vector of positive numbers: leave beta = 0 out.")
        if token_norms is None:
            token_norms = np.zeros((len(betas), 0))
            if scores is None:
                raise ValueError("There is nothing to draw: give token_norms, scores or both.")
        order = np.argsort(-betas, kind="stable")
        self.betas: style.Array = betas[order]
        self.token_norms: style.Array = _by_beta(token_norms, order, "token_norms", 2)
        self.token_names = style.names_for(token_names, self.token_norms.shape[1], "tokens")
        self.scores: style.Array | None = _by_beta(scores, order, "scores", 1)
        self.score_errors: style.Array | None = _by_beta(score_errors, order, "score_errors", 1)
        self.norm_name, self.score_name = norm_name, score_name
        self.marks, self.worst_gap = dict(marks or {}), worst_gap
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
                f"{type(path).__name__}. See from_estimator for a cross-validated one."
            )
        name = "token norm" if path.token_weights is None else "weighted norm"
        display = cls(
            path.betas,
            path.weighted_norms,
            norm_name=name if path.gate_thresholds is None else f"{name}, summed over gates",
            token_names=path.token_names if tokens is None else tokens,
            worst_gap=path.worst_gap,
            **options,
        )
        return display.plot(ax, title=title)

    @classmethod
    def from_estimator(cls, estimator: Any, **options: Any) -> PathDisplay:
        """Draw the scores of a cross-validated estimator, with the beta that it chose.

        Parameters
        ----------
        estimator : fitted ConvexAttention*CV or ConvexTransformer*CV
            Or a pipeline that ends in one.
        **options
            `ax` and `title`: see :meth:`plot`.
        """
        subject = Subject(estimator)
        model = subject.model
        if not hasattr(model, "mean_scores_"):
            raise ValueError(
                f"{type(model).__name__} has no mean_scores_: PathDisplay.from_estimator needs "
                "a fitted CV estimator. For a path of token norms, see PathDisplay.from_path."
            )
        scoring = str(model.scoring or "minus the mean loss").replace("_", " ")
        chosen = float(model.beta_fraction_)
        display = cls(
            model.betas_,
            scores=model.mean_scores_,
            score_errors=model.standard_errors_,
            score_name=f"{scoring}\n({len(model.scores_)} folds, ± 1 standard error)",
            marks={"chosen": chosen},
        )
        title = f"Cross-validation chooses {chosen:.3g} β$_{{\\max}}$"
        title += " for refitted models" * subject.proof["refitted"]
        return display.plot(**{"title": title, **options})

    @style.styled()
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
        has_norms, scores = bool(self.token_names), self.scores
        both = has_norms and scores is not None
        self.ax_, self.figure_ = style.axes_for(ax, 6.2, 4.8 if both else 3.4)
        bottom = self.ax_
        if both:
            divider = make_axes_locatable(self.ax_)
            bottom = divider.append_axes("bottom", "45%", pad=0.12, sharex=self.ax_)
            self.ax_.tick_params(labelbottom=False)
        self.lines_: list[Line2D] = []
        self._beta_axis(bottom)
        self.score_ax_: Axes | None = None if scores is None else bottom
        if scores is not None:
            self._draw_scores(bottom, scores)
        if has_norms:
            self._draw_norms()
        self._draw_marks(bottom)
        self.ax_.set_title(self._message() if title is None else title)
        proof = ""
        if self.worst_gap is not None:
            proof = f"Each of the {len(self.betas)} models comes with a certificate: "
            proof += f"relative duality gap at most {self.worst_gap:.1e}."
        style.finish(ax is None, self.ax_, proof, bottom)
        return self

    def _beta_axis(self, bottom: Axes) -> None:
        """Logarithmic, from beta_max on the left to weak penalties on the right."""
        high, low = self.betas[0], self.betas[-1]
        margin = 1.5 if low == high else 1.0
        self.ax_.set(xscale="log", xlim=(high * margin, low / margin))
        digits = (1, 2, 5) if low > 1e-4 * high else (1,)
        self.ax_.xaxis.set_major_locator(LogLocator(subs=digits, numticks=50))
        self.ax_.minorticks_off()
        self.ax_.xaxis.set_major_formatter("{x:g}")
        bottom.set_xlabel(r"penalty strength  β / β$_{\max}$   (weaker →)")

    def _draw_norms(self) -> None:
        """A line per token, in the legend and in colour those that end highest; above, counts."""
        ax, norms = self.ax_, self.token_norms
        # Zeros before a token enters are left out, but for the last of them.
        entered = np.logical_or.accumulate(norms > 0)
        shown = np.where(np.vstack([entered[1:], entered[-1:]]), norms, np.nan)
        self.lines_ = ax.plot(self.betas, shown, color="#b4bac4", linewidth=0.9, zorder=1.5)
        used = largest_first(norms[-1])
        for k, hue in zip(used, style.HUES, strict=False):
            self.lines_[k].set(color=hue, linewidth=1.8, zorder=2, label=self.token_names[k])
        if hidden := used[len(style.HUES) :]:
            self.lines_[hidden[0]].set_label(f"{len(hidden)} more")
        if used:
            named = [self.lines_[k] for k in used[: len(style.HUES) + 1]]
            ax.legend(handles=named, loc="upper left", bbox_to_anchor=(1.0, 1.03), **LEGEND)
        ax.set(ylim=(0, 1.06 * (norms.max() or 1.0)), ylabel=self.norm_name)
        style.lined(ax)
        some = slice(None, None, -(-len(self.betas) // MOST_COUNTS))
        top = ax.secondary_xaxis("top")
        top.set_xticks(self.betas[some], self.n_tokens_used[some], fontsize=8, color=style.MUTED)
        top.minorticks_off()
        style.bare(top)
        top.set_xlabel("tokens used", fontsize=8, color=style.MUTED)

    def _draw_scores(self, ax: Axes, scores: style.Array) -> None:
        ax.plot(self.betas, scores, color=style.ACCENT, marker="o", markersize=3)
        if self.score_errors is not None:
            low, high = scores - self.score_errors, scores + self.score_errors
            ax.fill_between(self.betas, low, high, color=style.ACCENT, alpha=0.15, linewidth=0)
        ax.set_ylabel(self.score_name)
        style.lined(ax)
        ax.locator_params(axis="y", nbins=4)

    def _draw_marks(self, bottom: Axes) -> None:
        # Norms leave room on top, scores below.
        y, va = (0.97, "top") if self.token_names else (0.04, "bottom")
        look: Any = {"ha": "right", "va": va, "fontsize": 8.5, "color": style.INK}
        for name, beta in self.marks.items():
            for ax in {self.ax_, bottom}:
                ax.axvline(beta, color=style.INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
            style.note(self.ax_, name, (beta, y), (-4, 0), within=("data", "axes fraction"), **look)

    def entry_order(self) -> list[str]:
        """Names of the tokens in the order in which they enter (largest first where they tie)."""
        return [self.token_names[k] for k in entry_order(self.token_norms)]

    def _message(self) -> str:
        if not self.token_names:
            return "Score by penalty strength"
        order = self.entry_order()
        if not order:
            return "No token enters: every β is at or above β$_{\\max}$"
        if len(order) == 1:
            return f"{order[0]} is the only token to enter"
        return f"{order[0]} enters first, then {style.listing(order[1:4])}"


def _by_beta(values: ArrayLike | None, order: Any, what: str, rank: int) -> Any:
    """`values`, one entry or row per beta, in the order in which betas decrease."""
    if values is None:
        return None
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != rank or len(array) != len(order):
        wanted = f"({len(order)},)" if rank == 1 else f"({len(order)}, n)"
        raise ValueError(f"{what} must have shape {wanted}, by beta; got {array.shape}.")
    return array[order]
