r"""Second moments of tokens tied by offset, and small problems with the same objective.

A sample is a position t of a text; its tokens stand at positions ``t + o``, or are landmarks of the
text. With :math:`P_{uv} = \sum_i x_{iu}^T x_{iv}`, and l a landmark, the same at all positions,

.. math:: \sum_{i,t} x_{i,t+o}^T x_{i,t+o'} = \sum_t P_{t+o,\,t+o'}, \qquad
          \sum_{i,t} x_{i,t+o}^T l_i = \sum_i \Bigl(\sum_t x_{i,t+o}\Bigr)^T l_i

so that products of positions no further apart than a window, and sums of them, take the place of a
product over all samples, with every token in it as often as there are places that see it.
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


def text_moments(design: OffsetDesign, Y: Array) -> Moments:
    """Moments of all positions of texts without padding, by products over texts.

    Parameters
    ----------
    design : OffsetDesign
        Without a mask.
    Y : ndarray of shape (N * n, c)
    """
    N, n, d = design.X.shape
    window, K = list(design.offsets.window), design.n_groups
    X, Y = design.X.astype(np.float64), Y.reshape(N, n, -1)
    far = design.landmarks  # (N, landmarks, d)
    seen = [slice(max(0, o), n + min(0, o)) for o in window]  # by an offset, over all targets
    sums = np.stack([X[:, part].sum(axis=1) for part in seen], axis=1)  # (N, window, d)
    sums = np.concatenate([sums, n * far], axis=1)  # (N, K, d): of a text, over its targets
    tokens = np.zeros((K, d, K, d))
    for u in range(n):  # the positions from u on that a target sees beside u
        P = (X[:, u].T @ X[:, u : u + len(window)].reshape(N, -1)).reshape(d, -1, d)
        for a, offset in enumerate(window):
            if 0 <= u - offset < n:
                some = P[:, : len(window) - a]
                tokens[a, :, a : a + some.shape[1]] += some
    tokens[:, :, len(window) :] = (sums.reshape(N, -1).T @ far.reshape(N, -1)).reshape(K, d, -1, d)
    lower = np.tril_indices(K, -1)
    tokens.transpose(0, 2, 1, 3)[lower] = tokens.transpose(2, 0, 3, 1)[lower]
    near = [
        np.tensordot(X[:, part], Y[:, part.start - o : part.stop - o], axes=([0, 1], [0, 1]))
        for o, part in zip(window, seen, strict=True)
    ]
    cross = np.concatenate([near, np.tensordot(far, Y.sum(axis=1), axes=(0, 0))])  # (K, d, c)
    G, H = tokens.reshape(K * d, K * d), cross.reshape(K * d, -1)
    flat = Y.reshape(N * n, -1)
    gram = np.block([[G, H], [H.T, flat.T @ flat]])
    total = np.append(sums.sum(axis=0), flat.sum(axis=0))
    return Moments(total, gram, N * n, K, d)
