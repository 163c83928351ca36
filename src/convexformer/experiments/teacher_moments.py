r"""Second moments of tokens tied by offset, and small problems with the same objective.

A sample is a position t of a text; its tokens are blocks of the text: positions ``t + o``, or
landmarks. With :math:`P_{uv} = \sum_i x_{iu}^T x_{iv}` for all blocks u, v of a text,

.. math:: \sum_{i,t} A_{it,a}^T A_{it,b} = \sum_t P_{u(a,t),\,u(b,t)}

so that one product over texts, and sums of its blocks, take the place of a product over all
positions, with every token in it as often as there are places that see it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpstrf

from ..problem import Problem, Squared, TokenDesign
from ..problem.designs import Design
from ..problem.offsets import OffsetDesign
from ..problem.penalties import Penalty

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """Sums ``(p + c,)`` and second moments ``(p + c, p + c)`` of tokens and targets.

    Of `count` samples with ``p = groups * dim`` columns and c targets.
    """

    total: Array
    gram: Array
    count: int
    groups: int
    dim: int

    @property
    def means(self) -> tuple[Array, Array]:
        """Of tokens ``(groups, d)`` and of targets ``(c,)``."""
        tokens, targets = np.split(self.total / self.count, [self.groups * self.dim])
        return tokens.reshape(self.groups, self.dim), targets

    def problem(self, penalty: Penalty) -> Problem:
        """Squared loss on few rows: any R with ``R' R = gram``, centred, has the same objective.

        The intercept is already at its best: :attr:`means` give it back.
        """
        p = self.groups * self.dim
        mean = self.total / self.count
        R = root(self.gram - self.count * np.outer(mean, mean))
        X = np.ascontiguousarray(R[:, :p]).reshape(-1, self.groups, self.dim)
        return Problem(TokenDesign(X), Squared(), penalty, R[:, p:], intercept=False)


def root(gram: Array) -> Array:
    """R with ``R' R = gram``, as few rows as its rank, by Cholesky's factors with pivots."""
    U, pivots, rank, _ = dpstrf(gram, lower=0)
    R = np.zeros((rank, len(gram)))
    R[:, pivots - 1] = np.triu(U)[:rank]
    return R


def class_moments(design: Design, Y: Array, classes: list[NDArray[np.bool_]]) -> list[Moments]:
    """Moments of every class of samples, by products over all of them."""
    width = design.n_groups * design.dim + Y.shape[1]
    total = np.zeros((len(classes), width))
    grams = np.zeros((len(classes), width, width))
    for rows, A in design.blocks():
        block = np.concatenate([A, Y[rows]], axis=1)
        for g, belongs in enumerate(classes):
            mine = block[belongs[rows]]
            total[g] += mine.sum(axis=0)
            grams[g] += mine.T @ mine
    return [
        Moments(total[g], grams[g], int(belongs.sum()), design.n_groups, design.dim)
        for g, belongs in enumerate(classes)
    ]


def offset_moments(design: OffsetDesign, Y: Array) -> Moments:
    """Moments of all positions of texts without padding, in the way that takes less work."""
    blocks = design.length + len(design.offsets.landmarks)
    if blocks**2 > design.length * design.n_groups**2:
        return class_moments(design, Y, [np.ones(len(Y), dtype=bool)])[0]
    return text_moments(design, Y)


def text_moments(design: OffsetDesign, Y: Array) -> Moments:
    """Moments of all positions of texts without padding, by one product over texts.

    Parameters
    ----------
    design : OffsetDesign
        Without a mask.
    Y : ndarray of shape (N * n, c)
    """
    N, n, d = design.X.shape
    K, c = design.n_groups, Y.shape[1]
    B = np.concatenate([design.X, design.landmarks], axis=1, dtype=np.float64)  # (N, blocks, d)
    blocks = B.shape[1]
    C = (B.reshape(N, -1).T @ Y.reshape(N, n * c)).reshape(blocks, d, n, c)
    sums = B.sum(axis=0)  # (blocks, d)
    seen = [_blocks(design, t) for t in range(n)]
    tokens, cross, total = np.zeros((K, d, K, d)), np.zeros((K, d, c)), np.zeros((K, d))
    for u in range(blocks):  # of P, one row of blocks at a time, from the diagonal on
        P = (B[:, u].T @ B[:, u:].reshape(N, -1)).reshape(d, blocks - u, d)
        for t in range(n):
            for i, (a, block) in enumerate(seen[t]):
                if block == u:
                    total[a] += sums[u]
                    cross[a] += C[u, :, t]
                    for b, v in seen[t][i:]:  # later places are later blocks
                        tokens[a, :, b] += P[:, v - u]
    G = tokens.reshape(K * d, K * d)
    lower = np.tril_indices(K, -1)
    tokens.transpose(0, 2, 1, 3)[lower] = tokens.transpose(2, 0, 3, 1)[lower]
    H = cross.reshape(K * d, c)
    gram = np.block([[G, H], [H.T, Y.T @ Y]])
    return Moments(np.append(total, Y.sum(axis=0)), gram, N * n, K, d)


def _blocks(design: OffsetDesign, t: int) -> list[tuple[int, int]]:
    """Which place of target t is which block of its text; places beyond the text are left out."""
    window = list(design.offsets.window)
    near = [(a, t + offset) for a, offset in enumerate(window) if 0 <= t + offset < design.length]
    far = range(len(design.offsets.landmarks))
    return near + [(len(window) + j, design.length + j) for j in far]
