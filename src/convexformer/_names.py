"""Names of the tokens and channels of a model, and the order in which tokens enter a path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEPARATORS = ".:_|/-"


def split_names(
    features: Sequence[str], n_tokens: int
) -> tuple[list[str] | None, list[str] | None]:
    """Token and channel names of features ordered token by token, where these tell them.

    With one feature per token they are the tokens. Else each must be a token's name, a separator
    and a channel's name, the channels being the same for every token; if not, there are no names.
    """
    if not features or len(features) % n_tokens:
        return None, None
    d = len(features) // n_tokens
    if d == 1:
        return list(features), None
    for separator in SEPARATORS:
        parts = [name.rpartition(separator) for name in features]
        tokens = list(dict.fromkeys(token for token, _, _ in parts))
        channels = [channel for _, _, channel in parts[:d]]
        if all(tokens) and parts == [(k, separator, j) for k in tokens for j in channels]:
            return tokens, channels
    return None, None


def model_names(model: Any, n_tokens: int) -> tuple[list[str] | None, list[str] | None]:
    """Names of the tokens and channels of a model, where it has any."""
    features = [str(name) for name in getattr(model, "feature_names_in_", ())]
    tokens, channels = split_names(features, n_tokens)
    return (
        [str(name) for name in getattr(model, "token_names_", ())] or tokens,
        [str(name) for name in getattr(model, "channel_names_", ())] or channels,
    )


def largest_first(norms: NDArray[np.float64]) -> list[int]:
    """Indices of the norms that are not zero."""
    return np.argsort(-norms, kind="stable")[: np.count_nonzero(norms)].tolist()


def entry_order(norms: NDArray[np.float64]) -> list[int]:
    """Tokens in the order in which they enter along the rows of `norms`, the larger first in ties.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer._names import entry_order
    >>> entry_order(np.array([[0.0, 0.0, 0.0], [0.0, 0.5, 0.7], [0.2, 0.9, 0.9]]))
    [2, 1, 0]
    """
    first = (norms > 0).argmax(axis=0)  # row of entry
    size = np.take_along_axis(norms, first[None], axis=0)[0]
    return [int(k) for k in np.lexsort((-size, first)) if size[k] > 0]
