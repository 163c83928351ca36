r"""The second-order model of a problem on a working set, and Newton's method on it.

With :math:`\|z\| = \min_{\eta \ge 0} (\|z\|^2/\eta + \eta)/2`, the quadratic model plus penalty

.. math:: \tfrac12 z^\top Q z - b^\top z + \beta \sum_e w_e \|z_e\|

becomes a smooth convex function of one scalar :math:`\eta_e \ge 0` per cell. At :math:`\eta` the
coefficients solve :math:`(Q + \beta\,\mathrm{diag}(1/\eta)) z = b`. With :math:`g = b - Qz`, the
correlation with the residual, :math:`z_e = \eta_e g_e / \beta`; the slope is
:math:`(\beta^2 w_e^2 - \|g_e\|^2) / 2\beta` and the Hessian :math:`A/\beta^2`. The optimum is the
secular equation :math:`\|g_e\| = \beta w_e` on cells in use. A
:class:`~convexformer.solvers.quadratic_systems.System` gives z, g and A at one eta.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..problem import Point, Problem
from ..problem.arrays import Array, Groups
from ..problem.stopping import check_stop, until
from . import choose
from .linalg import bounded_quadratic
from .quadratic_systems import (
    Cells,
    GramSystem,
    KernelSystem,
    RoughError,
    State,
    System,
    softmax_root,
)
from .solution import ROUNDING, Task
from .workspace import LARGE_GRAM, Kernels, NearKernels

LARGE_KERNEL = 200  # samples up to which kernels are in float64
NOISE = 1e-3  # error that values of a model may have, over the gap


def in_samples(problem: Problem, n_coefficients: int) -> bool:
    """Whether the space of samples is the smaller one."""
    per_sample = max(problem.n_outputs - 1, 1) if problem.loss.joint else 1
    return n_coefficients > choose.TUNING.kernel_ratio * per_sample * problem.design.n_samples


@dataclass
class SecondOrderModel:
    """Loss to second order at a point, in the coefficients of some groups, plus penalty."""

    task: Task
    working: NDArray[np.bool_]  # (groups, cells): those that may be used
    at: Point
    damping: float
    precise: bool  # form curvature in float64, however large

    def __post_init__(self) -> None:
        self.problem, self.beta, self.work = self.task.problem, self.task.beta, self.task.work
        self._joint = self.problem.loss.joint
        self.groups: Groups = np.flatnonzero(np.any(self.working, axis=1))
        self.cells = self.working[self.groups]
        if self._in_samples:  # where every cell of a group costs the same
            self.cells = np.ones_like(self.cells)

    def minimiser(self, target: float, floor: float) -> Array:
        """Coefficients of all groups at which the model's gap is below `target`.

        Where the model is the loss itself, and its groups are all that are wanted, it pays to go on
        to `floor`, the gap wanted in the end.
        """
        problem, groups, late = self.problem, self.groups, self.task.clock.late
        Z = np.zeros_like(self.at.Z)
        if problem.loss.quadratic and self.working[self.at.norms > self.beta].all():
            target = floor
        weight = problem.penalty.column(problem.shape[0])[groups]
        radius = self.beta * np.broadcast_to(weight, self.cells.shape)[self.cells]
        eta = (problem.penalty.norms(self.at.Z[groups]) / weight)[self.cells]

        def minimised() -> Array:
            systems = self._kernel_systems() if self._in_samples else self._gram_systems()
            newton = SecularNewton(systems, radius, self.beta, self.at.loss, late)
            return newton.minimise(eta, target)

        try:
            Z[groups] = self._unpack(minimised())
        except RoughError:
            self.precise = True
            Z[groups] = self._unpack(minimised())
        return Z

    @property
    def _n_coefficients(self) -> int:
        """Unknowns in coefficient space."""
        per_cell = self.problem.n_outputs // self.cells.shape[1] if self._joint else 1
        return int(np.count_nonzero(self.cells)) * self.problem.design.dim * per_cell

    @property
    def _in_samples(self) -> bool:
        return in_samples(self.problem, self._n_coefficients)

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

    def _gram_systems(self) -> list[System]:
        Q = self._hessians
        G, Z = self._pack(self.at.M[self.groups]), self._pack(self.at.Z[self.groups])
        n_cells = int(np.count_nonzero(self.cells))
        if len(Q) == 1:
            return [GramSystem(Q[0], G + Q[0] @ Z, n_cells, self.beta, self.precise)]
        return [
            GramSystem(q, G[:, [j]] + q @ Z[:, [j]], n_cells, self.beta, self.precise)
            for j, q in enumerate(Q)
        ]

    @cached_property
    def _hessians(self) -> list[Array]:
        problem, groups = self.problem, self.groups
        if problem.loss.quadratic:
            return [self.work.grams.matrix(groups, self.precise)]
        F = self.at.F
        with np.errstate(over="ignore", invalid="ignore"):
            Q = problem.quadratic(groups, F, self.damping, self._outputs, self._dtype)
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
        problem, at, n_cells = self.problem, self.at, self.cells.shape[1]
        H, weight = problem.risk.curvature(at.F, self.damping), problem.weight[:, None, None]
        parts: list[tuple[Array, list[Array]]]
        whole = [at.V, at.S, at.M[self.groups], at.Z[self.groups]]
        if self._joint:
            parts = [(np.sqrt(weight) * softmax_root(H), [A[..., None] for A in whole])]
        else:  # only a squared loss has one curvature for all outputs
            n_cells, root, c = 1, np.sqrt(weight * H[:, :, None]), problem.n_outputs
            width = c if problem.loss.quadratic else 1
            parts = [
                (root[:, j : j + 1], [A[..., None, j : j + width] for A in whole])
                for j in range(0, c, width)
            ]
        kernels, groups, beta = self._kernels(n_cells), self.groups, self.beta
        return [KernelSystem(kernels, groups, *part, n_cells, beta) for part in parts]

    def _kernels(self, n_cells: int) -> Kernels | NearKernels:
        """In float32 where that will do."""
        work, problem = self.work, self.problem
        small = problem.design.n_samples <= LARGE_KERNEL
        if self.precise or small or not work.columns.take(self.groups):
            return work.kernels
        if work.near_kernels is None:
            work.near_kernels = NearKernels(problem.design, n_cells)
        return work.near_kernels.on(work.columns.of(self.groups), problem.intercept)


@dataclass
class _Point:
    """All systems at one `eta`, with what the secular equation needs of them."""

    eta: Array
    states: list[State]
    value: float
    norms: Array
    gap: float


class SecularNewton:
    """Minimise the sum of `systems` over a shared `eta`.

    Parameters
    ----------
    systems : list of System
    radius : ndarray of shape (cells,)
        ``beta * w``: the norm of g on a cell in use.
    beta : float
    bulk : float
        The loss at the point of expansion, roughly: times (1 - scale)^2, it is the cost of scaling
        the dual point into the norm ball.
    late : callable
        Whether time is up.
    """

    def __init__(
        self,
        systems: list[System],
        radius: Array,
        beta: float,
        bulk: float,
        late: Callable[[], bool] = lambda: False,
    ) -> None:
        self.systems, self.radius, self.beta, self.bulk = systems, radius, beta, bulk
        self.late = late

    def minimise(self, eta: Array, target: float, max_iter: int = 100) -> Array:
        """Coefficients ``(cells, size, outputs)`` whose model gap is below `target`, or nearly."""
        self.noise = NOISE * target
        self.rounding = max(system.rounding for system in self.systems)
        try:
            at = self._point(eta)
        except np.linalg.LinAlgError:  # a start so large that its system cannot be factorised
            at = self._point(np.zeros_like(eta))
        self.best = at
        with until(self.late):
            self._descend(at, target, max_iter)
        return np.concatenate([state.z for state in self.best.states], axis=2)

    def _descend(self, at: _Point, target: float, max_iter: int) -> None:
        """Steps from `at`; `best` is where they led, also where time is up before they end."""
        best, idle, first = at, 0, at.gap
        for step in range(max_iter):
            # At least one step: the start fits the model's coefficients, but to an old eta.
            if (at.gap <= target and step > 0) or idle >= 8:
                break
            if self.rounding > ROUNDING and idle >= 2:  # the next model goes on from there
                if best.gap > 0.5 * first:
                    raise RoughError("Values in float32 show no descent.")
                break
            check_stop()
            new = self._step(at)
            if new is None:
                break
            # The gap may be slower than the value, which rounds.
            least_fall = max(0.01 * min(target, at.gap), self.rounding * abs(at.value))
            falls = at.value - new.value > least_fall
            at = new
            better = at.gap < 0.9 * best.gap
            best, idle = at if better else best, 0 if better or falls else idle + 1
            self.best = at if at.gap <= best.gap or at.value < best.value - target else best

    def _point(self, eta: Array) -> _Point:
        check_stop()
        states = [system.solve(eta, self.noise) for system in self.systems]
        value = sum(state.value for state in states)
        value += 0.5 * self.beta * float((self.radius / self.beta) ** 2 @ eta)
        sizes, norms = (np.sqrt(sum(state.squares[i] for state in states)) for i in (0, 1))
        scale = min(1.0, float(np.min(self.radius / np.maximum(norms, self.radius))))
        gap = float(self.radius @ sizes) - scale * sum(state.product for state in states)
        gap += sum(state.missed for state in states)
        return _Point(eta, states, value, norms, gap + (1 - scale) ** 2 * self.bulk)

    def _step(self, at: _Point) -> _Point | None:
        """One safeguarded Newton step, or None where rounding leaves no descent."""
        cells = np.flatnonzero((at.eta > 0) | (at.norms > self.radius))
        if not len(cells):
            return None
        pairs = zip(self.systems, at.states, strict=True)
        parts = [system.curvature(state, cells) for system, state in pairs]
        A = parts[0] if len(parts) == 1 else np.sum(parts, axis=0)
        norms, radius, eta = at.norms[cells], self.radius[cells], at.eta[cells]
        # Newton on 1/||g|| = 1/radius, nearly linear in eta; else on the slope itself.
        rational = self.beta * norms**2 * (norms / radius - 1.0)
        plain = 0.5 * self.beta * (norms**2 - radius**2)
        slack = 10 * self.rounding * abs(at.value) + self.noise
        for right in (rational, plain):
            try:
                move = bounded_quadratic(A, right, -eta)
            except np.linalg.LinAlgError:  # products beyond the range of float64
                return None
            new = self._moved(at, cells, move)
            if new is not None and new.value <= at.value + slack:
                return new
        for halvings in range(1, 30):
            new = self._moved(at, cells, 0.5**halvings * move)
            if new is not None and new.value <= at.value + slack:
                return new
        return None

    def _moved(self, at: _Point, cells: Cells, move: Array) -> _Point | None:
        eta = at.eta.copy()
        eta[cells] = np.maximum(0.0, eta[cells] + move)
        try:
            return self._point(eta)
        except np.linalg.LinAlgError:  # eta so large that its system cannot be factorised
            return None
