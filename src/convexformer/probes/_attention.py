"""What the model's own attention looks like on average, by place."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ..activations import Activations, ArrayActivations
from ._static import Places

Array = NDArray[np.float64]


def is_causal(maps: Iterable[NDArray]) -> bool:
    """Whether no target attends to what comes after it."""
    return all(not np.any(np.triu(A, 1)) for A in maps)


def mean_attention(
    activations: Activations | ArrayActivations,
    texts: Iterable[int],
    places: Places,
    separators: dict[int, NDArray],
) -> Array:
    """Mean attention of every head to every place, ``(heads, places)``.

    Tokens that are landmarks count as these and not at their offsets; of an offset, the mean is
    over targets that have such a token. What is left of a target's attention counts for the mean.
    """
    offsets = places.offsets
    window, names = list(offsets.window), list(places.names)
    total = np.zeros((activations.n_heads, len(names)))
    count = np.zeros(len(names))
    for i in texts:
        A = activations[i].maps
        assert A is not None
        n = A.shape[1]
        landmark = np.zeros(n, dtype=bool)
        for k, name in enumerate(names[len(window) :], start=len(window)):
            flagged = _flags(name, n, separators[i])
            landmark |= flagged
            total[:, k] += A[:, :, flagged].sum(axis=(1, 2), dtype=np.float64)
            count[k] += n
        for k, offset in enumerate(window):
            plain = ~landmark[max(0, offset) : max(0, n + min(0, offset))]  # sources of this offset
            along = np.diagonal(A, offset, axis1=1, axis2=2)[:, plain]
            total[:, k] += along.sum(axis=1, dtype=np.float64)
            count[k] += np.count_nonzero(plain)
    mean = total / np.maximum(1, count)
    rest = [k for k, name in enumerate(names) if name.startswith("mean")]
    mean[:, rest] = np.maximum(0.0, 1.0 - mean.sum(axis=1, keepdims=True))
    return mean


def _flags(name: str, n: int, separators: NDArray) -> NDArray[np.bool_]:
    """Tokens of a text that are this landmark; those of a mean are none in particular."""
    at = np.arange(n)
    if name == "first":
        return np.asarray(at == 0)
    if name == "last":
        return np.asarray(at == n - 1)
    return separators if name == "separators" else np.zeros(n, dtype=bool)
