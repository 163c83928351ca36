"""Second order of the softmax, on pairs (group, output) only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .designs import Array, Design, Groups, row_slices


def softmax_quadratic(
    design: Design,
    groups: Groups,
    cells: NDArray[np.bool_],
    P: Array,
    weight: Array,
    center: Array | None,
    dtype: type = np.float64,
) -> Array:
    r"""Hessian of a softmax in the coefficients of some pairs (group, output).

    With :math:`T` the columns :math:`p_l A_k` of the pairs, it is :math:`-T^\top W T` off the
    outputs' diagonal blocks, and :math:`A^\top W \mathrm{diag}(p_l (1 - p_l)) A` on them.

    Parameters
    ----------
    design : Design
    groups : ndarray of int
    cells : ndarray of bool of shape (groups, c)
        The pairs.
    P : ndarray of shape (N, c)
        Probabilities.
    weight : ndarray of shape (N,)
    center : ndarray of shape (n_groups, d), optional
        Taken from the columns; given where there is an intercept, which is then eliminated.
    dtype : type
        Precision of the products; sums over blocks of samples are always in float64.

    Returns
    -------
    ndarray of shape (pairs * d, pairs * d)
        Coefficients ordered (group, output, channel).
    """
    d, c = design.dim, P.shape[1]
    members = [np.flatnonzero(cells[:, j]) for j in range(c)]  # groups of every output
    ends = d * np.cumsum([0] + [len(m) for m in members])
    spans = [slice(ends[j], ends[j + 1]) for j in range(c)]
    size = int(ends[-1])
    Q, border = np.zeros((size, size)), np.zeros((size, c))
    blocks = [np.zeros((d * len(m), d * len(m))) for m in members]
    others = P @ (1.0 - np.eye(c))  # 1 - p, which a subtraction would lose near 1
    for rows in row_slices(design.n_samples, len(groups) * d + size):
        A = design.gather(rows, groups)
        if center is not None:
            A -= center[groups].reshape(-1)
        A = A.reshape(len(A), len(groups), d).astype(dtype, copy=False)
        T: NDArray = np.empty((len(A), size), dtype=dtype)
        root = np.sqrt(weight[rows])[:, None]
        for j, span in enumerate(spans):
            part = np.take(A, members[j], axis=1).reshape(len(A), -1)
            np.multiply(part, (root * P[rows, j, None]).astype(dtype), out=T[:, span])
            own = np.sqrt(P[rows, j, None] * others[rows, j, None]) * root
            part *= own.astype(dtype)
            border[span, j] += part.T @ own[:, 0].astype(dtype)
            blocks[j] += part.T @ part
        Q -= T.T @ T
        cross = T.T @ (root * P[rows]).astype(dtype)
        for j, span in enumerate(spans):
            cross[span, j] = 0.0
        border -= cross
    for j, span in enumerate(spans):
        Q[span, span] = blocks[j]
    if center is not None:
        W = weight[:, None] * P
        total = np.diag(np.sum(W * others, axis=0)) - (W.T @ P) * (1.0 - np.eye(c))
        Q -= border @ np.linalg.pinv(total, rcond=1e-13, hermitian=True) @ border.T
    pairs = np.full(cells.shape, -1)
    for j, m in enumerate(members):
        pairs[m, j] = ends[j] + d * np.arange(len(m))
    order = (pairs[cells][:, None] + np.arange(d)).ravel()
    return Q[np.ix_(order, order)]


def joint_newton(size: Array, overlap: Array) -> Callable[[Array], Array]:
    """Solve for steps of the intercepts, which only matter but for what they have in common.

    Their curvature is ``diag(size) - overlap``; steps have no common part.
    """
    curvature = np.diag(size) - overlap
    # A common part costs nothing: where it costs as much as others there is one solution.
    regular = curvature + size.sum() / len(size) ** 2

    def step(e: Array) -> Array:
        try:
            found = np.linalg.solve(regular, e)
        except np.linalg.LinAlgError:  # a class of no probability
            found = np.linalg.lstsq(curvature, e, rcond=1e-14)[0]
        return np.asarray(found - found.mean())

    return step
