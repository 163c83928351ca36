"""Who is trained on division modulo 97, with which hyperparameters: the jobs of each study.

All studies but one share a single split of the equations. Hyperparameters are searched on a
validation part of its training half, by the same rule for every contestant; what is chosen there is
trained on the whole training half under several seeds, and the test half is looked at then only.
Ablations change one thing at a time in the gated layer's recipe. The study of depth gives one layer
and two the same number of parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from .grokking_jobs import SETTLED, Job, Recipe
from .grokking_ledger import Ledger
from .records import Record

# In the order of trying: a good recipe early on spares most of the steps of the bad ones
RATES = (0.01, 0.02, 0.005, 0.04, 0.002, 0.08)
DECAYS = (1.0, 2.0, 0.5, 4.0, 0.25)
BETAS = (1e-3, 3e-3, 3e-4, 1e-2, 1e-4)  # of the group lasso, in place of the decay of Z
FILTERS = ({"alpha": 0.98, "gain": 2.0}, {"alpha": 0.9, "gain": 1.0})  # of Grokfast
TUNING_STEPS = 2500
TUNING_SEEDS = (1000, 1001)  # the second for the finalists alone
FINALISTS = 3
QUICK = Recipe("gated", lr=0.04)  # as the search of the contest chose it
EMBEDDING = Recipe("gated", lr=0.01, weight_decay=2.0)  # of the network that convex layers read
QUICK_SEEDS, QUICK_STEPS = 3, 1100  # 600 to reach 99 %, 500 to stay there

Line = Callable[[Recipe], list[Recipe]]
"""Recipes that differ from a given one in a single respect."""


def rates(recipe: Recipe) -> list[Recipe]:
    return [replace(recipe, lr=lr) for lr in RATES]


def strengths(recipe: Recipe) -> list[Recipe]:
    if recipe.optimizer == "prox":
        return [replace(recipe, beta=beta) for beta in BETAS]
    return [replace(recipe, weight_decay=decay) for decay in DECAYS]


def filters(recipe: Recipe) -> list[Recipe]:
    return [replace(recipe, tweaks=dict(tweaks)) for tweaks in FILTERS]


SEARCH: tuple[Line, ...] = (rates, strengths, rates)


@dataclass(frozen=True)
class Contestant:
    """A network and an optimiser. With a `fixed` recipe there is nothing to search."""

    label: str
    model: str
    optimizer: str = "adamw"
    layers: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    fixed: Recipe | None = None
    search: tuple[Line, ...] = SEARCH
    steps: int = 3000
    seeds: int = 5  # at most

    @property
    def start(self) -> Recipe:
        """Where the search begins: the first of every line."""
        recipe = Recipe(self.model, self.optimizer, options=self.options)
        for line in self.search:
            recipe = line(recipe)[0]
        return recipe


def plain(model: str, decay: float) -> Recipe:
    """The recipe of Power et al.: learning rate 0.001, nothing clipped or averaged."""
    return Recipe(model, lr=1e-3, weight_decay=decay, clip=None, average=None)


def deep(layers: int) -> dict[str, Any]:
    return {"n_layers": layers}


CONTESTANTS: dict[str, Contestant] = {
    "gated": Contestant("gated layer", "gated"),
    "power": Contestant("standard block", "power"),
    "mlp": Contestant("ReLU MLP", "mlp"),
    "power-default": Contestant(
        "standard block, Power et al.'s recipe", "power", fixed=plain("power", 1.0), steps=8000
    ),
    "grokfast": Contestant(
        "standard block, Grokfast", "power", "grokfast", search=(*SEARCH, filters)
    ),
    "prox": Contestant("gated layer, group lasso", "gated", "prox"),
    "power-wide": Contestant("standard block, width 176", "power", options={"dim": 176}),
    "orthograd": Contestant("standard block, OrthoGrad", "power", "orthograd"),
    "gated-2": Contestant("2 gated layers", "gated", layers=2, options=deep(2)),
    "paper": Contestant("the paper's block", "paper"),
    "simplex": Contestant("simplex attention and ReLU", "simplex", search=SEARCH[:2], seeds=3),
    "gated-4": Contestant("4 gated layers", "gated", layers=4, options=deep(4), seeds=3),
    "power-2": Contestant(
        "2 standard blocks", "power", layers=2, options=deep(2), search=SEARCH[:2], seeds=3
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
    "grokfast-default": Contestant(
        "standard block, Power et al.'s recipe with Grokfast",
        "power",
        "grokfast",
        fixed=replace(plain("power", 1.0), optimizer="grokfast", tweaks=dict(FILTERS[0])),
        steps=8000,
        seeds=3,
    ),
}


def tune(ledger: Ledger, name: str, start: Recipe, search: Iterable[Line], most: int) -> Recipe:
    """Search line by line, each line through the best so far; what was tried is not tried again.

    A recipe is given up after `most` steps, and before once it can no longer be the first to
    settle. Of those that settle first, the one that does so first under a second seed, too, is
    chosen: the quickest under a single seed is often the most fragile.
    """
    best, tried, records = start, list[Recipe](), list[Record]()
    for line in search:
        for recipe in line(best):
            if recipe not in tried:
                steps = min(most, earliest(records, most) + SETTLED)
                records.append(ledger.do(Job("tuning", name, recipe, TUNING_SEEDS[0], steps)))
                tried.append(recipe)
        best = choose(records)
    finalists = sorted((r for r in records if r["settled"]), key=lambda r: int(r["settled"]))
    later: list[Record] = []  # of both seeds, the one that took longer
    for one in finalists[:FINALISTS]:
        steps = min(most, earliest(later, most) + SETTLED)
        recipe = Recipe(**one["recipe"])
        again = ledger.do(Job("tuning", name, recipe, TUNING_SEEDS[1], steps))
        later.append(max(one, again, key=lambda r: r["settled"] or math.inf))
    return choose(later) if later else best


def earliest(records: Iterable[Record], most: int) -> int:
    """The first step at which one of `records` settled; `most` if none did."""
    return min((int(r["settled"]) for r in records if r["settled"]), default=most)


def recipe_for(ledger: Ledger, name: str) -> Recipe:
    """A contestant's recipe: given, or searched."""
    contestant = CONTESTANTS[name]
    if contestant.fixed is not None:
        return contestant.fixed
    return tune(ledger, name, contestant.start, contestant.search, TUNING_STEPS)


