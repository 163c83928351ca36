"""Small data in general position, and the networks' side of a comparison."""

import numpy as np
import torch

from convexformer.nn import train_starts

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
