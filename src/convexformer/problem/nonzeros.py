"""Entries of X that are not zero, where these are few: letters of a sequence, one out of many.

Products with them take a fraction of those with all of X, and Gram matrices the square of that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import _core

Array = NDArray[np.float64]

FEW = 0.1  # of all entries: up to so many are worth listing
MOST_LISTED = 1 << 27  # entries that a list has room for, 1.6 GB


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
        room, count = min(int(FEW * rows * columns) + 1, MOST_LISTED), 0
        start: NDArray[np.int32] = np.zeros(rows + 1, dtype=np.int32)
        column: NDArray[np.int32] = np.empty(room + 3, dtype=np.int32)  # 3 are written beyond
        value = np.empty(room + 3)
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
        """``A' diag(w) A`` and ``A' w`` of some columns less `center`, as :meth:`Design.gram`.

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
    return bool(np.count_nonzero(A) <= FEW * A.size)
