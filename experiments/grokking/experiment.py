"""Grokking: who learns modular division how soon, how lastingly, and why.

All studies modulo 97 but one share a single split of the equations. Hyperparameters are searched on
a validation part of its training half, by the same rule for every contestant; what is chosen there
is trained on the whole training half under several seeds, and the test half is looked at then only.
Ablations change one thing at a time in the gated layer's recipe. The study of depth gives one layer
and two the same number of parameters. Nothing is a convex problem, but for what is solved there.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median, median_low
from typing import Any

from ..lab import KeyedJob, Ledger, Record, picked, read_config
from .jobs import AFTER, SETTLED, Job, Recipe, convex_jobs, make_trainer
from .small import run_small

# In the order of trying: a good recipe early on spares most of the steps of the bad ones
RATES = (0.01, 0.02, 0.005, 0.04, 0.002, 0.08)
DECAYS = (1.0, 2.0, 0.5, 4.0, 0.25)
BETAS = (1e-3, 3e-3, 3e-4, 1e-2, 1e-4)  # of the group lasso, in place of the decay of Z
FILTERS = ({"alpha": 0.98, "gain": 2.0}, {"alpha": 0.9, "gain": 1.0})  # of Grokfast
TUNING_STEPS = 2500
TUNING_SEEDS = (1000, 1001)  # the second for the finalists alone
FINALISTS = 3
QUICK = Recipe("gated", lr=0.04)  # as the search of the contest chose it
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


LINES: dict[str, Line] = {"rates": rates, "strengths": strengths, "filters": filters}
SEARCH = ("rates", "strengths", "rates")


@dataclass(frozen=True)
class Contestant:
    """A network and an optimiser. With a `given_decay` there is nothing to search."""

    label: str
    model: str
    optimizer: str = "adamw"
    options: dict[str, Any] = field(default_factory=dict)
    tweaks: dict[str, float] = field(default_factory=dict)
    given_decay: float | None = None
    search: Sequence[str] = SEARCH
    steps: int = 3000
    seeds: int = 5

    @property
    def fixed(self) -> Recipe | None:
        """The recipe of Power et al.: learning rate 0.001, nothing clipped or averaged."""
        if self.given_decay is None:
            return None
        plain = Recipe(self.model, lr=1e-3, weight_decay=self.given_decay, clip=None, average=None)
        return replace(plain, optimizer=self.optimizer, tweaks=self.tweaks)

    @property
    def lines(self) -> list[Line]:
        """Of its search."""
        return [LINES[name] for name in self.search]

    @property
    def start(self) -> Recipe:
        """Where the search begins: the first of every line."""
        recipe = Recipe(self.model, self.optimizer, options=self.options)
        for line in self.lines:
            recipe = line(recipe)[0]
        return recipe


CONTESTANTS = {
    name: Contestant(**options)
    for name, options in read_config(__file__, "contestants.toml").items()
}


def tune(ledger: Ledger, name: str, start: Recipe, search: Iterable[Line], most: int) -> Recipe:
    """Search line by line, each line through the best so far; what was tried is not tried again.

    A recipe is given up after `most` steps, and before once it can no longer be the first to
    settle. Of those that settle first, the one that does so first under a second seed, too, is
    chosen: the quickest under a single seed is often the most fragile.
    """

    def attempt(recipe: Recipe, seed: int, rivals: list[Record]) -> Record:
        steps = min([most, *(int(r["settled"]) + SETTLED for r in rivals if r["settled"])])
        return ledger.do(Job("tuning", name, recipe, seed, steps))

    best, tried, records = start, list[Recipe](), list[Record]()
    for line in search:
        for recipe in (one for one in line(best) if one not in tried):
            records.append(attempt(recipe, TUNING_SEEDS[0], records))
            tried.append(recipe)
        best = choose(records)
    finalists = sorted((r for r in records if r["settled"]), key=lambda r: int(r["settled"]))
    later: list[Record] = []  # of both seeds, the one that took longer
    for one in finalists[:FINALISTS]:
        again = attempt(Recipe(**one["recipe"]), TUNING_SEEDS[1], later)
        later.append(max(one, again, key=lambda r: r["settled"] or math.inf))
    return choose(later) if later else best


def recipe_for(ledger: Ledger, name: str) -> Recipe:
    """A contestant's recipe: given, or searched."""
    contestant = CONTESTANTS[name]
    if contestant.fixed is not None:
        return contestant.fixed
    return tune(ledger, name, contestant.start, contestant.lines, TUNING_STEPS)


