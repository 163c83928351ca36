"""Sweeps over blocks of tokens: one output of the squared loss."""

import numpy as np
import pytest

from convexformer.problem import (
    Certificate,
    GatedDesign,
    Problem,
    Squared,
    TokenDesign,
    TokenOutput,
)
from convexformer.solvers import descent, newton, rounds, solve, solve_path, sweeps
from convexformer.solvers.solution import Solution
from convexformer.solvers.sweeps import Blocks, Sweeps


def made(N=600, n=30, d=6, common=0.0, scale=1.0, gates=0, penalty=None, size=1.0, **more):
    rng = np.random.default_rng(0)
    X = scale * (rng.normal(size=(N, n, d)) + common * rng.normal(size=(N, 1, d)))
    y = np.einsum("nkd,kd->n", X[:, :4], rng.normal(size=(4, d)))
    y = size * (y / y.std() + 0.5 * rng.normal(size=N))
    design = TokenDesign(X)
    if gates:
        design = GatedDesign(design, rng.random((N, gates)) < 0.5)
    return Problem(design, Squared(), TokenOutput(penalty), y[:, None], **more)


def never(*args, **kwargs):
    raise AssertionError("What was not to be called was called.")


@pytest.fixture
def sweeps_only(monkeypatch):
    monkeypatch.setattr(descent, "_gram_is_quick", lambda *args: False)
    monkeypatch.setattr(newton, "minimise", never)
    monkeypatch.setattr(rounds.Round, "_newton_seconds", lambda self, Z: np.inf)


CASES = {
    "plain": {"intercept": False},
    "intercept": {"intercept": True},
    "far from zero": {"common": 0.3, "intercept": True},
    "weighted": {"sample_weight": np.random.default_rng(1).uniform(0, 5, 600)},
    "weights of zero": {"sample_weight": (np.arange(600) % 3 > 0).astype(float)},
    "penalty weights": {"penalty": np.linspace(0.5, 2.0, 30)},
    "huge": {"scale": 1e20, "intercept": False},
    "tiny": {"scale": 1e-20, "intercept": True},
    "gated": {"n": 12, "gates": 4, "intercept": False},
    "fewer samples than columns": {"N": 300, "n": 60, "d": 12, "intercept": False},
}


@pytest.mark.usefixtures("sweeps_only")
@pytest.mark.parametrize("fraction", [0.5, 0.1, 0.02])
@pytest.mark.parametrize("case", CASES)
def test_the_optimum_is_newtons(monkeypatch, case, fraction):
    problem = made(**CASES[case])
    beta = fraction * problem.beta_max
    found = solve(problem, beta, tol=1e-8)
    assert found.converged
    monkeypatch.undo()
    expected = solve(problem, beta, tol=1e-10, method="newton").certificate
    assert found.certificate.primal == pytest.approx(expected.primal, rel=2e-8)
    assert found.certificate.dual <= expected.primal * (1 + 1e-12)


@pytest.mark.usefixtures("sweeps_only")
@pytest.mark.parametrize("intercept", [True, False])
def test_pairs_that_cancel_have_a_length(intercept):
    rng = np.random.default_rng(0)
    b = np.stack([rng.permutation(np.arange(1000) % 2) for _ in range(100)], axis=1)
    X = np.stack([b, 1 - b], axis=2).astype(float) - (0.0 if intercept else 0.5)
    y = X[:, :5, 0] @ rng.normal(size=5) + 0.5 * rng.normal(size=1000)
    problem = Problem(TokenDesign(X), Squared(), TokenOutput(), y[:, None], intercept=intercept)
    assert solve(problem, 0.1 * problem.beta_max, tol=1e-8).converged


@pytest.mark.usefixtures("sweeps_only")
@pytest.mark.parametrize("scale", [1e45, 1e-45, 1e100])
def test_targets_of_any_size(scale):
    one, other = made(), made(size=scale)
    found = solve(other, 0.1 * other.beta_max, tol=1e-8)
    expected = solve(one, 0.1 * one.beta_max, tol=1e-8)
    assert found.converged and found.n_iter == expected.n_iter
    np.testing.assert_allclose(found.Z, scale * expected.Z, atol=1e-5 * scale)


