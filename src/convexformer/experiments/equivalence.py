"""Nonconvex networks, trained from many random starts, against the certified optimum.

The convex program of a network's class gives a floor: its dual value. No network of the class,
however it is trained, has an objective below it. With too few heads networks must stay above; with
enough, those that find the global optimum come down to it. A job is one problem, one optimiser and
one number of heads, all starts side by side on one thread.

Every finished job is a line in ``jobs.jsonl``; running again does only what is missing. Heights are
relative to the floor, ``(objective - dual) / dual``; seconds are of processor time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..nn import train_starts
from .equivalence_problems import CASES, Case
from .records import Record, append, environments, read_lines, replace, stamp
from .threads import one_thread

Array = NDArray[np.float64]

# Learning rates at the first step, falling to zero as a cosine; the same for all problems and
# numbers of heads. SGD's is in units of one over the largest curvature of the loss.
OPTIMIZERS: dict[str, dict[str, float]] = {
    "adam": {"lr": 0.03},
    "sgd": {"lr": 0.1, "momentum": 0.9},
}
QUANTILES = {"min": 0.0, "q10": 0.1, "median": 0.5, "q90": 0.9, "max": 1.0}
RECORDS = 50  # points on a curve
CLOSE = 1e-4  # a start this near has come down to the floor
ROUNDING = 1e-12  # heights of less than this below zero are rounding

Report = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Settings:
    """How much to train. `quick` trains 1, enough and twice enough heads, and none between."""

    starts: int = 200
    steps: int = 2000
    seed: int = 0
    quick: bool = False

    def heads(self, case: Case) -> list[int]:
        """The numbers of heads to train on a problem."""
        return sorted({1, case.enough, 2 * case.enough}) if self.quick else case.sweep

    def command(self, names: Iterable[str] = ()) -> str:
        """What to type to run this again, for the problems `names` or for all.

        Examples
        --------
        >>> from convexformer.experiments.equivalence import Settings
        >>> Settings(seed=3).command()
        'convexformer reproduce equivalence --starts 200 --steps 2000 --seed 3'
        """
        words = ["convexformer reproduce equivalence", *(["--quick"] if self.quick else [])]
        words += [f"--starts {self.starts} --steps {self.steps} --seed {self.seed}"]
        return " ".join(words + [f"--problem {name}" for name in names])


@dataclass(frozen=True)
class Job:
    """One problem, one optimiser, one number of heads."""

    case: Case
    optimizer: str
    heads: int
    settings: Settings

    @property
    def key(self) -> Record:
        """What a finished job must agree with to count as this one."""
        chosen = self.settings
        return {
            "problem": self.case.name,
            "optimizer": self.optimizer,
            "heads": self.heads,
            "starts": chosen.starts,
            "steps": chosen.steps,
            "seed": chosen.seed,
            "fingerprint": self.case.fingerprint,
            "options": OPTIMIZERS[self.optimizer],
        }

    def __str__(self) -> str:
        return f"{self.case.label}: {self.optimizer}, {count_heads(self.heads)}"


def count_heads(heads: int) -> str:
    """``"1 head"``, ``"2 heads"``."""
    return "1 head" if heads == 1 else f"{heads} heads"


def list_jobs(names: Iterable[str], settings: Settings) -> list[Job]:
    """All jobs of the problems `names`, each problem solved and certified."""
    return [
        Job(case, optimizer, heads, settings)
        for case in (CASES[name]() for name in names)
        for optimizer in OPTIMIZERS
        for heads in settings.heads(case)
    ]


def run_job(job: Job) -> Record:
    """Train all starts of a job and say how far above the floor they were, and when."""
    case, settings = job.case, job.settings
    options = dict(OPTIMIZERS[job.optimizer])
    if job.optimizer == "sgd":
        options["lr"] /= case.curvature
    with one_thread():
        torch.manual_seed(settings.seed)
        runs = train_starts(
            lambda: case.make(job.heads),
            torch.tensor(case.X),
            torch.tensor(case.Y),
            loss=case.loss,
            beta=case.beta,
            n_starts=settings.starts,
            steps=settings.steps,
            optimizer=job.optimizer,
            every=max(1, settings.steps // RECORDS),
            clock=time.process_time,  # of others on the machine nothing is seen
            **options,
        )
    heights = height(runs.objectives.numpy(), case)  # (records, starts)
    lowest = height(runs.lowest.numpy(), case)  # (starts,)
    curves = np.quantile(heights, list(QUANTILES.values()), axis=1)
    return job.key | {
        "label": case.label,
        "enough": case.enough,
        "loss": case.loss,
        "lr": options["lr"],
        "floor": case.certificate.to_dict() | {"solver_seconds": round(case.solver_seconds, 5)},
        "recorded_steps": runs.steps,
        "recorded_seconds": [round(second, 4) for second in runs.seconds],
        "heights": {name: rounded(curve) for name, curve in zip(QUANTILES, curves, strict=True)},
        "lowest_objective": float(runs.lowest.min()),
        "lowest": rounded(np.sort(lowest)),
        "below": int(np.count_nonzero(lowest < -ROUNDING)),
    }


def height(objectives: Array, case: Case) -> Array:
    """How far objectives are above the certified dual value, as fractions of it."""
    dual = case.certificate.dual
    return (objectives - dual) / dual


def rounded(values: Array) -> list[float]:
    """Four significant digits: enough for any figure, and half the file."""
    return [float(f"{value:.4g}") for value in values]


def finished(file: Path, jobs: Iterable[Job]) -> list[Record | None]:
    """The record of every job in `file`, the last one counting; None where there is none."""
    lines = list(read_lines(file))

    def find(job: Job) -> Record | None:
        key = job.key
        return next((line for line in reversed(lines) if key.items() <= line.items()), None)

    return [find(job) for job in jobs]


def run(
    folder: Path,
    names: Iterable[str] = tuple(CASES),
    settings: Settings | None = None,
    *,
    report: Report = lambda done, total, what: None,
) -> Record:
    """Do what is missing in `folder`, and write and return the results.

    Parameters
    ----------
    folder : Path
        For ``jobs.jsonl``, a line per finished job, and ``results.json``.
    names : iterable of str
        Problems, of :data:`CASES`.
    settings : Settings, optional
    report : callable, optional
        Called as ``report(done, total, what)`` before every job, and at the end.
    """
    settings, names = Settings() if settings is None else settings, list(names)
    jobs, file = list_jobs(names, settings), folder / "jobs.jsonl"
    records = finished(file, jobs)
    for i, job in enumerate(jobs):
        if records[i] is None:
            report(sum(record is not None for record in records), len(jobs), str(job))
            record = run_job(job) | stamp()
            append(file, record)
            records[i] = record
    report(len(jobs), len(jobs), "done")
    command = settings.command(() if names == list(CASES) else names)
    results = summarise([record for record in records if record is not None], settings, command)
    replace(folder / "results.json", json.dumps(results) + "\n")
    return results


# Stamps and repeated facts that the summary holds once, or for a whole problem
_SHARED = ("environment", "label", "enough", "loss", "floor", "fingerprint", "options")


def summarise(records: list[Record], settings: Settings, command: str) -> Record:
    """What figures, tables and the page are made from."""
    problems = {
        record["problem"]: {key: record[key] for key in ("label", "enough", "loss", "floor")}
        for record in records
    }
    return {
        "experiment": "equivalence",
        "command": command,
        "date": max(record["date"] for record in records),
        "environments": environments(records),
        "settings": asdict(settings),
        "optimizers": OPTIMIZERS,
        "close": CLOSE,
        "rounding": ROUNDING,
        "problems": problems,
        "rows": [row(record) for record in records],
        "records": [
            {key: value for key, value in record.items() if key not in _SHARED}
            for record in records
        ],
    }


def row(record: Record) -> Record:
    """A job in one line of a table."""
    lowest = np.array(record["lowest"])
    return {
        "problem": record["problem"],
        "optimizer": record["optimizer"],
        "heads": record["heads"],
        "enough": record["heads"] >= record["enough"],
        "best": float(lowest.min()),
        "median": float(np.median(lowest)),
        "close": float(np.mean(lowest <= CLOSE)),
        "below": record["below"],
        "starts": record["starts"],
        "seconds": record["recorded_seconds"][-1],
    }


def select(results: Record, **wanted: Any) -> list[Record]:
    """Rows of the results with these values.

    Examples
    --------
    >>> from convexformer.experiments.equivalence import select
    >>> select({"rows": [{"heads": 1, "best": 0.5}, {"heads": 4, "best": 0.0}]}, heads=4)
    [{'heads': 4, 'best': 0.0}]
    """
    return [row for row in results["rows"] if wanted.items() <= row.items()]
