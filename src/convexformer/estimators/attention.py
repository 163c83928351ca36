"""The two estimators with a given beta."""

from __future__ import annotations

import numbers
from typing import Any, Self

from ..problem import Problem
from ..solvers import Solution, Status, solve
from ..solvers.interruption import interruption
from ..solvers.solution import Clock
from ._base import ConvexAttention
from ._draft import all_or_nothing
from ._tasks import Classification, Regression
from ._validation import Array, check_bool, check_choice, check_positive
from .persistence import Persistent


class SingleBeta(ConvexAttention, Persistent):
    """One fit at one beta."""

    beta: float
    beta_scale: str
    warm_start: bool

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice("beta_scale", self.beta_scale, ("relative", "absolute"))
        check_bool("warm_start", self.warm_start)
        if isinstance(self.beta, numbers.Real) and self.beta == 0:
            raise ValueError(
                "beta=0 removes the penalty and with it the certificate and the choice of tokens; "
                "use a small beta such as 1e-4."
            )
        check_positive("beta", self.beta, "By default it is a fraction of beta_max.")

    @all_or_nothing
    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, mask: Any = None, separators: Any = None
    ) -> Self:
        """Fit to a certified global optimum.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_channels) or (n_samples, n_features)
            A 2-D array is cut into `n_tokens` tokens, or into one token per column. Arrays of
            float32 and float64, memory maps included, are not copied.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets. With ``tokens=Offsets(...)`` one per position, ``(n_samples, n_positions)`` or
            ``(n_samples, n_positions, n_outputs)``; what stands at padding is not read.
        sample_weight : array-like of shape (n_samples,), optional
            Non-negative weights :math:`a_i`. With offsets also ``(n_samples, n_positions)``.
        mask : array-like of shape (n_samples, n_tokens), optional
            True where a token is real, False at padding, which may hold anything, NaN included.
        separators : array-like of shape (n_samples, n_positions), optional
            True at the tokens whose mean is the landmark "separators" of `tokens`.

        Returns
        -------
        self
        """
        clock = Clock(self.max_iter, self.max_time)  # for the solve and the refit
        data = self._read(X, y, sample_weight, mask, separators)
        start = self._last_coefficients()
        self._prepare(data)
        problem = self._problem(data)
        scale = problem.beta_max if self.beta_scale == "relative" else 1.0
        with interruption(self.on_interrupt) as clock.asked:
            solution = solve(
                problem,
                float(self.beta) * scale,
                tol=self.tol,
                max_iter=self.max_iter,
                max_time=clock.left,
                init=self._last_solution(problem, start),
                callback=self._report,
                on_interrupt=self.on_interrupt,
            )
            fitted = self._refitted(problem, solution, clock)
        self._keep(fitted)._warn_unless_converged()
        return self

    def _last_coefficients(self) -> Array | None:
        return self._coefficients() if self.warm_start and hasattr(self, "coef_") else None

    def _last_solution(self, problem: Problem, Z: Array | None) -> Solution | None:
        """The last fit as a start, where it was asked for and has the right shape."""
        if Z is None or Z.shape != problem.shape:
            return None
        return Solution(Z, self.intercept_, self._certificate, Status.ITERATIONS)


