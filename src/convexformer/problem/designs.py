"""Designs: the only code that knows how X is stored.

A design is a linear map from coefficients ``Z (groups, d, c)`` to scores ``(N, c)`` and everything
a solver needs of it. All methods stream over blocks of samples (or of groups) in float64, so that
float32, masked, strided and memory-mapped arrays are never copied whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_blas_funcs

from .. import _core
from .lazy import lazy
from .norms import plain
from .stopping import check_stop

Array = NDArray[np.float64]
Groups = NDArray[np.intp]

FEW_BYTES = 1 << 22  # where blocks are only read on the way to another array
CACHED_BYTES = 1 << 20  # of a block that a product reads where it has just been written
FEWEST_ROWS, TILE_ROWS = 16, 128  # samples of a block in cache; of one that has a few groups
BLOCK_BYTES = 1 << 25  # of one float64 block: large enough for BLAS, small beside X
BLOCK_WORK = 1 << 32  # multiply-adds of a product with a block: time is looked at between blocks
FEW_COLUMNS = 3  # that BLAS multiplies with faster one by one
TOGETHER, CORRELATED = 4, 16  # that compiled code multiplies with, one way and the other
WIDE_TOKEN = 8  # channels from which a token is worth a product of its own
FLATNESS_ROWS, FLATNESS_BLOCKS = 128, 8  # samples by which the spectrum of X is judged; parts,
FLATNESS_COLUMNS = 2048  # and columns
WIDE = 4096  # columns from which a product with their transpose is slow


class Listed(NamedTuple):
    """Columns of X as compiled code reads them: those of some groups have a place."""

    sizes: tuple[int, int]  # entries, or -1 where X is dense, and columns
    X: tuple[NDArray, NDArray, NDArray, NDArray]  # start, column, entries, place; dense: the latter


class Design(ABC):
    """A linear map whose columns come in groups of `dim`; subclasses say how they are stored."""

    n_samples: int
    n_groups: int
    dim: int

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Of what is stored."""

    @abstractmethod
    def rescaled(self, unit: float) -> Design:
        """The same design of ``unit X``, a copy."""

    @property
    def float32(self) -> NDArray[np.float32] | None:
        """All columns ``(N, n_groups * d)`` where they lie in memory in float32."""
        return None

    @property
    def float64(self) -> Array | None:
        """The same in float64."""
        return None

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

    @abstractmethod
    def gather(self, rows: slice, groups: Groups) -> Array:
        """Columns of `groups`, as a fresh float64 array ``(rows, groups * d)``."""

    @abstractmethod
    def _predict_all(self, Z: Array) -> Array:
        """Scores ``(N, c)`` of coefficients of all groups."""

    @abstractmethod
    def _correlate_all(self, V: Array) -> Array:
        """``M_k = A_k' V`` for all groups: ``(n_groups, d, c)``."""

    def some(self) -> Array:
        """Columns of a few samples, to be read only, by which the size of numbers is judged."""
        return self.gather(slice(0, 8), np.arange(self.n_groups))

    @lazy
    def norm(self) -> float:
        """A little more than the root of the sum of squares of all entries; infinite if unknown."""
        squares = sum(float(np.vdot(A, A)) for _, A in self.blocks())
        if 1e-280 < squares < 1e280:
            return 1.001 * float(np.sqrt(squares))
        # Squares left the range of float64, or all entries are zero.
        largest = max((float(np.abs(A).max(initial=0.0)) for _, A in self.blocks()), default=0.0)
        found = largest * float(np.sqrt(self.n_samples * self.n_groups * self.dim))
        return 1.001 * found if np.isfinite(found) else np.inf

    @lazy
    def flatness(self) -> float:
        """Effective rank of some samples over their number: near 1 where no direction dominates.

        A small number says that few directions hold most of X, as in states of an encoder.
        """
        size = max(1, FLATNESS_ROWS // FLATNESS_BLOCKS)
        starts = np.linspace(0, max(self.n_samples - size, 0), FLATNESS_BLOCKS, dtype=int)
        few = min(self.n_groups, max(1, FLATNESS_COLUMNS // self.dim))
        groups = np.linspace(0, self.n_groups - 1, few, dtype=np.intp)
        blocks = [self.gather(slice(i, i + size), groups) for i in np.unique(starts).tolist()]
        rows: NDArray = np.concatenate(blocks).astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            rows -= rows.mean(axis=0)
            K = rows @ rows.T
            square = float(np.vdot(K, K))
            rank = float(np.trace(K)) ** 2 / square if square > 0 else len(K)
        return float(rank / len(K)) if np.isfinite(rank) else 1.0

    def blocks(self) -> Iterator[tuple[slice, Array]]:
        """All columns by samples, ``(rows, (rows, n_groups * d))``, to be read only."""
        for rows in row_slices(self.n_samples, self.n_groups * self.dim):
            yield rows, self.gather(rows, np.arange(self.n_groups))

    def columns(self, groups: Groups) -> Iterator[tuple[slice, Array]]:
        """Columns of `groups` by a few samples, ``(rows, (rows, groups * d))``, to be read only."""
        if len(groups) == self.n_groups:
            yield from self.blocks()
            return
        for rows in row_slices(self.n_samples, len(groups) * self.dim, FEW_BYTES):
            yield rows, self.gather(rows, groups)

    def listed(self, groups: Groups) -> Listed:
        """Columns of `groups`, and perhaps of others."""
        A, none = self.gather(slice(0, self.n_samples), groups), np.empty(0, dtype=np.int32)
        return Listed((-1, A.shape[1]), (none, none, A, np.arange(A.shape[1], dtype=np.int32)))

    def prefers_all(self, groups: Groups) -> bool:
        """Whether a product with everything is cheaper than gathering the groups first."""
        return len(groups) == self.n_groups

    def predict(self, Z: Array, groups: Groups | None = None) -> Array:
        """Scores ``(N, c)`` of coefficients ``Z (groups, d, c)``."""
        if groups is None:
            return self._predict_all(Z)
        if self.prefers_all(groups):
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

    def follows(self, n_outputs: int) -> bool:
        """Whether `follow` can be had, and is quicker than one product after the other."""
        return False

    def follow(
        self, Z: Array, target: Array, weight: Array, other: Array | None = None
    ) -> tuple[Array, Array, Array]:
        """Scores F of `Z`, ``V = weight (target - F)`` and its correlations, for a few outputs.

        For one those of an `other` column too, if it is given: ``(n_groups, d, 2)``.
        """
        F = self.predict(Z)
        V = weight[:, None] * (target - F)
        return F, V, self.correlate(V if other is None else np.concatenate([V, other], axis=1))

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

    def is_noise(self, M: Array, V: Array, groups: Groups | None = None) -> bool:
        """Whether ``M = correlate(V, groups)`` is zero but for rounding; a pass where it may be."""
        size, total = float(np.abs(M).max(initial=0.0)), float(np.abs(V).sum())
        if size == 0.0:
            return True
        if size > 1e-9 * total * np.abs(self.some()).max(initial=0.0):
            return False
        groups = np.arange(self.n_groups) if groups is None else groups
        size_of = np.abs(V).reshape(len(V), -1)
        terms = np.zeros((len(groups) * self.dim, size_of.shape[1]))  # of every sum
        for rows in row_slices(self.n_samples, len(terms), FEW_BYTES):
            A = self.gather(rows, groups)
            terms += np.abs(A, out=A).T @ size_of[rows]
        rounding = (4 + np.sqrt(self.n_samples)) * np.finfo(float).eps
        return bool(np.all(np.abs(M).reshape(terms.shape) <= rounding * terms))

    def means(self, weight: Array) -> Array:
        """Weighted mean of every column, ``(n_groups, d)``."""
        return self._correlate_all(weight[:, None] / weight.sum())[:, :, 0]

    def gram(
        self, groups: Groups, weights: Array, center: Array | None, dtype: type = np.float64
    ) -> tuple[Array, Array]:
        """``A' diag(w) A`` and ``A' w`` for every column ``w`` of `weights`, signs allowed.

        ``A (N, p)`` holds the columns of `groups` less `center`; blocks of it are multiplied in
        the precision of `dtype` and summed in float64. Shapes ``(r, p, p)`` and ``(p, r)``.
        """
        p, r = len(groups) * self.dim, weights.shape[1]
        Q, q, unit = np.zeros((r, p, p)), np.zeros((p, r)), 0.0
        for rows, A in self._row_blocks(groups, p):
            A = self._centered(A, groups, center)
            if dtype != np.float64:  # squares must fit
                unit = unit or float(np.max(np.abs(A), initial=0.0)) or 1.0
                A = (A / unit).astype(dtype)
            w: NDArray = weights[rows].astype(dtype, copy=False)
            q += A.T @ w
            if r == 1 and np.all(w >= 0):
                A *= np.sqrt(w)
                Q[0] += A.T @ A  # BLAS forms only half of a symmetric product
                continue
            for j in range(r):
                check_stop()
                Q[j] += A.T @ (w[:, j, None] * A)
        return (unit**2 * Q, unit * q) if unit else (Q, q)

    def cross_gram(
        self, old: Groups, new: Groups, weight: Array, center: Array | None, dtype: type
    ) -> tuple[Array, Array]:
        """``A_new' diag(w) A_new`` and ``A_old' diag(w) A_new``, multiplied in `dtype`."""
        p, q = len(old) * self.dim, len(new) * self.dim
        inner, across = np.zeros((q, q)), np.zeros((p, q))
        both, weighted = np.concatenate([old, new]), bool(np.any(weight != 1.0))
        for rows, A in self._row_blocks(both, p + q):
            A = self._centered(A, both, center)
            B, size = A, 1.0
            if dtype != np.float64:  # squares must fit
                size = max(float(A.max()), -float(A.min())) or 1.0
            if weighted or dtype != np.float64:
                root = np.sqrt(weight[rows])[:, None] / size if weighted else 1.0 / size
                B = np.multiply(A, root, out=np.empty(A.shape, dtype), casting="same_kind")
            Q = B[:, p:].T @ B[:, p:]  # BLAS forms half of it
            inner += Q if size == 1 else size**2 * Q.astype(float)
            if p:
                across += size**2 * (B[:, :p].T @ B[:, p:]).astype(float)
        return inner, across

    def normal_equations(
        self, groups: Groups, weight: Array, center: Array | None, target: Array, dtype: type
    ) -> tuple[Array, Array]:
        """``A' diag(w) A`` ``(p, p)``, multiplied in `dtype`, and ``A' diag(w) target``."""
        Q, _ = self.cross_gram(np.zeros(0, np.intp), groups, weight, center, dtype)
        V = (weight * target)[:, None]
        M = self.correlate(V, groups)[:, :, 0]
        return Q, (M if center is None else M - V.sum() * center[groups]).reshape(-1)

    def kernel(
        self,
        groups: Groups,
        eta: Array,
        center: Array | None,
        dtype: type = np.float64,
        half: bool = False,
    ) -> NDArray:
        """``sum_k eta_k A_k A_k'``, ``(N, N)``, formed in the precision of `dtype`.

        In Fortran's order; of a `half` only what is on and below the diagonal counts.
        """
        N, d = self.n_samples, self.dim
        K: NDArray = np.zeros((N, N), dtype=dtype, order="F")
        add = get_blas_funcs("syrk", dtype=K.dtype)  # one half only, and in place
        for part in row_slices(len(groups), N * d):
            chosen = groups[part]
            B: NDArray = np.empty((N, len(chosen) * d), dtype=dtype)
            for j, (k, size) in enumerate(zip(chosen, np.sqrt(eta[part]), strict=True)):
                A, scaled = self.whole(np.array([k]), dtype), B[:, j * d : (j + 1) * d]
                if center is not None:
                    A = np.subtract(A, center[k].astype(dtype), out=scaled)
                np.multiply(A, dtype(size), out=scaled)
            K = add(1.0, B.T, beta=1.0, c=K, trans=1, lower=1, overwrite_c=1)
        if not half:
            K += np.tril(K, -1).T
        return K

    def contributions(self, groups: Groups, G: Array, center: Array | None) -> Array:
        """What each group predicts alone, ``A_k G_k``: ``(N, groups)`` for ``G (groups, d)``."""
        U = np.empty((self.n_samples, len(groups)))
        for rows, A in self._row_blocks(groups, 1):
            A = A.reshape(-1, len(groups), self.dim)
            U[rows] = np.einsum("ikd,kd->ik", A, G, optimize=True)
        return U if center is None else U - np.sum(center[groups] * G, axis=1)

    def whole(self, groups: Groups, dtype: type) -> NDArray:
        """Columns of a few groups for all samples, ``(N, groups * d)``, to be read only."""
        A: NDArray = np.empty((self.n_samples, len(groups) * self.dim), dtype)
        for rows in row_slices(self.n_samples, A.shape[1]):
            A[rows] = self.gather(rows, groups)
        return A

    def _centered(self, A: Array, groups: Groups, center: Array | None) -> Array:
        """`A`, a fresh copy, less the means of its columns."""
        if center is not None:
            A -= center[groups].reshape(-1)
        return A

    def _row_blocks(self, groups: Groups, columns: int) -> Iterator[tuple[slice, Array]]:
        """Blocks of samples ``(rows, (rows, groups * d))``, for a product with `columns`.

        They stay in cache, unless that leaves fewer samples than what is multiplied has columns.
        """
        if len(groups) == 0:
            return
        width = len(groups) * self.dim
        size = min(max(CACHED_BYTES, 8 * width * columns), BLOCK_BYTES)
        size = min(size, 8 * width * max(FEWEST_ROWS, BLOCK_WORK // (width * columns)))
        for rows in row_slices(self.n_samples, width, size):
            yield rows, self.gather(rows, groups)

    def _tiles(self, groups: Groups, columns: int) -> Iterator[tuple[slice, slice, Array]]:
        """Blocks of samples and groups ``(rows, part, (rows, part * d))``, for a product.

        All groups at once; but few samples and groups where that leaves no more than a few samples
        in cache, and many samples of few groups where what belongs to all groups, `columns` wide,
        would be read or written again and again from beyond the cache.
        """
        width, d = len(groups) * self.dim, self.dim
        if 8 * width * columns > BLOCK_BYTES:
            per_row, size = d + columns, BLOCK_BYTES
        elif 8 * width * FEWEST_ROWS > CACHED_BYTES:
            per_row, size = max(d, BLOCK_BYTES // (8 * TILE_ROWS)), CACHED_BYTES
        else:
            for rows, A in self._row_blocks(groups, columns):
                yield rows, slice(0, len(groups)), A
            return
        for rows in row_slices(self.n_samples, per_row):
            for part in row_slices(len(groups), (rows.stop - rows.start) * d, size):
                yield rows, part, self.gather(rows, groups[part])


def product(A: NDArray, Z: NDArray) -> NDArray:
    """``A Z``, the fastest way: for a few columns of Z that is together, or else one by one."""
    if _few_together(A, Z, TOGETHER):
        F: Array = np.empty((len(A), Z.shape[1]))
        _core.few_columns_product((*A.shape, Z.shape[1]), False, A, plain(Z), F)
        return F
    if 1 < Z.shape[1] <= FEW_COLUMNS:
        return np.stack([A @ z for z in np.ascontiguousarray(Z.T)], axis=1)
    return np.asarray(A @ Z)


def transposed_product(A: NDArray, V: NDArray) -> NDArray:
    """``A' V``, the fastest way."""
    if _few_together(A, V, CORRELATED):
        M: Array = np.empty((A.shape[1], V.shape[1]))
        _core.few_columns_product((*A.shape, V.shape[1]), True, A, plain(V), M)
        return M
    if 1 < V.shape[1] <= FEW_COLUMNS:
        return np.stack([v @ A for v in np.ascontiguousarray(V.T)], axis=1)
    if V.shape[1] > 1 and A.shape[1] >= WIDE:
        return np.ascontiguousarray((V.T @ A).T)
    return np.asarray(A.T @ V)


def _few_together(A: NDArray, Z: NDArray, most: int) -> bool:
    """Whether compiled code multiplies with columns Z, up to `most` of them, in one pass over A."""
    lies_plain = A.size > 0 and A.flags.c_contiguous and A.dtype == Z.dtype == np.float64
    return _core.COMPILED and lies_plain and A.flags.aligned and 1 < Z.shape[1] <= most


def row_slices(n_rows: int, width: int, size: int | None = None) -> Iterator[slice]:
    """Slices of rows of `width` float64 numbers, each about a block, or `size` bytes."""
    step = max(1, (size or BLOCK_BYTES) // max(1, 8 * width))
    for start in range(0, n_rows, step):
        check_stop()
        yield slice(start, min(start + step, n_rows))
