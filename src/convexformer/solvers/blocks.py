r"""Block descent for many outputs at once, in float32.

With :math:`A_k^\top A_k = U_k \Lambda_k U_k^\top` the problem of one token of one output is
diagonal. In units of :math:`z_k = \beta / (\sigma^2 w_k)\, U_k \hat z_k`, where :math:`\sigma^2` is
the largest eigenvalue, every output minimises

.. math:: \tfrac12 \|\hat r - \hat X \hat z\|^2 + \sum_k \|\hat z_k\|

whatever the scales of X, Y, beta and the weights w of the penalty. What is known in float64 is a
point of reference; only the way from there is computed in float32, so that its rounding shrinks
with the way. Arrays have a row per output.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..problem import Problem
from ..problem.stopping import check_stop, until

Array = NDArray[np.float64]
Floats = NDArray[np.float32]
Rows = NDArray[np.intp] | slice

GRAM_BYTES = 1 << 29  # of the largest Gram matrix
SWEEPS = 40  # that a solve is expected to take
COLUMNS = 1024  # of a Gram matrix that are formed at once
FEW = 16  # outputs below which a product is no faster: it waits for memory
DEPTH = 5  # sweeps between extrapolations
TINY = np.float32(1e-30)
NOISE = 1e-8  # of moves that were found in float32, squared


class Axes:
    """Eigenvectors, eigenvalues and rotated columns of every token; the same for every beta."""

    def __init__(self, problem: Problem, late: Callable[[], bool]) -> None:
        n, d, _ = problem.shape
        N = problem.design.n_samples
        self.weight = problem.penalty.column(n)[:, :, None]
        self.U, eigenvalues, unit = np.empty((n, d, d)), np.zeros((n, d)), np.ones((n, 1, 1))
        self.X = np.empty((n, d, N), dtype=np.float32)
        self.gram: Floats | None = None
        self.complete = False
        root = np.sqrt(problem.weight)[:, None]
        for k in range(n):
            if late():
                return
            A = problem.design.gather(slice(0, N), np.array([k]))
            if problem.center is not None:
                A -= problem.center[k]
            A *= root / self.weight[k]
            unit[k] = max(A.max(), -A.min()) or 1.0  # squares must fit float32
            B = (A / unit[k]).astype(np.float32)
            eigenvalues[k], self.U[k] = np.linalg.eigh((B.T @ B).astype(float))
            np.matmul(self.U[k].T.astype(np.float32), B.T, out=self.X[k])
        eigenvalues *= unit[:, :, 0] ** 2
        self.scale = float(np.max(eigenvalues)) or 1.0
        self.X *= (unit / np.sqrt(self.scale)).astype(np.float32)
        self.eigenvalues = np.maximum(eigenvalues / self.scale, 0.0).astype(np.float32)
        self.complete = True

    def correlations(self, M: Array, beta: float) -> Floats:
        """``(n, d, c)`` in units of the descent, ``(c, n, d)``."""
        M = self.U.transpose(0, 2, 1) @ M
        return _by_output(M / (beta * self.weight))

    def coefficients(self, Z: Array, beta: float) -> Floats:
        """``(n, d, c)`` in units of the descent, ``(c, n, d)``."""
        Z = self.U.transpose(0, 2, 1) @ Z
        return _by_output(Z * (self.scale / beta * self.weight))

    def back(self, D: Floats, beta: float) -> Array:
        """Coefficients ``(c, n, d)`` in units of the problem, ``(n, d, c)``."""
        return self.U @ D.transpose(1, 2, 0) * (beta / self.scale / self.weight)

    def way(self, n_outputs: int) -> Way:
        """No way gone yet; by the Gram matrix where so many outputs make up for forming it."""
        n, d, N = self.X.shape
        p, c = n * d, max(n_outputs, FEW)
        pays = N * p * p + SWEEPS * 2 * p * p * c < SWEEPS * 4 * N * p * c
        if self.gram is None and pays and 4 * p * p <= GRAM_BYTES:
            self.gram = self._gram(self.X.reshape(p, N)).reshape(n, d, p)
        if self.gram is None:
            return Way(self.X, n_outputs)
        return GramWay(self.gram, n_outputs)

    def _gram(self, flat: Floats) -> Floats:
        """Products of all columns, of some at a time so that it can be stopped."""
        p = len(flat)
        gram: Floats = np.empty((p, p), dtype=np.float32)
        for first in range(0, p, COLUMNS):
            check_stop()
            rows, end = slice(first, first + COLUMNS), min(first + COLUMNS, p)
            np.matmul(flat[rows], flat[:end].T, out=gram[rows, :end])
            gram[:first, rows] = gram[rows, :first].T
        return gram


def _by_output(M: Array) -> Floats:
    return np.ascontiguousarray(M.transpose(2, 0, 1), dtype=np.float32)


class Way:
    """How far coefficients have gone, ``D (c, n, d)``, and the scores ``X D`` of that."""

    def __init__(self, X: Floats, n_outputs: int) -> None:
        n, d, width = X.shape
        self.X = X
        self.D = np.zeros((n_outputs, n, d), dtype=np.float32)
        self.scores = self._scores(n_outputs, width)

    def _scores(self, n_outputs: int, width: int) -> Floats:
        return np.zeros((n_outputs, width), dtype=np.float32)

    def product(self, k: int, rows: Rows) -> Floats:
        """``X_k' X D``."""
        return self.scores[rows] @ self.X[k].T

    def add(self, k: int, rows: Rows, move: Floats) -> None:
        self.D[rows, k] += move
        self.scores[rows] += move @ self.X[k]

    def put(self, rows: Rows, D: Floats) -> None:
        """Let these outputs be at `D`."""
        self.D[rows], scores = D, np.zeros((len(D), self.scores.shape[1]), dtype=np.float32)
        for k in np.flatnonzero(np.any(D, axis=(0, 2))):
            scores += D[:, k] @ self.X[k]
        self.scores[rows] = scores

    def products(self, rows: Rows) -> Floats:
        """``X' X D``."""
        return np.stack([self.product(k, rows) for k in range(self.D.shape[1])], axis=1)


