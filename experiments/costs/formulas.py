r"""What the models cost: Table 1 of the paper, corrected, beside counts of the actual modules.

Notation: n tokens, d channels, h heads (or gates), c outputs, m hidden units. FLOPs are those of
matrix products for one sample, two per multiplication and addition; element-wise work (softmax,
LayerNorm, masks) is not counted, by the formulas as little as by PyTorch's counter.
"""

import re
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import LayerNorm, Linear, Module, ReLU, Sequential
from torch.utils.flop_counter import FlopCounterMode

from convexformer import nn

from ..lab import Record, read_config
from ..layers import ConvexLayer

NAMES = {"n": "tokens", "d": "dim", "h": "heads", "c": "outputs", "m": "hidden"}
TABLE = read_config(__file__, "table.toml")["models"]


def costs(
    tokens: int, dim: int, heads: int, outputs: int, hidden: int | None = None
) -> list[Record]:
    """Parameters and FLOPs of the six models of Table 1.

    Parameters
    ----------
    tokens, dim, heads, outputs : int
        n, d, h and c; with a feed-forward part, h is also the number of gates.
    hidden : int, optional
        Hidden units of the standard block; ``4 * dim`` if omitted.

    Returns
    -------
    list of dict
        The rows of ``table.toml``: `layer`, `model`, `paper_parameters`, `paper_flops` (as
        printed; FLOPs are orders, without constants), `parameters_formula`, `flops_formula` (as
        they should be, FLOPs exact) and `correction` (what the printed ones lack). Beside them
        `parameters` and `flops`, values of the formulas as they should be, and
        `counted_parameters` and `counted_flops`, what PyTorch counts in the module itself.

    Examples
    --------
    >>> from experiments.costs.formulas import costs
    >>> convex = costs(tokens=9, dim=20, heads=4, outputs=1)[2]
    >>> convex["model"], convex["parameters"], convex["flops"]
    ('convex', 180, 360)
    """
    values = (tokens, dim, heads, outputs, 4 * dim if hidden is None else hidden)
    sizes = dict(zip("ndhcm", values, strict=True))
    for letter, value in sizes.items():
        if value < 1:
            raise ValueError(f"{NAMES[letter]} must be at least 1, got {value}.")
    X = torch.zeros(1, tokens, dim)
    return [
        row
        | {
            "parameters": evaluate(row["parameters_formula"], sizes),
            "flops": evaluate(row["flops_formula"], sizes),
            "counted_parameters": sum(p.numel() for p in network.parameters() if p.requires_grad),
            "counted_flops": count_flops(network, X),
        }
        for row, network in zip(TABLE, models(**sizes), strict=True)
    ]


def evaluate(formula: str, sizes: dict[str, int]) -> int:
    """The value of a formula whose letters are sizes.

    Examples
    --------
    >>> from experiments.costs.formulas import evaluate
    >>> evaluate("2h(n²d + c)", {"n": 3, "d": 5, "h": 2, "c": 1})
    184
    """
    factors = re.sub(r"(?<=[\w)²])(?=[a-z(])", "*", formula.replace(" ", ""))
    return int(eval(factors.replace("²", "**2"), {}, sizes))


class TransformerBlock(Module):
    r"""The paper's standard transformer block, its eq. (standard_transformer).

    .. math:: A_o = \sum_j \mathrm{softmax}(Q_j K_j^T) V_j W_{oj}, \quad
              X_A = \mathrm{LayerNorm}(A_o) + X, \quad X_B = \sigma(X_A W_1) W_2

    Note what it is not: LayerNorm stands after the attention, on the branch, and there is no skip
    around the feed-forward part.
    """

    def __init__(self, d: int, h: int, c: int, m: int) -> None:
        super().__init__()
        self.attention, self.norm = nn.SoftmaxAttention(d, d, h), LayerNorm(d)
        self.feed = Sequential(Linear(d, m, bias=False), ReLU(), Linear(m, c, bias=False))

    def forward(self, X: Tensor) -> Tensor:
        """Scores ``(N, n, c)``."""
        return self.feed(self.norm(self.attention(X)) + X)


def models(n: int, d: int, h: int, c: int, m: int) -> Iterator[Module]:
    """The models of Table 1 in its order."""
    directions, thresholds = torch.zeros(h, n, d), torch.zeros(h)
    yield nn.SoftmaxAttention(d, c, h)
    yield nn.SimplexAttention(n, d, c, h)
    yield ConvexLayer(n, d, c)
    yield TransformerBlock(d, h, c, m)
    yield nn.GatedFCN(directions, thresholds, c, gate_of_head=torch.arange(h))
    yield nn.GatedLayer(n, d, c, outputs="vector", directions=directions, thresholds=thresholds)


def count_flops(network: Module, X: Tensor) -> int:
    """FLOPs of the matrix products of one forward pass."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(X)
    return int(counter.get_total_flops())
