r"""Many outputs that share tokens: secular Newton where one factorisation serves all outputs.

For the squared loss and :math:`\beta \sum_k w_k \|Z_k\|_F` every token has one scalar for all
outputs, so that

.. math:: M(\eta) V = Y, \qquad M = I + \sum_k \eta_k X_k X_k^\top / \beta,
          \qquad Z_k = \eta_k X_k^\top V / \beta

is one matrix with many right-hand sides. Newton's steps on eta start on a sketch of the outputs:
their principal axes, and random mixes of the rest. All outputs only polish what it finds. Products
are formed in float32 as long as that serves; what is returned is certified in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError

from ...problem import Point
from ...problem.designs import Groups
from ...problem.stopping import check_stop, until
from ..choose import in_coefficients
from ..linalg import bounded_quadratic
from ..solution import Clock, Task
from .kernel import Kernel, WeightedTokens
from .systems import SharedGram, SharedKernel, SharedSystem, sketch, token_norms

Array = NDArray[np.float64]

LEAST_SKETCH = 32  # outputs of a sketch, which has a quarter of all where these are many
SKETCH_GAP = 1.5e-2  # relative gap that leaves one step of the work on the sketch
STAGE, STAGE_GAP = 0.1, 0.05  # factor of beta per stage on the sketch, and the gap that ends one
FEW = 512  # coefficients that may enter at once, where there are no more
MARGIN = 0.1  # tokens whose correlations are this near to the limit are watched
DUST = 1e-12  # of the largest eta: none
ROUNDS = 4  # in which tokens that nobody watched may join
SMALL = 1e8  # multiply-adds of a product up to which float64 costs nothing
RETRIES = 3  # in the best of precisions, as each aims lower
PRECISIONS = (  # of products, of factors
    (np.float32, np.float32),
    (np.float64, np.float32),
    *RETRIES * [(np.float64, np.float64)],
)
PATIENCE = 6  # steps without progress
MISSED = 3.0  # gap left by a step with an old Hessian, over the part that it missed of the last one


def minimise(task: Task, at: Point) -> tuple[Point, bool]:
    """Newton on a sketch, then on all outputs; not done where precision does not suffice."""
    at = _Shared(task, at).run()
    return at, task.clock.expired or at.gap(task.beta) <= task.tol


class _Shared:
    def __init__(self, task: Task, at: Point) -> None:
        self.task, self.problem, self.beta, self.clock = task, task.problem, task.beta, task.clock
        self.weight = self.problem.penalty.column(self.problem.shape[0])[:, 0]
        self.everything = np.arange(self.problem.shape[0])
        self.norms = np.full(len(self.weight), np.inf)  # of correlations; unknown ones are watched
        self.in_coefficients = in_coefficients(self.problem)
        self._known: tuple[Array, Array] | None = None
        self.best, self.gap = at, at.gap(self.beta)
        self.axes = self.problem.principal_axes
        self._in(*PRECISIONS[-1])
        self.Y = self.columns.balanced(self.columns.root * self.problem.Y) @ self.axes

    def _in(self, products: type, factors: type) -> None:
        """Work in these precisions from now on."""
        self.columns, self.factors = WeightedTokens(self.problem, products), factors

    def run(self) -> Point:
        """The point of the least gap."""
        with until(self.clock.late):
            self._run()
        return self.best

    def _run(self) -> None:
        self.eta = self.problem.penalty.norms(self.best.Z)[:, 0] / self.weight
        small = self.Y.size * self.problem.design.n_groups * self.problem.design.dim < SMALL
        tol = self.task.tol
        for precision in PRECISIONS[-RETRIES:] if small else PRECISIONS:
            if (self.columns.dtype, self.factors) != precision:
                self._in(*precision)
            try:
                if not np.any(self.eta):
                    self._sketched()
                self._polished(tol)
            except LinAlgError:
                continue
            if self.gap <= self.task.tol or self.clock.expired:
                break
            tol *= 0.2

    def _sketched(self) -> None:
        """eta for a sketch of the outputs, beta coming down in stages."""
        c = self.Y.shape[1]
        r = c if c < 2 * LEAST_SKETCH else max(LEAST_SKETCH, c // 4)
        Y = self.Y @ sketch(c, r, np.random.default_rng(0))
        if self.in_coefficients:
            self.norms = token_norms(self._correlations(Y))
        for stage in self._stages(with_last=r < c or self.in_coefficients):
            for _ in range(0 if self.clock.expired else ROUNDS):
                watched = self._watched(stage)
                newton = self._newton(Y, stage, watched)
                at = newton.minimise(self.eta, SKETCH_GAP if stage == self.beta else STAGE_GAP)
                self.eta, self.norms = at.eta, at.norms
                others = np.setdiff1d(self.everything, watched)
                if len(others):
                    V = self._residuals(newton.system, Y)
                    self.norms[others] = token_norms(self.columns.correlate(V, others))
                if self.clock.expired or self._wants_only(watched, stage):
                    break
            if stage == self.beta and r < c and not self.clock.expired:
                self.eta = newton.ahead(at)  # all outputs are to measure it

    def _residuals(self, system: SharedSystem, Y: Array) -> Array:
        """V at the eta that `system` has measured last."""
        if isinstance(system, SharedKernel):
            return system.V
        used = np.flatnonzero(self.eta)
        return Y - self.columns.predict(np.ones(len(used)), system.coefficients(used), used)

    def _watched(self, beta: float) -> Groups:
        """Groups in use, and those near to the limit or beyond.

        Among coefficients every group costs: at first only the worst enter, then all if many do.
        """
        radius, used = self.weight * beta, self.eta > 0
        near = ~used & (self.norms > (1 - MARGIN) * radius)
        room = max(1 + FEW // self.problem.design.dim, int(np.count_nonzero(used)))
        if self.in_coefficients and np.count_nonzero(near) > room and not self.clock.expired:
            if np.any(used) and 3 * np.count_nonzero(self.norms[~used] > radius[~used]) > len(used):
                self.eta = np.zeros_like(self.eta)  # which leads away from those that all share
                return self.everything
            near[np.argsort(np.where(near, self.norms / radius, 0.0))[:-room]] = False
        return np.flatnonzero(used | near)

    def _wants_only(self, watched: Groups, beta: float) -> bool:
        return bool(np.all(np.isin(np.flatnonzero(self.norms > self.weight * beta), watched)))

    def _stages(self, with_last: bool) -> list[float]:
        """Betas between the largest and the one wanted."""
        ratio = self.problem.beta_max / self.beta
        steps = int(np.ceil(np.log(ratio) / np.log(1 / STAGE) - 0.2))
        stages = [self.beta * ratio ** (1 - j / steps) for j in range(1, steps)]
        return [*stages, self.beta] if with_last else stages

    def _polished(self, tol: float) -> None:
        """All outputs, on tokens that are watched, until no other token is wanted."""
        for _ in range(ROUNDS):
            watched = self._watched(self.beta)
            newton = self._newton(self.Y, self.beta, watched)
            at = newton.minimise(self.eta, tol)
            self.eta = at.eta
            if not np.isfinite(at.gap):
                raise LinAlgError("This precision does not serve.")
            Z = np.zeros(self.problem.shape)
            for k in np.flatnonzero(self.eta):  # one by one, to hold nothing twice
                own = newton.system.coefficients(np.array([k]))[0]
                np.matmul(own, self.axes.T.astype(own.dtype), out=Z[k])
            del newton
            with until(lambda: False):  # nothing stops the evaluation of what was found
                found = self._measured(Z)
            if found <= self.task.tol or self.clock.expired or self._wants_only(watched, self.beta):
                break

    def _measured(self, Z: Array) -> float:
        """The gap at `Z` in float64; the best point is kept."""
        at = self.problem.at(Z)
        gap = self.task.measure(at)
        self.norms = at.norms[:, 0] * self.weight
        if gap < self.gap:
            self.best, self.gap = at, gap
        return gap

    def _newton(self, Y: Array, beta: float, watched: Groups) -> _Newton:
        system: SharedSystem
        if self.in_coefficients:
            B = self._correlations(Y)[watched].reshape(-1, Y.shape[1])
            Q, total = self.task.work.grams.matrix(watched), float(np.vdot(Y, Y))
            system = SharedGram(Q, B, total, watched, beta, self.factors)
        else:
            kernel = self.task.work.shared
            if kernel is None or kernel.dtype != self.factors:
                kernel = self.task.work.shared = Kernel(self.columns, self.factors)
            system = SharedKernel(Y, self.columns, kernel, watched, beta)
        return _Newton(system, self.weight, beta, self.clock, self._progress)

    def _progress(self, eta: Array) -> None:
        """A line of the trace, with the gap last certified: others are only estimates."""
        self.clock.record(self.gap, eta[:, None, None])

    def _correlations(self, Y: Array) -> Array:
        """``X_k' Y`` in float64, remembered."""
        if self._known is None or self._known[0] is not Y:
            columns = WeightedTokens(self.problem, np.float64)
            self._known = Y, columns.correlate(Y, self.everything)
        return self._known[1]


