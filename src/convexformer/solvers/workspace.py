"""What a solver remembers of a design between steps, stages, outputs and points of a path."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_blas_funcs

from ..problem import Design, Problem
from ..problem.arrays import Array, Groups
from ..problem.designs import product, row_slices, transposed_product
from .block_descent import Selection, Tokens, from_gram
from .choose import TUNING, read_seconds

CACHE_BYTES = 1 << 30  # of Gram matrices, and of tokens' own kernels
LITTLE_BYTES = 1 << 27  # of columns in float32, however small X is
MOST_BYTES = 1 << 28  # of columns in float32, where they can be done without
LARGE_GRAM = 2e7  # multiply-adds from which a Gram matrix may be formed in float32
LAG = 0.1  # relative change of eta that a kernel in float32 may miss
MOST_OVER_X = 4  # bytes of tokens' own kernels in float32, over those of X
LEAST_PATIENCE = 2  # products before a kernel in float32 is brought up to date


class Workspace:
    """Arrays made of a problem's design, and which strategies have been slow on it."""

    def __init__(self, problem: Problem) -> None:
        self.grams = Grams(problem.design, problem.center, problem.weight)
        self.kernels = Kernels(problem.design, problem.center)
        self.near_kernels: NearKernels | None = None
        self.columns = Columns(problem.design, problem.center)
        self.tokens = Tokens(problem)
        self.slow: set[str] = set()  # strategies that have been slow on this design

    def release(self, columns: bool) -> None:
        """Free what only first-order steps read: packed tokens and, if said so, columns."""
        self.tokens.forget()
        if columns:
            self.columns.forget()


@dataclass
class LowPrecision:
    """Columns ``unit * A + offset`` of some groups, A in float32; for products with changes.

    Means are taken off and put back in float64: they make up the largest of all singular values,
    and would drown the others in rounding.
    """

    A: NDArray[np.float32]  # (N, groups * d)
    unit: float
    offset: Array | None  # (groups * d,), the same for every sample
    groups: Groups
    dim: int

    def predict(self, Z: Array) -> Array:
        """``sum_k A_k Z_k`` of ``Z (groups, d, c)``."""
        Z = Z.reshape(-1, Z.shape[2])
        Z32, size = _float32(Z)
        F = (self.unit * size) * np.asarray(product(self.A, Z32), dtype=np.float64)
        return F if self.offset is None else F + self.offset @ Z

    def correlate(self, V: Array) -> Array:
        """``A_k' V``, ``(groups, d, c)``."""
        V32, size = _float32(V)
        M = (self.unit * size) * np.asarray(transposed_product(self.A, V32), dtype=np.float64)
        if self.offset is not None:
            M += self.offset[:, None] * V.sum(axis=0)
        return M.reshape(len(self.groups), self.dim, -1)

    def contributions(self, G: Array) -> Array:
        """``A_k G_k`` of every group alone, ``(N, groups)`` for ``G (groups, d)``."""
        G32, size = _float32(G)
        U = np.zeros((len(self.A), len(G)))
        for k in np.flatnonzero(np.any(G, axis=1)).tolist():
            U[:, k] = self.A[:, k * self.dim : (k + 1) * self.dim] @ G32[k]
        U *= self.unit * size
        return U if self.offset is None else U + np.sum(self.offset.reshape(G.shape) * G, axis=1)


def _float32(change: Array) -> tuple[NDArray[np.float32], float]:
    """Numbers over their size in float32, whatever their size; and it."""
    size = float(np.max(np.abs(change), initial=0.0)) or 1.0
    return (change / size).astype(np.float32), size


