"""The estimators for targets at every position: a vector, or a label, per position."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import assert_all_finite, check_array
from sklearn.utils.multiclass import check_classification_targets

from ._parameters import estimator
from ._reading import Array, Mask, as_numpy, check_numbers
from ._sequence import SequenceModel
from ._tasks import ClassLabels, RealTargets


@estimator
class ConvexSequenceRegressor(RealTargets, SequenceModel):
    r"""Attention from position to position for matrix targets, to a certified global optimum.

    .. math:: \min_{Z, b}\ \sum_{i, r} a_i\, \mathrm{loss}(F_i[r], Y_i[r])
              + \beta \sum_{j, l} \Bigl(\max_r \sum_k Z^+_{jl}[r, k]
              + \max_r \sum_k Z^-_{jl}[r, k]\Bigr)

    with scores :math:`F_i[r, l] = \sum_{j, k} Z_{jl}[r, k]\, X_i[k, j] + b_l`, subject to all rows
    of a :math:`Z_{jl}` having equal sums. This convex program has the same
    optimum as a network of heads :math:`W_1 X W_2 w_3`, whose attention :math:`W_1` has rows on the
    simplex, with decay :math:`\frac\beta2 (\|W_2\|_1^2 + w_3^2)`, so the network's global optimum
    is found, with a proof: `certificate_` holds a lower bound on the objective of every model.
    Attention is static: over positions, the same for every sample.

    Parameters
    ----------
    refit : bool or float, default=False
        Whether to fit once more the entries of :math:`Z` that this fit selected (who attends to
        whom), by least squares with a small ridge in place of the penalty, which shrinks. Rows
        keep their equal sums; the result is not the certified optimum. A number is the strength
        of the ridge as a fraction of the mean square of the columns in use; True is 1e-3. For the
        squared loss only.

    Notes
    -----
    The fit works on second moments: after one pass over the data its cost does not depend on the
    number of samples, but memory and time grow with ``(n_tokens * n_channels) ** 2``, and with
    another factor ``n_tokens`` where there is a mask. Other losses than the squared take such a fit
    for every step of Newton's method, of which there are 5 to 15, with another factor
    ``n_tokens * n_outputs`` whether there is a mask or not.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer import ConvexSequenceRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 6, 3))  # samples, tokens, channels
    >>> Y = np.roll(X, 1, axis=1)[:, :, :1]  # every position reads its left neighbour
    >>> model = ConvexSequenceRegressor(beta=0.2).fit(X, Y)
    >>> model.attention_maps_.aggregate.argmax(axis=1)
    array([5, 0, 1, 2, 3, 4])
    >>> model.certificate_.relative_gap <= 1e-6
    True
    """

    refit: Any = False

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.loss != "squared" and self.refit:
            raise ValueError(
                f"refit={self.refit!r} is least squares, and loss is {self.loss!r}. Use "
                "loss='squared', or refit=False."
            )

    def _read_targets(self, y: Any, real: Mask) -> Array:
        """Targets of real positions ``(positions, c)``."""
        check_numbers(y, "y")
        Y = np.asarray(as_numpy(y, "y"))
        if Y.ndim != 3 or Y.shape[:2] != real.shape:
            raise ValueError(
                f"y must have shape (samples, tokens, outputs) = ({len(real)}, {real.shape[1]}, "
                f"any), one vector per position of X, got {Y.shape}. For one output per position "
                "pass y[:, :, None]; for one target per sample use ConvexAttentionRegressor."
            )
        rows: Array = check_array(Y[real], dtype=np.float64, input_name="y", estimator=self)
        return rows

    def predict(self, X: Any, mask: Any = None) -> Array:
        """Predict a vector per position.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_channels)
        mask : array-like of shape (n_samples, n_tokens), optional
            True where a token is real.

        Returns
        -------
        ndarray of shape (n_samples, n_tokens, n_outputs)
            The scores, or their exponential (a rate) for ``loss="poisson"``. NaN at padding.
        """
        return self._answer(self._means, X, mask)

    def score(self, X: Any, y: Any, sample_weight: Any = None, mask: Any = None) -> float:
        """Coefficient of determination R² over all real positions, mean over outputs.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_channels)
        y : array-like of shape (n_samples, n_tokens, n_outputs)
        sample_weight : array-like of shape (n_samples,), optional
        mask : array-like of shape (n_samples, n_tokens), optional
            True where a token is real.

        Returns
        -------
        float
        """
        F, real, weights = self._judged(X, mask, sample_weight)
        rows = self._read_targets(y, real)
        return float(r2_score(rows, self._means(F), sample_weight=weights))


@estimator
class ConvexSequenceClassifier(ClassLabels, SequenceModel):
    r"""Labels of every position by attention from position to position, to a certified optimum.

    The program of :class:`ConvexSequenceRegressor` under a logistic loss (two classes, one output)
    or the cross-entropy of a softmax over all classes of a position. Its global optimum is that of
    a network of attention heads with the same loss and weight decay.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels in sorted order.

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

    def _read_targets(self, y: Any, real: Mask) -> Array:
        """Targets of the loss ``(positions, c)``."""
        labels = self._read_labels(y, real)
        check_classification_targets(labels)
        return self._encode(labels, "positions")

    def _read_labels(self, y: Any, real: Mask) -> NDArray:
        """Labels of real positions ``(positions,)``."""
        labels = np.asarray(as_numpy(y, "y"))
        if labels.shape != real.shape:
            raise ValueError(
                f"y must have shape (samples, tokens) = {real.shape}, one label per position of X, "
                f"got {labels.shape}. For one label per sample use ConvexAttentionClassifier; of "
                "one-hot vectors pass y.argmax(2)."
            )
        labels = labels[real]
        if labels.dtype.kind in "fc":
            assert_all_finite(labels, input_name="y")
        return labels

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
        return self._answer(self._decisions, X, mask)

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
        return self._answer(self._log_probabilities, X, mask)

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
        return self._answer(self._probabilities, X, mask)

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
        return self._answer(self._labels, X, mask)

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
        F, real, weights = self._judged(X, mask, sample_weight)
        labels = self._read_labels(y, real)
        return float(accuracy_score(labels, self._labels(F), sample_weight=weights))
