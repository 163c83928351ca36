"""Softmax attention and the transformer block, as the paper writes them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ._network import Network, check_choice, real_tokens

READOUTS = ("sequence", "first")


class SoftmaxAttention(Network):
    r"""Multi-head softmax attention alone, the paper's eq. (attention_only).

    .. math:: \hat Y = \sum_j \mathrm{softmax}(X W_{qj} W_{kj}^T X^T)\, X W_{vj} W_{oj}

    Literally so: every head has full ``d x d`` matrices, no biases, and scores are not divided by
    :math:`\sqrt d` unless asked for. The decay is plain, :math:`\sum \|W\|_F^2`.

    Parameters
    ----------
    dim, n_outputs : int
    n_heads : int
    head_dim : int, optional
        Width of queries, keys and values; `dim` if omitted.
    scaled : bool
        Whether to divide scores by the square root of `head_dim`.
    readout : {"sequence", "first"}
        Scores of every position ``(N, n, c)``, or the first position's ``(N, c)``.

    Examples
    --------
    >>> import torch
    >>> from convexformer.nn import SoftmaxAttention
    >>> network = SoftmaxAttention(dim=3, n_outputs=2, n_heads=4)
    >>> network(torch.zeros(10, 5, 3)).shape
    torch.Size([10, 5, 2])
    """

    def __init__(
        self,
        dim: int,
        n_outputs: int,
        n_heads: int = 1,
        *,
        head_dim: int | None = None,
        scaled: bool = False,
        readout: str = "sequence",
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_choice("readout", readout, READOUTS)
        k = dim if head_dim is None else head_dim

        def draw(rows: int, columns: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(n_heads, rows, columns, dtype=dtype) / rows**0.5)

        self.query, self.key, self.value = draw(dim, k), draw(dim, k), draw(dim, k)
        self.output = draw(k, n_outputs)

    def attention(self, X: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attention maps ``(N, h, n, n)``; padding is never attended to."""
        X = real_tokens(X, mask)[:, None]  # (N, 1, n, d)
        scores = (X @ self.query) @ (X @ self.key).transpose(2, 3)  # (N, h, n, n)
        if self.config["scaled"]:
            scores = scores / self.query.shape[2] ** 0.5
        if mask is not None:
            lowest = torch.finfo(scores.dtype).min  # not -inf: a sample may be all padding
            scores = scores.masked_fill(~mask[:, None, None, :], lowest)
        return torch.softmax(scores, -1)

    def forward(self, X: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scores ``(N, n, c)``, or ``(N, c)`` of the first position."""
        X = real_tokens(X, mask)
        value = X[:, None] @ self.value  # (N, 1, n, d) @ (h, d, k) -> (N, h, n, k)
        F = ((self.attention(X, mask) @ value) @ self.output).sum(1)  # (N, n, c)
        return F[:, 0] if self.config["readout"] == "first" else F

    def decay(self) -> Tensor:
        """Sum of the squared entries of all matrices."""
        return torch.stack([W.square().sum() for W in self.parameters()]).sum()
