"""Second order of the softmax, on pairs (group, output) only."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .designs import CACHED_BYTES, Array, Design, Groups, row_slices


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
    columns = [(d * m[:, None] + np.arange(d)).ravel() for m in members]
    if center is not None:  # the last column is constant
        columns = [np.append(own, len(groups) * d) for own in columns]
    ends = np.cumsum([0] + [len(own) for own in columns]).tolist()
    spans = [slice(*part) for part in pairwise(ends)]
    size, every = ends[-1], bool(cells.all())
    Q, blocks = np.zeros((size, size)), [np.zeros((len(own), len(own))) for own in columns]
    others = P @ (1.0 - np.eye(c))  # 1 - p, which a subtraction would lose near 1
    root, unit = np.sqrt(weight)[:, None], 0.0
    for rows in row_slices(design.n_samples, len(groups) * d + size, 2 * CACHED_BYTES):
        A = design.centred(rows, groups, center)
        if dtype != np.float64:  # squares must fit
            unit = unit or float(np.max(np.abs(A), initial=0.0)) or 1.0
            A /= unit
        if center is not None:
            A = np.column_stack([A, np.ones(len(A))])
        A = np.ascontiguousarray(A.T, dtype=dtype)  # products with samples' factors are fast so
        share: NDArray = (root[rows] * P[rows]).T.astype(dtype)
        T: NDArray = np.empty((size, A.shape[1]), dtype=dtype)
        for j, span in enumerate(spans):
            np.multiply(A if every else A[columns[j]], share[j], out=T[span])
        Q -= T @ T.T
        if not every:
            own_share: NDArray = (root[rows] * np.sqrt(P[rows] * others[rows])).T.astype(dtype)
            for j, block in enumerate(blocks):
                part = A[columns[j]] * own_share[j]
                block += part @ part.T
    if every:  # rows sum to zero over outputs
        pairs = Q.reshape(c, size // c, c, size // c)
        blocks = [-pairs[j, :, np.arange(c) != j].sum(axis=0) for j in range(c)]
    for span, block in zip(spans, blocks, strict=True):
        Q[span, span] = block
    first = np.full(cells.shape, -1)
    for j, m in enumerate(members):
        first[m, j] = ends[j] + d * np.arange(len(m))
    order = (first[cells][:, None] + np.arange(d)).ravel()
    H = Q[np.ix_(order, order)]
    if center is not None:
        last = np.array(ends[1:]) - 1
        border, total = Q[np.ix_(order, last)], Q[np.ix_(last, last)]
        H -= border @ np.linalg.pinv(total, rcond=1e-13, hermitian=True) @ border.T
    return H * unit**2 if unit else H


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