def choose(records: Iterable[Record]) -> Recipe:
    """The recipe that settled first; failing that, the one that came highest."""
    best = min(records, key=lambda r: (r["settled"] or math.inf, -r["best"]))
    return Recipe(**best["recipe"])


def contest_jobs(name: str, recipe: Recipe, seeds: int) -> list[Job]:
    """The chosen recipe on the whole training half, by seeds, and for some on other splits."""
    contestant = CONTESTANTS[name]
    by_seed = [
        Job("contest", name, recipe, seed, contestant.steps)
        for seed in range(min(seeds, contestant.seeds))
    ]
    return by_seed + [
        Job("splits", name, recipe, 0, contestant.steps, split=split)
        for split in OTHER_SPLITS.get(name, ())
    ]


OTHER_SPLITS = {"gated": (1, 2, 3, 4), "power": (1, 2)}
"""Where the recipe chosen on split 0 is tried, too; the choice may have seen their test halves."""


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
BUDGETS = (140_000, 60_000)  # at 400,000 one layer and two are contestants
WIDTHS = (16, 24, 32)


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


def shapes_within(budget: int, layers: int) -> Line:
    """The line of widths, each with as many gates as the budget allows."""

    def shapes(recipe: Recipe) -> list[Recipe]:
        return [
            replace(recipe, options=deep(layers) | {"dim": dim, "n_gates": gates})
            for dim in WIDTHS
            if (gates := gates_within(budget, layers, dim)) > 0
        ]

    return shapes


def depth_recipe(ledger: Ledger, layers: int, budget: int) -> Recipe:
    """The best width, learning rate and decay that a search finds for so many layers."""
    shapes = shapes_within(budget, layers)
    start, search = shapes(Recipe("gated"))[0], (shapes, rates, strengths, shapes)
    return tune(ledger, depth_name(layers, budget), start, search, DEPTH_STEPS)


def depth_jobs(layers: int, budget: int, recipe: Recipe, seeds: int) -> list[Job]:
    name = depth_name(layers, budget)
    return [Job("depth", name, recipe, seed, DEPTH_STEPS) for seed in range(seeds)]


def depth_name(layers: int, budget: int) -> str:
    return f"{'one layer' if layers == 1 else 'two layers'}, {budget // 1000}k"
