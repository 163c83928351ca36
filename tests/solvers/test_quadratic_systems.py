"""Systems among samples: what float32 and factors near by are good for, and when they are not."""

import numpy as np
import pytest
from tests.strategies import tune

from convexformer.problem import Problem, Squared, TokenDesign, TokenOutput
from convexformer.solvers import newton, solve, workspace
from convexformer.solvers.quadratic_systems import KernelSystem
from convexformer.solvers.workspace import Workspace

GROUPS = np.arange(12)


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    """Small kernels serve as well as large ones here."""
    monkeypatch.setattr(workspace, "LARGE_GRAM", 0.0)


def made(intercept, scale=1.0, mean=0.0, seed=0):
    rng = np.random.default_rng(seed)
    X = scale * (rng.normal(size=(40, 1, 4)) + rng.normal(size=(40, 12, 4)) + mean)
    Y = X[:, :3, :1].sum(axis=1) / scale + 0.1 * rng.normal(size=(40, 1))
    weight = rng.random(40) + 0.1
    return Problem(TokenDesign(X), Squared(), TokenOutput(), Y, weight, intercept)


def system(problem, kernels):
    R = problem.null.V
    return KernelSystem(kernels, GROUPS, problem.weight, R, np.zeros_like(R), 1.0)


@pytest.fixture
def formed(monkeypatch):
    """Precisions of the kernels that were formed."""
    precisions, kernel = [], TokenDesign.kernel

    def noted(design, groups, eta, center, dtype=np.float64, half=False):
        precisions.append(dtype)
        return kernel(design, groups, eta, center, dtype, half)

    monkeypatch.setattr(TokenDesign, "kernel", noted)
    return precisions


def states(problem, etas):
    """Of kernels that may be rough, and of exact ones."""
    exact = Workspace(problem).kernels
    exact.serves_rough = False
    for kernels in (Workspace(problem).kernels, exact):
        own = system(problem, kernels)
        yield [own.solve(eta, 1e-20) for eta in etas]


@pytest.mark.parametrize("intercept", [False, True])
def test_rough_kernels_serve_as_exact_ones_do(intercept, formed):
    problem, rng = made(intercept), np.random.default_rng(1)
    eta = np.where(GROUPS < 7, 0.1 * rng.random(12), 0.0)
    near, far = eta * (1 + 0.05 * rng.random(12)), eta + 0.1 * (GROUPS == 8)
    rough, exact = states(problem, [np.zeros(12), eta, near, far])
    assert formed == 2 * [np.float32] + 3 * [np.float64]  # none of zero, nor of what is near
    for one, other in zip(rough, exact, strict=True):
        assert one.value == pytest.approx(other.value, rel=1e-10)
        np.testing.assert_allclose(one.g, other.g, atol=1e-7 * np.abs(other.g).max())


@pytest.mark.parametrize(("scale", "mean"), [(1e25, 0.0), (1.0, 1e5)])
def test_where_float32_does_not_serve_it_is_not_asked_again(scale, mean, formed):
    problem = made(False, scale, mean)
    eta = np.ones(12)
    rough, exact = states(problem, [eta, 2 * eta])
    assert formed == [np.float32, *4 * [np.float64]]
    for one, other in zip(rough, exact, strict=True):
        assert one.value == pytest.approx(other.value, rel=1e-10)


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