class Columns:
    """Columns of tokens less `center` in float32, kept for as long as they serve."""

    def __init__(self, design: Design, center: Array | None) -> None:
        self.design, self.center = design, center
        self._kept: LowPrecision | None = None

    def take(self, groups: Groups) -> bool:
        """Whether columns of `groups` take little memory beside X."""
        size = 4 * self.design.n_samples * len(groups) * self.design.dim
        return size <= max(LITTLE_BYTES, min(MOST_BYTES, self.design.nbytes / 2))

    def forget(self) -> None:
        self._kept = None

    def of(self, groups: Groups) -> LowPrecision:
        """Columns of `groups`, or of some more."""
        kept, design = self._kept, self.design
        if (
            kept is not None
            and 2 * len(groups) >= len(kept.groups)
            and np.all(np.isin(groups, kept.groups))
        ):
            return kept
        self._kept = kept = None  # before another takes its place
        X = design.float32
        large = 4 * design.n_samples * len(groups) * design.dim > MOST_BYTES
        if X is not None and large and 3 * len(groups) >= design.n_groups:  # no copy of it
            groups, offset = np.arange(design.n_groups), None
            if self.center is not None:
                offset = -self.center.reshape(-1)
            self._kept = LowPrecision(X, 1.0, offset, groups, design.dim)
            return self._kept
        small = 4 * design.n_samples * design.n_groups * design.dim <= TUNING.cache_bytes
        if small and 2 * len(groups) >= design.n_groups:
            groups = np.arange(design.n_groups)
        self._kept = low_precision(design, groups, self.center)
        return self._kept


