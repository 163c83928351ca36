"""First-order steps: quick where tokens are nearly independent, and out of the way where not."""

import numpy as np
import pytest

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
    curved,
    descent,
    newton,
    ready,
    rounds,
    solve,
    solve_path,
    workspace,
)
from convexformer.solvers.solution import Clock, Iterate
from convexformer.solvers.spectral import TRIAL, Spectral
from convexformer.solvers.sweeps import Sweeps
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


def never(*args, **kwargs):
    raise AssertionError("What was not to be called was called.")


@pytest.fixture
def steps_first(monkeypatch):
    """Problems of any size begin with steps."""
    monkeypatch.setattr(descent, "gram_is_quick", lambda *args: False)
    monkeypatch.setattr(curved, "suits", lambda *args: False)


def test_a_gram_matrix_that_costs_little_comes_first(monkeypatch):
    problem = made(N=40_000, n=8, d=16)
    monkeypatch.setattr(ready.Tokens, "of", never)
    monkeypatch.setattr(newton, "minimise", never)
    assert solve(problem, 0.1 * problem.beta_max).converged


@pytest.mark.usefixtures("steps_first")
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
    expected = solve(problem, beta, tol=1e-10, method="newton").certificate
    monkeypatch.setattr(newton, "minimise", never)
    monkeypatch.setattr(rounds.Round, "_newton_seconds", lambda self, Z: np.inf)
    found = solve(problem, beta, tol=1e-6 if loss.joint else 1e-8)  # float32 leaves a softmax less
    assert found.converged
    assert found.certificate.primal == pytest.approx(
        expected.primal, rel=found.certificate.relative_gap + 1e-9
    )


@pytest.mark.usefixtures("steps_first")
def test_alike_tokens_are_left_to_newton_after_a_few_steps(monkeypatch):
    problem, steps = made(common=30.0, loss=Logistic(), intercept=False), []
    plain = Spectral._step
    monkeypatch.setattr(Spectral, "_step", lambda self, *a: steps.append(1) or plain(self, *a))
    found = solve(problem, 0.01 * problem.beta_max)
    assert found.converged
    assert 0 < len(steps) <= 2 * TRIAL


@pytest.mark.usefixtures("steps_first")
@pytest.mark.parametrize("loss", [Squared(), Logistic()])
def test_a_path_that_slows_down_does_not_try_again(monkeypatch, loss):
    problem, slow = made(common=30.0, loss=loss, intercept=False), []
    way = Sweeps if loss.quadratic else Spectral
    plain = way.run
    monkeypatch.setattr(
        way, "run", lambda self, *a: slow.append(not plain(self, *a)) or not slow[-1]
    )
    betas = problem.beta_max * np.geomspace(0.5, 0.01, 6)
    assert all(s.converged for s in solve_path(problem, betas))
    assert slow[-1] and sum(slow) == 1


def test_a_start_that_is_solved_stays(monkeypatch):
    problem = made()
    beta = 0.2 * problem.beta_max
    first = solve(problem, beta, tol=1e-9)
    again = solve(problem, beta, init=first)
    assert again.n_iter <= 1
    assert again.certificate.relative_gap <= 1e-6


def test_steps_keep_to_the_clock():
    problem = made(N=300, n=60, d=10, common=0.5)
    work, clock = Workspace(problem), Clock(max_iter=10**6, max_time=0.0)
    at = Iterate.start(problem, None, 1e-3 * problem.beta_max)
    found, done = descent.minimise(problem, 1e-3 * problem.beta_max, at, 1e-12, clock, work)
    assert found is at and done


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


def test_rounds_that_cannot_reach_the_goal_share_the_way():
    assert descent._target(1e-6, 1e-2, 2e-5, shares=True) == 1e-6
    assert descent._target(1e-6, 1.0, 2e-5, shares=True) == pytest.approx(1e-3)
    assert descent._target(1e-6, 1.0, 0.1, shares=True) == 0.1  # rounding leaves more
    assert descent._target(1e-6, 1.0, 0.1, shares=False) == 0.1
    assert descent._target(1e-6, 1.2, 1e-6, shares=True) == 1.2e-6  # nearly there


@pytest.mark.parametrize("used", ["none", "all", "ends", "every other"])
def test_columns_in_use_are_read_as_they_follow_each_other(used, monkeypatch):
    monkeypatch.setattr(workspace, "CACHE", 0)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(9, 7, 3)) + 2.0
    wanted = np.zeros(7, dtype=bool)
    wanted[{"none": [], "all": slice(None), "ends": [0, 1, 6], "every other": [1, 3, 5]}[used]] = 1
    low = workspace.low_precision(TokenDesign(X), np.arange(7), None)
    Z, V = rng.normal(size=(7, 3, 2)) * wanted[:, None, None], rng.normal(size=(9, 2))
    for shortest, runs in ((1, {"ends": 2, "every other": 3}), (100, {})):
        monkeypatch.setattr(workspace, "SHORTEST", shortest)
        assert len(low._runs(wanted)) == runs.get(used, 1)
        np.testing.assert_allclose(
            low.predict(Z, wanted), np.einsum("ikd,kdc->ic", X, Z), atol=1e-4
        )
        M = np.einsum("ikd,ic->kdc", X, V)
        np.testing.assert_allclose(low.correlate(V, wanted)[wanted], M[wanted], atol=1e-4)


@pytest.mark.parametrize(
    ("n_before", "n_after", "expected"), [(3, 2, True), (2, 3, False), (0, 3, False), (3, 0, False)]
)
def test_newton_goes_on_where_steps_have_let_tokens_go(n_before, n_after, expected):
    """It would else begin with all that was wanted there, at many times the cost."""
    problem = made(N=600, n=30, d=6)
    at = Iterate.start(problem, None, 1.0)
    at.Z[:n_before] = 1.0
    point, beta = problem.dual_point(problem.null_scores), 0.1 * problem.beta_max
    descent_ = Spectral.__new__(Spectral)
    rounds.Round.__init__(descent_, problem, beta, at, point, np.arange(30))
    descent_.best = np.zeros_like(at.Z)
    descent_.best[:n_after] = 1.0
    descent_.least = 0.5 * descent_.value
    assert descent._is_good_start(problem, beta, point, descent_, Workspace(problem)) is expected
