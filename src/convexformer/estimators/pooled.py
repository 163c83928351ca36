"""PooledTokens: summaries of all tokens as further tokens."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from ._draft import all_or_nothing
from ._masked import MaskedTransformerMixin
from ._validation import blocks, check_count, check_positive, check_tokens, ranked

POOLED = ("mean", "log-std")


class PooledTokens(MaskedTransformerMixin, BaseEstimator):
    r"""Append two tokens: the mean over tokens, and the logarithm of their standard deviation.

    .. math:: X' = [X_1, \dots, X_n,\ \bar X,\ \tfrac12 \log(\mathrm{var}_k X_k + \epsilon)]

    A layer that is linear in its tokens cannot know how much they vary; with these it can. Padding
    is left out of both.

    Parameters
    ----------
    epsilon : float, default=1e-6
        Added to the variance, so that its logarithm is finite; positive.
    n_tokens : int, optional
        Number of tokens a 2-D X is cut into; if omitted, every column is its own token.

    Attributes
    ----------
    n_tokens_, n_channels_, n_features_in_ : int
        Shape of X at fit.

    Notes
    -----
    Padding is zero in the result, as models read it: they need no mask after this, and the pooled
    tokens would not be in it. In a pipeline that routes masks, request them here and in the steps
    before, and on the model say ``set_fit_request(mask=False)`` (and so for predict and score). A
    :class:`TokenScaler` belongs before this, where it can tell padding from zeros.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer import PooledTokens
    >>> X = np.random.default_rng(0).normal(size=(50, 4, 2))
    >>> pooled = PooledTokens().fit(X)
    >>> pooled.transform(X).shape
    (50, 6, 2)
    >>> pooled.token_names_out(["P1", "P2", "P3", "P4"])
    ['P1', 'P2', 'P3', 'P4', 'mean', 'log-std']
    """

    def __init__(self, epsilon: float = 1e-6, *, n_tokens: int | None = None) -> None:
        self.epsilon = epsilon
        self.n_tokens = n_tokens

    @all_or_nothing
    def fit(self, X: Any, y: Any = None, mask: Any = None) -> Self:
        """Check X and remember its shape.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_channels) or (n_samples, n_features)
        y : ignored
        mask : array-like of shape (n_samples, n_tokens), optional

        Returns
        -------
        self
        """
        check_positive("epsilon", self.epsilon, "It keeps the logarithm of the variance finite.")
        check_count("n_tokens", self.n_tokens, optional=True)
        check_tokens(self, X, mask, reset=True)
        return self

    def transform(self, X: Any, mask: Any = None) -> NDArray:
        """Append the pooled tokens.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_channels) or (n_samples, n_features)
        mask : array-like of shape (n_samples, n_tokens), optional
            True where a token is real; the result is 0 elsewhere.

        Returns
        -------
        ndarray of shape (n_samples, n_tokens + 2, n_channels), or flat if X is
        """
        check_is_fitted(self)
        X = ranked(X)
        tokens, real = check_tokens(self, X, mask, reset=False)
        N, n, d = tokens.shape
        result = np.empty((N, n + 2, d), tokens.dtype)
        for rows in blocks(tokens):
            block = np.asarray(tokens[rows], dtype=np.float64)
            weight = np.ones((len(block), n, 1))
            if real is not None:
                weight = real[rows][:, :, None].astype(float)
                block = np.where(weight > 0, block, 0.0)
            count = np.maximum(weight.sum(axis=1), 1.0)
            mean = block.sum(axis=1) / count
            variance = (weight * (block - mean[:, None]) ** 2).sum(axis=1) / count
            result[rows, :n], result[rows, n] = block, mean
            result[rows, n + 1] = 0.5 * np.log(variance + self.epsilon)
        return result.reshape(N, -1) if len(X.shape) == 2 else result

    def token_names_out(self, token_names: list[str]) -> list[str]:
        """Names of the tokens of the result.

        Parameters
        ----------
        token_names : list of str

        Returns
        -------
        list of str
        """
        return [*token_names, *POOLED]

    def get_feature_names_out(self, input_features: Any = None) -> NDArray:
        """Names of the columns of a flat result.

        Parameters
        ----------
        input_features : array-like of str, optional
            Names of the columns of X; those seen at fit, or x0, x1, ..., if omitted.

        Returns
        -------
        ndarray of str
        """
        check_is_fitted(self)
        default = [f"x{j}" for j in range(self.n_features_in_)]
        names = getattr(self, "feature_names_in_", default)
        names = names if input_features is None else input_features
        if len(names) != self.n_features_in_:
            raise ValueError(
                "input_features should have length equal to number of features "
                f"({self.n_features_in_}), got {len(names)}."
            )
        added = [f"{pool}_{j}" for pool in POOLED for j in range(self.n_channels_)]
        return np.array([*names, *added], dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
