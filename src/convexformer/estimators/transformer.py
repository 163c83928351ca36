"""Attention followed by a gated-ReLU network, still convex: Theorem 3 as estimators."""

from __future__ import annotations

from typing import Any

from ._cross_validated import CrossValidated
from ._gated import Gated
from ._tasks import Classification, Regression
from .attention import SingleBeta


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

    Parameters
    ----------
    beta, beta_scale
        As in :class:`ConvexAttentionRegressor`.
    n_gates : int, default=64
        Gates to draw, besides the one that is always open.
    gates : {"axis", "pairs", "gaussian"} or (directions, thresholds), default="axis"
        "axis": one channel of one token against a threshold from the data. "pairs": half-way
        between a sample and its nearest neighbour of another class (for regression: across the
        median). "gaussian": the paper's, rank-one Gaussian directions against zero. Or arrays of
        shape ``(h, n_tokens, n_channels)`` and ``(h,)``.
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
    penalty, loss, huber_delta, fit_intercept, refit, token_weights, tokens, n_tokens, tol,
    max_iter, max_time, on_interrupt, warm_start, verbose
        As in :class:`ConvexAttentionRegressor`.

    Attributes
    ----------
    coef_ : ndarray of shape (n_outputs, h, n_tokens, n_channels)
    gate_directions_ : ndarray of shape (h, n_tokens, n_channels)
    gate_thresholds_ : ndarray of shape (h,)
        The gates, ``h = n_gates + 1`` of them (`n_gates` if ``open_gate=False``); a gate that is
        always open has threshold ``-inf``.
    gate_norms_ : ndarray of shape (h,)
        Sum of the norms of every gate's tokens.
    token_norms_ : ndarray of shape (n_tokens,) or (n_outputs, n_tokens)
        Sum over gates of the norms of a token's coefficients.
    tokens_ : ndarray of int
        Tokens that any gate uses.
    certificate_, beta_, beta_max_, intercept_, n_iter_, trace_ and others
        As in :class:`ConvexAttentionRegressor`.

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

    def __init__(
        self,
        beta: float = 0.1,
        *,
        beta_scale: str = "relative",
        n_gates: int = 64,
        gates: Any = "axis",
        open_gate: bool = True,
        gate_weight: float = 1.5,
        random_state: Any = None,
        penalty: str = "token-output",
        loss: str = "squared",
        huber_delta: float = 1.35,
        fit_intercept: bool = True,
        refit: Any = False,
        token_weights: Any = None,
        tokens: Any = "absolute",
        n_tokens: int | None = None,
        tol: float = 1e-6,
        max_iter: int = 10_000,
        max_time: float | None = None,
        on_interrupt: str = "raise",
        warm_start: bool = False,
        verbose: Any = False,
    ) -> None:
        self.beta = beta
        self.beta_scale = beta_scale
        self.n_gates = n_gates
        self.gates = gates
        self.open_gate = open_gate
        self.gate_weight = gate_weight
        self.random_state = random_state
        self.penalty = penalty
        self.loss = loss
        self.huber_delta = huber_delta
        self.fit_intercept = fit_intercept
        self.refit = refit
        self.token_weights = token_weights
        self.tokens = tokens
        self.n_tokens = n_tokens
        self.tol = tol
        self.max_iter = max_iter
        self.max_time = max_time
        self.on_interrupt = on_interrupt
        self.warm_start = warm_start
        self.verbose = verbose


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

    Parameters
    ----------
    beta, beta_scale
        As in :class:`ConvexAttentionClassifier`.
    n_gates, gates, open_gate, gate_weight, random_state
        As in :class:`ConvexTransformerRegressor`.
    penalty, fit_intercept, refit, class_weight, token_weights, tokens, n_tokens, tol, max_iter,
    max_time, on_interrupt, warm_start, verbose
        As in :class:`ConvexAttentionClassifier`.

    Attributes
    ----------
    coef_, gate_directions_, gate_thresholds_, gate_norms_, token_norms_, tokens_
        As in :class:`ConvexTransformerRegressor`.
    certificate_, beta_, beta_max_, intercept_, n_iter_, trace_ and others
        As in :class:`ConvexAttentionClassifier`.

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

    def __init__(
        self,
        beta: float = 0.1,
        *,
        beta_scale: str = "relative",
        n_gates: int = 64,
        gates: Any = "axis",
        open_gate: bool = True,
        gate_weight: float = 1.5,
        random_state: Any = None,
        penalty: str = "token-output",
        fit_intercept: bool = True,
        refit: Any = False,
        class_weight: Any = None,
        token_weights: Any = None,
        tokens: Any = "absolute",
        n_tokens: int | None = None,
        tol: float = 1e-6,
        max_iter: int = 10_000,
        max_time: float | None = None,
        on_interrupt: str = "raise",
        warm_start: bool = False,
        verbose: Any = False,
    ) -> None:
        self.beta = beta
        self.beta_scale = beta_scale
        self.n_gates = n_gates
        self.gates = gates
        self.open_gate = open_gate
        self.gate_weight = gate_weight
        self.random_state = random_state
        self.penalty = penalty
        self.fit_intercept = fit_intercept
        self.refit = refit
        self.class_weight = class_weight
        self.token_weights = token_weights
        self.tokens = tokens
        self.n_tokens = n_tokens
        self.tol = tol
        self.max_iter = max_iter
        self.max_time = max_time
        self.on_interrupt = on_interrupt
        self.warm_start = warm_start
        self.verbose = verbose


