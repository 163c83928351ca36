"""Transformers of tokens: one scale for all of them, and summaries of them as further tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ._base import all_or_nothing
from ._parameters import check_parameters, estimator, parameters
from ._reading import Array, Mask, Tokens, blocks, check_tokens, ranked

POOLED = ("mean", "log-std")


@parameters
class TokenTransformer(TransformerMixin, BaseEstimator):
    """Transformer whose `fit` and `transform` take a mask, and that goes block by block.

    Parameters
    ----------
    n_tokens : int, optional
        Number of tokens a 2-D X is cut into, columns ordered token by token. If omitted, every
        column is its own token, of one channel.

    Attributes
    ----------
    n_tokens_, n_channels_, n_features_in_ : int
        Shape of X at fit; ``n_features_in_ = n_tokens_ * n_channels_``.
    feature_names_in_ : ndarray of str
        Column names, where X was a table.
    """

    n_tokens: int | None = None

    def fit_transform(self, X: Any, y: Any = None, mask: Any = None) -> NDArray:
        """Fit to X, and transform it.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_channels) or (n_samples, n_features)
        y : ignored
        mask : array-like of shape (n_samples, n_tokens), optional
            True where a token is real; the result is 0 elsewhere.

        Returns
        -------
        ndarray, what `transform` returns
        """
        return self.fit(X, mask=mask).transform(X, mask=mask)

    def _by_blocks(
        self, X: Any, mask: Any, change: Callable[[Array, Mask], Array], added: int = 0
    ) -> NDArray:
        """X with `change` made to every block and zeros at padding, in its dtype and rank.

        `change` reads a block ``(samples, n, d)`` in float64, with zeros at padding, and which of
        its tokens are real, ``(samples, n, 1)``; its result has `added` tokens more.
        """
        check_is_fitted(self)
        X = ranked(X)
        tokens, mask = check_tokens(self, X, mask, reset=False)
        N, n, d = tokens.shape
        result = np.empty((N, n + added, d), tokens.dtype)
        for rows in blocks(tokens):
            block = np.asarray(tokens[rows], dtype=np.float64)
            real = np.ones(block.shape[:2], dtype=bool) if mask is None else mask[rows]
            real = real[:, :, None]
            result[rows] = change(block if mask is None else np.where(real, block, 0.0), real)
            if mask is not None:
                result[rows, :n][~mask[rows]] = 0.0
        return result.reshape(N, -1) if len(X.shape) == 2 else result

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


@estimator
class TokenScaler(OneToOneFeatureMixin, TokenTransformer):
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

    Attributes
    ----------
    mean_, scale_ : ndarray of shape (n_channels,) or (n_tokens, n_channels)
        The latter for ``per="token-channel"`` and for tables. In float64. The scale is 1
        where a channel is constant or has no real token.

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

    per: str = field(default="channel", kw_only=False)
    with_mean: bool = True
    with_std: bool = True

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
        check_parameters(self)
        X = ranked(X)
        table = len(X.shape) == 2 and self.n_tokens is None
        self._apart = table or self.per == "token-channel"  # tokens share nothing
        X, mask = check_tokens(self, X, mask, reset=True)
        real = np.full(X.shape[1], len(X)) if mask is None else mask.sum(axis=0)
        count = self._pool(np.ones(X.shape[1:]) * real[:, None])
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
        return self._by_blocks(X, mask, lambda block, _: (block - self.mean_) / self.scale_)

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
        return self._by_blocks(X, mask, lambda block, _: block * self.scale_ + self.mean_)


@estimator
class PooledTokens(TokenTransformer):
    r"""Append two tokens: the mean over tokens, and the logarithm of their standard deviation.

    .. math:: X' = [X_1, \dots, X_n,\ \bar X,\ \tfrac12 \log(\mathrm{var}_k X_k + \epsilon)]

    A layer that is linear in its tokens cannot know how much they vary; with these it can. Padding
    is left out of both.

    Parameters
    ----------
    epsilon : float, default=1e-6
        Added to the variance, so that its logarithm is finite; positive.

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

    epsilon: float = field(default=1e-6, kw_only=False)

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
        check_parameters(self)
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
        return self._by_blocks(X, mask, self._with_summaries, added=len(POOLED))

    def _with_summaries(self, block: Array, real: Mask) -> Array:
        count = np.maximum(real.sum(axis=1), 1)
        mean = block.sum(axis=1) / count
        variance = (real * (block - mean[:, None]) ** 2).sum(axis=1) / count
        log_std = 0.5 * np.log(variance + self.epsilon)
        return np.concatenate([block, mean[:, None], log_std[:, None]], axis=1)

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
        names = OneToOneFeatureMixin.get_feature_names_out(self, input_features)
        added = [f"{pool}_{j}" for pool in POOLED for j in range(self.n_channels_)]
        return np.array([*names, *added], dtype=object)