def low_precision(design: Design, groups: Groups, center: Array | None) -> LowPrecision:
    """Columns of `groups` less `center`, if any."""
    A: NDArray[np.float32] = np.empty(
        (design.n_samples, len(groups) * design.dim), dtype=np.float32
    )
    unit, offset, mean = 0.0, None, None
    for rows, block in design.columns(groups):
        if not unit:
            some = block[:: 1 + len(block) // 64]
            # A power of two near the largest entry: squares of columns must fit float32.
            unit = 2.0 ** np.ceil(np.log2(max(float(some.max()), -float(some.min())) or 1.0))
            if center is not None:
                mean = center[groups].reshape(-1)
            elif np.sum(some.mean(axis=0) ** 2) > 0.1 * np.mean(some**2) * some.shape[1]:
                offset = mean = block.mean(axis=0)
        target = A[rows]
        for part in row_slices(len(block), block.shape[1], 1 << 18):
            piece = block[part] if mean is None else block[part] - mean
            np.multiply(piece, 1.0 / unit, out=target[part], casting="same_kind")
    return LowPrecision(A, unit, offset, groups, design.dim)


class Grams:
    """``A' diag(w) A`` for fixed weights, grown token by token as solvers ask for more."""

    def __init__(self, design: Design, center: Array | None, weight: Array) -> None:
        self.design, self.center, self.weight = design, center, weight
        self._forget()

    def _forget(self) -> None:
        self._position: dict[int, int] = {}
        self._Q = np.zeros((0, 0))
        self._precise = True
        self._tokens: tuple[Groups, Selection] | None = None

    def known(self, groups: Groups) -> int:
        """How many of `groups` there are products of."""
        return len(self._position.keys() & groups.tolist()) if self._position else 0

    def tokens(self, groups: Groups) -> Selection:
        """Tokens of `groups` by their Gram matrix, made once for points of a path that share it."""
        if self._tokens is None or not np.array_equal(self._tokens[0], groups):
            Q = self.matrix(groups, precise=False, copy=False)
            self._tokens = groups, from_gram(Q, self.design.dim)
        return self._tokens[1]

    def matrix(self, groups: Groups, precise: bool = True, copy: bool = True) -> Array:
        """The block of `groups`, ``(p, p)``; products of large ones in float32 if not `precise`.

        To be read only if not a `copy`.
        """
        new = [k for k in groups.tolist() if k not in self._position]
        p = (len(self._position) + len(new)) * self.design.dim
        if 8 * p * p > CACHE_BYTES or (precise and not self._precise):
            self._forget()
            new = groups.tolist()
        if new:
            self._grow(np.array(new), precise)
        if list(self._position) == groups.tolist():  # as they were asked for
            return self._Q.copy() if copy else self._Q
        first = self.design.dim * np.array([self._position[k] for k in groups.tolist()])
        index = (first[:, None] + np.arange(self.design.dim)).ravel()
        return self._Q[np.ix_(index, index)]

    def _grow(self, new: Groups, precise: bool) -> None:
        old = np.array(list(self._position), dtype=np.intp)
        p, q = len(old) * self.design.dim, len(new) * self.design.dim
        precise |= self.design.is_sparse or self.design.n_samples * (p + q) * q < LARGE_GRAM
        self._precise &= precise
        dtype = np.float64 if precise else np.float32
        inner, across = self.design.cross_gram(old, new, self.weight, self.center, dtype)
        if p:
            Q = np.empty((p + q, p + q))
            Q[:p, :p], Q[p:, p:], Q[:p, p:], Q[p:, :p] = self._Q, inner, across, across.T
            inner = Q
        self._Q, self._tokens = inner, None
        for k in new.tolist():
            self._position[k] = len(self._position)


class Kernels:
    """Kernels ``sum_k eta_k A_k A_k'`` of tokens less `center`, in float64, formed at every eta."""

    exact, unit = True, 1.0

    def __init__(self, design: Design, center: Array | None) -> None:
        self.design, self.center, self.centred = design, center, center is not None

    def weighted(self, groups: Groups, eta: Array) -> list[Array]:
        """A kernel ``(N, N)`` of `groups` for every row of weights in `eta`."""
        used = [np.flatnonzero(own > 0) for own in eta]
        pairs = zip(used, eta, strict=True)
        return [self.design.kernel(groups[k], own[k], self.center) for k, own in pairs]

    def correlate(self, groups: Groups, V: Array) -> Array:
        """``A_k' V``, ``(groups, d, outputs)``."""
        M = self.design.correlate(V, groups)
        if self.center is not None:
            M -= self.center[groups][:, :, None] * V.sum(axis=0)
        return M

    def contributions(self, groups: Groups, G: Array) -> Array:
        """``A_k G_k`` of every group alone, ``(N, groups, r)`` for ``G (groups, d, r)``."""
        parts = [self.design.contributions(groups, g, self.center) for g in np.moveaxis(G, 2, 0)]
        return np.stack(parts, axis=2)


class NearKernels:
    """Kernels of float32 columns that are only brought up to date when it pays.

    Their factor preconditions products with the columns, which are of changes, so that float32 has
    digits enough. Where samples are few beside channels each token's own kernel is kept.
    """

    exact = False

    def __init__(self, design: Design, n_cells: int) -> None:
        self.design, self._N = design, design.n_samples
        self._K = [self._zeros() for _ in range(n_cells)]
        self._eta = np.zeros((n_cells, design.n_groups))
        # Lower halves of kernels, of columns over their unit at the time.
        self._own: dict[int, tuple[float, NDArray[np.float32]]] = {}
        self.products = 0  # with the columns, since the last update

    def keeps_own(self) -> bool:
        """Whether every token keeps its own kernel."""
        room = min(CACHE_BYTES, MOST_OVER_X * self.design.nbytes)
        return 4 * self._N**2 * self.design.n_groups <= room

    def _zeros(self) -> NDArray[np.float32]:
        return np.zeros((self._N, self._N), np.float32, order="F")

    def on(self, X: LowPrecision, centred: bool) -> NearKernels:
        """These kernels, with products by the columns `X`."""
        self.X, self.centred, self.unit = X, centred, X.unit
        return self

    def weighted(self, groups: Groups, eta: Array) -> list[NDArray[np.float32]]:
        """Kernels of `groups` for rows of weights, but for small changes since the last call."""
        self.products = 0
        if self.keeps_own() or self.last is None:  # a token that left cannot be taken off
            self._eta[:] = 0.0
            for K in self._K:
                K[:] = 0.0
        change, moved = self._moved(groups, eta)
        with np.errstate(over="ignore", invalid="ignore"):  # factors of what overflows fail
            self._K = [self._updated(*part) for part in zip(self._K, change, moved, strict=True)]
        self._eta[moved] += change[moved]
        return self._K

    def _updated(
        self, K: NDArray[np.float32], change: Array, moved: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        if self.keeps_own():
            for k in np.flatnonzero(moved).tolist():
                if k not in self._own:
                    alone = self._with_square(self._zeros(), 1.0, [k], np.ones(1))
                    self._own[k] = self.unit, alone
                unit, alone = self._own[k]
                K += np.float32(unit**2 * change[k]) * alone
        else:
            for sign in (1.0, -1.0):
                some = np.flatnonzero(moved & (sign * change > 0))
                for part in row_slices(len(some), self._N * self.design.dim):
                    roots = self.unit * np.sqrt(np.abs(change[some[part]]))
                    K = self._with_square(K, sign, some[part].tolist(), roots)
        for rows in row_slices(self._N, self._N):
            upper = np.arange(self._N) > np.arange(self._N)[rows, None]
            np.copyto(K[rows], K[:, rows].T, where=upper)
        return K

    def _with_square(
        self, K: NDArray[np.float32], sign: float, groups: list[int], roots: Array
    ) -> NDArray[np.float32]:
        """The lower half of `K` with kernels of tokens, times `roots`, added to it, in place."""
        tokens = zip(roots.astype(np.float32), groups, strict=True)
        B = np.concatenate([root * self._token(k) for root, k in tokens], axis=1)
        add = get_blas_funcs("syrk", dtype=np.float32)
        return np.asarray(add(sign, B.T, beta=1.0, c=K, trans=1, lower=1, overwrite_c=1))

    @property
    def last(self) -> list[NDArray[np.float32]] | None:
        """Kernels as they were last brought up to date, if these columns are all of them."""
        used = np.flatnonzero(self._eta.any(axis=0))
        return self._K if len(used) and np.isin(used, self.X.groups).all() else None

    def patience(self, groups: Groups, eta: Array, size: int, n_outputs: int) -> int:
        """How many products with columns take as long as an update and its factor."""
        moved = int(np.count_nonzero(self._moved(groups, eta)[1]))
        formed = self._N**2 * self.design.dim / 2 / TUNING.speed32
        each = read_seconds(4 * self._N**2) if self.keeps_own() else formed
        work = self.X.A.size * n_outputs / TUNING.speed32
        product = 2 * max(read_seconds(self.X.A.nbytes), work)
        return max(LEAST_PATIENCE, int((moved * each + size**3 / 3 / TUNING.speed32) / product))

    def _moved(self, groups: Groups, eta: Array) -> tuple[Array, NDArray[np.bool_]]:
        wanted = np.zeros(self._eta.shape)
        wanted[:, groups] = eta
        change = wanted - self._eta
        return change, np.abs(change) > LAG * np.maximum(wanted, self._eta)

    def _token(self, k: int) -> NDArray[np.float32]:
        """Centred columns of a token over their unit."""
        first = self.design.dim * int(np.searchsorted(self.X.groups, k))
        columns = slice(first, first + self.design.dim)
        A = self.X.A[:, columns]
        if self.X.offset is None:
            return A
        return A + (self.X.offset[columns] / self.X.unit).astype(np.float32)

    def _place(self, groups: Groups) -> Groups:
        return np.searchsorted(self.X.groups, groups)

    def correlate(self, groups: Groups, V: Array) -> Array:
        """``A_k' V``, ``(groups, d, outputs)``."""
        return self.X.correlate(V)[self._place(groups)]

    def predict(self, groups: Groups, Z: Array) -> Array:
        """``sum_k A_k Z_k``, ``(N, outputs)``."""
        self.products += 1
        whole = np.zeros((len(self.X.groups), *Z.shape[1:]))
        whole[self._place(groups)] = Z
        return self.X.predict(whole)

    def contributions(self, groups: Groups, G: Array) -> NDArray:
        """``A_k G_k / unit`` of every group alone, ``(N, groups, r)`` for ``G (groups, d, r)``."""
        U: NDArray[np.float32] = np.empty((len(self.X.A), len(groups), G.shape[2]), np.float32)
        for j, k in enumerate(groups.tolist()):
            U[:, j] = self._token(k) @ G[j].astype(np.float32)
        return U
