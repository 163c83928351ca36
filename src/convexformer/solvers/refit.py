r"""The fit once more on what a solution selected, with a ridge in place of the penalty.

.. math:: \min_{Z, b}\ \sum_i a_i\,\mathrm{loss}(F_i, Y_i)
          + \frac{\rho}{2} \sum_{k, l} \frac{\beta w_k}{\|\hat Z_k[:, l]\|} \|Z_k[:, l]\|^2
          \quad\text{with } Z = 0 \text{ wherever the solution } \hat Z \text{ is}

The penalty that selects tokens also shrinks their coefficients; this takes shrinkage back (the
relaxed, or debiased, group lasso). It is *not* the certified optimum, which it moves away from.

The ridge has the penalty's gradient at the solution, so that :math:`\rho = 1` gives the solution
itself (but for the nuclear norm), and :math:`\rho \to 0` the fit without shrinkage;
cross-validation can choose between.
Norms and weights are those of the penalty: over outputs where these share tokens. For the nuclear
norm the ridge shrinks a token's coefficients as much in all, but not in each direction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from ..problem import Certificate, Point, Problem
from ..problem.designs import Groups
from ..problem.norms import safe_norm
from ..problem.stopping import check_stop, until
from .newton_cg import Model, Preconditioner, Sketch, conjugate_gradients
from .solution import Solution
from .workspace import low_precision

Array = NDArray[np.float64]
Cells = NDArray[np.bool_]
Memory = dict[object, Array]  # kernels by output, quadratics of squared losses by problem

RIDGES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)  # strengths that cross-validation compares
FOLDS = 5
FOLD_TOL = 1e-4  # as TOL, for fits that are only scored
TOL = 1e-16  # relative distance from the minimum, proved by strong convexity, at which to stop
MAX_ITER = 100
MOST_UNKNOWNS = 2000  # of a system that is factorised; larger ones are solved by iteration
MOST_PRODUCTS = 500  # of a system that is solved by iteration
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
        Strength :math:`\\rho` per output, 0 for one that uses nothing; for matrix targets absolute.
    converged : bool
        Whether the refit (not the selection) came to its minimum.
    stopped : bool
        Whether the refit was stopped early, so that the coefficients are those of the selection.
    """

    Z: Array
    intercept: Array
    selection: Solution
    ridge: Array
    converged: bool
    stopped: bool = False

    @property
    def certificate(self) -> Certificate:
        """Of the selection."""
        return self.selection.certificate


