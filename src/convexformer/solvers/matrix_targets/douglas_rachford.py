r"""Douglas-Rachford splitting for the quadratic models of matrix targets.

A model is minimised on its Gram matrices alone: no step depends on the number of samples. In units
where every channel has the step size one, a point :math:`S` gives

.. math:: T = \mathrm{prox}(S), \qquad U = (H + I)^{-1} (C + 2 T - S), \qquad
          S^+ = S + \alpha (U - T)

with :math:`H` and :math:`C` the quadratic and linear part of the model, :math:`T` the current
solution and :math:`S - T` its dual. Each output is an iteration of its own, and Anderson
acceleration extrapolates each.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ...problem.moments import Border, Moments, apply
from ...problem.stopping import check_stop, until
from ..linalg import cholesky, solved
from ..solution import Clock
from .row_prox import Levels, prox

Array = NDArray[np.float64]
Done = Callable[[float, float, Array], bool]
Result = TypeVar("Result")

RELAXATION = 1.7
CHECK_EVERY = 10  # iterations between gaps, which cost about one iteration
BALANCE = 2.0  # imbalance of the residuals at which the step size changes
MEMORY = 5  # earlier iterations that Anderson acceleration combines
REJECT = 2.0  # factor by which an extrapolation may raise the residual


def minimise_model(
    make_model: Callable[[], Moments],
    beta: float,
    attention: str,
    T: Array,
    done: Done,
    clock: Clock,
) -> Array | None:
    """Minimise a quadratic model from ``T (n, d, n, c)``.

    Until `done`, which is told primal value, dual value and coefficients, or the clock expires.
    None where the model is not formed and factorised in time, or float64 cannot factorise it.
    """

    def prepare() -> tuple[Moments, Splitting]:
        model = make_model()
        check_stop()
        return model, Splitting(model, beta, attention == "stochastic", T.shape)

    prepared = _factorised(prepare, clock)
    if prepared is None:
        return None
    model, splitting = prepared
    own = 1 if model.joint else T.shape[3]  # iterations of their own
    acceleration = Anderson(T.size // own, own)
    S = splitting.start(T)
    step, next_balance = 0, 4 * CHECK_EVERY
    while True:
        splitting.step(S)
        if step % CHECK_EVERY == 0 or clock.expired:
            T = splitting.coefficients
            M = model.correlate(T.reshape(model.cross.shape))
            primal, dual = model.bounds(T.reshape(M.shape), M, beta, attention)
            if done(primal, dual, T) or clock.expired:
                return T
            if step >= next_balance:
                next_balance = int(1.25 * step) + CHECK_EVERY
                factor = splitting.imbalance(S)
                if not 1 / BALANCE <= factor <= BALANCE:
                    rescaled = _factorised(partial(splitting.rescale, S, factor), clock)
                    if rescaled is None:
                        return T
                    S = rescaled
                    acceleration.reset()
                    splitting.step(S)
        step += 1
        clock.n_iter += 1
        S = acceleration(S, RELAXATION * splitting.residual)


def _factorised(compute: Callable[[], Result], clock: Clock) -> Result | None:
    """What `compute` returns; None if it takes too long, or needs a factor that does not exist.

    A Gram matrix plus the identity has a Cholesky factor, but its rounding may be as large as the
    identity where weights of samples, or means and spreads of channels, are far apart.
    """
    with until(clock.late), suppress(np.linalg.LinAlgError):
        return compute()
    return None


class Splitting:
    """The iteration, in units of :math:`\\sigma_j T_j` with a scale per channel."""

    def __init__(self, moments: Moments, beta: float, stochastic: bool, shape: tuple) -> None:
        self.moments, self.beta, self.stochastic, self.shape = moments, beta, stochastic, shape
        n, d = shape[:2]
        diagonal = np.einsum("spp->sp", moments.gram).mean(axis=0)
        curvature = diagonal.reshape(n, d, -1).mean(axis=(0, 2))
        # a channel of zeros has no curvature, and any scale will do
        self.curvature = np.maximum(curvature, 1e-12 * curvature.max())
        self.T = np.zeros(moments.cross.shape)
        self.levels: Levels | None = None
        self._set_scale(1.0)

    def _set_scale(self, factor: float) -> None:
        n = self.shape[0]
        self.factor = factor
        self.sigma = np.sqrt(factor * self.curvature)  # (d,)
        column = np.tile(self.sigma, n)  # (p,)
        wide = np.repeat(column, self.moments.gram.shape[1] // len(column))  # (P,)
        self.factors = [self._factor(G, wide) for G in self.moments.gram]
        self.cross = self.moments.cross / column[:, None, None]
        border = self.moments.border
        if border is not None:
            unit = column.reshape(-1, *[1] * (border.sums.ndim - 1))
            self.border = Border(border.sums / unit, border.total)
            self._eliminate_intercept()

    @staticmethod
    def _factor(gram: Array, sigma: Array) -> Array:
        check_stop()
        scaled = gram / (sigma[:, None] * sigma)
        scaled[np.diag_indices_from(scaled)] += 1.0
        return cholesky(scaled, overwrite=True)

    def _eliminate_intercept(self) -> None:
        """What `_solve` is to be corrected by (Woodbury)."""
        sums, total = self.border.sums, self.border.total
        if sums.ndim == 3:
            self.solved_sums = self._solve(sums)
            left = total - np.sum(sums * self.solved_sums, axis=(0, 1))
        else:
            solved = [self._solve(sums[..., m]) for m in range(len(total))]
            self.solved_sums = np.stack(solved, axis=-1)
            left = total - np.einsum("prlm,prlk->mk", sums, self.solved_sums)
        self.inverse = self.border.inverse(left)

    def _solve(self, R: Array) -> Array:
        """``(gram + I)^{-1} R`` for ``R (p, n, c)``."""
        packed = self.moments.pack(R)
        X = np.empty(packed.shape)
        for system, factor in enumerate(self.factors):
            X[system] = solved(factor, packed[system])
        return self.moments.unpack(X)

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
        if self.moments.border is not None:
            b = apply(self.inverse, self.border.project(U))
            U = U + self.border.expand(b, self.solved_sums)
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