def choose(records: Iterable[Record]) -> Recipe:
    """The recipe that settled first; failing that, the one that came highest."""
    best = min(records, key=lambda r: (r["settled"] or math.inf, -r["best"]))
    return Recipe(**best["recipe"])


def contest_jobs(name: str, recipe: Recipe) -> list[Job]:
    """The chosen recipe on the whole training half, by seeds, and for some on other splits."""
    contestant = CONTESTANTS[name]
    by_seed = [
        Job("contest", name, recipe, seed, contestant.steps) for seed in range(contestant.seeds)
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

DEPTH_STEPS, DEPTH_SEEDS = 1500, 5
BUDGETS = (140_000, 60_000)  # at 400,000 one layer and two are contestants
WIDTHS = (16, 24, 32)


def gates_within(budget: int, layers: int, dim: int, modulus: int = 97) -> int:
    """Most gates per layer that keep a stack within `budget` parameters.

    Examples
    --------
    >>> from experiments.grokking.experiment import gates_within
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
            replace(recipe, options={"n_layers": layers, "dim": dim, "n_gates": gates})
            for dim in WIDTHS
            if (gates := gates_within(budget, layers, dim)) > 0
        ]

    return shapes


def depth(ledger: Ledger, layers: int, budget: int) -> None:
    """The best width, learning rate and decay that a search finds for so many layers, by seeds."""
    shapes = shapes_within(budget, layers)
    name = f"{'one layer' if layers == 1 else 'two layers'}, {budget // 1000}k"
    start, search = shapes(Recipe("gated"))[0], (shapes, rates, strengths, shapes)
    recipe = tune(ledger, name, start, search, DEPTH_STEPS)
    for seed in range(DEPTH_SEEDS):
        ledger.do(Job("depth", name, recipe, seed, DEPTH_STEPS))


# What a step costs, timed in turns so that a busy machine is fair to all -------------------------

TIMED_ROUNDS, TIMED_STEPS = 8, 10


@dataclass(frozen=True)
class TimingJob(KeyedJob):
    """Contestants by name, with the recipes that were chosen for them."""

    recipes: Mapping[str, Recipe] = field(repr=False)
    study: str = "timing"

    def rules(self) -> Record:
        recipes = {name: asdict(recipe) for name, recipe in self.recipes.items()}
        return {"recipes": recipes, "rounds": [TIMED_ROUNDS, TIMED_STEPS]}

    def run(self) -> Record:
        """Milliseconds of processor time per step: the best of some rounds, taken in turns."""
        trainers = {
            name: make_trainer(Job("timing", name, recipe, 0, TIMED_STEPS))
            for name, recipe in self.recipes.items()
        }
        best = dict.fromkeys(trainers, float("inf"))
        for done in range(TIMED_ROUNDS):
            for name, trainer in trainers.items():
                trainer.measure = lambda model: {}
                trainer.steps = (done + 1) * TIMED_STEPS
                before = trainer.seconds
                trainer.run()
                best[name] = min(best[name], 1000 * (trainer.seconds - before) / TIMED_STEPS)
        return {"milliseconds": {name: round(ms, 2) for name, ms in best.items()}}


# All of it ----------------------------------------------------------------------------------------


def run_quick(ledger: Ledger) -> Record:
    """The gated layer on three splits, to 99 % and 500 steps beyond."""
    jobs = (Job("quick", "gated", QUICK, k, QUICK_STEPS, split=k) for k in range(QUICK_SEEDS))
    return {"records": ledger.do_each(jobs)} | ledger.header()


def run(ledger: Ledger) -> Record:
    """Contest, ablations, convex programs and depth modulo 97, then modulo 15."""
    chosen: dict[str, Recipe] = {}
    for name in CONTESTANTS:  # each is tuned before it competes
        with ledger.part():
            chosen[name] = recipe_for(ledger, name)
            ledger.do_each(contest_jobs(name, chosen[name]))
    if chosen:
        ledger.do(TimingJob(chosen), at_once=True)  # half a minute, and the page needs it
    if "gated" in chosen:
        ledger.do_each([*ablation_jobs(chosen["gated"]), *convex_jobs()])
        for budget in BUDGETS:
            for layers in (1, 2):  # each as its own search likes it best
                with ledger.part():
                    depth(ledger, layers, budget)
    run_small(ledger)
    return ledger.header() | summarise(ledger.records)


# What figures, tables and the page are made from ------------------------------------------------

_ONCE = ("environment", "date")  # stamps that the summary holds once


def summarise(records: list[Record]) -> Record:
    """Medians over seeds, choices of hyperparameters, and all records."""
    told = [{k: v for k, v in record.items() if k not in _ONCE} for record in records]

    def study(name: str) -> list[Record]:
        return [record for record in told if record["study"] == name]

    return {
        "after": AFTER,
        "labels": {name: contestant.label for name, contestant in CONTESTANTS.items()},
        "rows": rows([record for record in told if "recipe" in record]),
        "milliseconds": study("timing")[0]["milliseconds"] if study("timing") else {},
        "convex": study("convex"),
        "small": study("small"),
        "longer": study("longer"),
        "records": [record for record in told if "recipe" in record],
    }


def rows(records: list[Record]) -> list[Record]:
    """A line for every study and name, over its seeds; tuning has a line for every recipe."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        told_apart = [record["study"], record["name"], record["recipe"]]
        groups.setdefault(json.dumps(told_apart, sort_keys=True), []).append(record)
    return [_row(group) for group in groups.values()]


def _row(group: list[Record]) -> Record:
    """Medians count a seed that never got there as slower than all that did."""
    one = group[0]
    middles = ("steps_to_99", "steps_to_fit", "seconds_to_99", "zero_groups")
    return picked(one, ("study", "name", "recipe", "parameters")) | {
        "hyperparameters": str(Recipe(**one["recipe"])),
        "seeds": len(group),
        "reached": sum(record["steps_to_99"] is not None for record in group),
        "persistent": sum(record["persistent"] is True for record in group),
        "unfollowed": sum(_unfollowed(record) for record in group),
        **{name: middle([record[name] for record in group]) for name in middles},
        "all_steps_to_99": [record["steps_to_99"] for record in group],
        "all_settled": [record["settled"] for record in group],
        "best": median_low([record["best"] for record in group]),  # the slower of two in the middle
        "unaveraged": median(record["unaveraged"] for record in group),
        "ms_per_step": median(record["ms_per_step"] for record in group),
        "last_step": max(record["last_step"] for record in group),
    }


def _unfollowed(record: Record) -> bool:
    """Whether a network learnt so late that its steps were over before persistence could show."""
    learnt = record["steps_to_99"] is not None and not record.get("diverged")
    return learnt and record["persistent"] is None


def middle(values: list[float | None]) -> float | None:
    """The median, with None larger than every number; None where that is what stands there.

    Examples
    --------
    >>> from experiments.grokking.experiment import middle
    >>> middle([300, None, 100]), middle([300, None, None])
    (300, None)
    """
    known = median(math.inf if value is None else value for value in values)
    return known if math.isfinite(known) else None
