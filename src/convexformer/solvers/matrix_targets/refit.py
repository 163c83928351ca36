r"""The refit of matrix targets: what attends to what is given, and how strongly is least squares.

.. math:: \min_{Z, b}\ \frac12 \sum_{i, r, l} a_i (\hat Y_i[r, l] - Y_i[r, l])^2
          + \tfrac12 \sum_l \lambda_l \sum_j \|Z_{jl}\|_F^2
          \quad\text{with } Z = 0 \text{ wherever the solution is}

subject to equal row sums where attention is stochastic, so that rows stay attention. Target
positions of an output meet in two things only, the intercept and the row sums: with these and the
multipliers :math:`\nu_r` eliminated position by position, one small system per output is left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from ...problem.moments import Moments
from ...problem.sequence import SequenceProblem, from_tokens, to_tokens
from ...problem.stopping import check_stop, until
from ..refit import Refitted, kept
from ..solution import Solution

Array = NDArray[np.float64]

RIDGE = 1e-3  # unless another strength is asked for


def refit_sequence(
    problem: SequenceProblem,
    solution: Solution,
    ridge: float | None = None,
    late: Callable[[], bool] = lambda: False,
) -> Refitted:
    """Least squares over the entries of `solution` that are not zero, with a small ridge.

    Once `late` is true the refit stops, and `solution` is kept as it is, without a ridge.

    Parameters
    ----------
    problem : SequenceProblem
        That `solution` solves.
    solution : Solution
    ridge : float, optional
        Strength as a fraction of the mean square of the selected columns, positive; 1e-3 if
        omitted.
    late : callable
        Whether to stop early; asked between pieces of work.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer.problem.sequence import SequenceProblem
    >>> from convexformer.solvers.matrix_targets import refit_sequence, solve_sequence
    >>> X = np.random.default_rng(0).normal(size=(50, 4, 2))
    >>> problem = SequenceProblem(X, 3 * X[:, ::-1, :1])
    >>> shrunk = solve_sequence(problem, 0.5 * problem.beta_max)
    >>> shrunk.Z[0, 0, 0, 3].round(1), refit_sequence(problem, shrunk).Z[0, 0, 0, 3].round(1)
    (np.float64(1.5), np.float64(3.0))
    """
    ridge = RIDGE if ridge is None else ridge
    if not (np.isfinite(ridge) and ridge > 0):
        raise ValueError(f"ridge must be a positive number, got {ridge!r}.")
    with until(late):
        return _refit(problem, solution, ridge)
    return kept(solution, np.zeros(problem.n_outputs))


def _refit(problem: SequenceProblem, solution: Solution, ridge: float) -> Refitted:
    moments, stochastic = problem.moments, problem.attention == "stochastic"
    T = to_tokens(solution.Z)  # (n, d, n, c)
    n, d, _, c = T.shape
    chosen = (T != 0).reshape(n * d, n, c)
    diagonal = np.broadcast_to(np.einsum("spp->ps", moments.gram), (n * d, n))
    strength, refitted = np.zeros(c), np.zeros((n * d, n, c))
    for j in range(c):
        if np.any(chosen[:, :, j]):
            strength[j] = ridge * float(np.mean(diagonal[chosen[:, :, j]]))
            output = _Output(moments, chosen[:, :, j], j, d if stochastic else 0, strength[j])
            refitted[:, :, j] = output.minimiser()
    Z = problem.feasible(from_tokens(refitted.reshape(T.shape)))
    return Refitted(Z, problem.best_intercept(Z), solution, strength, converged=True)


@dataclass
class _Output:
    """One output: rows ``z_r`` of coefficients, that share an intercept and their row sums."""

    moments: Moments
    chosen: NDArray[np.bool_]  # (p, n): which sources and channels every target position uses
    output: int
    n_sums: int  # channels whose row sums must agree, all or none
    ridge: float

    def minimiser(self) -> Array:
        """Coefficients ``(p, n)``.

        With ``s`` the common row sums and ``u`` the lift of the intercept, a row is
        ``z = K (c + q u + E v)``, where ``K`` is its inverse Hessian and ``v`` makes
        ``E' z = s``. Left are ``sum_r v_r = 0`` and ``total u = sum_r q_r' z_r`` for s and u.
        """
        size, border = self.n_sums + 1, self.moments.border
        left, right = np.zeros((size, size)), np.zeros(size)
        if border is not None:
            left[-1, -1] = border.total[self.output]
        rows = [self._row(r) for r in range(self.chosen.shape[1])]
        for row in rows:
            left += row.left
            right += row.right
        # a row without entries in a channel has the sum zero there, and so have all others
        free = np.append(np.all([row.bound for row in rows], axis=0), border is not None)
        x = np.zeros(size)
        x[free] = np.linalg.solve(left[np.ix_(free, free)], right[free])
        Z = np.zeros(self.chosen.shape)
        for r, row in enumerate(rows):
            Z[self.chosen[:, r], r] = row.base + row.slopes @ x
        return Z

    def _row(self, r: int) -> _Row:
        """Target position `r`, its multipliers eliminated."""
        check_stop()
        m, used = self.moments, np.flatnonzero(self.chosen[:, r])
        system = (r * m.cross.shape[2] + self.output) * len(m.gram) // m.cross[0].size
        Q = m.gram[system][np.ix_(used, used)]
        Q[np.diag_indices_from(Q)] += self.ridge
        channel = used % self.n_sums if self.n_sums else used
        E = (channel[:, None] == np.arange(self.n_sums)).astype(float)
        bound = np.any(E, axis=0)  # sums that this row has entries for
        E = E[:, bound]
        q = np.zeros(len(used)) if m.border is None else m.border.sums[used, r, self.output]
        K = np.column_stack([m.cross[used, r, self.output], q, E])
        if len(used):
            K = cho_solve(cho_factor(Q, lower=True), K)
        base, along, KE = K[:, 0], K[:, 1], K[:, 2:]
        W = np.linalg.inv(E.T @ KE)
        # v = W (s - E' K c - E' K q u) in terms of 1 and x = (s, u)
        v0, v = -W @ (E.T @ base), np.column_stack([W, -W @ (E.T @ along)])
        where = np.append(bound, True)
        slopes = np.zeros((len(used), len(where)))
        slopes[:, where] = KE @ v
        slopes[:, -1] += along
        base = base + KE @ v0
        left, right = np.zeros((len(where), len(where))), np.zeros(len(where))
        left[np.ix_(np.flatnonzero(bound), where)], right[:-1][bound] = v, -v0
        left[-1], right[-1] = -q @ slopes, q @ base
        return _Row(base, slopes, bound, left, right)


@dataclass
class _Row:
    """A row as an affine function ``base + slopes x``, and its share of the equations for x."""

    base: Array
    slopes: Array
    bound: NDArray[np.bool_]
    left: Array
    right: Array
