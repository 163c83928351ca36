"""Systems among samples and among coefficients are the same quadratic form."""

import numpy as np
import pytest
from tests.strategies import tune

from convexformer.problem import Problem, Softmax, Squared, Token, TokenDesign, TokenOutput
from convexformer.solvers import newton, solve
from convexformer.solvers.quadratic_systems import GramSystem, KernelSystem, softmax_root
from convexformer.solvers.workspace import Workspace

GROUPS = np.arange(12)


def made(intercept, scale=1.0, mean=0.0, seed=0):
    rng = np.random.default_rng(seed)
    X = scale * (rng.normal(size=(40, 1, 4)) + rng.normal(size=(40, 12, 4)) + mean)
    Y = X[:, :3, :1].sum(axis=1) / scale + 0.1 * rng.normal(size=(40, 1))
    weight = rng.random(40) + 0.1
    return Problem(TokenDesign(X), Squared(), TokenOutput(), Y, weight, intercept)


def kernel_system(problem, C, n_cells):
    kernels, at = Workspace(problem).kernels, problem.null
    start = [A[..., None] for A in (at.V, at.S, at.M, at.Z)]
    return KernelSystem(kernels, GROUPS, C, start, n_cells, 1.0)


def same_states(one, other, cells):
    """Two systems of the same form, at the same eta."""
    assert one.value == pytest.approx(other.value, rel=1e-9)
    np.testing.assert_allclose(one.z, other.z, atol=1e-9 * np.abs(other.z).max())
    np.testing.assert_allclose(one.g, other.g, atol=1e-9 * np.abs(other.g).max())
    np.testing.assert_allclose(one.squares, other.squares, rtol=1e-7)


def values(system, etas):
    """Differences of values: samples and coefficients count from different constants."""
    states = [system.solve(eta, 0.0) for eta in etas]
    for state in states:
        state.value -= states[0].value
    return states[1:]


@pytest.mark.parametrize("intercept", [False, True])
def test_samples_and_coefficients_agree_for_one_output(intercept):
    problem, rng = made(intercept), np.random.default_rng(1)
    root = np.sqrt(problem.weight)[:, None, None]
    Q = problem.quadratic(GROUPS, problem.null.F)[0]
    coefficients = GramSystem(Q, problem.null.M.reshape(-1, 1), 12, 1.0)
    samples = kernel_system(problem, root, 1)
    etas = [np.zeros(12), 0.1 * rng.random(12), np.where(GROUPS < 7, rng.random(12), 0.0)]
    cells = np.array([1, 3, 8])
    for one, other in zip(values(samples, etas), values(coefficients, etas), strict=True):
        same_states(one, other, cells)
        expected = coefficients.curvature(other, cells)
        np.testing.assert_allclose(samples.curvature(one, cells), expected, rtol=1e-8)


@pytest.mark.parametrize("penalty", [Token, TokenOutput])
def test_samples_and_coefficients_agree_for_a_softmax(penalty):
    rng = np.random.default_rng(2)
    Y = np.eye(3)[rng.integers(3, size=40)]
    design, penalty = TokenDesign(rng.normal(size=(40, 12, 4))), penalty()
    problem = Problem(design, Softmax(), penalty, Y, rng.random(40) + 0.1)
    n_cells = penalty.cells(3)
    H = problem.risk.curvature(problem.null.F)
    C = np.sqrt(problem.weight)[:, None, None] * softmax_root(H)
    np.testing.assert_allclose(
        C @ C.transpose(0, 2, 1),
        problem.weight[:, None, None] * (H[:, :, None] * (np.eye(3) - H[:, None, :])),
        atol=1e-14,
    )
    every = np.ones((12, 3), dtype=bool)
    Q = problem.quadratic(GROUPS, problem.null.F, 0.0, every)[0]
    M = np.ascontiguousarray(problem.null.M.transpose(0, 2, 1)).reshape(-1, 1)
    coefficients = GramSystem(Q, M, 12 * n_cells, 1.0)
    samples = kernel_system(problem, C, n_cells)
    etas = [np.zeros(12 * n_cells), *rng.random((2, 12 * n_cells))]
    cells = np.array([1, 4, 11])
    for one, other in zip(values(samples, etas), values(coefficients, etas), strict=True):
        assert one.value == pytest.approx(other.value, rel=1e-9)
        np.testing.assert_allclose(one.z.ravel(), other.z.ravel(), atol=1e-9)
        expected = coefficients.curvature(other, cells)
        np.testing.assert_allclose(samples.curvature(one, cells), expected, rtol=1e-8)


@pytest.mark.parametrize("size", [1e-50, 1e-25, 1.0, 1e25])
@pytest.mark.parametrize("scale", [1e-25, 1e-15, 1.0, 1e15, 1e19, 1e25])
def test_rough_kernels_are_for_numbers_of_any_size(scale, size, monkeypatch):
    tune(monkeypatch, kernel_ratio=0.0)
    problem = made(False, scale)
    problem = Problem(problem.design, Squared(), TokenOutput(), size * problem.Y, intercept=False)
    found = solve(problem, 0.1 * problem.beta_max, tol=1e-9, strategy="newton", max_iter=60)
    assert found.converged


def test_tokens_enter_at_once_where_samples_are_few(monkeypatch):
    problem, sizes, working = made(True), [], newton._working_set

    def noted(*args):
        found = working(*args)
        sizes.append(np.count_nonzero(found))
        return found

    monkeypatch.setattr(newton, "_working_set", noted)
    tune(monkeypatch, kernel_ratio=0.0)
    beta = 0.01 * problem.beta_max
    assert solve(problem, beta, strategy="newton").converged
    wanted = np.count_nonzero(problem.null.norms > beta)
    assert sizes[0] == wanted > 1
    assert newton.enter_at_once(problem, 20) and not newton.enter_at_once(problem, 21)
    sizes.clear()
    monkeypatch.setattr(newton, "FEW", 3)
    assert solve(problem, beta, strategy="newton").converged
    assert sizes[0] == 1
