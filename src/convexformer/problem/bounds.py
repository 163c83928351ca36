r"""Bounds that hold in exact arithmetic: an upper one of an objective, a lower one of its minimum.

Every number that float64 rounds is accompanied by a bound on its error (running error analysis,
Higham, *Accuracy and Stability of Numerical Algorithms*, chapter 3). The primal value is raised,
and the dual value lowered, by what rounding may have done to them:

1. Scores :math:`F = XZ + b` have an error of at most ``E``. A loss with slope ``-V`` and curvature
   at most ``C`` is then at most :math:`\mathrm{loss}(F) + |V|E + C E^2 / 2`.
2. *Any* ``V`` bounds the minimum from below if it meets the dual's constraints. Its entries are
   rounded to multiples of one power of two, of which sums are exact: then :math:`\sum_i V_i = 0`,
   which an intercept demands, holds to the last digit.
3. Correlations :math:`M = X^\top V` have an error of at most ``B``: what is scaled into the norm
   ball is the norm of ``|M| + B``.

Products are formed with X as it is and errors bounded by its norm: two passes over X, and one for
the norm the first time. Where that does not reach the tolerance they are formed again, with X less
its column means and errors bounded entry by entry: three passes, accurate for any means.
"""

from __future__ import annotations

from collections.abc import Callable
from math import fsum, inf, nan
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .arrays import Array
from .designs import Design
from .norms import safe_norm

if TYPE_CHECKING:
    from .problem import Problem


UNIT = 2.0**-53  # largest relative error of one rounding
VALUE_UNITS = 64.0  # of rounding, relative, in a loss or a norm that was computed at given numbers


class Bounded(NamedTuple):
    """Sums of products, and the sum of sizes that bounds their errors."""

    value: Array
    error: Array  # entrywise; broadcasts to `value`


class PlainProducts:
    """X as it is; errors are bounded by its norm."""

    origin: Array | None = None  # (n_groups, d), taken from the columns of X
    exact = False  # whether sums over samples are

    def __init__(self, problem: Problem) -> None:
        self.problem, self.design, self.norm = problem, problem.design, problem.design.norm
        self._known: tuple[Array, Array] | None = None  # a dual point and its correlations

    def scores(self, Z: Array, constant: Array) -> Bounded:
        if self.problem.follows:  # one pass gives scores, residuals and their correlations
            target = self.problem.Y - constant
            S, V, M = self.design.follow(Z, target, self.problem.weight)
            self._known = V, M
        else:
            S = self.design.predict(Z)
        used = Z[Z.any(axis=(1, 2))]
        size = self.norm * safe_norm(used.reshape(-1, Z.shape[2]), axis=0)
        return Bounded(S, gamma(used[:, :, 0].size + 4) * size)

    def correlate(self, V: Array) -> Bounded:
        size = safe_norm(V, axis=0)
        error = gamma(len(V) + 4) * size
        if self._known is not None:
            near, M = self._known
            off = (1 + 4 * UNIT) * safe_norm(V - near, axis=0)
            if (off <= 4 * UNIT * len(V) * size).all():  # the same but for rounding
                return Bounded(M, self.norm * (2 * error + off))
        return Bounded(self.design.correlate(V), self.norm * error)


class CentredProducts:
    """X less its column means; errors are bounded entry by entry, sums over samples are exact."""

    exact = True

    def __init__(self, design: Design, weight: Array) -> None:
        self.design = design
        self.origin: Array | None = column_means(design, weight)
        self._means = self.origin.ravel()

    def scores(self, Z: Array, constant: Array) -> Bounded:
        flat = Z.reshape(-1, Z.shape[2])
        value, size = np.empty((2, self.design.n_samples, Z.shape[2]))
        for rows, A in self.design.columns():
            D = A - self._means
            value[rows] = D @ flat
            size[rows] = np.abs(D) @ np.abs(flat)
        return Bounded(value, gamma(int(np.count_nonzero(flat.any(axis=1))) + 4) * size)

    def correlate(self, V: Array) -> Bounded:
        value, size = np.zeros((2, len(self._means), V.shape[1]))
        for rows, A in self.design.columns():
            D = A - self._means
            value += D.T @ V[rows]
            size += np.abs(D).T @ np.abs(V[rows])
        lift = self._means[:, None] * V.sum(axis=0)  # sums of dual points are exact
        error = gamma(len(V) + 4) * size + 4 * UNIT * np.abs(lift)
        shape = (self.design.n_groups, self.design.dim, V.shape[1])
        return Bounded((value + lift).reshape(shape), error.reshape(shape))


Products = PlainProducts | CentredProducts


