"""From convex coefficients to the network of the theorem, with the same objective and scores."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..problem.gated import Gates
from ..problem.heads import Heads, SequenceHeads, recover_heads, recover_sequence_heads
from ._gated import GatedFCN
from ._simplex import SequenceAttention, SimplexAttention

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
    g, n = (1, n_groups) if gates is None else _gate_shape(gates, n_groups, d)
    scale = None if heads.weights is None else _tensor(heads.weights)
    options: dict[str, Any] = {
        "penalty": penalty,
        "parametrization": "projection",  # only this one reaches vertices
        "intercept": intercept is not None,
        "dtype": torch.float64,
    }
    if gates is None:
        network = SimplexAttention(n, d, c, len(heads), token_weights=scale, **options)
    else:
        scale = None if scale is None else scale.reshape(g, n)
        arrays = _tensor(gates.directions), _tensor(gates.thresholds)
        of_head = torch.as_tensor(heads.groups // n)
        network = GatedFCN(*arrays, c, of_head, token_weights=scale, **options)
    return _written(network, np.eye(n)[heads.groups % n], heads, intercept)


def _gate_shape(gates: Gates, n_groups: int, dim: int) -> tuple[int, int]:
    g, n, d = np.shape(gates.directions)
    if g * n != n_groups or d != dim:
        raise ValueError(
            f"Z has {n_groups} groups of {dim} channels, but {g} gates over {n} tokens of {d} "
            f"channels make {g * n} groups. Pass the gates the model was fitted with."
        )
    return g, n


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
    options: dict[str, Any] = {"parametrization": "projection", "dtype": torch.float64}
    options |= {"attention": attention, "intercept": intercept is not None}
    network = SequenceAttention(n, d, c, len(heads), **options)
    return _written(network, rows, heads, intercept)


def to_network_from_parts(
    *,
    coef: ArrayLike,
    intercept: ArrayLike | None,
    penalty: str,
    gates: Gates | None = None,
    token_weights: ArrayLike | None = None,
) -> SimplexAttention:
    """:func:`to_network` for coefficients as estimators hold them.

    Parameters
    ----------
    coef : array-like of shape (c, n, d), or (c, gates, n, d) for a gated model
    intercept : array-like of shape (c,), optional
    penalty : {"token-output", "token", "nuclear"}
    gates : Gates, optional
        Needed where `coef` has gates.
    token_weights : array-like of shape (n,) or (gates * n,), optional
        Penalty factors of the tokens, the same under every gate; or of the (gate, token) groups.
    """
    Z = np.moveaxis(np.asarray(coef, dtype=np.float64), 0, -1)  # (n, d, c) or (gates, n, d, c)
    if (Z.ndim == 4) != (gates is not None):
        raise ValueError(
            f"coef of shape {np.shape(coef)} goes {'with' if Z.ndim == 4 else 'without'} gates."
        )
    weights = None if token_weights is None else np.asarray(token_weights, dtype=np.float64)
    if Z.ndim == 4 and weights is not None and len(weights) == Z.shape[1]:
        weights = np.tile(weights, len(Z))
    return to_network(Z.reshape(-1, *Z.shape[-2:]), intercept, penalty, gates, weights)


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
    gates = None
    if hasattr(estimator, "gate_directions_"):
        gates = Gates(estimator.gate_directions_, estimator.gate_thresholds_)
    return to_network_from_parts(
        coef=estimator.coef_,
        intercept=estimator.intercept_,
        penalty=estimator.penalty,
        gates=gates,
        token_weights=estimator._penalty_weights(),
    )


def _tensor(array: ArrayLike) -> Tensor:
    return torch.tensor(np.asarray(array, dtype=np.float64))


def _written(
    network: N, theta: ArrayLike, heads: Heads | SequenceHeads, intercept: ArrayLike | None
) -> N:
    """The network with these numbers written into it."""
    numbers = {"theta": theta, "values": heads.values, "outputs": heads.outputs}
    if intercept is not None:
        numbers["intercept"] = intercept
    for name, array in numbers.items():
        parameter, value = getattr(network, name), _tensor(array)
        if value.shape != parameter.shape:
            shape = tuple(parameter.shape)
            raise ValueError(f"{name} must have shape {shape}, got {tuple(value.shape)}.")
        with torch.no_grad():
            parameter.copy_(value)
    return network
