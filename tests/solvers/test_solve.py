"""The entry point: strategies, warm starts, limits, traces, and what must not change a solution."""

import itertools
import time
import warnings

import numpy as np
import pytest
from tests.generated import FRACTIONS, small
from tests.raw import LOSSES, Raw

from convexformer.problem import (
    GatedDesign,
    Logistic,
    Nuclear,
    Problem,
    Squared,
    TokenDesign,
    TokenOutput,
)
from convexformer.solvers import (
    Solution,
    Status,
    TracePoint,
    choose,
    newton,
    path_betas,
    solve,
    solve_path,
)

NAMES = list(LOSSES)
CHOICES = [None, "newton", "accelerated-gradient", "newton-cg"]


def hard(intercept=True):
    """Correlated tokens: a problem that takes every method more than one iteration."""
    raw = small("logistic", intercept=intercept, c=1, seed=5)
    raw.X = 0.2 * raw.X + np.random.default_rng(0).normal(size=(30, 1, 3))
    return raw.problem()


# Strategies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", ["token-output", "token"])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_strategies_agree(name, intercept, penalty):
    raw = small(name, penalty, intercept, masked=True, c=3, seed=6, weighted=True)
    problem = raw.problem()
    for fraction in FRACTIONS[:2]:
        beta = fraction * problem.beta_max
        able = [s for s in CHOICES if s is None or choose.suits(s, problem)]
        found = [solve(problem, beta, strategy=s, max_iter=50_000) for s in able]
        assert all(solution.converged for solution in found)
        for one, other in itertools.combinations(found, 2):
            assert one.certificate.primal == pytest.approx(other.certificate.primal, rel=1e-6)
            # each dual bounds the other's primal
            assert one.certificate.dual <= other.certificate.primal * (1 + 1e-12)
            F, G = (problem.predict(s.Z, s.intercept) for s in (one, other))
            np.testing.assert_allclose(F[raw.weight > 0], G[raw.weight > 0], rtol=0.01, atol=0.01)


@pytest.mark.parametrize("strategy", CHOICES[1:])
def test_a_named_strategy_is_used_and_converges_by_itself(strategy):
    problem = hard()
    solution = solve(problem, 0.1 * problem.beta_max, strategy=strategy, max_iter=50_000)
    assert solution.converged and solution.n_iter > 1 and solution.strategy == strategy


def test_a_solution_tells_what_was_chosen():
    problem = hard()
    beta = 0.1 * problem.beta_max
    assert solve(problem, beta).strategy == choose.choose(problem, beta)
    assert solve(problem, 2 * problem.beta_max).strategy == ""  # nothing was done


def test_newton_needs_few_iterations():
    problem = hard()
    beta = 0.01 * problem.beta_max
    newton = solve(problem, beta, strategy="newton")
    gradient = solve(problem, beta, strategy="accelerated-gradient", max_iter=50_000)
    assert newton.converged and newton.n_iter < 100 < gradient.n_iter


def test_a_step_that_fails_is_tried_again_more_exactly(monkeypatch):
    asked, search, model = [], newton._search, newton.SecondOrderModel

    def recorded(self, target, floor):
        asked.append((target, floor))
        return minimiser(self, target, floor)

    minimiser = model.minimiser
    monkeypatch.setattr(model, "minimiser", recorded)
    monkeypatch.setattr(
        newton, "_search", lambda *args: (None, 0.0) if len(asked) < 3 else search(*args)
    )
    problem = hard()
    assert solve(problem, 0.1 * problem.beta_max, strategy="newton").converged
    for first, second in itertools.pairwise(asked[:3]):
        np.testing.assert_allclose(second, np.multiply(first, 0.01))


def test_strategies_that_are_unknown_or_unable_are_refused():
    problem = hard()
    beta = 0.1 * problem.beta_max
    with pytest.raises(ValueError, match=r"strategy must be one of block-descent, .*'descent'"):
        solve(problem, beta, strategy="descent")
    with pytest.raises(ValueError, match=r"'block-descent' cannot minimise a Logistic.* newton"):
        solve(problem, beta, strategy="block-descent")
    nuclear = small("squared", "nuclear", c=2).problem()
    with pytest.raises(ValueError, match=r"'nuclear'\. Choose from accelerated-gradient, or"):
        solve(nuclear, 0.1 * nuclear.beta_max, strategy="newton")


