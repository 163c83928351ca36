"""Students of a real encoder's attention: who reproduces it how well, and in what time.

The paper's first experiment, with the ablations it lacks. Every student reads the same inputs and
is tuned on the same validation texts; gradient-trained ones have one grid of learning rates and
decays, one budget and three seeds; convex ones are certified. Losses are on unseen texts, over the
error of predicting the mean. Objectives under different penalties are not comparable; where
students share a penalty, a certified floor says how low any of them could come.

Every finished job is a line in ``jobs.jsonl``; running again does only what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from .grokking_ledger import Ledger, Report
from .records import Record, environments, replace
from .tables import standard_error
from .teacher_data import TARGETS, Lessons, Task, Teacher
from .teacher_jobs import (
    CERTIFIED,
    LABELS,
    TRAINED,
    Budget,
    CertifiedJob,
    FloorJob,
    TrainingJob,
)

ONCE = ("undertrained", "softmax-12")  # one seed: shown, not compared; costs most of all
FLOORED = ("simplex", "adam")  # trained students whose class has a convex program

# What is cheap or matters most comes first: there may be no time for the rest.
WHOLE = Task("attention")
MAIN = ("linear", "offsets", "gated-8", "softmax-1", "simplex", "perceptron", "undertrained")
FEW = ("linear", "offsets", "gated-8", "softmax-1", "simplex", "perceptron")
SLOW = ("simplex", "softmax-12")  # of the layer's output: 800 steps end while they still gain
MORE = ("gated-32", "softmax-2", "softmax-4", "offsets-nuclear", "offsets-output")
POSITIONS = ("positions", "adam")
ABLATIONS = ("softmax-1-values", "softmax-1-none", "softmax-1-usual", "softmax-1-literal")
VECTOR = ("linear", "positions", "softmax-1", "simplex", "adam", "undertrained", "perceptron")
LAST = ("positions-token", "positions-nuclear", "softmax-12")


@dataclass(frozen=True)
class Study:
    """Students of one task; tuning is done on the task it is `like`, of the usual budget."""

    task: Task
    students: tuple[str, ...]
    budget: Budget = field(default_factory=Budget)
    like: Task | None = None


SHORT = Budget(steps=800, patience=6, tuning_steps=100)
LONG = Budget(steps=3000, patience=6, tuning_steps=100)
WIDE = Budget(patience=6, seeds=1, batch=64)  # a step costs over ten times as much
STUDIES = (
    Study(WHOLE, (*MAIN, "softmax-12")),
    Study(Task("attention", dim=None), ("offsets", "softmax-1", "softmax-12"), WIDE, like=WHOLE),
    Study(Task("first"), VECTOR, SHORT),
    Study(Task("head"), FEW, SHORT),
    Study(Task("output"), tuple(name for name in FEW if name not in SLOW), SHORT),
    Study(Task("output"), SLOW, LONG),
    Study(WHOLE, ABLATIONS),
    Study(Task("first"), LAST, SHORT),
    Study(WHOLE, (*MORE, *POSITIONS)),
)

# On an encoder of the paper's size: what matters most.
FEW_STUDIES = (
    Study(WHOLE, (*FEW, "undertrained")),
    Study(Task("first"), ("linear", "positions", "softmax-1", "simplex", "undertrained"), SHORT),
)

# Everything at full width, one seed, with configurations that are known to work: tuning takes long.
QUICK_STUDENTS = ("linear", "offsets", "perceptron", "simplex", "softmax-1", "softmax-12")
QUICK_BUDGET = Budget(steps=250, patience=4, seeds=1, batch=64)
QUICK_CONFIG = (1e-2, 1e-5)  # learning rate and decay
QUICK_SHARE = 1e-3  # of beta_max
QUICK_PAIRS = 700


def run(
    lessons: Lessons,
    folder: Path,
    studies: Iterable[Study] = STUDIES,
    *,
    max_minutes: float | None = None,
    report: Report = lambda done, what: None,
) -> Record:
    """Do what is missing in `folder`; write and return the results.

    Parameters
    ----------
    lessons : Lessons
    folder : Path
        For ``jobs.jsonl``, a line per finished job, and ``results.json``.
    studies : iterable of Study
    max_minutes : float, optional
        Begin no job after so long; the results then say that they are not complete.
    report : callable, optional
        Called as ``report(done, what)`` before every job.
    """
    ledger = Ledger(folder, max_minutes, report)
    rows: list[Record] = []
    missing: dict[str, list[str]] = {}
    for study in studies:
        for student in study.students:
            known = len(rows)
            with ledger.part():
                rows.append(do(ledger, lessons, study, student))
            if len(rows) == known:
                missing.setdefault(study.task.target, []).append(student)
    for row in rows:
        if row["student"] in FLOORED:
            with ledger.part():
                add_floor(ledger, lessons, Task(**row["task"]), row)
    records = list({id(job): job for job in ledger.records}.values())  # tuning may serve twice
    results = {
        "command": command(lessons.teacher, studies),
        "complete": ledger.complete,
        "date": max((job["date"] for job in records), default=None),
        "environments": environments(records),
        "seconds": round(sum(spent(job) for job in records), 1),
        "text": lessons.source,
        "sizes": list(lessons.sizes),
        "teacher": asdict(lessons.teacher),
        "labels": LABELS,
        "targets": TARGETS,
        "rows": rows,
        "missing": missing,
    }
    replace(folder / "results.json", json.dumps(results, indent=1) + "\n")
    return results


def command(teacher: Teacher, studies: Iterable[Study]) -> str:
    """What to type for these results."""
    words, usual = "convexformer reproduce teacher", Teacher()
    if (teacher.model, teacher.layer) != (usual.model, usual.layer):
        words += f" --model {teacher.model} --layer {teacher.layer}"
    if teacher.n_tokens != usual.n_tokens:
        words += f" --tokens {teacher.n_tokens}"
    return words + " --few" * (studies is FEW_STUDIES)


def spent(job: Record) -> float:
    """Seconds of processor time that a job took to train."""
    return float(job["seconds_of_all"] if "seconds_of_all" in job else job.get("seconds", 0.0))


def do(ledger: Ledger, lessons: Lessons, study: Study, student: str) -> Record:
    """All jobs of one student on one task, and their summary."""
    if student in CERTIFIED:
        seeds = study.budget.seeds if CERTIFIED[student].gates > 1 else 1
        jobs = [ledger.do(CertifiedJob(lessons, study.task, student, s)) for s in range(seeds)]
        return summarise(study.task, student, jobs, sum(map(spent, jobs)) / len(jobs))
    tuning = tune(ledger, lessons, study, student)
    best, budget = min(tuning, key=lambda job: job["losses"]["validation"]), study.budget
    plan = (best["lr"], best["decay"], budget.steps, budget.patience, budget.batch)
    jobs = [
        ledger.do(TrainingJob(lessons, study.task, student, seed, *plan))
        for seed in range(1 if student in ONCE else budget.seeds)
    ]
    seconds = sum(map(spent, tuning)) * (study.like is None) + jobs[0]["seconds"]
    return summarise(study.task, student, jobs, seconds)


def add_floor(ledger: Ledger, lessons: Lessons, task: Task, row: Record) -> None:
    """The certified bound of a trained student's class, at the decay it was trained with."""
    known = ledger.do(FloorJob(lessons, task, row["student"], 0, row["decay"]))
    row |= {"floor": known["floor"], "floor_gap": known["relative_gap"]}