@pytest.mark.usefixtures("sweeps_only")
@pytest.mark.parametrize("case", ["rows of nothing", "a constant token", "tokens of all sizes"])
def test_blocks_have_a_size_of_their_own(case):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(800, 20, 8))
    init = None
    if case == "rows of nothing":
        X *= 1e20
        X[::13] = 0.0
    elif case == "a constant token":
        X[:, 0] = 0.1 * rng.normal(size=8)
        Z = np.zeros((20, 8, 1))
        Z[0] = 1.0
        init = Solution(Z, np.zeros(1), Certificate(1.0, 0.0, 1.0, 1.0), False, 0)
    else:
        X[:, ::2] *= 1e12
        X[:, 1::4] *= 1e-12
    y = X[:, 3] @ rng.normal(size=8)
    y = y / y.std() + 0.5 * rng.normal(size=800)
    problem = Problem(TokenDesign(X), Squared(), TokenOutput(), y[:, None])
    found = solve(problem, 0.3 * problem.beta_max, init=init)
    assert found.converged


def test_alike_tokens_are_left_to_newton_after_a_few_cycles(monkeypatch):
    problem, cycles = made(common=30.0, intercept=False), []
    plain = Sweeps._cycle
    monkeypatch.setattr(descent, "_gram_is_quick", lambda *args: False)
    monkeypatch.setattr(Sweeps, "_cycle", lambda self: cycles.append(1) or plain(self))
    assert solve(problem, 0.01 * problem.beta_max).converged
    assert 0 < len(cycles) <= 8


def test_a_cycle_never_raises_the_objective(monkeypatch):
    problem, values = made(N=150, n=60, d=12, intercept=False), []
    plain = Sweeps._measure

    def measured(self):
        gap = plain(self)
        values.append(self.value)
        return gap

    monkeypatch.setattr(Sweeps, "_measure", measured)
    monkeypatch.setattr(rounds.Round, "_newton_seconds", lambda self, Z: np.inf)
    solve(problem, 0.02 * problem.beta_max)
    assert len(values) > 5
    assert np.all(np.diff(values) <= 1e-6 * np.abs(values[1:]))


def test_blocks_are_read_once_and_hold_what_was_asked_for(monkeypatch):
    problem = made(N=50, n=8, d=2, common=3.0, sample_weight=np.linspace(0, 2, 50))
    monkeypatch.setattr(sweeps, "BLOCK_COLUMNS", 4)
    blocks = Blocks(problem)
    first = blocks.of(np.array([1, 4, 6]))
    assert [block.groups.tolist() for block in first] == [[1, 4], [6]]
    X = (problem.design.X - problem.center) * np.sqrt(problem.weight)[:, None, None]
    for block in first:
        expected = X[:, block.groups].reshape(50, -1)
        np.testing.assert_allclose(block.unit * block.A, expected, rtol=1e-6, atol=1e-6)
        longest = np.linalg.norm(block.A, 2) ** 2
        assert 0.8 * longest < block.square < 1.11 * longest
    again = blocks.of(np.array([1, 3, 4]))
    assert again[0] is first[0] and again[-1].groups.tolist() == [3]
    assert len(blocks.of(np.array([0]))) == 1  # most would be of no use: all begin anew
    assert len(blocks.of(np.arange(8))) <= 5


def test_a_path_keeps_its_blocks(monkeypatch):
    problem, read = made(intercept=True), []
    plain = Blocks._read
    monkeypatch.setattr(descent, "_gram_is_quick", lambda *args: False)
    monkeypatch.setattr(
        Blocks, "_read", lambda self, groups: read.extend(groups.tolist()) or plain(self, groups)
    )
    betas = problem.beta_max * np.geomspace(1.0, 0.05, 12)
    assert all(s.converged for s in solve_path(problem, betas))
    assert len(read) <= 2 * problem.shape[0]
