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

The refit of matrix targets keeps who attends to whom, and is least squares
(:func:`refit_sequence`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..problem import Problem
from ..problem.norms import safe_norm
from ..problem.risk import Array, EmpiricalRisk
from ..problem.sequence import SequenceProblem, from_tokens, to_tokens
from ..problem.stopping import check_stop
from .solution import Solution

Operator = Callable[[Array], Array]

RIDGES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)  # strengths that cross-validation compares
FOLDS = 5
TOL = 1e-16  # relative distance from the minimum, proved by strong convexity, at which to stop
MOST_STEPS = 100  # of Newton's method
MOST_AXES = 2000  # principal axes, which take a second to find
MOST_NUMBERS = 1 << 27  # of a table of scores, beyond which X is read every time


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
    """

    Z: Array
    intercept: Array
    selection: Solution
    ridge: Array
    converged: bool


def refit(
    problem: Problem,
    solution: Solution,
    ridge: float | None = None,
) -> Refitted:
    """Minimise the loss over the cells of `solution` that are not zero, with a ridge.

    It can be stopped from outside, by :func:`~convexformer.problem.stopping.until`.

    Parameters
    ----------
    problem : Problem
        That `solution` solves.
    solution : Solution
    ridge : float, optional
        Strength, positive. 1 gives `solution` again, except for the nuclear norm: there the
        coefficients move by several percent. If omitted, that of `RIDGES` with the least held-out
        loss by five-fold cross-validation.

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
    >>> refit(problem, shrunk).ridge  # there is no noise
    array([0.001])
    """
    strength = _shrinkage(problem, solution)
    used = np.any(strength, axis=0).astype(float)
    if not np.any(used):
        return Refitted(solution.Z, solution.intercept, solution, used, converged=True)
    check_stop()
    chosen = _Selection(problem, strength)
    ridge = _choose_ridge(problem, chosen) if ridge is None else ridge
    null = np.zeros(chosen.ends[-1]), problem.risk.best_constant()
    v, b, converged = _newton(chosen, problem.risk, ridge, *null, TOL)
    Z = chosen.coefficients(v)
    return Refitted(Z, problem.outer_intercept(Z, b), solution, ridge * used, converged)


def _choose_ridge(problem: Problem, chosen: _Selection) -> float:
    """The strength of `RIDGES` with the least held-out loss, by five-fold cross-validation.

    What is selected, and how strongly each token is shrunk beside the others, stays the same.
    Strengths are tried from 1 downwards, until held-out loss rises. Ties go to the stronger ridge,
    and where nothing can be held out it is 1.
    """
    folds = _training_parts(problem)
    at = [(np.zeros(chosen.ends[-1]), part.best_constant()) for part in folds]
    best, least = RIDGES[0], np.inf
    for ridge in RIDGES:
        held_out_loss = 0.0
        for k, part in enumerate(folds):
            share = part.total / problem.risk.total
            v, b, _ = _newton(chosen, part, ridge * share, *at[k], 1e-4)  # to be scored only
            at[k] = v, b
            value = problem.loss.value(chosen.scores(v) + b, problem.Y)
            out = problem.weight > part.weight  # held out, and of weight
            held_out_loss += float(np.sum(problem.weight[out, None] * value[out]))
        if not held_out_loss < least:
            break  # weaker ones are worse still
        best, least = ridge, held_out_loss
    return best


def _training_parts(problem: Problem) -> list[EmpiricalRisk]:
    """The risk without the samples of one fold; folds that cannot be done without left out."""
    fold_of, parts = _folds(problem), []
    for fold in range(FOLDS):
        weight = np.where(fold_of == fold, 0.0, problem.weight)
        try:
            problem.loss.check_targets(problem.Y + problem.shift, weight, problem.intercept)
        except ValueError:  # a class of which nothing is known
            continue
        if np.any(weight):
            parts.append(EmpiricalRisk(problem.loss, problem.Y, weight, problem.intercept))
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


class _Axes:
    """Coordinates of the chosen cells of outputs that share a ridge, whose strength is 1 in them.

    They are principal axes where these can be had, of the columns or of the samples, whichever are
    fewer: then the Hessian of a squared loss is diagonal. Else they are the columns.
    """

    def __init__(self, problem: Problem, strength: Array, outputs: NDArray[np.intp]) -> None:
        self.problem, self.outputs, self.groups = problem, outputs, np.flatnonzero(strength)
        self.scale = 1.0 / np.sqrt(strength[self.groups])[:, None, None]
        self.center = np.zeros((len(self.groups), problem.design.dim))
        if problem.center is not None:
            self.center = problem.center[self.groups]
        self.table: Array | None = None  # (N, axes), scores of every axis
        width = self.scale.repeat(problem.design.dim)
        fewer = min(problem.design.n_samples, self.center.size)
        if fewer <= MOST_AXES and fewer * problem.design.n_samples <= MOST_NUMBERS:
            self._find_axes(width)
            return
        self.curvature = np.zeros(self.center.size)
        for rows, A in problem.design.columns(self.groups):
            self.curvature += problem.weight[rows] @ (width * (A - self.center.ravel())) ** 2

    def _find_axes(self, width: Array) -> None:
        """Sets axes, their scores, and the curvature of the squared loss along each."""
        design, weight = self.problem.design, self.problem.weight[:, None]
        if self.center.size <= design.n_samples:
            gram = design.gram(self.groups, weight, self.problem.center)[0][0]
            curvature, basis = np.linalg.eigh(gram * (width[:, None] * width))
        else:
            root = np.sqrt(weight)
            kernel = design.kernel(self.groups, width[:: design.dim] ** 2, self.problem.center)
            curvature, basis = np.linalg.eigh(root * kernel * root.T)
        kept = curvature > 1e-14 * curvature.max(initial=0.0)
        self.curvature, basis = curvature[kept], basis[:, kept]
        if self.center.size <= design.n_samples:
            self.table = self._predict(basis)
        else:  # samples without weight have no scores
            weighted = basis * np.sqrt(self.curvature)
            self.table = np.divide(weighted, root, out=np.zeros_like(basis), where=root > 0)

    def _predict(self, u: Array) -> Array:
        Z = self.scale * u.reshape(*self.center.shape, u.shape[1])
        return self.problem.design.predict(Z, self.groups) - np.tensordot(self.center, Z)

    def _correlate(self, V: Array) -> Array:
        M = self.problem.design.correlate(np.ascontiguousarray(V), self.groups)
        M = self.scale * (M - self.center[:, :, None] * V.sum(axis=0))
        return M.reshape(-1, V.shape[1])

    def scores(self, v: Array) -> Array:
        """Of coordinates ``v (axes, outputs)``: ``(N, outputs)``."""
        return self._predict(v) if self.table is None else self.table @ v

    def slopes(self, V: Array) -> Array:
        """The transpose of `scores`."""
        return self._correlate(V) if self.table is None else self.table.T @ V

    def coefficients(self, v: Array) -> Array:
        """``(groups, d, outputs)``."""
        if self.table is not None:  # axes are sums of samples, too
            along = self.table @ (v / self.curvature[:, None])
            v = self._correlate(self.problem.weight[:, None] * along)
        return np.asarray(self.scale * v.reshape(*self.center.shape, v.shape[1]))


class _Selection:
    """The chosen cells of all outputs, as one vector of coordinates."""

    def __init__(self, problem: Problem, strength: Array) -> None:
        self.problem, (columns, kind) = problem, np.unique(strength, axis=1, return_inverse=True)
        self.axes = [
            _Axes(problem, column, np.flatnonzero(kind.ravel() == k))
            for k, column in enumerate(columns.T)
            if np.any(column)
        ]
        self.ends = np.cumsum([len(axes.curvature) * len(axes.outputs) for axes in self.axes])

    def parts(self, v: Array) -> list[tuple[_Axes, Array]]:
        """Coordinates by axes, ``(axes, outputs)``."""
        pieces = zip(self.axes, np.split(v, self.ends[:-1]), strict=True)
        return [(axes, piece.reshape(-1, len(axes.outputs))) for axes, piece in pieces]

    def scores(self, v: Array) -> Array:
        """Of coordinates `v`, ``(N, c)``."""
        S = np.zeros(self.problem.Y.shape, order=self.problem.loss.order)
        for axes, part in self.parts(v):
            S[:, axes.outputs] = axes.scores(part)
        return S

    def slopes(self, V: Array) -> Array:
        """The transpose of `scores`."""
        return np.concatenate([axes.slopes(V[:, axes.outputs]).ravel() for axes in self.axes])

    def curvature(self, bend: Array) -> Array:
        """Of a loss with curvature ``bend (c,)`` at every sample, about."""
        return np.concatenate(
            [np.outer(axes.curvature, bend[axes.outputs]).ravel() for axes in self.axes]
        )

    def coefficients(self, v: Array) -> Array:
        """``Z (groups, d, c)``."""
        Z = np.zeros(self.problem.shape)
        for axes, part in self.parts(v):
            Z[np.ix_(axes.groups, np.arange(Z.shape[1]), axes.outputs)] = axes.coefficients(part)
        return Z


def _newton(
    chosen: _Selection, risk: EmpiricalRisk, ridge: float, v: Array, b: Array, tol: float
) -> tuple[Array, Array, bool]:
    """Newton's method by conjugate gradients from coordinates `v` and intercept `b`.

    Returns those of the minimum, and whether they proved to be there.
    """
    joint, S, damping = risk.loss.joint, chosen.scores(v), 1.0
    at = risk.settle(S, b)
    for _ in range(MOST_STEPS):
        check_stop()
        V = risk.dual_point(at.F) if at.V is None else at.V
        value, gradient = at.loss + 0.5 * ridge * float(v @ v), ridge * v - chosen.slopes(V)
        distance = float(gradient @ gradient) / (2 * ridge)  # by strong convexity, at most
        if distance <= tol * value:
            return v, at.b, True
        H = risk.curvature(at.F, damping)

        def hessian(u: Array, H: Array = H) -> Array:
            bent = H * chosen.scores(u)
            if joint:
                bent -= H * bent.sum(axis=1, keepdims=True)
            return chosen.slopes(risk.balanced(bent, H)) + ridge * u

        bend = risk.weight @ (H * (1 - H) if joint else H) / risk.total
        step = -_conjugate_gradients(hessian, gradient, chosen.curvature(bend) + ridge, 1e-2)[0]
        T, t, slope = chosen.scores(step), 1.0, float(gradient @ step)
        while True:
            found, moved = risk.settle(S + t * T, at.b), v + t * step
            lower = found.loss + 0.5 * ridge * float(moved @ moved)
            if lower <= value * (1 + 1e-14) + 1e-4 * t * slope:
                break
            t *= 0.5
            if t < 1e-12:  # what is left is rounding
                return v, at.b, distance <= np.sqrt(tol) * value
        v, S, at = moved, S + t * T, found
        damping = 0.1 * damping if t == 1.0 else min(1.0, max(10 * damping, 1e-3))
    return v, at.b, False


def _conjugate_gradients(
    operator: Operator, right: Array, diagonal: Array, rtol: float
) -> tuple[Array, bool]:
    """Solve with a positive definite operator, whose diagonal is about as given."""
    from scipy.sparse.linalg import LinearOperator, cg  # an import that takes long

    shape = len(right), len(right)
    inverse = LinearOperator(shape, lambda r: r / diagonal)
    found, missed = cg(LinearOperator(shape, operator), right, rtol=rtol, M=inverse)
    return np.asarray(found), not missed


# Matrix targets -----------------------------------------------------------------------------------


def refit_sequence(
    problem: SequenceProblem,
    solution: Solution,
    ridge: float | None = None,
) -> Refitted:
    r"""Least squares over the entries of `solution` that are not zero, with a small ridge.

    .. math:: \min_{Z, b}\ \frac12 \sum_{i, r, l} a_i (F_i[r, l] - Y_i[r, l])^2
              + \tfrac12 \sum_l \lambda_l \sum_j \|Z_{jl}\|_F^2
              \quad\text{with } Z = 0 \text{ wherever the solution is}

    subject to equal row sums where attention is stochastic, so that rows stay attention. It can be
    stopped from outside, by :func:`~convexformer.problem.stopping.until`.

    Parameters
    ----------
    problem : SequenceProblem
        That `solution` solves.
    solution : Solution
    ridge : float, optional
        Strength as a fraction of the mean square of the selected columns, positive; 1e-3 if
        omitted.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer.problem.sequence import SequenceProblem
    >>> from convexformer.solvers.matrix_targets import solve_sequence
    >>> from convexformer.solvers.refit import refit_sequence
    >>> X = np.random.default_rng(0).normal(size=(50, 4, 2))
    >>> problem = SequenceProblem(X, 3 * X[:, ::-1, :1])
    >>> shrunk = solve_sequence(problem, 0.5 * problem.beta_max)
    >>> shrunk.Z[0, 0, 0, 3].round(1), refit_sequence(problem, shrunk).Z[0, 0, 0, 3].round(1)
    (np.float64(1.5), np.float64(3.0))
    """
    ridge = 1e-3 if ridge is None else ridge
    model = problem.moments
    used = to_tokens(solution.Z) != 0  # (n, d, n, c)
    diagonal = np.diagonal(model.gram, axis1=1, axis2=2)[:, : model.p]
    squares = np.where(used, diagonal.T.reshape(*used.shape[:2], -1, 1), 0.0)
    entries = np.maximum(np.count_nonzero(used, axis=(0, 1, 2)), 1)
    strength = ridge * squares.sum(axis=(0, 1, 2)) / entries

    share = 1.0 / np.maximum(np.count_nonzero(used, axis=0), 1)  # (d, n, c)
    whole = used.any(axis=0).all(axis=1, keepdims=True)  # else a row's sum is zero, and all are

    def allowed(T: Array) -> Array:
        """The nearest coefficients that are zero where they must be, with equal row sums."""
        T = np.where(used, T, 0.0)
        if problem.attention == "stochastic":
            sums = T.sum(axis=0)
            common = np.sum(share * sums, axis=1, keepdims=True) / share.sum(axis=1, keepdims=True)
            T += np.where(used, share * (np.where(whole, common, 0.0) - sums), 0.0)
        return T

    def slopes(T: Array) -> Array:
        """Minus the gradient of the loss, with the best intercepts."""
        return model.blocks(model.cross - model.apply(model.settled(model.rows(T))))

    start = slopes(np.zeros(used.shape))

    def hessian(x: Array) -> Array:
        check_stop()
        T = allowed(x.reshape(used.shape))
        return allowed(start - slopes(T) + strength * T).ravel()

    x, converged = _conjugate_gradients(hessian, allowed(start).ravel(), np.ones(1), 1e-13)
    Z = problem.feasible(from_tokens(allowed(x.reshape(used.shape))))
    return Refitted(Z, problem.best_intercept(Z), solution, strength, converged)
