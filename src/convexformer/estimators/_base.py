"""What all estimators share: from validated data to a problem, from a solution to attributes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from ..problem import PENALTIES, Design, Offsets, Problem
from ..problem.points import safe_norm
from ..solvers import Solution, TracePoint
from ..solvers.interruption import ON_INTERRUPT
from ..solvers.refit import Refitted
from ._refit import Refittable
from ._samples import Samples, read_samples
from ._validation import (
    Array,
    check_bool,
    check_choice,
    check_count,
    check_positive,
    check_sample_weight,
    check_token_weights,
    warn_of_one_sample,
)


@dataclass(frozen=True)
class TrainingData:
    """Validated input of a fit."""

    samples: Samples  # sequences; all that follows has a row per sample
    y: NDArray  # as passed
    Y: Array  # (rows, c), as the loss wants it
    weight: Array | None  # (rows,), the user's

    def take(self, sequences: NDArray[np.intp]) -> TrainingData:
        """Some of the sequences (copied)."""
        rows = self.samples.rows_of(sequences)
        weight = None if self.weight is None else self.weight[rows]
        return TrainingData(self.samples.take(sequences), self.y[rows], self.Y[rows], weight)


class ConvexAttention(Refittable, BaseEstimator):
    """Base of the estimators; a task mixin says what targets and scores mean."""

    penalty: str
    fit_intercept: bool
    token_weights: Any
    tokens: Any
    n_tokens: int | None
    max_iter: int
    max_time: float | None
    on_interrupt: str
    verbose: Any

    coef_: Array
    intercept_: Array
    n_tokens_: int

    _groups_name: ClassVar[str] = "tokens"  # what the solver counts as active

    # Before the solve -------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        check_choice("penalty", self.penalty, tuple(PENALTIES))
        check_bool("fit_intercept", self.fit_intercept)
        if not isinstance(self.tokens, Offsets):
            check_choice("tokens", self.tokens, ("absolute", Offsets(-4, 4)))
        check_count("n_tokens", self.n_tokens, optional=True)
        check_positive("tol", self.tol, "It is the relative duality gap at which to stop.")
        check_count("max_iter", self.max_iter)
        check_positive("max_time", self.max_time, "It is in seconds.", optional=True)
        check_choice("on_interrupt", self.on_interrupt, ON_INTERRUPT)
        self._check_refit()
        self._check_task_parameters()

    def _read(
        self, X: Any, y: Any, sample_weight: Any, mask: Any, separators: Any = None
    ) -> TrainingData:
        self._check_parameters()
        samples = read_samples(self, X, mask, separators, reset=True)
        y, Y = self._read_targets(samples.targets(y))
        samples.check_targets(y)
        weight = check_sample_weight(samples.weights(sample_weight), len(y))
        warn_of_one_sample(len(y))
        return TrainingData(samples, y, Y, weight)

    def _problem(self, data: TrainingData) -> Problem:
        solvable = self._solvable(data.Y, data.weight)
        if self.fit_intercept and not np.all(solvable):
            raise ValueError(self._unsolvable(np.flatnonzero(~solvable)))
        return Problem(
            self._design(data.samples),
            self._task_loss(),
            PENALTIES[self.penalty](self._penalty_weights()),
            data.Y,
            sample_weight=self._task_weight(data.y, data.weight),
            intercept=bool(self.fit_intercept),
        )

    def _prepare(self, data: TrainingData) -> None:
        """Fix what must be fixed before the problem is convex (gates)."""

    def _design(self, samples: Samples) -> Design:
        return samples.design()

    def _penalty_weights(self) -> Array | None:
        """Penalty weights of the design's groups, which are the tokens."""
        return check_token_weights(self.token_weights, self.n_tokens_)

    def _report(self, point: TracePoint) -> None:
        """One line of progress, where asked for."""
        if callable(self.verbose):
            self.verbose(point)
        elif self.verbose:
            print(
                f"[{type(self).__name__}] iteration {point.iteration:5d}  {point.seconds:8.2f} s  "
                f"relative gap {point.relative_gap:8.1e}  {point.n_active:5d} "
                f"{self._groups_name}",
                flush=True,
            )

    # After the solve --------------------------------------------------------------------------

    def _keep(self, fitted: Solution | Refitted) -> Self:
        """Turn a solution, refitted or not, into fitted attributes."""
        self._set_coefficients(fitted.Z.transpose(2, 0, 1), fitted.intercept)
        self._keep_solution(fitted)
        return self

    def _set_coefficients(self, coef: Array, intercept: Array) -> None:
        # One memory layout always: a loaded model predicts the same bits as the saved one.
        self.coef_ = np.ascontiguousarray(coef)  # (c, n, d)
        self.intercept_ = np.ascontiguousarray(intercept)
        norms = safe_norm(self.coef_, axis=2)  # (c, n)
        self.tokens_ = np.flatnonzero(np.any(norms, axis=0))
        self.token_norms_ = norms[0] if len(norms) == 1 else norms

    @property
    def feature_importances_(self) -> Array:
        """Norm of the coefficients of every column's token, ``(n_features_in_,)``.

        In the order of the columns of 2-D X, so that scikit-learn selects columns by it:
        ``SelectFromModel(model, importance_getter="feature_importances_")``. All channels of a
        token have the same importance, so that whole tokens are selected. `coef_`, which
        scikit-learn reads if no getter is named, has an axis per token and none per column.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn.feature_selection import SelectFromModel
        >>> from convexformer import ConvexAttentionRegressor
        >>> table = np.random.default_rng(0).normal(size=(50, 8))  # 4 tokens of 2 channels
        >>> model = ConvexAttentionRegressor(beta=0.3, n_tokens=4)
        >>> select = SelectFromModel(model, importance_getter="feature_importances_")
        >>> select.fit(table, table[:, 2]).get_support(indices=True)  # the second token
        array([2, 3])
        """
        check_is_fitted(self)
        if isinstance(self.tokens, Offsets):
            raise AttributeError(
                "With tokens=Offsets a token is a place relative to a target, so that no column of "
                "X has an importance of its own. See token_norms_."
            )
        by_token = np.moveaxis(self.coef_, -2, 0).reshape(self.n_tokens_, -1)
        return np.repeat(safe_norm(by_token, axis=1), self.n_channels_)

    def _scored(self, X: Any, mask: Any, separators: Any) -> tuple[Samples, Array]:
        """Samples and their ``F = sum_k X_k Z_k + b``, ``(rows, c)``."""
        check_is_fitted(self)
        samples = read_samples(self, X, mask, separators, reset=False)
        return samples, self._design_scores(self._design(samples))

    def _answer(
        self, answer: Callable[[Array], NDArray], X: Any, mask: Any, separators: Any
    ) -> NDArray:
        """What `answer` makes of the scores, by sample or, with offsets, by position."""
        samples, F = self._scored(X, mask, separators)
        return samples.arranged(answer(F))

    def _coefficients(self) -> Array:
        """`coef_` as problems have it, ``(groups, d, c)``."""
        return self.coef_.transpose(1, 2, 0)

    def _design_scores(self, design: Design) -> Array:
        Z = self._coefficients()
        used = np.flatnonzero(np.any(Z, axis=(1, 2)))  # no other token is read
        F = design.predict(Z) if len(used) == len(Z) else design.predict(Z[used], used)
        return F + self.intercept_

    def to_network(self) -> Any:
        """The network this model is equivalent to, as a PyTorch module in float64.

        It has one simplex-attention head per nonzero block of the coefficients, the same scores,
        and the same objective with weight decay. It is nonconvex in its weights, as networks are,
        and stands at a global optimum to within the certificate. That of a refitted model has the
        same scores, but stands at no optimum: `refit` moved away from it.

        With ``tokens=Offsets(...)`` it reads the tokens of every position written out, as
        ``tokens.expand(X, mask, separators)`` gives them.

        Returns
        -------
        convexformer.nn.SimplexAttention or convexformer.nn.GatedFCN
            Needs PyTorch: ``pip install "convexformer[nn]"``.
        """
        check_is_fitted(self)
        from ..nn import network_of  # the one look upward, and torch only where it is asked for

        return network_of(self)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    # What the task mixins bring ---------------------------------------------------------------

    _check_task_parameters: Any
    _read_targets: Any
    _task_loss: Any
    _task_weight: Any
    _solvable: Any
    _unsolvable: Any
    _missing: Any
    _fill_intercept: Any
    _score_default: Any
