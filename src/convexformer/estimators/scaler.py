"""TokenScaler: zero mean and unit variance, per channel or per token and channel."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin
from sklearn.utils.validation import check_is_fitted

from ._draft import all_or_nothing
from ._masked import MaskedTransformerMixin
from ._validation import (
    Array,
    Mask,
    Tokens,
    blocks,
    check_bool,
    check_choice,
    check_count,
    check_tokens,
    ranked,
)


class TokenScaler(OneToOneFeatureMixin, MaskedTransformerMixin, BaseEstimator):
    r"""Shift and scale the channels of tokens.

    .. math:: X'_{ikj} = (X_{ikj} - \mu_j) / \sigma_j
              \quad\text{or}\quad (X_{ikj} - \mu_{kj}) / \sigma_{kj}

    with mean and standard deviation over the samples (and tokens), padding left out. The penalty
    compares coefficients of different tokens, so tokens should be on comparable scales.

    Parameters
    ----------
    per : {"channel", "token-channel"}, default="channel"
        One mean and scale per channel, the same for all tokens, which keeps differences between
        tokens; or one per token and channel. A 2-D X without `n_tokens` is a table whose columns
        have nothing to share: each is scaled by itself, whatever `per` says.
    with_mean, with_std : bool, default=True
        Whether to shift, and whether to scale.
    n_tokens : int, optional
        Number of tokens a 2-D X is cut into, columns ordered token by token. If omitted, every
        column is its own token, of one channel.

    Attributes
    ----------
    mean_, scale_ : ndarray of shape (n_channels,) or (n_tokens, n_channels)
        The latter for ``per="token-channel"`` and for tables. In float64. The scale is 1
        where a channel is constant or has no real token.
    n_tokens_, n_channels_, n_features_in_ : int
        Shape of X at fit; ``n_features_in_ = n_tokens_ * n_channels_``.
    feature_names_in_ : ndarray of str
        Column names, where X was a table.

    Notes
    -----
    X is read block by block in float64; a transformed array has the dtype and rank of its input,
    and zeros at padding.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer import TokenScaler
    >>> X = 5 + 3 * np.random.default_rng(0).normal(size=(100, 4, 2))
    >>> Xs = TokenScaler().fit_transform(X)
    >>> bool(np.allclose(Xs.mean(axis=(0, 1)), 0)), bool(np.allclose(Xs.std(axis=(0, 1)), 1))
    (True, True)
    """

    def __init__(
        self,
        per: str = "channel",
        *,
        with_mean: bool = True,
        with_std: bool = True,
        n_tokens: int | None = None,
    ) -> None:
        self.per = per
        self.with_mean = with_mean
        self.with_std = with_std
        self.n_tokens = n_tokens

    @all_or_nothing
    def fit(self, X: Any, y: Any = None, mask: Any = None) -> Self:
        """Learn means and scales.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_channels) or (n_samples, n_features)
        y : ignored
        mask : array-like of shape (n_samples, n_tokens), optional
            True where a token is real.

        Returns
        -------
        self
        """
        check_choice("per", self.per, ("channel", "token-channel"))
        check_bool("with_mean", self.with_mean)
        check_bool("with_std", self.with_std)
        check_count("n_tokens", self.n_tokens, optional=True)
        X = ranked(X)
        table = len(X.shape) == 2 and self.n_tokens is None
        self._apart = table or self.per == "token-channel"  # tokens share nothing
        X, mask = check_tokens(self, X, mask, reset=True)
        count = self._pool(np.ones(X.shape[1:]) * len(X) if mask is None else _per_token(mask, X))
        mean = self._sum(X, mask, np.zeros(X.shape[1:]), 1) / np.maximum(count, 1)
        variance = self._sum(X, mask, mean, 2) / np.maximum(count, 1)
        self.mean_ = mean if self.with_mean else np.zeros_like(mean)
        # The rounding of a constant channel's mean is no variance.
        constant = variance <= (count * np.finfo(np.float64).eps * mean) ** 2
        self.scale_ = (
            np.where(constant, 1.0, np.sqrt(variance)) if self.with_std else np.ones_like(mean)
        )
        return self

    def _pool(self, values: Array) -> Array:
        """Sums ``(n, d)`` as they are, or over tokens."""
        return values if self._apart else values.sum(axis=0)

    def _sum(self, X: Tokens, mask: Mask | None, center: Array, power: int) -> Array:
        """``sum_i (X_i - center)^power`` over real tokens, in float64."""
        total = np.zeros(X.shape[1:])
        for rows in blocks(X):
            block = X[rows] if mask is None else np.where(mask[rows, :, None], X[rows], center)
            total += ((block - center) ** power).sum(axis=0)  # center is float64, and so is this
        return self._pool(total)

    def transform(self, X: Any, mask: Any = None) -> NDArray:
        """Shift and scale.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_channels) or (n_samples, n_features)
        mask : array-like of shape (n_samples, n_tokens), optional
            True where a token is real; the result is 0 elsewhere.

        Returns
        -------
        ndarray of the shape of X
        """
        return self._map(X, mask, inverse=False)

    def inverse_transform(self, X: Any, mask: Any = None) -> NDArray:
        """Undo `transform`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_channels) or (n_samples, n_features)
        mask : array-like of shape (n_samples, n_tokens), optional
            True where a token is real; the result is 0 elsewhere.

        Returns
        -------
        ndarray of the shape of X
        """
        return self._map(X, mask, inverse=True)

    def _map(self, X: Any, mask: Any, *, inverse: bool) -> NDArray:
        check_is_fitted(self)
        X = ranked(X)
        tokens, real = check_tokens(self, X, mask, reset=False)
        result = np.empty(tokens.shape, tokens.dtype)
        for rows in blocks(tokens):
            block = tokens[rows]
            if real is not None:
                block = np.where(real[rows, :, None], block, 0.0)
            if inverse:
                block = block * self.scale_ + self.mean_
            else:
                block = (block - self.mean_) / self.scale_
            result[rows] = block if real is None else np.where(real[rows, :, None], block, 0.0)
        return result.reshape(len(result), -1) if len(X.shape) == 2 else result

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _per_token(mask: Mask, X: Tokens) -> Array:
    """Number of samples with a real token, ``(n, d)``."""
    return np.repeat(mask.sum(axis=0, dtype=np.float64)[:, None], X.shape[2], axis=1)
