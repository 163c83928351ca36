"""Students of a real encoder's attention: who reproduces it how well, and in what time.

The paper's first experiment, with the ablations it lacks. Every student reads the same inputs and
is tuned on the same validation texts; gradient-trained ones have one grid of learning rates and
decays, one budget and three seeds; convex ones are certified. Losses are on unseen texts, over the
error of predicting the mean. Objectives under different penalties are not comparable; where
students share a penalty, a certified floor says how low any of them could come.

A gradient-trained student is a tuning job per configuration and, with the configuration of the
lowest validation loss, a final job per seed. A convex student is one job: its path of penalties is
its tuning, and without gates nothing in it is random.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from convexformer.problem import Certificate, Problem, Squared, TokenDesign, TokenOutput
from convexformer.problem.offsets import Offsets
from convexformer.problem.sequence import SequenceProblem
from convexformer.solvers import solve
from convexformer.solvers.matrix_targets import solve_sequence

from ..lab import KeyedJob, Ledger, Record, picked, read_config, standard_error
from .convex import BETAS as ALL_BETAS
from .convex import ConvexStudent, fit
from .data import TARGETS, Lessons, Part, Task
from .students import Student, train

LANDMARKS = ("first", "last", "mean", "separators")
WINDOW = Offsets(-4, 4, LANDMARKS)
COARSE = tuple(float(f"{beta:.2g}") for beta in np.geomspace(0.1, 1e-5, 9))  # penalties
FEW = (0.3, 0.1, 0.03, 0.01, 0.003)  # penalties, where each takes long
FLOOR_GAP = 1e-2  # relative; a bound further from its optimum is not called a floor

TOKENS = {"itself": Offsets(0, 0), "window": WINDOW, "positions": None}
BETAS = {"all": ALL_BETAS, "coarse": COARSE, "few": FEW}


def certified(tokens: str = "positions", betas: str = "all", **options: Any) -> ConvexStudent:
    """A convex student by the words of the configuration."""
    return ConvexStudent(offsets=TOKENS[tokens], betas=BETAS[betas], **options)


CONFIG = read_config(__file__, "students.toml")
TRAINED = {name: Student(**options) for name, options in CONFIG["trained"].items()}
CERTIFIED = {name: certified(**options) for name, options in CONFIG["certified"].items()}
LABELS = {name: student.label for name, student in (TRAINED | CERTIFIED).items()}


@dataclass(frozen=True)
class Budget:
    """How long gradient-trained students are trained, and how many seeds of them."""

    steps: int = 1500
    patience: int = 10  # measurements without progress
    tuning_steps: int = 150
    seeds: int = 3
    batch: int = 128  # texts


@dataclass(frozen=True)
class Job(KeyedJob):
    """What all jobs have: their lessons, a task and a student."""

    lessons: Lessons = field(repr=False)
    task: Task
    student: str
    seed: int

    def rules(self) -> Record:
        """Texts, their teacher, and what the student is."""
        return {
            "job": type(self).__name__,
            "text": self.lessons.source,
            "sizes": self.lessons.sizes,
            "teacher": asdict(self.lessons.teacher),
            "definition": asdict((TRAINED | CERTIFIED)[self.student]),
        }


@dataclass(frozen=True)
class TrainingJob(Job):
    """A gradient-trained student with one configuration."""

    lr: float
    decay: float
    steps: int
    patience: int
    batch: int

    def run(self) -> Record:
        """Train."""
        student, lesson = TRAINED[self.student], self.lessons.lesson(self.task)
        plan = picked(vars(self), ("lr", "decay", "seed", "steps", "patience", "batch"))
        return train(student, lesson, **plan)


@dataclass(frozen=True)
class CertifiedJob(Job):
    """A convex student: along its path, or at one penalty, a share of beta_max."""

    share: float | None = None

    def run(self) -> Record:
        lesson = self.lessons.lesson(self.task)
        proof, told = fit(CERTIFIED[self.student], lesson, self.seed, self.share)
        size = null_objective(lesson.train)
        return told | {
            "objective": proof.primal / size,
            "floor": proof.dual / size,
            "relative_gap": proof.relative_gap,
            "beta": proof.beta,
            "seconds_to_converge": told["seconds"],
        }


@dataclass(frozen=True)
class FloorJob(Job):
    """The certified bound under which no network of a student's class can come, at its decay."""

    decay: float

    def run(self) -> Record:
        part = self.lessons.lesson(self.task).train
        certificate = floor(self.student, part, self.decay)
        size = null_objective(part)
        return {
            "floor": certificate.dual / size,
            "optimum": certificate.primal / size,
            "relative_gap": certificate.relative_gap,
        }


