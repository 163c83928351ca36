"""Nonconvex networks, trained from many random starts, against the certified optimum.

The convex program of a network's class gives a floor: its dual value. No network of the class,
however it is trained, has an objective below it. With too few heads networks must stay above; with
enough, those that find the global optimum come down to it. A job is one problem, one optimiser and
one number of heads, all starts side by side on one thread.

Heights are relative to the floor, ``(objective - dual) / dual``; seconds are of processor time.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from convexformer.nn._network import Network
from convexformer.problem.losses import Loss

from ..lab import KeyedJob, Ledger, Record, picked, rounded
from .problems import CASES, Array, Case

# Learning rates at the first step, falling to zero as a cosine; the same for all problems and
# numbers of heads. SGD's is in units of one over the largest curvature of the loss.
OPTIMIZERS: dict[str, dict[str, float]] = {
    "adam": {"lr": 0.03},
    "sgd": {"lr": 0.1, "momentum": 0.9},
}
NAMES = {"adam": "Adam", "sgd": "SGD"}
QUANTILES = {"min": 0.0, "q10": 0.1, "median": 0.5, "q90": 0.9, "max": 1.0}
RECORDS = 50  # points on a curve
CLOSE = 1e-4  # a start this near has come down to the floor
ROUNDING = 1e-12  # heights of less than this below zero are rounding


@dataclass(frozen=True)
class Settings:
    """How much to train. `quick` trains 1, enough and twice enough heads, and none between."""

    starts: int = 200
    steps: int = 2000
    seed: int = 0
    quick: bool = False


@dataclass(frozen=True)
class Job(KeyedJob):
    """One problem, one optimiser, one number of heads."""

    case: Case = field(repr=False)
    optimizer: str
    heads: int
    settings: Settings = field(repr=False)

    def rules(self) -> Record:
        key = {"problem": self.case.name, "fingerprint": self.case.fingerprint}
        key |= picked(vars(self.settings), ("starts", "steps", "seed"))
        return key | {"options": OPTIMIZERS[self.optimizer]}

    def __str__(self) -> str:
        return f"{self.case.label}: {self.optimizer}, heads: {self.heads}"

    def run(self) -> Record:
        """Train all starts, and say how far above the floor they were, and when."""
        case, settings = self.case, self.settings
        options = dict(OPTIMIZERS[self.optimizer])
        if self.optimizer == "sgd":
            options["lr"] /= case.curvature
        torch.manual_seed(settings.seed)
        runs = train_starts(
            lambda: case.make(self.heads),
            torch.tensor(case.X),
            torch.tensor(case.Y),
            loss=case.loss,
            beta=case.beta,
            n_starts=settings.starts,
            steps=settings.steps,
            optimizer=self.optimizer,
            every=max(1, settings.steps // RECORDS),
            **options,
        )
        heights = height(runs.objectives.numpy(), case)  # (records, starts)
        lowest = height(runs.lowest.numpy(), case)  # (starts,)
        curves = np.quantile(heights, list(QUANTILES.values()), axis=1)
        return {
            "label": case.label,
            "enough": case.enough,
            "loss": case.loss,
            "lr": options["lr"],
            "floor": case.certificate.to_dict() | {"solver_seconds": round(case.solver_seconds, 5)},
            "recorded_steps": runs.steps,
            "recorded_seconds": [round(second, 4) for second in runs.seconds],
            "heights": dict(zip(QUANTILES, map(rounded, curves), strict=True)),
            "lowest_objective": float(runs.lowest.min()),
            "lowest": rounded(np.sort(lowest)),
            "below": int(np.count_nonzero(lowest < -ROUNDING)),
        }


def height(objectives: Array, case: Case) -> Array:
    """How far objectives are above the certified dual value, as fractions of it."""
    dual = case.certificate.dual
    return (objectives - dual) / dual


def run(
    ledger: Ledger, names: Iterable[str] = tuple(CASES), settings: Settings | None = None
) -> Record:
    """Train what is missing on the problems `names`, each solved and certified."""
    settings = Settings() if settings is None else settings
    records = ledger.do_each(
        Job(case, optimizer, heads, settings)
        for case in (CASES[name]() for name in names)
        for optimizer in OPTIMIZERS
        for heads in case.heads(settings.quick)
    )
    return ledger.header() | summarise(records, settings)


# Stamps and repeated facts that the summary holds once, or for a whole problem
_SHARED = ("environment", "label", "enough", "loss", "floor", "fingerprint", "options")


def summarise(records: list[Record], settings: Settings) -> Record:
    """What figures, tables and the page are made from."""
    kept = ("label", "enough", "loss", "floor")
    return {
        "settings": asdict(settings),
        "optimizers": OPTIMIZERS,
        "close": CLOSE,
        "rounding": ROUNDING,
        "problems": {record["problem"]: picked(record, kept) for record in records},
        "rows": [row(record) for record in records],
        "records": [
            {key: value for key, value in record.items() if key not in _SHARED}
            for record in records
        ],
    }


def row(record: Record) -> Record:
    """A job in one line of a table."""
    lowest = np.array(record["lowest"])
    return picked(record, ("problem", "optimizer", "heads")) | {
        "enough": record["heads"] >= record["enough"],
        "best": float(lowest.min()),
        "median": float(np.median(lowest)),
        "close": float(np.mean(lowest <= CLOSE)),
        "below": record["below"],
        "starts": record["starts"],
        "seconds": record["recorded_seconds"][-1],
    }


# Many runs at once --------------------------------------------------------------------------------


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
    **options
        Further arguments of the optimiser, such as ``momentum``.

    Returns
    -------
    Runs

    Examples
    --------
    >>> import torch
    >>> from convexformer.nn import SimplexAttention
    >>> from experiments.equivalence.experiment import train_starts
    >>> X = torch.randn(20, 3, 2)
    >>> y = X[:, 0, :1]
    >>> def make():
    ...     return SimplexAttention(3, 2, 1, n_heads=2)
    >>> runs = train_starts(make, X, y, beta=0.1, n_starts=4, steps=9)
    >>> runs.objectives.shape
    torch.Size([2, 4])
    """
    networks = [make() for _ in range(n_starts)]
    parameters, buffers = stack_module_state(networks)
    template = _Objective(networks[0])

    def objective(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        state = {f"network.{name}": value for name, value in (parameters | buffers).items()}
        return functional_call(template, state, (X, Y, loss, beta))

    values = vmap(objective)  # (starts,) from stacked states
    kind = getattr(torch.optim, NAMES[optimizer])
    stepper: torch.optim.Optimizer = kind(list(parameters.values()), lr=lr, **options)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(stepper, steps)
    begin, lowest = time.process_time(), torch.full((n_starts,), torch.inf, dtype=X.dtype)
    points: list[tuple[int, float, Tensor]] = []
    for step in range(steps + 1):
        stepper.zero_grad()
        P = values(parameters, buffers)  # (starts,)
        lowest = torch.minimum(lowest, P.detach())
        if step % every == 0 or step == steps:
            points.append((step, time.process_time() - begin, P.detach()))
        if step < steps:
            P.sum().backward()
            stepper.step()
            schedule.step()
    taken, seconds, objectives = map(list, zip(*points, strict=True))
    return Runs(taken, seconds, torch.stack(objectives), lowest)


class _Objective(torch.nn.Module):
    """A network whose forward is its objective, as `functional_call` wants it."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, X: Tensor, Y: Tensor, loss: str | Loss, beta: float) -> Tensor:
        return self.network.objective(X, Y, loss, beta)
