r"""Convex students: trained to a certified global optimum at every penalty of a path.

Where weights are tied by offset, a sample is a position of a text, and there are many more of them
than columns: the path is solved on second moments, in a problem of as many rows as there are
columns, and the certificate is computed on all samples, in float64, afterwards.

Gates divide the positions: a position belongs to the nearest of a few centres of tokens, and each
such class of positions has weights of its own. Classes share no coefficients, so their problems are
solved one by one, and objectives and bounds add up. Centres are fixed before the fit (k-means on
training tokens), so that the problem stays convex.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpstrf
from sklearn.cluster import MiniBatchKMeans

from convexformer.problem import Certificate, Problem, Squared, TokenDesign
from convexformer.problem.designs import Design
from convexformer.problem.offsets import OffsetDesign, Offsets
from convexformer.problem.penalties import PENALTIES, Penalty
from convexformer.solvers import Solution, solve_path

from ..lab import Record, columns
from .data import WATCHED, Lesson, Part

Array = NDArray[np.float64]

BETAS = tuple(np.geomspace(0.3, 1e-5, 14).tolist())  # fractions of beta_max
TO_CHOOSE = 1e-3  # relative duality gap along a path
PATIENCE = 2  # penalties in a row that may raise the validation loss before a path ends


@dataclass(frozen=True)
class ConvexStudent:
    """A convex program: which tokens a target sees, under which penalty, through how many gates.

    ``offsets = None`` is position-wise: every target position has its own weights for every
    position, as in the paper.
    """

    label: str
    penalty: str
    offsets: Offsets | None = None
    gates: int = 1
    betas: tuple[float, ...] = field(default=BETAS, repr=False)
    tol: float = 1e-5  # relative duality gap

    def samples(self, part: Part) -> tuple[Design, Array]:
        """Texts with targets ``(N, m c)``, or positions of texts with ``(N m, c)``."""
        (N, m, c), Y = part.Y.shape, part.Y.astype(np.float64)
        if self.offsets is None:
            return TokenDesign(part.X), Y.reshape(N, m * c)
        flags = part.separators[:, :m]
        design = OffsetDesign(part.X[:, :m], self.offsets, separators=flags)
        return design, Y.reshape(N * m, c)


# Samples, and classes of them -------------------------------------------------------------------


def _centres(train: Part, count: int, seed: int) -> Array | None:
    """Centres of `count` classes of training tokens, ``(count, d)``."""
    if count == 1:
        return None
    tokens = train.X.reshape(-1, train.X.shape[2])
    means = MiniBatchKMeans(count, n_init=3, batch_size=4096, random_state=seed).fit(tokens)
    return np.asarray(means.cluster_centers_, dtype=np.float64)


def _nearest(tokens: NDArray[np.floating], centres: Array) -> NDArray[np.intp]:
    """The nearest centre of every token: ``|x|^2`` is the same for all, so it is left out."""
    return np.argmin(np.square(centres).sum(axis=1) - 2 * (tokens @ centres.T), axis=1)


@dataclass(frozen=True)
class ClassProblem:
    """The problem of one class of positions, and means that give back its intercept."""

    problem: Problem
    tokens: Array  # their mean, (groups, d)
    targets: Array  # theirs, (c,)

    def intercept(self, solution: Solution) -> Array:
        """The best one beside the solution's coefficients."""
        return np.asarray(self.targets - np.tensordot(self.tokens, solution.Z, axes=2))


@dataclass(frozen=True)
class _Samples:
    """One part as a design and targets, and which samples belong to which class."""

    part: Part
    design: Design
    Y: Array  # (samples, outputs)
    classes: list[NDArray[np.bool_]]  # (samples,) each

    @classmethod
    def of(cls, student: ConvexStudent, part: Part, centres: Array | None) -> Self:
        design, Y = student.samples(part)
        if centres is None:
            return cls(part, design, Y, [np.ones(len(Y), dtype=bool)])
        nearest = _nearest(part.X.reshape(len(Y), -1), centres)
        return cls(part, design, Y, [nearest == k for k in range(len(centres))])

    def loss(self, problems: list[ClassProblem], solutions: tuple[Solution, ...]) -> float:
        """Of the predictions: every sample by its own class."""
        together = np.concatenate([solution.Z for solution in solutions], axis=2)
        scores = np.split(self.design.predict(together), len(solutions), axis=1)
        F = np.zeros(self.Y.shape)
        for belongs, one, solution, S in zip(
            self.classes, problems, solutions, scores, strict=True
        ):
            F[belongs] = S[belongs] + one.intercept(solution)
        return self.part.loss(F)

    def certificate(
        self, penalty: Penalty, problems: list[ClassProblem], best: tuple[Solution, ...]
    ) -> Certificate:
        """Of the problem itself, on all samples: objectives and bounds of classes add up."""
        known = [
            Problem(self.design, Squared(), penalty, self.Y, belongs.astype(float)).certificate(
                solution.Z, one.intercept(solution), solution.certificate.beta
            )
            for belongs, one, solution in zip(self.classes, problems, best, strict=True)
        ]
        return Certificate(
            primal=sum(one.primal for one in known),
            dual=sum(one.dual for one in known),
            beta=known[0].beta,
            beta_max=max(one.beta_max for one in known),
        )


# Second moments, and small problems with the same objective --------------------------------------


