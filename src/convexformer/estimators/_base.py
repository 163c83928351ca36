"""What all estimators share: from validated data to a problem, from a solution to attributes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from ..problem import PENALTIES, Design, Problem, TokenDesign
from ..problem.penalties import safe_norm
from ..solvers import Solution, TracePoint
from ..solvers.refit import Refitted
from ._refit import Refittable
from ._validation import (
    Array,
    Mask,
    Tokens,
    check_bool,
    check_choice,
    check_count,
    check_positive,
    check_same_length,
    check_sample_weight,
    check_token_weights,
    check_tokens,
)


@dataclass(frozen=True)
class TrainingData:
    """Validated input of a fit."""

    X: Tokens  # (N, n, d)
    mask: Mask | None  # (N, n)
    y: NDArray  # as passed
    Y: Array  # (N, c), as the loss wants it
    weight: Array | None  # (N,), the user's

    def take(self, rows: NDArray[np.intp]) -> TrainingData:
        """Some of the samples (copied)."""
        mask = None if self.mask is None else self.mask[rows]
        weight = None if self.weight is None else self.weight[rows]
        return TrainingData(self.X[rows], mask, self.y[rows], self.Y[rows], weight)


class ConvexAttention(Refittable, BaseEstimator):
    """Base of the estimators; a task mixin says what targets and scores mean."""

    penalty: str
    fit_intercept: bool
    token_weights: Any
    n_tokens: int | None
    tol: float
    max_iter: int
    max_time: float | None
    verbose: Any

    coef_: Array
    intercept_: Array

    # Before the solve -------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        check_choice("penalty", self.penalty, tuple(PENALTIES))
        check_bool("fit_intercept", self.fit_intercept)
        check_count("n_tokens", self.n_tokens, optional=True)
        check_positive("tol", self.tol, "It is the relative duality gap at which to stop.")
        check_count("max_iter", self.max_iter)
        check_positive("max_time", self.max_time, "It is in seconds.", optional=True)
        self._check_refit()
        self._check_task_parameters()

    def _read(self, X: Any, y: Any, sample_weight: Any, mask: Any) -> TrainingData:
        self._check_parameters()
        X, mask = check_tokens(self, X, mask, reset=True)
        y, Y = self._read_targets(y)
        check_same_length(X, y)
        return TrainingData(X, mask, y, Y, check_sample_weight(sample_weight, len(X)))

    def _problem(self, data: TrainingData) -> Problem:
        solvable = self._solvable(data.Y, data.weight)
        if self.fit_intercept and not np.all(solvable):
            raise ValueError(self._unsolvable(np.flatnonzero(~solvable)))
        weights = check_token_weights(self.token_weights, data.X.shape[1])
        return Problem(
            self._design(data.X, data.mask),
            self._task_loss(),
            PENALTIES[self.penalty](self._group_weights(weights)),
            data.Y,
            sample_weight=self._task_weight(data.y, data.weight),
            intercept=bool(self.fit_intercept),
        )

    def _prepare(self, data: TrainingData) -> None:
        """Fix what must be fixed before the problem is convex (gates)."""

    def _design(self, X: Tokens, mask: Mask | None) -> Design:
        return TokenDesign(X, mask)

    def _group_weights(self, weights: Array | None) -> Array | None:
        """Penalty weights of the design's groups, from those of tokens."""
        return weights

    def _report(self, point: TracePoint) -> None:
        """One line of progress, where asked for."""
        if callable(self.verbose):
            self.verbose(point)
        elif self.verbose:
            print(
                f"[{type(self).__name__}] iteration {point.iteration:5d}  {point.seconds:8.2f} s  "
                f"relative gap {point.relative_gap:8.1e}  {point.n_active:5d} tokens",
                flush=True,
            )

    # After the solve --------------------------------------------------------------------------

    def _keep(self, fitted: Solution | Refitted) -> Self:
        """Turn a solution, refitted or not, into fitted attributes."""
        self._set_coefficients(fitted.Z.transpose(2, 0, 1), fitted.intercept)
        solution = self._keep_selection(fitted)
        self.beta_ = solution.certificate.beta
        self.beta_max_ = solution.certificate.beta_max
        self.n_iter_ = solution.n_iter
        self.trace_ = solution.trace
        return self

    def _set_coefficients(self, coef: Array, intercept: Array) -> None:
        # One memory layout always: a loaded model predicts the same bits as the saved one.
        self.coef_ = np.ascontiguousarray(coef)  # (c, n, d)
        self.intercept_ = np.ascontiguousarray(intercept)
        norms = safe_norm(self.coef_, axis=2)  # (c, n)
        self.tokens_ = np.flatnonzero(np.any(norms, axis=0))
        self.token_norms_ = norms[0] if len(norms) == 1 else norms

    def _warn_unless_converged(self) -> None:
        gap = self._certificate.relative_gap
        if not gap <= self.tol:
            holds = "selection_certificate_" if self._is_refitted else "certificate_"
            warnings.warn(
                f"Stopped at a relative duality gap of {gap:.1e}, above tol={self.tol:g}: the "
                f"objective may still be lowered by at most that fraction. The model is usable and "
                f"{holds} holds its true gap. Raise max_iter or max_time, scale X "
                "(TokenScaler), raise beta, or accept the gap with a larger tol.",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _scores(self, X: Any, mask: Any) -> Array:
        """``F = sum_k X_k Z_k + b``, ``(N, c)``."""
        check_is_fitted(self)
        return self._design_scores(self._design(*check_tokens(self, X, mask, reset=False)))

    def _coefficients(self) -> Array:
        """`coef_` as problems have it, ``(groups, d, c)``."""
        return self.coef_.transpose(1, 2, 0)

    def _design_scores(self, design: Design) -> Array:
        Z = self._coefficients()
        used = np.flatnonzero(np.any(Z, axis=(1, 2)))  # no other token is read
        F = design.predict(Z) if len(used) == len(Z) else design.predict(Z[used], used)
        return F + self.intercept_

    def to_network(self) -> Any:
        """The network this model is equivalent to, as a PyTorch module in float64.

        It has one simplex-attention head per nonzero block of the coefficients, the same scores,
        and the same objective with weight decay. It is nonconvex in its weights, as networks are,
        and stands at a global optimum to within the certificate. That of a refitted model has the
        same scores, but stands at no optimum: `refit` moved away from it.

        Returns
        -------
        convexformer.nn.SimplexAttention or convexformer.nn.GatedFCN
            Needs PyTorch: ``pip install "convexformer[nn]"``.
        """
        check_is_fitted(self)
        from ..nn import network_of  # the one look upward, and torch only where it is asked for

        return network_of(self)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    # What the task mixins bring ---------------------------------------------------------------

    _check_task_parameters: Any
    _read_targets: Any
    _task_loss: Any
    _task_weight: Any
    _solvable: Any
    _unsolvable: Any
    _missing: Any
    _fill_intercept: Any
    _score_default: Any