def refit(
    problem: Problem,
    solution: Solution,
    ridge: float | None = None,
    start: Solution | Refitted | None = None,
    late: Callable[[], bool] = lambda: False,
) -> Refitted:
    """Minimise the loss over the cells of `solution` that are not zero, with a ridge.

    Once `late` is true the refit stops, and `solution` is kept as it is, with a ridge of 1.

    Parameters
    ----------
    problem : Problem
        That `solution` solves.
    solution : Solution
    ridge : float, optional
        Strength, positive. 1 gives `solution` again, except for the nuclear norm: there the
        coefficients move by several percent. If omitted, :func:`choose_ridge`.
    start : Solution or Refitted, optional
        Where to start from; `solution` if omitted.
    late : callable
        Whether to stop early; asked between pieces of work.

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
    if ridge is not None and not (np.isfinite(ridge) and ridge > 0):
        raise ValueError(f"ridge must be a positive number, got {ridge!r}.")
    strength = _shrinkage(problem, solution)
    used = np.any(strength, axis=0).astype(float)
    with until(late):
        check_stop()
        if ridge is None:
            ridge = choose_ridge(problem, solution)
        Z, b, converged = _minimise(problem, ridge * strength, start or solution, TOL, {})
        return Refitted(Z, b, solution, ridge * used, converged)
    return kept(solution, used)


def kept(solution: Solution, ridge: Array) -> Refitted:
    """`solution` as it is, in place of a refit that was stopped."""
    return Refitted(solution.Z, solution.intercept, solution, ridge, converged=False, stopped=True)


def choose_ridge(problem: Problem, solution: Solution) -> float:
    """The strength of `RIDGES` with the least held-out loss, by five-fold cross-validation.

    What is selected, and how strongly each token is shrunk beside the others, stays that of
    `solution`. Strengths are tried from 1 downwards, until held-out loss rises. Ties go to the
    stronger ridge, and where nothing can be held out it is 1.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer.problem import Problem, Squared, TokenDesign, TokenOutput
    >>> from convexformer.solvers import solve
    >>> from convexformer.solvers.refit import choose_ridge
    >>> X = np.random.default_rng(0).normal(size=(50, 4, 2))
    >>> problem = Problem(TokenDesign(X), Squared(), TokenOutput(), 3 * X[:, 2, :1])
    >>> choose_ridge(problem, solve(problem, 0.5 * problem.beta_max))  # without noise
    0.001
    """
    folds = _training_parts(problem) if np.any(solution.Z) else []
    strength, targets = _shrinkage(problem, solution), problem.Y + problem.shift
    at: list[Solution] = [solution] * len(folds)
    memory: Memory = {}
    best, least = RIDGES[0], np.inf
    for ridge in RIDGES:
        held_out_loss = 0.0
        for k, part in enumerate(folds):
            share = part.weight.sum() / problem.weight.sum()
            Z, b, _ = _minimise(part, ridge * share * strength, at[k], FOLD_TOL, memory)
            at[k] = replace(solution, Z=Z, intercept=b)
            out = problem.weight > part.weight  # held out, and of weight
            value = problem.loss.value(part.predict(Z, b)[out], targets[out])
            held_out_loss += float(np.sum(problem.weight[out, None] * value))
        if not held_out_loss < least:
            break  # weaker ones are worse still
        best, least = ridge, held_out_loss
    return best


def _training_parts(problem: Problem) -> list[Problem]:
    """The problem without the samples of one fold; folds that cannot be done without left out."""
    fold_of, parts = _folds(problem), []
    for fold in range(FOLDS):
        weight = np.where(fold_of == fold, 0.0, problem.weight)
        try:
            parts.append(
                Problem(
                    problem.design,
                    problem.loss,
                    problem.penalty,
                    problem.Y + problem.shift,
                    weight,
                    problem.intercept,
                )
            )
        except ValueError:  # no weight is left, or a class of which nothing is known
            continue
    return parts


def _folds(problem: Problem) -> NDArray[np.intp]:
    """The fold of every sample: sequences stay whole, and classes have equal shares of each.

    Sequences without weight have no part in the draw: any fold does for them.
    """
    sequence = problem.design.sequences
    n_sequences = int(sequence.max()) + 1
    drawn = np.random.default_rng(0).permutation(np.unique(sequence[problem.weight > 0]))
    if not problem.loss.translates and n_sequences == problem.design.n_samples:
        label = np.unique(problem.Y > 0, axis=0, return_inverse=True)[1].ravel()
        drawn = drawn[np.argsort(label[drawn], kind="stable")]
    fold = np.zeros(n_sequences, dtype=np.intp)
    fold[drawn] = np.arange(len(drawn)) % FOLDS
    return fold[sequence]


def _shrinkage(problem: Problem, solution: Solution) -> Array:
    """Strength of the ridge with the penalty's gradient at `solution`, 0 where it is zero."""
    Z, (groups, _, c) = solution.Z, problem.shape
    size = safe_norm(Z, axis=1)  # (groups, c)
    norm = problem.penalty.norms(Z)
    if not problem.penalty.separable:  # outputs share a norm
        size, norm = safe_norm(size, axis=1)[:, None], norm.sum(axis=1, keepdims=True)
    slope = solution.certificate.beta * problem.penalty.column(groups) * norm
    with np.errstate(divide="ignore", invalid="ignore"):
        strength = np.where(norm > 0, slope / size / size, 0.0)
    return np.broadcast_to(strength, (groups, c))


def _minimise(
    problem: Problem,
    strength: Array,
    start: Solution | Refitted,
    tol: float,
    memory: Memory,
) -> tuple[Array, Array, bool]:
    """Coefficients, intercept, and whether they proved to be at the minimum."""
    c = problem.n_outputs
    if problem.loss.joint or problem.loss.quadratic or c == 1:
        parts = [(problem, np.arange(c))]
    else:  # the ridge, unlike some penalties, leaves every output a problem of its own
        parts = [(problem.outputs([j]), np.array([j])) for j in range(c)]
    first = np.where(strength[:, None] > 0, start.Z, 0.0)
    Z, b, converged = np.zeros(problem.shape), np.zeros(c), True
    for part, outputs in parts:
        found = _Ridge.of(part, strength[:, outputs], int(outputs[0]), memory)
        at, reached = found.minimise(first[:, :, outputs], start.intercept[outputs], tol)
        Z[:, :, outputs], b[outputs] = at.Z, at.intercept
        converged = converged and reached
    return Z, b, converged