# What a solution says about itself ----------------------------------------------------------------


@pytest.mark.parametrize("strategy", CHOICES)
def test_certificate_is_of_the_returned_coefficients(strategy):
    problem = hard()
    solution = solve(problem, 0.1 * problem.beta_max, strategy=strategy)
    again = problem.certificate(solution.Z, solution.intercept, 0.1 * problem.beta_max)
    assert solution.certificate == again
    assert solution.Z.shape == problem.shape and solution.intercept.shape == (1,)


@pytest.mark.parametrize("strategy", CHOICES)
@pytest.mark.parametrize("limits", [{"max_iter": 1}, {"max_iter": 2}, {"max_time": 0.0}])
def test_an_unfinished_solution_says_so(strategy, limits):
    strategy = strategy or "newton"  # a compiled round has many steps
    problem = hard()
    beta = 0.01 * problem.beta_max
    solution = solve(problem, beta, tol=1e-10, strategy=strategy, **limits)
    assert not solution.converged
    assert solution.certificate.relative_gap > 1e-10
    tol = np.inf if "max_time" in limits else 1e-10  # without time left the quick bounds will do
    assert solution.certificate == problem.certificate(solution.Z, solution.intercept, beta, tol)
    assert solution.n_iter <= limits.get("max_iter", 1)
    assert solution.trace


@pytest.mark.parametrize("strategy", CHOICES)
def test_a_tolerance_beyond_rounding_ends_and_is_not_claimed(strategy):
    problem = hard()
    beta = 0.1 * problem.beta_max
    solution = solve(problem, beta, tol=0.0, strategy=strategy, max_iter=3000)
    assert solution.converged == (solution.certificate.relative_gap <= 0)
    # objectives can be told apart to 1e-16, so first-order steps end where the gap is its root
    limit = 1e-6 if strategy == "accelerated-gradient" else 1e-10
    assert -1e-12 <= solution.certificate.relative_gap <= limit


@pytest.mark.parametrize("strategy", CHOICES)
def test_max_time_is_kept(strategy):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 60, 20)) + 3 * rng.normal(size=(400, 1, 20))
    Y = np.where(rng.random((400, 1)) < 0.5, 1.0, -1.0)
    problem = Raw(X, Y, "logistic").problem()
    beta = 0.001 * problem.beta_max
    start = time.perf_counter()
    solution = solve(problem, beta, tol=1e-14, max_time=0.3, strategy=strategy, max_iter=10**9)
    assert time.perf_counter() - start < 3.0
    assert solution.certificate.relative_gap >= -1e-12
    assert solution.converged == (solution.certificate.relative_gap <= 1e-14)


@pytest.mark.parametrize("strategy", CHOICES)
def test_trace_is_certified_and_in_order(strategy):
    problem = hard()
    seen: list[TracePoint] = []
    beta = 0.05 * problem.beta_max
    start = time.perf_counter()
    solution = solve(problem, beta, strategy=strategy, callback=seen.append, max_iter=50_000)
    elapsed = time.perf_counter() - start
    assert seen == solution.trace and len(seen) > 1
    seconds = [point.seconds for point in seen]
    iterations = [point.iteration for point in seen]
    assert seconds == sorted(seconds) and seconds[0] >= 0 and seconds[-1] <= elapsed
    assert iterations == sorted(iterations) and iterations[-1] <= solution.n_iter
    assert all(point.relative_gap >= -1e-12 for point in seen)
    assert all(0 <= point.n_active <= 5 for point in seen)
    final = solution.certificate.relative_gap
    assert seen[-1].relative_gap == pytest.approx(final, rel=0.2, abs=1e-12)
    assert seen[-1].relative_gap <= 1e-6
    assert seen[-1].n_active == np.count_nonzero(np.any(solution.Z, axis=(1, 2)))


def test_a_null_solution_has_a_trace_too():
    problem = hard()
    solution = solve(problem, 2 * problem.beta_max)
    assert [point.n_active for point in solution.trace] == [0]
    assert solution.n_iter == 0 and solution.converged


