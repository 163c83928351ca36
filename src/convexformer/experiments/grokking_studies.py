"""Who is trained on division modulo 97, with which hyperparameters: the jobs of each study.

Every contestant tries the same grid on a validation part of the training half; what is chosen there
is trained on the whole training half under several seeds. Ablations change one thing at a time in
the gated layer's recipe. The study of depth gives one layer and two the same number of parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from .grokking_jobs import SETTLED, Job, Recipe
from .grokking_ledger import Ledger
from .records import Record

RATES = (0.01, 0.02, 0.003)
DECAYS = (0.5, 1.0, 2.0)
BETAS = (3e-4, 1e-3, 3e-3)  # of the group lasso, in place of the decay of Z
TUNING_SEED, TUNING_STEPS = 1000, 1500
QUICK = Recipe("gated", lr=0.01, weight_decay=2.0)
QUICK_SEEDS, QUICK_STEPS = 3, 1100  # 600 to reach 99 %, 500 to stay there


@dataclass(frozen=True)
class Contestant:
    """A network and an optimiser.

    With `fixed` hyperparameters there is nothing to choose; with those of another (`like`), nothing
    either, where steps are too dear to try a grid.
    """

    label: str
    model: str
    optimizer: str = "adamw"
    layers: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    fixed: Recipe | None = None
    like: str | None = None
    steps: int = 3000
    seeds: int = 5  # at most

    def grid(self) -> list[Recipe]:
        """The recipes to choose from, as many for everyone."""
        if self.fixed is not None:
            return [self.fixed]
        base = Recipe(self.model, self.optimizer, options=self.options)
        if self.optimizer == "prox":
            return [replace(base, lr=lr, beta=beta) for lr in RATES for beta in BETAS]
        return [replace(base, lr=lr, weight_decay=decay) for lr in RATES for decay in DECAYS]


def plain(model: str, decay: float, **options: Any) -> Recipe:
    """The recipe of Power et al.: learning rate 0.001, nothing clipped or averaged."""
    return Recipe(model, lr=1e-3, weight_decay=decay, clip=None, average=None, options=options)


def deep(layers: int) -> dict[str, Any]:
    return {"n_layers": layers}


CONTESTANTS: dict[str, Contestant] = {
    "gated": Contestant("gated layer", "gated"),
    "power": Contestant("standard block, from the grid", "power"),
    "power-slow": Contestant(
        "standard block, lr 0.003, decay 1", "power", fixed=Recipe("power", lr=0.003)
    ),
    "mlp": Contestant("ReLU MLP", "mlp"),
    "power-default": Contestant(
        "standard block, Power et al.'s recipe", "power", fixed=plain("power", 1.0), steps=8000
    ),
    "grokfast": Contestant("standard block, Grokfast", "power", "grokfast", like="power-slow"),
    "orthograd": Contestant(
        "standard block, OrthoGrad", "power", "orthograd", like="power-slow", seeds=3
    ),
    "prox": Contestant("gated layer, group lasso", "gated", "prox"),
    "paper": Contestant("the paper's block", "paper", seeds=3),
    "simplex": Contestant("simplex attention and ReLU", "simplex", steps=2000, seeds=3),
    "gated-2": Contestant("2 gated layers", "gated", layers=2, options=deep(2)),
    "gated-4": Contestant(
        "4 gated layers", "gated", layers=4, options=deep(4), like="gated-2", steps=1500, seeds=3
    ),
    "power-2": Contestant(
        "2 standard blocks",
        "power",
        layers=2,
        fixed=Recipe("power", lr=0.003, options=deep(2)),
        steps=2000,
        seeds=3,
    ),
    "paper-default": Contestant(
        "the paper's block, Power et al.'s recipe",
        "paper",
        fixed=plain("paper", 1.0),
        steps=8000,
        seeds=2,
    ),
    "no-decay": Contestant(
        "standard block, no weight decay", "power", fixed=plain("power", 0.0), steps=15000, seeds=2
    ),
}


def tune(ledger: Ledger, name: str, grid: list[Recipe], steps: int) -> Recipe:
    """Try a grid on the validation part and choose.

    A recipe is given up once it can no longer settle before the best so far.
    """
    records: list[Record] = []
    for recipe in grid:
        best = min((r["settled"] for r in records if r["settled"] is not None), default=steps)
        most = min(steps, best + SETTLED)
        records.append(ledger.do(Job("tuning", name, recipe, TUNING_SEED, most)))
    return choose(records)


def recipe_for(ledger: Ledger, name: str, chosen: dict[str, Recipe]) -> Recipe:
    """A contestant's hyperparameters: given, another's, or chosen from the grid."""
    contestant = CONTESTANTS[name]
    if contestant.fixed is not None:
        return contestant.fixed
    if contestant.like in chosen:
        base = chosen[contestant.like]
        return replace(base, optimizer=contestant.optimizer, options=contestant.options)
    return tune(ledger, name, contestant.grid(), TUNING_STEPS)


def choose(records: Iterable[Record]) -> Recipe:
    """The recipe that settled first; failing that, the one that came highest."""
    best = min(records, key=lambda r: (r["settled"] or math.inf, -r["best"]))
    return Recipe(**best["recipe"])


def contest_jobs(name: str, recipe: Recipe, seeds: int) -> list[Job]:
    """The chosen recipe on the whole training half, by seeds."""
    contestant = CONTESTANTS[name]
    return [
        Job("contest", name, recipe, seed, contestant.steps)
        for seed in range(min(seeds, contestant.seeds))
    ]


# One thing changed at a time --------------------------------------------------------------------

ABLATION_STEPS, ABLATION_SEEDS = 700, 3


def ablations(base: Recipe) -> dict[str, Recipe]:
    """Recipes that differ from `base`, the gated layer's, in one respect, by what it is."""

    def shape(**options: Any) -> Recipe:
        return replace(base, options=base.options | options)

    return {
        "as chosen": base,
        "gates frozen": shape(frozen_gates=True),
        "no readout": shape(readout=False),
        "learning rate / 2": replace(base, lr=base.lr / 2),
        "learning rate / 10": replace(base, lr=base.lr / 10),
        "no decay": replace(base, weight_decay=0.0),
        "no clipping, no averaging": replace(base, clip=None, average=None),
        "32 gates": shape(n_gates=32),
        "256 gates": shape(n_gates=256),
        "width 16": shape(dim=16),
        "group lasso 0.001, not decay": replace(base, optimizer="prox", beta=1e-3),
        "ReLU MLP in its place": replace(base, model="mlp", options={}),
    }


