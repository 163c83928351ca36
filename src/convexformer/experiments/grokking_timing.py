"""What a step of every contestant costs, timed in turns so that a busy machine is fair to all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from .grokking_jobs import Job, Recipe, make_trainer
from .records import Record
from .threads import one_thread

ROUNDS, STEPS = 8, 10


@dataclass(frozen=True)
class TimingJob:
    """Contestants by name, with the recipes that were chosen for them."""

    recipes: Mapping[str, Recipe]

    @property
    def key(self) -> Record:
        """What a finished job must agree with to count as this one."""
        recipes = {name: asdict(recipe) for name, recipe in self.recipes.items()}
        return {"study": "timing", "recipes": recipes, "rounds": [ROUNDS, STEPS]}

    def __str__(self) -> str:
        return "timing: a few steps of every contestant"

    def run(self, folder: Path) -> Record:
        """Milliseconds of processor time per step: the best of some rounds, taken in turns."""
        with one_thread():
            trainers = {
                name: make_trainer(Job("timing", name, recipe, 0, STEPS))
                for name, recipe in self.recipes.items()
            }
            best = dict.fromkeys(trainers, float("inf"))
            for done in range(ROUNDS):
                for name, trainer in trainers.items():
                    trainer.measure = None
                    trainer.plan = replace(trainer.plan, steps=(done + 1) * STEPS)
                    before = trainer.seconds
                    trainer.run()
                    best[name] = min(best[name], 1000 * (trainer.seconds - before) / STEPS)
        return self.key | {"milliseconds": {name: round(ms, 2) for name, ms in best.items()}}
