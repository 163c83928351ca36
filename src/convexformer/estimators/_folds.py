"""Cross-validation over a path: one fold at a time, and the rule that picks a beta."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..problem import Design
from ..solvers import Solution, Status, solve_path
from ..solvers.refit import Refitted
from ..solvers.solution import Clock
from ._reading import Array
from .attention import TrainingData

Scorer = Callable[..., float]
Fold = tuple[NDArray[np.intp], NDArray[np.intp]]  # sequences to train on, and to score on


@dataclass(frozen=True)
class FoldResult:
    """What one fold says about every beta."""

    scores: Array  # (B, ridges), NaN where nothing could be fitted or scored
    missing: NDArray[np.intp]  # outputs the training part says nothing about
    worst_gap: float = 0.0
    statuses: tuple[Status, ...] = ()  # why the solver stopped, of every beta
    seconds: float = 0.0


def score_fold(
    estimator: Any,
    data: TrainingData,
    fold: Fold,
    name: str,
    scorer: Scorer | None,
    score_params: dict[str, Any],
) -> FoldResult:
    """Solve the path of a fold's training part and score every model on its test part.

    A class that is missing from the training part gets probability 0. Where not even two classes
    are left, or no weight, the fold says nothing: its scores are NaN.
    """
    clock = Clock(estimator.max_iter, estimator.max_time)  # for the path and its refits
    (train, test), fractions = map(data.take, fold), estimator.betas_
    nothing = np.full((len(fractions), len(estimator._ridges)), np.nan)
    weights = (np.ones(len(p.Y)) if p.weight is None else p.weight for p in (train, test))
    if not all(map(np.any, weights)):
        return FoldResult(nothing, missing=np.arange(0))
    solvable = estimator._solvable(train.Y, train.weight)
    fill = estimator._fill_intercept(train.Y, train.weight)
    missing = np.flatnonzero(~solvable)
    if not np.any(solvable) or (len(missing) and fill is None):
        return FoldResult(nothing, missing)
    estimator = copy.copy(estimator)
    estimator._prepare(train)
    problem = estimator._problem(replace(train, Y=train.Y[:, solvable]))
    betas = (fractions * problem.beta_max).tolist()
    params = {key: _of_test(data, test, fold[1], key, value) for key, value in score_params.items()}
    judge = _judge(estimator._design(test.samples), test, scorer, params)
    scores: list[list[float]] = []
    gaps, statuses = [], []
    step = getattr(estimator.verbose, "step", None)  # where progress has a place for words
    for solution in solve_path(problem, betas, **estimator._limits(clock)):
        fitted: Solution | Refitted = solution
        scores.append([])
        for ridge in estimator._ridges:
            fitted = estimator._refitted(problem, solution, clock, ridge)
            full = fitted if not len(missing) else _embed(fitted, solvable, fill)
            scores[-1].append(judge(copy.copy(estimator)._keep(full)))  # what is used is scored
        gaps.append(solution.certificate.relative_gap)
        statuses.append(solution.status)
        if step is not None:
            step(f"{name}, beta {len(scores)} of {len(fractions)}")
    return FoldResult(np.array(scores), missing, max(gaps), tuple(statuses), clock.seconds)


def _of_test(
    data: TrainingData, test: TrainingData, sequences: NDArray[np.intp], name: str, value: Any
) -> Any:
    """Metadata of sequences or positions as those of samples to score; anything else untouched."""
    array = np.asarray(value)
    per_sequence = array.ndim > 0 and len(array) == len(data.samples)
    return test.samples.rows(array[sequences], name) if per_sequence else value


def _judge(
    design: Design, test: TrainingData, scorer: Scorer | None, params: dict[str, Any]
) -> Callable[[Any], float]:
    """A function that scores a fitted model on `test`."""
    if scorer is None:
        return lambda model: model._score_default(model._design_scores(design), test.Y, test.weight)
    X = test.samples.dense()  # scorers know no mask; zeros at padding mean the same

    def judge(model: Any) -> float:
        if test.samples.offsets is not None:  # whose tokens X has written out
            vars(model).update(tokens="absolute", n_tokens=None)
        return float(scorer(model, X, test.y, **params))

    return judge


def _embed(
    solution: Solution | Refitted, solvable: NDArray[np.bool_], fill: Array
) -> Solution | Refitted:
    """Coefficients of some outputs as those of all: the others have only their `fill`."""
    Z = np.zeros((*solution.Z.shape[:2], len(solvable)))
    Z[:, :, solvable] = solution.Z
    intercept = fill.copy()
    intercept[solvable] = solution.intercept
    return replace(solution, Z=Z, intercept=intercept)


@dataclass(frozen=True)
class Choice:
    """Scores of all folds, ``(B,)``, and the beta they choose."""

    index: int
    mean: Array
    std: Array
    standard_error: Array


def best_ridges(scores: Array) -> NDArray[np.intp]:
    """For every beta the ridge of the highest mean score, the first of equal ones.

    Scores are ``(folds, B, ridges)``.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer.estimators._folds import best_ridges
    >>> best_ridges(np.array([[[1.0, 2.0], [5.0, 3.0]], [[1.0, 0.0], [4.0, np.nan]]]))
    array([0, 0])
    """
    folds, B, ridges = scores.shape
    mean = choose(scores.reshape(folds, -1), "best").mean.reshape(B, ridges)
    return np.asarray(np.argmax(np.where(np.isnan(mean), -np.inf, mean), axis=1))


def choose(scores: Array, rule: str) -> Choice:
    """Pick a column of ``scores (folds, B)``, whose betas decrease.

    "best" has the highest mean. "one-standard-error" is the largest beta whose mean is within one
    standard error of that. Folds that are NaN count for nothing; ties go to the larger beta.
    """
    count = np.count_nonzero(~np.isnan(scores), axis=0)
    if not np.any(count):
        raise ValueError(
            "No fold could be fitted and scored: the training parts lack classes (or weight), or "
            "the scorer returned NaN throughout. Use fewer folds or a stratified splitter."
        )
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # of betas with one score, or none
        mean, std = np.nanmean(scores, axis=0), np.nanstd(scores, axis=0, ddof=1)
        std = np.where(count == 1, 0.0, std)
        standard_error = std / np.sqrt(count)
    ranked = np.where(np.isnan(mean), -np.inf, mean)
    index = int(np.argmax(ranked))
    if rule == "one-standard-error":
        index = int(np.argmax(ranked >= ranked[index] - standard_error[index]))
    return Choice(index, mean, std, standard_error)
