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
LEAST_ROWS, SOME_ROWS = 256, 16  # of X, and those by which it is judged
SCATTERED = 60  # multiply-adds of large products that take as long as one of entries
MOST = 1 << 27  # entries that a list has room for, 1.6 GB


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
        room, count = min(int(FEW * rows * columns) + 1, MOST), 0
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
    def density(self) -> float:
        return self.size / (self.shape[0] * self.shape[1])

    def predict(self, Z: Array) -> Array:
        """``X Z``, ``(N, c)``."""
        (rows, columns), c = self.shape, Z.shape[1]
        F, given = np.empty((c, rows)), (self.start, self.column, self.value)
        _core.csr_predict((rows, self.size, columns, c), *given, np.ascontiguousarray(Z.T), F)
        return F.T

    def correlate(self, V: Array) -> Array:
        """``X' V``, ``(p, c)``."""
        (rows, columns), c = self.shape, V.shape[1]
        M, given = np.zeros((c, columns)), (self.start, self.column, self.value)
        _core.csr_correlate((rows, self.size, columns, c), *given, np.ascontiguousarray(V.T), M)
        return M.T

    def gram(self, columns: NDArray[np.intp], weight: Array) -> tuple[Array, Array]:
        """``X' diag(w) X`` and ``X' w`` of some columns."""
        order = np.argsort(columns, kind="stable")
        if not np.array_equal(columns[order], columns):
            back = np.argsort(order)
            Q, q = self.gram(columns[order], weight)
            return Q[np.ix_(back, back)], q[back]
        (rows, width), p = self.shape, len(columns)
        place: NDArray[np.int32] = np.full(width, -1, dtype=np.int32)
        place[columns] = np.arange(p)
        Q, q, given = np.zeros((p, p)), np.zeros(p), (self.start, self.column, self.value)
        weight = np.ascontiguousarray(weight)
        _core.csr_gram((rows, self.size, width, p), *given, weight, place, Q, q)
        return Q, q


def look_sparse(A: Array) -> bool:
    """Whether some rows of X are mostly zero."""
    return bool(np.count_nonzero(A) <= FEW * A.size)
