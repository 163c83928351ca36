"""The two estimators that choose beta by cross-validation."""

from __future__ import annotations

from typing import Any

from ._cross_validated import CrossValidated
from ._tasks import Classification, Regression


class ConvexAttentionRegressorCV(Regression, CrossValidated):
    r"""Attention over tokens for regression, with beta chosen by cross-validation.

    .. math:: \min_{Z, b}\ \sum_i a_i\,\mathrm{loss}\Bigl(\sum_k X_{ik} Z_k + b,\ y_i\Bigr)
              + \beta \sum_k w_k \sum_l \|Z_k[:, l]\|_2

    Every fold solves a warm-started path of betas, each a fraction of *its own* beta_max: a
    fraction means the same on a fold as on all data, an absolute beta does not. Then all data are
    fitted at the chosen fraction, with a certificate.

    Parameters
    ----------
    betas : array-like of shape (B,), optional
        Fractions of beta_max to try, positive. If omitted, `n_betas` of them from 1 to `eps`,
        geometrically.
    n_betas : int, default=40
    eps : float, default=1e-3
    cv : int, splitter or iterable, optional
        As in scikit-learn; 5 folds if omitted.
    scoring : str or callable, optional
        A scikit-learn scorer, higher is better; it gets X as ``(samples, tokens, channels)`` with
        zeros at padding. If omitted, minus the mean of the loss (for ``"squared"`` half the mean
        squared error).
    selection : {"best", "one-standard-error"}, default="best"
        The beta of the highest mean score; or the largest beta whose mean score is within one
        standard error (over folds) of that, for a sparser model.
    n_jobs : int, optional
        Folds solved in parallel, by joblib.
    refit : bool or float, default=False
        As in :class:`ConvexAttentionRegressor`. The models of the folds are refitted before they
        are scored, so that beta is chosen for refitted models (the relaxed lasso). True chooses the
        ridge together with beta: `scores_` are those of the best ridge at every beta.
    penalty, loss, huber_delta, fit_intercept, token_weights, tokens, n_tokens
        As in :class:`ConvexAttentionRegressor`.
    tol : float, default=1e-6
        Relative duality gap at which to stop.
    max_iter : int, default=10000
        Most iterations for every beta.
    max_time : float, optional
        Most seconds for each fold's path, and for the final fit; refits are included.
    on_interrupt : {"raise", "keep"}, default="raise"
        As in :class:`ConvexAttentionRegressor`, for the final fit. Ctrl-C while folds are scored
        always raises KeyboardInterrupt and leaves the estimator as it was.
    verbose : bool or callable, default=False
        True prints a line per fold, and one per iteration of the final fit; a callable receives the
        latter, as in :class:`ConvexAttentionRegressor`, and through its method `step`, if it
        has one, a line of text per fold and beta.

    Attributes
    ----------
    beta_fraction_ : float
        The chosen fraction of beta_max.
    betas_ : ndarray of shape (B,)
        Fractions tried, decreasing.
    scores_ : ndarray of shape (n_folds, B)
        NaN for a fold whose training part had only zero counts (``loss="poisson"``), or that has
        no weight; such folds are left out.
    mean_scores_, std_scores_, standard_errors_ : ndarray of shape (B,)
        Over folds.
    best_index_, best_score_ : int, float
        Index of the chosen fraction in `betas_`, and its mean score. A chosen fraction that is the
        smallest tried warns: a smaller one may be better.
    coef_, intercept_, certificate_, tokens_, token_norms_, beta_, beta_max_, n_iter_, trace_,
    selection_certificate_, selection_coef_, selection_intercept_, ridge_
        Of the fit to all data, as in :class:`ConvexAttentionRegressor`; `beta_` is absolute.
    n_tokens_, n_channels_, n_features_in_, feature_names_in_
        As in :class:`ConvexAttentionRegressor`.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer import ConvexAttentionRegressorCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 8, 3))
    >>> y = X[:, 2] @ [1.0, -2.0, 0.5] + 0.5 * rng.normal(size=100)
    >>> model = ConvexAttentionRegressorCV(n_betas=20, selection="one-standard-error").fit(X, y)
    >>> model.tokens_
    array([2])
    >>> 0 < model.beta_fraction_ < 1
    True
    """

    def __init__(
        self,
        betas: Any = None,
        *,
        n_betas: int = 40,
        eps: float = 1e-3,
        cv: Any = None,
        scoring: Any = None,
        selection: str = "best",
        n_jobs: int | None = None,
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


class ConvexAttentionClassifierCV(Classification, CrossValidated):
    r"""Attention over tokens for classification, with beta chosen by cross-validation.

    .. math:: \min_{Z, b}\ \sum_i a_i\,\mathrm{loss}\Bigl(\sum_k X_{ik} Z_k + b,\ y_i\Bigr)
              + \beta \sum_k w_k \sum_l \|Z_k[:, l]\|_2

    Every fold solves a warm-started path of betas, each a fraction of *its own* beta_max: a
    fraction means the same on a fold as on all data, an absolute beta does not. Then all data are
    fitted at the chosen fraction, with a certificate.

    Parameters
    ----------
    betas : array-like of shape (B,), optional
        Fractions of beta_max to try, positive. If omitted, `n_betas` of them from 1 to `eps`,
        geometrically.
    n_betas : int, default=40
    eps : float, default=1e-3
    cv : int, splitter or iterable, optional
        As in scikit-learn; 5 stratified folds if omitted.
    scoring : str or callable, optional
        A scikit-learn scorer, higher is better; it gets X as ``(samples, tokens, channels)`` with
        zeros at padding. If omitted, minus the mean log loss.
    selection : {"best", "one-standard-error"}, default="best"
        The beta of the highest mean score; or the largest beta whose mean score is within one
        standard error (over folds) of that, for a sparser model.
    n_jobs : int, optional
        Folds solved in parallel, by joblib.
    refit : bool or float, default=False
        As in :class:`ConvexAttentionClassifier`. The models of the folds are refitted before they
        are scored, so that beta is chosen for refitted models (the relaxed lasso). True chooses the
        ridge together with beta: `scores_` are those of the best ridge at every beta.
    penalty, fit_intercept, class_weight, token_weights, tokens, n_tokens
        As in :class:`ConvexAttentionClassifier`; "balanced" is worked out on each fold.
    tol : float, default=1e-6
        Relative duality gap at which to stop.
    max_iter : int, default=10000
        Most iterations for every beta.
    max_time : float, optional
        Most seconds for each fold's path, and for the final fit; refits are included.
    on_interrupt : {"raise", "keep"}, default="raise"
        As in :class:`ConvexAttentionClassifier`, for the final fit. Ctrl-C while folds are scored
        always raises KeyboardInterrupt and leaves the estimator as it was.
    verbose : bool or callable, default=False
        True prints a line per fold, and one per iteration of the final fit; a callable receives the
        latter, as in :class:`ConvexAttentionClassifier`, and through its method `step`, if it
        has one, a line of text per fold and beta.

    Attributes
    ----------
    beta_fraction_ : float
        The chosen fraction of beta_max.
    betas_ : ndarray of shape (B,)
        Fractions tried, decreasing.
    scores_ : ndarray of shape (n_folds, B)
        NaN for a fold that is left out (see Notes).
    mean_scores_, std_scores_, standard_errors_ : ndarray of shape (B,)
        Over folds.
    best_index_, best_score_ : int, float
        Index of the chosen fraction in `betas_`, and its mean score. A chosen fraction that is the
        smallest tried warns: a smaller one may be better.
    classes_, coef_, intercept_, certificate_, tokens_, token_norms_, beta_, beta_max_, n_iter_,
    selection_certificate_, selection_coef_, selection_intercept_, ridge_
        Of the fit to all data, as in :class:`ConvexAttentionClassifier`; `beta_` is absolute.
    trace_, n_tokens_, n_channels_, n_features_in_, feature_names_in_
        As in :class:`ConvexAttentionClassifier`.

    Notes
    -----
    A class that is missing from a fold's training part gets probability 0 on that fold (in the
    default score a log-probability of about -36, the same for every beta), with a warning. A fold
    whose training part has fewer than two classes, or no weight, is left out, with a warning.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer import ConvexAttentionClassifierCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(150, 8, 3))
    >>> y = X[:, 2, 0] + 0.5 * rng.normal(size=150) > 0
    >>> model = ConvexAttentionClassifierCV(n_betas=10).fit(X, y)
    >>> int(np.argmax(model.token_norms_))
    2
    >>> model.certificate_.relative_gap <= 1e-6
    True
    """

    def __init__(
        self,
        betas: Any = None,
        *,
        n_betas: int = 40,
        eps: float = 1e-3,
        cv: Any = None,
        scoring: Any = None,
        selection: str = "best",
        n_jobs: int | None = None,
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
