r"""Penalties: which coefficients share one norm.

A penalty is a weighted sum of Euclidean norms over *cells* of ``Z (groups, d, c)``. Each cell has
its own scalar in the variational form :math:`\|z\| = \min_{\eta\ge0} (\|z\|^2/\eta + \eta)/2` that
the Newton solver works on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arrays import Array
from .norms import plain, safe_norm


class Penalty(ABC):
    r""":math:`\sum_k w_k \sum_{\text{cells of } k} \|z\|_2`.

    Parameters
    ----------
    weights : array-like of shape (groups,), optional
        Positive factor of every group's penalty; 1 if omitted.
    """

    name: str
    separable: bool
    """Outputs do not share cells: with a separable loss every output is its own problem."""
    euclidean: bool = True
    """Cells have Euclidean norms."""

    def __init__(self, weights: ArrayLike | None = None) -> None:
        self.weights = None if weights is None else np.array(weights, dtype=np.float64)
        if self.weights is not None and not (
            self.weights.ndim == 1 and np.all(np.isfinite(self.weights) & (self.weights > 0))
        ):
            raise ValueError("Penalty weights must be a vector of positive finite numbers.")

    @abstractmethod
    def norms(self, Z: Array) -> Array:
        """Norm of every cell: ``(groups, cells)``."""

    def cells(self, n_outputs: int) -> int:
        """Number of cells a group has."""
        return n_outputs if self.separable else 1

    def column(self, n_groups: int) -> Array:
        """The weights as a column ``(groups, 1)``, to multiply `norms`."""
        return np.ones((n_groups, 1)) if self.weights is None else self.weights[:, None]

    def of(self, groups: NDArray[np.intp]) -> Penalty:
        """The penalty of some groups."""
        return type(self)(None if self.weights is None else self.weights[groups])

    def value(self, Z: Array) -> float:
        """Penalty of `Z`, without beta."""
        norms = self.norms(Z)
        return float((norms if self.weights is None else self.weights[:, None] * norms).sum())

    def dual_norms(self, M: Array) -> Array:
        """Norm of every cell of a correlation `M`, over its weight; feasible when <= beta."""
        norms = self.norms(M)
        return norms if self.weights is None else norms / self.column(len(M))

    def dual_norms_bound(self, M: Array, error: Array) -> Array:
        """At least the `dual_norms` of any matrix whose entries are within `error` of `M`."""
        slack = 1.0 + 2.0**-52 * (M.shape[1] * M.shape[2] + 8)
        return slack * self.dual_norms(np.abs(M) + error)

    def prox(self, Z: Array, step: float) -> Array:
        """``argmin_U 1/2 ||U - Z||^2 + step * value(U)``: every cell shrinks towards zero."""
        norms = self.norms(Z)
        with np.errstate(divide="ignore", invalid="ignore"):
            shrink = np.maximum(0.0, 1.0 - step * self.column(len(Z)) / norms)
        return Z * np.where(norms > 0, shrink, 0.0)[:, None, :]


class TokenOutput(Penalty):
    r""":math:`\sum_k w_k \sum_l \|Z_k[:, l]\|_2`, Theorems 1 and 2 of the paper."""

    name = "token-output"
    separable = True

    def norms(self, Z: Array) -> Array:
        return safe_norm(plain(Z), axis=1)


class Token(Penalty):
    r""":math:`\sum_k w_k \|Z_k\|_F`: a token is used by all outputs or by none."""

    name = "token"
    separable = False

    def norms(self, Z: Array) -> Array:
        return safe_norm(plain(Z).reshape(len(Z), -1), axis=1)[:, None]


class Nuclear(Penalty):
    r""":math:`\sum_k w_k \|Z_k\|_*`: what plain weight decay of all heads' weights comes to.

    Its cells are not Euclidean, so second-order steps in one scalar per cell do not apply; with a
    single output it is the same as :class:`TokenOutput`.
    """

    name = "nuclear"
    separable = False
    euclidean = False

    def norms(self, Z: Array) -> Array:
        return np.asarray(np.linalg.svd(Z, compute_uv=False).sum(axis=1, keepdims=True))

    def dual_norms(self, M: Array) -> Array:
        largest = np.linalg.svd(M, compute_uv=False).max(axis=1, keepdims=True, initial=0.0)
        return largest / self.column(len(M))

    def dual_norms_bound(self, M: Array, error: Array) -> Array:
        # singular values are computed to within some units of the largest, and move by `error`
        slack = 1.0 + 2.0**-46 * (M.shape[1] + M.shape[2])
        off = Token(self.weights).dual_norms(np.broadcast_to(error, M.shape).copy())
        return slack * (self.dual_norms(M) + off)

    def prox(self, Z: Array, step: float) -> Array:
        """Every singular value shrinks towards zero."""
        U, s, Vt = np.linalg.svd(Z, full_matrices=False)
        s = np.maximum(0.0, s - step * self.column(len(Z)))
        return np.asarray((U * s[:, None, :]) @ Vt)


PENALTIES: dict[str, type[Penalty]] = {p.name: p for p in (TokenOutput, Token, Nuclear)}
