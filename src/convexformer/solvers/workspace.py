"""What a solver remembers of a design between steps, stages, outputs and points of a path."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..problem import Design, Problem
from ..problem.designs import Groups, row_slices
from .blocks import Axes

Array = NDArray[np.float64]

CACHE_BYTES = 1 << 30  # of Gram matrices, and of tokens' own kernels
CACHE = 16e6  # bytes of columns that are quick to read
CHUNK_BYTES = 1 << 18  # of columns on their way to float32, to stay in cache
LARGE = 1e9  # multiply-adds from which a float32 kernel pays
LARGE_GRAM = 1e8  # and a float32 Gram matrix
OWN_RATIO = 2.0  # samples per channel up to which tokens keep their own kernels
STALE = 0.03  # relative change of eta that calls for an update


class Workspace:
    """Gram matrices and kernels of a problem's design."""

    def __init__(self, problem: Problem) -> None:
        self.grams = Grams(problem.design, problem.center, problem.weight)
        self.kernels = Kernels(problem.design, problem.center)
        self.axes: Axes | None = None  # of all tokens, once outputs descend together
        self.columns = Columns(problem.design, problem.center)
        self.descends = True  # whether first-order steps may be the quick way
        self.factorise = False  # whether conjugate gradients have proved too slow


class Columns:
    """Columns of tokens less `center` in float32, kept for as long as they serve."""

    def __init__(self, design: Design, center: Array | None) -> None:
        self.design, self.center = design, center
        self._groups: Groups = np.zeros(0, dtype=np.intp)

    def of(self, groups: Groups) -> tuple[NDArray[np.float32], float, Groups]:
        """Columns over a unit of length, the unit, and the groups: `groups`, or some more."""
        if not (len(groups) >= 0.5 * len(self._groups) and np.all(np.isin(groups, self._groups))):
            design = self.design
            small = 4 * design.n_samples * design.n_groups * design.dim <= CACHE
            most = small and 2 * len(groups) >= design.n_groups
            self._groups = np.arange(design.n_groups) if most else groups
            self._A, self._unit = float32_columns(self.design, self._groups, self.center)
        return self._A, self._unit, self._groups


def float32_columns(
    design: Design, groups: Groups, center: Array | None
) -> tuple[NDArray[np.float32], float]:
    """Columns of `groups` less `center`, ``(N, p)``, over a unit; and the unit.

    It is a power of two near the largest entry: squares of columns must fit float32.
    """
    A: NDArray[np.float32] = np.empty(
        (design.n_samples, len(groups) * design.dim), dtype=np.float32
    )
    unit = 0.0
    for rows, block in design.columns(groups):
        if not unit:
            some = block[::8]
            largest = max(float(some.max()), -float(some.min()))
            unit = 2.0 ** np.ceil(np.log2(largest or 1.0))
        target = A[rows]
        for part in row_slices(len(block), block.shape[1], CHUNK_BYTES):
            piece = block[part]
            if center is not None:
                piece = piece - center[groups].reshape(-1)
            np.multiply(piece, 1.0 / unit, out=target[part], casting="same_kind")
    return A, unit


class Grams:
    """``A' diag(w) A`` for fixed weights, grown token by token as solvers ask for more."""

    def __init__(self, design: Design, center: Array | None, weight: Array) -> None:
        self.design, self.center, self.weight = design, center, weight
        self._forget()

    def _forget(self) -> None:
        self._position: dict[int, int] = {}
        self._Q = np.zeros((0, 0))
        self._precise = True

    def matrix(self, groups: Groups, precise: bool = True) -> Array:
        """The block of `groups`, ``(p, p)``; products of large ones in float32 if not `precise`."""
        new = [k for k in groups.tolist() if k not in self._position]
        p = (len(self._position) + len(new)) * self.design.dim
        if 8 * p * p > CACHE_BYTES or (precise and not self._precise):
            self._forget()
            new = groups.tolist()
        if new:
            self._grow(np.array(new), precise)
        first = self.design.dim * np.array([self._position[k] for k in groups.tolist()])
        index = (first[:, None] + np.arange(self.design.dim)).ravel()
        return self._Q[np.ix_(index, index)]

    def _grow(self, new: Groups, precise: bool) -> None:
        old = np.array(list(self._position), dtype=np.intp)
        p, q = len(old) * self.design.dim, len(new) * self.design.dim
        precise |= self.design.n_samples * (p + q) * q < LARGE_GRAM
        self._precise &= precise
        dtype = np.float64 if precise else np.float32
        Q = np.empty((p + q, p + q))
        Q[:p, :p] = self._Q
        inner, across = self.design.cross_gram(old, new, self.weight, self.center, dtype)
        Q[p:, p:], Q[:p, p:], Q[p:, :p] = inner, across, across.T
        self._Q = Q
        for k in new.tolist():
            self._position[k] = len(self._position)


