r"""A weighted squared loss of matrix targets as a quadratic, whose cost does not depend on N.

.. math:: \tfrac12 \sum_{i,r} (F_i[r] - Y_i[r])^\top W_{ir} (F_i[r] - Y_i[r]), \qquad
          W_{ir} = \mathrm{diag}(w) \quad\text{or, joint,}\quad
          \mathrm{diag}(w) - w w^\top / \textstyle\sum_l w_l

The joint form is the curvature of a softmax. Coefficients are ``T (q, n, c)`` with a row for every
source and channel, ``p = n d`` of them. With an intercept there is one row more, of a constant
column: an intercept for every target position, which have to be equal.

Coefficients with the same Gram matrix, or that meet in one, make up a *system*: all target
positions and outputs (s = 1), those of a position (s = n), each its own (s = n c); or, joint, the
outputs of a position together (s = n, with Gram matrices c times as wide).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .arrays import Array
from .designs import Design
from .positions import dual_norms, norms


@dataclass(frozen=True)
class Moments:
    r"""All that the loss depends on, without the samples.

    Attributes
    ----------
    gram : ndarray of shape (s, P, P)
        P = q, or q c if joint.
    cross : ndarray of shape (q, n, c)
    energy : ndarray of shape (c,)
        Weighted squares of the targets.
    p : int
        Rows of coefficients; the row after these, if there is one, holds intercepts.
    """

    gram: Array
    cross: Array
    energy: Array
    p: int

    @property
    def joint(self) -> bool:
        """Whether the outputs of a position meet in one system."""
        return self.gram.shape[1] > len(self.cross)

    def pack(self, T: Array) -> Array:
        """``T (q, n, c)`` by systems, ``(s, P, columns)``."""
        if self.joint:
            return T.transpose(1, 0, 2).reshape(len(self.gram), -1, 1)
        return T.reshape(len(T), len(self.gram), -1).transpose(1, 0, 2)

    def unpack(self, A: Array) -> Array:
        """The inverse of `pack`."""
        q, n, c = self.cross.shape
        if self.joint:
            return A.reshape(n, q, c).transpose(1, 0, 2)
        return A.transpose(1, 0, 2).reshape(q, n, c)

    def apply(self, T: Array) -> Array:
        """The Hessian times ``T (q, n, c)``."""
        return self.unpack(np.matmul(self.gram, self.pack(T)))

    def blocks(self, T: Array) -> Array:
        """Coefficients ``T (q, n, c)`` as ``(source, channel, target, output)``."""
        _, n, c = T.shape
        return T[: self.p].reshape(n, -1, n, c)

    def rows(self, T: Array) -> Array:
        """The inverse of `blocks`; intercepts are zero."""
        out = np.zeros(self.cross.shape)
        out[: self.p] = T.reshape(self.p, *out.shape[1:])
        return out

    @cached_property
    def _steps(self) -> Array:
        """Newton's step of the intercepts as a matrix times their slope, ``(c, c)``.

        What all outputs share costs a joint loss nothing, and stays zero.
        """
        total = np.zeros((self.cross.shape[2],) * 2)
        for j, column in enumerate(total.T):
            one = np.zeros(self.cross.shape)
            one[self.p :, :, j] = 1.0
            column[:] = self.apply(one)[self.p :].sum(axis=(0, 1))
        return np.asarray(np.linalg.pinv(total, rcond=1e-13, hermitian=True))

    def settled(self, T: Array) -> Array:
        """`T` with the best intercepts, where it has any."""
        slope = (self.cross - self.apply(T))[self.p :].sum(axis=(0, 1))
        T = T.copy()
        T[self.p :] += self._steps @ slope
        return T

    def bounds(self, T: Array, beta: float, attention: str) -> tuple[float, float]:
        """Primal and dual value at coefficients ``T (q, n, c)`` with the best intercepts."""
        T = self.settled(T)
        M = self.cross - self.apply(T)
        top = self.energy - np.sum(self.cross * T, axis=(0, 1))
        bottom = top - np.sum(M * T, axis=(0, 1))
        sizes = dual_norms(self.blocks(M), attention).max(axis=0)
        if self.joint:
            top, bottom, sizes = top.sum(keepdims=True), bottom.sum(keepdims=True), sizes.max()
        bottom = np.maximum(0.0, bottom)
        dual = _best_on_ray(top, bottom, np.broadcast_to(sizes, top.shape), beta)
        return 0.5 * float(bottom.sum()) + beta * float(np.sum(norms(self.blocks(T)))), dual


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
    V = weight * Y
    if joint:
        size = weight.sum(axis=2, keepdims=True)
        share = np.divide(weight, size, out=np.zeros_like(weight), where=size > 0)
        V -= share * V.sum(axis=2, keepdims=True)
        first, second = np.triu_indices(c)
        weight = weight[:, :, first] * ((first == second) - share[:, :, second])
    weight = weight.reshape(N, -1)
    gram, sums = design.gram(np.arange(design.n_groups), weight, center)
    cross = design.correlate(V.reshape(N, -1)).reshape(p, n, c)
    if center is not None:
        cross -= center.reshape(-1, 1, 1) * V.sum(axis=0)
    if intercept:
        total = weight.sum(axis=0)[:, None, None]
        gram = np.block([[gram, sums.T[:, :, None]], [sums.T[:, None, :], total]])
        cross = np.concatenate([cross, V.sum(axis=0)[None]])
    if joint:
        gram = _coupled(gram, n, c)
    return Moments(gram, cross, np.sum(V * Y, axis=(0, 1)), p)


def _coupled(parts: Array, n: int, c: int) -> Array:
    """Matrices of pairs of outputs ``(n pairs, q, q)`` as ``(n, q c, q c)``."""
    q = parts.shape[1]
    out, parts = np.empty((n, q, c, q, c)), parts.reshape(n, -1, q, q)
    for pair, (i, j) in enumerate(zip(*np.triu_indices(c), strict=True)):
        out[:, :, i, :, j] = out[:, :, j, :, i] = parts[:, pair]
    return out.reshape(n, q * c, q * c)


def _best_on_ray(top: Array, bottom: Array, sizes: Array, beta: float) -> float:
    r"""Largest :math:`s \langle Y, V\rangle - \frac{s^2}2 \|V\|^2` with ``s V`` feasible.

    Of every problem of its own: `top` is ``<Y, V>``, `bottom` is ``||V||^2``, `sizes` are dual
    norms.
    """
    limit = np.divide(beta, sizes, out=np.full_like(sizes, np.inf), where=sizes > 0)
    free = np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)
    s = np.minimum(np.maximum(free, 0.0), limit)
    return float(np.sum(s * top - 0.5 * s * s * bottom))
