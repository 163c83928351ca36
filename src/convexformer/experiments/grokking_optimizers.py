"""Two ways to grok sooner with AdamW, from their papers: filter the gradient, or turn it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..nn import GatedTransformer, ProximalAdam

BETAS = (0.9, 0.98)  # as in Power et al., for all


class Grokfast(torch.optim.AdamW):
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
        if not (0 <= alpha < 1 and gain >= 0):
            raise ValueError(
                f"alpha must be in [0, 1) and gain at least 0, got {alpha:g} and {gain:g}."
            )
        super().__init__(params, **options)
        self.alpha, self.gain = alpha, gain

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Amplify what changes slowly, then step."""
        averages: dict[Tensor, Tensor] = {}
        for W, gradient in gradients(self):
            slow = self.state[W].get("slow")
            if slow is None:
                slow = gradient.clone()
            else:
                slow.lerp_(gradient, 1 - self.alpha)
            averages[W] = slow
            gradient.add_(slow, alpha=self.gain)
        loss = super().step(closure)
        for W, slow in averages.items():  # afterwards: AdamW sets itself up in an empty state only
            self.state[W]["slow"] = slow
        return loss


class OrthoGrad(torch.optim.AdamW):
    r"""AdamW on gradients turned orthogonal to the weights (Prieto et al., 2025).

    .. math:: g_\perp = g - \frac{\langle w, g\rangle}{\langle w, w\rangle}\, w, \qquad
              \hat g = \frac{\|g\|}{\|g_\perp\|}\, g_\perp

    for each array of weights, so that no step merely scales them up.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Turn the gradients, then step."""
        for W, gradient in gradients(self):
            size = gradient.norm()
            share = torch.vdot(W.flatten(), gradient.flatten()) / W.square().sum().clamp(min=1e-30)
            gradient.sub_(share * W)
            gradient.mul_(size / gradient.norm().clamp(min=1e-30))
        return super().step(closure)


def gradients(optimizer: torch.optim.Optimizer) -> Iterator[tuple[Tensor, Tensor]]:
    """All weights of `optimizer` that have a gradient, with it."""
    for group in optimizer.param_groups:
        for W in group["params"]:
            if W.grad is not None:
                yield W, W.grad


OPTIMIZERS: dict[str, type[torch.optim.AdamW]] = {
    "adamw": torch.optim.AdamW,
    "grokfast": Grokfast,
    "orthograd": OrthoGrad,
}


def make_optimizer(
    name: str,
    model: nn.Module,
    lr: float,
    weight_decay: float,
    beta: float = 0.0,
    **tweaks: float,
) -> torch.optim.Optimizer:
    """The optimiser `name` over the weights of `model`; `tweaks` are what it has beside AdamW.

    "prox" is for gated layers: their Z has the group lasso of strength `beta` by exact proximal
    steps in place of decay; all else is decayed.
    """
    if name == "prox":
        if not isinstance(model, GatedTransformer):
            raise ValueError("proximal steps are for the groups of gated layers; choose adamw.")
        groups = model.parameter_groups(beta=beta, weight_decay=0.0)
        return ProximalAdam(groups, lr=lr, weight_decay=weight_decay, betas=BETAS)
    if name not in OPTIMIZERS:
        raise ValueError(f"there is no optimiser {name}; choose of {', '.join(OPTIMIZERS)}, prox.")
    options: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay, "betas": BETAS, **tweaks}
    return OPTIMIZERS[name](model.parameters(), **options, fused=True)