class Kernels:
    """Kernels ``sum_k eta_k A_k A_k'`` of tokens less `center`, by the cheapest of three ways.

    Small ones are formed anew; where samples are few beside channels each token's own kernel is
    kept; large ones are kept in float32 and only brought up to date for tokens whose eta moved
    much, which is good enough to precondition a float64 solve.
    """

    def __init__(self, design: Design, center: Array | None) -> None:
        self.design, self.center = design, center
        self._own: dict[int, Array] = {}
        self._approximate: NDArray[np.float32] | None = None
        self._eta = np.zeros(design.n_groups)

    def matrix(self, groups: Groups, eta: Array) -> tuple[NDArray, bool]:
        """The kernel, and whether it is exact (else float32 and near)."""
        N = self.design.n_samples
        count = int(np.count_nonzero(eta))
        if N * N * self.design.dim * count <= LARGE or self._keeps_own(count):
            return self.exact(groups, eta), True
        return self._updated(groups, eta), False

    def exact(self, groups: Groups, eta: Array) -> Array:
        used = np.flatnonzero(eta > 0)
        groups, eta = groups[used], eta[used]
        if not self._keeps_own(len(groups)):
            return self.design.kernel(groups, eta, self.center)
        K = np.zeros((self.design.n_samples,) * 2)
        for k, weight in zip(groups.tolist(), eta, strict=True):
            if k not in self._own:
                self._own[k] = self.design.kernel(np.array([k]), np.ones(1), self.center)
            K += weight * self._own[k]
        return K

    def _keeps_own(self, count: int) -> bool:
        N = self.design.n_samples
        return (
            OWN_RATIO * self.design.dim >= N and 8 * N * N * (len(self._own) + count) <= CACHE_BYTES
        )

    def _updated(self, groups: Groups, eta: Array) -> NDArray[np.float32]:
        wanted = np.zeros(self.design.n_groups)
        wanted[groups] = eta
        change = wanted - self._eta
        stale = np.abs(change) > STALE * np.maximum(wanted, self._eta)
        if self._approximate is None:
            self._approximate = np.zeros((self.design.n_samples,) * 2, dtype=np.float32)
        for sign in (1.0, -1.0):
            moved = np.flatnonzero(stale & (sign * change > 0))
            if len(moved):
                self._approximate += np.float32(sign) * self.design.kernel(
                    moved, sign * change[moved], self.center, dtype=np.float32
                )
        self._eta[stale] = wanted[stale]
        return self._approximate

    def apply(self, groups: Groups, eta: Array, U: Array) -> Array:
        """The kernel times `U`, in float64 and without forming it."""
        used = np.flatnonzero(eta > 0)
        return self.predict(
            groups[used], eta[used][:, None, None] * self.correlate(groups[used], U)
        )

    def correlate(self, groups: Groups, V: Array) -> Array:
        """``A_k' V``, ``(groups, d, outputs)``."""
        M = self.design.correlate(V, groups)
        if self.center is not None:
            M -= self.center[groups][:, :, None] * V.sum(axis=0)
        return M

    def predict(self, groups: Groups, Z: Array) -> Array:
        """``sum_k A_k Z_k``, ``(N, outputs)``."""
        used = np.flatnonzero(np.any(Z, axis=(1, 2)))
        F = self.design.predict(Z[used], groups[used])
        if self.center is not None:
            F -= np.tensordot(self.center[groups], Z, axes=2)
        return F

    def contributions(self, groups: Groups, G: Array) -> Array:
        """``A_k G_k`` of every group alone, ``(N, groups)``."""
        return self.design.contributions(groups, G, self.center)
