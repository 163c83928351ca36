"""What transformers of tokens share: a mask that goes to `fit` and to `transform`."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray
from sklearn.base import TransformerMixin


class MaskedTransformerMixin(TransformerMixin):
    """`fit_transform` for transformers whose two methods both take a mask."""

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
