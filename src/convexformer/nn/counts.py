"""Parameters and FLOPs of actual modules, counted by PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ..costs import Sizes
from ._attention import SoftmaxAttention, TransformerBlock
from ._gated import ConvexLayer, GatedFCN
from ._network import Network
from ._simplex import SimplexAttention


def count(s: Sizes) -> Iterator[tuple[int, int]]:
    """Parameters, and FLOPs for one sample, of the models of Table 1 in its order."""
    X = torch.zeros(1, s.n, s.d)
    for network in _models(s):
        yield count_parameters(network), count_flops(network, X)


def count_parameters(network: Network) -> int:
    """Numbers that training changes; gates, which are fixed, do not count."""
    return sum(p.numel() for p in network.parameters() if p.requires_grad)


def count_flops(network: Network, X: Tensor) -> int:
    """FLOPs of the matrix products of one forward pass."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(X)
    return int(counter.get_total_flops())


def _models(s: Sizes) -> Iterator[Network]:
    directions, thresholds = torch.zeros(s.h, s.n, s.d), torch.zeros(s.h)
    yield SoftmaxAttention(s.d, s.c, s.h)
    yield SimplexAttention(s.n, s.d, s.c, s.h)
    yield ConvexLayer(s.n, s.d, s.c)
    yield TransformerBlock(s.d, s.c, s.h, hidden=s.m)
    yield GatedFCN(directions, thresholds, s.c, gate_of_head=torch.arange(s.h))
    yield ConvexLayer(s.n, s.d, s.c, directions=directions, thresholds=thresholds)
