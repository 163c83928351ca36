r"""Matrix targets: Douglas-Rachford splitting on the Gram form, accelerated, with certificates.

In units where every channel has the step size one, a point :math:`S` gives

.. math:: T = \mathrm{prox}(S), \qquad U = (H + I)^{-1} (C + 2 T - S), \qquad
          S^+ = S + \alpha (U - T)

with :math:`H` and :math:`C` the quadratic and linear part of the loss, :math:`T` the solution in
the making and :math:`S - T` its dual. Each output is an iteration of its own, and Anderson
acceleration extrapolates each. One factorisation serves all targets and outputs; no step depends
on the number of samples.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from ..problem.sequence import Moments, SequenceProblem, from_tokens, to_tokens
from .row_prox import Levels, prox
from .solution import Callback, Clock, Solution

Array = NDArray[np.float64]

RELAXATION = 1.7
CHECK_EVERY = 10  # iterations between certified gaps, which cost about one iteration
MEMORY = 5
REJECT = 2.0  # an extrapolation may raise the residual by this factor at most
BALANCE = 2.0  # imbalance of the residuals at which the step size changes


def solve_sequence(
    problem: SequenceProblem,
    beta: float,
    *,
    tol: float = 1e-6,
    max_iter: int = 10_000,
    max_time: float | None = None,
    init: Solution | None = None,
    callback: Callback | None = None,
) -> Solution:
    """Minimise `problem` at penalty strength `beta` to a certified relative gap.

    Parameters
    ----------
    problem : SequenceProblem
    beta : float
        Absolute penalty strength, positive (0 only where ``problem.beta_max`` is 0).
    tol : float
        Relative duality gap at which to stop.
    max_iter : int
    max_time : float, optional
        Seconds.
    init : Solution, optional
        Warm start.
    callback : callable, optional
        Called with every :class:`TracePoint`; what is active are matrices ``Z_jl``.

    Returns
    -------
    Solution
        ``Z (d, c, n, n)`` with exactly feasible row sums; its true gap, and a status that says
        why it is above the tolerance where it is.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer.problem.sequence import SequenceProblem
    >>> from convexformer.solvers.sequence import solve_sequence
    >>> X = np.random.default_rng(0).normal(size=(30, 4, 2))
    >>> problem = SequenceProblem(X, X[:, ::-1])
    >>> solution = solve_sequence(problem, 0.1 * problem.beta_max)
    >>> solution.certificate.relative_gap <= 1e-6
    True
    """
    if not (np.isfinite(beta) and beta >= 0 and (beta > 0 or problem.beta_max == 0)):
        raise ValueError(f"beta must be a positive number, got {beta!r}.")
    if init is not None and init.Z.shape != problem.shape:
        raise ValueError(f"init has shape {init.Z.shape}, the problem {problem.shape}.")
    clock = Clock(max_iter, max_time, callback)
    if beta >= problem.beta_max:
        Z = np.zeros(problem.shape)
    else:
        start = np.zeros(problem.shape) if init is None else problem.feasible(init.Z)
        T = _minimise(problem, beta, to_tokens(start), tol, clock)
        Z = problem.feasible(from_tokens(T))
    b = problem.best_intercept(Z)
    certificate = problem.certificate(Z, b, beta)
    if not clock.trace:
        clock.record(certificate.relative_gap, Z.reshape(-1, *Z.shape[2:]))
    status = clock.status(certificate.relative_gap <= tol)
    return Solution(Z, b, certificate, status, clock.n_iter, clock.trace)


def _minimise(problem: SequenceProblem, beta: float, T: Array, tol: float, clock: Clock) -> Array:
    """Iterate from ``T (n, d, n, c)`` until the gap is below `tol` or the clock expires."""
    moments = problem.moments
    splitting = Splitting(moments, beta, problem.attention == "stochastic", T.shape)
    acceleration = Anderson(T.size // problem.n_outputs, problem.n_outputs)
    S = splitting.start(T)
    next_balance = 4 * CHECK_EVERY
    while True:
        splitting.step(S)
        if clock.n_iter % CHECK_EVERY == 0 or clock.expired:
            T = splitting.coefficients
            M = moments.correlate(T.reshape(moments.cross.shape))
            gap = moments.gap(T.reshape(M.shape), M, beta, problem.attention)
            clock.record(gap, np.any(T, axis=(0, 2)).reshape(-1, 1, 1))
            if gap <= 0.9 * tol or clock.expired:  # the exact gap differs by rounding
                return T
            if clock.n_iter >= next_balance:
                next_balance = int(1.25 * clock.n_iter) + CHECK_EVERY
                factor = splitting.imbalance(S)
                if not 1 / BALANCE <= factor <= BALANCE:
                    S = splitting.rescale(S, factor)
                    acceleration.reset()
                    splitting.step(S)
        clock.n_iter += 1
        S = acceleration(S, RELAXATION * splitting.residual)


class Splitting:
    """The iteration, in units of :math:`\\sigma_j T_j` with a scale per channel."""

    def __init__(self, moments: Moments, beta: float, stochastic: bool, shape: tuple) -> None:
        self.moments, self.beta, self.stochastic, self.shape = moments, beta, stochastic, shape
        n, d = shape[:2]
        curvature = np.einsum("mpp->p", moments.gram).reshape(n, d).mean(axis=0) / len(moments.gram)
        # a channel of zeros has no curvature, and any scale will do
        self.curvature = np.maximum(curvature, 1e-12 * curvature.max())
        self.T = np.zeros(moments.cross.shape)
        self.levels: Levels | None = None
        self._set_scale(1.0)

    def _set_scale(self, factor: float) -> None:
        n, d = self.shape[:2]
        self.factor = factor
        self.sigma = np.sqrt(factor * self.curvature)  # (d,)
        column = np.tile(self.sigma, n)  # (p,)
        gram = self.moments.gram / (column[:, None] * column)
        diagonal = np.arange(n * d)
        gram[:, diagonal, diagonal] += 1.0
        self.factors = [cho_factor(G, lower=True, check_finite=False) for G in gram]
        self.cross = self.moments.cross / column[:, None, None]
        self.sums = self.moments.sums / column[:, None]
        solved = self._solve(np.broadcast_to(self.sums, (n * d, n))[:, :, None])
        self.solved_sums = solved  # (p, n, 1)
        self.rank_one = self.moments.total - float(np.sum(self.sums[:, :, None] * solved))

    def _solve(self, R: Array) -> Array:
        """``(gram + I)^{-1} R`` for ``R (p, n, c)``."""
        p, n, c = R.shape
        if len(self.factors) == 1:
            X = cho_solve(self.factors[0], R.reshape(p, n * c), check_finite=False)
            return X.reshape(p, n, c)
        X = np.empty(R.shape)
        for r, factor in enumerate(self.factors):
            X[:, r] = cho_solve(factor, R[:, r], check_finite=False)
        return X

    def start(self, T: Array) -> Array:
        """The point whose coefficients are `T` and whose dual is their correlation."""
        p_shape = self.moments.cross.shape
        M = self.moments.correlate(T.reshape(p_shape)).reshape(self.shape)
        sigma = self.sigma[:, None, None]
        return (sigma * T + (M / sigma if np.any(T) else 0.0)).reshape(p_shape)

    def step(self, S: Array) -> None:
        """Evaluate the iteration at ``S (p, n, c)``: sets `T` and `residual`."""
        T, self.levels = prox(
            S.reshape(self.shape), self.beta / self.sigma, self.stochastic, self.levels
        )
        self.last_T, self.T = self.T, T.reshape(S.shape)
        U = self._solve(self.cross + 2 * self.T - S)
        lift = np.einsum("prl,pr->l", U, np.broadcast_to(self.sums, S.shape[:2]))
        U += self.solved_sums * (lift / self.rank_one)
        self.residual = U - self.T

    @property
    def coefficients(self) -> Array:
        return self.T.reshape(self.shape) / self.sigma[:, None, None]

    def imbalance(self, S: Array) -> float:
        """Factor of the scales that would make the relative primal and dual residuals equal."""
        primal = _ratio(self.residual, self.T)
        dual = _ratio(self.T - self.last_T, S - self.T)
        return float(np.clip(np.sqrt(primal / max(dual, 1e-300)), 0.2, 5.0))

    def rescale(self, S: Array, factor: float) -> Array:
        """Change all scales; the same coefficients and dual in the new units."""
        T, dual = self.T, S - self.T
        self._set_scale(factor * self.factor)
        if self.levels is not None:
            self.levels = (np.sqrt(factor) * self.levels[0], np.sqrt(factor) * self.levels[1])
        return np.sqrt(factor) * T + dual / np.sqrt(factor)


def _ratio(error: Array, size: Array) -> float:
    return float(np.linalg.norm(error)) / max(float(np.linalg.norm(size)), 1e-300)


class Anderson:
    """Anderson acceleration of several independent fixed-point iterations, one per last index.

    An extrapolated point whose residual is more than `REJECT` times the smallest one so far is
    given up for the plain step, whose residual never rises.
    """

    def __init__(self, size: int, n_outputs: int) -> None:
        self.changes = np.zeros((MEMORY, size, n_outputs))  # of residuals
        self.moves = np.zeros((MEMORY, size, n_outputs))  # of plain steps
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        c = self.changes.shape[2]
        self.changes[:], self.moves[:] = 0.0, 0.0
        self.gram = np.zeros((c, MEMORY, MEMORY))
        self.g = self.plain = self.changes[0]  # of the last point
        self.best = np.full(c, np.inf)
        self.count = 0
        self.known = np.zeros(c, dtype=bool)  # whether there is a last point

    def __call__(self, S: Array, residual: Array) -> Array:
        """The next point after `S`."""
        g = residual.reshape(self.changes.shape[1:])
        plain = S.reshape(g.shape) + g
        size = np.einsum("xl,xl->l", g, g)
        rejected = self.known & (size > REJECT**2 * self.best)
        if np.any(self.known):
            self._remember(g, plain, rejected)
        following = plain - np.einsum("axl,la->xl", self.moves, self._weights(g))
        if np.any(rejected):
            following[:, rejected] = self.plain[:, rejected]
        self.best = np.where(rejected, self.best, np.minimum(self.best, size))
        self.g, self.plain, self.known = g, plain, ~rejected
        return following.reshape(S.shape)

    def _remember(self, g: Array, plain: Array, rejected: NDArray[np.bool_]) -> None:
        slot = self.count % MEMORY
        self.count += 1
        keep = self.known & ~rejected
        self.changes[slot] = np.where(keep, g - self.g, 0.0)
        self.moves[slot] = np.where(keep, plain - self.plain, 0.0)
        products = np.einsum("axl,xl->la", self.changes, self.changes[slot])
        self.gram[:, slot], self.gram[:, :, slot] = products, products
        if np.any(rejected):
            self.changes[:, :, rejected], self.moves[:, :, rejected] = 0.0, 0.0
            self.gram[rejected] = 0.0

    def _weights(self, g: Array) -> Array:
        """Least squares: which combination of changes cancels the residual, ``(c, memory)``."""
        right = np.einsum("axl,xl->la", self.changes, g)
        trace = np.einsum("laa->l", self.gram)
        ridge = (1e-10 * trace + np.finfo(float).tiny)[:, None, None] * np.eye(MEMORY)
        return np.linalg.solve(self.gram + ridge, right[:, :, None])[:, :, 0]
