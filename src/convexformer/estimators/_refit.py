"""What is kept of a solution and, with `refit`, of what followed, each under its true name."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from ..problem import Certificate
from ..solvers import Solution, Status
from ..solvers.refit import RIDGES, Refitted, refit
from ..solvers.solution import Clock, advice
from ._validation import Array, check_positive

REFIT_ATTRIBUTES = ("selection_coef_", "selection_intercept_", "ridge_")


class Refittable:
    """Keeps a solution, or what was refitted on the tokens that it selected."""

    refit: Any
    tol: float
    coef_: Array
    status_: Status
    ridge_: Array

    _certificate: Certificate  # of the solution, refitted or not
    _refit: ClassVar[Any] = staticmethod(refit)

    @property
    def certificate_(self) -> Certificate:
        """Objective, lower bound and gap; refitted models have none."""
        self._check_kept("certificate_")
        if self._is_refitted:
            raise AttributeError(
                f"This {type(self).__name__} was refitted (refit={self.refit!r}): its coefficients "
                "are not the certified optimum, and have no certificate. selection_certificate_ is "
                "that of the fit which selected the tokens; for a certified model fit with "
                "refit=False."
            )
        return self._certificate

    @property
    def selection_certificate_(self) -> Certificate:
        """Certificate of the fit that selected what was refitted."""
        self._check_kept("selection_certificate_")
        if not self._is_refitted:
            raise AttributeError(
                f"This {type(self).__name__} was not refitted; see certificate_, and refit=True."
            )
        return self._certificate

    def _check_kept(self, name: str) -> None:
        if "_certificate" not in vars(self):
            raise NotFittedError(
                f"This {type(self).__name__} is not fitted yet and has no {name}; call fit first."
            )

    @property
    def _is_refitted(self) -> bool:
        return "ridge_" in vars(self)

    def _check_refit(self) -> None:
        if not isinstance(self.refit, (bool, np.bool_)):
            check_positive(
                "refit",
                self.refit,
                "It is the strength of the ridge. Or use True, which chooses it, or False, for no "
                "refit.",
            )

    @property
    def _ridges(self) -> tuple[float | None, ...]:
        """Strengths of the ridge to choose from; None where there is no refit."""
        if not self.refit:
            return (None,)
        return RIDGES if isinstance(self.refit, (bool, np.bool_)) else (float(self.refit),)

    def _refitted(
        self,
        problem: Any,
        solution: Solution,
        clock: Clock,
        ridge: float | None = None,
        **start: Any,
    ) -> Solution | Refitted:
        """`solution`, refitted where that was asked for; if not at `ridge`, at the best one.

        The time of `clock` is for the solve and the refit together.
        """
        if not self.refit:
            return solution
        if ridge is None and len(self._ridges) == 1:
            (ridge,) = self._ridges
        fitted: Refitted = self._refit(problem, solution, ridge, late=clock.late, **start)
        if fitted.stopped:
            why = "Ctrl-C interrupted it" if clock.asked() else "max_time ran out"
            warnings.warn(
                f"The refit stopped early, because {why}. The model has the coefficients of the "
                "certified fit, and selection_certificate_ is theirs. Raise max_time if you set "
                "it, or pass a number as refit (refit=True compares several on folds).",
                ConvergenceWarning,
                stacklevel=4,
            )
        elif not fitted.converged:
            warnings.warn(
                "The refit stopped before it came to its minimum; the model is usable. Use a "
                "stronger ridge, refit=..., or scale X (TokenScaler).",
                ConvergenceWarning,
                stacklevel=4,
            )
        return fitted

    def _as_coef(self, Z: Array) -> Array:
        """Coefficients of a problem, ``(groups, d, c)``, in the shape of `coef_`."""
        return np.ascontiguousarray(Z.transpose(2, 0, 1)).reshape(-1, *self.coef_.shape[1:])

    def _keep_solution(self, fitted: Solution | Refitted) -> None:
        """Remember what belongs to the certified solution; coefficients are set already."""
        for name in REFIT_ATTRIBUTES:
            vars(self).pop(name, None)
        solution = fitted.selection if isinstance(fitted, Refitted) else fitted
        if isinstance(fitted, Refitted):
            self.selection_coef_ = self._as_coef(solution.Z)
            self.selection_intercept_ = solution.intercept
            self.ridge_ = fitted.ridge
        self._certificate = solution.certificate
        self.beta_, self.beta_max_ = solution.certificate.beta, solution.certificate.beta_max
        self.status_ = solution.status
        self.n_iter_, self.trace_ = solution.n_iter, solution.trace

    def _warn_unless_converged(self) -> None:
        gap = self._certificate.relative_gap
        if not gap <= self.tol:
            holds = "selection_certificate_" if self._is_refitted else "certificate_"
            stopped = "Interrupted" if self.status_ is Status.INTERRUPTED else "Stopped"
            warnings.warn(
                f"{stopped} at a relative duality gap of {gap:.1e}, above tol={self.tol:g}: the "
                f"objective may still be lowered by at most that fraction. The model is usable and "
                f"{holds} holds its true gap. {advice([self.status_])}",
                ConvergenceWarning,
                stacklevel=4,
            )
