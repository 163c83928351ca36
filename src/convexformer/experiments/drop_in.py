"""The gated layer as a drop-in: against a standard transformer of the same size, on real sequences.

A job is one model on one part of one data set, cut into parts as :mod:`.predictive` does: 60 % to
train, 20 % to stop early and to choose among the model's configurations, 20 % to test. All models
have as many parameters as fit within one limit, the same number of configurations to try, and the
same training loop. Seconds are of processor time, on one thread.

Every finished job is a line in ``jobs.jsonl``; running again does only what is missing. From the
lines, ``results.json`` is made, and from it a page.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from ..datasets import TokenDataset
from .contestants import Contestant
from .drop_in_models import MODELS, REFERENCE, count
from .grokking_ledger import Ledger, Report
from .predictive import DATASETS, METRICS, score, split, tokens_for
from .records import Record, environments, replace
from .tables import standard_error

NAMES = ("hla", "motion", "splice")
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Job:
    """One model on one part of one data set."""

    dataset: str
    model: str
    seed: int

    @property
    def key(self) -> Record:
        """What a finished job must agree with to count as this one."""
        fingerprint = MODELS[self.model].fingerprint
        return vars(self) | {"fingerprint": fingerprint, "reference": REFERENCE}

    def run(self, folder: Path) -> Record:
        """Train and test; nothing is kept in `folder`, since a job takes a minute or two."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with threadpool_limits(1):
                return self.key | run_job(DATASETS[self.dataset](), MODELS[self.model], self.seed)
        finally:
            torch.set_num_threads(threads)

    def __str__(self) -> str:
        return f"{self.dataset}, part {self.seed}: {MODELS[self.model].label}"


def run_job(data: TokenDataset, model: Contestant, seed: int) -> Record:
    """Train all configurations, choose by validation, test the chosen one."""
    rows, metric = split(data, seed), METRICS.get(data.name, "accuracy")
    X, y = tokens_for(data, model, rows.train), data.y
    validation, test = (X[rows.validation], y[rows.validation]), (X[rows.test], y[rows.test])
    fits = [
        model.build(config, seed).fit(X[rows.train], y[rows.train], validation)
        for config in model.grid
    ]
    scores = [score(fit, *validation, metric) for fit in fits]
    chosen = int(np.argmax(scores))  # the first of the best
    best = fits[chosen]
    return {
        "metric": metric,
        "score": score(best, *test, metric),
        "accuracy": score(best, *test, "accuracy"),
        "config": model.grid[chosen],
        "validation_scores": [round(value, 6) for value in scores],
        "parameters": count(best.network_),
        "steps": best.steps_,
        "seconds": round(best.seconds_, 3),
        "seconds_of_all": round(sum(fit.total_seconds_ for fit in fits), 3),
        "zero_share": round(getattr(best, "zero_share_", 0.0), 4),
    }


def run(
    folder: Path,
    names: Iterable[str] = NAMES,
    *,
    max_minutes: float | None = None,
    report: Report = lambda done, what: None,
) -> Record:
    """Do what is missing in `folder` on the data sets `names`; write and return the results.

    Parameters
    ----------
    folder : Path
        For ``jobs.jsonl``, a line per finished job, and ``results.json``.
    names : iterable of str
    max_minutes : float, optional
        Begin no job after so long; the results then say that they are not complete.
    report : callable, optional
        Called as ``report(done, what)`` before every job.
    """
    ledger = Ledger(folder, max_minutes, report)
    for name in names:
        for seed in SEEDS:
            for model in MODELS:
                with ledger.part():
                    ledger.do(Job(name, model, seed))
    results = summarise(ledger.records, ledger.complete)
    replace(folder / "results.json", json.dumps(results, indent=1) + "\n")
    return results


def summarise(jobs: list[Record], complete: bool) -> Record:
    """For each data set and model: scores by part, their mean and error, sizes and costs."""
    cells: dict[str, dict[str, list[Record]]] = {}
    for job in jobs:
        cells.setdefault(job["dataset"], {}).setdefault(job["model"], []).append(job)
    return {
        "command": "convexformer reproduce drop-in",
        "complete": complete,
        "date": max((job["date"] for job in jobs), default=None),
        "environments": environments(jobs),
        "seconds": round(sum(job["seconds_of_all"] for job in jobs), 1),
        "reference": REFERENCE,
        "models": {
            name: {"label": model.label, "grid": model.grid} for name, model in MODELS.items()
        },
        "datasets": {
            dataset: {model: _cell(records) for model, records in models.items()}
            for dataset, models in cells.items()
        },
    }


def _cell(jobs: list[Record]) -> Record:
    listed = ("seed", "score", "accuracy", "config", "steps", "seconds", "seconds_of_all")
    scores = [job["score"] for job in jobs]
    return {
        "metric": jobs[0]["metric"],
        "parameters": jobs[0]["parameters"],
        "mean": float(np.mean(scores)),
        "standard_error": standard_error(scores),
        "mean_accuracy": float(np.mean([job["accuracy"] for job in jobs])),
        "median_steps": float(np.median([job["steps"] for job in jobs])),
        "median_seconds": float(np.median([job["seconds"] for job in jobs])),
        "mean_zero_share": float(np.mean([job["zero_share"] for job in jobs])),
        **{f"{name}s": [job[name] for job in jobs] for name in listed},
    }
