"""From convex coefficients to the network of the theorem, with the same objective and scores."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..problem.gated import Gates
from ..problem.heads import Heads, SequenceHeads, recover_heads, recover_sequence_heads
from ._simplex import GatedFCN, SequenceAttention, SimplexAttention

EXACT: dict[str, Any] = {"parametrization": "projection", "dtype": torch.float64}
"""Attention by exact projection: the optimum is at vertices, which a softmax only approaches."""
N = TypeVar("N", SimplexAttention, SequenceAttention)


def to_network(
    Z: ArrayLike,
    intercept: ArrayLike | None = None,
    penalty: str = "token-output",
    gates: Gates | None = None,
    weights: ArrayLike | None = None,
) -> SimplexAttention:
    """The network, in float64, whose heads are the blocks of `Z`.

    Its ``objective(X, Y, loss, beta)`` equals that of the convex program at `Z`, its scores equal
    ``sum_k X_k Z_k + intercept``. It is an ordinary module: nonconvex, trainable, and at a global
    optimum if `Z` is one.

    Parameters
    ----------
    Z : array-like of shape (groups, d, c)
        Groups are tokens, or (gate, token) pairs numbered ``gate * n_tokens + token``.
    intercept : array-like of shape (c,), optional
    penalty : {"token-output", "token", "nuclear"}
    gates : Gates, optional
        Directions ``(g, n, d)`` and thresholds ``(g,)`` of a gated model.
    weights : array-like of shape (groups,), optional
        Penalty factors of the groups.

    Returns
    -------
    SimplexAttention
        A :class:`GatedFCN` where there are gates.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer.nn import to_network
    >>> Z = np.zeros((4, 2, 1))
    >>> Z[2, :, 0] = [3.0, 4.0]
    >>> network = to_network(Z, intercept=[1.0])
    >>> network.attention().tolist()  # one head, all its attention on token 2
    [[0.0, 0.0, 1.0, 0.0]]
    """
    heads = recover_heads(Z, penalty, weights)
    n_groups, d, c = np.shape(Z)
    g, n, dim = (1, n_groups, d) if gates is None else np.shape(gates.directions)
    if (g * n, dim) != (n_groups, d):
        raise ValueError(
            f"Z has {n_groups} groups of {d} channels, but {g} gates over {n} tokens of {dim} "
            f"channels make {g * n} groups. Pass the gates the model was fitted with."
        )
    options = EXACT | {"penalty": penalty, "intercept": intercept is not None}
    if heads.weights is not None:
        shape = n if gates is None else (g, n)
        options["token_weights"] = _tensor(heads.weights).reshape(shape)
    if gates is None:
        network = SimplexAttention(n, d, c, len(heads), **options)
    else:
        arrays = _tensor(gates.directions), _tensor(gates.thresholds)
        network = GatedFCN(*arrays, c, torch.as_tensor(heads.groups // n), **options)
    return _written(network, np.eye(n)[heads.groups % n], heads, intercept)


def to_sequence_network(
    A: ArrayLike,
    B: ArrayLike,
    intercept: ArrayLike | None = None,
    attention: str = "stochastic",
) -> SequenceAttention:
    """The network for matrix targets, in float64, with coefficients ``Z = A - B``.

    Parameters
    ----------
    A, B : array-like of shape (d, c, n, n)
        Nonnegative parts, as in :func:`convexformer.problem.heads.recover_sequence_heads`.
    intercept : array-like of shape (c,), optional
    attention : {"stochastic", "substochastic"}

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer.nn import to_sequence_network
    >>> A = np.array([[[[2.0, 2.0], [0.0, 4.0]]]])  # one channel, one output, two positions
    >>> to_sequence_network(A, np.zeros_like(A)).attention().tolist()
    [[[0.5, 0.5], [0.0, 1.0]]]
    """
    heads = recover_sequence_heads(A, B, attention)
    d, c, n, _ = np.shape(A)
    rows = heads.attention  # (h, n, n)
    if attention == "substochastic":  # what a row leaves unused is its last entry
        rest = 1.0 - rows.sum(axis=2, keepdims=True)
        rows = np.concatenate([rows, np.maximum(rest, 0.0)], axis=2)
    options = EXACT | {"attention": attention, "intercept": intercept is not None}
    network = SequenceAttention(n, d, c, len(heads), **options)
    return _written(network, rows, heads, intercept)


def network_of(estimator: Any) -> SimplexAttention:
    """The network that a fitted estimator is equivalent to, in float64.

    Parameters
    ----------
    estimator : ConvexAttention*, ConvexTransformer*

    Returns
    -------
    SimplexAttention
        Its scores ``(N, c)`` are the estimator's decision scores: the prediction for squared and
        Huber loss, its logarithm for Poisson, `decision_function` for classifiers.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from convexformer import ConvexAttentionRegressor
    >>> from convexformer.nn import network_of
    >>> X = np.random.default_rng(0).normal(size=(30, 4, 2))
    >>> model = ConvexAttentionRegressor().fit(X, X[:, 1, 0])
    >>> network = network_of(model)
    >>> np.allclose(network(torch.tensor(X)).detach()[:, 0], model.predict(X))
    True
    """
    Z = np.moveaxis(estimator.coef_, 0, -1)  # (n, d, c), or (gates, n, d, c)
    weights, gates = estimator._penalty_weights(), None
    if hasattr(estimator, "gate_directions_"):
        gates = Gates(estimator.gate_directions_, estimator.gate_thresholds_)
        if weights is not None and len(weights) == Z.shape[1]:  # those of tokens, under every gate
            weights = np.tile(weights, len(Z))
    Z = Z.reshape(-1, *Z.shape[-2:])
    return to_network(Z, estimator.intercept_, estimator.penalty, gates, weights)


def _tensor(array: ArrayLike) -> Tensor:
    return torch.tensor(np.asarray(array, dtype=np.float64))


def _written(
    network: N, theta: ArrayLike, heads: Heads | SequenceHeads, intercept: ArrayLike | None
) -> N:
    """The network with these numbers written into it."""
    numbers = {"theta": theta, "values": heads.values, "outputs": heads.outputs}
    if intercept is not None:
        numbers["intercept"] = intercept
    network.load_state_dict({k: _tensor(x) for k, x in numbers.items()}, strict=False)
    return network
