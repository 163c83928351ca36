"""Rounds on a working set: quick where tokens are nearly independent, and given up where not."""

import numpy as np
import pytest
from tests.strategies import forbid, never, only, task_of, without_gram

from convexformer.problem import (
    PENALTIES,
    GatedDesign,
    Logistic,
    Problem,
    Softmax,
    Squared,
    TokenDesign,
)
from convexformer.solvers import (
    block_descent,
    choose,
    proximal_gradient,
    solve,
    solve_path,
    working_set,
    workspace,
)
from convexformer.solvers.block_descent import BlockDescent
from convexformer.solvers.proximal_gradient import BarzilaiBorwein
from convexformer.solvers.workspace import Workspace, low_precision


def made(N=600, n=30, d=6, c=1, loss=None, penalty="token-output", common=0.0, seed=0, **more):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, n, d)) + common * rng.normal(size=(N, 1, d))
    F = np.einsum("nkd,kdc->nc", X[:, :4], rng.normal(size=(4, d, c)))
    F = F / F.std() + 0.5 * rng.normal(size=F.shape)
    loss = loss or Squared()
    Y = F if loss.quadratic else np.where(F > 0, 1.0, -1.0)
    if loss.joint:
        Y = np.eye(c)[F.argmax(axis=1)]
    return Problem(TokenDesign(X), loss, PENALTIES[penalty](), Y, **more)


def first_order(loss):
    """The first-order strategy of a loss."""
    return "block-descent" if loss.quadratic else "gradient"


def first(forecasts, name):
    """Forecasts by which `name` is the quickest, whatever the machine."""

    def changed(*args):
        found = [one for one in forecasts(*args) if one.strategy != name]
        return [choose.Forecast(name, 0.0), *found]

    return changed


@pytest.fixture
def in_samples(monkeypatch):
    """Block descent reads tokens, however small the problem."""
    without_gram(monkeypatch)


def test_a_gram_matrix_that_costs_little_comes_first(monkeypatch):
    problem = made(N=40_000, n=8, d=16)
    monkeypatch.setattr(block_descent.Tokens, "of", never)
    forbid(monkeypatch, "newton")
    found = solve(problem, 0.1 * problem.beta_max, strategy="block-descent")
    assert found.converged and found.strategy == "block-descent"


@pytest.mark.usefixtures("in_samples")
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(
    ("loss", "c", "penalty"),
    [
        (Squared(), 1, "token-output"),
        (Logistic(), 1, "token-output"),
        (Squared(), 3, "token"),
        (Softmax(), 3, "token"),
        (Softmax(), 3, "token-output"),
    ],
)
def test_independent_tokens_need_no_newton_step(monkeypatch, loss, c, penalty, intercept):
    problem = made(c=c, loss=loss, penalty=penalty, intercept=intercept)
    beta = 0.1 * problem.beta_max
    expected = solve(problem, beta, tol=1e-10, strategy="newton").certificate
    only(monkeypatch, first_order(loss))
    tol = 1e-6 if loss.joint else 1e-8  # float32 leaves a softmax less
    found = solve(problem, beta, tol=tol, strategy=first_order(loss))
    assert found.converged and found.strategy == first_order(loss)
    assert found.certificate.primal == pytest.approx(
        expected.primal, rel=found.certificate.relative_gap + 1e-9
    )


@pytest.mark.usefixtures("in_samples")
def test_alike_tokens_are_left_to_newton_after_a_few_steps(monkeypatch):
    problem, steps = made(common=30.0, loss=Logistic(), intercept=False), []
    plain = BarzilaiBorwein._step
    monkeypatch.setattr(
        BarzilaiBorwein, "_step", lambda self, *a: steps.append(1) or plain(self, *a)
    )
    found = solve(problem, 0.01 * problem.beta_max, strategy="gradient")
    assert found.converged and found.strategy.startswith("gradient + ")
    assert 0 < len(steps) <= 2 * choose.TUNING.gradient_trial_steps


@pytest.mark.usefixtures("in_samples")
@pytest.mark.parametrize("loss", [Squared(), Logistic()])
def test_a_path_that_slows_down_does_not_try_again(monkeypatch, loss):
    problem, slow = made(common=30.0, loss=loss, intercept=False), []
    way = BlockDescent if loss.quadratic else BarzilaiBorwein
    plain = way.run
    monkeypatch.setattr(
        way, "run", lambda self, *a: slow.append(not plain(self, *a)) or not slow[-1]
    )
    betas = problem.beta_max * np.geomspace(0.5, 0.01, 6)
    monkeypatch.setattr(choose, "forecasts", first(choose.forecasts, first_order(loss)))
    path = list(solve_path(problem, betas))
    assert all(s.converged for s in path)
    assert slow[-1] and sum(slow) == 1
    tried = [first_order(loss) in s.strategy for s in path]  # until that was slow
    assert tried == sorted(tried, reverse=True) and tried[0] and not tried[-1]


