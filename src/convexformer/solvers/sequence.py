r"""Matrix targets: proximal Newton, whose models are minimised by Douglas-Rachford splitting.

Newton's method models the loss, at the current point, as a weighted squared loss of every target
(:class:`~convexformer.problem.sequence.Moments`), and searches the true objective along the step to
the model's minimiser. For the squared loss the model is the loss, and one is enough.

A model is minimised on its Gram matrices alone: no step depends on the number of samples. In units
where every channel has the step size one, a point :math:`S` gives

.. math:: T = \mathrm{prox}(S), \qquad U = (H + I)^{-1} (C + 2 T - S), \qquad
          S^+ = S + \alpha (U - T)

with :math:`H` and :math:`C` the quadratic and linear part of the model, :math:`T` the solution in
the making and :math:`S - T` its dual. Each output is an iteration of its own, and Anderson
acceleration extrapolates each.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..problem import Huber
from ..problem.moments import Border, Moments, apply
from ..problem.positions import PositionProblem
from ..problem.sequence import SequenceProblem, from_tokens, to_tokens
from ..problem.stopping import check_stop, until
from .anderson import Anderson
from .factors import cholesky, solved
from .interruption import interruption
from .row_prox import Levels, prox
from .solution import Callback, Clock, Iterate, Solution

Array = NDArray[np.float64]
Done = Callable[[float, float, Array], bool]
Result = TypeVar("Result")

RELAXATION = 1.7
CHECK_EVERY = 10  # iterations between certified gaps, which cost about one iteration
BALANCE = 2.0  # imbalance of the residuals at which the step size changes
MODEL_GAP = 0.05  # of the true gap: to what gap a Newton model is minimised
FARTHEST = 100.0  # scores (or deltas of Huber) that a target of a model is away at most
MOST_HALVINGS = 40  # of a Newton step
SAME = 1e-12  # relative difference of objectives that may be rounding


def solve_sequence(
    problem: SequenceProblem,
    beta: float,
    *,
    tol: float = 1e-6,
    max_iter: int = 10_000,
    max_time: float | None = None,
    init: Solution | None = None,
    callback: Callback | None = None,
    on_interrupt: str = "raise",
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
        Seconds, kept to within the larger of .3 s and two passes over X.
    init : Solution, optional
        Warm start.
    callback : callable, optional
        Called with every :class:`TracePoint`; what is active are matrices ``Z_jl``.
    on_interrupt : {"raise", "keep"}
        What Ctrl-C does, as for :func:`~convexformer.solvers.solve`.

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
    with interruption(on_interrupt) as asked:
        clock = Clock(max_iter, max_time, callback, asked)
        return _solve(problem, beta, tol, clock, init)


def _solve(
    problem: SequenceProblem, beta: float, tol: float, clock: Clock, init: Solution | None
) -> Solution:
    if beta >= problem.beta_max:
        Z = np.zeros(problem.shape)
    else:
        start = np.zeros(problem.shape) if init is None else problem.feasible(init.Z)
        minimise = _quadratic if problem.loss.quadratic else _newton
        T = minimise(problem, beta, to_tokens(start), tol, clock)
        Z = problem.feasible(from_tokens(T))
    b = problem.best_intercept(Z)
    # Without time left the quick bounds must do: they hold too, but allow for more rounding.
    certificate = problem.certificate(Z, b, beta, np.inf if clock.late() else tol)
    if not clock.trace:
        clock.record(certificate.relative_gap, Z.reshape(-1, *Z.shape[2:]))
    status = clock.status(certificate.relative_gap <= tol)
    return Solution(Z, b, certificate, status, clock.n_iter, clock.trace)


def _quadratic(problem: SequenceProblem, beta: float, T: Array, tol: float, clock: Clock) -> Array:
    """The squared loss, from ``T (n, d, n, c)``: its model is the loss."""

    def done(primal: float, dual: float, T: Array) -> bool:
        gap = (primal - dual) / primal if primal > 0 else primal - dual
        clock.record(gap, _matrices(T))
        return not gap > 0.9 * tol  # the exact gap differs by rounding

    found = minimise_model(lambda: problem.moments, beta, problem.attention, T, done, clock)
    return T if found is None else found


def _newton(problem: SequenceProblem, beta: float, T: Array, tol: float, clock: Clock) -> Array:
    """Any other loss, from ``T (n, d, n, c)``."""
    inner, shape = problem.positions, T.shape
    at = Iterate.start(inner, None, beta)
    if np.any(T):
        Z = T.reshape(inner.shape)
        warm = Iterate.at(inner, Z, inner.scores(Z), at.b)
        if warm.primal(beta) < at.primal(beta):  # else zero is the better start
            at = warm
    damping, precision = 1.0, MODEL_GAP
    while True:
        gap = at.gap(inner, inner.dual_point(at.F), beta)
        clock.record(gap, _matrices(at.Z.reshape(shape)))
        if not gap > 0.9 * tol or clock.expired:
            return at.Z.reshape(shape)
        done = _within(max(precision * gap, 0.3 * tol) * at.primal(beta))
        model = partial(_model, problem, at, damping)
        minimiser = minimise_model(model, beta, problem.attention, at.Z.reshape(shape), done, clock)
        if minimiser is None:
            return at.Z.reshape(shape)
        if not clock.expired:  # so that steps end even where models take none
            clock.n_iter += 1
        found, t = _search(inner, beta, at, minimiser.reshape(inner.shape), gap, clock)
        # Where the most precise model has no step down, what is left is rounding.
        exhausted = precision < MODEL_GAP and damping == 1.0
        if found is None and (exhausted or clock.late()):
            return at.Z.reshape(shape)
        precision = MODEL_GAP if found is not None else 1e-3 * MODEL_GAP
        damping = 0.1 * damping if t >= 1.0 else 1.0
        at = found or at


def _within(slack: float) -> Done:
    """Whether the gap of a model is at most `slack`, or no number."""
    return lambda primal, dual, _: not primal - dual > slack


def _model(problem: SequenceProblem, at: Iterate, damping: float) -> Moments:
    """The loss at a point as a weighted squared loss."""
    inner, loss = problem.positions, problem.loss
    shape = (*problem.design.X.shape[:2], problem.n_outputs)
    _, V, H = inner.expansion(at.F)
    if loss.damps:
        H = loss.curvature(at.F, inner.Y, damping)
    reach = FARTHEST * (loss.delta if isinstance(loss, Huber) else 1.0)
    H = np.maximum(H, np.abs(V) / reach)
    targets = at.F + np.divide(V, H, out=np.zeros(V.shape), where=H > 0)
    weight = np.ascontiguousarray(inner.weight[:, None] * H).reshape(shape)
    return problem.model(weight, np.ascontiguousarray(targets).reshape(shape), loss.joint)


def _search(
    problem: PositionProblem, beta: float, at: Iterate, Z: Array, gap: float, clock: Clock
) -> tuple[Iterate | None, float]:
    """The first better point, back from `Z` towards `at`, and its step.

    Better is a lower objective; or, where objectives are the same but for rounding, a whole step to
    a gap below `gap`, that of `at`. The whole step is always tried, shorter ones while there is
    time.
    """
    S, t, primal = problem.scores(Z), 1.0, at.primal(beta)
    for _ in range(MOST_HALVINGS):
        before = clock.seconds
        found = Iterate.at(problem, at.Z + t * (Z - at.Z), at.S + t * (S - at.S), at.b)
        clock.keep_back(clock.seconds - before)  # for the trial that ends the next model
        if found.primal(beta) < primal:
            return found, t
        same = t == 1.0 and found.primal(beta) <= (1 + SAME) * primal
        if same and found.gap(problem, problem.dual_point(found.F), beta) < gap:
            return found, t
        if clock.late():
            break
        t *= 0.5
    return None, 0.0


def _matrices(T: Array) -> Array:
    """Which matrices of ``T (n, d, n, c)`` are not zero, as a trace counts them."""
    return np.any(T, axis=(0, 2)).reshape(-1, 1, 1)


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