def tune(ledger: Ledger, lessons: Lessons, study: Study, student: str) -> list[Record]:
    """A short training with every configuration."""
    task, budget = (study.like, Budget()) if study.like else (study.task, study.budget)
    plan = (budget.tuning_steps, budget.patience, budget.batch)
    return [
        ledger.do(TrainingJob(lessons, task, student, 0, lr, decay, *plan))
        for lr, decay in TRAINED[student].grid
    ]


def summarise(task: Task, student: str, jobs: list[Record], seconds_of_all: float) -> Record:
    """Means over seeds; the curve, and what was chosen, are of the first."""
    losses = {
        f"{name}_loss": float(np.mean([job["losses"][name] for job in jobs]))
        for name in ("train", "validation", "test")
    }
    kept = ("lr", "decay", "chosen", "active", "groups", "parameters")
    proved = {}
    if student in CERTIFIED:
        proved["floor"] = float(np.mean([job["floor"] for job in jobs]))
        proved["relative_gap"] = max(job["relative_gap"] for job in jobs)
    return {
        "task": task.key,
        "student": student,
        "convex": student in CERTIFIED,
        "seeds": len(jobs),
        **losses,
        "test_error": standard_error([job["losses"]["test"] for job in jobs]),
        "test_losses": [job["losses"]["test"] for job in jobs],
        "objective": float(np.mean([job["objective"] for job in jobs])),
        "seconds": float(np.median([job["seconds"] for job in jobs])),
        "seconds_to_converge": float(np.median([job["seconds_to_converge"] for job in jobs])),
        "seconds_of_all": round(seconds_of_all, 2),
        **proved,
        **{name: jobs[0][name] for name in kept if name in jobs[0]},
        "curve": jobs[0]["curve"],
    }


def run_quick(
    lessons: Lessons, folder: Path, report: Report = lambda done, what: None
) -> list[Record]:
    """A few students once, on all channels, with a configuration that is known to work."""
    ledger = Ledger(folder, None, report)
    task, budget, rows = Task("attention", dim=None), QUICK_BUDGET, []
    for student in QUICK_STUDENTS:
        if student in CERTIFIED:
            job = ledger.do(CertifiedJob(lessons, task, student, 0, QUICK_SHARE))
        else:
            plan = (*QUICK_CONFIG, budget.steps, budget.patience, budget.batch)
            job = ledger.do(TrainingJob(lessons, task, student, 0, *plan))
        rows.append(summarise(task, student, [job], spent(job)))
    return rows
