"""Grokking: who learns modular division how soon, how lastingly, and why.

``convexformer reproduce grokking`` runs the studies that :mod:`grokking_studies` defines, a job at
a time; every finished job is a line in ``jobs.jsonl``, and running again does only what is missing.
Nothing here is a convex problem, but for what :mod:`grokking_convex` solves.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, median_low

from .grokking_convex import convex_jobs
from .grokking_jobs import AFTER, LEVEL, Job, Recipe
from .grokking_ledger import Ledger, Report, Task
from .grokking_small import SMALL, run_longer, run_small
from .grokking_studies import (
    BUDGETS,
    CONTESTANTS,
    QUICK,
    QUICK_SEEDS,
    QUICK_STEPS,
    ablation_jobs,
    contest_jobs,
    depth_jobs,
    depth_recipe,
    recipe_for,
)
from .grokking_timing import TimingJob
from .records import Record, environments, replace

MODULI = (97, 15)
LAYERS = (1, 2, 4)


MODELS = tuple(dict.fromkeys([*CONTESTANTS, *SMALL]))


@dataclass(frozen=True)
class Settings:
    """What to run: moduli, numbers of layers, networks by name, and seeds.

    Seeds are of weights and batches modulo 97; modulo 15 there are always 20 splits.
    """

    moduli: tuple[int, ...] = MODULI
    layers: tuple[int, ...] = LAYERS
    models: tuple[str, ...] = MODELS
    seeds: int = 5

    def __post_init__(self) -> None:
        for name in self.models:
            if name not in MODELS:
                raise ValueError(f"there is no model {name}; choose of {', '.join(MODELS)}.")
        for layers in self.layers:
            if layers not in LAYERS:
                raise ValueError(f"networks have 1, 2 or 4 layers, got {layers}.")
        for modulus in self.moduli:
            if modulus not in MODULI:
                raise ValueError(f"the moduli of the paper are 97 and 15, got {modulus}.")
        if not self.contestants and not self.small:
            moduli, depths = (" or ".join(map(str, x)) for x in (self.moduli, self.layers))
            raise ValueError(
                f"none of the models {', '.join(self.models)} is trained modulo {moduli} with "
                f"{depths} layers. Modulo 97 there are {', '.join(CONTESTANTS)}; "
                f"modulo 15 {', '.join(SMALL)}."
            )

    @property
    def contestants(self) -> list[str]:
        """Whom to train modulo 97: those that have a wanted number of layers."""
        if 97 not in self.moduli:
            return []
        known = [name for name in self.models if name in CONTESTANTS]
        return [name for name in known if CONTESTANTS[name].layers in self.layers]

    @property
    def small(self) -> list[str]:
        """Whom to train modulo 15."""
        if 15 not in self.moduli:
            return []
        known = [name for name in self.models if name in SMALL]
        return [name for name in known if SMALL[name].layers in self.layers]

    def command(self) -> str:
        """What to type to run this again.

        Examples
        --------
        >>> from convexformer.experiments.grokking import Settings
        >>> Settings(models=("gated", "mlp"), layers=(1,)).command()
        'convexformer reproduce grokking --modulus 97 15 --layers 1 --seeds 5 --models gated mlp'
        """
        words = ["convexformer reproduce grokking --modulus", *map(str, self.moduli)]
        words += ["--layers", *map(str, self.layers)]
        words += ["--seeds", str(self.seeds)] if self.contestants else []
        if self.models != MODELS:
            words += ["--models", *self.models]
        return " ".join(words)


def run_quick(folder: Path, report: Report = lambda done, what: None) -> list[Record]:
    """The gated layer on three splits, to 99 % and 500 steps beyond."""
    ledger = Ledger(folder, report=report)
    return ledger.do_all(
        Job("quick", "gated", QUICK, seed, QUICK_STEPS, split=seed) for seed in range(QUICK_SEEDS)
    )


def run(
    folder: Path,
    settings: Settings | None = None,
    *,
    max_minutes: float | None = None,
    report: Report = lambda done, what: None,
) -> Record:
    """Do what is missing in `folder`, and write and return the results.

    Parameters
    ----------
    folder : Path
        For ``jobs.jsonl``, a line per finished job, and ``results.json``.
    settings : Settings, optional
    max_minutes : float, optional
        Begin no job after so long; the results then say that they are not complete.
    report : callable, optional
        Called as ``report(done, what)`` before every job.
    """
    settings = Settings() if settings is None else settings
    ledger = Ledger(folder, max_minutes, report)
    _run_large(ledger, settings)
    run_small(ledger, settings.small)
    run_longer(ledger, settings.small)
    results = summarise(ledger.records, settings, ledger.complete)
    replace(folder / "results.json", json.dumps(results) + "\n")
    return results


def _run_large(ledger: Ledger, settings: Settings) -> None:
    """Modulo 97: contest, ablations and depth, each contestant tuned before it competes."""
    chosen: dict[str, Recipe] = {}
    for name in settings.contestants:
        with ledger.part():
            chosen[name] = recipe_for(ledger, name)
            ledger.do_all(contest_jobs(name, chosen[name], settings.seeds))
    if chosen:
        ledger.do(TimingJob(chosen), at_once=True)  # half a minute, and the page needs it
    if "gated" in chosen:
        jobs: list[Task] = [*ablation_jobs(chosen["gated"]), *convex_jobs()]
        for job in jobs:
            with ledger.part():
                ledger.do(job)
        if {1, 2} <= set(settings.layers):
            _run_depth(ledger, settings.seeds)


def _run_depth(ledger: Ledger, seeds: int) -> None:
    """One layer and two within the same parameters, each as its own search likes it best."""
    for budget in BUDGETS:
        for layers in (1, 2):
            with ledger.part():
                best = depth_recipe(ledger, layers, budget)
                ledger.do_all(depth_jobs(layers, budget, best, seeds))


# What figures, tables and the page are made from ------------------------------------------------

_ONCE = ("environment", "date")  # stamps that the summary holds once


def summarise(records: list[Record], settings: Settings, complete: bool) -> Record:
    """Medians over seeds, choices of hyperparameters, and all records."""
    told = [{k: v for k, v in record.items() if k not in _ONCE} for record in records]
    return {
        "experiment": "grokking",
        "command": settings.command(),
        "complete": complete,
        "date": max((record["date"] for record in records), default=None),
        "environments": environments(records),
        "settings": asdict(settings),
        "level": LEVEL,
        "after": AFTER,
        "labels": {name: contestant.label for name, contestant in CONTESTANTS.items()},
        "rows": rows([record for record in told if "recipe" in record]),
        "milliseconds": next(
            (record["milliseconds"] for record in told if record["study"] == "timing"), {}
        ),
        "convex": [record for record in told if record["study"] == "convex"],
        "small": [record for record in told if record["study"] == "small"],
        "longer": [record for record in told if record["study"] == "longer"],
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
    return {
        "study": one["study"],
        "name": one["name"],
        "recipe": one["recipe"],
        "hyperparameters": str(Recipe(**one["recipe"])),
        "parameters": one["parameters"],
        "seeds": len(group),
        "reached": sum(record["steps_to_99"] is not None for record in group),
        "persistent": sum(record["persistent"] is True for record in group),
        "unfollowed": sum(_unfollowed(record) for record in group),
        "steps_to_99": middle([record["steps_to_99"] for record in group]),
        "steps_to_fit": middle([record["steps_to_fit"] for record in group]),
        "seconds_to_99": middle([record["seconds_to_99"] for record in group]),
        "all_steps_to_99": [record["steps_to_99"] for record in group],
        "all_settled": [record["settled"] for record in group],
        "best": median_low([record["best"] for record in group]),  # the slower of two in the middle
        "zero_groups": middle([record["zero_groups"] for record in group]),
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
    >>> from convexformer.experiments.grokking import middle
    >>> middle([300, None, 100]), middle([300, None, None])
    (300, None)
    """
    known = median(math.inf if value is None else value for value in values)
    return known if math.isfinite(known) else None
