r"""Matrix targets: proximal Newton, whose models are minimised by Douglas-Rachford splitting.

Newton's method models the loss, at the current point, as a weighted squared loss of every target
(:class:`~convexformer.problem.moments.Moments`), and searches the true objective along the step to
the model's minimiser. For the squared loss the model is the loss, and one is enough.

A model is minimised on its Gram matrices alone: no step depends on the number of samples. In units
where every channel has the step size one, a point :math:`S` gives

.. math:: T = \mathrm{prox}(S), \qquad U = (H + I)^{-1} (C + 2 T - S), \qquad
          S^+ = S + \alpha (U - T)

with :math:`H` and :math:`C` the quadratic and linear part of the model, :math:`T` the current
solution and :math:`S - T` its dual. Anderson acceleration extrapolates the iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from ..problem import Huber, Point
from ..problem.arrays import Array
from ..problem.moments import Moments
from ..problem.sequence import SequenceProblem, from_tokens, to_tokens
from ..problem.stopping import check_stop, until
from .solution import Callback, Clock, Solution, interruption

MATRIX_STRATEGY = "douglas-rachford"  # of every solution
MODEL_GAP = 0.05  # part of the true gap to which the gap of a Newton model is brought down
CHECK_EVERY = 10  # iterations between gaps, which cost about one iteration
MEMORY = 10  # earlier iterations that Anderson acceleration combines


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
    >>> from convexformer.solvers.matrix_targets import solve_sequence
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
        Z = np.zeros(problem.shape)
        if beta < problem.beta_max:
            start = None if init is None else to_tokens(problem.feasible(init.Z))
            Z = problem.feasible(from_tokens(_newton(problem, beta, tol, clock, start)))
        b = problem.best_intercept(Z)
        # Without time left the quick bounds must do: they hold too, but allow for more rounding.
        certificate = problem.certificate(Z, b, beta, np.inf if clock.late() else tol)
        if not clock.trace:
            clock.record(certificate.relative_gap, Z.reshape(-1, *Z.shape[2:]))
        status = clock.status(certificate.relative_gap <= tol)
        return Solution(Z, b, certificate, status, clock.n_iter, clock.trace, MATRIX_STRATEGY)


def _newton(
    problem: SequenceProblem, beta: float, tol: float, clock: Clock, start: Array | None
) -> Array:
    """Coefficients ``T (n, d, n, c)`` of the least objective, from `start` or from zero."""
    inner, quadratic = problem.positions, problem.loss.quadratic
    n, d, c = problem.design.n_groups, problem.design.dim, problem.n_outputs
    at, damping, precision = inner.null, 1.0, MODEL_GAP
    if start is not None:
        warm = inner.at(start.reshape(inner.shape), at.b)
        if warm.primal(beta) < at.primal(beta):  # else zero is the better start
            at = warm
    while True:
        T, gap, primal = at.Z.reshape(n, d, n, c), at.gap(beta), at.primal(beta)
        clock.record(gap, _matrices(T))
        if not gap > 0.9 * tol or clock.expired:  # the exact gap differs by rounding
            return T
        slack = max(precision * gap, 0.3 * tol) * primal

        def done(upper: float, lower: float, T: Array, slack: float = slack) -> bool:
            """Whether the gap of the model is small enough, or no number."""
            if not quadratic:
                return not upper - lower > slack
            ratio = (upper - lower) / upper if upper > 0 else upper - lower
            if clock.n_iter > 0:
                clock.record(ratio, _matrices(T))
            return not ratio > 0.9 * tol

        splitting = None
        with until(clock.late), suppress(np.linalg.LinAlgError):
            model = problem.moments if quadratic else _model(problem, at, damping)
            splitting = Splitting(model, beta, problem.attention, T)
            splitting.minimise(done, clock)
        T = T if splitting is None else splitting.found
        if quadratic or splitting is None:
            return T
        if not clock.expired:  # so that steps end even where models take none
            clock.n_iter += 1
        found, t = _search(at, T.reshape(inner.shape), beta, clock)
        # Where the most precise model has no step down, what is left is rounding.
        if found is None and (precision < MODEL_GAP or clock.late()):
            return at.Z.reshape(T.shape)
        precision = MODEL_GAP if found is not None else 1e-3 * MODEL_GAP
        damping = 0.1 * damping if t >= 1.0 else 1.0
        at = found or at


def _model(problem: SequenceProblem, at: Point, damping: float) -> Moments:
    """The loss at a point as a weighted squared loss."""
    inner, loss = problem.positions, problem.loss
    V, H = loss.dual_point(at.F, inner.Y), loss.curvature(at.F, inner.Y, damping)
    reach = 100.0 * (loss.delta if isinstance(loss, Huber) else 1.0)  # farther is no target
    H = np.maximum(H, np.abs(V) / reach)
    targets = at.S + np.divide(V, H, out=np.zeros(V.shape), where=H > 0)
    weight = np.ascontiguousarray(inner.weight[:, None] * H)
    shape = -1, problem.design.n_groups, problem.n_outputs
    return problem.model(weight.reshape(shape), np.ascontiguousarray(targets), loss.joint)


def _search(at: Point, Z: Array, beta: float, clock: Clock) -> tuple[Point | None, float]:
    """The first better point, back from `Z` towards `at`, and its step.

    Better is a lower objective; or, where objectives are the same but for rounding, a whole step to
    a lower gap. The whole step is always tried, shorter ones while there is time.
    """
    problem = at.problem
    S, t = problem.scores(Z), 1.0
    while t > 1e-12 and (t == 1.0 or not clock.late()):
        before = clock.seconds
        found = problem.at(at.Z + t * (Z - at.Z), at.b, S=at.S + t * (S - at.S))
        clock.keep_back(clock.seconds - before)  # for the trial that ends the next model
        if found.primal(beta) < at.primal(beta):
            return found, t
        same = t == 1.0 and found.primal(beta) <= (1 + 1e-12) * at.primal(beta)
        if same and found.gap(beta) < at.gap(beta):
            return found, t
        t *= 0.5
    return None, 0.0


def _matrices(T: Array) -> Array:
    """Which matrices of ``T (n, d, n, c)`` are not zero, as a trace counts them."""
    return np.any(T, axis=(0, 2)).reshape(-1, 1, 1)


class Splitting:
    """Douglas-Rachford splitting of a model, in units of sigma_j T_j by channel.

    Attributes
    ----------
    found : ndarray of shape (n, d, n, c)
        Coefficients at the last gap.
    """

    def __init__(self, model: Moments, beta: float, attention: str, T: Array) -> None:
        self.model, self.beta, self.attention, self.found = model, beta, attention, T
        (n, d), q = T.shape[:2], len(model.cross)
        diagonal = np.diagonal(model.gram, axis1=1, axis2=2).mean(axis=0)
        diagonal = diagonal.reshape(q, -1).mean(axis=1)
        channels = diagonal[: model.p].reshape(n, d).mean(axis=0)
        # a channel of zeros has no curvature, and any scale will do
        channels = np.maximum(channels, 1e-12 * channels.max())
        self.curvature = np.append(np.tile(channels, n), diagonal[model.p :])  # (q,)
        self.T, self.accelerate = np.zeros(model.cross.shape), Anderson()
        self.levels: Array | None = None
        self._set_scale(1.0)
        start = model.settled(model.rows(T))
        dual = (model.cross - model.apply(start)) / self.sigma if np.any(T) else 0.0
        self.S = self.sigma * start + dual

    def _set_scale(self, factor: float) -> None:
        sigma = np.sqrt(factor * self.curvature)
        wide = np.repeat(sigma, self.model.gram.shape[1] // len(sigma))
        one, inverses = np.eye(len(wide)), np.empty(self.model.gram.shape)
        for gram, inverse in zip(self.model.gram, inverses, strict=True):
            check_stop()
            inverse[:] = cho_solve(cho_factor(gram / (wide[:, None] * wide) + one), one)
        self.factor, self.inverses, self.sigma = factor, inverses, sigma[:, None, None]

    def minimise(self, done: Callable[[float, float, Array], bool], clock: Clock) -> None:
        """Iterate until `done`, told primal value, dual value and coefficients, or out of time."""
        step, next_balance = 0, 4 * CHECK_EVERY
        while True:
            self._evaluate()
            if step % CHECK_EVERY == 0 or clock.expired:
                T = self.T / self.sigma
                self.found = self.model.blocks(T)
                ended = done(*self.model.bounds(T, self.beta, self.attention), self.found)
                if ended or clock.expired:
                    return
                if step >= next_balance:
                    next_balance = int(1.25 * step) + CHECK_EVERY
                    self._balance()
            step += 1
            clock.n_iter += 1
            self.S = self.accelerate(self.S, 1.7 * self.residual)  # over-relaxed

    def _evaluate(self) -> None:
        """Sets `T` and `residual` at `S`."""
        model, S, T = self.model, self.S, np.empty(self.S.shape)
        V = model.blocks(S)
        step = self.beta / self.sigma[: V.shape[1], 0, 0]
        found, self.levels = prox(V, step, self.attention == "stochastic", self.levels)
        T[: model.p] = found.reshape(model.p, *S.shape[1:])
        T[model.p :] = S[model.p :].mean(axis=1, keepdims=True)  # intercepts are equal
        right = model.cross / self.sigma + 2 * T - S
        U = model.unpack(np.matmul(self.inverses, model.pack(right)))
        self.last, self.T, self.residual = self.T, T, U - T

    def _balance(self) -> None:
        """Change all scales where relative residuals, primal and dual, are far apart."""
        primal = _ratio(self.residual, self.T)
        dual = _ratio(self.T - self.last, self.S - self.T)
        change = float(np.clip(np.sqrt(primal / max(dual, 1e-300)), 0.2, 5.0))
        if 0.5 <= change <= 2.0:
            return
        self._set_scale(change * self.factor)
        root = np.sqrt(change)
        self.S = root * self.T + (self.S - self.T) / root
        self.levels, self.accelerate = None, Anderson()
        self._evaluate()


def _ratio(error: Array, size: Array) -> float:
    return float(np.linalg.norm(error)) / max(float(np.linalg.norm(size)), 1e-300)


class Anderson:
    """Anderson acceleration of a fixed-point iteration.

    An extrapolated point whose residual is more than twice the smallest one so far is given up for
    the plain step, whose residual never rises.
    """

    def __init__(self) -> None:
        self.changes = list[Array]()  # of residuals
        self.moves = list[Array]()  # of plain steps
        self.last: tuple[Array, Array] | None = None  # residual and plain step
        self.least = np.inf

    def __call__(self, S: Array, residual: Array) -> Array:
        """The next point after `S`."""
        plain, size = S + residual, float(np.linalg.norm(residual))
        if self.last is not None:
            before, earlier = self.last
            if size > 2.0 * self.least:
                self.__init__()  # type: ignore[misc]
                return earlier
            self.changes = [*self.changes, (residual - before).ravel()][-MEMORY:]
            self.moves = [*self.moves, (plain - earlier).ravel()][-MEMORY:]
        self.last, self.least = (residual, plain), min(self.least, size)
        if not self.changes:
            return plain
        changes = np.stack(self.changes)
        gram = changes @ changes.T
        gram += (1e-10 * np.trace(gram) + np.finfo(float).tiny) * np.eye(len(gram))
        weights = np.linalg.solve(gram, changes @ residual.ravel())
        return np.asarray(plain - (weights @ np.stack(self.moves)).reshape(S.shape))


def prox(V: Array, t: Array, stochastic: bool, levels: Array | None = None) -> tuple[Array, Array]:
    r"""``argmin_T 1/2 ||T - V||^2 + sum_jl t_j penalty(T_jl)``, for all matrices at once.

    By Moreau's identity the step removes from :math:`V` its projection onto the dual ball, which
    clips every row r to an interval :math:`[-g_r, h_r]` with :math:`\sum_r h_r \le t` and
    :math:`\sum_r g_r \le t` (and :math:`h, g \ge 0` where attention is substochastic, else
    :math:`h_r + g_r \ge 0`). All rows of a matrix share two levels,
    :math:`a = \sum_k (V_{rk} - h_r)_+` and :math:`b = \sum_k (-V_{rk} - g_r)_+`, which are the row
    sums of the result's two parts.

    :math:`h_r = \max_m (\text{sum of the } m \text{ largest} - a) / m` is convex and falls with
    ``a``. Where the ends of its interval meet, a row is clipped to one value, its mean less
    ``(a - b) / n``, which is convex too and couples the levels with the sign that makes Newton's
    method monotone: from any start, no step after the first overshoots.

    Parameters
    ----------
    V : ndarray of shape (n, d, n, c)
        Source, channel, target, output.
    t : ndarray of shape (d,)
    stochastic : bool
        Whether all row sums of a matrix must be equal.
    levels : ndarray of shape (2, d, 1, c), optional
        ``(a, b)`` to start from.

    Returns
    -------
    T : ndarray of shape (n, d, n, c)
    levels : ndarray of shape (2, d, 1, c)
    """
    n, d, _, c = V.shape
    S = np.sort(V, axis=0)
    S = np.stack([S[::-1], -S])  # first index: V, -V
    counts = np.arange(1.0, n + 1).reshape(-1, 1, 1, 1)
    means = np.cumsum(S, axis=1) / counts
    t = t[:, None, None]
    size = n * (np.abs(S[:, 0]).max(axis=0).sum(axis=1, keepdims=True) + t)
    levels = np.zeros((2, d, 1, c)) if levels is None else levels
    for _ in range(100):  # from a good start 2 or 3 are enough
        ends = np.max(means - levels[:, None] / counts, axis=1)  # (2, d, n, c), h and g
        merged = np.zeros(ends.shape[1:], dtype=bool)
        if stochastic:
            merged = ends[0] + ends[1] < 0
            middle = means[0, -1] - (levels[0] - levels[1]) / n
            ends = np.where(merged, [middle, -middle], ends)
        else:
            ends = np.maximum(ends, 0.0)
        over = ends.sum(axis=2, keepdims=True) - t
        settled = (np.abs(over) <= 1e-15 * size) | ((levels == 0) & (over <= 0))
        if np.all(settled):
            break
        # how fast sums of ends fall with their own level, and rise with the other one
        moves = ~merged if stochastic else ends > 0
        cut = np.maximum(np.count_nonzero(ends[:, None] < S, axis=1), 1)
        coupling = merged.sum(axis=1, keepdims=True) / n
        slope = np.where(moves, 1.0 / cut, 0.0).sum(axis=2, keepdims=True) + coupling
        right = slope * levels - coupling * levels[::-1] + over
        levels = np.where(settled.all(axis=0), levels, _least(slope, coupling, right))
    return V - np.clip(V, -ends[1], ends[0]), levels


def _least(slope: Array, coupling: Array, right: Array) -> Array:
    """The least ``x >= 0`` with ``slope x - coupling x[::-1] >= right``: Newton's model."""
    alone = np.divide(np.maximum(right, 0.0), slope, out=np.zeros_like(right), where=slope > 0)
    zero = right + coupling * alone[::-1] <= 0  # levels that stay zero beside the other one
    determinant = np.where(np.any(zero, axis=0), 1.0, slope[0] * slope[1] - coupling**2)
    both = (slope[::-1] * right + coupling * right[::-1]) / determinant
    return np.where(zero, 0.0, np.where(zero[::-1], alone, both))
