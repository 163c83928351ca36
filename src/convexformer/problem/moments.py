r"""A weighted squared loss of matrix targets as a quadratic, whose cost does not depend on N.

.. math:: \tfrac12 \sum_{i,r} (F_i[r] - Y_i[r])^\top W_{ir} (F_i[r] - Y_i[r]), \qquad
          W_{ir} = \mathrm{diag}(w) \quad\text{or, joint,}\quad
          \mathrm{diag}(w) - w w^\top / \textstyle\sum_l w_l

the intercept minimised out. The joint form is the curvature of a softmax.

Coefficients with the same Gram matrix, or that meet in one, make up a *system*: all target
positions and outputs (s = 1), those of a position (s = n), each its own (s = n c); or, joint, the
outputs of a position together (s = n, with Gram matrices c times as wide).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .designs import Design
from .positions import dual_norms, norms

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Border:
    """What coefficients and the intercept have in common.

    Attributes
    ----------
    sums : ndarray of shape (p, n, c), or (p, n, c, c) if joint
        Weighted sums of the columns of X.
    total : ndarray of shape (c,), or (c, c) if joint
        Total weight.
    """

    sums: Array
    total: Array

    def project(self, T: Array) -> Array:
        """What coefficients ``T (p, n, c)`` add to the slope in the intercept: ``(c,)``."""
        return np.einsum("prl...,prl->l" if self.sums.ndim == 3 else "prlm,prl->m", self.sums, T)

    def expand(self, b: Array, sums: Array | None = None) -> Array:
        """What an intercept adds to the slope in the coefficients: ``(p, n, c)``."""
        sums = self.sums if sums is None else sums
        return sums * b if sums.ndim == 3 else sums @ b

    def inverse(self, total: Array | None = None) -> Array:
        """Of `total`, such that ``apply(inverse, slope)`` is an intercept.

        What all outputs share costs a joint loss nothing, and stays zero.
        """
        total = self.total if total is None else total
        if total.ndim == 1:
            return np.divide(1.0, total, out=np.zeros_like(total), where=total > 0)
        return np.asarray(np.linalg.pinv(total, rcond=1e-13, hermitian=True))


def apply(matrix: Array, vector: Array) -> Array:
    """The product with a matrix, or with a diagonal one given by its diagonal."""
    return matrix * vector if matrix.ndim == 1 else matrix @ vector


@dataclass(frozen=True)
class Moments:
    r"""All that the loss depends on, without the samples.

    Attributes
    ----------
    gram : ndarray of shape (s, P, P)
        P = n d, or n d c if joint.
    cross : ndarray of shape (p, n, c)
        p = n d.
    energy : ndarray of shape (c,)
        Weighted squares of the targets.
    border : Border, optional
        Where there is an intercept.
    """

    gram: Array
    cross: Array
    energy: Array
    border: Border | None

    @property
    def joint(self) -> bool:
        """Whether the outputs of a position meet in one system."""
        return self.gram.shape[1] > len(self.cross)

    def pack(self, T: Array) -> Array:
        """``T (p, n, c)`` by systems, ``(s, P, columns)``."""
        if self.joint:
            return T.transpose(1, 0, 2).reshape(len(self.gram), -1, 1)
        return T.reshape(len(T), len(self.gram), -1).transpose(1, 0, 2)

    def unpack(self, A: Array) -> Array:
        """The inverse of `pack`."""
        p, n, c = self.cross.shape
        if self.joint:
            return A.reshape(n, p, c).transpose(1, 0, 2)
        return A.transpose(1, 0, 2).reshape(p, n, c)

    def correlate(self, T: Array) -> Array:
        """Minus the gradient at coefficients ``T (p, n, c)``: the correlations with residuals."""
        M = self.cross - self.unpack(np.matmul(self.gram, self.pack(T)))
        if self.border is None:
            return M
        return M + self.border.expand(apply(self.border.inverse(), self.border.project(T)))

    def bounds(self, T: Array, M: Array, beta: float, attention: str) -> tuple[float, float]:
        """Primal and dual value at coefficients ``T (p, n, c)`` with correlations `M`."""
        p, n, c = T.shape
        blocks = (n, p // n, n, c)
        top = self.energy - np.einsum("prl,prl->l", self.cross, T)
        bottom = top - np.einsum("prl,prl->l", M, T)
        sizes = dual_norms(M.reshape(blocks), attention).max(axis=0)
        if self.joint:
            top, bottom, sizes = top.sum(), bottom.sum(), sizes.max()
        bottom = np.maximum(0.0, bottom)
        dual = best_on_ray(top, bottom, sizes, beta)
        return 0.5 * float(bottom.sum()) + beta * float(np.sum(norms(T.reshape(blocks)))), dual


def moments_of(
    design: Design, center: Array | None, weight: Array, Y: Array, intercept: bool, joint: bool
) -> Moments:
    """The quadratic of some weights and targets.

    Parameters
    ----------
    design : Design
    center : ndarray of shape (n, d), optional
        Taken from the columns of X: a constant that the intercept makes up for.
    weight : ndarray of shape (N, 1, 1), (N, n, 1) or (N, n, c)
        The same for all positions, for all outputs, or one for every target; the latter if joint.
    Y : ndarray of shape (N, n, c)
    intercept : bool
    joint : bool
    """
    (N, n, c), p = Y.shape, design.n_groups * design.dim
    whole = np.broadcast_to(weight, Y.shape)
    share = np.zeros_like(whole)  # w / sum w
    if joint:
        size = whole.sum(axis=2, keepdims=True)
        share = np.divide(whole, size, out=share, where=size > 0)
        upper = np.triu_indices(c)
        weight = -whole[:, :, upper[0]] * share[:, :, upper[1]]
        weight[:, :, upper[0] == upper[1]] += whole
    gram, sums = design.gram(np.arange(design.n_groups), weight.reshape(N, -1), center)
    total = whole.sum(axis=(0, 1))
    if joint:
        total = np.diag(total) - np.einsum("irl,irm->lm", whole, share)
        gram, sums = _coupled(gram, n, c), _coupled(sums.T[:, :, None], n, c)[..., 0, :]
        gram = gram.reshape(n, p * c, p * c)
        sums = sums.transpose(1, 0, 2, 3)
    else:
        s, columns = len(gram), n * c // len(gram)
        sums = np.broadcast_to(sums[:, :, None], (p, s, columns)).reshape(p, n, c)
    border = Border(sums, total) if intercept else None
    V = _weighted(whole, share, Y)
    if border is not None:
        Y = Y - apply(border.inverse(), V.sum(axis=(0, 1)))
        V = _weighted(whole, share, Y)
    cross = design.correlate(V.reshape(N, -1)).reshape(p, n, c)
    if center is not None:
        cross -= center.reshape(-1, 1, 1) * V.sum(axis=0)
    return Moments(gram, cross, np.sum(V * Y, axis=(0, 1)), border)


def _weighted(whole: Array, share: Array, Y: Array) -> Array:
    """``W Y`` of every position."""
    return whole * (Y - np.sum(share * Y, axis=2, keepdims=True))


def _coupled(parts: Array, n: int, c: int) -> Array:
    """Matrices of pairs of outputs ``(n pairs, a, b)`` as ``(n, a, c, b, c)``."""
    _, a, b = parts.shape
    parts = parts.reshape(n, -1, a, b)
    out = np.empty((n, a, c, b, c))
    for pair, (i, j) in enumerate(zip(*np.triu_indices(c), strict=True)):
        out[:, :, i, :, j] = out[:, :, j, :, i] = parts[:, pair]
    return out


def best_on_ray(top: Array, bottom: Array, sizes: Array, beta: float) -> float:
    r"""Largest :math:`s \langle Y, V\rangle - \frac{s^2}2 \|V\|^2` with ``s V`` feasible.

    Of every problem of its own: `top` is ``<Y, V>``, `bottom` is ``||V||^2``, `sizes` are dual
    norms.
    """
    top, bottom, sizes = (np.atleast_1d(part) for part in (top, bottom, sizes))
    limit = np.divide(beta, sizes, out=np.full_like(sizes, np.inf), where=sizes > 0)
    free = np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)
    s = np.minimum(np.maximum(free, 0.0), limit)
    return float(np.sum(s * top - 0.5 * s * s * bottom))
