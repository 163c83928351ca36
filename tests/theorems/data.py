"""Small data in general position, and the networks' side of a comparison."""

import numpy as np
import torch
from experiments.equivalence.experiment import train_starts
from scipy.linalg import null_space

STARTS = 200
EXACT = {"parametrization": "projection", "dtype": torch.float64}
"""Attention by exact projection: the optimum is at vertices, which a softmax only approaches."""


def generic(loss, c, shape=(16, 4, 2), seed=0):
    """Tokens X and targets Y of which all blocks of a solution are needed, each with its head."""
    rng = np.random.default_rng(seed)
    N, n, d = shape
    X = rng.normal(size=shape)
    F = np.einsum("ikd,kdc->ic", X, rng.normal(size=(n, d, c))) + 0.3 * rng.normal(size=(N, c))
    if loss == "softmax":
        return X, np.eye(c)[np.argmax(F, axis=1)]
    return X, np.where(F > 0, 1.0, -1.0) if loss == "logistic" else F


def lowest(make, X, Y, loss, beta, steps=600):
    """The lowest objective that each of many training runs met on its way, ``(STARTS,)``."""
    torch.manual_seed(0)
    runs = train_starts(
        make,
        torch.tensor(X),
        torch.tensor(Y),
        loss=loss,
        beta=beta,
        n_starts=STARTS,
        steps=steps,
        lr=0.1,
        every=steps,
    )
    return runs.lowest.numpy()


def fewer_heads(X, Z):
    """Coefficients with the same scores, no more penalty, and at most min(n, N) rows per output.

    Caratheodory's argument (docs/theory.md): scores of one output are ``sum_k t_k u_k``, with
    ``t_k`` the norm of row k and ``u_k`` the scores of that row at norm one. While the ``u_k`` are
    dependent, the norms can move along a null vector, without more penalty, until one of them is
    zero.
    """
    Z = Z.copy()
    for z in np.moveaxis(Z, 2, 0):  # (n, d), a view
        while np.any(z):
            used = np.flatnonzero(np.any(z, axis=1))
            t = np.linalg.norm(z[used], axis=1)
            null = null_space(np.einsum("ikd,kd->ik", X[:, used], z[used] / t[:, None]))
            if null.shape[1] == 0:
                break
            move = null[:, 0] * (1.0 if null[:, 0].sum() >= 0 else -1.0)
            ratio = np.divide(t, move, out=np.full_like(t, np.inf), where=move > 0)
            z[used] *= (1 - ratio.min() * move / t)[:, None]
            z[used[np.argmin(ratio)]] = 0.0
    return Z
