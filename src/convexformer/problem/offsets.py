r"""Tokens tied by relative offset: one block of weights for every target position.

.. math:: F_{it} = \sum_{o} X_{i, t + o} Z_o + \sum_{l} L_{il} Z_l

A sample is a target position t of a sequence i; what lies outside the sequence, or is masked,
counts as zero. Landmarks L (first, last, mean, separators) are the same for all targets of a
sequence. The ``rows x (groups d)`` design is never built: offsets are one product of X, shifted.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .designs import Array, Design, Groups
from .tokens import TokenDesign

LANDMARKS = ("first", "last", "mean", "separators")

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Offsets:
    """Which tokens a target position sees: a window around itself, and landmarks.

    Parameters
    ----------
    low, high : int
        Ends of the window, both included, relative to the target: ``Offsets(-4, 4)`` sees four
        tokens before and after it, and itself.
    landmarks : sequence of {"first", "last", "mean", "separators"}, default=()
        Tokens seen from everywhere in a sequence: its first and last real token, the mean of its
        real tokens, and the mean of those that a boolean array `separators` flags (zero where it
        flags none).

    Examples
    --------
    >>> from convexformer import Offsets
    >>> Offsets(-1, 1, landmarks=["first", "mean"]).names
    ('-1', '0', '+1', 'first', 'mean')

    Every position is told by the token before it, and by the first:

    >>> import numpy as np
    >>> from convexformer import ConvexAttentionRegressor
    >>> X = np.random.default_rng(0).normal(size=(50, 10, 3))  # sequences, positions, channels
    >>> y = np.zeros((50, 10))
    >>> y[:, 1:] = X[:, :-1, 0]
    >>> y += X[:, :1, 2]
    >>> model = ConvexAttentionRegressor(tokens=Offsets(-3, 3, ["first", "mean"])).fit(X, y)
    >>> model.token_names_[model.tokens_].tolist()
    ['-1', 'first']
    """

    low: int
    high: int
    landmarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            value = getattr(self, name)
            if not isinstance(value, numbers.Integral) or isinstance(value, bool):
                raise ValueError(f"{name} must be a whole number of tokens; got {value!r}.")
            object.__setattr__(self, name, int(value))
        if self.low > self.high:
            raise ValueError(
                f"Offsets({self.low}, {self.high}) is empty: low must not be above high. Write "
                f"Offsets({self.high}, {self.low})."
            )
        given = self.landmarks
        names = (given,) if isinstance(given, str) or not np.iterable(given) else tuple(given)
        if not all(name in LANDMARKS for name in names) or len(set(names)) < len(names):
            raise ValueError(f"landmarks must be different ones of {LANDMARKS}; got {given!r}.")
        object.__setattr__(self, "landmarks", names)

    @property
    def window(self) -> range:
        """The offsets."""
        return range(self.low, self.high + 1)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tokens in the order of the coefficients."""
        return (*(f"{o:+d}" if o else "0" for o in self.window), *self.landmarks)

    def __len__(self) -> int:
        return len(self.window) + len(self.landmarks)

    def expand(
        self, X: NDArray[np.floating], mask: Mask | None = None, separators: Mask | None = None
    ) -> Array:
        """The tokens of every target position, written out.

        Parameters
        ----------
        X : ndarray of shape (N, n, d)
        mask, separators : ndarray of bool of shape (N, n), optional

        Returns
        -------
        ndarray of shape (positions, len(self), d)
            One row per real position, sequence by sequence. Estimators never build it; it is what
            the network of ``to_network()`` reads.
        """
        design = OffsetDesign(X, self, mask, separators)
        everything = np.arange(design.n_groups)
        A = design.gather(slice(0, design.n_samples), everything)
        return A.reshape(design.n_samples, design.n_groups, design.dim)