@dataclass
class _Ridge:
    """Loss plus ridge in the chosen cells, and Newton's method on it."""

    problem: Problem
    groups: Groups
    cells: Cells  # (groups, c), which of them are chosen
    strength: Array  # (groups, 1, c), of the ridge; 0 where not chosen
    output: int  # the first one; problems of the same outputs differ in weights alone
    memory: Memory

    @classmethod
    def of(cls, problem: Problem, strength: Array, output: int, memory: Memory) -> Self:
        groups = np.flatnonzero(np.any(strength, axis=1))
        cells = strength[groups] > 0
        return cls(problem, groups, cells, strength[groups, None], output, memory)

    def minimise(self, Z: Array, intercept: Array, tol: float) -> tuple[Point, bool]:
        """Newton's method from `Z`, and whether it proved to have come to the minimum."""
        problem = self.problem
        at = problem.at(Z, problem.inner_intercept(Z, intercept))
        damping = 1.0
        for _ in range(MAX_ITER):
            check_stop()
            gradient = self._gradient(at)
            if self._distance(gradient) <= tol * self._value(at):
                return at, True
            step = np.zeros_like(Z)
            step[self.groups] = -self._newton(gradient, at, damping)
            slope = float(np.sum(gradient * step[self.groups]))
            found, t = self._search(at, step, slope)
            if found is None:
                return at, self._distance(gradient) <= np.sqrt(tol) * self._value(at)
            at = found
            damping = 0.1 * damping if t == 1.0 else min(1.0, max(10 * damping, 1e-3))
        return at, False

    def _value(self, at: Point) -> float:
        return at.loss + 0.5 * float(np.sum(self.strength * at.Z[self.groups] ** 2))

    def _gradient(self, at: Point) -> Array:
        """In the chosen cells, zero elsewhere: ``(groups, d, c)``."""
        problem = self.problem
        V = problem.weight[:, None] * problem.loss.dual_point(at.F, problem.Y)
        M = problem.design.correlate(V, self.groups)
        if problem.center is not None:
            M -= problem.center[self.groups][:, :, None] * V.sum(axis=0)
        G = self.strength * at.Z[self.groups] - M
        return np.where(self.cells[:, None, :], G, 0.0)

    def _distance(self, gradient: Array) -> float:
        """How far the value may be from its minimum, by strong convexity, at most."""
        strength = np.where(self.strength > 0, self.strength, np.inf)
        return 0.5 * float(np.sum(gradient**2 / strength))

    def _search(self, at: Point, step: Array, slope: float) -> tuple[Point | None, float]:
        """The first of the steps 1, 1/2, 1/4, ... that lowers the value as promised."""
        start, S = self._value(at), self.problem.scores(step)
        for halvings in range(40):
            t = 0.5**halvings
            found = self.problem.at(at.Z + t * step, at.b, S=at.S + t * S)
            if self._value(found) <= start + 1e-4 * t * slope + SLACK * abs(start):
                return found, t
        return None, 0.0

    # Newton's steps -----------------------------------------------------------------------------

    def _newton(self, gradient: Array, at: Point, damping: float) -> Array:
        joint = self.problem.loss.joint
        cells = np.count_nonzero(self.cells) if joint else len(self.groups)
        unknowns, samples = cells * gradient.shape[1], self.problem.design.n_samples
        if self.problem.n_outputs == 1 and samples < unknowns and samples <= MOST_UNKNOWNS:
            return self._by_samples(gradient, at, damping)
        if unknowns > MOST_UNKNOWNS:
            return self._by_iteration(gradient, at, damping)
        Q = self._quadratic(at, damping)
        if not joint:
            return self._by_pattern(Q, gradient)
        z = np.zeros_like(gradient).transpose(0, 2, 1)  # one system: (group, output, channel)
        g = gradient.transpose(0, 2, 1)[self.cells]
        scale = np.broadcast_to(self.strength, gradient.shape).transpose(0, 2, 1)
        found = _solve(Q, scale[self.cells].ravel(), g.reshape(-1, 1))
        z[self.cells] = found.reshape(g.shape)
        return z.transpose(0, 2, 1)

    def _quadratic(self, at: Point, damping: float) -> Array:
        """Hessian of the loss; of a squared loss it is always the same, and formed once."""
        Q = self.memory.get(self.problem)
        if Q is None:
            (Q,) = self.problem.quadratic(self.groups, at.F, damping, self.cells)
            if self.problem.loss.quadratic:
                self.memory[self.problem] = Q
        return Q

    def _by_pattern(self, Q: Array, gradient: Array) -> Array:
        """One factorisation for all outputs that have the same ridge, on the same groups."""
        d, z = gradient.shape[1], np.zeros_like(gradient)
        ridges, kind = np.unique(self.strength[:, 0], axis=1, return_inverse=True)
        for j, ridge in enumerate(ridges.T):
            pattern = ridge > 0
            groups, outputs = np.flatnonzero(pattern), np.flatnonzero(kind.ravel() == j)
            used, own = np.flatnonzero(np.repeat(pattern, d)), np.ix_(groups, np.arange(d), outputs)
            scale = np.repeat(ridge[groups], d)
            g = gradient[own]
            found = _solve(Q[np.ix_(used, used)], scale, g.reshape(-1, len(outputs)))
            z[own] = found.reshape(g.shape)
        return z

    def _by_samples(self, gradient: Array, at: Point, damping: float) -> Array:
        """A system with a row per sample, by the Woodbury identity; for one output."""
        design = self.problem.design
        W = self.problem.weight[:, None] * self.problem.loss.curvature(
            at.F, self.problem.Y, damping
        )
        used = np.flatnonzero(W[:, 0])  # a fold gives the samples it holds out no weight
        root = np.sqrt(W[used, 0])
        mean = root / np.linalg.norm(root) if self.problem.intercept else np.zeros_like(root)
        S = self._kernel()[np.ix_(used, used)]
        S *= (root / self.strength[0, 0, 0])[:, None]
        S *= root
        direct = gradient / self.strength
        v = root * design.predict(direct, self.groups)[used, 0]
        v, along = _solve(S, np.ones(len(S)), np.column_stack([v, mean])).T
        if self.problem.intercept:  # the intercept is at its best where mean @ v is zero
            v = v - along * ((mean @ v) / (mean @ along))
        V = np.zeros_like(W)
        V[used, 0] = root * v
        return direct - design.correlate(V, self.groups) / self.strength

    def _kernel(self) -> Array:
        """Inner products of samples under the ridge, times its strength for the first group."""
        strength = self.strength[:, 0, 0]
        if self.output not in self.memory:
            eta, center = strength[0] / strength, self.problem.center
            self.memory[self.output] = self.problem.design.kernel(self.groups, eta, center)
        return self.memory[self.output]

    def _by_iteration(self, gradient: Array, at: Point, damping: float) -> Array:
        """Conjugate gradients in units in which the ridge is the identity."""
        problem = self.problem
        X = low_precision(problem.design, self.groups, problem.center)
        model = Model(X, problem.risk, at.F, damping)
        strength = np.where(self.cells[:, None, :], self.strength, np.inf)
        scale = 1.0 / np.sqrt(strength)
        unit = np.zeros(gradient.shape)  # no direction is without curvature
        sketch = Sketch.of(model, scale, unit)
        inverse = Preconditioner(sketch.factor(scale), unit, (1,))

        def operator(t: Array) -> Array:
            return scale * model.apply(scale * t) + t

        return scale * conjugate_gradients(operator, scale * gradient, inverse, MOST_PRODUCTS)[0]


def _solve(Q: Array, ridge: Array, g: Array) -> Array:
    """``(Q + diag(ridge))^-1 g``; overwrites Q."""
    if not len(Q):
        return g
    Q[np.diag_indices_from(Q)] += ridge
    factor = cho_factor(Q.T, overwrite_a=True)  # LAPACK's order of the lower half, without a copy
    return np.asarray(cho_solve(factor, g))
