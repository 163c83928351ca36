"""Tokens in a dense array, and how to get by with less than all of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .designs import (
    TOGETHER,
    WIDE_TOKEN,
    Array,
    Design,
    Groups,
    Listed,
    product,
    row_slices,
    transposed_product,
)
from .lazy import lazy
from .nonzeros import FEW, LEAST_ROWS, SCATTERED, SOME_ROWS, Nonzeros, look_sparse

CANCELLED = 1e-6  # of a sum of squares: where less is left once it is centred, digits are gone
NEAR_BYTES = 1 << 19  # of X, that take less time to multiply with than to choose from
FAR_BYTES, NARROW = 1 << 22, 768  # of X, beyond a core's own cache; columns of a row within it
FARTHER_BYTES, WIDE = 1 << 24, 8192  # of X, beyond shared cache; columns of some rows within
FEW_COLUMNS = 256  # that take as long to gather as to multiply
PANEL: dict[type, int] = {np.float32: 16, np.float64: 8}  # columns that are multiplied together
FITTING = (1e-12, 1e12)  # mean squares that float32 has room for


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
        self.X, self.mask = X, mask
        self.n_samples, self.n_groups, self.dim = X.shape
        flags = X.flags
        # Whether X can be multiplied as it stands.
        self._is_plain = (
            mask is None and X.dtype == np.float64 and flags.c_contiguous and flags.aligned
        )

    @property
    def nbytes(self) -> int:
        return self.X.nbytes

    @property
    def float32(self) -> NDArray[np.float32] | None:
        X = self.X
        if self.mask is not None or X.dtype != np.float32 or not X.flags.c_contiguous:
            return None
        return np.asarray(X).reshape(len(X), -1)

    @property
    def float64(self) -> Array | None:
        return np.asarray(self.X).reshape(len(self.X), -1) if self._is_plain else None

    @lazy
    def norm(self) -> float:
        if self._listed is None:
            return super().norm
        return 1.001 * float(np.sqrt(np.vdot(self._listed.value, self._listed.value)))

    def rescaled(self, unit: float) -> TokenDesign:
        return TokenDesign(np.asarray(self.X, dtype=np.float64) * unit, self.mask)

    def gather(self, rows: slice, groups: Groups) -> Array:
        A = self.X[rows]
        if len(groups) and (groups[1:] - groups[:-1] == 1).all():
            A = np.array(A[:, groups[0] : groups[-1] + 1], dtype=np.float64, order="C")
        else:  # `take` is the faster, but copies all of an array that is not contiguous
            A = np.take(A, groups, axis=1) if A.flags.c_contiguous else A[:, groups]
        mask = None if self.mask is None else self.mask[rows][:, groups]
        return np.ascontiguousarray(_masked(A, mask)).reshape(len(A), -1)

    def some(self) -> Array:
        return np.asarray(self.X[:8], np.float64) if self._is_plain else super().some()

    # Where X is mostly zero, only its entries count.

    @lazy
    def _nonzeros(self) -> Nonzeros | None:
        width, step = self.n_groups * self.dim, self.n_samples // SOME_ROWS
        if self.n_samples < LEAST_ROWS or width < 1 / FEW:
            return None
        some = slice(0, SOME_ROWS * step, step)
        if not look_sparse(self.gather(some, np.arange(self.n_groups))):
            return None
        return Nonzeros.of(self.blocks(), self.n_samples, width)

    @property
    def is_sparse(self) -> bool:
        return self._nonzeros is not None

    def listed(self, groups: Groups) -> Listed:
        if self._nonzeros is None and not self._is_plain:
            return super().listed(groups)
        columns, width = self._columns_of(groups), self.n_groups * self.dim
        place: NDArray[np.int32] = np.full(width, -1, dtype=np.int32)
        place[columns] = np.arange(len(columns))
        if self._nonzeros is None:
            none: NDArray[np.int32] = np.empty(0, dtype=np.int32)
            return Listed((-1, width), (none, none, self.X, place))
        X = self._nonzeros
        return Listed((X.size, width), (X.start, X.column, X.value, place))

    def gram_work(self, columns: int) -> float:
        dense = super().gram_work(columns)
        return dense if self._nonzeros is None else SCATTERED * self._nonzeros.density**2 * dense

    def halves_gram(self, columns: int) -> bool:
        return self._is_plain and columns <= FEW_COLUMNS and self._nonzeros is None

    def gram(
        self, groups: Groups, weights: Array, center: Array | None, dtype: type = np.float64
    ) -> tuple[Array, Array]:
        if self._nonzeros is None:
            return super().gram(groups, weights, center, dtype)
        columns = self._columns_of(groups)
        parts = zip(*(self._nonzeros.gram(columns, w) for w in weights.T), strict=True)
        Q, q = (np.array(part) for part in parts)
        total = weights.sum(axis=0)
        if center is not None:
            mean, raw = center.ravel()[columns], np.einsum("rpp->rp", Q).copy()
            for j, part in enumerate(Q):
                part -= np.outer(mean, q[j]) + np.outer(q[j] - total[j] * mean, mean)
            if np.any(np.abs(np.einsum("rpp->rp", Q)) < CANCELLED * np.abs(raw)):
                return super().gram(groups, weights, center, dtype)
            q -= np.outer(total, mean)
        return Q, q.T

    def cross_gram(
        self, old: Groups, new: Groups, weight: Array, center: Array | None, dtype: type
    ) -> tuple[Array, Array]:
        if self._nonzeros is None:
            found = self._multiplied(np.concatenate([new, old]), len(new), weight, center, dtype)
            if found is None:
                return super().cross_gram(old, new, weight, center, dtype)
            own = len(found[0])
            return found[0][:, :own], found[0][:, own:].T
        both = np.sort(np.concatenate([old, new]))
        Q = self.gram(both, weight[:, None], center)[0][0]
        first, second = (self._columns_of(np.searchsorted(both, part)) for part in (old, new))
        return Q[np.ix_(second, second)], Q[np.ix_(first, second)]

    def normal_equations(
        self, groups: Groups, weight: Array, center: Array | None, target: Array, dtype: type
    ) -> tuple[Array, Array]:
        if self._nonzeros is None:
            found = self._multiplied(groups, len(groups), weight, center, dtype, target)
            if found is not None:
                return found
        return super().normal_equations(groups, weight, center, target, dtype)

    def _multiplied(
        self,
        groups: Groups,
        n_own: int,
        weight: Array,
        center: Array | None,
        dtype: type,
        target: Array | None = None,
    ) -> tuple[Array, Array] | None:
        """``B' diag(w) A`` and ``B' diag(w) target``, A of `groups`, B of the first of these.

        Of a few columns, that are not gathered first; None of many, or where squares do not fit.
        """
        p, d, N = len(groups) * self.dim, self.dim, self.n_samples
        if p == 0 or not self.halves_gram(p):
            return None
        mean = np.zeros(p) if center is None else np.ascontiguousarray(center[groups])
        target = np.zeros(N) if target is None else np.ascontiguousarray(target)
        own, padded = n_own * d, -(-p // PANEL[dtype]) * PANEL[dtype]
        shape = (N, self.n_groups * d, len(groups), d, own, padded)
        given = self.X, groups.astype(np.int32), mean, np.sqrt(weight), target
        Q, q = np.zeros((padded, padded)), np.zeros(padded)
        _core.gram_of_columns(shape, dtype is np.float64, *given, Q, q)
        if dtype is np.float32:
            size = Q.diagonal()[:own].reshape(-1, d).mean(axis=1) / N
            if not (size.min() > FITTING[0] and size.max() < FITTING[1]):
                return None
        return Q[:own, :p], q[:own]

    def _columns_of(self, groups: Groups) -> Groups:
        return (self.dim * groups[:, None] + np.arange(self.dim)).ravel()

    # Of rows that are read from afar, and stay near, both products are had in one pass.

    def follows(self, n_outputs: int) -> bool:
        return n_outputs <= TOGETHER and self._stays_near

    @lazy
    def _stays_near(self) -> bool:
        width, size = self.n_groups * self.dim, self.X.nbytes
        far = size >= FAR_BYTES if width <= NARROW else size >= FARTHER_BYTES and width <= WIDE
        return far and self._is_plain and self._nonzeros is None

    def follow(
        self, Z: Array, target: Array, weight: Array, other: Array | None = None
    ) -> tuple[Array, Array, Array]:
        given = Z, target, weight, np.empty(0) if other is None else other
        Z, target, weight, beside = (np.ascontiguousarray(part) for part in given)
        F, V = np.empty_like(target), np.empty_like(target)
        c, others = target.shape[1], int(other is not None)
        M = np.zeros((c + others, self.n_groups, self.dim))
        shape = (self.n_samples, self.n_groups * self.dim, c, others)
        _core.predict_and_correlate(shape, self.X, Z, target, weight, beside, F, V, M)
        return F, V, np.moveaxis(M, 0, 2)

    @property
    def _listed(self) -> Nonzeros | None:
        """Entries, if they have been listed: that takes longer than one product."""
        return self.__dict__.get("_nonzeros")

    def _predict_all(self, Z: Array) -> Array:
        if self._listed is not None:
            return self._listed.predict(Z.reshape(-1, Z.shape[2]))
        if not self._is_plain:
            return self._predict(Z, np.arange(self.n_groups))
        return product(self.X.reshape(self.n_samples, -1), Z.reshape(-1, Z.shape[2]))

    def _correlate_all(self, V: Array) -> Array:
        if self._nonzeros is not None:
            return self._nonzeros.correlate(V).reshape(*self.X.shape[1:], -1)
        if not self._is_plain:
            return self._correlate(V, np.arange(self.n_groups))
        M = transposed_product(self.X.reshape(self.n_samples, -1), V)
        return M.reshape(*self.X.shape[1:], -1)

    # Wide tokens are multiplied where they lie, which saves copying them.

    def _predict(self, Z: Array, groups: Groups) -> Array:
        if not self._is_plain or self.dim < WIDE_TOKEN:
            return super()._predict(Z, groups)
        F = np.zeros((self.n_samples, Z.shape[2]))
        for k, z in zip(groups.tolist(), Z, strict=True):
            F += product(self.X[:, k], z)
        return F

    def _correlate(self, V: Array, groups: Groups) -> Array:
        if not self._is_plain or self.dim < WIDE_TOKEN:
            return super()._correlate(V, groups)
        M = np.empty((len(groups), self.dim, V.shape[1]))
        for j, k in enumerate(groups.tolist()):
            M[j] = transposed_product(self.X[:, k], V)
        return M

    def contributions(self, groups: Groups, G: Array, center: Array | None) -> Array:
        if not self._is_plain:
            return super().contributions(groups, G, center)
        if 2 * len(groups) > self.n_groups:  # either way no copy of X
            scattered = np.zeros((self.n_groups, self.dim))
            scattered[groups] = G
            U = np.einsum("ikd,kd->ik", self.X, scattered)[:, groups]
        else:
            U = np.empty((self.n_samples, len(groups)))
            for column, (k, g) in enumerate(zip(groups.tolist(), G, strict=True)):
                U[:, column] = self.X[:, k] @ g
        return U if center is None else U - np.sum(center[groups] * G, axis=1)

    def whole(self, groups: Groups, dtype: type) -> NDArray:
        if self.mask is not None:
            return super().whole(groups, dtype)
        consecutive = groups[-1] - groups[0] == len(groups) - 1  # in ascending order
        A = self.X[:, groups[0] : groups[-1] + 1] if consecutive else self.X[:, groups]
        if A.dtype == dtype and self.X.flags.c_contiguous and consecutive:  # a view of X
            return np.asarray(self.X).reshape(self.n_samples, -1)[
                :, groups[0] * self.dim : (groups[-1] + 1) * self.dim
            ]
        return np.ascontiguousarray(A, dtype=dtype).reshape(self.n_samples, -1)

    def prefers_all(self, groups: Groups) -> bool:
        if self._listed is not None:
            return True
        if not self._is_plain:
            return len(groups) == self.n_groups
        return 3 * len(groups) >= self.n_groups or self.X.nbytes <= NEAR_BYTES

    def blocks(self) -> Iterator[tuple[slice, Array]]:
        width = self.n_groups * self.dim
        if self._is_plain:
            yield slice(0, self.n_samples), np.asarray(self.X).reshape(self.n_samples, width)
            return
        for rows in row_slices(self.n_samples, width):
            mask = None if self.mask is None else self.mask[rows]
            yield rows, _masked(self.X[rows], mask).reshape(-1, width)


def _masked(A: NDArray, mask: NDArray[np.bool_] | None) -> Array:
    if mask is not None:
        A = np.where(mask[:, :, None], A, 0.0)
    return np.asarray(A, dtype=np.float64)
