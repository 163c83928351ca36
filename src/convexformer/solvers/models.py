"""The second-order model of a problem on a working set, as systems for secular Newton steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..problem import DualPoint, Huber, Problem
from ..problem.designs import Groups
from .machine import CACHE, CACHE_SPEED, COMPILED, MEMORY_SPEED, SPEED
from .matrixfree import Curvature, SecularCG
from .near import NearKernelSystem
from .secular import SecularNewton
from .solution import Iterate
from .sweeps import minimise_quadratic
from .systems import GramSystem, JointKernelSystem, KernelSystem, OutlierSystem, System
from .workspace import LARGE_GRAM, Workspace

Array = NDArray[np.float64]

KERNEL_RATIO = 1.2  # sample space from this many coefficients per sample
LARGE, LARGE_JOINT = 700, 1500  # unknowns from which conjugate gradients are tried first
MANY_SAMPLES = 2500  # up to which a kernel of the squared loss is factorised at once
LARGEST_FACTOR = 4000  # unknowns up to which factorisations may be the faster
LARGEST = 8000  # unknowns up to which a factorisation makes up for their failure
LARGEST_BLOCK = 128  # channels up to which their blocks are worth inverting
WORTH_KEEPING = 0.6  # of a kernel's time that conjugate gradients may take where it is kept
TIGHTER = 1e-3  # what sweeps, which take next to no time, add to that accuracy
NEAR_GAIN = 0.02  # what float32 adds to the accuracy asked of a model that is the loss itself
MOST_OUTLIERS, MOST_SAMPLES = 1500, 4000  # up to which outliers are cells of their own


def in_samples(problem: Problem, n_coefficients: int) -> bool:
    """Whether the space of samples is the smaller one."""
    per_sample = max(problem.n_outputs - 1, 1) if problem.loss.joint else 1
    return n_coefficients > KERNEL_RATIO * per_sample * problem.design.n_samples


@dataclass
class SecondOrderModel:
    """Loss to second order at an iterate, in the coefficients of some groups, plus penalty."""

    problem: Problem
    beta: float
    working: NDArray[np.bool_]  # (groups, cells): those that may be used
    at: Iterate
    point: DualPoint
    damping: float
    precise: bool  # form curvature in float64, however large
    work: Workspace
    late: Callable[[], bool]  # whether time is up

    def __post_init__(self) -> None:
        self.groups: Groups = np.flatnonzero(np.any(self.working, axis=1))
        self.cells = self.working[self.groups]
        if self._in_samples:  # where every cell of a group costs the same
            self.cells = np.ones_like(self.cells)

    def minimiser(self, target: float, floor: float) -> Array:
        """Coefficients of all groups at which the model's gap is below `target`.

        Where the model is the loss itself it pays to go on to `floor`, the gap wanted in the end.
        """
        problem, groups = self.problem, self.groups
        Z = np.zeros_like(self.at.Z)
        if self._try_cg:
            steps = self._secular_cg()
            Z[groups], reached = steps.minimise(target)
            self.work.products = steps.products / max(steps.solves, 1)
            self.work.factorise |= self._too_many(steps)
            if reached or self._size > LARGEST or self.late():
                return Z
        if problem.loss.quadratic:
            target = max(floor, NEAR_GAIN * target) if self._in_samples and self._near else floor
        weight = problem.penalty.column(problem.shape[0])[groups]
        radius = self.beta * np.broadcast_to(weight, self.cells.shape)[self.cells]
        eta = (problem.penalty.norms(self.at.Z[groups]) / weight)[self.cells]
        if isinstance(problem.loss, Huber) and self._few_outliers(problem.loss):
            limit, beyond = self._outlier_cells(problem.loss)
            radius, eta = np.append(radius, limit), np.append(eta, beyond)
            systems = self._outlier_systems()
        else:
            found = self._by_sweeps(radius, TIGHTER * target) if self._may_sweep else None
            if found is not None:
                Z[groups] = self._unpack(found)
                return Z
            systems = self._systems()
        newton = SecularNewton(systems, radius, self.beta, self.at.loss, self.late)
        z = newton.minimise(eta, target)
        Z[groups] = self._unpack(z)
        return Z

    @property
    def _try_cg(self) -> bool:
        """Whether conjugate gradients come first; a factorisation makes up for their failure."""
        if self.problem.loss.quadratic and self._in_samples and self._size <= MANY_SAMPLES:
            return False  # the kernel is kept from step to step
        large = self._size > (LARGE_JOINT if self._joint else LARGE)
        if not large or self.problem.design.dim > LARGEST_BLOCK or self.work.factorise:
            return False
        # On more tokens they take no fewer products than before: where a kernel is to be kept from
        # step to step, it is better begun with than after conjugate gradients have been slow.
        kept = self._in_samples and not self._joint and self._size <= LARGEST_FACTOR
        return not (kept and self._cg_ratio(self.work.products) > WORTH_KEEPING)

    def _too_many(self, steps: SecularCG) -> bool:
        """Whether the products that conjugate gradients took cost more than factorisations."""
        if self._size > LARGEST_FACTOR:
            return False
        N, c = self.problem.design.n_samples, self.problem.n_outputs
        size, entries = self._size, N * len(self.groups) * self.problem.design.dim
        if self._joint:  # a curvature of the model, and a few factorisations of it
            factorisations = (N * size**2 + 8 * size**3 / 3) / SPEED
            return steps.products * 4 * entries * c / SPEED > factorisations
        return self._cg_ratio(steps.products / max(steps.solves, 1)) > 1.0

    def _cg_ratio(self, products: float) -> float:
        """Time of conjugate gradients that take so many products a solve, over a factorisation's.

        A step takes two solves or one factorisation, of what changed since the last.
        """
        size, entries = self._size, self.problem.design.n_samples * len(self.groups)
        entries *= self.problem.design.dim
        product = 8 * entries / (CACHE_SPEED if 4 * entries < CACHE else MEMORY_SPEED)
        factorisation = (entries * size + size**3 / 3) / SPEED
        return 5 * products * product / factorisation

    @property
    def _size(self) -> int:
        """Unknowns of the smallest system that could be factorised."""
        N, c = self.problem.design.n_samples, self.problem.n_outputs
        return min(self._n_coefficients, N * max(c - 1, 1) if self._joint else N)

    @property
    def _n_coefficients(self) -> int:
        """Unknowns in coefficient space."""
        per_cell = self.problem.n_outputs // self.cells.shape[1] if self._joint else 1
        return int(np.count_nonzero(self.cells)) * self.problem.design.dim * per_cell

    @property
    def _in_samples(self) -> bool:
        return in_samples(self.problem, self._n_coefficients)

    def _secular_cg(self) -> SecularCG:
        problem = self.problem
        H = problem.curvature(self.at.F, self.damping)
        curvature = Curvature(
            problem.design, self.groups, problem.center, problem.weight, H, self._joint
        )
        return SecularCG(
            curvature,
            self.point.M[self.groups],
            self.at.Z[self.groups],
            problem.penalty,
            problem.penalty.column(problem.shape[0])[self.groups],
            self.beta,
            self.at.loss,
            self.late,
        )

    @property
    def _joint(self) -> bool:
        return self.problem.loss.joint

    # A system orders coefficients (group, channel) x outputs, or (group, output, channel) if joint.

    def _pack(self, Z: Array) -> Array:
        if not self._joint:
            return Z.reshape(-1, Z.shape[2])
        return Z.transpose(0, 2, 1)[self._outputs].reshape(-1, 1)

    def _unpack(self, z: Array) -> Array:
        if not self._joint:
            return z
        Z = np.zeros((len(self.groups), self.problem.n_outputs, self.problem.design.dim))
        Z[self._outputs] = z.reshape(-1, self.problem.design.dim)
        return Z.transpose(0, 2, 1)

    @property
    def _outputs(self) -> NDArray[np.bool_]:
        """Pairs (group, output) in the working set."""
        return np.broadcast_to(self.cells, (len(self.groups), self.problem.n_outputs))

    def _systems(self) -> list[System]:
        return self._kernel_systems() if self._in_samples else self._gram_systems()

    def _gram_systems(self) -> list[System]:
        Q = self._hessians()
        G, Z = self._pack(self.point.M[self.groups]), self._pack(self.at.Z[self.groups])
        n_cells = int(np.count_nonzero(self.cells))
        if len(Q) == 1:
            return [GramSystem(Q[0], G + Q[0] @ Z, n_cells, self.beta)]
        return [
            GramSystem(q, G[:, [j]] + q @ Z[:, [j]], n_cells, self.beta) for j, q in enumerate(Q)
        ]

    @property
    def _may_sweep(self) -> bool:
        """Whether sweeps may be quicker than Newton's steps; a squared loss has had its own."""
        one = self._joint or self.problem.n_outputs == 1
        tried = self.problem.loss.quadratic or self.precise or self._in_samples
        return COMPILED and one and not tried

    def _by_sweeps(self, radius: Array, target: float) -> Array | None:
        """Coefficients of the cells, by sweeps where these are quick."""
        Q, shape = self._hessians()[0], (len(radius), -1, 1)
        parts = (part[self.groups] for part in (self.point.M, self.at.Z))
        M, Z = (self._pack(part).reshape(shape) for part in parts)
        return minimise_quadratic(Q, M, Z, radius, self.at.loss, target, self.late)

    def _hessians(self) -> list[Array]:
        problem, groups = self.problem, self.groups
        if problem.loss.quadratic:
            return [self.work.grams.matrix(groups, self.precise)]
        F, dtype = self.at.F, self._dtype
        with np.errstate(over="ignore", invalid="ignore"):
            if dtype == np.float32 and not self._joint and self.work.columns.take(groups):
                W = problem.weight[:, None] * problem.curvature(F, self.damping)
                kept = self.work.columns.of(groups)
                Q = [problem.without_intercept(*kept.gram(groups, w), w.sum()) for w in W.T]
            else:
                Q = problem.quadratic(groups, F, self.damping, self._outputs, dtype)
        if not all(np.all(np.isfinite(q)) for q in Q):  # beyond the range of float32
            Q = problem.quadratic(groups, F, self.damping, self._outputs)
        return Q

    @property
    def _dtype(self) -> type:
        """Of large curvatures float32 will do: the gradient is exact, the next step mends."""
        design, size = self.problem.design, self._n_coefficients
        if design.is_sparse and not self._joint:
            return np.float64
        small = design.n_samples * size**2 < LARGE_GRAM
        return np.float64 if self.precise or small else np.float32

    def _kernel_systems(self) -> list[System]:
        problem, kernels, groups, beta = self.problem, self.work.kernels, self.groups, self.beta
        R, F0, weight = self.point.V, self.at.S, problem.weight
        H = problem.curvature(F0 + self.at.b, self.damping)
        if self._joint:
            n_cells = self.cells.shape[1]
            return [JointKernelSystem(kernels, groups, weight, H, R, F0, n_cells, beta)]
        W = weight[:, None] * H
        outputs = [np.arange(problem.n_outputs)] if problem.loss.quadratic else None
        outputs = outputs or [np.array([j]) for j in range(problem.n_outputs)]
        if not self._near:
            return [
                KernelSystem(kernels, groups, W[:, j[0]], R[:, j], F0[:, j], beta) for j in outputs
            ]
        G, Z, X = self.point.M[groups], self.at.Z[groups], self.work.columns
        same = problem.loss.quadratic
        return [
            NearKernelSystem(
                kernels, X, groups, W[:, j[0]], R[:, j], G[:, :, j], Z[:, :, j], beta, same
            )
            for j in outputs
        ]

    @property
    def _near(self) -> bool:
        """Whether kernels are too large to be formed at every step."""
        return not self._joint and not self.work.kernels.is_small(len(self.groups))

    def _residual(self) -> Array:
        return np.abs(self.problem.Y - self.at.S - self.at.b)

    def _few_outliers(self, loss: Huber) -> bool:
        beyond = int(np.count_nonzero(self._residual() > loss.delta))
        return self.problem.design.n_samples <= MOST_SAMPLES and beyond <= MOST_OUTLIERS

    def _outlier_cells(self, loss: Huber) -> tuple[Array, Array]:
        """Radius and eta of every (output, sample)."""
        heavy = np.where(self.problem.weight > 0, self.problem.weight, 1.0)  # else never in use
        limit = np.tile(loss.delta * heavy, self.problem.n_outputs)
        size = np.maximum(self._residual() - loss.delta, 0.0).T.ravel()
        return limit, self.beta * size / limit

    def _outlier_systems(self) -> list[System]:
        return [
            OutlierSystem(self.work.kernels, self.groups, self.problem.weight, y, j, self.beta)
            for j, y in enumerate(self.problem.Y.T)
        ]
