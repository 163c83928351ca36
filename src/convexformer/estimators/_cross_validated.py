"""What the two cross-validated estimators share: a path per fold, a choice, one final fit."""

from __future__ import annotations

import numbers
import warnings
from difflib import get_close_matches
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn import get_config
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import check_scoring, get_scorer_names
from sklearn.model_selection import StratifiedKFold, check_cv
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.parallel import Parallel, delayed

from ..solvers import Solution, solve
from ..solvers.interruption import interruption
from ..solvers.refit import Refitted
from ..solvers.solution import Clock, advice
from ._base import ConvexAttention, TrainingData
from ._draft import all_or_nothing
from ._folds import FoldResult, Scorer, best_ridges, choose, score_fold
from ._validation import Array, check_choice, check_fractions
from .persistence import Persistent


class CrossValidated(ConvexAttention, Persistent):
    """A path per fold, a choice, one final fit."""

    betas: Any
    n_betas: int
    eps: float
    cv: Any
    scoring: Any
    selection: str
    n_jobs: int | None

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice("selection", self.selection, ("best", "one-standard-error"))
        check_fractions(self.betas, self.n_betas, self.eps)
        if not (self.scoring is None or isinstance(self.scoring, str) or callable(self.scoring)):
            raise ValueError(
                "scoring must be the name of one scikit-learn scorer, a callable or None; got "
                f"{self.scoring!r}."
            )
        known = get_scorer_names()
        if isinstance(self.scoring, str) and self.scoring not in known:
            near = get_close_matches(self.scoring, known, cutoff=0.4)
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            raise ValueError(
                f"scoring={self.scoring!r} is no scorer of scikit-learn; {hint}"
                "sklearn.metrics.get_scorer_names() lists them all."
            )

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
        split_params, score_params = self._route(sample_weight, params)
        labels = data.y if data.samples.offsets is None else None  # sequences have no labels
        splitter = check_cv(self.cv, labels, classifier=is_classifier(self))
        self._check_folds(splitter, data)
        folds = list(splitter.split(X, labels, **split_params))
        self.betas_ = check_fractions(self.betas, self.n_betas, self.eps)
        results = self._score_folds(data, folds, score_params)
        self._choose(results)
        self._warn_at_the_edge()
        self._keep(self._final_fit(data))._warn_unless_converged()
        self._warn_if_empty()
        return self

    def _check_folds(self, splitter: Any, data: TrainingData) -> None:
        """Raise where a number of folds is more than there are samples to spread over them."""
        if self.cv is not None and not isinstance(self.cv, numbers.Integral):
            return  # a splitter of the user's
        most, what = len(data.samples), "samples"
        if isinstance(splitter, StratifiedKFold):
            most, what = int(np.unique(data.y, return_counts=True)[1].max()), "samples of a class"
        folds = splitter.get_n_splits()
        if folds > most:
            raise ValueError(
                f"cv={folds} needs at least {folds} {what}, and there are {most} "
                f"(n_samples = {len(data.samples)}). Use fewer folds."
            )

    def _route(
        self, sample_weight: Any, params: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Metadata for the splitter and for the scorer."""
        weights = {} if sample_weight is None else {"sample_weight": sample_weight}
        if get_config()["enable_metadata_routing"]:
            routed = process_routing(self, "fit", **weights, **params)
            score = {} if self.scoring is None else routed["scorer"]["score"]
            return routed["splitter"]["split"], score
        unknown = sorted(set(params) - {"groups"})
        if unknown:
            raise TypeError(
                f"fit got unexpected arguments {unknown}. Only sample_weight, mask, separators and "
                "groups are known, unless metadata routing is enabled."
            )
        return params, {} if self.scoring is None else weights

    def _scorer(self) -> Scorer | None:
        return None if self.scoring is None else check_scoring(self, scoring=self.scoring)

    def _score_folds(
        self,
        data: TrainingData,
        folds: list[tuple[NDArray[np.intp], NDArray[np.intp]]],
        score_params: dict[str, Any],
    ) -> list[FoldResult]:
        scorer = self._scorer()
        jobs = (
            delayed(score_fold)(
                self,
                data,
                train,
                test,
                self.betas_,
                scorer,
                {
                    name: _rows(value, test, len(data.samples))
                    for name, value in score_params.items()
                },
                f"fold {k + 1} of {len(folds)}",
            )
            for k, (train, test) in enumerate(folds)
        )
        results = []
        for result in Parallel(n_jobs=self.n_jobs, return_as="generator")(jobs):
            results.append(result)
            if self.verbose and not callable(self.verbose):
                print(
                    f"[{type(self).__name__}] fold {len(results)} of {len(folds)}  "
                    f"{result.seconds:8.2f} s  best score {np.max(result.scores):.6g}",
                    flush=True,
                )
        self._warn_about_folds(results)
        return results

    def _warn_about_folds(self, results: list[FoldResult]) -> None:
        for k, result in enumerate(results):
            if len(result.missing):
                left_out = np.all(np.isnan(result.scores))
                what = self._missing(result.missing)
                then = "the fold is left out" if left_out else "it is predicted as if never seen"
                warnings.warn(
                    f"The training part of fold {k} {what}; {then}. Use fewer folds, or a "
                    "stratified splitter.",
                    UserWarning,
                    stacklevel=5,
                )
        why = advice(status for result in results for status in result.statuses)
        if why:
            worst = max(result.worst_gap for result in results)
            warnings.warn(
                f"On some folds the path stopped above tol={self.tol:g}, at worst at a relative "
                f"duality gap of {worst:.1e}. {why}",
                ConvergenceWarning,
                stacklevel=5,
            )

    def _choose(self, results: list[FoldResult]) -> None:
        scores = np.stack([result.scores for result in results])  # (folds, B, ridges)
        ridges = best_ridges(scores)
        self.scores_: Array = scores[:, np.arange(len(ridges)), ridges]
        choice = choose(self.scores_, self.selection)
        self.mean_scores_, self.std_scores_ = choice.mean, choice.std
        self.standard_errors_ = choice.standard_error
        self.best_index_ = choice.index
        self.best_score_ = float(choice.mean[choice.index])
        self.beta_fraction_ = float(self.betas_[choice.index])
        self._chosen_ridge = self._ridges[ridges[choice.index]]

    def _warn_at_the_edge(self) -> None:
        """Say where the choice was the grid's rather than the data's."""
        if self.betas_[-1] >= 1:
            warnings.warn(
                f"Every beta tried is at or above beta_max (the smallest is {self.betas_[-1]:g} of "
                "it), where the model uses no token. Give betas below 1.",
                UserWarning,
                stacklevel=4,
            )
        elif len(self.betas_) > 1 and self.best_index_ == len(self.betas_) - 1:
            warnings.warn(
                f"The chosen beta, {self.beta_fraction_:.3g} of beta_max, is the smallest tried: "
                "a smaller one may be better. Extend betas, or pass a smaller eps.",
                UserWarning,
                stacklevel=4,
            )

    def _warn_if_empty(self) -> None:
        """Say that the model predicts the same for every sample, where a smaller beta was tried."""
        if len(self.tokens_) or self.betas_[-1] >= 1:  # of betas >= 1 another warning tells
            return
        best = self.selection == "best"
        margin = "" if best else " by more than a standard error"
        choice = "" if best else ", try selection='best'"
        warnings.warn(
            f"Cross-validation chose the empty model: at beta = {self.beta_fraction_:.3g} of "
            "beta_max every coefficient is zero, and no smaller beta that was tried predicts "
            f"better{margin} on the folds. Check that the rows of X and y belong together, put "
            f"tokens on one scale (TokenScaler, or token_weights){choice}, or add samples; or else "
            "these tokens do not tell y.",
            UserWarning,
            stacklevel=4,
        )

    def _final_fit(self, data: TrainingData) -> Solution | Refitted:
        clock = Clock(self.max_iter, self.max_time)  # for the solve and the refit
        self._prepare(data)
        problem = self._problem(data)
        with interruption(self.on_interrupt) as clock.asked:
            solution = solve(
                problem,
                self.beta_fraction_ * problem.beta_max,
                tol=self.tol,
                max_iter=self.max_iter,
                max_time=clock.left,
                callback=self._report,
                on_interrupt=self.on_interrupt,
            )
            return self._refitted(problem, solution, clock, self._chosen_ridge)

    def get_metadata_routing(self) -> MetadataRouter:
        """Metadata that fit takes itself, and passes to splitter and scorer.

        Returns
        -------
        MetadataRouter
        """
        router = MetadataRouter(owner=self)
        router.add_self_request(self)
        router.add(
            splitter=check_cv(self.cv, classifier=is_classifier(self)),
            method_mapping=MethodMapping().add(caller="fit", callee="split"),
        )
        if self.scoring is not None:
            router.add(
                scorer=self._scorer(),
                method_mapping=MethodMapping().add(caller="fit", callee="score"),
            )
        return router


def _rows(value: Any, rows: NDArray[np.intp], n_samples: int) -> Any:
    """The rows of per-sample metadata; anything else untouched."""
    array = np.asarray(value)
    return array[rows] if array.ndim and len(array) == n_samples else value