class OffsetDesign(Design):
    """Tokens around every real position of every sequence, and landmarks of the sequence.

    Parameters
    ----------
    X : ndarray of shape (N, n, d)
        float32 or float64, any strides, memory maps included.
    offsets : Offsets
    mask : ndarray of bool of shape (N, n), optional
        True where a token is real. Padding is no sample, and is never read as a number.
    separators : ndarray of bool of shape (N, n), optional
        The tokens whose mean is the landmark "separators".

    Attributes
    ----------
    positions : ndarray of int of shape (n_samples,)
        Row r is token ``positions[r] % n`` of sequence ``positions[r] // n``.
    """

    def __init__(
        self,
        X: NDArray[np.floating],
        offsets: Offsets,
        mask: Mask | None = None,
        separators: Mask | None = None,
    ) -> None:
        self.tokens = TokenDesign(X, mask)
        self.X, self.mask, self.nbytes = X, mask, X.nbytes
        self.offsets, self.separators = offsets, separators
        self.n_sequences, self.length, self.dim = X.shape
        self.positions = np.flatnonzero(np.ones(X.shape[:2], bool) if mask is None else mask)
        self.n_samples, self.n_groups = len(self.positions), len(offsets)
        self._window = np.array(offsets.window)
        self.landmarks = self._landmarks(separators)  # (N, landmarks, d)

    @property
    def sequences(self) -> NDArray[np.intp]:
        return self.positions // self.length

    def rescaled(self, unit: float) -> OffsetDesign:
        X = np.asarray(self.X, np.float64) * unit
        return OffsetDesign(X, self.offsets, self.mask, self.separators)

    def gather(self, rows: slice, groups: Groups) -> Array:
        at = self.positions[rows]
        A = np.empty((len(at), len(groups), self.dim))
        near, far = self._split(groups)
        sequence, place = (part[:, None] for part in np.divmod(at, self.length))
        if len(near):
            source = place + self._window[groups[near]]
            inside = (source >= 0) & (source < self.length)
            source = np.where(inside, source, 0)
            if self.mask is not None:
                inside &= self.mask[sequence, source]
            if self.X.flags.c_contiguous:  # `take` is the faster, but copies all of other arrays
                index = self.length * sequence + source
                tokens = np.take(self.X.reshape(-1, self.dim), index, axis=0)
            else:
                tokens = self.X[sequence, source]
            A[:, near] = np.where(inside[:, :, None], tokens, 0.0)
        if len(far):
            A[:, far] = self.landmarks[sequence, groups[far] - len(self._window)]
        return A.reshape(len(at), -1)

    # Products: offsets are one product of all positions, shifted --------------------------------

    def _predict(self, Z: Array, groups: Groups) -> Array:
        near, far = self._split(groups)
        c = Z.shape[2]
        W = Z[near].transpose(1, 0, 2).reshape(self.dim, -1)  # (d, near * c)
        F = np.zeros((self.n_sequences, self.length, c))
        for rows, A in self.tokens.columns(extra=self.length * W.shape[1]) if len(near) else ():
            S = (A.reshape(-1, self.dim) @ W).reshape(-1, self.length, len(near), c)
            for j, source, target in self._shifts(groups[near]):
                F[rows, target] += S[:, source, j]
        if len(far):
            F += np.tensordot(self._far(groups[far]), Z[far], axes=2)[:, None]
        scores = F.reshape(-1, c)
        return scores if self.mask is None else scores[self.positions]

    def _correlate(self, V: Array, groups: Groups) -> Array:
        near, far = self._split(groups)
        c = V.shape[1]
        spread = np.zeros((self.n_sequences * self.length, c))  # zero at padding
        spread[self.positions] = V
        V = spread.reshape(self.n_sequences, self.length, c)
        P = np.zeros((self.dim, len(near) * c))
        for rows, A in self.tokens.columns(extra=self.length * P.shape[1]) if len(near) else ():
            U = np.zeros((len(A), self.length, len(near), c))
            for j, source, target in self._shifts(groups[near]):
                U[:, source, j] = V[rows, target]
            P += A.reshape(-1, self.dim).T @ U.reshape(-1, P.shape[1])
        M = np.empty((len(groups), self.dim, c))
        M[near] = P.reshape(self.dim, len(near), c).transpose(1, 0, 2)
        if len(far):
            M[far] = np.tensordot(self._far(groups[far]), V.sum(axis=1), axes=(0, 0))
        return M

    def _split(self, groups: Groups) -> tuple[Groups, Groups]:
        """Where in `groups` offsets stand, and where landmarks."""
        near = groups < len(self._window)
        return np.flatnonzero(near), np.flatnonzero(~near)

    def _far(self, groups: Groups) -> Array:
        return self.landmarks[:, groups - len(self._window)]

    def _shifts(self, groups: Groups) -> Iterator[tuple[int, slice, slice]]:
        """Of every offset: the positions that are read, and those that read them."""
        n = self.length
        for j, offset in enumerate(self._window[groups].tolist()):
            first, stop = min(max(offset, 0), n), max(min(n + offset, n), 0)
            stop = max(first, stop)
            yield j, slice(first, stop), slice(first - offset, stop - offset)

    # Landmarks --------------------------------------------------------------------------------

    def _landmarks(self, separators: Mask | None) -> Array:
        names = self.offsets.landmarks
        shape = self.X.shape[:2]
        if "separators" in names and separators is None:
            raise ValueError(
                "landmarks has 'separators': pass separators (samples, tokens), True at the tokens "
                "to average, such as [SEP]."
            )
        if separators is not None and (separators.shape != shape or separators.dtype != np.bool_):
            raise ValueError(
                f"separators must be boolean of shape {shape}, got {separators.dtype} "
                f"{separators.shape}."
            )
        L = np.zeros((self.n_sequences, len(names), self.dim))
        for rows, A in self.tokens.columns() if names else ():
            real = np.ones((len(A), self.length), bool) if self.mask is None else self.mask[rows]
            seen = {
                "first": real & (real.cumsum(axis=1) == 1),
                "last": real & (real[:, ::-1].cumsum(axis=1)[:, ::-1] == 1),
                "mean": real,
                "separators": real if separators is None else real & separators[rows],
            }
            for j, name in enumerate(names):  # the mean of what is seen; zero where that is nothing
                among = seen[name] / np.maximum(1, seen[name].sum(axis=1, keepdims=True))
                L[rows, j] = np.einsum("in,ind->id", among, A.reshape(len(A), -1, self.dim))
        return L
