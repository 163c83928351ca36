"""Activations in memory: of models that are not Hugging Face's, and of heads made by hand."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._store import TextActivations

Array = NDArray[np.floating]


class ArrayActivations:
    """Values and attention maps of a layer, as :func:`convexformer.probe` reads them.

    What heads write is ``maps @ values``; there is no output projection.

    Parameters
    ----------
    values : array-like of shape (N, n, n_heads, head_dim)
    maps : array-like of shape (N, n_heads, n, n)
        Attention: row t says how target t weighs the tokens.
    mask : array-like of bool of shape (N, n), optional
        True where a token is real; real tokens come first.
    name : str, default="arrays"
        What to call the model.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer.activations import ArrayActivations
    >>> values = np.ones((10, 4, 1, 3))
    >>> ArrayActivations(values, np.full((10, 1, 4, 4), 0.25))[0].heads.shape
    (4, 1, 3)
    """

    layer, n_layers = 0, 1
    keep = ("values", "heads", "maps")

    def __init__(
        self,
        values: ArrayLike,
        maps: ArrayLike,
        mask: ArrayLike | None = None,
        name: str = "arrays",
    ) -> None:
        self.model, self.folder = name, name
        self.values: Array = np.asarray(values, dtype=np.float32)
        self.maps: Array = np.asarray(maps, dtype=np.float32)
        if self.values.ndim != 4 or not self.values.size:
            raise ValueError(
                "values must have shape (texts, tokens, heads, channels), and not be empty; got "
                f"{self.values.shape}."
            )
        N, n, self.n_heads, self.head_dim = self.values.shape
        if self.maps.shape != (N, self.n_heads, n, n):
            raise ValueError(
                f"maps must have shape (texts, heads, tokens, tokens) = {(N, self.n_heads, n, n)}, "
                f"got {self.maps.shape}."
            )
        real = np.ones((N, n), dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        if real.shape != (N, n) or np.any(real[:, 1:] > real[:, :-1]) or not np.all(real[:, 0]):
            raise ValueError(f"mask must have shape {(N, n)}, with real tokens before padding.")
        self.lengths: NDArray[np.intp] = real.sum(axis=1)
        self._texts = [self._text(i) for i in range(N)]
        identity = np.eye(self.head_dim, dtype=np.float32)
        self.projection = np.stack([identity] * self.n_heads), np.zeros(self.head_dim)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, i: int) -> TextActivations:
        return self._texts[i]

    def tokens(self, i: int) -> list[str]:
        """Names of the tokens of text i: the same for texts with the same values and maps."""
        return self._texts[i].tokens

    def _text(self, i: int) -> TextActivations:
        """Text i without padding, which may hold anything."""
        n = self.lengths[i]
        V, A = self.values[i, :n], self.maps[i, :, :n, :n]
        for kind, part in (("values", V), ("maps", A)):
            if not np.all(np.isfinite(part)):
                raise ValueError(f"{kind} of text {i} have NaN or infinity at real tokens.")
        name = hashlib.sha256(V.tobytes() + A.tobytes()).hexdigest()[:16]
        return TextActivations(
            tokens=[f"{name}.{t}" for t in range(n)],
            offsets=np.zeros((n, 2), dtype=np.int32),
            segments=np.zeros(n, dtype=np.int8),  # no token is special
            values=V,
            heads=np.einsum("hts,she->the", A, V),
            maps=A,
        )
