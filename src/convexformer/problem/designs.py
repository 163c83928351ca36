"""Designs: the interface to X, whatever way it is stored.

A design is a linear map from coefficients ``Z (groups, d, c)`` to scores ``(N, c)`` and everything
a solver needs of it. Products read X in blocks of samples (or of groups) in float64, so that
float32, masked, strided and memory-mapped arrays are not copied whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_blas_funcs

from .. import _core
from .arrays import Array, Groups
from .lazy import lazy
from .norms import plain
from .stopping import check_stop

CACHED_BYTES = 1 << 20  # of a block that a product reads where it has just been written
BLOCK_BYTES = 1 << 25  # of one float64 block: large enough for BLAS, small beside X
TILE_ROWS = 128  # samples of a block that has some of the groups only
TOGETHER, CORRELATED = 4, 16  # columns that compiled code multiplies X, and X', with in one pass
WIDE_TOKEN = 8  # channels from which a token is worth a product of its own


class Listed(NamedTuple):
    """Columns of X as compiled code reads them: those of some groups have a place."""

    sizes: tuple[int, int]  # entries, or -1 where X is dense, and columns
    X: tuple[NDArray, NDArray, NDArray, NDArray]  # start, column, entries, place; dense: the latter


class Design(ABC):
    """A linear map whose columns come in groups of `dim`; subclasses say how they are stored."""

    n_samples: int
    n_groups: int
    dim: int
    nbytes: int
    """Of what is stored."""
    float32: NDArray[np.float32] | None = None
    """All columns ``(N, n_groups * d)``, where they lie in memory like this."""
    float64: Array | None = None

    @abstractmethod
    def rescaled(self, unit: float) -> Design:
        """The same design of ``unit X``, a copy."""

    @abstractmethod
    def gather(self, rows: slice, groups: Groups) -> Array:
        """Columns of `groups`, as a fresh float64 array ``(rows, groups * d)``."""

    # What solvers ask before they choose --------------------------------------------------------

    @property
    def sequences(self) -> NDArray[np.intp]:
        """The sequence that every sample is of, numbered from 0; each its own unless they share."""
        return np.arange(self.n_samples)

    @property
    def is_sparse(self) -> bool:
        """Whether products see only entries that are not zero."""
        return False

    def gram_work(self, columns: int) -> float:
        """What a Gram matrix of so many columns takes, in multiply-adds of large products."""
        return float(self.n_samples * columns**2)

    def halves_gram(self, columns: int) -> bool:
        """Whether a Gram matrix of so many columns takes but half of that, as it is symmetric."""
        return False

    @lazy
    def norm(self) -> float:
        """A little more than the root of the sum of squares of all entries; infinite if unknown."""
        squares = sum(float(np.vdot(A, A)) for _, A in self.columns())
        if 1e-280 < squares < 1e280:
            return 1.001 * float(np.sqrt(squares))
        # Squares left the range of float64, or all entries are zero.
        largest = max((float(np.abs(A).max(initial=0.0)) for _, A in self.columns()), default=0.0)
        found = largest * float(np.sqrt(self.n_samples * self.n_groups * self.dim))
        return 1.001 * found if np.isfinite(found) else np.inf

    @lazy
    def flatness(self) -> float:
        """Effective rank of some samples over their number: near 1 where no direction dominates.

        A small number says that few directions hold most of X, as in states of an encoder. It is
        judged by up to 128 samples, 16 at each of 8 places, and by about 2,048 columns.
        """
        starts = np.linspace(0, max(self.n_samples - 16, 0), 8, dtype=int)
        few = min(self.n_groups, max(1, 2048 // self.dim))
        groups = np.linspace(0, self.n_groups - 1, few, dtype=np.intp)
        blocks = [self.gather(slice(i, i + 16), groups) for i in np.unique(starts).tolist()]
        rows: NDArray = np.concatenate(blocks).astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            rows -= rows.mean(axis=0)
            rows /= np.abs(rows).max(initial=0.0) or 1.0  # squares of squares must fit
            K = rows @ rows.T
            square = float(np.vdot(K, K))
            rank = float(np.trace(K)) ** 2 / square if square > 0 else len(K)
        return float(rank / len(K)) if np.isfinite(rank) else 1.0

    # Columns ------------------------------------------------------------------------------------

    def read(self, rows: slice, groups: Groups, dtype: type = np.float64) -> NDArray:
        """Columns of `groups`, ``(rows, groups * d)``, to be read only: a view where possible."""
        return self.gather(rows, groups).astype(dtype, copy=False)

    def whole(self, groups: Groups, dtype: type) -> NDArray:
        """Columns of a few groups for all samples, to be read only."""
        return self.read(slice(0, self.n_samples), groups, dtype)

    def some(self) -> Array:
        """Columns of a few samples, to be read only, by which the size of numbers is judged."""
        return self.read(slice(0, 8), np.arange(self.n_groups))

    def columns(
        self, groups: Groups | None = None, extra: int = 0
    ) -> Iterator[tuple[slice, Array]]:
        """Columns of `groups`, or of all, by samples, ``(rows, (rows, groups * d))``.

        To be read only. Blocks are small enough for `extra` numbers more per sample.
        """
        few = groups is not None and len(groups) < self.n_groups
        groups = np.arange(self.n_groups) if groups is None else groups
        width, size = len(groups) * self.dim + extra, BLOCK_BYTES // 8 if few else BLOCK_BYTES
        for rows in row_slices(self.n_samples, width, size):
            yield rows, self.read(rows, groups)

    def sizes(self, V: Array) -> Array:
        """Sums of the sizes of what `correlate` adds, ``|A|' |V|``: ``(groups, d, c)``."""
        total = np.zeros((self.n_groups * self.dim, V.shape[1]))
        for rows, A in self.columns():
            total += np.abs(A).T @ np.abs(V[rows])
        return total.reshape(self.n_groups, self.dim, -1)

    def centred(self, rows: slice, groups: Groups, center: Array | None) -> Array:
        """Columns of `groups` less their `center`, if any, as a fresh array."""
        A = self.gather(rows, groups)
        if center is not None:
            A -= center[groups].reshape(-1)
        return A

    def listed(self, groups: Groups) -> Listed:
        """Columns of `groups`, and perhaps of others."""
        A, none = self.gather(slice(0, self.n_samples), groups), np.empty(0, dtype=np.int32)
        return Listed((-1, A.shape[1]), (none, none, A, np.arange(A.shape[1], dtype=np.int32)))

    # Products with coefficients, and with samples -----------------------------------------------

    def prefers_all(self, groups: Groups) -> bool:
        """Whether a product with everything is cheaper than gathering the groups first."""
        return len(groups) == self.n_groups

    def predict(self, Z: Array, groups: Groups | None = None) -> Array:
        """Scores ``(N, c)`` of ``Z (groups, d, c)``; groups of zeros may be skipped."""
        if groups is None:
            groups = np.asarray(Z.any(axis=(1, 2))).nonzero()[0]
            if self.prefers_all(groups):
                return self._predict_all(Z)
            Z = Z[groups]
        elif self.prefers_all(groups):
            scattered = np.zeros((self.n_groups, *Z.shape[1:]))
            scattered[groups] = Z
            return self._predict_all(scattered)
        return self._predict(Z, groups)

    def correlate(self, V: Array, groups: Groups | None = None) -> Array:
        """``M_k = A_k' V``: ``(groups, d, c)``."""
        if groups is None:
            return self._correlate_all(V)
        if self.prefers_all(groups):
            return self._correlate_all(V)[groups]
        return self._correlate(V, groups)

    def _predict_all(self, Z: Array) -> Array:
        return self._predict(Z, np.arange(self.n_groups))

    def _correlate_all(self, V: Array) -> Array:
        return self._correlate(V, np.arange(self.n_groups))

    def _predict(self, Z: Array, groups: Groups) -> Array:
        F = np.zeros((self.n_samples, Z.shape[2]))
        for rows, part, A in self._tiles(groups, Z.shape[2]):
            F[rows] += product(A, Z[part].reshape(-1, Z.shape[2]))
        return F

    def _correlate(self, V: Array, groups: Groups) -> Array:
        M = np.zeros((len(groups), self.dim, V.shape[1]))
        for rows, part, A in self._tiles(groups, V.shape[1]):
            M[part] += transposed_product(A, V[rows]).reshape(-1, self.dim, V.shape[1])
        return M

    def _tiles(self, groups: Groups, columns: int) -> Iterator[tuple[slice, slice, Array]]:
        """Blocks of samples and groups ``(rows, part, (rows, part * d))`` in cache, for a product.

        All groups at once where that leaves enough samples: results `columns` wide are read and
        written once per block.
        """
        size, d = min(CACHED_BYTES, BLOCK_BYTES), self.dim
        count = max(TILE_ROWS, columns, size // max(1, 8 * len(groups) * d))
        for rows in row_slices(self.n_samples, 1, 8 * count):
            for part in row_slices(len(groups), count * d, size):
                yield rows, part, self.gather(rows, groups[part])

    def follows(self, n_outputs: int) -> bool:
        """Whether `follow` can be had, and is quicker than one product after the other."""
        return False

    def follow(self, Z: Array, target: Array, weight: Array) -> tuple[Array, Array, Array]:
        """Scores F of `Z`, ``V = weight (target - F)`` and its correlations, for a few outputs."""
        F = self.predict(Z)
        V = weight[:, None] * (target - F)
        return F, V, self.correlate(V)

    def means(self, weight: Array) -> Array:
        """Weighted mean of every column, ``(n_groups, d)``."""
        return self._correlate_all(weight[:, None] / weight.sum())[:, :, 0]

    def contributions(self, groups: Groups, G: Array, center: Array | None) -> Array:
        """What each group predicts alone, ``A_k G_k``: ``(N, groups)`` for ``G (groups, d)``."""
        U = np.empty((self.n_samples, len(groups)))
        for rows, A in self.columns(groups):
            by_group = A.reshape(len(A), *G.shape).transpose(1, 0, 2)  # (groups, rows, d)
            U[rows] = (by_group @ G[:, :, None])[:, :, 0].T
        return U if center is None else U - np.sum(center[groups] * G, axis=1)

    # Products of columns with each other --------------------------------------------------------

    def gram(
        self,
        groups: Groups,
        weights: Array,
        center: Array | None,
        dtype: type = np.float64,
        n_own: int | None = None,
    ) -> tuple[Array, Array]:
        """``B' diag(w) A`` and ``B' w`` for every column ``w`` of `weights`, signs allowed.

        ``A (N, p)`` holds the columns of `groups` less `center`, and ``B (N, q)`` those of the
        first `n_own` groups, or all; blocks of them are multiplied in the precision of `dtype` and
        summed in float64. Shapes ``(r, q, p)`` and ``(q, r)``.
        """
        p, r = len(groups) * self.dim, weights.shape[1]
        own = p if n_own is None else n_own * self.dim
        Q, q = np.zeros((r, own, p)), np.zeros((own, r))
        # Blocks stay in cache, unless that leaves fewer samples than columns; between blocks, of up
        # to 2**32 multiply-adds, time is looked at.
        count = min(max(CACHED_BYTES // max(1, 8 * p), p), (1 << 32) // max(1, p * p))
        for rows in row_slices(self.n_samples, 1, 8 * max(16, count)):
            A, size = self.centred(rows, groups, center), 1.0
            if dtype != np.float64:  # squares must fit
                size = max(float(A.max()), -float(A.min())) or 1.0
                A = np.multiply(A, 1.0 / size, out=np.empty(A.shape, dtype), casting="same_kind")
            w: NDArray = weights[rows].astype(dtype, copy=False)
            q += size * (A[:, :own].T @ w).astype(float)
            symmetric = r == 1 and bool((w >= 0).all())
            if symmetric:
                A *= np.sqrt(w)
            for j in range(r):
                check_stop()
                B = A[:, :own] if symmetric else w[:, j, None] * A[:, :own]
                _add_square(Q[j, :, :own], B, A[:, :own], size)
                if own < p:
                    _add_square(Q[j, :, own:], B, A[:, own:], size)
        return Q, q

    def cross_gram(
        self, old: Groups, new: Groups, weight: Array, center: Array | None, dtype: type
    ) -> tuple[Array, Array]:
        """``A_new' diag(w) A_new`` and ``A_old' diag(w) A_new``, multiplied in `dtype`."""
        both, own = np.concatenate([new, old]), len(new) * self.dim
        (Q,), _ = self.gram(both, weight[:, None], center, dtype, len(new))
        return Q[:, :own], Q[:, own:].T

    def kernel(self, groups: Groups, eta: Array, center: Array | None) -> Array:
        """``sum_k eta_k A_k A_k'``, ``(N, N)``, in Fortran's order."""
        N = self.n_samples
        K = np.zeros((N, N), order="F")
        add = get_blas_funcs("syrk", dtype=K.dtype)  # one half only, and in place
        for part in row_slices(len(groups), N * self.dim):
            B = self.centred(slice(0, N), groups[part], center)
            B *= np.repeat(np.sqrt(eta[part]), self.dim)
            K = add(1.0, B.T, beta=1.0, c=K, trans=1, lower=1, overwrite_c=1)
        K += np.tril(K, -1).T
        return K


def _add_square(Q: Array, B: NDArray, A: NDArray, size: float) -> None:
    """``Q += size^2 B' A``; of ``A' A`` BLAS forms only half."""
    product = B.T @ A
    Q += product if size == 1.0 else size**2 * product.astype(float)


def product(A: NDArray, Z: NDArray) -> NDArray:
    """``A Z``: for a few columns in one compiled pass, or without it one by one; else by BLAS."""
    c, transposed = Z.shape[1], not A.flags.c_contiguous
    X, most = (A.T, CORRELATED) if transposed else (A, TOGETHER)
    lies_plain = X.size > 0 and X.flags.c_contiguous and X.flags.aligned
    if _core.COMPILED and 1 < c <= most and lies_plain and A.dtype == Z.dtype == np.float64:
        F: Array = np.empty((len(A), c))
        _core.few_columns_product((*X.shape, c), transposed, X, plain(Z), F)
        return F
    if 1 < c < TOGETHER:
        return np.stack([A @ z for z in np.ascontiguousarray(Z.T)], axis=1)
    return np.asarray(A @ Z)


def transposed_product(A: NDArray, V: NDArray) -> NDArray:
    """``A' V``, the fastest way."""
    return product(A.T, V)


def row_slices(n_rows: int, width: int, size: int | None = None) -> Iterator[slice]:
    """Slices of rows of `width` float64 numbers, each about a block, or `size` bytes."""
    step = max(1, (size or BLOCK_BYTES) // max(1, 8 * width))
    for start in range(0, n_rows, step):
        check_stop()
        yield slice(start, min(start + step, n_rows))
