"""CertificateDisplay: how the proof of optimality came about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from . import _style as style
from ._models import Subject
from ._style import Array, styled

Against = Literal["seconds", "iterations"]

FLOOR = 1e-16  # a log axis has no zero; gaps at or below rounding are drawn here


class CertificateDisplay:
    r"""Relative duality gap :math:`(P - D) / P` against time or iterations.

    Parameters
    ----------
    iterations, seconds, relative_gaps : array-like of shape (m,)
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
    >>> display = CertificateDisplay([0, 1, 2], [0.0, 0.1, 0.2], [0.5, 1e-3, 2e-7], tol=1e-6)
    >>> display.plot().ax_.get_title(loc="left")
    'Proved optimal to 2.0e-07 in 0.20 s'
    """

    def __init__(
        self,
        iterations: ArrayLike,
        seconds: ArrayLike,
        relative_gaps: ArrayLike,
        *,
        tol: float | None = None,
        certificate: Any = None,
        refitted: bool = False,
    ) -> None:
        vectors = [np.asarray(v, dtype=np.float64) for v in (iterations, seconds, relative_gaps)]
        shapes = [vector.shape for vector in vectors]
        if len(set(shapes)) > 1 or vectors[0].ndim != 1 or not len(vectors[0]):
            raise ValueError(
                "iterations, seconds and relative_gaps must be non-empty vectors of one length; "
                "got shapes {}, {} and {}.".format(*shapes)
            )
        self.iterations, self.seconds, self.relative_gaps = vectors
        self.tol, self.certificate, self.refitted = tol, certificate, refitted

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        against: Against = "seconds",
        ax: Axes | None = None,
        title: str | None = None,
    ) -> CertificateDisplay:
        """Draw the trace of a fitted estimator.

        Parameters
        ----------
        estimator : fitted estimator
            Anything with ``trace_``; ``tol`` and ``certificate_`` are used if there. Of a
            pipeline, the last step.
        against, ax, title
            See :meth:`plot`.
        """
        subject = Subject.of(estimator)
        trace: Sequence[Any] | None = getattr(subject.model, "trace_", None)
        if not trace:
            raise ValueError(f"{type(subject.model).__name__} has no trace_; fit it first.")
        display = cls(
            *zip(*((p.iteration, p.seconds, p.relative_gap) for p in trace), strict=True),
            tol=getattr(subject.model, "tol", None),
            certificate=subject.certificate,
            refitted=subject.refitted,
        )
        return display.plot(ax, against=against, title=title)

    @property
    def relative_gap(self) -> float:
        """The gap that counts: the final certificate's, or the last of the trace."""
        if self.certificate is not None:
            return float(self.certificate.relative_gap)
        return float(self.relative_gaps[-1])

    @styled
    def plot(
        self,
        ax: Axes | None = None,
        *,
        against: Against = "seconds",
        title: str | None = None,
    ) -> CertificateDisplay:
        """Draw.

        Parameters
        ----------
        ax : Axes, optional
            A new figure if omitted.
        against : {"seconds", "iterations"}
            What the horizontal axis counts.
        title : str, optional
            Instead of a title that says what was proved.

        Returns
        -------
        CertificateDisplay
            Itself.
        """
        if against not in ("seconds", "iterations"):
            raise ValueError(f"against must be 'seconds' or 'iterations'; got {against!r}.")
        x = self.seconds if against == "seconds" else self.iterations
        self.ax_, self.figure_ = style.axes_for(ax, 5.6, 3.0)
        drawn = np.maximum(self.relative_gaps, FLOOR)
        self.line_: Line2D = self.ax_.plot(
            x, drawn, marker="o", markersize=3.5, color=style.ACCENT
        )[0]
        self._axes(against)
        self._last(x)
        self.ax_.set_title(self._message() if title is None else title)
        if self.certificate is not None:
            style.footnote(
                self.ax_, style.certificate_line(self.certificate, self.refitted), drop=42
            )
        if ax is None:
            style.fit_page(self.ax_)
        return self

    def _axes(self, against: Against) -> None:
        ax = self.ax_
        ax.set_yscale("log")
        ax.set_xlim(left=0)
        ax.margins(x=0.08)
        ax.minorticks_off()
        style.lined(ax)
        ax.set_xlabel(against)
        ax.set_ylabel("relative duality gap")
        if self.tol is not None and self.tol > 0:
            ax.axhline(self.tol, color=style.MUTED, linewidth=1.0, linestyle=(0, (4, 3)))
            words, within = f"tolerance {self.tol:.0e}", ("axes fraction", "data")
            style.note(ax, words, (0, self.tol), (4, 3), within=within)

    def _last(self, x: Array) -> None:
        gap = max(float(self.relative_gaps[-1]), FLOOR)
        self.ax_.plot(x[-1:], [gap], marker="o", markersize=7, color=style.ACCENT)
        words = f"{self.relative_gaps[-1]:.1e}"
        style.note(self.ax_, words, (x[-1], gap), (8, 0), va="center", fontsize=9, color=style.INK)

    def _message(self) -> str:
        gap, seconds = self.relative_gap, self.seconds[-1]
        if self.tol is not None and gap > self.tol:
            return f"Stopped after {seconds:.2f} s at a gap of {gap:.1e}: not yet optimal"
        what = "Selection proved" if self.refitted else "Proved"
        return f"{what} optimal to {gap:.1e} in {seconds:.2f} s"