def ablation_jobs(base: Recipe) -> list[Job]:
    """Every ablation under every seed."""
    return [
        Job("ablation", name, recipe, seed, ABLATION_STEPS)
        for name, recipe in ablations(base).items()
        for seed in range(ABLATION_SEEDS)
    ]


# One layer against two, at equal parameters -----------------------------------------------------

DEPTH_STEPS = 1500
BUDGETS = (140_000,)  # at 400,000 one layer and two are contestants


def gates_within(budget: int, layers: int, dim: int, modulus: int = 97) -> int:
    """Most gates per layer that keep a stack within `budget` parameters.

    Examples
    --------
    >>> from convexformer.experiments.grokking_studies import gates_within
    >>> gates_within(400_000, 1, 32), gates_within(400_000, 2, 32)
    (96, 19)
    """
    n, around = 4, (modulus + 2) * dim + (dim + 1) * modulus  # embedding and readout
    per_gate = (layers - 1) * (n * dim) ** 2 + n * dim * dim
    return (budget - around) // per_gate


def depth_grid(layers: int, budget: int) -> list[Recipe]:
    """As many recipes for one layer as for two: two widths, the learning rates, the decays."""
    return [
        Recipe(
            "gated",
            lr=lr,
            weight_decay=decay,
            options={
                "n_layers": layers,
                "dim": dim,
                "n_gates": gates_within(budget, layers, dim),
            },
        )
        for dim in (16, 32)
        for lr in RATES[:2]
        for decay in DECAYS[1:]
    ]


def depth_name(layers: int, budget: int) -> str:
    return f"{'one layer' if layers == 1 else 'two layers'}, {budget // 1000}k"
