"""Cross-validation over a path: one fold at a time, and the rule that picks a beta."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..solvers import Solution, Status, solve_path
from ..solvers.refit import Refitted
from ..solvers.solution import Clock
from ._reading import Array
from .attention import ConvexAttention, TrainingData

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
    (train_part, test_part), fractions = map(data.take, fold), estimator.betas_
    of_test = {key: _rows(value, fold[1], len(data.samples)) for key, value in score_params.items()}
    nothing = np.full((len(fractions), len(estimator._ridges)), np.nan)
    if not (_has_weight(train_part) and _has_weight(test_part)):
        return FoldResult(nothing, missing=np.arange(0))
    solvable = estimator._solvable(train_part.Y, train_part.weight)
    fill = estimator._fill_intercept(train_part.Y, train_part.weight)
    missing = np.flatnonzero(~solvable)
    if not np.any(solvable) or (len(missing) and fill is None):
        return FoldResult(nothing, missing)
    estimator = copy.copy(estimator)
    estimator._prepare(train_part)
    problem = estimator._problem(replace(train_part, Y=train_part.Y[:, solvable]))
    path = solve_path(
        problem,
        (fractions * problem.beta_max).tolist(),
        tol=estimator.tol,
        max_iter=estimator.max_iter,
        max_time=clock.left,
    )
    judge = _judge(estimator, test_part, scorer, of_test)
    scores: list[list[float]] = []
    gaps, statuses = [], []
    step = getattr(estimator.verbose, "step", None)  # where progress has a place for words
    for solution in path:
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


def _rows(value: Any, rows: NDArray[np.intp], n_samples: int) -> Any:
    """The rows of per-sample metadata; anything else untouched."""
    array = np.asarray(value)
    return array[rows] if array.ndim and len(array) == n_samples else value


def _has_weight(part: TrainingData) -> bool:
    return len(part.Y) > 0 and (part.weight is None or bool(np.any(part.weight > 0)))


def _judge(
    estimator: ConvexAttention,
    part: TrainingData,
    scorer: Scorer | None,
    score_params: dict[str, Any],
) -> Callable[[Any], float]:
    """A function that scores a fitted model on `part`."""
    design = estimator._design(part.samples)
    if scorer is None:
        return lambda model: model._score_default(model._design_scores(design), part.Y, part.weight)
    X = part.samples.dense()  # scorers know no mask; zeros at padding mean the same
    if part.samples.offsets is None:
        return lambda model: float(scorer(model, X, part.y, **score_params))
    params = {name: _by_sample(part, name, value) for name, value in score_params.items()}

    def judge(model: Any) -> float:
        vars(model).update(tokens="absolute", n_tokens=None)  # of X, whose samples are written out
        return float(scorer(model, X, part.y, **params))

    return judge


def _by_sample(part: TrainingData, name: str, value: Any) -> Any:
    """Metadata of sequences or positions as those of samples; anything else untouched."""
    per_sequence = np.ndim(value) > 0 and len(value) == len(part.samples)
    return part.samples.weights(value, name) if per_sequence else value


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
    """Scores of all folds, and the beta they choose."""

    index: int
    mean: Array  # (B,)
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
    counted = ~np.isnan(scores)
    if not np.any(counted):
        raise ValueError(
            "No fold could be fitted and scored: the training parts lack classes (or weight), or "
            "the scorer returned NaN throughout. Use fewer folds or a stratified splitter."
        )
    n = np.count_nonzero(counted, axis=0)
    filled = np.where(counted, scores, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = filled.sum(axis=0) / n
        squares = np.where(counted, (scores - mean) ** 2, 0.0).sum(axis=0)
        std = np.sqrt(squares / np.maximum(n - 1, 1))
        standard_error = std / np.sqrt(n)
    ranked = np.where(np.isnan(mean), -np.inf, mean)
    index = int(np.argmax(ranked))
    if rule == "one-standard-error":
        index = int(np.argmax(ranked >= ranked[index] - standard_error[index]))
    return Choice(index, mean, std, standard_error)
