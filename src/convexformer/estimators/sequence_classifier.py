"""The classifier of positions: a vector per position in, a label per position out."""

from __future__ import annotations

import time
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_expit, log_softmax
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets

from ..problem import Logistic, Softmax
from ._draft import all_or_nothing
from ._samples import PADDING
from ._sequence import SequenceModel
from ._validation import Array, Mask, as_numpy


class ConvexSequenceClassifier(ClassifierMixin, SequenceModel):
    r"""Labels of every position by attention from position to position, to a certified optimum.

    The program of :class:`ConvexSequenceRegressor` under a logistic loss (two classes, one output)
    or the cross-entropy of a softmax over all classes of a position. Its global optimum is that of
    a network of attention heads with the same loss and weight decay.

    Parameters
    ----------
    beta : float, default=0.1
        Penalty strength, positive: a fraction of the smallest strength at which the optimum is
        ``Z = 0`` (`beta_max_`).
    beta_scale : {"relative", "absolute"}, default="relative"
        "absolute": `beta` is :math:`\beta` itself.
    attention : {"stochastic", "substochastic"}, default="stochastic"
        Whether rows of the attention sum to one, or to at most one.
    fit_intercept : bool, default=True
        Whether to fit an intercept per output, the same at all positions, not penalised.
    tol : float, default=1e-6
        Relative duality gap at which to stop.
    max_iter : int, default=10000
        Most iterations.
    max_time : float, optional
        Most seconds, from reading X on. They are kept to within the larger of .3 s and two passes
        over X, which the certificate takes.
    on_interrupt : {"raise", "keep"}, default="raise"
        What Ctrl-C does during the solve. "raise": KeyboardInterrupt, and the estimator is left as
        it was before. "keep": the fit ends with the best coefficients so far and their true
        certificate, and warns; a second Ctrl-C raises.
    verbose : bool or callable, default=False
        True prints time and gap as the solver goes; a callable receives them instead, as a named
        tuple ``(iteration, seconds, relative_gap, n_active)`` with the number of nonzero
        :math:`Z_{jl}`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels in sorted order.
    coef_ : ndarray of shape (n_channels, n_outputs, n_tokens, n_tokens)
        :math:`Z`: input channel, output, target position, source position. One output for two
        classes, whose positive scores mean ``classes_[1]``; else one per class.
    intercept_ : ndarray of shape (n_outputs,)
    attention_maps_ : AttentionMaps
        The maps of the equivalent network with their weights, and one map over all of them.
    certificate_ : Certificate
        Objective, lower bound and gap, computed in float64 from the coefficients alone.
    beta_, beta_max_ : float
        Penalty strength, absolute, and the smallest at which ``Z = 0``.
    n_iter_ : int
    trace_ : list of TracePoint
        Iteration, seconds, certified gap and number of nonzero :math:`Z_{jl}` on the way.
    n_tokens_, n_channels_, n_outputs_, n_features_in_ : int
        Shapes at fit; ``n_features_in_ = n_tokens_ * n_channels_``.

    Notes
    -----
    Memory grows with ``n_tokens * (n_tokens * n_channels) ** 2``, and for more than two classes
    with another factor ``n_classes ** 2``, as classes meet in one quadratic model.

    Examples
    --------
    Every position has the class of what its left neighbour holds:

    >>> import numpy as np
    >>> from convexformer import ConvexSequenceClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 5, 3))  # samples, tokens, channels
    >>> y = np.array(["a", "b", "c"])[np.roll(X, 1, axis=1).argmax(axis=2)]
    >>> model = ConvexSequenceClassifier(beta=0.05).fit(X, y)
    >>> model.attention_maps_.aggregate.argmax(axis=1)
    array([4, 0, 1, 2, 3])
    >>> model.predict(X).shape, model.score(X, y) > 0.95
    ((200, 5), True)
    >>> model.certificate_.relative_gap <= 1e-6
    True
    """

    refit = False
    classes_: NDArray

    def __init__(
        self,
        beta: float = 0.1,
        *,
        beta_scale: str = "relative",
        attention: str = "stochastic",
        fit_intercept: bool = True,
        tol: float = 1e-6,
        max_iter: int = 10_000,
        max_time: float | None = None,
        on_interrupt: str = "raise",
        verbose: Any = False,
    ) -> None:
        self.beta = beta
        self.beta_scale = beta_scale
        self.attention = attention
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.max_time = max_time
        self.on_interrupt = on_interrupt
        self.verbose = verbose

    @all_or_nothing
    def fit(self, X: Any, y: Any, sample_weight: Any = None, mask: Any = None) -> Self:
        """Fit to a certified global optimum.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_channels)
        y : array-like of shape (n_samples, n_tokens)
            Labels, one per position.
        sample_weight : array-like of shape (n_samples,), optional
            Non-negative weights.
        mask : array-like of shape (n_samples, n_tokens), optional
            True where a token is real. At padding, X reads as zero, what is attended there adds
            nothing, and the label does not count; X may hold anything there, NaN included.

        Returns
        -------
        self
        """
        start = time.perf_counter()
        self._check_parameters()
        X, mask = self._read_tokens(X, mask, reset=True)
        labels, real = self._read_labels(y, X.shape[:2], mask)
        check_classification_targets(labels)
        classes, codes = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"y has only one class, {classes.tolist()[0]!r}: a classifier needs positions of "
                "at least two classes. Add samples of another class."
            )
        if self.fit_intercept:
            self._check_classes(classes, codes, self._real(real.shape, real, sample_weight)[1])
        self.classes_, two = classes, len(classes) == 2
        Y = np.zeros((*real.shape, 1 if two else len(classes)))
        Y[real] = np.where(codes > 0, 1.0, -1.0)[:, None] if two else np.eye(len(classes))[codes]
        self._fit(X, mask, Y, Logistic() if two else Softmax(), sample_weight, start)
        self._warn_unless_converged()
        return self

    def _read_labels(
        self, y: Any, shape: tuple[int, int], mask: Mask | None
    ) -> tuple[NDArray, Mask]:
        """Labels of real positions ``(positions,)``, and which these are."""
        if y is None:
            raise ValueError("ConvexSequenceClassifier requires y to be passed, but it is None.")
        labels = np.asarray(as_numpy(y, "y"))
        if labels.shape != shape:
            raise ValueError(
                f"y must have shape (samples, tokens) = {shape}, one label per position of X, got "
                f"{labels.shape}. For one label per sample use ConvexAttentionClassifier; of "
                "one-hot vectors pass y.argmax(2)."
            )
        real = np.ones(shape, dtype=bool) if mask is None else mask
        labels = labels[real]
        if labels.dtype.kind in "fc":
            assert_all_finite(labels, input_name="y")
        return labels, real

    @staticmethod
    def _check_classes(classes: NDArray, codes: NDArray, weights: Array) -> None:
        absent = np.bincount(codes, weights, len(classes)) == 0
        if np.any(absent):
            raise ValueError(
                f"The classes {classes[absent].tolist()} of y have no position of positive weight, "
                "and an intercept would have no finite optimum. Drop their samples, or weigh them."
            )

    # After the fit ----------------------------------------------------------------------------

    def decision_function(self, X: Any, mask: Any = None) -> Array:
        """Scores of all positions.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_channels)
        mask : array-like of shape (n_samples, n_tokens), optional
            True where a token is real.

        Returns
        -------
        ndarray of shape (n_samples, n_tokens) for two classes, else with an axis of n_classes
            NaN at padding.
        """
        F, mask = self._scores(X, mask)
        if mask is not None:
            F[~mask] = np.nan
        return F[:, :, 0] if len(self.classes_) == 2 else F

    def predict_log_proba(self, X: Any, mask: Any = None) -> Array:
        """Logarithm of `predict_proba`, finite also where a probability rounds to zero.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_channels)
        mask : array-like of shape (n_samples, n_tokens), optional
            True where a token is real.

        Returns
        -------
        ndarray of shape (n_samples, n_tokens, n_classes)
            NaN at padding.
        """
        F = self.decision_function(X, mask)
        if len(self.classes_) == 2:
            return np.asarray(log_expit(np.stack([-F, F], axis=2)))
        return np.asarray(log_softmax(F, axis=2))

    def predict_proba(self, X: Any, mask: Any = None) -> Array:
        """Probability of every class at every position.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_channels)
        mask : array-like of shape (n_samples, n_tokens), optional
            True where a token is real.

        Returns
        -------
        ndarray of shape (n_samples, n_tokens, n_classes)
            NaN at padding.
        """
        return np.asarray(np.exp(self.predict_log_proba(X, mask)))

    def predict(self, X: Any, mask: Any = None) -> NDArray:
        """Predict a label per position.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_channels)
        mask : array-like of shape (n_samples, n_tokens), optional
            True where a token is real.

        Returns
        -------
        ndarray of shape (n_samples, n_tokens)
            At padding -1, "" for text, None for objects, False for booleans: read them through the
            mask.
        """
        F, mask = self._scores(X, mask)
        chosen = F[:, :, 0] > 0 if len(self.classes_) == 2 else np.argmax(F, axis=2)
        labels = self.classes_[chosen.astype(np.intp)]
        if mask is not None:
            labels[~mask] = PADDING.get(labels.dtype.kind, labels.dtype.type())
        return labels

    def score(self, X: Any, y: Any, sample_weight: Any = None, mask: Any = None) -> float:
        """Mean accuracy over all real positions.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_channels)
        y : array-like of shape (n_samples, n_tokens)
        sample_weight : array-like of shape (n_samples,), optional
        mask : array-like of shape (n_samples, n_tokens), optional
            True where a token is real.

        Returns
        -------
        float
        """
        predicted = self.predict(X, mask)
        _, mask = self._read_tokens(X, mask, reset=False)
        labels, real = self._read_labels(y, predicted.shape, mask)
        _, weights = self._real(predicted.shape, mask, sample_weight)
        return float(accuracy_score(labels, predicted[real], sample_weight=weights))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
