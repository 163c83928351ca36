"""The convex program as a layer of a network, to train by gradient steps beside others."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from convexformer.nn._network import Network, check_choice, real_tokens
from convexformer.problem.heads import PENALTY_NAMES


class ConvexLayer(Network):
    r"""The convex program itself as a layer: its objective is convex in its parameters.

    .. math:: F_i = \sum_k X_{ik} Z_k + b, \qquad \mathrm{decay} = 2\,\mathrm{penalty}(Z)

    Convex on fixed inputs only: below a trained embedding, or stacked, nothing here is. With gates
    it is a :class:`~convexformer.nn.GatedLayer` whose output is a vector.

    Parameters
    ----------
    n_tokens, dim, n_outputs : int
    penalty : {"token-output", "token", "nuclear"}
    intercept : bool

    Examples
    --------
    >>> import torch
    >>> from experiments.layers import ConvexLayer
    >>> layer = ConvexLayer(n_tokens=5, dim=3, n_outputs=2)
    >>> layer(torch.zeros(10, 5, 3)).shape, layer.is_convex
    (torch.Size([10, 2]), True)
    """

    is_convex = True

    def __init__(
        self,
        n_tokens: int,
        dim: int,
        n_outputs: int,
        *,
        penalty: str = "token-output",
        intercept: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_choice("penalty", penalty, PENALTY_NAMES)
        self.penalty = penalty
        self.Z = nn.Parameter(torch.zeros(n_tokens, dim, n_outputs, dtype=dtype))
        self._add_intercept(intercept, n_outputs, dtype=dtype)

    def forward(self, X: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scores ``(N, c)`` of tokens ``(N, n, d)``."""
        X = real_tokens(X, mask)
        return self._shifted(X.flatten(1) @ self.Z.flatten(0, 1))  # (N, n d) @ (n d, c) -> (N, c)

    def decay(self) -> Tensor:
        """Twice the penalty, so that ``beta / 2 * decay`` is ``beta * penalty``."""
        if self.penalty == "nuclear":
            return 2 * torch.linalg.svdvals(self.Z).sum()
        axes = 1 if self.penalty == "token-output" else (1, 2)
        return 2 * torch.linalg.vector_norm(self.Z, dim=axes).sum()
