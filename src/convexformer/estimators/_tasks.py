"""The two tasks: how targets become a loss, and scores become predictions."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from scipy.special import log_expit, log_softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target

from ..problem import Huber, Logistic, Loss, Poisson, Softmax, Squared
from ._parameters import is_positive, parameters
from ._reading import Array, check_numbers

LOG_TINY = float(np.log(np.finfo(np.float64).eps))
"""Floor of a log-probability in scores, as in scikit-learn's log loss."""


@parameters
class RealTargets(RegressorMixin):
    r"""Numbers to predict, and how far a prediction is from them.

    Parameters
    ----------
    loss : {"squared", "huber", "poisson"}, default="squared"
        :math:`\frac12 (f - y)^2`; Huber's loss; or half the Poisson deviance of counts with mean
        :math:`e^f`, which `predict` returns.
    huber_delta : float, default=1.35
        Residual at which Huber's loss turns linear, in units of y.
    """

    loss: str = "squared"
    huber_delta: float = 1.35

    def _task_loss(self) -> Loss:
        if self.loss == "huber":
            return Huber(self.huber_delta)
        return Poisson() if self.loss == "poisson" else Squared()

    def _means(self, F: Array) -> Array:
        """Predictions from scores."""
        return np.exp(F) if self.loss == "poisson" else F

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.positive_only = self.loss == "poisson"
        return tags


class ClassLabels(ClassifierMixin):
    """Class labels as targets of a loss, and scores as labels and probabilities.

    Scores ``(..., c)`` have one column for two classes, else one per class or label.
    """

    classes_: NDArray
    _targets: str

    @property
    def _two(self) -> bool:
        return self._targets in ("binary", "sequence") and len(self.classes_) == 2

    @property
    def _joint(self) -> bool:
        return self._targets in ("multiclass", "sequence") and not self._two

    def _encode(self, y: NDArray, what: str) -> Array:
        """Labels as ±1 ``(rows, 1)`` or one-hot ``(rows, c)``; sets `classes_`."""
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y has only one class, {self.classes_.tolist()[0]!r}: a classifier needs {what} "
                "of at least two classes. Add samples of another class."
            )
        two = len(self.classes_) == 2
        return np.where(codes > 0, 1.0, -1.0)[:, None] if two else np.eye(len(self.classes_))[codes]

    def _task_loss(self) -> Loss:
        return Softmax() if self._joint else Logistic()

    def _decisions(self, F: Array) -> Array:
        return F[..., 0] if self._two else F

    def _labels(self, F: Array) -> NDArray:
        if self._targets == "multilabel":
            return (F > 0).astype(np.int64)
        chosen = F[..., 0] > 0 if self._two else np.argmax(F, axis=-1)
        return self.classes_[chosen.astype(np.intp)]

    def _probabilities(self, F: Array) -> Array:
        return np.exp(self._log_probabilities(F))

    def _log_probabilities(self, F: Array) -> Array:
        if self._joint:
            return log_softmax(F, axis=-1)
        return log_expit(np.concatenate([-F, F], axis=-1) if self._two else F)


