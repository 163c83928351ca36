"""Tokens in a dense array, and how to get by with less than all of it.

Where few entries of X are not zero (letters of a sequence, one out of many) these are listed:
products with them take a fraction of those with all of X, and Gram matrices the square of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .designs import (
    CACHED_BYTES,
    TOGETHER,
    WIDE_TOKEN,
    Array,
    Design,
    Groups,
    Listed,
    product,
)
from .lazy import lazy

FAR_BYTES = 1 << 22  # of X, beyond a core's own cache, or four times as many beyond a shared one
FEW_COLUMNS = 256  # that take as long to gather as to multiply
FEW_NONZEROS = 0.1  # of all entries: up to so many are worth listing


class TokenDesign(Design):
    r"""Scores :math:`F_i = \sum_k X_{ik} Z_k` of a dense array of tokens.

    Parameters
    ----------
    X : ndarray of shape (N, n, d)
        float32 or float64, any strides, memory maps included. It is not copied, and must not change
        while it is in use: what was read of it is kept.
    mask : ndarray of bool of shape (N, n), optional
        True where a token is real. What stands at padding (NaN included) is never read as a number.
    """

    def __init__(self, X: NDArray[np.floating], mask: NDArray[np.bool_] | None = None) -> None:
        if X.ndim != 3 or X.dtype not in (np.float32, np.float64):
            raise ValueError(
                f"X must be a float32 or float64 array (N, n, d), got {X.dtype} {X.shape}."
            )
        if mask is not None and (mask.shape != X.shape[:2] or mask.dtype != np.bool_):
            raise ValueError(
                f"mask must be boolean of shape {X.shape[:2]}, got {mask.dtype} {mask.shape}."
            )
        self.X, self.mask, self.nbytes = X, mask, X.nbytes
        self.n_samples, self.n_groups, self.dim = X.shape
        if mask is None and X.flags.c_contiguous and X.flags.aligned:
            stored = np.asarray(X).reshape(len(X), self.n_groups * self.dim)
            if X.dtype == np.float64:
                self.float64 = stored
            else:
                self.float32 = stored

    def rescaled(self, unit: float) -> TokenDesign:
        return TokenDesign(np.asarray(self.X, dtype=np.float64) * unit, self.mask)

    # Columns ------------------------------------------------------------------------------------

    def gather(self, rows: slice, groups: Groups) -> Array:
        A, part = self.X[rows], _span(groups)
        if isinstance(part, slice):
            A = np.array(A[:, part], dtype=np.float64, order="C")
        else:  # `take` is the faster, but copies all of an array that is not contiguous
            A = np.take(A, groups, axis=1) if A.flags.c_contiguous else A[:, groups]
        if self.mask is not None:
            A = np.where(self.mask[rows][:, part, None], A, 0.0)
        return np.ascontiguousarray(A, dtype=np.float64).reshape(len(A), -1)

    def read(self, rows: slice, groups: Groups, dtype: type = np.float64) -> NDArray:
        part, d = _span(groups), self.dim
        stored: NDArray | None = self.float64 if dtype is np.float64 else self.float32
        if stored is None or not isinstance(part, slice):
            return super().read(rows, groups, dtype)
        return stored[rows, part.start * d : part.stop * d]

    def some(self) -> Array:
        return super().some() if self.float64 is None else self.float64[:8]

    def listed(self, groups: Groups) -> Listed:
        if self._nonzeros is None:
            return super().listed(groups)
        columns, width = self._columns_of(groups), self.n_groups * self.dim
        place: NDArray[np.int32] = np.full(width, -1, dtype=np.int32)
        place[columns] = np.arange(len(columns))
        return Listed((self._nonzeros.size, width), (*self._nonzeros.entries, place))

    def _columns_of(self, groups: Groups) -> Groups:
        return (self.dim * groups[:, None] + np.arange(self.dim)).ravel()

    # Where X is mostly zero, only its entries count.

    @lazy
    def _nonzeros(self) -> Nonzeros | None:
        width, step = self.n_groups * self.dim, self.n_samples // 16
        if self.n_samples < 256 or width < 10:
            return None
        if not look_sparse(self.gather(slice(0, 16 * step, step), np.arange(self.n_groups))):
            return None
        found = Nonzeros.of(self.columns(), self.n_samples, width)
        if found is not None and 1e-280 < np.vdot(found.value, found.value) < 1e280:
            self.norm = 1.001 * float(np.linalg.norm(found.value))
        return found

    @property
    def is_sparse(self) -> bool:
        return self._nonzeros is not None

    @property
    def _listed(self) -> Nonzeros | None:
        """Entries, if they have been listed: that takes longer than one product."""
        return self.__dict__.get("_nonzeros")

    # Products with coefficients, and with samples -----------------------------------------------

    def prefers_all(self, groups: Groups) -> bool:
        if self._listed is not None:
            return True
        if self.float64 is None:
            return len(groups) == self.n_groups
        # A small X takes less time to multiply with than to choose from.
        return 3 * len(groups) >= self.n_groups or 2 * self.nbytes <= CACHED_BYTES

    def _predict_all(self, Z: Array) -> Array:
        if self._listed is not None:
            return self._listed.product(Z.reshape(-1, Z.shape[2]))
        if self.float64 is None:
            return super()._predict_all(Z)
        return product(self.float64, Z.reshape(-1, Z.shape[2]))

    def _correlate_all(self, V: Array) -> Array:
        if self._nonzeros is not None:
            M = self._nonzeros.product(V, transposed=True)
        elif self.float64 is None:
            return super()._correlate_all(V)
        else:
            M = product(self.float64.T, V)
        return M.reshape(self.n_groups, self.dim, -1)

    def _tiles(self, groups: Groups, columns: int) -> Iterator[tuple[slice, slice, Array]]:
        if self.float64 is None or self.dim < WIDE_TOKEN:
            yield from super()._tiles(groups, columns)
            return
        for j, k in enumerate(groups.tolist()):  # wide tokens where they lie, without a copy
            yield slice(None), slice(j, j + 1), np.asarray(self.X[:, k], np.float64)

    # Of rows that are read from afar, and stay near, both products are had in one pass.

    def follows(self, n_outputs: int) -> bool:
        if n_outputs > TOGETHER or self.float64 is None or self.is_sparse:
            return False
        width = self.n_groups * self.dim  # of rows, some of which must stay in cache
        return self.nbytes >= (FAR_BYTES if width <= 768 else 4 * FAR_BYTES) and width <= 8192

    def follow(self, Z: Array, target: Array, weight: Array) -> tuple[Array, Array, Array]:
        Z, target, weight = (np.ascontiguousarray(part) for part in (Z, target, weight))
        F, V, c = np.empty_like(target), np.empty_like(target), target.shape[1]
        M = np.zeros((c, self.n_groups, self.dim))
        shape = (self.n_samples, self.n_groups * self.dim, c, 0)
        _core.predict_and_correlate(shape, self.X, Z, target, weight, np.empty(0), F, V, M)
        return F, V, np.moveaxis(M, 0, 2)

    # Products of columns with each other --------------------------------------------------------

    def gram_work(self, columns: int) -> float:
        work = super().gram_work(columns)
        return work if self._nonzeros is None else self._nonzeros.gram_share * work

    def halves_gram(self, columns: int) -> bool:
        return self.float64 is not None and columns <= FEW_COLUMNS and not self.is_sparse

    def gram(
        self,
        groups: Groups,
        weights: Array,
        center: Array | None,
        dtype: type = np.float64,
        n_own: int | None = None,
    ) -> tuple[Array, Array]:
        p = len(groups) * self.dim
        own = p if n_own is None else n_own * self.dim
        found = None
        if self._nonzeros is not None:
            found = self._nonzeros.gram(self._columns_of(groups), weights, center)
        elif p and self.halves_gram(p) and weights.shape[1] == 1 and weights.min() >= 0:
            found = self._gram_in_place(groups, own, weights, center, dtype)
        if found is None:
            return super().gram(groups, weights, center, dtype, n_own)
        return found[0][:, :own], found[1][:own]

    def _gram_in_place(
        self, groups: Groups, own: int, weights: Array, center: Array | None, dtype: type
    ) -> tuple[Array, Array] | None:
        """`gram` of a few columns, that are not gathered first; None where squares do not fit."""
        p, d, N = len(groups) * self.dim, self.dim, self.n_samples
        mean = np.zeros(p) if center is None else np.ascontiguousarray(center[groups])
        step = 16 if dtype is np.float32 else 8  # columns that are multiplied together
        padded = -(-p // step) * step
        shape = (N, self.n_groups * d, len(groups), d, own, padded)
        Q, q = np.zeros((padded, padded)), np.zeros(padded)
        given = self.X, groups.astype(np.int32), mean, np.sqrt(weights[:, 0]), np.ones(N)
        _core.gram_of_columns(shape, dtype is np.float64, *given, Q, q)
        if dtype is np.float32:
            size = Q.diagonal()[:own].reshape(-1, d).mean(axis=1) / N
            if not (size.min() > 1e-12 and size.max() < 1e12):
                return None
        return Q[None, :own, :p], q[:own, None]


def _span(groups: Groups) -> slice | Groups:
    """`groups` as a slice, if they are consecutive."""
    if len(groups) and (groups[1:] - groups[:-1] == 1).all():
        return slice(int(groups[0]), int(groups[-1]) + 1)
    return groups


@dataclass(frozen=True)
class Nonzeros:
    """X ``(N, p)`` by its entries: where those of each row start, their columns and values."""

    shape: tuple[int, int]
    start: NDArray[np.int32]
    column: NDArray[np.int32]
    value: Array

    @classmethod
    def of(cls, blocks: Iterable[tuple[slice, Array]], rows: int, columns: int) -> Nonzeros | None:
        """Of blocks of rows of X; None where there are too many entries."""
        room, count = min(int(FEW_NONZEROS * rows * columns) + 1, 1 << 27), 0  # at most 1.6 GB
        start: NDArray[np.int32] = np.zeros(rows + 1, dtype=np.int32)
        column: NDArray[np.int32] = np.empty(room, dtype=np.int32)
        value = np.empty(room)
        for part, A in blocks:
            end, shape = start[1:][part], (len(A), columns, room - count)
            found = _core.csr_entries(
                shape, np.require(A, requirements=["C", "A"]), end, column[count:], value[count:]
            )
            if found < 0:
                return None
            end += count
            count += found
        return cls((rows, columns), start, column[:count], value[:count])

    @property
    def size(self) -> int:
        """Number of entries."""
        return len(self.value)

    @property
    def entries(self) -> tuple[NDArray[np.int32], NDArray[np.int32], Array]:
        """As compiled code reads them."""
        return self.start, self.column, self.value

    @property
    def gram_share(self) -> float:
        """What a Gram matrix takes, over that of a dense X.

        An entry takes as long as 60 multiply-adds of large products.
        """
        return 60.0 * (self.size / (self.shape[0] * self.shape[1])) ** 2

    def product(self, by: Array, transposed: bool = False) -> Array:
        """``X by``, or ``X' by`` if `transposed`."""
        (rows, columns), c = self.shape, by.shape[1]
        out = np.zeros((c, columns if transposed else rows))
        multiply = _core.csr_correlate if transposed else _core.csr_predict
        by = np.ascontiguousarray(by.T)
        multiply((rows, self.size, columns, c), *self.entries, by, out)
        return out.T

    def gram(
        self, columns: NDArray[np.intp], weights: Array, center: Array | None
    ) -> tuple[Array, Array] | None:
        """``A' diag(w) A`` and ``A' w`` of some columns less `center`, as `Design.gram`.

        None where what is left of a square, once it is centred, has lost digits.
        """
        order = np.argsort(columns, kind="stable")
        (rows, width), p = self.shape, len(columns)
        place: NDArray[np.int32] = np.full(width, -1, dtype=np.int32)
        place[columns[order]] = np.arange(p)
        Q, q = np.zeros((weights.shape[1], p, p)), np.zeros((weights.shape[1], p))
        for weight, *sums in zip(np.ascontiguousarray(weights.T), Q, q, strict=True):
            _core.csr_gram((rows, self.size, width, p), *self.entries, weight, place, *sums)
        if (np.diff(order) < 0).any():  # back to the order that was asked for
            back = np.argsort(order)
            Q, q = Q[:, back[:, None], back], q[:, back]
        if center is not None:
            mean, total = center.ravel()[columns], weights.sum(axis=0)[:, None]
            left = q - total * mean
            squares = 1e-6 * np.abs(np.einsum("rpp->rp", Q))
            Q -= mean[:, None] * q[:, None] + left[:, :, None] * mean
            if (np.abs(np.einsum("rpp->rp", Q)) < squares).any():
                return None
            q = left
        return Q, q.T


def look_sparse(A: Array) -> bool:
    """Whether some rows of X are mostly zero."""
    return bool(np.count_nonzero(A) <= FEW_NONZEROS * A.size)
