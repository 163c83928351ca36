"""Matrix targets: the proximal step, and the solver against the oracle and against itself."""

import itertools

import cvxpy as cp
import numpy as np
import pytest
from tests.sequences import RawSequence, make, nasty

from convexformer.problem.moments import Moments
from convexformer.problem.positions import dual_norms, norms
from convexformer.problem.sequence import SequenceProblem
from convexformer.solvers import Status
from convexformer.solvers.matrix_targets import Anderson, Splitting, prox, solve_sequence

ATTENTION = ["stochastic", "substochastic"]


# The proximal step --------------------------------------------------------------------------------


def points(n, kind):
    rng = np.random.default_rng(n)
    V = rng.normal(size=(n, 3, n, 2))
    return {
        "centred": V,
        "positive": V + 3.0,
        "negative": V - 1.0,
        "ties": np.round(V),
        "constant rows": np.broadcast_to(V[:1], V.shape).copy(),
        "huge and tiny": V * np.geomspace(1e-8, 1e8, 3)[:, None, None],
    }[kind]


@pytest.mark.parametrize("t", [1e-6, 0.1, 1.0, 10.0])
@pytest.mark.parametrize(
    "kind", ["centred", "positive", "negative", "ties", "constant rows", "huge and tiny"]
)
@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("attention", ATTENTION)
def test_prox_satisfies_the_optimality_conditions(attention, n, kind, t):
    """``V - T`` lies in the dual ball of radius t and supports it at T."""
    V, stochastic = points(n, kind), attention == "stochastic"
    steps = t * np.array([0.5, 1.0, 2.0])
    T, (a, b) = prox(V, steps, stochastic)
    scale = np.abs(V).max(axis=(0, 2))  # (channel, output)
    eps = 1e-13 * n * n * (scale + t)
    U = V - T
    assert np.all(dual_norms(U, attention) <= steps[:, None] + eps)
    product = np.einsum("kjrl,kjrl->jl", U, T)
    assert np.all(np.abs(product - steps[:, None] * norms(T)) <= eps * (scale + t) * n)
    if stochastic:
        assert np.all(np.ptp(T.sum(axis=0), axis=1) <= eps)
    levels = np.stack([np.maximum(s * T, 0).sum(axis=0).max(axis=1) for s in (1, -1)])
    assert np.all(np.abs(levels - np.stack([a[:, 0], b[:, 0]])) <= eps)


@pytest.mark.parametrize("attention", ATTENTION)
def test_prox_agrees_with_cvxpy(attention):
    V, t = points(4, "centred") + 0.5, 1.5
    T, _ = prox(V, np.full(3, t), attention == "stochastic")
    for j, k in itertools.product(range(3), range(2)):
        parts = [cp.Variable((4, 4), nonneg=True) for _ in range(2)]
        levels = cp.Variable(2)
        sums = [cp.sum(part, axis=0) for part in parts]  # over sources
        constraints = [
            s == level if attention == "stochastic" else s <= level
            for s, level in zip(sums, levels, strict=True)
        ]
        distance = cp.sum_squares(parts[0] - parts[1] - V[:, j, :, k]) / 2
        problem = cp.Problem(cp.Minimize(distance + t * cp.sum(levels)), constraints)
        problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
        np.testing.assert_allclose(T[:, j, :, k], (parts[0] - parts[1]).value, atol=1e-5)


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("start", [0.0, 1e-3, 1.0, 50.0])
def test_prox_does_not_depend_on_where_it_starts(attention, start):
    V, steps = points(6, "positive"), np.array([0.1, 1.0, 30.0])
    cold, levels = prox(V, steps, attention == "stochastic")
    for a, b in ((start, start), (0.0, start), (start, 0.0)):
        begin = np.stack([np.full((3, 1, 2), a), np.full((3, 1, 2), b)])
        warm, found = prox(V, steps, attention == "stochastic", begin)
        np.testing.assert_allclose(warm, cold, atol=1e-12)
        np.testing.assert_allclose(found, levels, atol=1e-12)