class GramWay(Way):
    """The same by the Gram matrix ``(n, d, p)``: best where coefficients are fewer than samples."""

    def _scores(self, n_outputs: int, width: int) -> Floats:
        return self.D.reshape(n_outputs, width)  # a view: the way itself, multiplied by Gram's rows

    def add(self, k: int, rows: Rows, move: Floats) -> None:
        self.D[rows, k] += move

    def put(self, rows: Rows, D: Floats) -> None:
        self.D[rows] = D


class Descent:
    """Sweeps over tokens for all outputs, each token to its best, and Anderson's extrapolation.

    Parameters
    ----------
    axes : Axes
    Z, G : ndarray of shape (c, n, d)
        The point of reference and its correlations with the residuals.
    square : ndarray of shape (c,)
        Of the residuals there.
    """

    def __init__(self, axes: Axes, Z: Floats, G: Floats, square: Array) -> None:
        self.eigenvalues, self.way = axes.eigenvalues, axes.way(len(Z))
        self.Z, self.G, self.square = Z, G, square
        self.sizes = _norms(Z)  # (c, n)
        self.start = self.sizes.copy()
        self.outside = _norms(G) > 1
        self.fall = np.zeros(len(Z))  # of the objective

    def run(self, target: Array, cycles: int, late: Callable[[], bool]) -> int:
        """Sweep until half of the outputs seem to be within `target`; returns the sweeps."""
        self.sweeps = 0
        with until(late):
            for _ in range(cycles):
                self._cycle()
                if np.mean(self._gap() <= target) >= 0.5:
                    break
        return self.sweeps

    def _cycle(self) -> None:
        """A few sweeps and an extrapolation."""
        trail = [self.way.D.copy()]
        for sweep in range(DEPTH):
            self._sweep(self.outside | (self.sizes > 0) if sweep == 0 else self.sizes > 0)
            trail.append(self.way.D.copy())
            self.sweeps += 1
        check_stop()
        self._extrapolate(trail)

    def _sweep(self, cells: NDArray[np.bool_]) -> None:
        c, n = cells.shape
        for k in range(n):
            chosen = np.flatnonzero(cells[:, k])
            if len(chosen) == 0:
                continue
            check_stop()
            # A copy of most would cost more than it saves.
            rows: Rows = slice(None) if len(chosen) > 0.8 * c else chosen
            g = self.G[rows, k] - self.way.product(k, rows)
            old, before = self.Z[rows, k] + self.way.D[rows, k], self.sizes[rows, k]
            values = self.eigenvalues[k]
            t = secular(g + values * old, values, before)[:, None]
            move = (t * g - old) / (1 + t * values)  # not the difference of new and old: it rounds
            size = np.where(t[:, 0] > 0, _norms(old + move), np.float32(0))
            slope = g - np.float32(0.5) * values * move - _slope(old, move, before, size)
            self.fall[rows] += np.einsum("cd,cd->c", slope, move)
            self.sizes[rows, k] = size
            self.way.add(k, rows, move)

    def _extrapolate(self, trail: list[Floats]) -> None:
        """To where the trail leads, for the outputs that this serves."""
        D = self.way.D.copy()
        E = np.where(self.sizes[:, :, None] > 0, anderson(trail), D)
        everyone = slice(None)
        self.way.put(everyone, E)
        self.products = self.way.products(everyone)
        sizes = np.where(self.sizes > 0, _norms(self.Z + E), np.float32(0))
        slope = self.G - np.float32(0.5) * self.products - _slope(self.Z, E, self.start, sizes)
        fall = np.einsum("cnd,cnd->c", slope, E).astype(float)
        good = fall > self.fall
        self.fall[good], self.sizes[good] = fall[good], sizes[good]
        bad = np.flatnonzero(~good)
        if len(bad):
            self.way.put(bad, D[bad])
            self.products[bad] = self.way.products(bad)

    def _gap(self) -> Array:
        """About the duality gap of every output; notes the cells that leave the feasible set."""
        G = self.G - self.products
        norms, z = _norms(G), self.Z + self.way.D
        self.outside = norms > 1
        square = self.square - np.einsum("cnd,cnd->c", self.way.D, self.G + G)
        inner = np.einsum("cnd,cnd->cn", z, G)
        scale = 1 / np.maximum(1.0, norms.max(axis=1))
        rest = np.sum(self.sizes - scale[:, None] * inner, axis=1)
        return np.asarray(0.5 * (1 - scale) ** 2 * square + rest, dtype=float)


