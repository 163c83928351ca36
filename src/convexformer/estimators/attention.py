"""Attention over tokens: what all its estimators share, and the two with a given beta."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from ..problem import PENALTIES, Design, Offsets, Problem
from ..problem.norms import safe_norm
from ..solvers import Solution, Status
from ..solvers.solution import Clock
from ._base import Certified, OneBeta, all_or_nothing
from ._parameters import estimator, parameters, read_token_weights
from ._reading import Array, Samples, check_sample_weight, read_samples, required
from ._tasks import Classification, Regression


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


@parameters
class ConvexAttention(Certified):
    r"""Attention over tokens; a task mixin says what targets and scores mean.

    Parameters
    ----------
    penalty : {"token-output", "token", "nuclear"}, default="token-output"
        Whether each output chooses its tokens, or all outputs share them,
        :math:`\beta \sum_k w_k \|Z_k\|_F`, also with few directions of each,
        :math:`\beta \sum_k w_k \|Z_k\|_*`, which is plain weight decay.
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

    Attributes
    ----------
    coef_ : ndarray of shape (n_outputs, n_tokens, n_channels)
        :math:`Z`, one row per output. A classifier of two classes has one output, whose positive
        scores mean the second class; of more classes, or of labels, one per class or label.
    intercept_ : ndarray of shape (n_outputs,)
    tokens_ : ndarray of int
        Tokens that the model uses.
    token_norms_ : ndarray of shape (n_tokens,) or (n_outputs, n_tokens)
        Euclidean norm of every token's coefficients.
    feature_importances_ : ndarray of shape (n_features_in_,)
        Norm of the token of every column of 2-D X: scikit-learn's SelectFromModel and RFE read
        it with ``importance_getter="feature_importances_"``.
    feature_names_in_ : ndarray of str
        Column names, where X was a table.

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
    """

    penalty: str = "token-output"
    refit: Any = False
    token_weights: Any = None
    tokens: Any = "absolute"
    n_tokens: int | None = None

    # Of the task
    _read_targets: ClassVar[Any]
    _task_loss: ClassVar[Any]
    _task_weight: ClassVar[Any]
    _score_default: ClassVar[Any]

    def _read(
        self, X: Any, y: Any, sample_weight: Any, mask: Any, separators: Any = None
    ) -> TrainingData:
        self._check_parameters()
        samples = read_samples(self, X, mask, separators, reset=True)
        y = samples.rows(required(self, y), "y")
        if getattr(y, "ndim", 0) > 2:
            raise ValueError(
                f"y must have one target, or one vector of them, per sample; got shape {y.shape}. "
                "For targets at every position use ConvexSequenceRegressor, or tokens=Offsets(...)."
            )
        y, Y = self._read_targets(y)
        if samples.offsets is None:  # else targets were taken by position
            check_consistent_length(samples.X, y)
        weight = check_sample_weight(samples.rows(sample_weight, "sample_weight"), len(y))
        weights = np.ones(len(y)) if weight is None else weight
        self._task_loss().check_targets(Y, weights, bool(self.fit_intercept))  # before any fold
        self._warn_of_one_sample(len(y))
        return TrainingData(samples, y, Y, weight)

    def _prepared_problem(self, data: TrainingData) -> Problem:
        self._prepare(data)
        return self._problem(data)

    def _prepare(self, data: TrainingData) -> None:
        """Fix what must be fixed before the problem is convex (gates)."""

    def _problem(self, data: TrainingData) -> Problem:
        return Problem(
            self._design(data.samples),
            self._task_loss(),
            PENALTIES[self.penalty](self._penalty_weights()),
            data.Y,
            sample_weight=self._task_weight(data.y, data.weight),
            intercept=bool(self.fit_intercept),
        )

    def _design(self, samples: Samples) -> Design:
        return samples.design()

    def _penalty_weights(self) -> Array | None:
        """Penalty weights of the design's groups, which are the tokens."""
        return read_token_weights(self.token_weights, self.n_tokens_)

    # After the solve --------------------------------------------------------------------------

    def _as_coef(self, Z: Array) -> Array:
        """Coefficients of a problem, ``(groups, d, c)``, as those of a model, ``(c, n, d)``."""
        return np.ascontiguousarray(Z.transpose(2, 0, 1))

    def _coefficients(self) -> Array:
        """`coef_` as problems have it, ``(groups, d, c)``."""
        c, *_, d = self.coef_.shape
        return self.coef_.reshape(c, -1, d).transpose(1, 2, 0)

    def _set_coefficients(self, coef: Array, intercept: Array) -> None:
        super()._set_coefficients(coef, intercept)
        c, *_, n, d = self.coef_.shape
        norms = safe_norm(self.coef_.reshape(c, -1, n, d), axis=3).sum(axis=1)  # over gates
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

    def _design_scores(self, design: Design) -> Array:
        return design.predict(self._coefficients()) + self.intercept_

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


@parameters
class SingleBeta(OneBeta, ConvexAttention):
    """Attention over tokens at one beta.

    Parameters
    ----------
    warm_start : bool, default=False
        Whether to start from the last fit, where its shape agrees.
    """

    warm_start: bool = False

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
        problem = self._prepared_problem(self._read(X, y, sample_weight, mask, separators))
        last = None
        if self.warm_start and hasattr(self, "coef_"):
            Z = self._coefficients()
            if Z.shape == problem.shape:
                last = Solution(Z, self.intercept_, self._certificate, Status.ITERATIONS)
        self._keep(self._minimise(problem, self._absolute_beta(problem), clock, init=last))
        self._warn_unless_converged()
        return self


@estimator
class ConvexAttentionRegressor(Regression, SingleBeta):
    r"""Attention over tokens for regression, trained to a certified global optimum.

    .. math:: \min_{Z, b}\ \sum_i a_i\,\mathrm{loss}\Bigl(\sum_k X_{ik} Z_k + b,\ y_i\Bigr)
              + \beta \sum_k w_k \sum_l \|Z_k[:, l]\|_2

    This convex program has the same optimum as a multi-head simplex-attention network with weight
    decay, so the network's global optimum is found, with a proof: `certificate_` holds a lower
    bound on the objective of every model. The norm makes whole tokens vanish; `tokens_` are those
    that stay. Attention is static: over positions, the same for every sample.

    See Also
    --------
    ConvexAttentionRegressorCV : Chooses beta by cross-validation.
    attention_path : Solutions for many betas.

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


@estimator
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

    See Also
    --------
    ConvexAttentionClassifierCV : Chooses beta by cross-validation.
    attention_path : Solutions for many betas.

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
