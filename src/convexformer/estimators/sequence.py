"""The estimator for matrix targets: a vector per position in, a vector per position out."""

from __future__ import annotations

import time
from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_array

from ..problem import Huber, Loss, Poisson, Squared
from ._draft import all_or_nothing
from ._sequence import SequenceModel
from ._validation import Array, Mask, as_numpy, check_choice, check_numbers, check_positive


class ConvexSequenceRegressor(RegressorMixin, SequenceModel):
    r"""Attention from position to position for matrix targets, to a certified global optimum.

    .. math:: \min_{Z, b}\ \sum_{i, r} a_i\, \mathrm{loss}(F_i[r], Y_i[r])
              + \beta \sum_{j, l} \Bigl(\max_r \sum_k Z^+_{jl}[r, k]
              + \max_r \sum_k Z^-_{jl}[r, k]\Bigr)

    with scores :math:`F_i[r, l] = \sum_{j, k} Z_{jl}[r, k]\, X_i[k, j] + b_l`, subject to all rows
    of a :math:`Z_{jl}` having equal sums. This convex program has the same
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
    loss : {"squared", "huber", "poisson"}, default="squared"
        "poisson" is for counts: scores are logarithms of rates.
    huber_delta : float, default=1.35
        Residual, in units of y, beyond which the Huber loss is linear.
    fit_intercept : bool, default=True
        Whether to fit an intercept per output, the same at all positions, not penalised.
    refit : bool or float, default=False
        Whether to fit once more the entries of :math:`Z` that this fit selected (who attends to
        whom), by least squares with a small ridge in place of the penalty, which shrinks. Rows
        keep their equal sums; the result is not the certified optimum. A number is the strength
        of the ridge as a fraction of the mean square of the columns in use; True is 1e-3. For the
        squared loss only.
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
    another factor ``n_tokens`` where there is a mask. Other losses than the squared take such a fit
    for every step of Newton's method, of which there are 5 to 15, with another factor
    ``n_tokens * n_outputs`` whether there is a mask or not.

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

    def __init__(
        self,
        beta: float = 0.1,
        *,
        beta_scale: str = "relative",
        attention: str = "stochastic",
        loss: str = "squared",
        huber_delta: float = 1.35,
        fit_intercept: bool = True,
        refit: Any = False,
        tol: float = 1e-6,
        max_iter: int = 10_000,
        max_time: float | None = None,
        on_interrupt: str = "raise",
        verbose: Any = False,
    ) -> None:
        self.beta = beta
        self.beta_scale = beta_scale
        self.attention = attention
        self.loss = loss
        self.huber_delta = huber_delta
        self.fit_intercept = fit_intercept
        self.refit = refit
        self.tol = tol
        self.max_iter = max_iter
        self.max_time = max_time
        self.on_interrupt = on_interrupt
        self.verbose = verbose

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice("loss", self.loss, ("squared", "huber", "poisson"))
        check_positive("huber_delta", self.huber_delta, "It is in units of y.")
        if self.loss != "squared" and self.refit:
            raise ValueError(
                f"refit={self.refit!r} is least squares, and loss is {self.loss!r}. Use "
                "loss='squared', or refit=False."
            )

    def _loss(self) -> Loss:
        if self.loss == "huber":
            return Huber(self.huber_delta)
        return Poisson() if self.loss == "poisson" else Squared()

    @all_or_nothing
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
        start = time.perf_counter()
        self._check_parameters()
        X, mask = self._read_tokens(X, mask, reset=True)
        Y = self._read_targets(y, X.shape[:2], mask)
        self._fit(X, mask, Y, self._loss(), sample_weight, start)
        self._warn_unless_converged()
        return self

    def _read_targets(self, y: Any, shape: tuple[int, int], mask: Mask | None) -> Array:
        if y is None:
            raise ValueError("ConvexSequenceRegressor requires y to be passed, but it is None.")
        y = as_numpy(y, "y")
        check_numbers(y, "y", "Targets are one vector of numbers per position.")
        Y = check_array(
            y,
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
        low = float(np.min(Y if mask is None else Y[mask], initial=0.0))
        if self.loss == "poisson" and low < 0:
            raise ValueError(
                f"loss='poisson' needs counts y >= 0, got {low:g}. Use loss='squared' or 'huber' "
                "for targets that may be negative."
            )
        return Y

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
            The scores, or their exponential (a rate) for ``loss="poisson"``. NaN at padding.
        """
        F, mask = self._scores(X, mask)
        F = np.exp(F) if self.loss == "poisson" else F
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
        real, weights = self._real(F.shape[:2], mask, sample_weight)
        return float(r2_score(Y[real], F[real], sample_weight=weights))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.positive_only = self.loss == "poisson"
        return tags