class ConvexAttentionRegressor(Regression, SingleBeta):
    r"""Attention over tokens for regression, trained to a certified global optimum.

    .. math:: \min_{Z, b}\ \sum_i a_i\,\mathrm{loss}\Bigl(\sum_k X_{ik} Z_k + b,\ y_i\Bigr)
              + \beta \sum_k w_k \sum_l \|Z_k[:, l]\|_2

    This convex program has the same optimum as a multi-head simplex-attention network with weight
    decay, so the network's global optimum is found, with a proof: `certificate_` holds a lower
    bound on the objective of every model. The norm makes whole tokens vanish; `tokens_` are those
    that stay. Attention is static: over positions, the same for every sample.

    Parameters
    ----------
    beta : float, default=0.1
        Penalty strength, positive: a fraction of the smallest strength at which the optimum is
        ``Z = 0`` (`beta_max_`). From 1 on, no token is used. Where `beta_max_` is 0 (constant
        targets, or X all zero) every beta gives ``Z = 0`` with gap 0.
    beta_scale : {"relative", "absolute"}, default="relative"
        "absolute": `beta` is :math:`\beta` itself.
    penalty : {"token-output", "token", "nuclear"}, default="token-output"
        Whether each output chooses its tokens, or all outputs share them,
        :math:`\beta \sum_k w_k \|Z_k\|_F`, also with few directions of each,
        :math:`\beta \sum_k w_k \|Z_k\|_*`, which is plain weight decay.
    loss : {"squared", "huber", "poisson"}, default="squared"
        :math:`\frac12 (f - y)^2`; Huber's loss; or half the Poisson deviance of counts with mean
        :math:`e^f`, which `predict` returns.
    huber_delta : float, default=1.35
        Residual at which Huber's loss turns linear, in units of y.
    fit_intercept : bool, default=True
        Whether to fit an intercept, which is not penalised.
    refit : bool or float, default=False
        Whether to fit once more the tokens that this fit selected, with a ridge in place of the
        penalty, which shrinks: sparse models predict better for it, but they are no longer the
        certified optimum. A number is the strength of the ridge: 1 shrinks as the penalty did,
        and gives the certified fit again (with ``penalty="nuclear"`` coefficients that differ from
        it by several percent). True chooses it by five-fold cross-validation among 1, 0.3, 0.1,
        ..., 0.001, and `ridge_` says what was chosen. See Notes.
    token_weights : array-like of shape (n_tokens,), optional
        Positive factors :math:`w_k` of the penalty; 1 if omitted.
    tokens : {"absolute"} or Offsets, default="absolute"
        What a token is. "absolute": a position of the sequence. ``Offsets(low, high, landmarks)``:
        a place relative to a target position, or a landmark; then every real position is a sample
        with a target of its own, and one block of weights serves them all. See Notes.
    n_tokens : int, optional
        Number of tokens a 2-D X is cut into, columns ordered token by token. If omitted, every
        column is its own token.
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
    warm_start : bool, default=False
        Whether to start from the last fit, where its shape agrees.
    verbose : bool or callable, default=False
        True prints time and gap at every iteration; a callable receives them instead, as a named
        tuple ``(iteration, seconds, relative_gap, n_active)``.

    Attributes
    ----------
    coef_ : ndarray of shape (n_outputs, n_tokens, n_channels)
        :math:`Z`, one row per output.
    intercept_ : ndarray of shape (n_outputs,)
    certificate_ : Certificate
        Objective, lower bound and gap, computed in float64 from the coefficients alone. A
        refitted model has none.
    selection_certificate_, selection_coef_, selection_intercept_, ridge_
        Of a refitted model only: the certificate, coefficients and intercept of the fit that
        selected the tokens, and the strength :math:`\rho` of the ridge, per output.
    tokens_ : ndarray of int
        Tokens that the optimum uses.
    token_norms_ : ndarray of shape (n_tokens,) or (n_outputs, n_tokens)
        Euclidean norm of every token's coefficients.
    feature_importances_ : ndarray of shape (n_features_in_,)
        Norm of the token of every column of 2-D X: scikit-learn's SelectFromModel and RFE read
        it with ``importance_getter="feature_importances_"``.
    beta_, beta_max_ : float
        Penalty strength, absolute, and the smallest at which ``Z = 0``.
    n_iter_ : int
    trace_ : list of TracePoint
        Iteration, seconds, certified gap and number of active tokens on the way.
    n_tokens_, n_channels_, n_features_in_ : int
        Shape of X at fit; ``n_features_in_ = n_tokens_ * n_channels_``.
    feature_names_in_ : ndarray of str
        Column names, where X was a table.

    See Also
    --------
    ConvexAttentionRegressorCV : Chooses beta by cross-validation.
    attention_path : Solutions for many betas.

    Notes
    -----
    With ``tokens=Offsets(...)``, X must be 3-D, of any length at prediction; y, predictions and
    scores have an axis of positions, ``(n_samples, n_positions, ...)``. Predictions at padding are
    no numbers: NaN (labels: -1 for integers, "" for text, None for objects, False for booleans).
    `coef_` has a row per offset and landmark, `n_tokens_` is their number, and `token_names_` holds
    their names.

    With `refit`, `coef_` and `intercept_` minimise

    .. math:: \sum_i a_i\,\mathrm{loss}(F_i, y_i)
              + \frac{\rho}{2} \sum_{k, l} \frac{\beta w_k}{\|\hat Z_k[:, l]\|_2} \|Z_k[:, l]\|_2^2

    over the tokens that the certified fit :math:`\hat Z` selected: for every output its own, or for
    all outputs, with norms over these (``penalty="token"``, and ``"nuclear"``, whose low rank is
    not kept). :math:`\rho = 1` gives the certified fit again, except with ``"nuclear"``, whose
    shrinkage differs between directions. `beta_`, `n_iter_` and `trace_` stay those of the
    certified fit.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer import ConvexAttentionRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 8, 4))  # samples, tokens, channels
    >>> y = X[:, 2] @ [1.0, -2.0, 0.5, 0.0] + X[:, 5, 1]
    >>> model = ConvexAttentionRegressor(beta=0.2).fit(X, y)
    >>> model.tokens_
    array([2, 5])
    >>> model.certificate_.relative_gap <= 1e-6
    True

    The same tokens without shrinkage, and without a certificate:

    >>> refitted = ConvexAttentionRegressor(beta=0.2, refit=True).fit(X, y)
    >>> refitted.tokens_
    array([2, 5])
    >>> refitted.score(X, y) > model.score(X, y)
    True
    """

    def __init__(
        self,
        beta: float = 0.1,
        *,
        beta_scale: str = "relative",
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


class ConvexAttentionClassifier(Classification, SingleBeta):
    r"""Attention over tokens for classification, trained to a certified global optimum.

    .. math:: \min_{Z, b}\ \sum_i a_i\,\mathrm{loss}\Bigl(\sum_k X_{ik} Z_k + b,\ y_i\Bigr)
              + \beta \sum_k w_k \sum_l \|Z_k[:, l]\|_2

    The loss is logistic for two classes (one output), softmax cross-entropy for more (one output
    per class, joint), and logistic per label for a multilabel indicator matrix. This convex program
    has the same optimum as a multi-head simplex-attention network with weight decay, so the
    network's global optimum is found, with a proof: `certificate_` holds a lower bound on the
    objective of every model. The norm makes whole tokens vanish; `tokens_` are those that stay.
    Attention is static: over positions, the same for every sample.

    Parameters
    ----------
    beta : float, default=0.1
        Penalty strength, positive: a fraction of the smallest strength at which the optimum is
        ``Z = 0`` (`beta_max_`). From 1 on, no token is used. Where `beta_max_` is 0 (X all zero)
        every beta gives ``Z = 0`` with gap 0.
    beta_scale : {"relative", "absolute"}, default="relative"
        "absolute": `beta` is :math:`\beta` itself.
    penalty : {"token-output", "token", "nuclear"}, default="token-output"
        Whether each output chooses its tokens, or all outputs share them,
        :math:`\beta \sum_k w_k \|Z_k\|_F`, also with few directions of each,
        :math:`\beta \sum_k w_k \|Z_k\|_*`, which is plain weight decay.
    fit_intercept : bool, default=True
        Whether to fit an intercept, which is not penalised.
    refit : bool or float, default=False
        Whether to fit once more the tokens that this fit selected, with a ridge in place of the
        penalty, which shrinks: sparse models predict better for it, but they are no longer the
        certified optimum. A number is the strength of the ridge: 1 shrinks as the penalty did,
        and gives the certified fit again (with ``penalty="nuclear"`` coefficients that differ from
        it by several percent). True chooses it by five-fold cross-validation among 1, 0.3, 0.1,
        ..., 0.001, and `ridge_` says what was chosen. See Notes.
    class_weight : dict or "balanced", optional
        Factors of the sample weights: ``{class: weight}``, 1 for classes left out; "balanced" gives
        all classes the same total weight. Not for multilabel targets.
    token_weights : array-like of shape (n_tokens,), optional
        Positive factors :math:`w_k` of the penalty; 1 if omitted.
    tokens : {"absolute"} or Offsets, default="absolute"
        What a token is. "absolute": a position of the sequence. ``Offsets(low, high, landmarks)``:
        a place relative to a target position, or a landmark; then every real position is a sample
        with a target of its own, and one block of weights serves them all. See Notes.
    n_tokens : int, optional
        Number of tokens a 2-D X is cut into, columns ordered token by token. If omitted, every
        column is its own token.
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
    warm_start : bool, default=False
        Whether to start from the last fit, where its shape agrees.
    verbose : bool or callable, default=False
        True prints time and gap at every iteration; a callable receives them instead, as a named
        tuple ``(iteration, seconds, relative_gap, n_active)``.

    Attributes
    ----------
    classes_ : ndarray
        Class labels in sorted order; column numbers for multilabel targets.
    coef_ : ndarray of shape (1, n_tokens, n_channels) or (n_classes, n_tokens, n_channels)
        :math:`Z`; one row for two classes, of the second class.
    intercept_ : ndarray of shape (1,) or (n_classes,)
    certificate_ : Certificate
        Objective, lower bound and gap, computed in float64 from the coefficients alone. A
        refitted model has none.
    selection_certificate_, selection_coef_, selection_intercept_, ridge_
        Of a refitted model only: the certificate, coefficients and intercept of the fit that
        selected the tokens, and the strength :math:`\rho` of the ridge, per output.
    tokens_ : ndarray of int
        Tokens that the optimum uses.
    token_norms_ : ndarray of shape (n_tokens,) or (n_classes, n_tokens)
        Euclidean norm of every token's coefficients.
    feature_importances_ : ndarray of shape (n_features_in_,)
        Norm of the token of every column of 2-D X: scikit-learn's SelectFromModel and RFE read
        it with ``importance_getter="feature_importances_"``.
    beta_, beta_max_ : float
        Penalty strength, absolute, and the smallest at which ``Z = 0``.
    n_iter_ : int
    trace_ : list of TracePoint
        Iteration, seconds, certified gap and number of active tokens on the way.
    n_tokens_, n_channels_, n_features_in_ : int
        Shape of X at fit; ``n_features_in_ = n_tokens_ * n_channels_``.
    feature_names_in_ : ndarray of str
        Column names, where X was a table.

    See Also
    --------
    ConvexAttentionClassifierCV : Chooses beta by cross-validation.
    attention_path : Solutions for many betas.

    Notes
    -----
    With ``tokens=Offsets(...)``, X must be 3-D, of any length at prediction; y, predictions and
    scores have an axis of positions, ``(n_samples, n_positions, ...)``. Predictions at padding are
    no numbers: NaN (labels: -1 for integers, "" for text, None for objects, False for booleans).
    `coef_` has a row per offset and landmark, `n_tokens_` is their number, and `token_names_` holds
    their names.

    With `refit`, `coef_` and `intercept_` minimise

    .. math:: \sum_i a_i\,\mathrm{loss}(F_i, y_i)
              + \frac{\rho}{2} \sum_{k, l} \frac{\beta w_k}{\|\hat Z_k[:, l]\|_2} \|Z_k[:, l]\|_2^2

    over the tokens that the certified fit :math:`\hat Z` selected: for every output its own, or for
    all outputs, with norms over these (``penalty="token"``, and ``"nuclear"``, whose low rank is
    not kept). :math:`\rho = 1` gives the certified fit again, except with ``"nuclear"``, whose
    shrinkage differs between directions. `beta_`, `n_iter_` and `trace_` stay those of the
    certified fit.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer import ConvexAttentionClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 8, 4))  # samples, tokens, channels
    >>> y = np.where(X[:, 2, 0] + X[:, 5, 1] > 0, "binds", "does not")
    >>> model = ConvexAttentionClassifier(beta=0.3).fit(X, y)
    >>> model.tokens_
    array([2, 5])
    >>> model.predict(X[:2])
    array(['binds', 'does not'], dtype='<U8')
    >>> model.certificate_.relative_gap <= 1e-6
    True
    """

    def __init__(
        self,
        beta: float = 0.1,
        *,
        beta_scale: str = "relative",
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
