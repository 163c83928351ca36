r"""The fit once more on what a solution selected, with a small ridge in place of the penalty.

.. math:: \min_{Z, b}\ \sum_i a_i\,\mathrm{loss}(F_i, Y_i)
          + \tfrac12 \sum_l \lambda_l \sum_k w_k^2 \|Z_k[:, l]\|^2
          \quad\text{with } Z = 0 \text{ wherever the solution is}

The penalty that selects tokens also shrinks their coefficients; this takes the shrinkage back (the
relaxed, or debiased, group lasso). It is *not* the certified optimum, which it moves away from.

A token's weight means what it means to the penalty: the same as dividing its channels by it. The
ridge is in units of the loss: :math:`\lambda_l = \text{ridge} \cdot h_l`, with :math:`h_l` the
loss's mean curvature along the selected columns at the model without tokens, so that it means the
same whatever the scale of X, the number of samples or their weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse.linalg import LinearOperator, cg

from ..problem import Certificate, Problem
from ..problem.designs import Groups, row_slices
from .matrixfree import Curvature
from .solution import Iterate, Solution

Array = NDArray[np.float64]
Cells = NDArray[np.bool_]

RIDGE = 1e-3  # unless another strength is asked for
TOL = 1e-16  # relative distance from the minimum, proved by strong convexity, at which to stop
MAX_ITER = 100
MOST_UNKNOWNS = 2000  # of a system that is factorised; larger ones are solved by iteration
CG_TOL, CG_MAX_ITER = 1e-3, 500
SLACK = 1e-14  # relative rounding of an objective


@dataclass
class Refitted:
    """Coefficients refitted on a selection.

    Attributes
    ----------
    Z : ndarray of shape (groups, d, c)
    intercept : ndarray of shape (c,)
    selection : Solution
        What selected, with its certificate.
    ridge : ndarray of shape (c,)
        Absolute strength :math:`\\lambda_l`; 0 for an output that uses nothing.
    converged : bool
        Whether the refit (not the selection) came to its minimum.
    """

    Z: Array
    intercept: Array
    selection: Solution
    ridge: Array
    converged: bool

    @property
    def certificate(self) -> Certificate:
        """Of the selection."""
        return self.selection.certificate


def refit(
    problem: Problem, solution: Solution, ridge: float = RIDGE, start: Refitted | None = None
) -> Refitted:
    """Minimise the loss over the cells of `solution` that are not zero, with a small ridge.

    Parameters
    ----------
    problem : Problem
        That `solution` solves.
    solution : Solution
    ridge : float
        Strength as a fraction of the loss's own curvature, positive.
    start : Refitted, optional
        The refit of a solution near by, to start from.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer.problem import Problem, Squared, TokenDesign, TokenOutput
    >>> from convexformer.solvers import solve
    >>> from convexformer.solvers.refit import refit
    >>> X = np.random.default_rng(0).normal(size=(50, 4, 2))
    >>> problem = Problem(TokenDesign(X), Squared(), TokenOutput(), 3 * X[:, 2, :1])
    >>> shrunk = solve(problem, 0.5 * problem.beta_max)
    >>> shrunk.Z[2, 0, 0].round(1), refit(problem, shrunk).Z[2, 0, 0].round(1)
    (np.float64(1.5), np.float64(3.0))
    """
    if not (np.isfinite(ridge) and ridge > 0):
        raise ValueError(f"ridge must be a positive number, got {ridge!r}.")
    c = problem.n_outputs
    if problem.loss.joint or problem.loss.quadratic or c == 1:
        parts = [(problem, np.arange(c))]
    else:  # the ridge, unlike some penalties, leaves every output a problem of its own
        parts = [(problem.output(j), np.array([j])) for j in range(c)]
    chosen = np.broadcast_to(problem.penalty.norms(solution.Z) > 0, (problem.shape[0], c))
    Z0 = solution.Z
    if start is not None:
        Z0 = np.where(chosen[:, None] & (start.Z != 0), start.Z, Z0)
    Z, b, strength, converged = np.zeros(problem.shape), np.zeros(c), np.zeros(c), True
    for part, outputs in parts:
        found = _Ridge.of(part, chosen[:, outputs], ridge)
        at, reached = found.minimise(Z0[:, :, outputs], solution.intercept[outputs])
        Z[:, :, outputs], b[outputs] = at.Z, part.outer_intercept(at.Z, at.b)
        strength[outputs], converged = found.ridge, converged and reached
    return Refitted(Z, b, solution, strength, converged)


@dataclass
class _Ridge:
    """Loss plus ridge in the chosen cells, and Newton's method on it."""

    problem: Problem
    groups: Groups
    cells: Cells  # (groups, c), which of them are chosen
    weight: Array  # (groups, 1, 1), squared penalty weights
    ridge: Array  # (c,), absolute

    @classmethod
    def of(cls, problem: Problem, chosen: Cells, ridge: float) -> Self:
        groups = np.flatnonzero(np.any(chosen, axis=1))
        weight = problem.penalty.column(len(chosen))[groups, :, None] ** 2
        unit = _curvature(problem, groups) / weight  # (groups, d, c)
        cells = chosen[groups]
        total, count = np.sum(unit.mean(axis=1) * cells, axis=0), np.count_nonzero(cells, axis=0)
        if problem.loss.joint:  # outputs share one scale
            total, count = np.full_like(total, total.sum()), np.full_like(count, count.sum())
        return cls(problem, groups, cells, weight, ridge * total / np.maximum(count, 1))

    def minimise(self, Z: Array, intercept: Array) -> tuple[Iterate, bool]:
        """Newton's method from `Z`, and whether it proved to have come to the minimum."""
        problem = self.problem
        b = problem.inner_intercept(Z, intercept)
        at = Iterate.at(problem, Z, problem.scores(Z), b)
        damping = 1.0
        for _ in range(MAX_ITER):
            gradient = self._gradient(at)
            if self._distance(gradient) <= TOL * self._value(at):
                return at, True
            step = np.zeros_like(Z)
            step[self.groups] = -self._newton(gradient, at, damping)
            slope = float(np.sum(gradient * step[self.groups]))
            found, t = self._search(at, step, slope)
            if found is None:
                return at, self._distance(gradient) <= np.sqrt(TOL) * self._value(at)
            at = found
            damping = 0.1 * damping if t == 1.0 else min(1.0, max(10 * damping, 1e-3))
        return at, False

    def _value(self, at: Iterate) -> float:
        return at.loss + 0.5 * float(np.sum(self.weight * self.ridge * at.Z[self.groups] ** 2))

    def _gradient(self, at: Iterate) -> Array:
        """In the chosen cells, zero elsewhere: ``(groups, d, c)``."""
        problem = self.problem
        V = problem.weight[:, None] * problem.loss.dual_point(at.F, problem.Y)
        M = problem.design.correlate(V, self.groups)
        if problem.center is not None:
            M -= problem.center[self.groups][:, :, None] * V.sum(axis=0)
        G = self.weight * self.ridge * at.Z[self.groups] - M
        return np.where(self.cells[:, None, :], G, 0.0)

    def _distance(self, gradient: Array) -> float:
        """How far the value may be from its minimum, by strong convexity, at most."""
        strength = np.where(self.ridge > 0, self.ridge, np.inf)
        return 0.5 * float(np.sum(gradient**2 / (self.weight * strength)))

    def _search(self, at: Iterate, step: Array, slope: float) -> tuple[Iterate | None, float]:
        """The first of the steps 1, 1/2, 1/4, ... that lowers the value as promised."""
        start, S = self._value(at), self.problem.scores(step)
        for halvings in range(40):
            t = 0.5**halvings
            found = Iterate.at(self.problem, at.Z + t * step, at.S + t * S, at.b)
            if self._value(found) <= start + 1e-4 * t * slope + SLACK * abs(start):
                return found, t
        return None, 0.0

    # Newton's steps -----------------------------------------------------------------------------

    def _newton(self, gradient: Array, at: Iterate, damping: float) -> Array:
        joint = self.problem.loss.joint
        cells = np.count_nonzero(self.cells) if joint else len(self.groups)
        if cells * gradient.shape[1] > MOST_UNKNOWNS:
            return self._by_iteration(gradient, at, damping)
        (Q,) = self.problem.quadratic(self.groups, at.F, damping, self.cells)
        if not joint:
            return self._by_pattern(Q, gradient)
        z = np.zeros_like(gradient).transpose(0, 2, 1)  # one system: (group, output, channel)
        g = gradient.transpose(0, 2, 1)[self.cells]
        scale = np.broadcast_to(self.weight * self.ridge, gradient.shape).transpose(0, 2, 1)
        found = _solve(Q, scale[self.cells].ravel(), g.reshape(-1, 1))
        z[self.cells] = found.reshape(g.shape)
        return z.transpose(0, 2, 1)

    def _by_pattern(self, Q: Array, gradient: Array) -> Array:
        """One factorisation for all outputs that use the same groups (and so have one ridge)."""
        d, z = gradient.shape[1], np.zeros_like(gradient)
        patterns, kind = np.unique(self.cells, axis=1, return_inverse=True)
        for j, pattern in enumerate(patterns.T):
            groups, outputs = np.flatnonzero(pattern), np.flatnonzero(kind.ravel() == j)
            used, own = np.flatnonzero(np.repeat(pattern, d)), np.ix_(groups, np.arange(d), outputs)
            scale = np.repeat(self.weight[groups, 0, 0] * self.ridge[outputs[0]], d)
            g = gradient[own]
            found = _solve(Q[np.ix_(used, used)], scale, g.reshape(-1, len(outputs)))
            z[own] = found.reshape(g.shape)
        return z

    def _by_iteration(self, gradient: Array, at: Iterate, damping: float) -> Array:
        problem, shape = self.problem, gradient.shape
        H = problem.curvature(at.F, damping)
        curvature = Curvature(
            problem.design, self.groups, problem.center, problem.weight, H, problem.loss.joint
        )
        cells, scale = self.cells[:, None, :], self.weight * np.where(self.ridge > 0, self.ridge, 1)
        eye = np.eye(shape[1])
        inverse = np.linalg.inv(curvature.blocks() + scale.transpose(0, 2, 1)[..., None] * eye)

        def bend(z: Array) -> Array:
            Z = np.where(cells, z.reshape(shape), 0.0)
            return (np.where(cells, curvature.apply(Z), 0.0) + scale * Z).ravel()

        def precondition(r: Array) -> Array:
            return np.einsum("kcij,kjc->kic", inverse, r.reshape(shape)).ravel()

        size = (gradient.size, gradient.size)
        z, _ = cg(
            LinearOperator(size, bend, dtype=float),
            gradient.ravel(),
            rtol=CG_TOL,
            maxiter=CG_MAX_ITER,
            M=LinearOperator(size, precondition, dtype=float),
        )
        return np.where(cells, z.reshape(shape), 0.0)


def _solve(Q: Array, ridge: Array, g: Array) -> Array:
    """``(Q + diag(ridge))^-1 g``; overwrites Q."""
    if not len(Q):
        return g
    Q[np.diag_indices_from(Q)] += ridge
    return np.asarray(cho_solve(cho_factor(Q, lower=True, overwrite_a=True), g))


def _curvature(problem: Problem, groups: Groups) -> Array:
    """Curvature of the loss along every column, at the model without tokens: ``(groups, d, c)``."""
    design, shape = problem.design, (len(groups), problem.design.dim, problem.n_outputs)
    F = np.broadcast_to(problem.null_intercept, problem.Y.shape)
    H = problem.loss.curvature(F, problem.Y, damping=1.0)
    W = problem.weight[:, None] * (H * (1.0 - H) if problem.loss.joint else H)
    total = np.zeros((shape[0] * shape[1], shape[2]))
    center = 0.0 if problem.center is None else problem.center[groups].reshape(-1)
    for rows in row_slices(design.n_samples, len(total)):
        total += np.square(design.gather(rows, groups) - center).T @ W[rows]
    return total.reshape(shape)
