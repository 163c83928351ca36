"""Many nonconvex runs at once: one vectorised training loop over independent random starts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from ..problem.losses import Loss
from ._network import Network

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
}


@dataclass(frozen=True)
class Runs:
    """What independent runs reached, and when.

    Attributes
    ----------
    steps : list of int
        Steps at which the objectives were recorded.
    seconds : list of float
        Time since the start at those steps.
    objectives : Tensor of shape (records, starts)
    lowest : Tensor of shape (starts,)
        Lowest objective of every run over all its steps.
    """

    steps: list[int]
    seconds: list[float]
    objectives: Tensor
    lowest: Tensor


def train_starts(
    make: Callable[[], Network],
    X: Tensor,
    Y: Tensor,
    *,
    loss: str | Loss = "squared",
    beta: float,
    n_starts: int = 200,
    steps: int = 1000,
    lr: float = 0.05,
    optimizer: str = "adam",
    every: int = 50,
    clock: Callable[[], float] = time.perf_counter,
    **options: Any,
) -> Runs:
    """Train networks from random starts, all in one batched computation.

    The runs do not see each other: the sum of their objectives has each one's gradient in its own
    block, and the optimisers work entry by entry. The learning rate falls to zero as a cosine, so
    that runs settle at the kinks of the decay.

    Parameters
    ----------
    make : callable
        Builds one randomly initialised network; called `n_starts` times.
    X, Y : Tensor
        Data of the objective, on which every step is taken whole.
    loss, beta
        As in :meth:`Network.objective`.
    n_starts, steps : int
    lr : float
        Learning rate at the first step.
    optimizer : {"adam", "sgd"}
    every : int
        Steps between records; the first and the last step are always recorded.
    clock : callable
        What tells the seconds; ``time.process_time`` where others use the machine too.
    **options
        Further arguments of the optimiser, such as ``momentum``.

    Returns
    -------
    Runs

    Examples
    --------
    >>> import torch
    >>> from convexformer.nn import SimplexAttention, train_starts
    >>> X = torch.randn(20, 3, 2)
    >>> y = X[:, 0, :1]
    >>> def make():
    ...     return SimplexAttention(3, 2, 1, n_heads=2)
    >>> runs = train_starts(make, X, y, beta=0.1, n_starts=4, steps=9)
    >>> runs.objectives.shape
    torch.Size([2, 4])
    """
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {optimizer!r}.")
    networks = [make() for _ in range(n_starts)]
    parameters, buffers = stack_module_state(networks)
    template = _Objective(networks[0])

    def objective(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        state = {f"network.{name}": value for name, value in (parameters | buffers).items()}
        return functional_call(template, state, (X, Y, loss, beta))

    values = vmap(objective)  # (starts,) from stacked states
    stepper = OPTIMIZERS[optimizer](list(parameters.values()), lr=lr, **options)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(stepper, steps)
    begin, lowest = clock(), torch.full((n_starts,), torch.inf, dtype=X.dtype)
    taken: list[int] = []
    seconds: list[float] = []
    objectives: list[Tensor] = []
    for step in range(steps + 1):
        stepper.zero_grad()
        P = values(parameters, buffers)  # (starts,)
        lowest = torch.minimum(lowest, P.detach())
        if step % every == 0 or step == steps:
            taken.append(step)
            seconds.append(clock() - begin)
            objectives.append(P.detach())
        if step < steps:
            P.sum().backward()
            stepper.step()
            schedule.step()
    return Runs(taken, seconds, torch.stack(objectives), lowest)


class _Objective(torch.nn.Module):
    """A network whose forward is its objective, as `functional_call` wants it."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, X: Tensor, Y: Tensor, loss: str | Loss, beta: float) -> Tensor:
        return self.network.objective(X, Y, loss, beta)