def small_problems(
    design: Design, Y: Array, classes: list[NDArray[np.bool_]], penalty: Penalty
) -> list[ClassProblem]:
    """Of every class of samples, a problem in as many rows as its columns have ranks."""
    width = design.n_groups * design.dim + Y.shape[1]
    total = np.zeros((len(classes), width))
    grams = np.zeros((len(classes), width, width))
    for rows, A in design.columns():
        block = np.concatenate([A, Y[rows]], axis=1)
        for g, belongs in enumerate(classes):
            mine = block[belongs[rows]]
            total[g] += mine.sum(axis=0)
            grams[g] += mine.T @ mine
    shape = design.n_groups, design.dim
    return [
        of_moments(total[g], grams[g], int(belongs.sum()), shape, penalty)
        for g, belongs in enumerate(classes)
    ]


def of_moments(
    total: Array, gram: Array, count: int, shape: tuple[int, int], penalty: Penalty
) -> ClassProblem:
    """From sums ``(p + c,)`` and second moments ``(p + c, p + c)`` of tokens and targets.

    Any R with ``R' R = gram``, centred, has the same objective as the samples. The intercept is
    already at its best: means give it back.
    """
    p, mean = shape[0] * shape[1], total / count
    R = root(gram - count * np.outer(mean, mean))
    X = np.ascontiguousarray(R[:, :p]).reshape(-1, *shape)
    problem = Problem(TokenDesign(X), Squared(), penalty, R[:, p:], intercept=False)
    return ClassProblem(problem, mean[:p].reshape(shape), mean[p:])


def root(gram: Array) -> Array:
    """R with ``R' R = gram``, as few rows as its rank, by Cholesky's factors with pivots."""
    U, pivots, rank, _ = dpstrf(gram, lower=0)
    R = np.zeros((rank, len(gram)))
    R[:, pivots - 1] = np.triu(U)[:rank]
    return R


# A path of penalties, and the fit at the one that validation chooses ------------------------------


def fit(
    student: ConvexStudent, lesson: Lesson, seed: int = 0, share: float | None = None
) -> tuple[Certificate, Record]:
    """Choose a penalty on validation texts, along a path, and solve there to the tolerance.

    Parameters
    ----------
    student : ConvexStudent
    lesson : Lesson
    seed : int
        Of the centres of gates; without gates nothing is random.
    share : float, optional
        The penalty as a fraction of beta_max, where there is nothing to choose.

    Returns
    -------
    Certificate
        Of all classes of positions together, on all training samples.
    dict
        `losses` on all texts of every part, and `chosen`, the penalty as a fraction of beta_max.
        `curve` has the losses on some texts of every part at every penalty; it is empty where there
        was nothing to choose. `seconds` are of processor time, from the data to the certified model
        at the chosen penalty alone, those `of_all` with the path that chose it; measuring losses
        does not count. `active` groups of coefficients are not zero; `parameters` are all
        coefficients and intercepts.
    """
    start = time.process_time()
    centres = _centres(lesson.train, student.gates, seed)
    train = _Samples.of(student, lesson.train, centres)
    penalty = PENALTIES[student.penalty]()
    problems = small_problems(train.design, train.Y, train.classes, penalty)
    beta_max = max(one.problem.beta_max for one in problems)
    prepared = time.process_time() - start
    others = {
        "train": _Samples.of(student, lesson.train.first(WATCHED), centres),
        "validation": _Samples.of(student, lesson.validation, centres),
        "test": _Samples.of(student, lesson.test.first(WATCHED), centres),
    }
    path: list[dict[str, float]] = []
    if share is None:
        path = _path(student, problems, beta_max, others, prepared)
        share = min(path, key=lambda point: point["validation"])["share"]
    start = time.process_time()
    (best,) = _solve(problems, [share * beta_max], student.tol)
    certificate = train.certificate(penalty, problems, best)
    alone = time.process_time() - start
    whole = others | {"train": train, "test": _Samples.of(student, lesson.test, centres)}
    return certificate, {
        "losses": {name: part.loss(problems, best) for name, part in whole.items()},
        "chosen": share,
        "curve": columns(path, path[0] if path else (), digits=5),
        "seconds": round(prepared + alone, 3),
        "seconds_of_all": round((path[-1]["seconds"] if path else prepared) + alone, 3),
        "active": sum(int(np.count_nonzero(np.any(one.Z, axis=(1, 2)))) for one in best),
        "groups": sum(len(one.Z) for one in best),
        "parameters": sum(one.Z.size + one.intercept.size for one in best),
    }


def _path(
    student: ConvexStudent,
    problems: list[ClassProblem],
    beta_max: float,
    parts: dict[str, _Samples],
    clock: float,
) -> list[dict[str, float]]:
    """Losses along the penalties, from the strongest, until the validation loss rises.

    To choose among penalties, gaps need not be as small as that of the model in the end.
    """
    path: list[dict[str, float]] = []
    solutions = _solve(problems, [share * beta_max for share in student.betas], TO_CHOOSE)
    for share in student.betas:
        start = time.process_time()
        found = next(solutions)
        clock += time.process_time() - start
        losses = {name: part.loss(problems, found) for name, part in parts.items()}
        path.append({"share": share, "seconds": clock} | losses)
        validation = [point["validation"] for point in path]
        if len(path) - 1 - int(np.argmin(validation)) >= PATIENCE:
            break
    return path


def _solve(
    problems: list[ClassProblem], betas: list[float], tol: float
) -> Iterator[tuple[Solution, ...]]:
    """Solutions of all classes at one penalty after the other, each from the last."""
    # Half of it, because what is certified is another problem with other rounding.
    return zip(*(solve_path(one.problem, betas, tol=0.5 * tol) for one in problems), strict=True)
