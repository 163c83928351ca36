"""Networks and optimisers for modular division: tokens ``a, ÷, b, =`` in, scores of the answer out.

None of them is trained by a convex program: embeddings are trained in all, and gates recomputed.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from convexformer import nn as layers

N_TOKENS = 4


class StandardTransformer(nn.Module):
    r"""A decoder-only transformer with softmax attention, read at the last token.

    Blocks are those of Power et al., with LayerNorm after each sum,

    .. math:: A = \mathrm{LN}(X + \mathrm{attention}(X)), \quad
              Y = \mathrm{LN}(A + \sigma(A W_1) W_2)

    or those of the paper, with LayerNorm on the branch and no skip around the second part:

    .. math:: A = X + \mathrm{LN}(\mathrm{attention}(X)), \qquad Y = \sigma(A W_1) W_2

    The last block computes the last token alone, which is all that is read: the same scores in a
    third of the time.

    Parameters
    ----------
    vocabulary, n_outputs, n_layers, dim, n_heads : int
    block : {"power", "paper"}
    """

    def __init__(
        self,
        vocabulary: int,
        n_outputs: int,
        n_layers: int = 1,
        dim: int = 128,
        n_heads: int = 4,
        block: str = "power",
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.register_buffer("positions", sinusoids(N_TOKENS, dim))
        self.blocks = nn.ModuleList(Block(dim, n_heads, block) for _ in range(n_layers))
        self.readout = nn.Linear(dim, n_outputs, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores ``(B, c)`` of tokens ``(B, 4)``."""
        X = self.embedding(tokens) + self.positions  # (B, 4, d)
        for i, block in enumerate(self.blocks):
            X = block(X, last_only=i == len(self.blocks) - 1)  # (B, 4, d), then (B, 1, d)
        return self.readout(X[:, -1])


class Block(nn.Module):
    """One block of a :class:`StandardTransformer`."""

    def __init__(self, dim: int, n_heads: int, kind: str) -> None:
        super().__init__()
        self.n_heads, self.kind = n_heads, kind
        self.query, self.key, self.value, self.output = (
            nn.Linear(dim, dim, bias=False) for _ in range(4)
        )
        self.norm = nn.LayerNorm(dim)
        self.second_norm = nn.LayerNorm(dim) if kind == "power" else nn.Identity()
        self.feed = nn.Sequential(
            nn.Linear(dim, 4 * dim, bias=False), nn.ReLU(), nn.Linear(4 * dim, dim, bias=False)
        )

    def forward(self, X: Tensor, last_only: bool = False) -> Tensor:
        """Tokens ``(B, n, d)``, of which only the last is computed if `last_only`."""
        asking = X[:, -1:] if last_only else X
        attended = self.attention(asking, X)
        if self.kind == "paper":
            return self.feed(asking + self.norm(attended))
        A = self.norm(asking + attended)
        return self.second_norm(A + self.feed(A))

    def attention(self, asking: Tensor, X: Tensor) -> Tensor:
        """What each asking token takes from the tokens up to it."""
        Q, K, V = (
            part.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)  # (B, heads, n, d / heads)
            for part in (self.query(asking), self.key(X), self.value(X))
        )
        causal = asking.shape[1] > 1
        mixed = functional.scaled_dot_product_attention(Q, K, V, is_causal=causal)
        return self.output(mixed.transpose(1, 2).flatten(2))


def sinusoids(n: int, dim: int) -> Tensor:
    """The positional encoding of Vaswani et al., ``(n, dim)``."""
    rates = 10_000.0 ** (-torch.arange(0, dim, 2) / dim)
    angles = torch.arange(n)[:, None] * rates  # (n, dim / 2)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


def side_by_side(dim: int, width: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(N_TOKENS * dim, width))


def simplex(dim: int, width: int) -> nn.Module:
    return layers.SimplexAttention(N_TOKENS, dim, width, n_heads=256)


