"""Jobs of the student-teacher experiment: who learns what, how it is tuned, and what is recorded.

A gradient-trained student is a tuning job per configuration and, with the configuration of the
lowest validation loss, a final job per seed. A convex student is one job: its path of penalties is
its tuning, and without gates nothing in it is random.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from ..problem import Certificate, Problem, Squared, TokenDesign, TokenOutput
from ..problem.offsets import Offsets
from ..problem.sequence import SequenceProblem
from ..solvers import solve
from ..solvers.sequence import solve_sequence
from .records import Record
from .teacher_convex import ConvexStudent, fit
from .teacher_data import Lessons, Part, Task
from .teacher_students import Student, train
from .threads import one_thread

LANDMARKS = ("first", "last", "mean", "separators")
WINDOW = Offsets(-4, 4, LANDMARKS)
COARSE = tuple(float(f"{beta:.2g}") for beta in np.geomspace(0.1, 1e-5, 9))  # penalties
FEW = (0.3, 0.1, 0.03, 0.01, 0.003)  # penalties, where each takes long
FLOOR_GAP = 1e-2  # relative; a bound further from its optimum is not called a floor

TRAINED = {
    "softmax-1": Student("softmax attention, 1 head", "softmax"),
    "softmax-1-values": Student("... no decay of queries, keys", "softmax", decayed="values"),
    "softmax-1-none": Student("... no decay at all", "softmax", decayed="none"),
    "softmax-1-usual": Student("... usual start", "softmax", small=False),
    "softmax-1-literal": Student(
        "... as the paper writes it", "softmax", scaled=False, small=False
    ),
    "softmax-2": Student("softmax attention, 2 heads", "softmax", heads=2, head_dim=32),
    "softmax-4": Student("softmax attention, 4 heads", "softmax", heads=4, head_dim=32),
    "softmax-12": Student("softmax attention, 12 heads", "softmax", heads=12, head_dim=32),
    "simplex": Student("simplex attention, 12 heads", "simplex", heads=12),
    "adam": Student("convex, positions, by Adam", "convex"),
    "perceptron": Student("MLP on the token alone", "perceptron"),
    "undertrained": Student(
        "softmax, 1 head, UNDERTRAINED (lr 1e-4)",
        "softmax",
        scaled=False,
        small=False,
        lrs=(1e-4,),
        decays=(1e-5,),
    ),
}
CERTIFIED = {
    "linear": ConvexStudent("linear, the token alone", "token", Offsets(0, 0), betas=COARSE),
    "positions": ConvexStudent("convex, positions (the paper's)", "token-output", betas=FEW),
    "positions-token": ConvexStudent("convex, positions, token penalty", "token", betas=FEW),
    "positions-nuclear": ConvexStudent(
        "convex, positions, nuclear norm", "nuclear", betas=FEW, tol=1e-4
    ),
    "offsets": ConvexStudent("convex, offsets, token penalty", "token", WINDOW, betas=COARSE),
    "offsets-output": ConvexStudent(
        "convex, offsets, token-output", "token-output", WINDOW, betas=COARSE
    ),
    "offsets-nuclear": ConvexStudent(
        "convex, offsets, nuclear norm", "nuclear", WINDOW, betas=FEW, tol=1e-4
    ),
    "gated-8": ConvexStudent("convex, offsets, 8 gates", "token", WINDOW, gates=8),
    "gated-32": ConvexStudent("convex, offsets, 32 gates", "token", WINDOW, gates=32),
}
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
class Job:
    """What all jobs have: their lessons, a task and a student."""

    lessons: Lessons = field(repr=False)
    task: Task
    student: str
    seed: int

    @property
    def key(self) -> Record:
        """What a finished job must agree with to count as this one."""
        known = asdict((TRAINED | CERTIFIED)[self.student])
        fields = {name: value for name, value in vars(self).items() if name != "lessons"}
        described = {
            "job": type(self).__name__,
            "text": self.lessons.source,
            "sizes": list(self.lessons.sizes),
            "teacher": asdict(self.lessons.teacher),
            "definition": plain(known),
        }
        return described | fields | {"task": self.task.key}

    def __str__(self) -> str:
        return f"{self.task}: {LABELS[self.student]}, seed {self.seed}"


def plain(value: object) -> object:
    """As JSON would give it back: tuples are lists."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True)
class TrainingJob(Job):
    """A gradient-trained student with one configuration."""

    lr: float
    decay: float
    steps: int
    patience: int
    batch: int

    def run(self, folder: Path) -> Record:
        """Train; nothing is kept in `folder`, since a job takes a minute or two."""
        with one_thread():
            told = train(
                TRAINED[self.student],
                self.lessons.lesson(self.task),
                self.lr,
                self.decay,
                self.seed,
                self.steps,
                self.patience,
                self.batch,
            )
        return self.key | {
            "losses": told.losses,
            "objective": told.objective,
            "seconds": round(told.seconds, 3),
            "seconds_to_converge": round(told.seconds_to_converge, 3),
            "parameters": told.parameters,
            "curve": columns(told.curve),
        }


@dataclass(frozen=True)
class CertifiedJob(Job):
    """A convex student: along its path, or at one penalty, a share of beta_max."""

    share: float | None = None

    def run(self, folder: Path) -> Record:
        lesson = self.lessons.lesson(self.task)
        with one_thread():
            told = fit(CERTIFIED[self.student], lesson, self.seed, self.share)
        size = null_objective(lesson.train)
        return self.key | {
            "losses": told.losses,
            "objective": told.certificate.primal / size,
            "floor": told.certificate.dual / size,
            "relative_gap": told.certificate.relative_gap,
            "chosen": told.share,
            "beta": told.certificate.beta,
            "seconds": round(told.seconds, 3),
            "seconds_to_converge": round(told.seconds, 3),
            "seconds_of_all": round(told.seconds_of_all, 3),
            "parameters": told.parameters,
            "active": told.active,
            "groups": told.groups,
            "curve": columns(told.path),
        }


@dataclass(frozen=True)
class FloorJob(Job):
    """The certified bound under which no network of a student's class can come, at its decay."""

    decay: float

    def run(self, folder: Path) -> Record:
        part = self.lessons.lesson(self.task).train
        with one_thread():
            certificate = floor(self.student, part, self.decay)
        size = null_objective(part)
        return self.key | {
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
    return solve(
        Problem(TokenDesign(part.X), Squared(), TokenOutput(), Y), beta, tol=1e-4
    ).certificate


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


def columns(curve: list[dict[str, float]]) -> dict[str, list[float]]:
    """A curve by columns, in few digits."""
    names = curve[0] if curve else ()
    return {name: [float(f"{point[name]:.5g}") for point in curve] for name in names}