@dataclass(frozen=True)
class _Point:
    eta: Array
    norms: Array
    value: float
    slack: float  # how far `value` may be off
    gap: float  # relative, as far as the system's precision goes


class _Newton:
    """Secular Newton on one scalar per token, as in `quadratic_model`."""

    def __init__(
        self,
        system: SharedSystem,
        weight: Array,
        beta: float,
        clock: Clock,
        progress: Callable[[Array], None],
    ) -> None:
        self.system, self.weight, self.beta, self.clock = system, weight, beta, clock
        self.progress = progress
        self.radius = beta * weight
        self._last: tuple[Groups, Array, _Point] | None = None  # cells, A, and where that was

    def minimise(self, eta: Array, tol: float) -> _Point:
        """Steps until the gap is below `tol` or falls no more; the system is left there.

        A gap of infinity says that it is not, because its precision does not suffice.
        """
        self.at = self._point(eta, 0.01)
        with until(self.clock.late):
            return self._descended(self.at, tol)
        return self.at  # what the system has measured since is near

    def _descended(self, at: _Point, tol: float) -> _Point:
        best, idle = at.gap, 0
        while True:
            self.progress(at.eta)
            if at.gap <= tol or idle >= PATIENCE or self.clock.expired:
                return at
            self.clock.n_iter += 1
            try:
                new = self._step(at, tol)
                if new is None:
                    return self._point(at.eta, 0.2 * tol)
            except LinAlgError:
                return replace(at, gap=np.inf)
            at = self.at = new
            best, idle = min(best, at.gap), 0 if at.gap < 0.8 * best else idle + 1

    def _point(self, eta: Array, accuracy: float) -> _Point:
        check_stop()
        found = self.system.measure(eta, accuracy)
        norms = np.sqrt(found.squares)
        primal = 0.5 * found.size + float(np.sum(self.weight * eta * norms))
        most = float(np.max(norms / self.radius))
        scale = max(0.0, min(found.reach / found.size, 1.0 / most)) if most > 0 else 0.0
        dual = scale * found.reach - 0.5 * scale**2 * found.size
        # max_V <Y, V> - <V, M V> / 2: an error of V counts twice over
        value = found.reach - 0.5 * found.size - 0.5 / self.beta * float(eta @ found.squares)
        value += 0.5 * self.beta * float(self.weight**2 @ eta)
        slack = 0.5 * found.left**2 * found.size + 1e-6 * abs(value)
        # What refinement left changes loss and correlations alike.
        gap = abs(primal - dual) / primal + found.left
        return _Point(eta, norms, value, slack, gap)

    def _step(self, at: _Point, tol: float) -> _Point | None:
        accuracy = max(0.05 * at.gap, 0.5 * tol)
        for trial in self._trials(at, tol):
            new = self._point(trial, accuracy)
            if new.value <= at.value + at.slack + new.slack:
                return new
        return None

    def ahead(self, at: _Point) -> Array:
        """eta after one more step, for another system to measure."""
        return next(self._trials(at, 0.0), at.eta)

    def _trials(self, at: _Point, tol: float) -> Iterator[Array]:
        """eta after Newton's step, then after more and more cautious ones."""
        cells = np.flatnonzero((at.eta > 0) | (at.norms > self.radius))
        if not len(cells):
            return
        radius, eta = self.radius[cells], at.eta[cells]
        excess = at.norms[cells] / radius
        A = self._curvature(at, cells, tol)
        # Newton on 1/||g|| = 1/radius, nearly linear in eta; else on the slope itself.
        rational, plain = excess**2 * (excess - 1.0), 0.5 * (excess**2 - 1.0)
        for right, length in ((rational, 1.0), *((plain, 0.3**j) for j in range(8))):
            move = bounded_quadratic(A, self.beta * radius * right, -radius * eta) / radius
            trial = at.eta.copy()
            trial[cells] = np.maximum(0.0, eta + length * move)
            trial[trial < DUST * trial.max()] = 0.0
            yield trial

    def _curvature(self, at: _Point, cells: Groups, tol: float) -> Array:
        A = self._corrected(at, cells, tol)
        if A is None:
            A = self.system.curvature(cells, self.radius[cells])
        self._last = cells, A, at
        return A

    def _corrected(self, at: _Point, cells: Groups, tol: float) -> Array | None:
        """The last A, made good along the step it led to; None where that step missed too much."""
        if self._last is None or not np.all(np.isin(cells, self._last[0])):
            return None
        known, A, before = self._last
        radius, index = self.radius[known], np.searchsorted(known, cells)
        move = radius * (at.eta - before.eta)[known]
        fall = 0.5 * self.beta / radius * (before.norms**2 - at.norms**2)[known]
        missed = float(np.linalg.norm(fall - A @ move))
        if missed * MISSED * at.gap >= tol * float(np.linalg.norm(fall)) or fall @ move <= 0:
            return None
        return secant(A, move, fall)[np.ix_(index, index)]


def secant(A: Array, move: Array, fall: Array) -> Array:
    """`A` changed, as in BFGS, such that it takes `move` to `fall`; it stays positive definite."""
    expected = A @ move
    A = A - np.outer(expected, expected / float(expected @ move))
    return A + np.outer(fall, fall / float(fall @ move))
