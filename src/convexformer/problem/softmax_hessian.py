"""Second order of the softmax, on pairs (group, output) only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .designs import Array, Design, Groups, row_slices

ROWS_BYTES = 1 << 21  # of a block of samples, to stay in cache


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
    columns = [(d * m[:, None] + np.arange(d)).ravel() for m in members]
    size, every = int(ends[-1]), bool(cells.all())
    Q, border = np.zeros((size, size)), np.zeros((size, c))
    others = P @ (1.0 - np.eye(c))  # 1 - p, which a subtraction would lose near 1
    root, unit = np.sqrt(weight), 0.0
    blocks = [np.zeros((len(k), len(k))) for k in columns]
    edges = [np.zeros(len(k)) for k in columns]
    for rows in row_slices(design.n_samples, len(groups) * d + size, ROWS_BYTES):
        A = design.gather(rows, groups)
        if center is not None:
            A -= center[groups].reshape(-1)
        if dtype != np.float64:  # squares must fit
            unit = unit or float(np.max(np.abs(A), initial=0.0)) or 1.0
            A /= unit
        A = np.ascontiguousarray(A.T, dtype=dtype)  # products with samples' factors are fast so
        share: NDArray = (root[rows, None] * P[rows]).T.astype(dtype)
        T: NDArray = np.empty((size, A.shape[1]), dtype=dtype)
        for j, span in enumerate(spans):
            np.multiply(A if every else A[columns[j]], share[j], out=T[span])
        Q -= T @ T.T
        border -= T @ share.T
        if not every:
            for j in range(c):
                own: NDArray = (np.sqrt(P[rows, j] * others[rows, j]) * root[rows]).astype(dtype)
                part = A[columns[j]] * own
                blocks[j] += part @ part.T
                edges[j] += part @ own
    if every:  # rows sum to zero over outputs
        blocks, edges = _own(Q, border, c)
    for j, span in enumerate(spans):
        Q[span, span], border[span, j] = blocks[j], edges[j]
    if unit:
        Q *= unit**2
        border *= unit
    if center is not None:
        W = weight[:, None] * P
        total = np.diag(np.sum(W * others, axis=0)) - (W.T @ P) * (1.0 - np.eye(c))
        Q -= border @ np.linalg.pinv(total, rcond=1e-13, hermitian=True) @ border.T
    pairs = np.full(cells.shape, -1)
    for j, m in enumerate(members):
        pairs[m, j] = ends[j] + d * np.arange(len(m))
    order = (pairs[cells][:, None] + np.arange(d)).ravel()
    return Q[np.ix_(order, order)]


def _own(Q: Array, border: Array, c: int) -> tuple[list[Array], list[Array]]:
    """What outputs have to do with themselves: minus the sum of all that they have with others."""
    p = len(Q) // c
    Q, border = Q.reshape(c, p, c, p), border.reshape(c, p, c)
    blocks = [-Q[j, :, np.arange(c) != j].sum(axis=0) for j in range(c)]
    return blocks, [-border[j, :, np.arange(c) != j].sum(axis=0) for j in range(c)]


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
