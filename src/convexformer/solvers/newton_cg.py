r"""Newton's method by conjugate gradients, where no matrix of the problem's size is formed.

For wide and correlated tokens, such as hidden states of an encoder, the spectrum of X decays fast,
and a few dozen directions hold nearly all curvature. L-BFGS on the factored form
(:class:`FactoredStart`) leads near the optimum. From there Newton's steps on
the cells in use solve

.. math:: \bigl(Q + \mathrm{diag}\tfrac{r_e}{\|z_e\|}(I - u_e u_e^\top)\bigr)\, \Delta = M - r u,
          \qquad u_e = z_e / \|z_e\|

in units of :math:`\sqrt{\|z_e\| / r_e}`. Q is only ever multiplied with, in float32; a randomised
Nyström approximation of it preconditions. Cells that Newton's step would turn around leave, and
cells that violate the dual constraints enter along their correlation.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from ..problem import Point
from ..problem.arrays import Array
from ..problem.risk import EmpiricalRisk
from ..problem.stopping import check_stop, until
from .solution import Task
from .workspace import LITTLE_BYTES, LowPrecision

START_GAP = 1e-4  # relative gap at which Newton's method takes over
RANK = 100  # of the Nyström approximation
MOST_STEPS = 20
BLOCK_NUMBERS = 1 << 23  # scores that are held at once


def minimise(task: Task, at: Point) -> tuple[Point, bool]:
    """L-BFGS, then Newton steps from `at`; and whether there is no more to do."""
    clock, design = task.clock, task.problem.design
    steps, slow, before = NewtonSteps(task), 0, np.inf
    for step in range(MOST_STEPS):
        gap = task.measure(at)
        if (gap <= task.tol and step > 0) or clock.expired:
            return at, True
        slow = slow + 1 if step > 1 and gap > 0.5 * before else 0
        if slow >= 4:
            break
        before = gap
        wanted = at.wanted(task.beta)
        size = 4 * design.n_samples * len(wanted) * design.dim
        if len(wanted) == 0 or size > max(design.nbytes, LITTLE_BYTES):
            break
        clock.n_iter += 1
        found: Point | None = None
        with until(clock.late):
            X = task.work.columns.of(wanted)
            if step == 0 and gap > 10 * START_GAP:
                found = FactoredStart(task, at, X, START_GAP).run()
            else:
                found = steps.step(at, X) or steps.step(at, X, again=False)
        if found is None:
            return at, clock.expired
        at = found
    return at, False


class _Reached(Exception):
    """The gap is small enough."""


class FactoredStart:
    r"""L-BFGS on the factored form, from the point `at`, on the columns of `X`.

    With :math:`Z_e = s_e v_e` for every cell e of the penalty,

    .. math:: \min_Z R(Z) + \sum_e r_e \|Z_e\| \;=\;
              \min_{s, v} R(s v) + \tfrac12 \sum_e r_e (s_e^2 + \|v_e\|^2)

    because :math:`\|Z_e\| \le (s_e^2 + \|v_e\|^2) / 2`. The right-hand side is smooth, not convex,
    but the duality gap of :math:`Z = s v` is that of the convex problem, and decides where to stop.
    """

    def __init__(self, task: Task, at: Point, X: LowPrecision, enough: float) -> None:
        self.task, self.problem, self.beta, self.X, self.at = task, at.problem, task.beta, X, at
        self.enough = enough  # relative gap
        self.risk, self.penalty = at.problem.risk, at.problem.penalty.of(X.groups)
        self.strength = self.beta * self.penalty.column(len(X.groups))[:, :, None]
        self.axes = (1,) if self.penalty.separable else (1, 2)
        self.best, self.best_b, self.least, self.idle = at.Z[X.groups], at.b, np.inf, 0

    def run(self) -> Point:
        """The point of the least gap, unless the first one has a lower objective."""
        from scipy.optimize import minimize  # here, because its import takes 60 ms

        Z, M = self.at.Z[self.X.groups], self.at.M[self.X.groups]
        norms, size = (self.penalty.norms(part)[:, None, :] for part in (Z, M))
        s = np.sqrt(np.where(norms > 0, norms, self._first_step(M, size)))
        s = np.maximum(s, 0.1 * s.max(initial=0.0))  # at s = v = 0 the slope is zero
        direction = s * M / np.where(size > 0, size, 1.0)
        v = np.where(norms > 0, Z / np.where(s > 0, s, 1.0), direction)
        self.shapes = v.shape, s.shape
        start = np.concatenate([v.ravel(), s.ravel(), self.at.b])
        options = {"maxiter": 150, "maxcor": 20, "ftol": 0.0, "gtol": 0.0}
        quiet = np.errstate(over="ignore", invalid="ignore")  # steps may go too far
        with until(self.task.clock.late), suppress(_Reached), quiet:
            minimize(self._objective, start, jac=True, method="L-BFGS-B", options=options)
        norms = self.penalty.norms(self.best)[:, None, :]
        kept = norms >= 1e-3 * norms.max(initial=0.0)
        Z = np.zeros(self.problem.shape)
        Z[self.X.groups] = np.where(kept, self.best, 0.0)
        found = self.problem.at(Z, self.best_b)
        return found if found.primal(self.beta) < self.at.primal(self.beta) else self.at

    def _first_step(self, M: Array, size: Array) -> Array:
        """Norms of the cells that want to enter, after one gradient step."""
        excess = np.maximum(size - self.strength, 0.0)
        move = M / np.where(size > 0, size, 1.0) * excess
        F = self.X.predict(move)
        H = self.risk.weighted(self.risk.curvature(self.at.F, damping=1.0))
        bend = float(np.sum(H * F * F))
        return excess * (float(np.sum(excess**2)) / bend if bend > 0 else 0.0)

    def _objective(self, x: Array) -> tuple[float, Array]:
        check_stop()
        (v_shape, s_shape), split = self.shapes, np.cumsum([np.prod(s) for s in self.shapes])
        v, s, b = np.split(x, split)
        v, s = v.reshape(v_shape), s.reshape(s_shape)
        Z = s * v
        F = np.asarray(self.X.predict(Z) + b, order=self.problem.loss.order)
        loss, V, H = self.risk.expansion(F)
        slope = self.risk.weighted(V)
        M = self.X.correlate(slope)
        ridge = 0.5 * float(
            np.sum(self.strength * (s * s + np.sum(v * v, self.axes, keepdims=True)))
        )
        self._note(Z, b, F, loss, V, H)
        along = np.sum(v * M, self.axes, keepdims=True)
        slope_b = -slope.sum(axis=0) if self.problem.intercept else np.zeros_like(b)
        gradients = self.strength * v - s * M, self.strength * s - along, slope_b
        return loss + ridge, np.concatenate([part.ravel() for part in gradients])

    def _note(self, Z: Array, b: Array, F: Array, loss: float, V: Array, H: Array) -> None:
        """Keep the point of the least gap, and stop where that is small enough."""
        primal = loss + self.beta * self.penalty.value(Z)
        V = self.risk.balanced(V, H)
        norms = self.penalty.dual_norms(self.X.correlate(V))
        gap = 1.0 - self.problem.dual_value(V, norms, self.beta) / primal
        if gap < self.least and np.isfinite(primal):
            self.best, self.best_b, self.least, self.idle = Z, b.copy(), gap, 0
        self.idle += 1
        if self.least <= self.enough or (self.idle > 15 and self.least <= 1e-2):
            raise _Reached


class NewtonSteps:
    """Newton steps that keep the Nyström approximation for as long as it serves."""

    def __init__(self, task: Task) -> None:
        self.task, self.beta = task, task.beta
        self.sketch: Sketch | None = None

    def step(self, at: Point, X: LowPrecision, again: bool = True) -> Point | None:
        """A better point than `at`, or None; cells that leave may enter `again`."""
        problem, groups = at.problem, X.groups
        penalty = problem.penalty.of(groups)
        model = Model(X, problem.risk, at.F)
        radius = self.beta * penalty.column(len(groups))
        Z0, g = at.Z[groups], at.M[groups].copy()
        Z, norms = Z0.copy(), penalty.norms(Z0)
        fresh = np.zeros(norms.shape, dtype=bool)  # cells that have entered in this step
        for k in range(6):
            # A cell that leaves because it points the wrong way enters again along its correlation.
            enters = (penalty.norms(Z) == 0) & (penalty.norms(g) > radius) & ~fresh
            if enters.any() and (again or k == 0):
                move = model.entry(np.where(enters[:, None, :], g, 0.0), radius, penalty.separable)
                Z, g, fresh = Z + move, g - model.apply(move), fresh | enters
            norms = penalty.norms(Z)
            if not norms.any():
                break
            change = self._solve(model, Z, g, norms, radius, penalty.separable)
            axes = (1,) if penalty.separable else (1, 2)
            turned = np.sum(Z * (Z + change), axis=axes, keepdims=True) <= 0
            leaves = turned & (norms[:, None, :] > 0)
            if not leaves.any():
                Z = Z + change
                break
            gone = np.where(leaves, Z, 0.0)
            Z = Z - gone
            g = g + model.apply(gone)
        return self._search(at, X, Z, Z0)

    def _solve(
        self, model: Model, Z: Array, g: Array, norms: Array, radius: Array, separable: bool
    ) -> Array:
        """Newton's step from `Z`, on the cells in use."""
        length = norms[:, None, :]
        scale = np.sqrt(length / radius[:, :, None])
        unit = np.where(length > 0, Z / np.where(length > 0, length, 1.0), 0.0)
        axes = (1,) if separable else (1, 2)

        def across(t: Array) -> Array:
            """``(I - u u') t``."""
            return t - unit * np.sum(unit * t, axis=axes, keepdims=True)

        def operator(t: Array) -> Array:
            return scale * model.apply(scale * t) + across(t)

        right = scale * (g - radius[:, :, None] * unit)
        known = self.sketch.restricted(model) if self.sketch is not None else None
        if known is None:
            known = self.sketch = Sketch.of(model, scale, unit)
        inverse = Preconditioner(known.factor(scale), unit, axes)
        t, products = conjugate_gradients(operator, right, inverse, most=80)
        if products > 30:  # the approximation serves no longer
            self.sketch = None
        return scale * t

    def _search(self, at: Point, X: LowPrecision, Z: Array, Z0: Array) -> Point | None:
        """The first of the steps 1, 1/2, 1/4, ... that lowers the objective."""
        problem, step = at.problem, Z - Z0
        if not step.any():
            return None
        turn = np.asarray(X.predict(step), order=problem.loss.order)
        start = at.primal(self.beta)
        for halvings in range(10):
            t = 0.5**halvings
            whole = at.Z.copy()
            whole[X.groups] = Z0 + t * step if t < 1 else Z
            found = problem.at(whole, at.b, S=at.S + t * turn)
            if found.primal(self.beta) < start:  # as far as scores in float32 tell
                found = problem.at(whole, found.b)
                return found if found.primal(self.beta) < start else None
        return None


