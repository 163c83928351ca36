"""What all estimators share: when to stop, and what is kept of a certified fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from functools import wraps
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from ..problem import Certificate
from ..problem.stopping import until
from ..solvers import Solution, Status, TracePoint, solve
from ..solvers.refit import RIDGES, Refitted, refit
from ..solvers.solution import Clock, advice, interruption
from ._parameters import check_parameters, is_boolean, parameters
from ._reading import Array, warn
from .persistence import Persistent

Method = TypeVar("Method", bound=Callable[..., Any])


def all_or_nothing(fit: Method) -> Method:
    """Let `fit` work on a copy, whose attributes become the estimator's in one step at the end.

    A fit that raises, Ctrl-C included, leaves an estimator unfitted, or with its old model whole.
    Attributes that others set on the estimator meanwhile, such as a callback, stay as they set
    them.

    Examples
    --------
    >>> from convexformer.estimators._base import all_or_nothing
    >>> class Mean:
    ...     @all_or_nothing
    ...     def fit(self, y):
    ...         self.count_ = len(y)
    ...         self.mean_ = sum(y) / self.count_
    ...         return self
    >>> model = Mean().fit([1, 3])
    >>> model.fit([])
    Traceback (most recent call last):
    ZeroDivisionError: division by zero
    >>> model.count_, model.mean_
    (2, 2.0)
    """

    @wraps(fit)
    def fit_whole(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        before = dict(vars(self))
        draft = object.__new__(type(self))  # copy.copy would drop what __getstate__ leaves out
        draft.__dict__ = dict(before)
        fit(draft, *args, **kwargs)
        kept = [name for name, value in before.items() if value is vars(self).get(name, fit)]
        set_meanwhile = {name: vars(self)[name] for name in vars(self).keys() - kept}
        self.__dict__ = vars(draft) | set_meanwhile  # one assignment, which no signal divides
        return self

    return cast(Method, fit_whole)


class Fitted(Persistent):
    r"""What a fit keeps.

    Attributes
    ----------
    certificate_ : Certificate
        Objective, lower bound and gap, computed in float64 from the coefficients alone. A
        refitted model has none.
    selection_certificate_, selection_coef_, selection_intercept_, ridge_
        Of a refitted model only: the certificate, coefficients and intercept of the fit that
        selected the tokens, and the strength :math:`\rho` of the ridge, per output.
    beta_, beta_max_ : float
        Penalty strength, absolute, and the smallest at which ``Z = 0``.
    status_ : Status
        Why the solver stopped.
    strategy_ : str
        What the solver did, see ``convexformer.solvers.STRATEGIES``.
    n_iter_ : int
    trace_ : list of TracePoint
        Iteration, seconds, certified gap and number of active tokens (matrices) on the way.
    n_tokens_, n_channels_, n_features_in_ : int
        Shape of X at fit; ``n_features_in_ = n_tokens_ * n_channels_``.
    """

    refit: Any
    n_tokens_: int
    n_channels_: int
    _certificate: Certificate  # of the solution, refitted or not

    @property
    def certificate_(self) -> Certificate:
        """Objective, lower bound and gap; refitted models have none."""
        check_is_fitted(self)
        if hasattr(self, "ridge_"):
            raise AttributeError(
                f"This {type(self).__name__} was refitted: its coefficients are not the certified "
                "optimum. See selection_certificate_, or fit with refit=False."
            )
        return self._certificate

    @property
    def selection_certificate_(self) -> Certificate:
        """Certificate of the fit that selected what was refitted."""
        check_is_fitted(self)
        if not hasattr(self, "ridge_"):
            raise AttributeError(
                f"This {type(self).__name__} was not refitted; see certificate_, and refit=True."
            )
        return self._certificate

    @property
    def _ridges(self) -> tuple[float | None, ...]:
        """Strengths of the ridge to choose from; None where there is no refit."""
        if not self.refit:
            return (None,)
        return RIDGES if is_boolean(self.refit) else (float(self.refit),)


@parameters
class Certified(Fitted, BaseEstimator):
    """A fit that ends with a certificate.

    Parameters
    ----------
    fit_intercept : bool, default=True
        Whether to fit an intercept per output, which is not penalised.
    tol : float, default=1e-6
        Relative duality gap at which to stop.
    max_iter : int, default=10000
        Most iterations.
    max_time : float, optional
        Most seconds, from reading X on. They are kept to within the larger of .3 s and two passes
        over X, which the certificate takes. A refit that would take longer is left out: the
        certified coefficients are kept, with a warning.
    on_interrupt : {"raise", "keep"}, default="raise"
        What Ctrl-C does during the solve and the refit. "raise": KeyboardInterrupt, and the
        estimator is left as it was before. "keep": the fit ends with the best coefficients so far
        and their true certificate (during the refit: with the certified ones), and warns; a second
        Ctrl-C raises.
    verbose : bool or callable, default=False
        True prints time and gap at every iteration; a callable receives them instead, as a named
        tuple ``(iteration, seconds, relative_gap, n_active)``.
    """

    fit_intercept: bool = True
    tol: float = 1e-6
    max_iter: int = 10_000
    max_time: float | None = None
    on_interrupt: str = "raise"
    verbose: Any = False

    _groups_name: ClassVar[str] = "tokens"  # what the solver counts as active
    _solve: ClassVar[Any] = staticmethod(solve)
    _refit: ClassVar[Any] = staticmethod(refit)
    _ridge_of_certified: ClassVar[float] = 1.0  # at which a refit gives the certified fit again
    _as_coef: ClassVar[Any]

    def _check_parameters(self) -> None:
        check_parameters(self)

    def _limits(self, clock: Clock) -> dict[str, Any]:
        """When a solver is to stop."""
        return {"tol": self.tol, "max_iter": self.max_iter, "max_time": clock.left}

    def _minimise(
        self, problem: Any, beta: float, clock: Clock, ridge: float | None = None, **start: Any
    ) -> Solution | Refitted:
        """Solve, and refit where that was asked for, within the time of `clock`."""
        with interruption(self.on_interrupt) as clock.asked:
            solution = self._solve(
                problem,
                beta,
                callback=self._report,
                on_interrupt=self.on_interrupt,
                **self._limits(clock),
                **start,
            )
            return self._refitted(problem, solution, clock, ridge)

    def _refitted(
        self, problem: Any, solution: Solution, clock: Clock, ridge: float | None
    ) -> Solution | Refitted:
        """`solution`, refitted where that was asked for; if not at `ridge`, at the best one."""
        if not self.refit:
            return solution
        if ridge is None and not is_boolean(self.refit):
            ridge = float(self.refit)
        fitted: Refitted | None = None
        with until(clock.late):
            fitted = self._refit(problem, solution, ridge)
        if fitted is None:  # it was stopped
            kept = np.full(len(solution.intercept), self._ridge_of_certified)
            fitted = Refitted(solution.Z, solution.intercept, solution, kept, converged=False)
            why = "Ctrl-C interrupted it" if clock.asked() else "max_time ran out"
            warn(
                f"The refit stopped early, because {why}. The model has the coefficients of the "
                "certified fit. Raise max_time, or pass a number as refit (True compares several).",
                ConvergenceWarning,
            )
        elif not fitted.converged:
            warn(
                "The refit stopped before it came to its minimum; the model is usable. Use a "
                "stronger ridge, refit=..., or scale X (TokenScaler).",
                ConvergenceWarning,
            )
        return fitted

    def _warn_of_one_sample(self, n_samples: int) -> None:
        if n_samples == 1:
            warn("X has one sample, and one sample cannot tell which tokens matter. Pass more.")

    def _report(self, point: TracePoint) -> None:
        """One line of progress, where asked for."""
        if callable(self.verbose):
            self.verbose(point)
        elif self.verbose:
            print(
                f"[{type(self).__name__}] iteration {point.iteration:5d}  {point.seconds:8.2f} s  "
                f"relative gap {point.relative_gap:8.1e}  {point.n_active:5d} {self._groups_name}",
                flush=True,
            )

    def _keep(self, fitted: Solution | Refitted) -> Self:
        """Turn a solution, refitted or not, into fitted attributes."""
        for name in ("selection_coef_", "selection_intercept_", "ridge_"):  # of an earlier fit
            self.__dict__.pop(name, None)
        solution = fitted.selection if isinstance(fitted, Refitted) else fitted
        self._set_coefficients(self._as_coef(fitted.Z), fitted.intercept)
        if isinstance(fitted, Refitted):
            self.selection_coef_ = self._as_coef(solution.Z)
            self.selection_intercept_ = solution.intercept
            self.ridge_ = fitted.ridge
        self._certificate = solution.certificate
        self.beta_, self.beta_max_ = solution.certificate.beta, solution.certificate.beta_max
        self.status_, self.strategy_ = solution.status, solution.strategy
        self.n_iter_, self.trace_ = solution.n_iter, solution.trace
        return self

    def _set_coefficients(self, coef: Array, intercept: Array) -> None:
        # One memory layout always: a loaded model predicts the same bits as the saved one.
        self.coef_ = np.ascontiguousarray(coef)
        self.intercept_ = np.ascontiguousarray(intercept)

    def _warn_unless_converged(self) -> None:
        gap = self._certificate.relative_gap
        if not gap <= self.tol:
            holds = "selection_certificate_" if hasattr(self, "ridge_") else "certificate_"
            stopped = "Interrupted" if self.status_ is Status.INTERRUPTED else "Stopped"
            warn(
                f"{stopped} at a relative duality gap of {gap:.1e}, above tol={self.tol:g}: the "
                f"objective may still be lowered by at most that fraction. The model is usable and "
                f"{holds} holds its true gap. {advice([self.status_])}",
                ConvergenceWarning,
            )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


@parameters
class OneBeta(Certified):
    r"""A fit at one penalty strength.

    Parameters
    ----------
    beta : float, default=0.1
        Penalty strength, positive: a fraction of the smallest strength at which the optimum is
        ``Z = 0`` (`beta_max_`). From 1 on, no coefficient is used. Where `beta_max_` is 0 (constant
        targets, or X all zero) every beta gives ``Z = 0`` with gap 0.
    beta_scale : {"relative", "absolute"}, default="relative"
        "absolute": `beta` is :math:`\beta` itself.
    """

    beta: float = field(default=0.1, kw_only=False)
    beta_scale: str = "relative"

    def _absolute_beta(self, problem: Any) -> float:
        return float(self.beta) * (problem.beta_max if self.beta_scale == "relative" else 1.0)
