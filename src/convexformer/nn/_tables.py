"""Gated sums of tokens of a small vocabulary: every token meets the weights once."""

from __future__ import annotations

import torch
from torch import Tensor


def sum_by_token(tokens: Tensor, table: Tensor, W: Tensor, m: Tensor) -> Tensor:
    r"""What one position adds: :math:`\sum_j m_{ij} E_{t_i} W_j`, ``(B, q)``.

    Samples with the same token t share :math:`E_t W`, so they are multiplied with it together:
    ``(samples, h) @ (h, q)`` for every token, in one batched product padded to the most frequent
    token. That takes ``tokens * (d + samples of the most frequent)`` rows of work in place of the
    ``B * d`` of multiplying every sample with the weights, which is done where it is cheaper.

    Parameters
    ----------
    tokens : Tensor of int of shape (B,)
    table : Tensor of shape (V, d)
    W : Tensor of shape (h, d, q)
    m : Tensor of shape (B, h)
        Open gates as numbers.
    """
    (h, d, q), B = W.shape, len(tokens)
    W = W.transpose(0, 1).flatten(1)  # (d, h q)
    ordered, order = tokens.sort()
    present, which, count = torch.unique_consecutive(
        ordered, return_inverse=True, return_counts=True
    )
    T, most = len(present), int(count.max())
    if T * (d + most) >= B * d:
        by_gate = (table[tokens] @ W).unflatten(1, (h, q))  # (B, h, q)
        return (m[:, None] @ by_gate)[:, 0]
    first = count.cumsum(0) - count  # where each token's samples begin
    rank = torch.arange(B, device=tokens.device) - first[which]
    row = torch.empty_like(order)
    row[order] = which * most + rank  # (B,) each sample's row among T * most
    padded = m.new_zeros(T * most, h).index_copy(0, row, m).unflatten(0, (T, most))
    brought = (table[present] @ W).unflatten(1, (h, q))  # (T, h, q)
    return (padded @ brought).flatten(0, 1)[row]  # (T, most, h) @ (T, h, q) -> (B, q)
