"""The matrix among samples that serves all outputs, and the tokens it is made of.

Half of a symmetric matrix is all there is to it: it is kept, and factorised, in LAPACK's
rectangular full packed format, which takes no more memory and is as fast.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.linalg import LinAlgError
from numpy.typing import NDArray
from scipy.linalg.blas import get_blas_funcs
from scipy.linalg.lapack import get_lapack_funcs

from ...problem import Problem
from ...problem.designs import Groups
from ...problem.stopping import check_stop

Array = NDArray[np.float64]

COLUMNS = 1024  # of X, multiplied at once
WIDE_TOKEN = 128  # channels of a token that is multiplied by itself rather than copied
KEPT_BYTES, KEPT_RATIO = 1 << 31, 6  # of tokens' own kernels, and over those of X
KEPT_DIM = 48  # channels from which a token's own kernel is quicker to read than to form


class WeightedTokens:
    """Tokens of a problem, centred and weighted, multiplied in the precision of `dtype`."""

    def __init__(self, problem: Problem, dtype: type) -> None:
        self.design, self.dtype = problem.design, dtype
        self.root = np.sqrt(problem.weight)[:, None]
        shape = (self.design.n_groups, self.design.dim)
        center = np.zeros(shape) if problem.center is None else problem.center
        self.center: NDArray = center.astype(dtype)
        self.weighted = bool(np.any(problem.weight != 1))
        self.intercept = problem.intercept

    def correlate(self, V: Array, groups: Groups) -> NDArray:
        """``X_k' V``, ``(groups, d, c)``."""
        weighted: NDArray = (self.root * V).astype(self.dtype)
        total = weighted.sum(axis=0, dtype=np.float64).astype(self.dtype)
        G: NDArray = np.empty((len(groups), self.design.dim, V.shape[1]), self.dtype)
        for part, A in self._blocks(groups):
            own = np.matmul(A.T, weighted, out=G[part].reshape(A.shape[1], -1))
            own -= self.center[groups[part]].reshape(-1, 1) * total
        return G

    def predict(self, weight: Array, G: NDArray, groups: Groups) -> Array:
        """``sum_k weight_k X_k G_k``, ``(N, c)``."""
        F: NDArray = np.zeros((len(self.root), G.shape[2]), self.dtype)
        used = np.flatnonzero(weight)
        for part, A in self._blocks(groups[used]):
            scale: NDArray = weight[used[part]].astype(self.dtype)[:, None, None]
            own = (scale * G[used[part]]).reshape(A.shape[1], -1)
            F += A @ own
            F -= self.center[groups[used[part]]].ravel() @ own
        return self.root * F

    def contribution(self, group: int, G: NDArray) -> NDArray:
        """``X_k G_k`` of one of them, ``(N, c)``, in the precision of `G`."""
        U = self.design.whole(np.array([group]), G.dtype.type) @ G
        U -= self.center[group].astype(G.dtype) @ G
        if self.weighted:
            U *= self.root
        return np.asarray(U)

    def token(self, group: int, dtype: type) -> NDArray:
        """One of them, ``(N, d)``."""
        A = self.design.whole(np.array([group]), dtype) - self.center[group].astype(dtype)
        if self.weighted:
            A *= self.root
        return A

    def balanced(self, V: Array) -> Array:
        """`V` without what an intercept takes up."""
        if self.intercept:
            V = V - self.root * (self.root.T @ V / np.sum(self.root**2))
        return V

    def _blocks(self, groups: Groups) -> Iterator[tuple[slice, NDArray]]:
        """Some columns after others; wide tokens only with their neighbours, as they lie in X."""
        step, start = max(1, COLUMNS // self.design.dim), 0
        apart = np.diff(groups, append=-1) != 1
        for end in range(1, len(groups) + 1):
            wide = self.design.dim >= WIDE_TOKEN and apart[end - 1]
            if wide or end - start == step or end == len(groups):
                check_stop()
                yield slice(start, end), self.design.whole(groups[start:end], self.dtype)
                start = end


class Kernel:
    """``K = sum_k scaled_k X_k X_k'``, as recent as asked for, and I + K factorised.

    Kernels of tokens are kept while there is room: then K follows their weights at no cost.
    """

    def __init__(self, columns: WeightedTokens, dtype: type) -> None:
        self.columns, self.dtype, self.N = columns, dtype, len(columns.root)
        names = ("sfrk", "pftrf", "pftrs", "tfsm")
        self._sfrk, self._pftrf, self._pftrs, self._tfsm = get_lapack_funcs(names, dtype=dtype)
        self._axpy = get_blas_funcs("axpy", dtype=dtype)
        self.scaled = np.zeros(columns.design.n_groups)
        self.K: NDArray = np.zeros(self.N * (self.N + 1) // 2, dtype)
        self.factor: NDArray | None = None  # where K is not zero
        self._own: dict[int, tuple[float, NDArray]] = {}  # kernels of tokens, over their units

    def _forget(self) -> None:
        self.scaled[:], self.K[:], self.factor = 0.0, 0.0, None

    def update(self, scaled: Array, stale: float) -> bool:
        """Follow tokens whose weight moved by more than `stale`; whether there were any."""
        if not np.any(scaled):
            self._forget()
            return False
        change = scaled - self.scaled
        missed = stale * np.minimum(scaled, self.scaled)
        missed[list(self._own)] = 0.0
        moved = np.flatnonzero(np.abs(change) > missed)
        for k in moved.tolist():
            self._add(k, change[k])
        self.scaled[moved] = scaled[moved]
        if len(moved):
            self._factorise()
        return len(moved) > 0

    def _add(self, k: int, weight: float) -> None:
        """``K += weight X_k X_k'``."""
        check_stop()
        if k not in self._own:
            B = self.columns.token(k, self.dtype)
            most = min(KEPT_BYTES, KEPT_RATIO * self.columns.design.nbytes)
            room = most - (1 + len(self._own)) * self.K.nbytes
            if room < 0 or B.shape[1] < KEPT_DIM:
                B *= np.sqrt(abs(weight))
                self.K = self._gram(B, np.sign(weight), self.K, 1.0)
                return
            size = max(float(B.max()), -float(B.min())) or 1.0  # its square may not fit
            B /= size
            self._own[k] = size**2, self._gram(B, 1.0, np.empty_like(self.K), 0.0)
        unit, own = self._own[k]
        self.K = self._axpy(own, self.K, a=weight * unit)

    def _gram(self, B: NDArray, sign: float, K: NDArray, keep: float) -> NDArray:
        """``keep K + sign B B'``, in the place of `K`."""
        # B' is in Fortran's order as it stands: nothing is copied
        (N, d), half = B.shape, {"uplo": "L", "trans": "T", "overwrite_c": 1}
        return np.asarray(self._sfrk(N, d, sign, B.T, keep, K, **half))

    def _factorise(self) -> None:
        T = self.K.copy()
        T[_diagonal(self.N)] += 1.0
        self.factor, info = self._pftrf(self.N, T, uplo="L", overwrite_a=1)
        if info:
            self._forget()  # else what is kept would pass for factorised
            raise LinAlgError("The kernel is not positive definite.")

    def is_at(self, scaled: Array) -> bool:
        """Whether K is up to date."""
        return np.array_equal(self.scaled, scaled)

    def solve(self, R: Array) -> NDArray:
        """About ``(I + K)^-1 R``."""
        if self.factor is None or R.size == 0:
            return R
        return np.asarray(self._pftrs(self.N, self.factor, R, uplo="L")[0])

    def half(self, U: NDArray) -> NDArray:
        """``L^-1 U`` where ``I + K = L L'``, in the place of `U`."""
        if self.factor is None:  # K = 0
            return U
        return np.asarray(self._tfsm(1.0, self.factor, U, uplo="L", overwrite_b=1))


def _diagonal(N: int) -> NDArray[np.intp]:
    """Where a packed matrix has its diagonal: its two triangles lie side by side."""
    step, odd = (N | 1) + 1, N % 2
    first = 1 - odd + step * np.arange(N - N // 2)
    return np.concatenate([first, odd * N + step * np.arange(N // 2)])
