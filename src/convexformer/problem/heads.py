r"""Heads: from convex coefficients back to the attention network they are equivalent to.

A head attends with :math:`w_1` on the simplex over tokens, reads a value and writes it to the
outputs. At an optimum its attention is a vertex :math:`e_k`, so every nonzero block of ``Z`` is
worth one head or a few, and the weight decay of the heads is exactly twice the penalty of ``Z``:

============== ========================== =================================== ====================
penalty        head                       decay of a head                     heads
============== ========================== =================================== ====================
token-output   :math:`w_1^T X w_2 w_3^T`  :math:`\|w_2\|_2^2 + \|w_3\|_1^2`   nonzero columns
nuclear        :math:`w_1^T X w_2 w_3^T`  :math:`\|w_2\|_2^2 + \|w_3\|_2^2`   sum of ranks
token          :math:`w_1^T X W_2 w_3`    :math:`\|W_2\|_F^2 + w_3^2`         nonzero blocks
============== ========================== =================================== ====================

Only nonzero blocks give heads: Proposition 1 of the paper would divide zero by zero elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arrays import Array
from .norms import safe_norm

PENALTY_NAMES = ("token-output", "token", "nuclear")
RANK_TOL = 1e-12  # singular values below this fraction of their block's largest are rounding


@dataclass(frozen=True)
class Heads:
    """Heads of a network whose attention sits at vertices.

    Attributes
    ----------
    penalty : {"token-output", "token", "nuclear"}
    n_groups : int
    groups : ndarray of int of shape (h,)
        The group each head attends to: a token, or ``gate * n_tokens + token``.
    values : ndarray of shape (h, d), or (h, d, c) for "token"
        ``w2``, or ``W2``.
    outputs : ndarray of shape (h, c), or (h,) for "token"
        ``w3``.
    weights : ndarray of shape (n_groups,), optional
        Penalty factors of the groups. The network they belong to reads ``X_k / weights[k]``.
    """

    penalty: str
    n_groups: int
    groups: NDArray[np.intp]
    values: Array
    outputs: Array
    weights: Array | None = None

    def __len__(self) -> int:
        return len(self.groups)

    def blocks(self) -> Array:
        """What each head adds to ``Z`` at its group, ``(h, d, c)``."""
        if self.penalty == "token":
            blocks = self.values * self.outputs[:, None, None]
        else:
            blocks = self.values[:, :, None] * self.outputs[:, None, :]
        return blocks if self.weights is None else blocks / self.weights[self.groups, None, None]

    def coefficients(self) -> Array:
        """``Z (n_groups, d, c)``, the sum of all heads."""
        blocks = self.blocks()
        Z = np.zeros((self.n_groups, *blocks.shape[1:]))
        np.add.at(Z, self.groups, blocks)
        return Z


def recover_heads(
    Z: ArrayLike, penalty: str, weights: ArrayLike | None = None, rank_tol: float = RANK_TOL
) -> Heads:
    r"""Heads of an optimal network from the coefficients of the convex program.

    .. math:: Z_k = \sum_{\text{heads at } k} w_2 w_3^T, \qquad
              \tfrac12 \sum_{\text{heads}} \mathrm{decay} = \mathrm{penalty}(Z)

    Parameters
    ----------
    Z : array-like of shape (groups, d, c)
    penalty : {"token-output", "token", "nuclear"}
    weights : array-like of shape (groups,), optional
        Positive factors of the groups' penalties.
    rank_tol : float
        For "nuclear": singular values below this fraction of their block's largest are dropped.

    Returns
    -------
    Heads

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer.problem.heads import decay, recover_heads
    >>> Z = np.zeros((3, 2, 1))
    >>> Z[1, :, 0] = [3.0, 4.0]
    >>> heads = recover_heads(Z, "token-output")
    >>> heads.groups, round(decay(heads) / 2, 9)  # one head, at token 1; the norm of (3, 4)
    (array([1]), 5.0)
    """
    if penalty not in PENALTY_NAMES:
        raise ValueError(f"penalty must be one of {', '.join(PENALTY_NAMES)}, got {penalty!r}.")
    Z = np.asarray(Z, dtype=np.float64)
    if Z.ndim != 3 or not np.isfinite(Z).all():
        raise ValueError(f"Z must have shape (groups, d, c) and be finite, got {Z.shape}.")
    blocks, w = Z, None
    if weights is not None:
        w = np.asarray(weights, dtype=np.float64)
        if w.shape != (len(Z),) or not np.all(np.isfinite(w) & (w > 0)):
            raise ValueError(f"weights must be {len(Z)} positive finite numbers, got {weights!r}.")
        blocks = Z * w[:, None, None]
    if penalty == "token":  # W2 = Z_k / sqrt(||Z_k||_F) and w3 = sqrt(||Z_k||_F)
        norms = safe_norm(blocks.reshape(len(Z), -1), axis=1)
        group = np.flatnonzero(norms)
        root = np.sqrt(norms[group])
        return Heads(penalty, len(Z), group, blocks[group] / root[:, None, None], root, w)
    # w2 = sqrt(s) u and w3 = sqrt(s) v of every part s u v': columns, or singular values
    if penalty == "token-output":
        S = safe_norm(blocks, axis=1)[:, None]
        U = np.divide(blocks, S, out=np.zeros_like(blocks), where=S > 0)
        S, Vt = S[:, 0], np.broadcast_to(np.eye(Z.shape[2]), (len(Z), *2 * Z.shape[2:]))
    else:
        U, S, Vt = np.linalg.svd(blocks, full_matrices=False)
        S = np.where(rank_tol * S.max(axis=1, keepdims=True, initial=0.0) < S, S, 0.0)
    group, r = np.nonzero(S)
    roots = np.sqrt(S[group, r])[:, None]
    return Heads(penalty, len(Z), group, roots * U[group, :, r], roots * Vt[group, r], w)


def decay(heads: Heads | SequenceHeads) -> float:
    """Weight decay of the network, without ``beta / 2``: twice the penalty of its coefficients.

    Parameters
    ----------
    heads : Heads or SequenceHeads
    """
    first, second = np.abs(heads.values), np.abs(heads.outputs)
    if isinstance(heads, SequenceHeads):
        return float(np.sum(first.sum(axis=(1, 2)) ** 2) + np.sum(second**2))
    if heads.penalty == "token-output":
        return float(np.sum(first**2) + np.sum(second.sum(axis=1) ** 2))
    return float(np.sum(first**2) + np.sum(second**2))


def head_count(Z: ArrayLike, penalty: str, rank_tol: float = RANK_TOL) -> int:
    """How many heads suffice for the network to reach the optimum that `Z` is.

    Parameters
    ----------
    Z : array-like of shape (groups, d, c)
    penalty : {"token-output", "token", "nuclear"}
        Nonzero columns of blocks, nonzero blocks, or the sum of the blocks' ranks.
    rank_tol : float
        As in :func:`recover_heads`.

    Notes
    -----
    An upper bound on what is needed: colinear blocks can share a head.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer.problem.heads import head_count
    >>> Z = np.zeros((4, 3, 2))
    >>> Z[0] = 1.0  # a block of rank one, both columns nonzero
    >>> [head_count(Z, name) for name in ("token-output", "token", "nuclear")]
    [2, 1, 1]
    """
    return len(recover_heads(Z, penalty, rank_tol=rank_tol))


# Matrix targets -------------------------------------------------------------------------------


@dataclass(frozen=True)
class SequenceHeads:
    """Heads ``W1 X W2 w3`` whose attention is a matrix, one row of weights per position.

    Attributes
    ----------
    attention : ndarray of shape (h, n, n)
        ``W1``: row r says what position r reads. Rows sum to one (or to at most one).
    values : ndarray of shape (h, d, c)
        ``W2``: one nonzero entry, from an input channel to an output.
    outputs : ndarray of shape (h,)
        ``w3``; its sign is that of the head.
    channels, targets : ndarray of int of shape (h,)
        The input channel and the output that a head connects.
    """

    attention: Array
    values: Array
    outputs: Array
    channels: NDArray[np.intp]
    targets: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.attention)

    def coefficients(self) -> Array:
        """``Z (d, c, n, n)``, the sum of all heads."""
        d, c = self.values.shape[1:]
        Z = np.zeros((d, c, *self.attention.shape[1:]))
        size = self.values[np.arange(len(self)), self.channels, self.targets] * self.outputs
        np.add.at(Z, (self.channels, self.targets), size[:, None, None] * self.attention)
        return Z


def recover_sequence_heads(
    A: ArrayLike, B: ArrayLike, attention: str = "stochastic"
) -> SequenceHeads:
    r"""Heads of an optimal network for matrix targets, at most two per channel and output.

    .. math:: Z_{jl} = A_{jl} - B_{jl}, \qquad W_1 = A_{jl} / a,\quad W_2 = \sqrt a\, e_j e_l^T,
              \quad w_3 = \sqrt a

    and the same for :math:`B_{jl}` with :math:`w_3 = -\sqrt b`, where :math:`a` and :math:`b` are
    the (largest) row sums. Parts that are zero give no head.

    Parameters
    ----------
    A, B : array-like of shape (d, c, n, n)
        The positive and the negative part, both nonnegative.
    attention : {"stochastic", "substochastic"}
        "stochastic": all rows of a part have the same sum. "substochastic": they need not, and
        rows of the attention sum to at most one.

    Returns
    -------
    SequenceHeads

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer.problem.heads import decay, recover_sequence_heads
    >>> A = np.array([[[[2.0, 2.0], [0.0, 4.0]]]])  # one channel, one output, two positions
    >>> heads = recover_sequence_heads(A, np.zeros_like(A))
    >>> heads.attention.tolist(), decay(heads) / 2
    ([[[0.5, 0.5], [0.0, 1.0]]], 4.0)
    """
    if attention not in ("stochastic", "substochastic"):
        raise ValueError(f"attention must be 'stochastic' or 'substochastic', got {attention!r}.")
    parts = np.stack([np.asarray(A, dtype=np.float64), np.asarray(B, dtype=np.float64)])
    if parts.ndim != 5 or parts.shape[3] != parts.shape[4]:
        raise ValueError(f"A and B must have shape (d, c, n, n), got {parts.shape[1:]}.")
    if not np.all(parts >= 0):
        raise ValueError("A and B must be nonnegative: split Z = A - B into its two parts first.")
    sums = parts.sum(axis=4)  # (2, d, c, n)
    size = sums.max(axis=3, initial=0.0)
    if attention == "stochastic" and np.any(size[..., None] - sums > 1e-9 * size[..., None]):
        raise ValueError(
            "The rows of a part of Z have different sums, which no row-stochastic attention has. "
            "Make them equal, or recover with attention='substochastic'."
        )
    sign, channel, target = np.nonzero(size)
    over = (sums if attention == "stochastic" else size[..., None])[sign, channel, target]
    root = np.sqrt(size[sign, channel, target])
    values = np.zeros((len(root), *parts.shape[1:3]))
    values[np.arange(len(root)), channel, target] = root
    maps = parts[sign, channel, target] / over[:, :, None]
    return SequenceHeads(maps, values, np.where(sign == 0, root, -root), channel, target)