def test_prox_is_exactly_zero_where_the_step_is_large():
    V = points(5, "centred")
    T, _ = prox(V, np.full(3, 1e3), True)
    assert np.all(T == 0)


# Against the oracle -------------------------------------------------------------------------------

LOSSES = ["squared", "huber", "logistic", "softmax", "poisson"]
SETTINGS = list(itertools.product(ATTENTION, [True, False], [True, False]))


@pytest.mark.parametrize("fraction", [0.5, 0.1, 0.01])
@pytest.mark.parametrize(("attention", "intercept", "masked"), SETTINGS)
@pytest.mark.parametrize("loss", LOSSES)
def test_optimum_is_that_of_cvxpy(loss, attention, intercept, masked, fraction):
    shape = (12, 4, 2, 3 if loss == "softmax" else 2)
    raw = make(attention, intercept, masked, weighted=True, shape=shape, loss=loss)
    problem = raw.problem()
    beta = fraction * problem.beta_max
    solution = solve_sequence(problem, beta, tol=1e-9)
    assert solution.converged
    primal = raw.objective(solution.Z, solution.intercept, beta)
    assert primal == pytest.approx(solution.certificate.primal, rel=1e-11)
    optimum = raw.oracle(beta)
    assert primal == pytest.approx(optimum, rel=1e-6)
    assert solution.certificate.dual <= optimum * (1 + 1e-9)