def test_an_error_in_the_callback_is_not_swallowed():
    problem = hard()

    def stop(point):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solve(problem, 0.1 * problem.beta_max, callback=stop)


# Warm starts and paths ----------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", CHOICES)
def test_warm_start_saves_work(strategy):
    problem = hard()
    beta = 0.05 * problem.beta_max
    cold = solve(problem, beta, strategy=strategy, max_iter=50_000)
    before = cold.Z.copy()
    warm = solve(problem, beta, strategy=strategy, init=cold)
    assert warm.converged and warm.n_iter <= max(1, cold.n_iter // 2)
    np.testing.assert_array_equal(cold.Z, before)
    assert warm.certificate.primal == pytest.approx(cold.certificate.primal, rel=2e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_bad_start_does_no_harm(name):
    problem = small(name, c=2, seed=7).problem()
    beta = 0.1 * problem.beta_max
    rng = np.random.default_rng(0)
    cold = solve(problem, beta)
    for scale in (1e-9, 1.0, 30.0):
        Z, b = scale * rng.normal(size=problem.shape), scale * rng.normal(size=problem.n_outputs)
        init = Solution(Z, b, problem.certificate(Z, b, beta), Status.ITERATIONS)
        warm = solve(problem, beta, init=init)
        assert warm.converged
        assert warm.certificate.primal == pytest.approx(cold.certificate.primal, rel=2e-6)


def test_a_start_of_another_shape_is_refused():
    problem, other = hard(), small("squared", c=2).problem()
    init = solve(other, 0.5 * other.beta_max)
    with pytest.raises(ValueError, match="init has shape \\(5, 3, 2\\), the problem \\(5, 3, 1\\)"):
        solve(problem, 0.1 * problem.beta_max, init=init)


@pytest.mark.parametrize("penalty", ["token-output", "token"])
def test_a_start_with_other_outputs_is_refused(penalty):
    problem, other = small("squared", penalty, c=2).problem(), small("squared", c=3).problem()
    init = solve(other, 0.5 * other.beta_max)
    with pytest.raises(ValueError, match="init has shape \\(5, 3, 3\\), the problem \\(5, 3, 2\\)"):
        solve(problem, 0.1 * problem.beta_max, init=init)


def test_path_betas_are_geometric():
    problem = hard()
    betas = path_betas(problem, 7, 0.01)
    assert betas[0] == problem.beta_max and betas[-1] == pytest.approx(0.01 * problem.beta_max)
    np.testing.assert_allclose(betas[1:] / betas[:-1], 0.01 ** (1 / 6))
    assert len(path_betas(problem)) == 40  # as attention_path and cross-validation


@pytest.mark.parametrize("name", NAMES)
def test_path_is_certified_everywhere_and_equals_cold_solves(name):
    problem = small(name, "token", c=2, seed=8).problem()
    betas = path_betas(problem, 10, 0.02)
    seen: list[TracePoint] = []
    path = list(solve_path(problem, betas, tol=1e-8, callback=seen.append))
    assert not np.any(path[0].Z) and np.any(path[1].Z)
    assert sum(len(solution.trace) for solution in path) == len(seen)
    for beta, solution in zip(betas, path, strict=True):
        assert solution.converged and solution.certificate.beta == beta
        assert -1e-12 <= solution.certificate.relative_gap <= 1e-8
        cold = solve(problem, beta, tol=1e-8)
        assert solution.certificate.primal == pytest.approx(cold.certificate.primal, rel=2e-8)


def test_objective_grows_and_penalty_falls_with_beta():
    problem = hard()
    path = list(solve_path(problem, path_betas(problem, 12, 0.01), tol=1e-9))
    primal = np.array([solution.certificate.primal for solution in path])
    penalty = np.array([problem.penalty.value(solution.Z) for solution in path])
    assert np.all(np.diff(primal) < 0) and np.all(np.diff(penalty) > 0)


def test_path_is_lazy_and_shares_its_time():
    problem = hard()
    path = solve_path(problem, path_betas(problem, 5, 0.01), max_time=0.0)
    assert next(path).converged  # the null model needs no time
    assert not any(solution.converged for solution in path)


def test_path_may_start_from_a_solution():
    problem = hard()
    init = solve(problem, 0.1 * problem.beta_max)
    (solution,) = solve_path(problem, [0.1 * problem.beta_max], init=init)
    assert solution.converged and solution.n_iter <= 1


# Invariances --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("name", NAMES)
def test_scaling_x_changes_no_prediction(name, scale):
    raw = small(name, "token", c=2, seed=9)
    scaled = Raw(scale * raw.X, raw.Y, name, "token")
    for fraction in FRACTIONS:
        one, other = (
            solve(p, fraction * p.beta_max, tol=1e-10) for p in (raw.problem(), scaled.problem())
        )
        assert one.certificate.primal == pytest.approx(other.certificate.primal, rel=1e-9)
        F, G = raw.scores(one.Z, one.intercept), scaled.scores(other.Z, other.intercept)
        np.testing.assert_allclose(F, G, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_scaling_all_sample_weights_is_scaling_beta(name):
    raw = small(name, c=2, seed=10)
    heavy = Raw(raw.X, raw.Y, name, sample_weight=np.full(30, 1e5))
    problem, other = raw.problem(), heavy.problem()
    assert other.beta_max == pytest.approx(1e5 * problem.beta_max, rel=1e-9)
    one = solve(problem, 0.1 * problem.beta_max, tol=1e-9)
    two = solve(other, 0.1 * other.beta_max, tol=1e-9)
    assert two.certificate.primal == pytest.approx(1e5 * one.certificate.primal, rel=1e-8)


@pytest.mark.parametrize("name", ["squared", "huber", "logistic", "poisson"])
def test_outputs_separate_under_token_output(name):
    raw = small(name, c=3, seed=11)
    problem = raw.problem()
    beta = 0.1 * problem.beta_max
    joint = solve(problem, beta, tol=1e-9).certificate.primal
    alone = [Raw(raw.X, raw.Y[:, [j]], name).problem() for j in range(3)]
    total = sum(solve(p, beta, tol=1e-9).certificate.primal for p in alone)
    assert joint == pytest.approx(total, rel=1e-8)


@pytest.mark.parametrize("name", ["squared", "logistic"])
def test_the_order_of_tokens_does_not_matter(name):
    raw = small(name, c=1, seed=12)
    order = np.array([3, 1, 4, 0, 2])
    problem, other = raw.problem(), Raw(raw.X[:, order], raw.Y, name).problem()
    one = solve(problem, 0.1 * problem.beta_max, tol=1e-10)
    two = solve(other, 0.1 * problem.beta_max, tol=1e-10)
    np.testing.assert_allclose(one.Z[order], two.Z, atol=1e-4)


def test_a_weight_per_token_is_a_scale_of_the_token():
    raw = small("squared", c=1, seed=13)
    w = np.array([0.5, 1.0, 2.0, 4.0, 1.0])
    weighted = Raw(raw.X, raw.Y, "squared", penalty_weights=w).problem()
    scaled = Raw(raw.X / w[:, None], raw.Y, "squared").problem()
    assert weighted.beta_max == pytest.approx(scaled.beta_max, rel=1e-12)
    one, two = (solve(p, 0.1 * p.beta_max, tol=1e-10) for p in (weighted, scaled))
    assert one.certificate.primal == pytest.approx(two.certificate.primal, rel=1e-9)
    np.testing.assert_allclose(one.Z * w[:, None, None], two.Z, atol=1e-4)


def test_x_is_left_alone():
    raw = small("logistic", masked=True, c=2, seed=14)
    raw.X.flags.writeable = raw.mask.flags.writeable = raw.Y.flags.writeable = False
    problem = raw.problem()
    assert solve(problem, 0.1 * problem.beta_max).converged


def test_the_same_call_gives_the_same_answer():
    problem = hard()
    one, two = (solve(problem, 0.05 * problem.beta_max) for _ in range(2))
    np.testing.assert_array_equal(one.Z, two.Z)
    assert one.certificate == two.certificate


# Degenerate calls ---------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [-1.0, 0.0, np.nan, np.inf])
def test_a_beta_without_meaning_is_refused(beta):
    with pytest.raises(ValueError, match="beta must be a positive number, got"):
        solve(hard(), beta)


@pytest.mark.parametrize("name", ["squared", "huber", "poisson"])
@pytest.mark.parametrize("beta", [0.0, 1e-3, 1.0])
def test_constant_targets_need_no_tokens(name, beta):
    raw = small(name)
    problem = Raw(raw.X, np.full((30, 1), 3.0), name).problem()
    assert problem.beta_max == 0
    solution = solve(problem, beta)
    assert not np.any(solution.Z) and solution.converged
    assert solution.certificate.relative_gap == 0


def test_tokens_of_zeros_need_no_coefficients():
    problem = Raw(np.zeros((10, 3, 2)), np.arange(10.0)[:, None], "squared").problem()
    assert problem.beta_max == 0
    solution = solve(problem, 0.0)
    assert not np.any(solution.Z) and solution.converged
    assert solution.intercept == pytest.approx(4.5)


@pytest.mark.parametrize("strategy", CHOICES)
@pytest.mark.parametrize(("name", "c"), [("logistic", 1), ("softmax", 2), ("softmax", 3)])
def test_an_intercept_of_a_warm_start_is_none_of_a_problem_without(name, c, strategy):
    raw = small(name, c=c, seed=3)
    other = solve(raw.problem(), 0.1 * raw.problem().beta_max)
    assert np.abs(other.intercept).max() > 0.01
    raw.intercept = False
    problem = raw.problem()
    beta = 0.1 * problem.beta_max
    warm, cold = (solve(problem, beta, init=init, strategy=strategy) for init in (other, None))
    assert warm.converged and not np.any(warm.intercept)
    assert warm.certificate.primal == pytest.approx(cold.certificate.primal, rel=2e-6)


# Numbers at the edge ------------------------------------------------------------------------------


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_correlations_that_are_rounding_count_as_none(name, gated):
    raw = small(name, c=1 if name != "softmax" else 3, seed=3)
    raw.X = np.full_like(raw.X, 0.1)  # with an intercept, constant tokens say nothing
    problem = raw.problem()
    if gated:
        design = GatedDesign(problem.design, np.ones((len(raw.X), 2), dtype=bool))
        problem = Problem(design, problem.loss, problem.penalty, raw.Y)
    assert problem.beta_max == 0
    found = solve(problem, 0.0)
    assert not np.any(found.Z) and abs(found.certificate.relative_gap) <= 1e-12


@pytest.mark.parametrize("seed", [16, 25, 34])
def test_weights_of_very_different_size_do_not_stall_newton(seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(100, 50, 3))
    y = X.reshape(100, -1) @ rng.normal(size=(150, 1))
    penalty = TokenOutput(10.0 ** rng.uniform(-1.5, 1.5, size=50))
    problem = Problem(TokenDesign(X), Squared(), penalty, y)
    found = solve(problem, 5e-4 * problem.beta_max, strategy="newton", max_iter=60)
    assert found.converged


@pytest.mark.parametrize("mean", [100.0, 1e3])
def test_proximal_steps_survive_large_means(mean):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(110, 20, 7)) + mean * rng.normal(size=(1, 20, 7))
    Y = 0.1 * X.reshape(110, -1) @ rng.normal(size=(140, 4)) + rng.normal(size=(110, 4))
    problem = Problem(TokenDesign(X), Squared(), Nuclear(), Y)
    assert solve(problem, 0.02 * problem.beta_max).converged


@pytest.mark.parametrize("scale", [1e-25, 1e20])
@pytest.mark.parametrize("width", [8, 60])  # factorised, and by conjugate gradients
def test_sizes_whose_squares_leave_float32_do_no_harm(scale, width):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, width, 16))
    y = np.sign(X[:, 0, :1] + X[:, 1, :1] + 0.5 * rng.normal(size=(900, 1)))
    problem = Problem(TokenDesign(scale * X), Logistic(), TokenOutput(), y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert solve(problem, 0.05 * problem.beta_max).converged


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_numbers_whose_squares_leave_float64_are_refused(scale):
    raw = small("squared", c=1, seed=3)
    raw.X = raw.X * scale
    with pytest.raises(ValueError, match="Scale X or y"):
        _ = raw.problem().beta_max
