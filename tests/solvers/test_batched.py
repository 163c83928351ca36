"""Outputs that descend together reach what each reaches alone, on good data and bad."""

from __future__ import annotations

import numpy as np
import pytest

from convexformer.problem import GatedDesign, Problem, Squared, TokenDesign, TokenOutput
from convexformer.solvers import batched, blocks, solve, solve_path, sweeps
from convexformer.solvers.batched import Batched
from convexformer.solvers.blocks import Axes, anderson, secular
from convexformer.solvers.solution import Clock
from convexformer.solvers.workspace import Workspace

N, TOKENS, DIM, OUTPUTS = 80, 6, 5, 7


def made(seed: int = 0, outputs: int = OUTPUTS, mean: float = 1.0):
    """Tokens that resemble their neighbours, and targets of two of them."""
    rng = np.random.default_rng(seed)
    X = np.cumsum(rng.normal(size=(N, TOKENS, DIM)), axis=1) + mean * rng.normal(size=(TOKENS, DIM))
    Y = X[:, 1] @ rng.normal(size=(DIM, outputs)) + X[:, 4] @ rng.normal(size=(DIM, outputs))
    return X, Y + rng.normal(size=Y.shape)


def problem_of(X, Y, weights=None, **more) -> Problem:
    return Problem(TokenDesign(X), Squared(), TokenOutput(weights), Y, **more)


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Small problems are quicker one by one; here they descend all the same."""
    monkeypatch.setattr(batched, "suits", lambda problem: problem.separable)
    monkeypatch.setattr(sweeps, "suit", lambda problem: False)


def alone(problem: Problem, beta: float, tol: float = 1e-9):
    return solve(problem, beta, tol=tol, method="newton")


def descend(problem: Problem, beta: float, tol: float = 1e-6, **limits):
    """By descent alone: coefficients, certificates of all outputs, and the clock."""
    clock = Clock(limits.pop("max_iter", 1000), **limits)
    Z, _, known = Batched(problem, beta, tol, clock, Workspace(problem)).minimise(None)
    return Z, known, clock


@pytest.mark.parametrize("fraction", [0.5, 0.1, 0.02])
@pytest.mark.parametrize("gram", [True, False])
def test_descent_alone_certifies_every_output(fraction, gram, monkeypatch):
    monkeypatch.setattr(blocks, "GRAM_BYTES", 1 << 29 if gram else 0)
    problem = problem_of(*made())
    beta = fraction * problem.beta_max
    Z, known, _ = descend(problem, beta)
    best = alone(problem, beta)
    for j, certificate in enumerate(known):
        assert certificate.relative_gap <= 1e-6
        own = problem.output(j)
        b = problem.outer_intercept(Z, problem.best_intercept(problem.scores(Z), np.zeros(OUTPUTS)))
        again = own.certificate(Z[:, :, [j]], b[[j]], beta)
        assert again.primal == pytest.approx(certificate.primal, rel=1e-10)
        wider = again.gap - certificate.gap  # by a bound on rounding
        assert -1e-12 * again.primal <= wider <= 1e-10 * again.primal
    assert sum(c.primal for c in known) <= best.certificate.primal * (1 + 1e-6)


@pytest.mark.parametrize(
    "spoil",
    [
        "duplicate token",
        "zero token",
        "constant target",
        "rank-deficient targets",
        "sample weights",
        "penalty weights",
        "mask",
        "float32",
        "strided",
        "small",
        "large",
        "tokens of all scales",
        "targets of all scales",
        "few samples",
        "far from zero",
    ],
)
@pytest.mark.parametrize("intercept", [True, False])
def test_bad_data_is_certified(spoil, intercept):
    X, Y = made(1)
    rng = np.random.default_rng(2)
    mask, weight, penalty = None, None, None
    if spoil == "duplicate token":
        X[:, 3] = X[:, 4]
    elif spoil == "zero token":
        X[:, 3] = 0.0
    elif spoil == "constant target":
        Y[:, 2] = 5.0
    elif spoil == "rank-deficient targets":
        Y = Y[:, :2] @ rng.normal(size=(2, OUTPUTS))
    elif spoil == "sample weights":
        weight = rng.random(N) * (rng.random(N) < 0.7)
    elif spoil == "penalty weights":
        penalty = np.geomspace(0.1, 10, TOKENS)
    elif spoil == "mask":
        mask = rng.random((N, TOKENS)) < 0.8
        X[~mask] = np.nan
    elif spoil == "float32":
        X = X.astype(np.float32)
    elif spoil == "strided":
        X = np.repeat(X, 2, axis=2)[:, ::-1, ::2]
    elif spoil in ("small", "large"):
        X, Y = (scale * 1e8 ** (1 if spoil == "large" else -1) for scale in (X, Y))
    elif spoil == "tokens of all scales":
        X *= np.geomspace(1e-4, 1e4, TOKENS)[:, None]
    elif spoil == "targets of all scales":
        Y *= np.geomspace(1e-4, 1e4, OUTPUTS)
    elif spoil == "few samples":
        X, Y = X[:4], Y[:4]
    elif spoil == "far from zero":
        X += 100.0
    problem = Problem(
        TokenDesign(X, mask), Squared(), TokenOutput(penalty), Y, weight, intercept=intercept
    )
    for fraction in (0.3, 0.03):
        solution = solve(problem, fraction * problem.beta_max)
        assert solution.converged
        assert np.all(np.isfinite(solution.Z))


def test_gates_descend_too():
    X, Y = made(3)
    gates = np.random.default_rng(4).random((N, 2)) < 0.5
    problem = Problem(GatedDesign(TokenDesign(X), gates), Squared(), TokenOutput(), Y)
    _, known, _ = descend(problem, 0.1 * problem.beta_max)
    assert max(c.relative_gap for c in known) <= 1e-6


def test_units_do_not_matter():
    X, Y = made(5)
    weights = np.geomspace(0.5, 2, TOKENS)
    problem, scaled = problem_of(X, Y, weights), problem_of(1024 * X, Y / 16, 4 * weights)
    one, _, _ = descend(problem, 0.1 * problem.beta_max)
    two, _, _ = descend(scaled, 0.1 * scaled.beta_max)
    np.testing.assert_allclose(two * 1024 * 16, one, rtol=1e-4, atol=1e-6 * np.abs(one).max())


@pytest.mark.parametrize("unit", [1e-30, 1e30])
def test_squares_beyond_float32_do_not_matter(unit):
    X, Y = made()
    X[:, 3] *= 1e-3  # a token of its own size
    problem = problem_of(unit * X, Y)
    _, known, _ = descend(problem, 0.1 * problem.beta_max)
    assert max(certificate.relative_gap for certificate in known) <= 1e-6


def test_batches_of_outputs_make_no_difference(monkeypatch):
    problem = problem_of(*made(6, outputs=40))
    beta = 0.1 * problem.beta_max
    whole, _, _ = descend(problem, beta, 1e-7)
    monkeypatch.setattr(batched, "BATCH", 1)
    parts, known, clock = descend(problem, beta, 1e-7)
    assert max(c.relative_gap for c in known) <= 1e-7
    np.testing.assert_allclose(parts, whole, atol=1e-3 * np.abs(whole).max())
    assert clock.n_iter >= 3  # 40 outputs by 16


def test_what_descent_cannot_finish_goes_to_newton_from_there(monkeypatch):
    X, Y = made(7, mean=200.0)
    problem = problem_of(X, Y, intercept=False)
    beta = 0.05 * problem.beta_max
    monkeypatch.setattr(batched, "VISIT", 1.0)  # descent is dear: all is left after a window
    _, known, _ = descend(problem, beta)
    left = [c for c in known if c.relative_gap > 1e-6]
    assert left  # else there is nothing to test
    solution = solve(problem, beta)
    assert solution.converged
    gaps = [point.relative_gap for point in solution.trace]
    assert np.all(np.diff(gaps) <= 1e-12)
    assert solution.n_iter > len(known) - len(left)


def test_a_gap_beyond_float32_is_reached():
    problem = problem_of(*made(8))
    solution = solve(problem, 0.05 * problem.beta_max, tol=1e-11)
    assert solution.certificate.relative_gap <= 1e-11


def test_a_path_is_warm_and_forms_its_axes_once(monkeypatch):
    problem = problem_of(*made(9))
    formed = []
    monkeypatch.setattr(batched, "Axes", lambda *a: formed.append(1) or Axes(*a))
    betas = problem.beta_max * np.array([1.0, 0.3, 0.1, 0.095])
    solutions = list(solve_path(problem, betas))
    assert all(s.converged for s in solutions)
    assert len(formed) == 1
    assert not np.any(solutions[0].Z)
    cold = solve(problem, betas[-1])
    assert solutions[-1].trace[0].relative_gap < 0.1 * cold.trace[0].relative_gap


def test_a_start_worse_than_nothing_is_dropped_output_by_output():
    problem = problem_of(*made(10))
    beta = 0.1 * problem.beta_max
    good = solve(problem, beta, tol=1e-8)
    good.Z[:, :, 0] *= -50.0
    again = solve(problem, beta, init=good)
    zero = solve(problem, beta, max_iter=0)
    assert again.converged
    assert again.trace[0].relative_gap < zero.trace[0].relative_gap


@pytest.mark.parametrize("limit", [{"max_iter": 1}, {"max_time": 0.0}, {"max_iter": 0}])
def test_limits_end_it_honestly(limit):
    problem = problem_of(*made(11, mean=200.0), intercept=False)
    beta = 0.01 * problem.beta_max
    seen = []
    solution = solve(problem, beta, tol=1e-9, callback=seen.append, **limit)
    assert not solution.converged
    assert solution.n_iter <= OUTPUTS
    assert seen
    assert seen == solution.trace
    assert seen[-1].relative_gap == pytest.approx(solution.certificate.relative_gap, rel=1e-6)


def test_time_may_end_in_the_midst_of_a_round():
    problem = problem_of(*made(12))
    ticks = iter([False] * (TOKENS + 4) + [True] * 10_000)
    clock = Clock(1000)
    clock.late = lambda: next(ticks)
    beta = 0.05 * problem.beta_max
    together = Batched(problem, beta, 1e-6, clock, Workspace(problem))
    _, _, known = together.minimise(None)
    first, last = clock.trace[0].relative_gap, clock.trace[-1].relative_gap
    assert 1e-6 < last < first
    assert sum(c.gap for c in known) == pytest.approx(last * sum(c.primal for c in known))


def test_axes_that_time_cut_short_are_not_kept():
    problem = problem_of(*made(13))
    work, clock = Workspace(problem), Clock(1000, max_time=0.0)
    Batched(problem, 0.1 * problem.beta_max, 1e-6, clock, work).minimise(None)
    assert work.axes is None


def test_secular_norms_solve_their_problem():
    rng = np.random.default_rng(14)
    values = np.sort(rng.random(6)).astype(np.float32)
    r = (rng.normal(size=(50, 6)) * np.geomspace(0.1, 30, 50)[:, None]).astype(np.float32)
    size = np.zeros(50, dtype=np.float32)
    for _ in range(5):  # as sweeps do, each from the last
        size = secular(r, values, size)
    z = r * (size / (1 + size * values[:, None])).T
    on = np.linalg.norm(r, axis=1) > 1
    assert np.any(on)
    assert np.any(~on)
    assert np.array_equal(size > 0, on)
    np.testing.assert_allclose(np.linalg.norm(z, axis=1), size, rtol=1e-4)


def test_anderson_finds_the_limit_of_a_linear_iteration():
    rng = np.random.default_rng(15)
    limit = rng.normal(size=(3, 2, 2))
    rates = rng.uniform(-0.9, 0.9, size=(3, 2, 2))
    trail = [limit + rates**i for i in range(6)]
    found = anderson([point.astype(np.float32) for point in trail])
    assert np.abs(found - limit).max() < 1e-2 * np.abs(trail[-1] - limit).max()


def test_only_squared_losses_of_enough_outputs_descend(monkeypatch):
    monkeypatch.undo()
    assert not batched.suits(problem_of(*made(outputs=2)))
    assert batched.suits(problem_of(*made(outputs=64)))
    monkeypatch.setattr(batched, "LARGEST", 0)
    assert not batched.suits(problem_of(*made(outputs=64)))