class Model:
    """``Z -> X' H X Z`` with the intercept eliminated, on the columns of `X`.

    Parameters
    ----------
    X : LowPrecision
    risk : EmpiricalRisk
    F : ndarray of shape (N, c)
        Scores at which the risk's curvature H is taken.
    """

    def __init__(
        self, X: LowPrecision, risk: EmpiricalRisk, F: Array, damping: float = 0.0
    ) -> None:
        self.X, self.joint, self.H = X, risk.loss.joint, risk.curvature(F, damping)
        self.W = risk.weighted(self.H)
        self.inverse: Array | None = None
        if risk.intercept:
            total = np.diag(self.W.sum(axis=0))
            if self.joint:
                total -= self.W.T @ self.H
            self.inverse = np.linalg.pinv(total, rcond=1e-13, hermitian=True)

    def apply(self, Z: Array) -> Array:
        """``X' H X Z`` of ``Z (groups, d, c)``, or of several, ``(groups, d, c, r)``."""
        check_stop()
        N, c = self.H.shape
        most = max(1, min(BLOCK_NUMBERS // (N * c), 2**32 // (self.X.A.size * c)))
        if Z.ndim == 4 and Z.shape[3] > most:
            step = most
            parts = [self.apply(Z[..., k : k + step]) for k in range(0, Z.shape[3], step)]
            return np.concatenate(parts, axis=3)
        F = self.X.predict(Z.reshape(*Z.shape[:2], -1)).reshape(N, c, -1)
        F = self._bent(F)
        if self.inverse is not None:
            F -= self._bent(np.broadcast_to(self.inverse @ F.sum(axis=0), F.shape))
        return self.X.correlate(F.reshape(N, -1)).reshape(Z.shape)

    def _bent(self, F: Array) -> Array:
        """``H F`` per sample, for ``F (N, c, r)``."""
        if self.joint:
            F = F - np.einsum("il,ilr->ir", self.H, F)[:, None, :]
        return self.W[:, :, None] * F

    def entry(self, G: Array, radius: Array, separable: bool) -> Array:
        """Moves of cells along their correlations `G`, each to its best, together not too far."""
        axes = (1,) if separable else (1, 2)
        size = np.sqrt(np.sum(G * G, axis=axes, keepdims=True))
        unit = G / np.where(size > 0, size, 1.0)
        bend = self._alone(unit, separable)[:, None, :]
        excess = np.maximum(size - radius[:, :, None], 0.0)
        move = np.divide(excess, bend, out=np.zeros_like(size), where=bend > 0)
        whole = unit * move
        total = float(np.sum(whole * self.apply(whole)))
        gain = float(np.sum(excess * move))
        return whole * (min(1.0, gain / total) if total > 0 else 0.0)

    def _alone(self, unit: Array, separable: bool) -> Array:
        """Curvature along every cell's unit vector, with the intercept fixed: (groups, cells)."""
        U = np.stack([self.X.contributions(u) for u in np.moveaxis(unit, 2, 0)], axis=2)
        if separable:
            W = self.W * (1.0 - self.H) if self.joint else self.W
            return np.einsum("il,ikl,ikl->kl", W, U, U, optimize=True)
        bend = np.einsum("il,ikl,ikl->k", self.W, U, U, optimize=True)
        if self.joint:
            mean = np.einsum("il,ikl->ik", self.H, U, optimize=True)
            bend -= np.einsum("i,ik,ik->k", self.W.sum(axis=1), mean, mean, optimize=True)
        return bend[:, None]


class Sketch:
    """A Nyström approximation ``B B'`` of a model."""

    def __init__(self, groups: NDArray[np.intp], B: Array) -> None:
        self.groups, self.B = groups, B  # (groups, d, c, r)

    @classmethod
    def of(cls, model: Model, scale: Array, unit: Array) -> Sketch:
        """Of ``S Q S`` for the scale S: exact along the unit vectors of cells, where these are few.

        Along these vectors the penalty has no curvature, so that Q alone counts.
        """
        shape = np.broadcast_shapes(scale.shape, unit.shape)
        rng, size = np.random.default_rng(0), int(np.prod(shape))
        random = np.where(scale > 0, rng.standard_normal((min(RANK, size), *shape)), 0.0)
        random = np.moveaxis(random, 0, -1)
        whole = np.concatenate([_alone(unit, scale), random], axis=3)
        check_stop()
        basis = np.linalg.qr(whole.reshape(size, -1))[0]
        shaped = basis.reshape(*shape, -1)
        wide = np.broadcast_to(scale, shape)[..., None]
        image = (wide * model.apply(wide * shaped)).reshape(size, -1)
        shift = float(np.finfo(np.float32).eps) * float(np.linalg.norm(image))
        image += shift * basis
        core = basis.T @ image
        values, axes = np.linalg.eigh(0.5 * (core + core.T))
        kept = values > 1e-7 * values.max(initial=0.0)
        B = (image @ (axes[:, kept] / np.sqrt(values[kept]))).reshape(*shape, -1)
        return cls(model.X.groups, np.divide(B, wide, out=np.zeros_like(B), where=wide > 0))

    def restricted(self, model: Model) -> Sketch | None:
        """The same on the groups of `model`; None where it does not know them all."""
        if not np.isin(model.X.groups, self.groups).all():
            return None
        return Sketch(model.X.groups, self.B[np.searchsorted(self.groups, model.X.groups)])

    def factor(self, scale: Array) -> Array:
        """``S B`` as a matrix ``(coefficients, r)``."""
        return (scale[..., None] * self.B).reshape(int(np.prod(self.B.shape[:3])), -1)


def _alone(unit: Array, scale: Array) -> Array:
    """The unit vector of every cell in use by itself, ``(groups, d, c, cells)``; none if many."""
    cells = scale.shape[2]
    used = np.argwhere(scale[:, 0, :] > 0)
    if len(used) > RANK:
        used = used[:0]
    found = np.zeros((*unit.shape, len(used)))
    for j, (k, cell) in enumerate(used.tolist()):
        outputs = slice(cell, cell + 1) if cells > 1 or unit.shape[2] == 1 else slice(None)
        found[k, :, outputs, j] = unit[k, :, outputs]
    return found


class Preconditioner:
    """The inverse of ``I - (1 - FLAT) u u' + C C'``."""

    def __init__(self, C: Array, unit: Array, axes: tuple[int, ...], flat: float = 1e-3) -> None:
        self.unit, self.axes, self.more = unit, axes, 1.0 / flat - 1.0
        self.C, r = C, C.shape[1]
        self.DC = self._diagonal(C.T.reshape(r, *unit.shape)).reshape(r, -1).T
        self.core = np.linalg.inv(np.eye(r) + C.T @ self.DC)

    def _diagonal(self, T: Array) -> Array:
        axes = tuple(axis - 3 for axis in self.axes)
        return T + self.more * self.unit * np.sum(self.unit * T, axis=axes, keepdims=True)

    def __call__(self, t: Array) -> Array:
        t = self._diagonal(t)
        return t - (self.DC @ (self.core @ (self.C.T @ t.ravel()))).reshape(t.shape)


def conjugate_gradients(
    operator: Callable[[Array], Array],
    right: Array,
    inverse: Callable[[Array], Array],
    most: int,
    accuracy: float = 1e-3,
) -> tuple[Array, int]:
    """About ``operator^-1 right``, and how many products it took."""
    t, r = np.zeros_like(right), right
    y = inverse(r)
    p, rho = y, float(np.sum(r * y))
    stop = accuracy**2 * rho
    for products in range(most):
        if not rho > stop:
            return t, products
        Ap = operator(p)
        slope = float(np.sum(p * Ap))
        if not slope > 0:
            return t, products
        t, r = t + rho / slope * p, r - rho / slope * Ap
        y = inverse(r)
        before, rho = rho, float(np.sum(r * y))
        p = y + rho / before * p
    return t, most
