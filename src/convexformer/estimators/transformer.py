"""Attention followed by a gated-ReLU network, still convex: Theorem 3 as estimators."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from ..problem import Design, GatedDesign, Gates
from ..problem.gated import always_open, axis_gates, distinct_rows, gaussian_gates, pair_gates
from ..problem.norms import safe_norm
from ._parameters import estimator, parameters
from ._reading import Array, Samples
from ._tasks import Classification, Regression
from .attention import ConvexAttention, SingleBeta, TrainingData
from .cv import CrossValidated

GATES = ("axis", "pairs", "gaussian")


@parameters
class Gated(ConvexAttention):
    """Tokens seen through fixed gates, the first of them always open unless ``open_gate=False``.

    Parameters
    ----------
    n_gates : int, default=64
        Gates to draw, besides the one that is always open.
    gates : {"axis", "pairs", "gaussian"} or (directions, thresholds), default="axis"
        "axis": one channel of one token against a threshold from the data. "pairs": half-way
        between a sample and its nearest neighbour of another class (for regression: across the
        median). "gaussian": the paper's, rank-one Gaussian directions against zero. Or arrays of
        shape ``(h, n_tokens, n_channels)`` and ``(h,)``. In cross-validation gates are drawn anew
        on each fold.
    open_gate : bool, default=True
        Whether to add a gate that is always open. The theorem as printed has none: its program is
        that of ``open_gate=False``.
    gate_weight : float, default=1.5
        Positive factor :math:`g_j` of the penalty of every block behind a gate that may close; it
        is 1 for a gate that is always open. Above 1, gated blocks are used only where they lower
        the loss by more than open ones would. It multiplies `token_weights`, and changes nothing
        where no gate is always open. The default was chosen by validation: ``docs/gate-weight.md``.
    random_state : int, RandomState or None, default=None
        Of the gates.

    Attributes
    ----------
    coef_ : ndarray of shape (n_outputs, h, n_tokens, n_channels)
        :math:`Z`, for every output and gate.
    gate_directions_ : ndarray of shape (h, n_tokens, n_channels)
    gate_thresholds_ : ndarray of shape (h,)
        The gates, ``h = n_gates + 1`` of them (`n_gates` if ``open_gate=False``); a gate that is
        always open has threshold ``-inf``.
    gate_norms_ : ndarray of shape (h,)
        Sum of the norms of every gate's tokens.
    tokens_ : ndarray of int
        Tokens that any gate uses.
    token_norms_ : ndarray of shape (n_tokens,) or (n_outputs, n_tokens)
        Sum over gates of the norms of a token's coefficients.
    """

    n_gates: int = 64
    gates: Any = "axis"
    open_gate: bool = True
    gate_weight: float = 1.5
    random_state: Any = None

    _groups_name: ClassVar[str] = "(gate, token) pairs"

    def _prepare(self, data: TrainingData) -> None:
        tokens = data.samples.design()
        drawn = self._drawn(tokens, data)
        if self.open_gate:
            drawn = always_open(tokens.n_groups, tokens.dim) + drawn
        self.gate_directions_: Array = drawn.directions
        self.gate_thresholds_: Array = drawn.thresholds

    def _drawn(self, tokens: Design, data: TrainingData) -> Gates:
        """The gates besides the one that is always open."""
        n, d = tokens.n_groups, tokens.dim
        if not isinstance(self.gates, str) or self.gates not in GATES:
            return _given_gates(self.gates, n, d)
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        rng = np.random.default_rng(seed)
        if self.gates == "gaussian":
            return gaussian_gates(rng, self.n_gates, n, d)
        rows = distinct_rows(tokens, data.weight)
        if self.gates == "axis":
            return axis_gates(rng, self.n_gates, tokens, rows)
        return pair_gates(rng, self.n_gates, tokens, rows, self._sides(data.Y[rows]))

    def _sides(self, Y: Array) -> NDArray[np.intp]:
        """Labels between which to draw gates: classes, or above and below the median."""
        median = np.median(Y, axis=0)  # it may be the largest: most of two labels
        above = np.where(median < np.max(Y, axis=0), np.greater(Y, median), np.equal(Y, median))
        return np.unique(above, axis=0, return_inverse=True)[1].ravel()

    def _design(self, samples: Samples) -> Design:
        tokens = samples.design()
        gates = Gates(self.gate_directions_, self.gate_thresholds_)
        return GatedDesign(tokens, gates.open(tokens))

    def _penalty_weights(self) -> Array | None:
        """Every token's weight under every gate, times `gate_weight` where the gate may close.

        Without an open gate there is nothing to weigh gates against: a factor that all blocks
        share would only rename beta.
        """
        weights = super()._penalty_weights()
        h, n = self.gate_directions_.shape[:2]
        closes = self.gate_thresholds_ > -np.inf
        factors = np.where(closes, float(self.gate_weight), 1.0) if not all(closes) else np.ones(h)
        if weights is None and np.all(factors == 1.0):
            return None
        return np.outer(factors, np.ones(n) if weights is None else weights).ravel()

    def _as_coef(self, Z: Array) -> Array:
        coef = super()._as_coef(Z)
        return coef.reshape(len(coef), *self.gate_directions_.shape[:2], -1)  # (c, h, n, d)

    def _set_coefficients(self, coef: Array, intercept: Array) -> None:
        super()._set_coefficients(coef, intercept)
        self.gate_norms_ = safe_norm(self.coef_, axis=3).sum(axis=(0, 2))


def _given_gates(gates: Any, n: int, d: int) -> Gates:
    try:
        drawn = Gates(*(np.asarray(part, dtype=float) for part in gates))
    except (TypeError, ValueError):
        drawn = Gates(np.empty(0), np.empty(0))
    U, t = drawn.directions, drawn.thresholds
    if U.shape[1:] != (n, d) or t.shape != U.shape[:1] or np.isnan(U).any() or np.isnan(t).any():
        raise ValueError(
            f"gates must be one of {GATES} or a pair of arrays without NaN, directions (h, {n}, "
            f"{d}) and thresholds (h,); got {type(gates).__name__} of shapes {U.shape}, {t.shape}."
        )
    return drawn


@parameters
class GatedCrossValidated(Gated, CrossValidated):
    """Gates and a path of betas, which ends earlier, since weak penalties cost more with gates.

    Parameters
    ----------
    n_betas : int, default=30
        How many fractions to try, where `betas` is omitted.
    eps : float, default=0.01
        The smallest of them.
    """

    n_betas: int = 30
    eps: float = 0.01


@estimator
class ConvexTransformerRegressor(Regression, Gated, SingleBeta):
    r"""A gated convex layer for regression, trained to a certified global optimum.

    .. math:: F_i = \sum_j m_{ij} \sum_k X_{ik} Z_{jk} + b, \qquad
              \min_{Z, b}\ \sum_i a_i\,\mathrm{loss}(F_i, y_i)
              + \beta \sum_{j, k} g_j w_k \sum_l \|Z_{jk}[:, l]\|_2

    The attention layer of :class:`ConvexAttentionRegressor` followed by a gated-ReLU network
    (Theorem 3 of the paper): gates :math:`m_{ij} = 1\{\langle U_j, X_i\rangle \ge t_j\}` are drawn
    once and then fixed, which keeps the problem convex and its optimum certified. Gate 0 is always
    open unless ``open_gate=False``, so the layer without gates is a special case. The optimum is
    that of *these* gates: other gates have another.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer import ConvexTransformerRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 4, 2))
    >>> y = np.maximum(X[:, 1, 0], 0) + 0.1 * rng.normal(size=300)  # not linear
    >>> model = ConvexTransformerRegressor(beta=0.05, gates="axis", random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    >>> model.certificate_.relative_gap <= 1e-6
    True
    """


@estimator
class ConvexTransformerClassifier(Classification, Gated, SingleBeta):
    r"""A gated convex layer for classification, trained to a certified global optimum.

    .. math:: F_i = \sum_j m_{ij} \sum_k X_{ik} Z_{jk} + b, \qquad
              \min_{Z, b}\ \sum_i a_i\,\mathrm{loss}(F_i, y_i)
              + \beta \sum_{j, k} g_j w_k \sum_l \|Z_{jk}[:, l]\|_2

    The attention layer of :class:`ConvexAttentionClassifier` followed by a gated-ReLU network
    (Theorem 3 of the paper): gates :math:`m_{ij} = 1\{\langle U_j, X_i\rangle \ge t_j\}` are drawn
    once and then fixed, which keeps the problem convex and its optimum certified. Gate 0 is always
    open unless ``open_gate=False``, so the layer without gates is a special case. The optimum is
    that of *these* gates: other gates have another.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer import ConvexTransformerClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 4, 2))
    >>> y = X[:, 1, 0] * X[:, 2, 1] > 0  # an interaction: no linear model knows it
    >>> model = ConvexTransformerClassifier(beta=0.05, gates="axis", random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    >>> model.certificate_.relative_gap <= 1e-6
    True
    """


@estimator
class ConvexTransformerRegressorCV(Regression, GatedCrossValidated):
    r"""A gated convex layer for regression, with beta chosen by cross-validation.

    .. math:: F_i = \sum_j m_{ij} \sum_k X_{ik} Z_{jk} + b, \qquad
              \min_{Z, b}\ \sum_i a_i\,\mathrm{loss}(F_i, y_i)
              + \beta \sum_{j, k} g_j w_k \sum_l \|Z_{jk}[:, l]\|_2

    The attention layer of :class:`ConvexAttentionRegressor` followed by a gated-ReLU network
    (Theorem 3 of the paper): gates :math:`m_{ij} = 1\{\langle U_j, X_i\rangle \ge t_j\}` are drawn
    once and then fixed, which keeps the problem convex and its optimum certified. Gate 0 is always
    open unless ``open_gate=False``, so the layer without gates is a special case. The optimum is
    that of *these* gates: other gates have another.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer import ConvexTransformerRegressorCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(120, 3, 2))
    >>> y = np.maximum(X[:, 1, 0], 0) + rng.normal(size=120)
    >>> model = ConvexTransformerRegressorCV(n_betas=5, cv=3, n_gates=8, random_state=0).fit(X, y)
    >>> model.certificate_.relative_gap <= 1e-6
    True
    """


@estimator
class ConvexTransformerClassifierCV(Classification, GatedCrossValidated):
    r"""A gated convex layer for classification, with beta chosen by cross-validation.

    .. math:: F_i = \sum_j m_{ij} \sum_k X_{ik} Z_{jk} + b, \qquad
              \min_{Z, b}\ \sum_i a_i\,\mathrm{loss}(F_i, y_i)
              + \beta \sum_{j, k} g_j w_k \sum_l \|Z_{jk}[:, l]\|_2

    The attention layer of :class:`ConvexAttentionClassifier` followed by a gated-ReLU network
    (Theorem 3 of the paper): gates :math:`m_{ij} = 1\{\langle U_j, X_i\rangle \ge t_j\}` are drawn
    once and then fixed, which keeps the problem convex and its optimum certified. Gate 0 is always
    open unless ``open_gate=False``, so the layer without gates is a special case. The optimum is
    that of *these* gates: other gates have another.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer import ConvexTransformerClassifierCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(120, 3, 2))
    >>> y = X[:, 1, 0] + rng.normal(size=120) > 0
    >>> model = ConvexTransformerClassifierCV(n_betas=5, cv=3, n_gates=8, random_state=0).fit(X, y)
    >>> model.certificate_.relative_gap <= 1e-6
    True
    """