class ConvexTransformerRegressorCV(Regression, Gated, CrossValidated):
    r"""A gated convex layer for regression, with beta chosen by cross-validation.

    .. math:: F_i = \sum_j m_{ij} \sum_k X_{ik} Z_{jk} + b, \qquad
              \min_{Z, b}\ \sum_i a_i\,\mathrm{loss}(F_i, y_i)
              + \beta \sum_{j, k} g_j w_k \sum_l \|Z_{jk}[:, l]\|_2

    The attention layer of :class:`ConvexAttentionRegressor` followed by a gated-ReLU network
    (Theorem 3 of the paper): gates :math:`m_{ij} = 1\{\langle U_j, X_i\rangle \ge t_j\}` are drawn
    once and then fixed, which keeps the problem convex and its optimum certified. Gate 0 is always
    open unless ``open_gate=False``, so the layer without gates is a special case. The optimum is
    that of *these* gates: other gates have another.

    Parameters
    ----------
    betas, n_betas, eps, cv, scoring, selection, n_jobs
        As in :class:`ConvexAttentionRegressorCV`, with gates drawn anew on each fold.
        The path ends earlier by default, since weak penalties cost more with gates.
    n_gates, gates, open_gate, gate_weight, random_state
        As in :class:`ConvexTransformerRegressor`.
    penalty, loss, huber_delta, fit_intercept, refit, token_weights, tokens, n_tokens, tol,
    max_iter, max_time, on_interrupt, verbose
        As in :class:`ConvexAttentionRegressorCV`.

    Attributes
    ----------
    coef_, gate_directions_, gate_thresholds_, gate_norms_, token_norms_, tokens_
        As in :class:`ConvexTransformerRegressor`.
    certificate_, beta_, beta_max_, intercept_, n_iter_, trace_ and others
        As in :class:`ConvexAttentionRegressorCV`.

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

    def __init__(
        self,
        betas: Any = None,
        *,
        n_betas: int = 30,
        eps: float = 0.01,
        cv: Any = None,
        scoring: Any = None,
        selection: str = "best",
        n_jobs: int | None = None,
        n_gates: int = 64,
        gates: Any = "axis",
        open_gate: bool = True,
        gate_weight: float = 1.5,
        random_state: Any = None,
        penalty: str = "token-output",
        loss: str = "squared",
        huber_delta: float = 1.35,
        fit_intercept: bool = True,
        refit: Any = False,
        token_weights: Any = None,
        tokens: Any = "absolute",
        n_tokens: int | None = None,
        tol: float = 1e-6,
        max_iter: int = 10_000,
        max_time: float | None = None,
        on_interrupt: str = "raise",
        verbose: Any = False,
    ) -> None:
        self.betas = betas
        self.n_betas = n_betas
        self.eps = eps
        self.cv = cv
        self.scoring = scoring
        self.selection = selection
        self.n_jobs = n_jobs
        self.n_gates = n_gates
        self.gates = gates
        self.open_gate = open_gate
        self.gate_weight = gate_weight
        self.random_state = random_state
        self.penalty = penalty
        self.loss = loss
        self.huber_delta = huber_delta
        self.fit_intercept = fit_intercept
        self.refit = refit
        self.token_weights = token_weights
        self.tokens = tokens
        self.n_tokens = n_tokens
        self.tol = tol
        self.max_iter = max_iter
        self.max_time = max_time
        self.on_interrupt = on_interrupt
        self.verbose = verbose


class ConvexTransformerClassifierCV(Classification, Gated, CrossValidated):
    r"""A gated convex layer for classification, with beta chosen by cross-validation.

    .. math:: F_i = \sum_j m_{ij} \sum_k X_{ik} Z_{jk} + b, \qquad
              \min_{Z, b}\ \sum_i a_i\,\mathrm{loss}(F_i, y_i)
              + \beta \sum_{j, k} g_j w_k \sum_l \|Z_{jk}[:, l]\|_2

    The attention layer of :class:`ConvexAttentionClassifier` followed by a gated-ReLU network
    (Theorem 3 of the paper): gates :math:`m_{ij} = 1\{\langle U_j, X_i\rangle \ge t_j\}` are drawn
    once and then fixed, which keeps the problem convex and its optimum certified. Gate 0 is always
    open unless ``open_gate=False``, so the layer without gates is a special case. The optimum is
    that of *these* gates: other gates have another.

    Parameters
    ----------
    betas, n_betas, eps, cv, scoring, selection, n_jobs
        As in :class:`ConvexAttentionClassifierCV`, with gates drawn anew on each fold.
        The path ends earlier by default, since weak penalties cost more with gates.
    n_gates, gates, open_gate, gate_weight, random_state
        As in :class:`ConvexTransformerRegressor`.
    penalty, fit_intercept, refit, class_weight, token_weights, tokens, n_tokens, tol, max_iter,
    max_time, on_interrupt, verbose
        As in :class:`ConvexAttentionClassifierCV`.

    Attributes
    ----------
    coef_, gate_directions_, gate_thresholds_, gate_norms_, token_norms_, tokens_
        As in :class:`ConvexTransformerRegressor`.
    certificate_, beta_, beta_max_, intercept_, n_iter_, trace_ and others
        As in :class:`ConvexAttentionClassifierCV`.

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

    def __init__(
        self,
        betas: Any = None,
        *,
        n_betas: int = 30,
        eps: float = 0.01,
        cv: Any = None,
        scoring: Any = None,
        selection: str = "best",
        n_jobs: int | None = None,
        n_gates: int = 64,
        gates: Any = "axis",
        open_gate: bool = True,
        gate_weight: float = 1.5,
        random_state: Any = None,
        penalty: str = "token-output",
        fit_intercept: bool = True,
        refit: Any = False,
        class_weight: Any = None,
        token_weights: Any = None,
        tokens: Any = "absolute",
        n_tokens: int | None = None,
        tol: float = 1e-6,
        max_iter: int = 10_000,
        max_time: float | None = None,
        on_interrupt: str = "raise",
        verbose: Any = False,
    ) -> None:
        self.betas = betas
        self.n_betas = n_betas
        self.eps = eps
        self.cv = cv
        self.scoring = scoring
        self.selection = selection
        self.n_jobs = n_jobs
        self.n_gates = n_gates
        self.gates = gates
        self.open_gate = open_gate
        self.gate_weight = gate_weight
        self.random_state = random_state
        self.penalty = penalty
        self.fit_intercept = fit_intercept
        self.refit = refit
        self.class_weight = class_weight
        self.token_weights = token_weights
        self.tokens = tokens
        self.n_tokens = n_tokens
        self.tol = tol
        self.max_iter = max_iter
        self.max_time = max_time
        self.on_interrupt = on_interrupt
        self.verbose = verbose
