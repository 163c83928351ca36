"""Networks with the gated-ReLU layer of Theorem 3, and the convex layer they are equivalent to."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..problem.heads import PENALTY_NAMES
from ._network import Network, real_tokens
from ._simplex import SimplexAttention, check_choice


def open_gates(X: Tensor, directions: Tensor, thresholds: Tensor) -> Tensor:
    r""":math:`m_{ij} = 1\{\langle U_j, X_i\rangle \ge t_j\}` as numbers, ``(N, g)``."""
    score = X.flatten(1) @ directions.flatten(1).T  # (N, n d) @ (n d, g) -> (N, g)
    return (score >= thresholds).to(X.dtype)


def sum_open(by_gate: Tensor, m: Tensor) -> Tensor:
    r""":math:`\sum_j m_{ijp} A_{ijp}`, ``(N, P, c)``, for A of shape ``(N, h, P, c)``.

    The gates m are ``(N, h, P)``, or ``(N, h, 1)`` where all positions share them.
    """
    m = m.to(by_gate.dtype)
    if m.shape[2] == 1:  # one product per sample
        return (m.transpose(1, 2) @ by_gate.flatten(2)).view_as(by_gate[:, 0])
    return (by_gate * m[..., None]).sum(1)


class GatedFCN(SimplexAttention):
    r"""Simplex attention with a gated-ReLU layer: a head counts only where its gate is open.

    .. math:: F = \sum_j m_{g(j)}\, w_{1j}^T X\, w_{2j} w_{3j}^T + b, \qquad
              m_{ig} = 1\{\langle U_g, X_i\rangle \ge t_g\}

    Gates are fixed. Several heads share a gate: as many as the convex solution has nonzero blocks
    under it, so one head per gate, as the paper prints it, is not enough in general.

    Parameters
    ----------
    directions : Tensor of shape (g, n, d)
    thresholds : Tensor of shape (g,)
        ``-inf`` for a gate that is always open.
    n_outputs : int
    gate_of_head : Tensor of int of shape (h,)
        The gate :math:`g(j)` of every head; ``torch.arange(g).repeat_interleave(r)`` gives each
        gate r heads.
    token_weights : Tensor of shape (g, n), optional
        Penalty factors of the groups (gate, token).
    **options
        `penalty`, `parametrization`, `intercept` and `dtype`, as in :class:`SimplexAttention`.

    Examples
    --------
    >>> import torch
    >>> from convexformer.nn import GatedFCN
    >>> directions, thresholds = torch.randn(3, 5, 2), torch.zeros(3)
    >>> network = GatedFCN(directions, thresholds, n_outputs=1, gate_of_head=[0, 0, 1, 2])
    >>> network(torch.zeros(10, 5, 2)).shape
    torch.Size([10, 1])
    """

    _array_arguments: ClassVar[tuple[str, ...]] = (
        "directions",
        "thresholds",
        "gate_of_head",
        "token_weights",
    )
    directions: Tensor
    thresholds: Tensor
    gate_of_head: Tensor

    def __init__(
        self,
        directions: Tensor,
        thresholds: Tensor,
        n_outputs: int,
        gate_of_head: Tensor | list[int],
        *,
        token_weights: Tensor | None = None,
        **options: Any,
    ) -> None:
        gate_of_head = torch.as_tensor(gate_of_head, dtype=torch.long)
        check_gates(directions, thresholds)
        sizes = (*directions.shape[1:], n_outputs, len(gate_of_head))
        super().__init__(*sizes, token_weights=token_weights, **options)
        self.register_buffer("directions", directions)
        self.register_buffer("thresholds", thresholds)
        self.register_buffer("gate_of_head", gate_of_head)

    def _scaled_attention(self) -> Tensor:
        w1 = self.attention()
        return w1 if self.token_weights is None else w1 / self.token_weights[self.gate_of_head]

    def _open_gates(self, X: Tensor) -> Tensor:
        return open_gates(X, self.directions, self.thresholds)[:, self.gate_of_head]  # (N, h)


class ConvexLayer(Network):
    r"""The convex program itself as a layer: its objective is convex in its parameters.

    .. math:: F_i = \sum_g m_{ig} \sum_k X_{ik} Z_{gk} + b, \qquad
              \mathrm{decay} = 2\,\mathrm{penalty}(Z)

    Convex on fixed inputs only: below a trained embedding, or stacked, nothing here is.

    Parameters
    ----------
    n_tokens, dim, n_outputs : int
    penalty : {"token-output", "token", "nuclear"}
    intercept : bool
    directions : Tensor of shape (g, n, d), optional
        Directions of fixed gates; none for attention only.
    thresholds : Tensor of shape (g,), optional

    Examples
    --------
    >>> import torch
    >>> from convexformer.nn import ConvexLayer
    >>> layer = ConvexLayer(n_tokens=5, dim=3, n_outputs=2)
    >>> layer(torch.zeros(10, 5, 3)).shape, layer.is_convex
    (torch.Size([10, 2]), True)
    """

    _array_arguments: ClassVar[tuple[str, ...]] = ("directions", "thresholds")
    directions: Tensor | None
    thresholds: Tensor | None

    def __init__(
        self,
        n_tokens: int,
        dim: int,
        n_outputs: int,
        *,
        penalty: str = "token-output",
        intercept: bool = False,
        directions: Tensor | None = None,
        thresholds: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_choice("penalty", penalty, PENALTY_NAMES)
        if directions is not None and thresholds is not None:
            check_gates(directions, thresholds)
        elif directions is not None or thresholds is not None:
            raise ValueError("directions and thresholds of gates go together; give both or none.")
        groups = n_tokens if directions is None else len(directions) * n_tokens
        self.Z = nn.Parameter(torch.zeros(groups, dim, n_outputs, dtype=dtype))
        self._add_intercept(intercept, n_outputs, dtype=dtype)
        self.register_buffer("directions", directions)
        self.register_buffer("thresholds", thresholds)

    @property
    def is_convex(self) -> bool:
        return True

    def forward(self, X: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scores ``(N, c)`` of tokens ``(N, n, d)``."""
        X = real_tokens(X, mask)
        if self.directions is None or self.thresholds is None:
            F = X.flatten(1) @ self.Z.flatten(0, 1)  # (N, n d) @ (n d, c) -> (N, c)
        else:
            g, c = len(self.directions), self.Z.shape[2]
            W = self.Z.reshape(g, -1, c).transpose(0, 1).flatten(1)  # (n d, g c)
            by_gate = (X.flatten(1) @ W).unflatten(1, (g, c))  # (N, g, c)
            m = open_gates(X, self.directions, self.thresholds)  # (N, g)
            F = sum_open(by_gate[:, :, None], m[..., None])[:, 0]  # (N, c)
        return self._shifted(F)

    def decay(self) -> Tensor:
        """Twice the penalty, so that ``beta / 2 * decay`` is ``beta * penalty``."""
        penalty = self.config["penalty"]
        if penalty == "nuclear":
            return 2 * torch.linalg.svdvals(self.Z).sum()
        axes = 1 if penalty == "token-output" else (1, 2)
        return 2 * torch.linalg.vector_norm(self.Z, dim=axes).sum()


def check_gates(
    directions: Tensor, thresholds: Tensor, n: int | None = None, d: int | None = None
) -> None:
    """Raise unless these are gates, of n tokens with d channels where that is told."""
    shape = directions.shape
    fits = len(shape) == 3 and n in (None, shape[1]) and d in (None, shape[2])
    if not fits or thresholds.shape != shape[:1]:
        raise ValueError(
            f"Gates are directions (g, {n or 'n'}, {d or 'd'}) with thresholds (g,), got "
            f"{tuple(directions.shape)} and {tuple(thresholds.shape)}."
        )
