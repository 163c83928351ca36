"""Entries of X that are not zero, where these are few: letters of a sequence, one out of many.

Products with them take a fraction of those with all of X, and Gram matrices the square of that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

try:
    from ._rows import entries, gram

    COMPILED = True
except ImportError:  # then X is dense
    COMPILED = False

Array = NDArray[np.float64]

FEW = 0.1  # of all entries: up to so many are worth listing
LEAST_ROWS, SOME_ROWS = 256, 16  # of X, and those by which it is judged
SCATTERED = 60  # multiply-adds of large products that take as long as one of entries
MOST = 1 << 27  # entries that a list has room for, 1.6 GB


@dataclass(frozen=True)
class Nonzeros:
    """X ``(N, p)`` by its entries."""

    X: Any  # csr_array
    transposed: Any
    density: float

    @classmethod
    def of(cls, blocks: Iterable[tuple[slice, Array]], rows: int, columns: int) -> Nonzeros | None:
        """Of blocks of rows of X; None where there are too many entries."""
        room = min(int(FEW * rows * columns) + 1, MOST)
        start, column = np.zeros(rows + 1, dtype=np.int32), np.empty(room, dtype=np.int32)
        value, count = np.empty(room), 0
        for part, A in blocks:
            end, shape = start[1:][part], (len(A), columns, room - count)
            found = entries(
                shape, np.require(A, requirements=["C", "A"]), end, column[count:], value[count:]
            )
            if found < 0:
                return None
            end += count
            count += found
        X = csr_array((value[:count], column[:count], start), (rows, columns))
        return cls(X, X.T, count / (rows * columns))

    def predict(self, Z: Array) -> Array:
        """``X Z``, ``(N, c)``."""
        return np.asarray(self.X @ Z)

    def correlate(self, V: Array) -> Array:
        """``X' V``, ``(p, c)``."""
        return np.asarray(self.transposed @ V)

    def gram(self, columns: NDArray[np.intp], weight: Array) -> tuple[Array, Array]:
        """``X' diag(w) X`` and ``X' w`` of some columns."""
        order = np.argsort(columns, kind="stable")
        if not np.array_equal(columns[order], columns):
            back = np.argsort(order)
            Q, q = self.gram(columns[order], weight)
            return Q[np.ix_(back, back)], q[back]
        p, place = len(columns), np.full(self.X.shape[1], -1, dtype=np.int32)
        place[columns] = np.arange(p)
        (rows, width), at = self.X.shape, (self.X.indptr, self.X.indices, self.X.data)
        Q, q = np.zeros((p, p)), np.zeros(p)
        gram((rows, self.X.nnz, width, p), *at, np.ascontiguousarray(weight), place, Q, q)
        return Q, q


def look_sparse(A: Array) -> bool:
    """Whether some rows of X are mostly zero."""
    return bool(np.count_nonzero(A) <= FEW * A.size)