def test_a_start_that_is_solved_stays(monkeypatch):
    problem = made()
    beta = 0.2 * problem.beta_max
    first = solve(problem, beta, tol=1e-9)
    again = solve(problem, beta, init=first)
    assert again.n_iter <= 1
    assert again.certificate.relative_gap <= 1e-6


def test_steps_keep_to_the_clock():
    problem = made(N=300, n=60, d=10, common=0.5)
    task = task_of(problem, 1e-3 * problem.beta_max, 1e-12, max_iter=10**6, max_time=0.0)
    for strategy in (block_descent, proximal_gradient):
        found, done = strategy.minimise(task, problem.null)
        assert found is problem.null and done


def test_columns_are_gathered_anew_only_where_they_must_be(monkeypatch):
    rng = np.random.default_rng(0)
    design = TokenDesign(rng.normal(size=(30, 8, 2)) + 5)
    problem = Problem(design, Squared(), PENALTIES["token"](), rng.normal(size=(30, 1)))
    columns = Workspace(problem).columns
    some = columns.of(np.array([1, 4, 6]))
    expected = (design.X - problem.center)[:, [1, 4, 6]].reshape(30, -1)
    np.testing.assert_allclose(some.unit * some.A, expected, rtol=1e-6, atol=1e-6)
    assert columns.of(np.array([1, 6])) is some
    assert list(columns.of(np.array([0, 1, 4, 6])).groups) == list(range(8))  # half: all


def test_columns_of_a_gated_design():
    rng = np.random.default_rng(0)
    X, gates = rng.normal(size=(30, 4, 2)), rng.random((30, 3)) < 0.5
    design = GatedDesign(TokenDesign(X), gates)
    groups = np.array([0, 5, 11])
    X = low_precision(design, groups, None)
    np.testing.assert_allclose(X.unit * X.A, design.gather(slice(0, 30), groups), rtol=1e-6)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_in_low_precision_are_not_drowned_by_means(dtype, centred):
    rng = np.random.default_rng(0)
    design = TokenDesign(
        (rng.normal(size=(50, 6, 3)) + 100 * rng.normal(size=(6, 3))).astype(dtype)
    )
    center = design.means(np.ones(50)) if centred else None
    columns = Workspace(Problem(design, Squared(), PENALTIES["token"](), np.ones((50, 1))))
    X = columns.columns.of(np.arange(6)) if dtype == np.float32 else None
    X = X or low_precision(design, np.arange(6), center)
    A = design.gather(slice(0, 50), np.arange(6))
    if centred or dtype == np.float32:
        A = A - A.mean(axis=0)
    G, V = rng.normal(size=(6, 3)), rng.normal(size=(50, 2))
    tolerance = 1e-6 if dtype == np.float64 else 1e-4
    alone = np.einsum("ikd,kd->ik", A.reshape(50, 6, 3), G)
    scale = np.abs(alone).max()
    np.testing.assert_allclose(X.contributions(G), alone, atol=tolerance * scale)
    np.testing.assert_allclose(
        X.predict(G[:, :, None])[:, 0], alone.sum(axis=1), atol=tolerance * scale
    )
    M = (A.T @ V).reshape(6, 3, 2)
    np.testing.assert_allclose(X.correlate(V), M, atol=tolerance * np.abs(M).max())


def test_columns_in_float32_multiply_as_those_they_are_made_of():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(9, 7, 3)) + 2.0
    low = workspace.low_precision(TokenDesign(X), np.arange(7), None)
    Z, V = rng.normal(size=(7, 3, 2)), rng.normal(size=(9, 2))
    np.testing.assert_allclose(low.predict(Z), np.einsum("ikd,kdc->ic", X, Z), atol=1e-4)
    np.testing.assert_allclose(low.correlate(V), np.einsum("ikd,ic->kdc", X, V), atol=1e-4)


@pytest.mark.parametrize(
    ("n_before", "n_after", "expected"), [(3, 2, True), (2, 3, False), (0, 3, False), (3, 0, False)]
)
def test_newton_goes_on_where_steps_have_let_tokens_go(n_before, n_after, expected):
    """It would else begin with all that was wanted there, at many times the cost."""
    problem = made(N=600, n=30, d=6)
    Z, beta = np.zeros(problem.shape), 0.1 * problem.beta_max
    Z[:n_before] = 1.0
    at, task = problem.at(Z), task_of(problem, beta)
    made_round = BarzilaiBorwein(task, at, np.arange(30))
    made_round.best = np.zeros_like(Z)
    made_round.best[:n_after] = 1.0
    made_round.least = 0.5 * made_round.value
    assert working_set._is_good_start(task, at, made_round) is expected