def floor(student: str, part: Part, decay: float) -> Certificate:
    """Solve the convex program of "adam" or "simplex" at the penalty that `decay` means."""
    beta = decay * 2 * null_objective(part)
    if student == "simplex" and part.Y.shape[1] > 1:
        matrix = SequenceProblem(part.X.astype(np.float64), part.Y.astype(np.float64))
        return solve_sequence(matrix, beta, tol=1e-3, max_time=120).certificate
    Y = part.Y.reshape(len(part), -1)
    problem = Problem(TokenDesign(part.X), Squared(), TokenOutput(), Y)
    return solve(problem, beta, tol=1e-4).certificate


def known_floor(row: Record) -> float | None:
    """The certified bound of a summary, if it has one that is near the optimum of its class.

    A bound whose solver ran out of time is true, but says nothing about who stands above it.
    """
    if "floor" not in row or row.get("floor_gap", 0.0) > FLOOR_GAP:
        return None
    return float(row["floor"])


def null_objective(part: Part) -> float:
    """Objective of predicting the mean, in the units of certificates: half the sum of squares."""
    return 0.5 * part.variance * part.Y.size


# Studies ------------------------------------------------------------------------------------------

ONCE = ("undertrained", "softmax-12")  # one seed: shown, not compared; costs most of all
FLOORED = ("simplex", "adam")  # trained students whose class has a convex program


@dataclass(frozen=True)
class Study:
    """Students of one task; tuning is done on the task it is `like`, of the usual budget."""

    task: Task
    students: tuple[str, ...]
    budget: Budget = field(default_factory=Budget)
    like: Task | None = None


def study(task: Record, students: list[str], budget: str = "usual", like: Any = None) -> Study:
    """A study by the words of the configuration."""
    return Study(
        named(task), tuple(students), Budget(**CONFIG["budgets"][budget]), like and named(like)
    )


def named(words: Record) -> Task:
    """A task by the words of the configuration."""
    return Task(words["target"], dim=None if words.get("channels") == "all" else 64)


STUDIES = tuple(study(**words) for words in CONFIG["studies"])
FEW_STUDIES = tuple(study(**words) for words in CONFIG["few_studies"])  # on a larger encoder

# Everything at full width, one seed, with configurations that are known to work: tuning takes long.
QUICK_STUDENTS = ("linear", "offsets", "perceptron", "simplex", "softmax-1", "softmax-12")
QUICK_BUDGET = Budget(steps=250, patience=4, seeds=1, batch=64)
QUICK_CONFIG = (1e-2, 1e-5)  # learning rate and decay
QUICK_SHARE = 1e-3  # of beta_max
QUICK_PAIRS = 700


def run(
    ledger: Ledger,
    lessons: Lessons,
    studies: Iterable[Study] = STUDIES,
    command: str = "make teacher",
) -> Record:
    """Do what is missing; `command` is what was typed."""
    rows: list[Record] = []
    for study in studies:
        for student in study.students:
            with ledger.part():
                rows.append(do(ledger, lessons, study, student))
    for row in rows:
        if row["student"] in FLOORED:
            with ledger.part():
                floor_of = FloorJob(lessons, Task(**row["task"]), row["student"], 0, row["decay"])
                known = ledger.do(floor_of)
                row |= {"floor": known["floor"], "floor_gap": known["relative_gap"]}
    records = list({id(job): job for job in ledger.records}.values())  # tuning may serve twice
    return ledger.header() | {
        "command": command,
        "few": studies is FEW_STUDIES,
        "seconds": round(sum(spent(job) for job in records), 1),
        "text": lessons.source,
        "sizes": list(lessons.sizes),
        "teacher": asdict(lessons.teacher),
        "labels": LABELS,
        "targets": TARGETS,
        "rows": rows,
    }


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


def run_quick(ledger: Ledger, lessons: Lessons) -> Record:
    """A few students once, on all channels, with a configuration that is known to work."""
    task, budget, rows = Task("attention", dim=None), QUICK_BUDGET, []
    for student in QUICK_STUDENTS:
        if student in CERTIFIED:
            job = ledger.do(CertifiedJob(lessons, task, student, 0, QUICK_SHARE))
        else:
            plan = (*QUICK_CONFIG, budget.steps, budget.patience, budget.batch)
            job = ledger.do(TrainingJob(lessons, task, student, 0, *plan))
        rows.append(summarise(task, student, [job], spent(job)))
    about = {"text": lessons.source, "sizes": list(lessons.sizes), "labels": LABELS}
    return ledger.header() | about | {"rows": rows}
