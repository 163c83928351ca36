"""The second-order model of a problem on a working set, as systems for secular Newton steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..problem import DualPoint, Huber, Problem
from ..problem.designs import Groups
from .matrixfree import Curvature, SecularCG
from .secular import SecularNewton
from .solution import Iterate
from .systems import GramSystem, JointKernelSystem, KernelSystem, OutlierSystem, System
from .workspace import Workspace

Array = NDArray[np.float64]

KERNEL_RATIO = 1.2  # sample space from this many coefficients per sample
LARGE, LARGE_JOINT = 700, 6000  # unknowns from which conjugate gradients are tried first
LARGEST = 8000  # unknowns up to which a factorisation makes up for their failure
LARGEST_BLOCK = 128  # channels up to which their blocks are worth inverting
MOST_OUTLIERS, MOST_SAMPLES = 1500, 4000  # up to which outliers are cells of their own


@dataclass
class SecondOrderModel:
    """Loss to second order at an iterate, in the coefficients of some groups, plus penalty."""

    problem: Problem
    beta: float
    groups: Groups
    at: Iterate
    point: DualPoint
    damping: float
    work: Workspace

    def minimiser(self, target: float) -> Array:
        """Coefficients of all groups at which the model's gap is below `target`."""
        problem, groups = self.problem, self.groups
        Z = np.zeros_like(self.at.Z)
        size = self._size()
        if size > (LARGE_JOINT if self._joint else LARGE) and problem.design.dim <= LARGEST_BLOCK:
            Z[groups], reached = self._secular_cg().minimise(target)
            if reached or size > LARGEST:
                return Z
        weight = problem.penalty.column(problem.shape[0])[groups]
        radius = self.beta * np.repeat(weight, self._cells, axis=1).ravel()
        eta = (problem.penalty.norms(self.at.Z[groups]) / weight).ravel()
        if isinstance(problem.loss, Huber) and self._few_outliers(problem.loss):
            limit, beyond = self._outlier_cells(problem.loss)
            radius, eta = np.append(radius, limit), np.append(eta, beyond)
            systems = self._outlier_systems()
        else:
            systems = self._systems()
        z = SecularNewton(systems, radius, self.beta, self.at.loss).minimise(eta, target)
        Z[groups] = self._unpack(z)
        return Z

    def _size(self) -> int:
        """Unknowns of the smallest system that could be factorised."""
        c, N, d = self.problem.n_outputs, self.problem.design.n_samples, self.problem.design.dim
        if self._joint:
            return min(len(self.groups) * d * c, N * max(c - 1, 1))
        return min(len(self.groups) * d, N)

    def _secular_cg(self) -> SecularCG:
        problem = self.problem
        H = problem.loss.curvature(self.at.S + self.at.b, problem.Y, self.damping)
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
        )

    @property
    def _cells(self) -> int:
        """Cells of a group within one system; outputs that separate are solved apart."""
        return self.problem.penalty.cells(self.problem.n_outputs) if self._joint else 1

    @property
    def _joint(self) -> bool:
        return self.problem.loss.joint

    # A system orders coefficients (group, channel) x outputs, or (group, output, channel) if joint.

    def _pack(self, Z: Array) -> Array:
        return Z.transpose(0, 2, 1).reshape(-1, 1) if self._joint else Z.reshape(-1, Z.shape[2])

    def _unpack(self, z: Array) -> Array:
        if not self._joint:
            return z
        return z.reshape(len(self.groups), self.problem.n_outputs, -1).transpose(0, 2, 1)

    def _systems(self) -> list[System]:
        """In coefficient or in sample space, whichever is smaller."""
        c = self.problem.n_outputs
        per_sample = len(self.groups) * self.problem.design.dim / self.problem.design.n_samples
        if self._joint and c > 1:
            per_sample *= c / (c - 1)
        if per_sample > KERNEL_RATIO:
            return self._kernel_systems()
        return self._gram_systems()

    def _gram_systems(self) -> list[System]:
        if self.problem.loss.quadratic:
            Q = [self.work.grams.matrix(self.groups)]
        else:
            Q = self.problem.quadratic(self.groups, self.at.S + self.at.b, self.damping)
        G, Z = self._pack(self.point.M[self.groups]), self._pack(self.at.Z[self.groups])
        n_cells = len(self.groups) * self._cells
        if len(Q) == 1:
            return [GramSystem(Q[0], G + Q[0] @ Z, n_cells, self.beta)]
        return [
            GramSystem(q, G[:, [j]] + q @ Z[:, [j]], n_cells, self.beta) for j, q in enumerate(Q)
        ]

    def _kernel_systems(self) -> list[System]:
        problem, kernels, groups, beta = self.problem, self.work.kernels, self.groups, self.beta
        R, F0, weight = self.point.V, self.at.S, problem.weight
        H = problem.loss.curvature(F0 + self.at.b, problem.Y, self.damping)
        if self._joint:
            return [JointKernelSystem(kernels, groups, weight, H, R, F0, self._cells, beta)]
        W = weight[:, None] * H
        if problem.loss.quadratic:
            return [KernelSystem(kernels, groups, W[:, 0], R, F0, beta)]
        return [
            KernelSystem(kernels, groups, W[:, j], R[:, [j]], F0[:, [j]], beta)
            for j in range(problem.n_outputs)
        ]

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