def column_means(design: Design, weight: Array) -> Array:
    """Weighted means of columns, accurate also where they are far above spreads: (n_groups, d)."""
    first = int(np.argmax(weight > 0))
    # relative to one sample: a column that is constant is exactly zero less its mean
    start = design.gather(slice(first, first + 1), np.arange(design.n_groups))[0]
    share = weight / weight.sum()
    mean = sum(share[rows] @ (A - start) for rows, A in design.columns())
    return np.asarray(start + mean).reshape(design.n_groups, design.dim)


def objective_bounds(
    problem: Problem,
    Z: Array,
    b: Array,
    beta: float,
    tol: float,
    centred: Callable[..., Products] = CentredProducts,
) -> tuple[float, float]:
    """An upper bound of ``P(Z, b)``, and a lower bound of the least objective of all models.

    `centred` makes the products of the second way, from the design and the weights.
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        quick = _bounds(problem, Z, b, beta, PlainProducts(problem))
        if quick[0] - quick[1] <= tol * quick[0] or not np.isfinite(Z).all():
            return quick
        careful = centred(problem.design, problem.weight)
        primal, dual = _bounds(problem, Z, b, beta, careful)
    primal, dual = min(primal, quick[0]), max(dual, quick[1])  # each of them holds
    if primal < 1e-300 and (problem.Y.any() or Z.any()):  # products left the range of float64
        return 1e-300, 0.0
    return primal, dual


def _bounds(
    problem: Problem, Z: Array, b: Array, beta: float, products: Products
) -> tuple[float, float]:
    constant = _constant(problem, Z, b, products.origin)
    S = products.scores(Z, constant)
    F = np.asarray(S.value + constant, order=problem.loss.order)
    rounding = UNIT * (3 * np.abs(constant) + 2 * np.abs(F) + problem.loss.offset(problem.Y))
    primal = _primal(problem, Z, beta, F, S.error + rounding, products)
    return primal, _dual(problem, beta, F, products)


def _constant(problem: Problem, Z: Array, b: Array, origin: Array | None) -> Array:
    """What all samples' scores have in common, ``b - shift + origin . Z``, rounded once: (c,)."""
    if origin is None:
        return b - problem.shift
    rows = np.vstack([Z.reshape(-1, len(b)), b, problem.shift])
    start = np.append(origin, [1.0, -1.0])
    return np.array([exact_dot(start, column) for column in rows.T])


def _primal(
    problem: Problem, Z: Array, beta: float, F: Array, E: Array, products: Products
) -> float:
    loss, c = problem.loss, Z.shape[2]
    value, V, _ = loss.expansion(F, problem.Y)
    steepest, E2 = np.abs(V) * E, loss.curvature_bound(F + E) * E * E
    if loss.joint:
        steepest, E2 = steepest.sum(axis=1, keepdims=True), E2.max(axis=1, keepdims=True)
    upper = value + steepest + 0.5 * E2
    if not problem.risk.is_plain:  # a sample without weight counts for nothing, infinite or not
        upper = np.where(problem.weight[:, None] > 0, upper, 0.0)
    total = _sums(problem.weight[:, None], upper, products.exact)
    size = Z.shape[1] * c + len(Z)
    norms = problem.penalty.value(Z) * (1 + gamma(size + 8))
    if not problem.penalty.euclidean:
        # of singular values, relative to the largest, per row and column
        norms *= 1 + VALUE_UNITS * (Z.shape[1] + c) * min(Z.shape[1:]) * UNIT
    found = float((total.value + total.error).sum()) * (1 + (VALUE_UNITS + c) * UNIT)
    found = (found + beta * norms) * (1 + 4 * UNIT)
    return found if found >= 0 else inf  # no number: nothing is known


def _dual(problem: Problem, beta: float, F: Array, products: Products) -> float:
    settled = problem.risk.settle(F, np.zeros(F.shape[1]))
    V = problem.risk.dual_point(settled.F) if settled.V is None else settled.V
    if not np.isfinite(V).all():
        return 0.0
    free = problem.loss.quadratic and not problem.intercept and not products.exact
    exact = V if free else exactly_balanced(problem, V)
    if exact is None:
        return 0.0  # losses are not negative
    M = products.correlate(exact)
    norms = problem.penalty.dual_norms_bound(M.value, M.error).max(axis=0, initial=0.0)
    if np.isnan(norms).any():
        return 0.0
    sizes = (norms if problem.separable else norms.max(keepdims=True)) * (1 + 4 * UNIT)
    limits = np.divide(beta, sizes, out=np.full(len(sizes), inf), where=sizes > 0)
    limits *= 1 - 2 * UNIT
    value = _quadratic_dual if problem.loss.quadratic else _dual_value
    found = value(problem, exact, limits, products.exact)
    return found if found > 0 else 0.0