class Regression(RealTargets):
    """Real-valued targets ``y (N,)`` or ``(N, c)``."""

    _answer: Any
    _scored: Any
    _targets: str

    def _read_targets(self, y: Any) -> tuple[Array, Array]:
        """`y` as passed, in float64, and the same as ``(N, c)``."""
        check_numbers(y, "y")
        y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y", estimator=self)
        self._targets = "one" if y.ndim == 1 else "several"
        return y, y.reshape(len(y), -1)

    def _task_weight(self, y: NDArray, weight: Array | None) -> Array | None:
        return weight

    def _score_default(self, F: Array, Y: Array, weight: Array | None) -> float:
        """Minus the mean loss of scores `F`."""
        losses = self._task_loss().value(F, Y).mean(axis=1)
        return -float(np.average(losses, weights=weight))

    def predict(self, X: Any, mask: Any = None, separators: Any = None) -> Array:
        """Predict targets.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_channels) or (n_samples, n_features)
        mask : array-like of shape (n_samples, n_tokens), optional
            True where a token is real.
        separators : array-like of shape (n_samples, n_tokens), optional
            True at separators, for ``tokens=Offsets(...)`` with that landmark.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs)
            The scores, or their exponential (a rate) for ``loss="poisson"``. With
            ``tokens=Offsets(...)`` by position, ``(n_samples, n_positions, ...)``, NaN at padding.
        """
        return self._answer(self._predictions, X, mask, separators)

    def _predictions(self, F: Array) -> Array:
        return self._means(F[:, 0] if self._targets == "one" else F)

    def score(
        self, X: Any, y: Any, sample_weight: Any = None, mask: Any = None, separators: Any = None
    ) -> float:
        """Coefficient of determination R² of the predictions.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_channels) or (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
        sample_weight : array-like of shape (n_samples,), optional
        mask : array-like of shape (n_samples, n_tokens), optional
            True where a token is real.
        separators : array-like of shape (n_samples, n_tokens), optional
            True at separators, for ``tokens=Offsets(...)`` with that landmark.

        Returns
        -------
        float
        """
        samples, F = self._scored(X, mask, separators)
        y, weight = samples.rows(y, "y"), samples.rows(sample_weight, "sample_weight")
        return float(r2_score(y, self._predictions(F), sample_weight=weight))


