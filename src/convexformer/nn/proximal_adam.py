"""Adam with the exact proximal step of the group lasso: groups become exactly zero."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

MAX_NEWTON = 100  # a guard; a handful of iterations do


class ProximalAdam(torch.optim.Optimizer):
    r"""AdamW for a loss f with a group lasso, by an exact proximal step in the metric of Adam.

    .. math:: Z \leftarrow \arg\min_Z\ \langle \hat m, Z\rangle +
              \tfrac1{2\,\mathrm{lr}} \sum_i D_i (Z_i - Z_i^{\mathrm{old}})^2 +
              \beta \sum_g \|Z_g\|_2, \qquad D = \sqrt{\hat v} + \mathrm{eps}

    Adam's moments :math:`\hat m` and :math:`\hat v` are of the gradient of f alone: leave the
    penalty out of the loss that is differentiated. Groups become exactly zero, and stay zero while
    :math:`\|\hat m_g\|_2 \le \beta`, which is the condition of optimality of the group lasso.
    Because the penalty is minimised in the same metric as the loss, the minimiser of
    :math:`f + \beta \sum \|Z_g\|` does not move; the usual shortcut, soft thresholding by
    :math:`\mathrm{lr}\,\beta`, has other fixed points. Parameters with ``beta = 0`` take the steps
    of :class:`torch.optim.AdamW`.

    To converge to the minimiser of a convex problem, use whole batches and ``amsgrad=True``, with
    which D only grows until steps are short enough. Without it the iterates may circle, or even
    leave, where the penalty is so weak that gradients vanish at the minimiser. With minibatches
    they hover about it, which a decaying `lr` mends, and groups that should be zero flicker as long
    as the noise of :math:`\hat m_g` exceeds beta, which ``betas[0]`` closer to one mends.

    Parameters
    ----------
    params : iterable
        Parameters or groups of them; a group's options go before those below.
        :meth:`GatedTransformer.parameter_groups` makes them.
    lr : float
    betas : tuple of two floats
        How slowly the two moments forget.
    eps : float
    weight_decay : float
        Decoupled, as in AdamW: parameters are first multiplied by ``1 - lr * weight_decay``.
    amsgrad : bool
        Whether D uses the largest second moment so far.
    beta : float
        Strength of the group lasso (one number; not Adam's `betas`).
    group_axes : tuple of int
        Axes of a parameter that lie within a group; needed where ``beta > 0``.

    Examples
    --------
    >>> import torch
    >>> from convexformer.nn import GatedLayer, ProximalAdam
    >>> _ = torch.manual_seed(0)
    >>> X = torch.randn(200, 5, 3)
    >>> y = X[:, 2, :1]  # only token 2 matters
    >>> layer = GatedLayer(5, 3, n_outputs=1, n_gates=4, outputs="vector")
    >>> optimizer = ProximalAdam([layer.Z], lr=0.02, beta=0.2, group_axes=layer.group_axes)
    >>> for _ in range(200):
    ...     optimizer.zero_grad()
    ...     (layer(X) - y).square().mean().backward()
    ...     _ = optimizer.step()
    >>> layer.group_norms()[:, :, 0].amax(0) > 0  # by token
    tensor([False, False,  True, False, False])
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        beta: float = 0.0,
        group_axes: tuple[int, ...] = (),
    ) -> None:
        options: dict[str, Any] = {"lr": lr, "betas": betas, "eps": eps, "amsgrad": amsgrad}
        options |= {"weight_decay": weight_decay, "beta": beta, "group_axes": group_axes}
        super().__init__(params, options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with options of their own."""
        options = self.defaults | param_group
        if not all(0 <= beta < 1 for beta in options["betas"]):
            raise ValueError(f"betas must lie in [0, 1), got {options['betas']}.")
        if not options["eps"] > 0:
            raise ValueError(f"eps must be positive, got {options['eps']}.")
        for name in ("lr", "weight_decay", "beta"):
            if not options[name] >= 0:
                raise ValueError(f"{name} must not be negative, got {options[name]}.")
        if options["beta"] and not options["group_axes"]:
            raise ValueError(
                "beta > 0 needs group_axes, the axes of a parameter that lie within a group; "
                "layers tell theirs: beta=0.1, group_axes=layer.group_axes."
            )
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; `closure`, if given, evaluates the loss again and it is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for Z in group["params"]:
                if Z.grad is not None:
                    self._step_one(Z, Z.grad, group)
        return loss

    def _step_one(self, Z: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        if gradient.is_sparse:
            raise ValueError("ProximalAdam needs dense gradients; pass sparse=False to the layer.")
        lr, (beta1, beta2), axes = float(group["lr"]), group["betas"], group["group_axes"]
        state = self.state[Z]
        if not state:
            names = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")[: 2 + group["amsgrad"]]
            state.update({name: torch.zeros_like(Z) for name in names}, step=0)
        state["step"] += 1
        m, v = state["exp_avg"], state["exp_avg_sq"]
        m.lerp_(gradient, 1 - beta1)
        v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        if group["amsgrad"]:
            v = torch.maximum(state["max_exp_avg_sq"], v, out=state["max_exp_avg_sq"])
        D = v.sqrt().div_((1 - beta2 ** state["step"]) ** 0.5).add_(group["eps"])
        if group["weight_decay"]:
            Z.mul_(1 - lr * group["weight_decay"])
        Z.addcdiv_(m, D, value=-lr / (1 - beta1 ** state["step"]))
        if group["beta"] and lr:  # without a step there is nothing to shrink
            Z.copy_(prox_group_norm(Z, D, lr * group["beta"], axes))


def prox_group_norm(V: Tensor, D: Tensor, strength: float, axes: tuple[int, ...]) -> Tensor:
    r"""Proximal operator of the group norm in a diagonal metric, exact.

    .. math:: \arg\min_Z\ \tfrac12 \sum_i D_i (Z_i - V_i)^2 + \lambda \sum_g \|Z_g\|_2

    A group is zero where :math:`\|D_g V_g\|_2 \le \lambda`. Elsewhere
    :math:`Z_i = D_i V_i s / (D_i s + \lambda)`, and its norm s is the root of the secular equation

    .. math:: \psi(s) = 1 \Big/ \Big\|\frac{D_g V_g}{D_g s + \lambda}\Big\|_2 - 1 = 0.

    :math:`\psi` is increasing and concave: from the left of the root, where Newton's method starts,
    it goes up to the root without overshooting. Where all D are equal :math:`\psi` is linear, and
    the answer is block soft thresholding.

    Parameters
    ----------
    V, D : Tensor of the same shape
        D is positive.
    strength : float
        :math:`\lambda > 0`.
    axes : tuple of int
        Axes that lie within a group.

    Examples
    --------
    >>> import torch
    >>> from convexformer.nn import prox_group_norm
    >>> V = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    >>> prox_group_norm(V, torch.ones(2, 2), 1.0, axes=(1,))
    tensor([[2.4000, 3.2000],
            [0.0000, 0.0000]])
    """
    A = D * V
    size = torch.linalg.vector_norm(A, dim=axes, keepdim=True)
    s = (size - strength).clamp(min=0) / D.amax(axes, keepdim=True)  # never above the root
    number = torch.finfo(s.dtype)
    for _ in range(MAX_NEWTON):
        B = D * s + strength
        Q = (A / B).square_()
        phi = Q.sum(axes, keepdim=True)  # psi = phi^(-1/2) - 1
        slope = (Q * D).div_(B).sum(axes, keepdim=True).clamp_(min=number.tiny)
        step = phi * (phi.sqrt() - 1) / slope
        if not bool((step > 16 * number.eps * s).any()):  # what is not a number does not step
            break
        s = s + step.clamp(min=0)
    # asked this way round, what is not a number stays so, and is not hidden as a zero
    return torch.where(size <= strength, 0.0, A * (s / (D * s + strength)))