def _quadratic_dual(problem: Problem, V: Array, limits: Array, exact: bool) -> float:
    """The best ``s <Y, V> - s^2 / 2 <V, V / a>`` for ``s`` up to the norm ball."""
    Y, U = problem.Y, problem.risk.unweighted(V)
    top, bottom = _sums(Y, V, exact), _sums(V, U, exact)
    low = top.value - top.error - 2 * UNIT * (np.abs(Y) * np.abs(V)).sum(axis=0)
    high = (bottom.value + bottom.error) * (1 + 4 * UNIT)
    if not problem.separable:
        low, high = low.sum(keepdims=True), high.sum(keepdims=True)
        low -= len(top.value) * UNIT * np.abs(top.value).sum()
        high *= 1 + len(top.value) * UNIT
    free = np.divide(low, high, out=np.zeros_like(low), where=high > 0)
    s = np.minimum(np.maximum(free, 0.0), limits)
    gain, cost = s * low, 0.5 * s * s * high
    return float((gain - cost).sum() - (8 + len(s)) * UNIT * (gain + cost).sum())


def _dual_value(problem: Problem, V: Array, limits: Array, exact: bool) -> float:
    loss, U = problem.loss, np.minimum(1.0, limits) * problem.risk.unweighted(V)
    U = np.asarray(U, order=loss.order)
    value = loss.dual_value(U, problem.Y)
    error = UNIT * loss.dual_units(U, problem.Y)
    total = _sums(problem.weight[:, None], value, exact)
    lower = total.value - total.error - 2 * (problem.weight @ error)
    return float(lower.sum() - len(lower) * UNIT * np.abs(lower).sum())


def _sums(A: Array, B: Array, exact: bool) -> Bounded:
    """``sum_i A_ij B_ij``, rounded once if `exact`."""
    if exact:
        pairs = zip(np.broadcast_to(A, B.shape).T, B.T, strict=True)
        value = np.array([exact_dot(a, b) for a, b in pairs])
        return Bounded(value, 2 * UNIT * np.abs(value))
    products = A * B
    return Bounded(products.sum(axis=0), gamma(len(A) + 1) * np.abs(products).sum(axis=0))


# Sums that are exact ---------------------------------------------------------------------------


def exactly_balanced(problem: Problem, V: Array) -> Array | None:
    """A dual point near `V` whose sums are exact: zero where an intercept, or softmax, demands it.

    None where the conjugate's domain leaves no room for it.
    """
    joint, Y = problem.loss.joint, problem.Y
    size = np.abs(V).sum(axis=0)
    size = size.max(keepdims=True) if joint else size
    # Sums of multiples of 2**-52 times the sum of their sizes are exact.
    grid = np.exp2(np.ceil(np.log2(np.where(size > 0, size, 1.0))) - 51)
    if problem.loss.quadratic:  # nothing else is asked of V
        V = np.rint(V / grid) * grid
        V[np.argmax(problem.weight)] -= problem.intercept * V.sum(axis=0)
        return None if problem.intercept and V.sum(axis=0).any() else V
    low, high = (end * (1 - 4 * UNIT) for end in problem.risk.bounds)
    V = np.trunc(np.clip(V, low, high) / grid) * grid  # which is within bounds
    if joint:  # each sample's own class gets what its other classes leave
        others = np.where(Y > 0, 0.0, V)
        V = np.where(Y > 0, -others.sum(axis=1, keepdims=True), others)
        V[((low > V) | (high < V)).any(axis=1)] = 0.0  # always allowed; rounding alone leads here
    for j in range(V.shape[1] - joint) if problem.intercept else ():
        # The sum is taken from the sample with the most room; if joint its last output gets it.
        e = float(V[:, j].sum())
        room = V[:, j] - low[:, j] if e > 0 else high[:, j] - V[:, j]
        if joint:
            room = np.minimum(room, high[:, -1] - V[:, -1] if e > 0 else V[:, -1] - low[:, -1])
        i = int(np.argmax(room))
        V[i, j] -= e
        if joint:
            V[i, -1] += e
    inside = bool(np.all((low <= V) & (high >= V)))
    return V if inside and not (problem.intercept and V.sum(axis=0).any()) else None


def exact_dot(a: Array, b: Array) -> float:
    """``a . b``, rounded once."""
    high, split = a * b, 134217729.0  # 2**27 + 1
    a1, b1 = (split * x - (split * x - x) for x in (a, b))  # the upper 26 bits (Veltkamp)
    a2, b2 = a - a1, b - b1
    error = ((a1 * b1 - high) + a1 * b2 + a2 * b1) + a2 * b2  # of the products, exactly (Dekker)
    if not np.isfinite(error).all():  # beyond the range of splitting
        return nan
    return fsum(np.concatenate([high, error]).tolist())


def gamma(n: int) -> float:
    """Largest relative error of a sum of n rounded products, in any order."""
    return n * UNIT / (1 - n * UNIT)
