"""CertificateDisplay: how the proof of optimality came about."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from . import _style as style
from ._models import Subject

FLOOR = 1e-16  # a log axis has no zero; gaps at or below rounding are drawn here


class CertificateDisplay:
    r"""Relative duality gap :math:`(P - D) / P` against time.

    Parameters
    ----------
    seconds, relative_gaps : array-like of shape (m,)
        The trace of a solve: a certified gap at each recorded moment.
    tol : float, optional
        The tolerance asked for, drawn as a line.
    certificate : Certificate, optional
        The final certificate, printed small under the axes.
    refitted : bool
        Whether the proof is of the fit that selected the tokens of a refitted model.

    Attributes
    ----------
    ax_, figure_, line_ : Axes, Figure, Line2D
        What is drawn, and where.

    Examples
    --------
    >>> from convexformer import CertificateDisplay
    >>> display = CertificateDisplay([0.0, 0.1, 0.2], [0.5, 1e-3, 2e-7], tol=1e-6)
    >>> display.plot().ax_.get_title(loc="left")
    'Proved optimal to 2.0e-07 in 0.20 s'
    """

    def __init__(
        self,
        seconds: ArrayLike,
        relative_gaps: ArrayLike,
        *,
        tol: float | None = None,
        certificate: Any = None,
        refitted: bool = False,
    ) -> None:
        if not np.size(seconds) == np.size(relative_gaps) > 0:
            raise ValueError("seconds and relative_gaps must be non-empty vectors of one length.")
        self.seconds: style.Array = np.array(seconds, dtype=np.float64)
        self.relative_gaps: style.Array = np.array(relative_gaps, dtype=np.float64)
        self.tol, self.certificate, self.refitted = tol, certificate, refitted

    @classmethod
    def from_estimator(cls, estimator: Any, **options: Any) -> CertificateDisplay:
        """Draw the trace of a fitted estimator.

        Parameters
        ----------
        estimator : fitted estimator
            Anything with ``trace_``; ``tol`` and ``certificate_`` are used if there. Of a
            pipeline, the last step.
        **options
            `ax` and `title`: see :meth:`plot`.
        """
        subject = Subject(estimator)
        trace = getattr(subject.model, "trace_", None)
        if not trace:
            raise ValueError(f"{type(subject.model).__name__} has no trace_; fit it first.")
        seconds, gaps = [p.seconds for p in trace], [p.relative_gap for p in trace]
        tol = getattr(subject.model, "tol", None)
        return cls(seconds, gaps, tol=tol, **subject.proof).plot(**options)

    @property
    def relative_gap(self) -> float:
        """The gap that counts: the final certificate's, or the last of the trace."""
        if self.certificate is not None:
            return float(self.certificate.relative_gap)
        return float(self.relative_gaps[-1])

    @style.styled()
    def plot(self, ax: Axes | None = None, *, title: str | None = None) -> CertificateDisplay:
        """Draw.

        Parameters
        ----------
        ax : Axes, optional
            A new figure if omitted.
        title : str, optional
            Instead of a title that says what was proved.

        Returns
        -------
        CertificateDisplay
            Itself.
        """
        x, y = self.seconds, np.maximum(self.relative_gaps, FLOOR)
        self.ax_, self.figure_ = style.axes_for(ax, 5.6, 3.0)
        ax, own = self.ax_, ax is None
        (self.line_,) = ax.plot(x, y, color=style.ACCENT, marker="o", markersize=3.5)
        ax.plot(x[-1], y[-1], color=style.ACCENT, marker="o", markersize=7)
        style.note(ax, f"{self.relative_gaps[-1]:.1e}", (x[-1], y[-1]), (8, 0), va="center")
        if self.tol is not None and self.tol > 0:
            ax.axhline(self.tol, color=style.MUTED, linewidth=1.0, linestyle=(0, (4, 3)))
            words, within = f"tolerance {self.tol:.0e}", ("axes fraction", "data")
            style.note(ax, words, (0, self.tol), (4, 3), within=within)
        style.lined(ax)
        ax.set(yscale="log", xlabel="seconds", ylabel="relative duality gap")
        ax.set_xlim(left=0)
        ax.margins(x=0.08)
        ax.minorticks_off()
        ax.set_title(self._message() if title is None else title)
        style.finish(own, ax, style.certificate_line(self.certificate, self.refitted))
        return self

    def _message(self) -> str:
        gap, seconds = self.relative_gap, self.seconds[-1]
        if self.tol is not None and gap > self.tol:
            return f"Stopped after {seconds:.2f} s at a gap of {gap:.1e}: not yet optimal"
        what = "Selection proved" if self.refitted else "Proved"
        return f"{what} optimal to {gap:.1e} in {seconds:.2f} s"
