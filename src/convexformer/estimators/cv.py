"""Cross-validation over a path: what chooses beta, and the two estimators without gates."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn import get_config
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import check_scoring
from sklearn.model_selection import check_cv
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.parallel import Parallel, delayed

from ..problem import Design
from ..solvers import Status, solve_path
from ..solvers.solution import Clock, advice
from ._base import all_or_nothing
from ._parameters import estimator, parameters, read_fractions
from ._reading import Array, warn
from ._tasks import Classification, Regression
from .attention import ConvexAttention, TrainingData

Scorer = Callable[..., float]
Fold = tuple[NDArray[np.intp], NDArray[np.intp]]  # sequences to train on, and to score on


# One fold -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FoldResult:
    """What one fold says about every beta."""

    scores: Array  # (B, ridges), NaN where nothing could be fitted or scored
    lacks: str = ""  # what the training part lacks, where no model of it has an optimum
    worst_gap: float = 0.0
    statuses: tuple[Status, ...] = ()  # why the solver stopped, of every beta
    seconds: float = 0.0


def _of_test(
    data: TrainingData, test: TrainingData, sequences: NDArray[np.intp], name: str, value: Any
) -> Any:
    """Metadata of sequences or positions as those of samples to score; anything else untouched."""
    array = np.asarray(value)
    per_sequence = array.ndim > 0 and len(array) == len(data.samples)
    return test.samples.rows(array[sequences], name) if per_sequence else value


def _score(
    model: Any, test: TrainingData, design: Design, scorer: Scorer | None, X: Any, params: Any
) -> float:
    """The score of a fitted model on `test`, whose tokens are `design` and, written out, `X`."""
    if scorer is None:
        return float(model._score_default(model._design_scores(design), test.Y, test.weight))
    if test.samples.offsets is not None:  # whose tokens X has written out
        vars(model).update(tokens="absolute", n_tokens=None)
    return float(scorer(model, X, test.y, **params))


# Estimators ----------------------------------------------------------------------------------


def _scored(scores: Array) -> Any:
    """`scores` with NaN masked."""
    return np.ma.masked_array(scores, np.isnan(scores))


@parameters
class CrossValidated(ConvexAttention):
    """A path per fold, a choice, one final fit.

    Parameters
    ----------
    betas : array-like of shape (B,), optional
        Fractions of beta_max to try, positive. If omitted, `n_betas` of them from 1 to `eps`,
        geometrically.
    n_betas : int, default=40
        How many fractions to try, where `betas` is omitted.
    eps : float, default=1e-3
        The smallest of them.
    cv : int, splitter or iterable, optional
        As in scikit-learn; 5 folds if omitted, stratified for classifiers.
    scoring : str or callable, optional
        A scikit-learn scorer, higher is better; it gets X as ``(samples, tokens, channels)`` with
        zeros at padding. If omitted, minus the mean of the loss: for ``loss="squared"`` half the
        mean squared error, for classifiers the log loss.
    selection : {"best", "one-standard-error"}, default="best"
        The beta of the highest mean score; or the largest beta whose mean score is within one
        standard error (over folds) of that, for a sparser model.
    n_jobs : int, optional
        Folds solved in parallel, by joblib.
    refit : bool or float, default=False
        Whether to fit once more the tokens that a fit selected, with a ridge in place of the
        penalty. The models of the folds are refitted before they are scored, so that beta is chosen
        for refitted models (the relaxed lasso). A number is the strength of the ridge, 1 as much
        shrinkage as by the penalty. True chooses the ridge together with beta, among 1, 0.3, 0.1,
        ..., 0.001: `scores_` are those of the best ridge at every beta. See Notes.
    max_iter : int, default=10000
        Most iterations for every beta.
    max_time : float, optional
        Most seconds for each fold's path, and for the final fit; refits are included.
    on_interrupt : {"raise", "keep"}, default="raise"
        What Ctrl-C does during the final fit. "raise": KeyboardInterrupt, and the estimator is left
        as it was before. "keep": the fit ends with the best coefficients so far and their true
        certificate (during the refit: with the certified ones), and warns; a second Ctrl-C raises.
        Ctrl-C while folds are scored always raises and leaves the estimator as it was.
    verbose : bool or callable, default=False
        True prints a line per fold, and one per iteration of the final fit; a callable receives the
        latter as a named tuple ``(iteration, seconds, relative_gap, n_active)``, and through its
        method `step`, if it has one, a line of text per fold and beta.

    Attributes
    ----------
    beta_fraction_ : float
        The chosen fraction of beta_max.
    betas_ : ndarray of shape (B,)
        Fractions tried, decreasing.
    scores_ : ndarray of shape (n_folds, B)
        NaN for a fold that is left out: its training part had only zero counts
        (``loss="poisson"``), lacked a class, or had no weight.
    mean_scores_, std_scores_, standard_errors_ : ndarray of shape (B,)
        Over folds.
    best_index_, best_score_ : int, float
        Index of the chosen fraction in `betas_`, and its mean score. A chosen fraction that is the
        smallest tried warns: a smaller one may be better.
    """

    betas: Any = field(default=None, kw_only=False)
    n_betas: int = 40
    eps: float = 1e-3
    cv: Any = None
    scoring: Any = None
    selection: str = "best"
    n_jobs: int | None = None

    @all_or_nothing
    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        mask: Any = None,
        separators: Any = None,
        **params: Any,
    ) -> Self:
        """Choose beta by cross-validation, then fit all data to a certified global optimum.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_channels) or (n_samples, n_features)
            A 2-D array is cut into `n_tokens` tokens, or into one token per column. Each fold
            copies its own part of X.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets. With ``tokens=Offsets(...)`` one per position, ``(n_samples, n_positions)`` or
            ``(n_samples, n_positions, n_outputs)``; folds split samples, never their positions.
        sample_weight : array-like of shape (n_samples,), optional
            Non-negative weights :math:`a_i`, of the fits and of the scores. With offsets also
            ``(n_samples, n_positions)``.
        mask : array-like of shape (n_samples, n_tokens), optional
            True where a token is real, False at padding, which may hold anything, NaN included.
        separators : array-like of shape (n_samples, n_positions), optional
            True at the tokens whose mean is the landmark "separators" of `tokens`.
        **params : dict
            ``groups`` for the splitter; with metadata routing enabled, whatever splitter and scorer
            request.

        Returns
        -------
        self
        """
        data = self._read(X, y, sample_weight, mask, separators)
        weights = {} if sample_weight is None else {"sample_weight": sample_weight}
        for_splitter, for_scorer = params, weights
        if get_config()["enable_metadata_routing"]:
            routed = process_routing(self, "fit", **weights, **params)
            for_splitter = routed["splitter"]["split"]
            for_scorer = routed["scorer"]["score"] if self.scoring else {}
        labels = data.y if data.samples.offsets is None else None  # sequences have no labels
        splitter = check_cv(self.cv, labels, classifier=is_classifier(self))
        folds = list(splitter.split(X, labels, **for_splitter))
        self.betas_ = read_fractions(self.betas, self.n_betas, self.eps)
        results = self._score_folds(data, folds, for_scorer)
        scores = np.stack([result.scores for result in results])  # (folds, B, ridges)
        best = _scored(scores).mean(axis=0).filled(-np.inf).argmax(axis=1)  # ridge of every beta
        self.scores_: Array = scores[:, np.arange(len(best)), best]
        self._choose()
        clock = Clock(self.max_iter, self.max_time)  # for the final solve and its refit
        problem = self._prepared_problem(data)
        beta = self.beta_fraction_ * problem.beta_max
        self._keep(self._minimise(problem, beta, clock, self._ridges[best[self.best_index_]]))
        self._warn_unless_converged()
        self._warn_of_the_choice()
        return self

    def _scorer(self) -> Scorer | None:
        return None if self.scoring is None else check_scoring(self, scoring=self.scoring)

    def _score_folds(
        self, data: TrainingData, folds: list[Fold], score_params: dict[str, Any]
    ) -> list[FoldResult]:
        scorer, results = self._scorer(), []
        jobs = (
            delayed(self._score_fold)(data, fold, f"fold {k} of {len(folds)}", scorer, score_params)
            for k, fold in enumerate(folds, start=1)
        )
        for k, result in enumerate(Parallel(n_jobs=self.n_jobs, return_as="generator")(jobs)):
            results.append(result)
            if self.verbose and not callable(self.verbose):
                print(
                    f"[{type(self).__name__}] fold {k + 1} of {len(folds)}  "
                    f"{result.seconds:8.2f} s  best score {np.max(result.scores):.6g}",
                    flush=True,
                )
            if result.lacks:
                warn(
                    f"Fold {k} is left out, for what its training part lacks: {result.lacks} Use "
                    "fewer folds, or a stratified splitter."
                )
        why = advice(status for result in results for status in result.statuses)
        if why:
            worst = max(result.worst_gap for result in results)
            warn(
                f"On some folds the path stopped above tol={self.tol:g}, at worst at a relative "
                f"duality gap of {worst:.1e}. {why}",
                ConvergenceWarning,
            )
        return results

    def _score_fold(
        self, data: TrainingData, fold: Fold, name: str, scorer: Scorer | None, routed: Any
    ) -> FoldResult:
        """Solve the path of a fold's training part and score every model on its test part.

        Where the training part lacks a class, or either part has no weight, all scores are NaN.
        """
        clock = Clock(self.max_iter, self.max_time)  # for the path and its refits
        (train, test), fractions = map(data.take, fold), self.betas_
        nothing = np.full((len(fractions), len(self._ridges)), np.nan)
        weight, held_out = (
            np.ones(len(p.Y)) if p.weight is None else p.weight for p in (train, test)
        )
        if not (np.any(weight) and np.any(held_out)):
            return FoldResult(nothing)
        try:
            self._task_loss().check_targets(train.Y, weight, bool(self.fit_intercept))
        except ValueError as error:
            return FoldResult(nothing, str(error))
        estimator = copy.copy(self)
        problem = estimator._prepared_problem(train)
        betas = (fractions * problem.beta_max).tolist()
        params = {key: _of_test(data, test, fold[1], key, value) for key, value in routed.items()}
        design = estimator._design(test.samples)
        X = test.samples.dense() if scorer else None  # scorers know no mask; padding is zero
        scores: list[list[float]] = []
        gaps, statuses = [], []
        step = getattr(self.verbose, "step", lambda words: None)  # where progress shows words
        for solution in solve_path(problem, betas, **estimator._limits(clock)):
            scores.append([])
            for ridge in estimator._ridges:
                fitted = estimator._refitted(problem, solution, clock, ridge)
                model = copy.copy(estimator)._keep(fitted)
                scores[-1].append(_score(model, test, design, scorer, X, params))
            gaps.append(solution.certificate.relative_gap)
            statuses.append(solution.status)
            step(f"{name}, beta {len(scores)} of {len(fractions)}")
        return FoldResult(np.array(scores), "", max(gaps), tuple(statuses), clock.seconds)

    def _choose(self) -> None:
        """Summarise the scores of the folds, and choose a fraction by them.

        Folds that are NaN count for nothing; ties go to the larger beta.
        """
        scored = _scored(self.scores_)
        count, means = scored.count(axis=0), scored.mean(axis=0)
        if not np.any(count):
            raise ValueError(
                "No fold could be fitted and scored: the training parts lack classes (or weight), "
                "or the scorer returned NaN throughout. Use fewer folds or a stratified splitter."
            )
        self.mean_scores_ = means.filled(np.nan)
        self.std_scores_ = np.where(count == 1, 0.0, scored.std(axis=0, ddof=1).filled(np.nan))
        self.standard_errors_ = self.std_scores_ / np.sqrt(count)
        ranked = means.filled(-np.inf)
        index = int(np.argmax(ranked))
        if self.selection == "one-standard-error":
            index = int(np.argmax(ranked >= ranked[index] - self.standard_errors_[index]))
        self.best_index_, self.best_score_ = index, float(ranked[index])
        self.beta_fraction_ = float(self.betas_[index])

    def _warn_of_the_choice(self) -> None:
        """Say where the grid, rather than the data, chose; and where the model is empty."""
        if len(self.tokens_) == 0:
            rule = "" if self.selection == "best" else ", try selection='best'"
            warn(
                f"Cross-validation chose the empty model, at beta = {self.beta_fraction_:.3g} of "
                "beta_max. Check that betas reach below 1, that the rows of X and y belong "
                f"together, put tokens on one scale (TokenScaler, or token_weights){rule}, or add "
                "samples; or else these tokens do not tell y."
            )
        elif 1 < len(self.betas_) == self.best_index_ + 1:
            warn(
                f"The chosen beta, {self.beta_fraction_:.3g} of beta_max, is the smallest tried: a "
                "smaller one may be better. Extend betas, or pass a smaller eps."
            )

    def get_metadata_routing(self) -> MetadataRouter:
        """Metadata that fit takes itself, and passes to splitter and scorer.

        Returns
        -------
        MetadataRouter
        """
        router = MetadataRouter(owner=self).add_self_request(self)
        split = MethodMapping().add(caller="fit", callee="split")
        splitter = check_cv(self.cv, classifier=is_classifier(self))
        router.add(splitter=splitter, method_mapping=split)
        if self.scoring is not None:
            score = MethodMapping().add(caller="fit", callee="score")
            router.add(scorer=self._scorer(), method_mapping=score)
        return router


@estimator
class ConvexAttentionRegressorCV(Regression, CrossValidated):
    r"""Attention over tokens for regression, with beta chosen by cross-validation.

    .. math:: \min_{Z, b}\ \sum_i a_i\,\mathrm{loss}\Bigl(\sum_k X_{ik} Z_k + b,\ y_i\Bigr)
              + \beta \sum_k w_k \sum_l \|Z_k[:, l]\|_2

    Every fold solves a warm-started path of betas, each a fraction of *its own* beta_max: a
    fraction means the same on a fold as on all data, an absolute beta does not. Then all data are
    fitted at the chosen fraction, with a certificate.

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


@estimator
class ConvexAttentionClassifierCV(Classification, CrossValidated):
    r"""Attention over tokens for classification, with beta chosen by cross-validation.

    .. math:: \min_{Z, b}\ \sum_i a_i\,\mathrm{loss}\Bigl(\sum_k X_{ik} Z_k + b,\ y_i\Bigr)
              + \beta \sum_k w_k \sum_l \|Z_k[:, l]\|_2

    Every fold solves a warm-started path of betas, each a fraction of *its own* beta_max: a
    fraction means the same on a fold as on all data, an absolute beta does not. Then all data are
    fitted at the chosen fraction, with a certificate.

    Notes
    -----
    A fold whose training part lacks a class, or has no weight, is left out, with a warning for the
    former.

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
