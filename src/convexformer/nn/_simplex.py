"""Simplex attention, the alternative attention of the paper: one weight per position."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..problem.heads import PENALTY_NAMES
from ._network import Network, check_choice, real_tokens

PARAMETRIZATIONS = ("softmax", "projection")


def project_simplex(theta: Tensor) -> Tensor:
    r"""Euclidean projection of the last axis onto the simplex, exact and differentiable.

    .. math:: \max(\theta - \tau, 0) \quad\text{with } \tau \text{ such that it sums to one}

    Examples
    --------
    >>> import torch
    >>> from convexformer.nn import project_simplex
    >>> project_simplex(torch.tensor([0.5, 2.0, 1.6]))
    tensor([0.0000, 0.7000, 0.3000])
    """
    ordered = theta.sort(-1, descending=True).values
    rank = torch.arange(1, theta.shape[-1] + 1, dtype=theta.dtype, device=theta.device)
    tau = (ordered.cumsum(-1) - 1) / rank  # were exactly the largest `rank` entries positive
    support = (ordered > tau).sum(-1, keepdim=True).clamp(min=1)  # 0 only of NaN
    return torch.clamp(theta - tau.gather(-1, support - 1), min=0)


def simplex_rows(theta: Tensor, parametrization: str, substochastic: bool = False) -> Tensor:
    """Rows of nonnegative weights that sum to one, or to at most one.

    For `substochastic` rows, `theta` has one entry more: what the row leaves unused.
    """
    rows = torch.softmax(theta, -1) if parametrization == "softmax" else project_simplex(theta)
    return rows[..., :-1] if substochastic else rows


class SimplexAttention(Network):
    r"""Heads that attend with fixed weights on the simplex, for vector targets.

    .. math:: F = \sum_j w_{1j}^T X\, w_{2j} w_{3j}^T + b, \qquad w_{1j} \in \Delta_n

    With enough heads its global optimum is that of the convex program of the same penalty
    (:func:`convexformer.problem.heads.head_count` tells how many are enough). Attention is static:
    over positions, the same for every sample.

    Parameters
    ----------
    n_tokens, dim, n_outputs, n_heads : int
    penalty : {"token-output", "token", "nuclear"}
        The decay of a head: :math:`\|w_2\|_2^2 + \|w_3\|_1^2`; with a full value matrix,
        :math:`\|W_2\|_F^2 + w_3^2`; or plain, :math:`\|w_2\|_2^2 + \|w_3\|_2^2`.
    parametrization : {"softmax", "projection"}
        How free parameters become weights on the simplex. Only the exact projection reaches
        vertices, where the optimum is.
    intercept : bool
        Whether to add an intercept, which is not decayed.
    token_weights : Tensor of shape (n_tokens,), optional
        Penalty factors: the network reads ``X_k / token_weights[k]``.

    Attributes
    ----------
    penalty : str
        Name of the penalty whose convex program this network is equivalent to.

    Examples
    --------
    >>> import torch
    >>> from convexformer.nn import SimplexAttention
    >>> network = SimplexAttention(n_tokens=5, dim=3, n_outputs=2, n_heads=4)
    >>> network(torch.zeros(10, 5, 3)).shape
    torch.Size([10, 2])
    >>> bool(torch.allclose(network.attention().sum(1), torch.ones(4)))
    True
    """

    token_weights: Tensor | None

    def __init__(
        self,
        n_tokens: int,
        dim: int,
        n_outputs: int,
        n_heads: int,
        *,
        penalty: str = "token-output",
        parametrization: str = "softmax",
        intercept: bool = False,
        token_weights: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_choice("penalty", penalty, PENALTY_NAMES)
        check_choice("parametrization", parametrization, PARAMETRIZATIONS)
        self.penalty, self.parametrization = penalty, parametrization
        full = penalty == "token"
        values = (n_heads, dim, n_outputs) if full else (n_heads, dim)
        outputs = (n_heads,) if full else (n_heads, n_outputs)
        self.theta = nn.Parameter(torch.randn(n_heads, n_tokens, dtype=dtype) / n_tokens)
        self.values = nn.Parameter(torch.randn(values, dtype=dtype) / dim**0.5)
        self.outputs = nn.Parameter(torch.randn(outputs, dtype=dtype) / max(1, n_heads) ** 0.5)
        self._add_intercept(intercept, n_outputs, dtype=dtype)
        self.register_buffer("token_weights", token_weights)

    def attention(self) -> Tensor:
        """``w1`` of every head: ``(h, n)``, rows on the simplex."""
        return simplex_rows(self.theta, self.parametrization)

    def forward(self, X: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scores ``(N, c)`` of tokens ``(N, n, d)``."""
        X = real_tokens(X, mask)
        gates = self._open_gates(X)  # (N, h), or None
        w1 = self._scaled_attention()  # (h, n)
        if self.penalty == "token":
            attended = torch.einsum("hk,ikd->ihd", w1, X)  # (N, h, d)
            if gates is not None:
                attended = attended * gates[..., None]
            W = self.values * self.outputs[:, None, None]  # (h, d, c)
            F = attended.flatten(1) @ W.flatten(0, 1)  # (N, h d) @ (h d, c) -> (N, c)
        else:  # w1' X w2 as one product: what is kept per sample is a number per head
            reader = w1[:, :, None] * self.values[:, None, :]  # (h, n, d)
            read = X.flatten(1) @ reader.flatten(1).T  # (N, n d) @ (n d, h) -> (N, h)
            F = (read if gates is None else read * gates) @ self.outputs  # (N, h) @ (h, c)
        return self._shifted(F)

    def _scaled_attention(self) -> Tensor:
        w1 = self.attention()
        return w1 if self.token_weights is None else w1 / self.token_weights

    def _open_gates(self, X: Tensor) -> Tensor | None:
        """What every head's value is multiplied with; nothing in an attention-only network."""
        return None

    def decay(self) -> Tensor:
        """Weight decay of the penalty's theorem, without ``beta / 2``; `w1` is not decayed."""
        if self.penalty == "token-output":
            return self.values.square().sum() + self.outputs.abs().sum(1).square().sum()
        return self.values.square().sum() + self.outputs.square().sum()


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
        score = X.flatten(1) @ self.directions.flatten(1).T  # (N, n d) @ (n d, g) -> (N, g)
        return (score >= self.thresholds).to(X.dtype)[:, self.gate_of_head]  # (N, h)


