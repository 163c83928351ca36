"""What estimators for targets at every position share: the fit, attention maps, the network."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from ..problem import Loss, TokenDesign
from ..problem.sequence import ATTENTION, AttentionParts, SequenceProblem, to_tokens
from ..solvers import TracePoint
from ..solvers.interruption import ON_INTERRUPT, interruption
from ..solvers.refit_sequence import refit_sequence
from ..solvers.sequence import solve_sequence
from ..solvers.solution import Clock
from ._refit import Refittable
from ._validation import (
    Array,
    Mask,
    check_bool,
    check_choice,
    check_count,
    check_positive,
    check_sample_weight,
    check_tokens,
    ranked,
    time_left,
    warn_of_one_sample,
)
from .persistence import Persistent


@dataclass(frozen=True)
class AttentionMaps:
    """What positions attend to, read from the coefficients of a :class:`ConvexSequenceRegressor`.

    Attributes
    ----------
    positive, negative : ndarray of shape (n_channels, n_outputs, n_tokens, n_tokens)
        Attention maps of the equivalent network, one of each sign per input channel and output:
        row r says how target position r weighs source positions. Rows sum to one (to at most one
        for substochastic attention). A map of weight zero is zero.
    positive_weights, negative_weights : ndarray of shape (n_channels, n_outputs)
        How strongly each map counts: ``coef_ = positive_weights * positive - negative_weights *
        negative``, and their sum is the penalty.
    aggregate : ndarray of shape (n_tokens, n_tokens)
        Share of source positions in the absolute coefficients of every target position, over all
        channels and outputs. Rows sum to one; a target position without coefficients has a row of
        zeros.
    """

    positive: Array
    negative: Array
    positive_weights: Array
    negative_weights: Array
    aggregate: Array


class SequenceModel(Refittable, BaseEstimator, Persistent):
    """Attention from position to position; subclasses say how targets become a loss."""

    coef_: Array
    intercept_: Array
    beta: float
    beta_scale: str
    attention: str
    fit_intercept: bool
    max_iter: int
    max_time: float | None
    on_interrupt: str
    verbose: Any
    _targets = "sequence"  # what a saved model says of its targets

    _refit = staticmethod(refit_sequence)

    def _check_parameters(self) -> None:
        check_choice("beta_scale", self.beta_scale, ("relative", "absolute"))
        check_choice("attention", self.attention, ATTENTION)
        check_bool("fit_intercept", self.fit_intercept)
        self._check_refit()
        check_positive("tol", self.tol, "It is the relative duality gap at which to stop.")
        check_count("max_iter", self.max_iter)
        check_positive("max_time", self.max_time, "It is in seconds.", optional=True)
        check_choice("on_interrupt", self.on_interrupt, ON_INTERRUPT)
        if isinstance(self.beta, numbers.Real) and self.beta == 0:
            raise ValueError(
                "beta=0 removes the penalty and with it the certificate; use a small beta such as "
                "1e-4."
            )
        check_positive("beta", self.beta, "By default it is a fraction of beta_max.")

    def _fit(
        self,
        X: Any,
        mask: Mask | None,
        Y: Array,
        loss: Loss,
        sample_weight: Any,
        start: float,
    ) -> None:
        """Fit to targets ``Y (N, n, c)`` of a loss; `start` is when the fit began."""
        weight = check_sample_weight(sample_weight, len(X))
        warn_of_one_sample(len(X))
        intercept = bool(self.fit_intercept)
        problem = SequenceProblem(X, Y, self.attention, weight, mask, intercept, loss)
        scale = problem.beta_max if self.beta_scale == "relative" else 1.0
        clock = Clock(self.max_iter, time_left(self.max_time, start))
        with interruption(self.on_interrupt) as clock.asked:
            solution = solve_sequence(
                problem,
                float(self.beta) * scale,
                tol=self.tol,
                max_iter=self.max_iter,
                max_time=clock.left,
                callback=self._report,
                on_interrupt=self.on_interrupt,
            )
            fitted = self._refitted(problem, solution, clock)
        self._set_coefficients(fitted.Z, fitted.intercept)
        self._keep_solution(fitted)
        self.n_outputs_ = Y.shape[2]

    def _read_tokens(self, X: Any, mask: Any, *, reset: bool) -> tuple[Any, Mask | None]:
        X = ranked(X)
        if len(X.shape) != 3:
            raise ValueError(
                f"X must be 3-D (samples, tokens, channels), got shape {tuple(X.shape)}. Reshape "
                "your data: X[:, :, None] for one channel, X[None] for one sample."
            )
        return check_tokens(self, X, mask, reset=reset)

    def _report(self, point: TracePoint) -> None:
        """One line of progress, where asked for."""
        if callable(self.verbose):
            self.verbose(point)
        elif self.verbose:
            print(
                f"[{type(self).__name__}] iteration {point.iteration:5d}  {point.seconds:8.2f} s  "
                f"relative gap {point.relative_gap:8.1e}  {point.n_active:5d} matrices",
                flush=True,
            )

    def _as_coef(self, Z: Array) -> Array:
        return Z

    def _set_coefficients(self, coef: Array, intercept: Array) -> None:
        # One memory layout always: a loaded model predicts the same bits as the saved one.
        self.coef_ = np.ascontiguousarray(coef)  # (d, c, n, n)
        self.intercept_ = np.ascontiguousarray(intercept)

    # After the fit ----------------------------------------------------------------------------

    def _scores(self, X: Any, mask: Any) -> tuple[Array, Mask | None]:
        """Scores of all positions ``(N, n, c)``, and the mask as it was read."""
        check_is_fitted(self)
        X, mask = self._read_tokens(X, mask, reset=False)
        T = to_tokens(self.coef_)  # (n, d, n, c)
        F = TokenDesign(X, mask).predict(T.reshape(*T.shape[:2], -1))
        return F.reshape(-1, *T.shape[2:]) + self.intercept_, mask

    def _real(
        self, shape: tuple[int, int], mask: Mask | None, sample_weight: Any
    ) -> tuple[Mask, Array]:
        """Which positions of ``(N, n)`` are real, and the weight of each of these."""
        weight = check_sample_weight(sample_weight, shape[0])
        weight = np.ones(shape[0]) if weight is None else weight
        real = np.ones(shape, dtype=bool) if mask is None else mask
        return real, np.broadcast_to(weight[:, None], shape)[real]

    def _parts(self) -> AttentionParts:
        """Coefficients as a difference of nonnegative parts, ``coef_ = A - B``.

        Their (largest) row sums are ``a``, ``b``; heads of the network are ``A / a``, ``B / b``.
        """
        check_is_fitted(self)
        return AttentionParts.of(self.coef_, self.attention)

    @property
    def attention_maps_(self) -> AttentionMaps:
        """Attention maps of the equivalent network, and one over all of them."""
        parts = self._parts()
        mass = np.abs(self.coef_).sum(axis=(0, 1))
        return AttentionMaps(
            _over(parts.A, parts.a[:, :, None, None]),
            _over(parts.B, parts.b[:, :, None, None]),
            parts.a,
            parts.b,
            _over(mass, mass.sum(axis=1, keepdims=True)),
        )

    def to_network(self) -> Any:
        """The network this model is equivalent to, as a PyTorch module in float64.

        It has two heads per nonzero :math:`Z_{jl}`, one where its entries have one sign, the same
        predictions, and the same objective with weight decay. It is nonconvex in its weights, as
        networks are, and stands at a global optimum to within the certificate. That of a refitted
        model has the same predictions, but stands at no optimum.

        Returns
        -------
        convexformer.nn.SequenceAttention
            Needs PyTorch: ``pip install "convexformer[nn]"``.
        """
        parts = self._parts()
        from ..nn import to_sequence_network  # torch only where it is asked for

        intercept = self.intercept_ if self.fit_intercept else None
        return to_sequence_network(parts.A, parts.B, intercept, self.attention)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.two_d_array = False
        return tags


def _over(parts: Array, sums: Array) -> Array:
    """``parts / sums``, zero where there is nothing."""
    return np.divide(parts, sums, out=np.zeros_like(parts), where=sums > 0)