class MLP(nn.Module):
    r"""The control: embeddings side by side, one hidden layer, :math:`\sigma` ReLU or the square.

    .. math:: F = \sigma([E_{t_1} \dots E_{t_4}] W_1 + b_1)\, W_2 + b_2

    With `simplex` as `hidden`, the paper's simplex attention takes the place of the first matrix:

    .. math:: F = \sigma\Bigl(\sum_j w_{1j}^T X\, w_{2j} w_{3j}^T\Bigr) R + b, \quad
              w_{1j} \in \Delta

    Without the ReLU these scores would be a sum of one term for a and one for b, and so could not
    tell the answer.
    """

    def __init__(
        self,
        vocabulary: int,
        n_outputs: int,
        dim: int = 32,
        width: int = 1760,
        square: bool = False,
        hidden: Callable[[int, int], nn.Module] = side_by_side,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        nn.init.normal_(self.embedding.weight, std=0.3)
        self.hidden = hidden(dim, width)
        self.readout = nn.Linear(width, n_outputs)
        self.square = square

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores ``(B, c)`` of tokens ``(B, 4)``."""
        H = self.hidden(self.embedding(tokens))  # (B, 4, d) -> (B, width)
        return self.readout(H.square() if self.square else functional.relu(H))


class HyperCube(nn.Module):
    r"""Scores as traces of products of three learned matrices (Huh, 2024).

    .. math:: F_c = \tfrac{1}{n} \mathrm{tr}(A_a B_b C_c)

    Made for tables of groups, whose representations are matrices: an upper reference, not a rival.
    """

    def __init__(self, vocabulary: int, n_outputs: int, dim: int = 15) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Parameter(torch.randn(vocabulary, dim, dim) / dim**0.5) for _ in range(2)
        )
        self.third = nn.Parameter(torch.randn(n_outputs, dim, dim) / dim**0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores ``(B, c)`` of tokens ``(B, 4)``."""
        C = self.third.transpose(1, 2).flatten(1)  # (c, n n)
        products = self.first[tokens[:, 0]] @ self.second[tokens[:, 2]]  # A_a B_b, (B, n, n)
        return products.flatten(1) @ C.T / self.third.shape[1]


# By name ----------------------------------------------------------------------------------------


def gated(
    vocabulary: int, n_outputs: int, inputs: str = "vocabulary", n_layers: int = 1, **options: Any
) -> layers.GatedTransformer:
    """A stack of gated layers; deeper ones have fewer gates, for equal numbers of parameters.

    `inputs` are tokens of a "vocabulary"; or, one-hot, "n_features": a trained linear map is an
    embedding, and can be batched.
    """
    options = {"n_gates": EQUAL_GATES.get(n_layers, 96), inputs: vocabulary} | options
    return layers.GatedTransformer(
        layers.GatedTransformerConfig(N_TOKENS, n_outputs, n_layers=n_layers, **options)
    )


EQUAL_GATES = {1: 96, 2: 19, 4: 7}
"""Gates per layer, by depth, that give 0.39 to 0.40 million parameters at dim 32."""

KINDS: dict[str, Callable[..., nn.Module]] = {
    "gated": gated,
    "gated-one-hot": partial(gated, inputs="n_features"),
    "power": StandardTransformer,
    "paper": partial(StandardTransformer, block="paper"),
    "mlp": MLP,
    "simplex": partial(MLP, width=1024, hidden=simplex),
    "square": partial(MLP, square=True),
    "hypercube": HyperCube,
}


def make_model(kind: str, modulus: int, **options: Any) -> nn.Module:
    """A new network for division by `modulus`, its weights drawn from torch's generator.

    Examples
    --------
    >>> from experiments.grokking.models import make_model
    >>> model = make_model("gated", 97)
    >>> sum(weights.numel() for weights in model.parameters())
    399585
    """
    return KINDS[kind](modulus + 2, modulus, **options)


# Optimisers: two ways to grok sooner with AdamW, from their papers: filter the gradient, or turn it

MOMENTS = (0.9, 0.98)  # as in Power et al., for all


class Changed(torch.optim.AdamW):
    """AdamW on gradients that are changed in place, by `change`, before every step."""

    def change(self, W: Tensor, gradient: Tensor) -> None:
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        for W in (W for group in self.param_groups for W in group["params"]):
            self.change(W, W.grad)
        return super().step(closure)


class Grokfast(Changed):
    r"""AdamW on gradients whose slow part is amplified (Lee et al., 2024; the EMA filter).

    .. math:: \mu \leftarrow \alpha \mu + (1 - \alpha) g, \qquad \hat g = g + \lambda \mu

    Parameters
    ----------
    params : iterable
    alpha, gain : float
        :math:`\alpha` and :math:`\lambda`; the average begins with the first gradient.
    **options
        Of :class:`torch.optim.AdamW`.
    """

    def __init__(
        self, params: Iterable[Any], alpha: float = 0.98, gain: float = 2.0, **options: Any
    ) -> None:
        super().__init__(params, **options)
        self.alpha, self.gain = alpha, gain
        self.averages: dict[Tensor, Tensor] = {}

    def change(self, W: Tensor, gradient: Tensor) -> None:
        slow = self.averages.setdefault(W, gradient.clone())
        slow.lerp_(gradient, 1 - self.alpha)
        gradient.add_(slow, alpha=self.gain)


class OrthoGrad(Changed):
    r"""AdamW on gradients turned orthogonal to the weights (Prieto et al., 2025).

    .. math:: g_\perp = g - \frac{\langle w, g\rangle}{\langle w, w\rangle}\, w, \qquad
              \hat g = \frac{\|g\|}{\|g_\perp\|}\, g_\perp

    for each array of weights, so that no step merely scales them up.
    """

    def change(self, W: Tensor, gradient: Tensor) -> None:
        size = gradient.norm()
        share = torch.vdot(W.flatten(), gradient.flatten()) / W.square().sum().clamp(min=1e-30)
        gradient.sub_(share * W)
        gradient.mul_(size / gradient.norm().clamp(min=1e-30))


OPTIMIZERS: dict[str, type[torch.optim.AdamW]] = {
    "adamw": torch.optim.AdamW,
    "grokfast": Grokfast,
    "orthograd": OrthoGrad,
}
