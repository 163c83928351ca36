r"""Many outputs of a squared loss, each a problem of its own, by block descent on all at once.

Rounds of float32 descent (:mod:`~convexformer.solvers.blocks`) alternate with certificates in
float64, from which the next round starts. Outputs leave when they are certified, or when their gap
falls so slowly that Newton's method is the quicker: it takes over where descent ended.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ..problem import Certificate, Problem
from ..problem.stopping import until
from .blocks import FEW, Axes, Descent
from .machine import MEMORY_SPEED, SPEED
from .solution import Clock, Solution
from .workspace import Workspace

Array = NDArray[np.float64]
Outputs = NDArray[np.intp]

LARGEST = 1 << 30  # bytes of rotated tokens
BATCH = 10_000_000  # coefficients that descend at once: about 1 GB with their history
CYCLES = 8  # of sweeps in a round, at most
WINDOW = 40  # sweeps by which progress is judged
SWEEPS = 30  # that are expected
PASSES = 2  # over X, that it takes to evaluate what a round found
VISIT = 1.5e-4  # seconds of a visit to one token, its products aside
NEWTON = 10, 40  # factorisations, or kernels of samples, that Newton's method should take


def suits(problem: Problem) -> bool:
    """Whether outputs separate, share their curvature, and are enough to make descent pay."""
    n, d, c = problem.shape
    N = problem.design.n_samples
    if not (problem.separable and problem.loss.quadratic and 4 * N * n * d <= LARGEST):
        return False
    axes = n * (20 * d**3 + 4 * N * d * d) / SPEED
    sweeps = SWEEPS * max(1.0, n * d / (8 * N))  # the fewer samples, the more alike tokens look
    newton = float(_newton_seconds(problem, np.array(n * d / 2)))
    return axes + sweeps * _sweep_seconds(problem, c) <= c * newton


def _sweep_seconds(problem: Problem, n_outputs: int) -> float:
    n, d, _ = problem.shape
    p, N = n * d, problem.design.n_samples
    return n * VISIT + n_outputs * 2 * p * min(p, 2 * N) / SPEED


def _newton_seconds(problem: Problem, used: Array) -> Array:
    """For one output that uses so many coefficients."""
    n, d, _ = problem.shape
    N = problem.design.n_samples
    kernel = N**2 * (used if 2 * d < N else N)  # of few samples, every token's own is kept
    flops = np.where(used <= N, NEWTON[0] * used**3, NEWTON[1] * kernel)
    return np.asarray(5e-3 + 80 * N * n * d / MEMORY_SPEED + flops / SPEED)


@dataclass
class _At:
    """Some outputs at one point; the last axis of every array is theirs."""

    Z: Array  # (n, d, c)
    M: Array  # (n, d, c): correlations
    b: Array  # inner intercept
    primal: Array
    gap: Array
    square: Array  # of the residuals

    @classmethod
    def of(cls, problem: Problem, Z: Array, beta: float) -> _At:
        b, F, _ = problem.settle(Z, problem.scores(Z), problem.null_intercept)
        point = problem.dual_point(F)
        square = problem.ray(point)[1]
        penalty = beta * np.sum(problem.penalty.column(len(Z)) * problem.penalty.norms(Z), axis=0)
        inner = np.einsum("kdc,kdc->c", Z, point.M)
        # <y, v> = ||v||^2 + <z, m>: the gap without the difference of primal and dual
        ray = 1 + np.divide(inner, square, out=np.zeros_like(inner), where=square > 0)
        limit = beta / np.maximum(point.norms.max(axis=0, initial=0.0), 1e-9 * beta)
        scale = np.clip(ray, 0.0, limit)
        gap = 0.5 * (1 - scale) ** 2 * square + penalty - scale * inner
        return cls(Z, point.M, b, 0.5 * square + penalty, gap, square)

    def __getitem__(self, outputs: NDArray) -> _At:
        return _At(*(getattr(self, f.name)[..., outputs] for f in fields(self)))

    def __setitem__(self, outputs: NDArray, other: _At) -> None:
        for f in fields(self):
            getattr(self, f.name)[..., outputs] = getattr(other, f.name)


class Batched:
    """Descent on all outputs of `problem` at `beta`, to a relative gap of `tol` each."""

    def __init__(
        self, problem: Problem, beta: float, tol: float, clock: Clock, work: Workspace
    ) -> None:
        self.problem, self.beta, self.tol, self.clock, self.work = problem, beta, tol, clock, work
        self.rounds = 0  # the most that any output took

    def minimise(self, init: Solution | None) -> tuple[Array, Array, list[Certificate]]:
        """Coefficients, outer intercept, and the certificate of every output."""
        problem, beta = self.problem, self.beta
        self.at = self._start(init)
        self._record()
        if self.work.axes is None and not self._finished(self.at).all():
            axes = Axes(problem, self.clock.late)
            self.work.axes = axes if axes.complete else None
        if self.work.axes is not None:
            n, d, c = problem.shape
            step = max(FEW, BATCH // (n * d))
            for first in range(0, c, step):
                self._descend(np.arange(first, min(first + step, c)), self.work.axes)
        at = self.at
        known = [
            Certificate(float(primal), float(primal - gap), beta, problem.beta_max)
            for primal, gap in zip(at.primal, at.gap, strict=True)
        ]
        return at.Z, problem.outer_intercept(at.Z, at.b), known

    def _start(self, init: Solution | None) -> _At:
        """At `init`, or at zero for outputs for which that is better."""
        problem, beta = self.problem, self.beta
        everyone = np.arange(problem.n_outputs)  # makes copies: what is given is not ours to change
        start = self.clock.seconds
        zero = _At.of(problem, np.zeros(problem.shape), beta)[everyone]
        self.clock.keep_back(PASSES * (self.clock.seconds - start))
        if init is None:
            return zero
        at = _At.of(problem, init.Z, beta)[everyone]
        worse = ~(at.primal <= zero.primal)
        at[worse] = zero[worse]
        return at

    def _finished(self, at: _At) -> NDArray[np.bool_]:
        return np.asarray(at.gap <= self.tol * at.primal)

    def _record(self) -> None:
        gap, primal = float(self.at.gap.sum()), float(self.at.primal.sum())
        self.clock.record(gap / primal if primal > 0 else gap, self.at.Z)

    def _descend(self, outputs: Outputs, axes: Axes) -> None:
        """Rounds of descent on these `outputs`, until none is left that gains by them."""
        live = outputs[~self._finished(self.at[outputs])]
        mark, sweeps, rounds = self.at.gap.copy(), 0, 0
        while len(live) and rounds < self.clock.max_iter and not self.clock.late():
            at = self.at[live]
            Z, gone = self._round(at, axes)
            new = _At.of(self.problem.outputs(live), Z, self.beta)
            better = (new.primal < at.primal) | (new.gap < at.gap)
            self.at[live[better]] = new[better]
            rounds, sweeps = rounds + 1, sweeps + gone
            self.rounds = max(self.rounds, rounds)
            self.clock.n_iter += 1
            self._record()
            keep = better & ~self._finished(new)
            if sweeps >= WINDOW:
                keep &= ~self._slow(new, mark[live], sweeps, int(np.count_nonzero(keep)))
                mark, sweeps = self.at.gap.copy(), 0
            live = live[keep]

    def _round(self, at: _At, axes: Axes) -> tuple[Array, int]:
        """Coefficients after some sweeps, and how many they were."""
        unit = self.beta**2 / axes.scale
        descent = None
        with until(self.clock.late):
            descent = Descent(
                axes,
                axes.coefficients(at.Z, self.beta),
                axes.correlations(at.M, self.beta),
                at.square / unit,
            )
        if descent is None:
            return at.Z, 0
        target = 0.5 * self.tol * at.primal / unit
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # judged by the result
            sweeps = descent.run(target, CYCLES, self.clock.late)
        Z = at.Z + axes.back(descent.way.D, self.beta)
        return np.where(descent.sizes.T[:, None] > 0, Z, 0.0), sweeps

    def _slow(self, at: _At, before: Array, sweeps: int, n_live: int) -> NDArray[np.bool_]:
        """Outputs that Newton's method would finish sooner, by the progress since `before`."""
        used = self.problem.shape[1] * np.count_nonzero(np.any(at.Z, axis=1), axis=0)
        newton = _newton_seconds(self.problem, used.astype(float))
        sweep = _sweep_seconds(self.problem, n_live) / max(n_live, 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.log(before / at.gap) / sweeps
            ahead = np.log(at.gap / (self.tol * at.primal)) / rate
        return ~((rate > 0) & (ahead * sweep <= newton))