class SequenceAttention(Network):
    r"""Heads that attend with a fixed matrix of weights, for matrix targets ``(N, n, c)``.

    .. math:: \hat Y = \sum_j W_{1j} X W_{2j} w_{3j} + b, \qquad
              \mathrm{decay} = \sum_j \|W_{2j}\|_1^2 + w_{3j}^2

    Parameters
    ----------
    n_tokens, dim, n_outputs, n_heads : int
    attention : {"stochastic", "substochastic"}
        Whether rows of :math:`W_1` sum to one, or to at most one.
    parametrization : {"softmax", "projection"}
        As in :class:`SimplexAttention`.
    intercept : bool
        Whether to add an intercept ``(c,)``, the same at all positions, which is not decayed.

    Examples
    --------
    >>> import torch
    >>> from convexformer.nn import SequenceAttention
    >>> network = SequenceAttention(n_tokens=5, dim=3, n_outputs=2, n_heads=4)
    >>> network(torch.zeros(10, 5, 3)).shape
    torch.Size([10, 5, 2])
    """

    def __init__(
        self,
        n_tokens: int,
        dim: int,
        n_outputs: int,
        n_heads: int,
        *,
        attention: str = "stochastic",
        parametrization: str = "softmax",
        intercept: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_choice("attention", attention, ("stochastic", "substochastic"))
        check_choice("parametrization", parametrization, PARAMETRIZATIONS)
        self.parametrization, self.substochastic = parametrization, attention == "substochastic"
        width = n_tokens + self.substochastic
        self.theta = nn.Parameter(torch.randn(n_heads, n_tokens, width, dtype=dtype) / width)
        scale = (dim * n_outputs) ** 0.5
        self.values = nn.Parameter(torch.randn(n_heads, dim, n_outputs, dtype=dtype) / scale)
        self.outputs = nn.Parameter(torch.randn(n_heads, dtype=dtype) / max(1, n_heads) ** 0.5)
        self._add_intercept(intercept, n_outputs, dtype=dtype)

    def attention(self) -> Tensor:
        """``W1`` of every head: ``(h, n, n)``, row r says what position r reads."""
        return simplex_rows(self.theta, self.parametrization, self.substochastic)

    def forward(self, X: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scores ``(N, n, c)`` of tokens ``(N, n, d)``."""
        X = real_tokens(X, mask)
        W = self.values * self.outputs[:, None, None]  # (h, d, c)
        read = X[:, None] @ W  # (N, 1, n, d) @ (h, d, c) -> (N, h, n, c)
        F = torch.einsum("hrk,ihkc->irc", self.attention(), read)  # (N, n, c)
        return self._shifted(F)

    def decay(self) -> Tensor:
        """Weight decay of the theorem, without ``beta / 2``; `W1` is not decayed."""
        return self.values.abs().sum((1, 2)).square().sum() + self.outputs.square().sum()


def check_gates(directions: Tensor, thresholds: Tensor) -> None:
    """Raise unless these are gates."""
    if directions.ndim != 3 or thresholds.shape != directions.shape[:1]:
        raise ValueError(
            "Gates are directions (g, n, d) with thresholds (g,), got "
            f"{tuple(directions.shape)} and {tuple(thresholds.shape)}."
        )