def secular(r: Floats, values: Floats, size: Floats) -> Floats:
    r"""Norms of ``argmin_z 1/2 z' diag(values) z - r'z + ||z||``, by row.

    They are the roots t of :math:`\sum_i r_i^2 / (1 + \lambda_i t)^2 = 1`, or zero. One over the
    root of the left side is concave and nearly linear in t: Newton's steps on it from `size`, or
    from anywhere, meet the root at once or from below.
    """
    size = np.where(np.einsum("cd,cd->c", r, r) > 1, size, np.float32(0))
    for _ in range(8):
        w = 1 / (1 + size[:, None] * values)
        q = np.square(r * w)
        total = q.sum(axis=1)
        fall = np.maximum((q * w) @ values, TINY)
        last, size = size, np.maximum(size + total * (np.sqrt(total) - 1) / fall, 0)
        if np.all(np.abs(size - last) <= np.float32(0.01) * size):
            break
    return size


def anderson(trail: list[Floats]) -> Floats:
    """The affine combination of points whose moves cancel best, output by output."""
    points = np.stack(trail, axis=1).reshape(len(trail[0]), len(trail), -1)
    x = anderson_shares(np.diff(points, axis=1)).astype(np.float32)
    return np.asarray(x[:, None] @ points[:, 1:]).reshape(trail[0].shape)


def anderson_shares(moves: NDArray[np.floating]) -> NDArray[np.float64]:
    """Shares, which sum to 1, with which moves ``(..., depth, size)`` cancel best."""
    C = (moves @ np.swapaxes(moves, -1, -2)).astype(float)
    ridge = NOISE * np.trace(C, axis1=-2, axis2=-1) + 1e-300
    C += ridge[..., None, None] * np.eye(moves.shape[-2])
    x = np.linalg.solve(C, np.ones((*C.shape[:-1], 1)))[..., 0]
    return np.asarray(x / x.sum(axis=-1, keepdims=True))


def _norms(Z: Floats) -> Floats:
    return np.sqrt(np.einsum("...d,...d->...", Z, Z))


def _slope(old: Floats, move: Floats, before: Floats, after: Floats) -> Floats:
    """By which a move must be multiplied for the change of the norm, from `before` to `after`."""
    total = np.maximum(before + after, TINY)[..., None]
    return (2 * old + move) / total