def test_programs_can_differ_by_more_than_ten_per_cent():
    """Only the first position has something to say: rows that read nothing are not stochastic."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 3, 2))
    Y = np.zeros((20, 3, 1))
    Y[:, 0, 0] = 2 * X[:, 1, 0]
    optima = {}
    for attention in ATTENTION:
        raw = RawSequence(X, Y, attention)
        solution = solve_sequence(raw.problem(), 1.0, tol=1e-9)
        optima[attention] = solution.certificate.primal
        assert optima[attention] == pytest.approx(raw.oracle(1.0), rel=1e-7)
    assert optima["substochastic"] < 0.9 * optima["stochastic"]
    # Judged by the program it does not belong to, the lower optimum is made feasible first.
    judged = RawSequence(X, Y).problem().certificate(solution.Z, solution.intercept, 1.0)
    assert judged.primal >= optima["stochastic"]


# Convergence --------------------------------------------------------------------------------------

KINDS = ["plain", "correlated", "scales", "duplicates", "mean", "one-hot", "few samples"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attention", ATTENTION)
def test_nasty_data_are_solved_to_tight_gaps(attention, kind):
    problem = SequenceProblem(*nasty(kind), attention)
    for fraction in (0.3, 0.01):
        solution = solve_sequence(problem, fraction * problem.beta_max, tol=1e-8, max_iter=5000)
        assert solution.converged
        assert -1e-12 <= solution.certificate.relative_gap <= 1e-8


def test_gap_of_1e_12_can_be_reached():
    problem = make().problem()
    solution = solve_sequence(problem, 0.1 * problem.beta_max, tol=1e-12)
    assert abs(solution.certificate.relative_gap) <= 1e-12


@pytest.mark.parametrize("shape", [(10, 1, 1, 1), (10, 1, 3, 2), (10, 5, 1, 1), (2, 3, 2, 1)])
@pytest.mark.parametrize("attention", ATTENTION)
def test_small_shapes(attention, shape):
    raw = make(attention, shape=shape)
    problem = raw.problem()
    beta = 0.1 * problem.beta_max
    solution = solve_sequence(problem, beta, tol=1e-9)
    assert solution.converged
    assert solution.certificate.primal == pytest.approx(raw.oracle(beta), rel=1e-7)


@pytest.mark.parametrize("attention", ATTENTION)
def test_outputs_are_problems_of_their_own(attention):
    raw = make(attention)
    beta = 0.1 * raw.problem().beta_max
    joint = solve_sequence(raw.problem(), beta, tol=1e-10)
    for k in range(2):
        alone = solve_sequence(RawSequence(raw.X, raw.Y[:, :, [k]], attention).problem(), beta)
        np.testing.assert_allclose(joint.Z[:, [k]], alone.Z, atol=1e-3)
        np.testing.assert_allclose(joint.intercept[[k]], alone.intercept, atol=1e-3)


def test_row_sums_of_the_solution_are_equal():
    problem = make(shape=(30, 6, 3, 2)).problem()
    Z = solve_sequence(problem, 0.1 * problem.beta_max).Z
    size = np.abs(Z).sum(axis=3).max(axis=2)
    assert np.all(np.ptp(Z.sum(axis=3), axis=2) <= 1e-15 * size)
    np.testing.assert_allclose(problem.feasible(Z), Z, rtol=1e-14)


@pytest.mark.parametrize("attention", ATTENTION)
def test_zero_from_beta_max_on_and_not_below(attention):
    problem = make(attention).problem()
    for factor in (1.0, 1.0001, 5.0):
        solution = solve_sequence(problem, factor * problem.beta_max)
        assert np.all(solution.Z == 0) and solution.converged
        assert len(solution.trace) == 1 and solution.trace[0].n_active == 0
    below = solve_sequence(problem, 0.999 * problem.beta_max, tol=1e-9)
    assert np.any(below.Z) and below.converged
    assert np.any(np.all(below.Z == 0, axis=(2, 3)))  # matrices vanish whole


def test_channels_of_zeros_and_no_channels_at_all():
    raw = make()
    raw.X[:, :, 0] = 0.0
    problem = raw.problem()
    solution = solve_sequence(problem, 0.1 * problem.beta_max)
    assert solution.converged and np.all(solution.Z[0] == 0)
    nothing = RawSequence(np.zeros_like(raw.X), raw.Y).problem()
    solution = solve_sequence(nothing, 0.0)
    assert nothing.beta_max == 0 and solution.certificate.relative_gap <= 1e-12
    np.testing.assert_allclose(solution.intercept, raw.Y.mean(axis=(0, 1)), rtol=1e-13)


# Work, limits, starts -----------------------------------------------------------------------------


def test_samples_are_read_a_fixed_number_of_times(monkeypatch):
    raw = make(shape=(200, 6, 3, 2))
    problem = raw.problem()
    beta = 0.01 * problem.beta_max
    calls = []
    for name in ("predict", "correlate", "gram"):
        method = getattr(problem.design, name)
        monkeypatch.setattr(
            problem.design, name, lambda *a, m=method, n=name: calls.append(n) or m(*a)
        )
    counts = []
    for tol in (1e-2, 1e-10):
        calls.clear()
        problem.__dict__.pop("moments", None)
        counts.append((solve_sequence(problem, beta, tol=tol).n_iter, len(calls)))
    assert counts[1][0] > counts[0][0]
    assert counts[1][1] == counts[0][1] <= 5


def test_limits_end_the_solve_with_the_true_gap():
    problem = SequenceProblem(*nasty("correlated"))
    beta = 0.01 * problem.beta_max
    points = []
    short = solve_sequence(problem, beta, tol=1e-12, max_iter=7, callback=points.append)
    assert not short.converged and short.n_iter == 7
    again = problem.certificate(short.Z, short.intercept, beta)
    assert again.relative_gap == short.certificate.relative_gap > 1e-6
    assert short.trace == points
    assert short.trace[-1].relative_gap == pytest.approx(short.certificate.relative_gap, rel=1e-6)
    assert [point.iteration for point in short.trace] == [0, 7]
    quick = solve_sequence(problem, beta, tol=1e-15, max_time=0.05)
    assert not quick.converged and quick.trace[-1].seconds < 1.0


def test_a_scale_that_cannot_be_factorised_ends_the_solve_with_the_best_iterate(monkeypatch):
    problem = SequenceProblem(*nasty("correlated"))

    def balance(*_):
        raise np.linalg.LinAlgError("The matrix is not positive definite.")

    monkeypatch.setattr(Splitting, "_balance", balance)
    solution = solve_sequence(problem, 0.01 * problem.beta_max, tol=1e-12)
    assert solution.status is Status.PRECISION and solution.trace[-1].n_active > 0


@pytest.mark.parametrize("loss", LOSSES)
def test_numbers_that_are_none_end_the_solve(loss, monkeypatch):
    """A bad model must not be iterated on for ever."""
    problem = make(shape=(12, 4, 2, 3), loss=loss).problem()
    beta = 0.1 * problem.beta_max
    bounds = (np.nan, np.nan)
    monkeypatch.setattr(Moments, "bounds", lambda *_: bounds)
    solution = solve_sequence(problem, beta, max_iter=10_000)
    assert solution.n_iter < 100 and np.isfinite(solution.Z).all()


@pytest.mark.parametrize("loss", ["softmax", "poisson"])
def test_newton_takes_few_steps(loss):
    problem = make(shape=(100, 6, 3, 3), loss=loss).problem()
    solution = solve_sequence(problem, 0.05 * problem.beta_max)
    assert solution.converged and len(solution.trace) <= 20


def test_warm_start_saves_iterations():
    problem = SequenceProblem(*nasty("correlated"))
    beta = 0.1 * problem.beta_max
    cold = solve_sequence(problem, beta, tol=1e-8)
    warm = solve_sequence(problem, 0.99 * beta, tol=1e-6, init=cold)
    again = solve_sequence(problem, 0.99 * beta, tol=1e-6)
    assert warm.converged and warm.n_iter < again.n_iter
    assert solve_sequence(problem, beta, tol=1e-6, init=cold).n_iter == 0


@pytest.mark.parametrize("loss", ["poisson", "softmax"])
def test_starts_that_overflow_are_left_for_zero(loss):
    problem = make(shape=(12, 4, 2, 3), loss=loss).problem()
    beta = 0.1 * problem.beta_max
    far = solve_sequence(problem, beta)
    far.Z *= 1e5
    again = solve_sequence(problem, beta, init=far)
    assert again.converged


@pytest.mark.parametrize("beta", [0.0, -1.0, np.nan, np.inf])
def test_beta_must_be_positive(beta):
    with pytest.raises(ValueError, match="beta must be a positive number"):
        solve_sequence(make().problem(), beta)


def test_starts_of_other_shapes_are_refused():
    solution = solve_sequence(make().problem(), 1.0)
    with pytest.raises(ValueError, match="init has shape"):
        solve_sequence(make(shape=(12, 5, 2, 2)).problem(), 1.0, init=solution)


# Acceleration -------------------------------------------------------------------------------------


def test_anderson_solves_linear_iterations_in_as_many_steps_as_unknowns():
    rng = np.random.default_rng(0)
    A, right = 0.9 * np.linalg.qr(rng.normal(size=(4, 4)))[0], rng.normal(size=4)
    accelerate, S = Anderson(), np.zeros(4)
    for _ in range(8):
        S = accelerate(S, A @ S + right - S)
    np.testing.assert_allclose(S, np.linalg.solve(np.eye(4) - A, right), atol=1e-6)


def test_anderson_takes_back_a_bad_extrapolation():
    accelerate = Anderson()
    assert accelerate(np.zeros(1), np.ones(1)) == [1.0]
    # a contraction by 0.9 has its fixed point at 10
    np.testing.assert_allclose(accelerate(np.ones(1), np.array([0.9])), [10.0], rtol=1e-6)
    S = accelerate(np.array([10.0]), np.array([50.0]))
    np.testing.assert_allclose(S, [1.9], rtol=1e-6)  # the plain step from 1.0
    np.testing.assert_allclose(accelerate(S, np.array([0.81])), [2.71])  # and on from there