@parameters
class Classification(ClassLabels):
    """Class labels ``y (N,)``, or an indicator matrix ``(N, c)`` of several labels.

    Parameters
    ----------
    class_weight : dict or "balanced", optional
        Factors of the sample weights: ``{class: weight}``, 1 for classes left out; "balanced" gives
        all classes the same total weight. Not for multilabel targets.

    Attributes
    ----------
    classes_ : ndarray
        Class labels in sorted order; column numbers for multilabel targets.
    """

    class_weight: Any = None

    _answer: ClassVar[Any]
    _scored: ClassVar[Any]

    def _read_targets(self, y: Any) -> tuple[NDArray, Array]:
        """`y` validated, and as ±1 ``(N, 1)``, one-hot ``(N, c)`` or ±1 ``(N, c)``."""
        y = y.toarray() if issparse(y) else y
        check_classification_targets(y)
        kind = type_of_target(y, input_name="y")
        if kind == "multilabel-indicator":
            return self._read_multilabel(np.asarray(y))
        y = column_or_1d(y, warn=True)
        Y = self._encode(y, "samples")
        self._targets = "binary" if len(self.classes_) == 2 else "multiclass"
        return y, Y

    def _read_multilabel(self, y: NDArray) -> tuple[NDArray, Array]:
        if not np.all((y == 0) | (y == 1)):
            raise ValueError("A multilabel y must be an indicator matrix of 0 and 1.")
        if self.class_weight is not None:
            raise ValueError(
                "class_weight is not defined for a multilabel y, whose samples belong to several "
                "classes. Use sample_weight, or fit one classifier per label."
            )
        self._targets = "multilabel"
        self.classes_ = np.arange(y.shape[1])
        return y.astype(np.int64), 2.0 * y - 1.0

    def _task_weight(self, y: NDArray, weight: Array | None) -> Array | None:
        """Sample weights times class weights."""
        if self.class_weight is None:
            return weight
        codes, classes = np.searchsorted(self.classes_, y), self.classes_.tolist()
        base: Array = np.ones(len(y)) if weight is None else weight
        if self.class_weight == "balanced":  # classes that are present get the same total weight
            mass = np.bincount(codes, base, len(classes))
            factors = mass.sum() / np.count_nonzero(mass) / np.where(mass > 0, mass, 1.0)
            return np.multiply(base, factors[codes])
        if not all(key in classes and is_positive(w) for key, w in self.class_weight.items()):
            raise ValueError(
                f"class_weight must give positive numbers to classes of y, which are {classes}; "
                f"got {self.class_weight}. Remove the samples of a class to ignore it."
            )
        factors = np.array([float(self.class_weight.get(key, 1.0)) for key in classes])
        return np.multiply(base, factors[codes])

    def _score_default(self, F: Array, Y: Array, weight: Array | None) -> float:
        """Minus the mean log loss of scores `F`, log-probabilities floored as in scikit-learn."""
        if self._joint:
            log_p = log_softmax(F, axis=1)[Y > 0]  # one entry per row
        else:
            log_p = log_expit(Y * F)
        log_p = np.maximum(log_p, LOG_TINY).reshape(len(Y), -1).mean(axis=1)
        return float(np.average(log_p, weights=weight))

    def decision_function(self, X: Any, mask: Any = None, separators: Any = None) -> Array:
        """Scores of the samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_channels) or (n_samples, n_features)
        mask : array-like of shape (n_samples, n_tokens), optional
            True where a token is real.
        separators : array-like of shape (n_samples, n_tokens), optional
            True at separators, for ``tokens=Offsets(...)`` with that landmark.

        Returns
        -------
        ndarray of shape (n_samples,) for two classes, else (n_samples, n_classes)
            With ``tokens=Offsets(...)`` by position, ``(n_samples, n_positions, ...)``, NaN at
            padding.
        """
        return self._answer(self._decisions, X, mask, separators)

    def predict(self, X: Any, mask: Any = None, separators: Any = None) -> NDArray:
        """Predict class labels; for multilabel targets, an indicator matrix.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_channels) or (n_samples, n_features)
        mask : array-like of shape (n_samples, n_tokens), optional
            True where a token is real.
        separators : array-like of shape (n_samples, n_tokens), optional
            True at separators, for ``tokens=Offsets(...)`` with that landmark.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_labels)
            With ``tokens=Offsets(...)`` by position, ``(n_samples, n_positions, ...)``; at padding
            -1, "" for text, None for objects, False for booleans: read them through the mask.
        """
        return self._answer(self._labels, X, mask, separators)

    def predict_proba(self, X: Any, mask: Any = None, separators: Any = None) -> Array:
        """Probability of every class; for multilabel targets, of every label.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_channels) or (n_samples, n_features)
        mask : array-like of shape (n_samples, n_tokens), optional
            True where a token is real.
        separators : array-like of shape (n_samples, n_tokens), optional
            True at separators, for ``tokens=Offsets(...)`` with that landmark.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            With ``tokens=Offsets(...)`` by position, ``(n_samples, n_positions, n_classes)``.
        """
        return self._answer(self._probabilities, X, mask, separators)

    def predict_log_proba(self, X: Any, mask: Any = None, separators: Any = None) -> Array:
        """Logarithm of `predict_proba`, finite also where a probability rounds to zero.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_channels) or (n_samples, n_features)
        mask : array-like of shape (n_samples, n_tokens), optional
            True where a token is real.
        separators : array-like of shape (n_samples, n_tokens), optional
            True at separators, for ``tokens=Offsets(...)`` with that landmark.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            With ``tokens=Offsets(...)`` by position, ``(n_samples, n_positions, n_classes)``.
        """
        return self._answer(self._log_probabilities, X, mask, separators)

    def score(
        self, X: Any, y: Any, sample_weight: Any = None, mask: Any = None, separators: Any = None
    ) -> float:
        """Mean accuracy; for multilabel targets, of whole rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_channels) or (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_labels)
        sample_weight : array-like of shape (n_samples,), optional
        mask : array-like of shape (n_samples, n_tokens), optional
            True where a token is real.
        separators : array-like of shape (n_samples, n_tokens), optional
            True at separators, for ``tokens=Offsets(...)`` with that landmark.

        Returns
        -------
        float
        """
        samples, F = self._scored(X, mask, separators)
        y, weight = samples.rows(y, "y"), samples.rows(sample_weight, "sample_weight")
        return float(accuracy_score(y, self._labels(F), sample_weight=weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = self.class_weight is None
        return tags
