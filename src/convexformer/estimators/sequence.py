"""The estimator for matrix targets: a vector per position in, a vector per position out."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted

from ..problem import TokenDesign
from ..problem.sequence import ATTENTION, AttentionParts, SequenceProblem, to_tokens
from ..solvers import TracePoint
from ..solvers.refit_sequence import refit_sequence
from ..solvers.sequence import solve_sequence
from ._refit import Refittable
from ._validation import (
    Array,
    Mask,
    as_numpy,
    check_bool,
    check_choice,
    check_count,
    check_positive,
    check_sample_weight,
    check_tokens,
    numbers_only,
    ranked,
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


class ConvexSequenceRegressor(RegressorMixin, Refittable, BaseEstimator, Persistent):
    r"""Attention from position to position for matrix targets, to a certified global optimum.

    .. math:: \min_{Z, b}\ \frac12 \sum_{i, r, l} a_i \Bigl(\sum_{j, k} Z_{jl}[r, k]\, X_i[k, j]
              + b_l - Y_i[r, l]\Bigr)^2
              + \beta \sum_{j, l} \Bigl(\max_r \sum_k Z^+_{jl}[r, k]
              + \max_r \sum_k Z^-_{jl}[r, k]\Bigr)

    subject to all rows of a :math:`Z_{jl}` having equal sums. This convex program has the same
    optimum as a network of heads :math:`W_1 X W_2 w_3`, whose attention :math:`W_1` has rows on the
    simplex, with decay :math:`\frac\beta2 (\|W_2\|_1^2 + w_3^2)`, so the network's global optimum
    is found, with a proof: `certificate_` holds a lower bound on the objective of every model.
    Attention is static: over positions, the same for every sample.

    Parameters
    ----------
    beta : float, default=0.1
        Penalty strength, positive: a fraction of the smallest strength at which the optimum is
        ``Z = 0`` (`beta_max_`).
    beta_scale : {"relative", "absolute"}, default="relative"
        "absolute": `beta` is :math:`\beta` itself.
    attention : {"stochastic", "substochastic"}, default="stochastic"
        Whether rows of the attention sum to one, or to at most one. The latter drops the condition
        on row sums; it is the program that the paper prints, and its optimum is the lower of the
        two.
    fit_intercept : bool, default=True
        Whether to fit an intercept per output, the same at all positions, not penalised.
    refit : bool or float, default=False
        Whether to fit once more the entries of :math:`Z` that this fit selected (who attends to
        whom), by least squares with a small ridge in place of the penalty, which shrinks. Rows
        keep their equal sums; the result is not the certified optimum. A number is the strength
        of the ridge as a fraction of the mean square of the columns in use; True is 1e-3.
    tol : float, default=1e-6
        Relative duality gap at which to stop.
    max_iter : int, default=10000
        Most iterations.
    max_time : float, optional
        Most seconds.
    verbose : bool or callable, default=False
        True prints time and gap as the solver goes; a callable receives them instead, as a named
        tuple ``(iteration, seconds, relative_gap, n_active)`` with the number of nonzero
        :math:`Z_{jl}`.

    Attributes
    ----------
    coef_ : ndarray of shape (n_channels, n_outputs, n_tokens, n_tokens)
        :math:`Z`: input channel, output, target position, source position.
    intercept_ : ndarray of shape (n_outputs,)
    attention_maps_ : AttentionMaps
        The maps of the equivalent network with their weights, and one map over all of them.
    certificate_ : Certificate
        Objective, lower bound and gap, computed in float64 from the coefficients alone. A
        refitted model has none.
    selection_certificate_, selection_coef_, selection_intercept_, ridge_
        Of a refitted model only: the certificate, coefficients and intercept of the fit that
        selected, and the absolute strength of the ridge, per output.
    beta_, beta_max_ : float
        Penalty strength, absolute, and the smallest at which ``Z = 0``.
    n_iter_ : int
    trace_ : list of TracePoint
        Iteration, seconds, certified gap and number of nonzero :math:`Z_{jl}` on the way.
    n_tokens_, n_channels_, n_outputs_, n_features_in_ : int
        Shapes at fit; ``n_features_in_ = n_tokens_ * n_channels_``.

    Notes
    -----
    The fit works on second moments: after one pass over the data its cost does not depend on the
    number of samples, but memory and time grow with ``(n_tokens * n_channels) ** 2``, and with
    another factor ``n_tokens`` where there is a mask.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer import ConvexSequenceRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 6, 3))  # samples, tokens, channels
    >>> Y = np.roll(X, 1, axis=1)[:, :, :1]  # every position reads its left neighbour
    >>> model = ConvexSequenceRegressor(beta=0.2).fit(X, Y)
    >>> model.attention_maps_.aggregate.argmax(axis=1)
    array([5, 0, 1, 2, 3, 4])
    >>> model.certificate_.relative_gap <= 1e-6
    True
    """

    coef_: Array
    intercept_: Array

    _refit = staticmethod(refit_sequence)

    def __init__(
        self,
        beta: float = 0.1,
        *,
        beta_scale: str = "relative",
        attention: str = "stochastic",
        fit_intercept: bool = True,
        refit: Any = False,
        tol: float = 1e-6,
        max_iter: int = 10_000,
        max_time: float | None = None,
        verbose: Any = False,
    ) -> None:
        self.beta = beta
        self.beta_scale = beta_scale
        self.attention = attention
        self.fit_intercept = fit_intercept
        self.refit = refit
        self.tol = tol
        self.max_iter = max_iter
        self.max_time = max_time
        self.verbose = verbose

    def _check_parameters(self) -> None:
        check_choice("beta_scale", self.beta_scale, ("relative", "absolute"))
        check_choice("attention", self.attention, ATTENTION)
        check_bool("fit_intercept", self.fit_intercept)
        self._check_refit()
        check_positive("tol", self.tol, "It is the relative duality gap at which to stop.")
        check_count("max_iter", self.max_iter)
        check_positive("max_time", self.max_time, "It is in seconds.", optional=True)
        if isinstance(self.beta, numbers.Real) and self.beta == 0:
            raise ValueError(
                "beta=0 removes the penalty and with it the certificate; use a small beta such as "
                "1e-4."
            )
        check_positive("beta", self.beta, "By default it is a fraction of beta_max.")

    def fit(self, X: Any, y: Any, sample_weight: Any = None, mask: Any = None) -> Self:
        """Fit to a certified global optimum.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_channels)
        y : array-like of shape (n_samples, n_tokens, n_outputs)
            Targets, one vector per position.
        sample_weight : array-like of shape (n_samples,), optional
            Non-negative weights :math:`a_i`.
        mask : array-like of shape (n_samples, n_tokens), optional
            True where a token is real. At padding, X reads as zero, what is attended there adds
            nothing, and the target does not count; both may hold anything, NaN included.

        Returns
        -------
        self
        """
        self._check_parameters()
        X, mask = self._read_tokens(X, mask, reset=True)
        Y = self._read_targets(y, X.shape[:2], mask)
        weight = check_sample_weight(sample_weight, len(X))
        problem = SequenceProblem(X, Y, self.attention, weight, mask, bool(self.fit_intercept))
        scale = problem.beta_max if self.beta_scale == "relative" else 1.0
        solution = solve_sequence(
            problem,
            float(self.beta) * scale,
            tol=self.tol,
            max_iter=self.max_iter,
            max_time=self.max_time,
            callback=self._report,
        )
        fitted = self._refitted(problem, solution)
        self._set_coefficients(fitted.Z, fitted.intercept)
        self._keep_solution(fitted)
        self.n_outputs_ = Y.shape[2]
        self._warn_unless_converged()
        return self

    def _read_tokens(self, X: Any, mask: Any, *, reset: bool) -> tuple[Any, Mask | None]:
        X = ranked(X)
        if len(X.shape) != 3:
            raise ValueError(
                f"X must be 3-D (samples, tokens, channels), got shape {tuple(X.shape)}. Reshape "
                "your data: X[:, :, None] for one channel, X[None] for one sample."
            )
        return check_tokens(self, X, mask, reset=reset)

    def _read_targets(self, y: Any, shape: tuple[int, int], mask: Mask | None) -> Array:
        if y is None:
            raise ValueError("ConvexSequenceRegressor requires y to be passed, but it is None.")
        with numbers_only("y", "Targets are one vector of numbers per position."):
            Y = check_array(
                as_numpy(y, "y"),
                allow_nd=True,
                ensure_2d=False,
                dtype=np.float64,
                ensure_all_finite=False,
                input_name="y",
                estimator=self,
            )
        if Y.ndim != 3 or Y.shape[:2] != shape:
            raise ValueError(
                f"y must have shape (samples, tokens, outputs) = ({shape[0]}, {shape[1]}, any), "
                f"one vector per position of X, got {Y.shape}. For one output per position pass "
                "y[:, :, None]; for one target per sample use ConvexAttentionRegressor."
            )
        bad = ~np.isfinite(Y)
        if mask is not None:
            bad &= mask[:, :, None]
        if np.any(bad):
            i, r, output = np.argwhere(bad)[0]
            raise ValueError(
                f"Input y contains NaN or infinity (inf): {Y[i, r, output]} at sample {i}, token "
                f"{r}, output {output}. Remove or impute such values; if they are padding, pass "
                "mask (samples, tokens), False there."
            )
        return Y

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
        self._targets = "sequence"

    # After the fit ----------------------------------------------------------------------------

    def predict(self, X: Any, mask: Any = None) -> Array:
        """Predict a vector per position.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_channels)
        mask : array-like of shape (n_samples, n_tokens), optional
            True where a token is real.

        Returns
        -------
        ndarray of shape (n_samples, n_tokens, n_outputs)
            NaN at padding.
        """
        check_is_fitted(self)
        X, mask = self._read_tokens(X, mask, reset=False)
        T = to_tokens(self.coef_)  # (n, d, n, c)
        F = TokenDesign(X, mask).predict(T.reshape(*T.shape[:2], -1))
        F = F.reshape(-1, *T.shape[2:]) + self.intercept_
        return F if mask is None else np.where(mask[:, :, None], F, np.nan)

    def score(self, X: Any, y: Any, sample_weight: Any = None, mask: Any = None) -> float:
        """Coefficient of determination R² over all real positions, mean over outputs.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_channels)
        y : array-like of shape (n_samples, n_tokens, n_outputs)
        sample_weight : array-like of shape (n_samples,), optional
        mask : array-like of shape (n_samples, n_tokens), optional
            True where a token is real.

        Returns
        -------
        float
        """
        F = self.predict(X, mask)
        _, mask = self._read_tokens(X, mask, reset=False)
        Y = self._read_targets(y, F.shape[:2], mask)
        weight = check_sample_weight(sample_weight, len(F))
        weight = np.ones(len(F)) if weight is None else weight
        real = np.ones(F.shape[:2], dtype=bool) if mask is None else mask
        weights = np.broadcast_to(weight[:, None], real.shape)[real]
        return float(r2_score(Y[real], F[real], sample_weight=weights))

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
        tags.target_tags.multi_output = True
        return tags


def _over(parts: Array, sums: Array) -> Array:
    """``parts / sums``, zero where there is nothing."""
    return np.divide(parts, sums, out=np.zeros_like(parts), where=sums > 0)
