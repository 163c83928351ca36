"""Many outputs that share tokens: certified, on kind and unkind data, by either space."""

import numpy as np
import pytest
from tests.strategies import forbid, start

from convexformer.problem import GatedDesign, Problem, Squared, Token, TokenDesign
from convexformer.solvers import choose, quadratic_model, quadratic_systems, solve, solve_path
from convexformer.solvers import workspace as workspace_module
from convexformer.solvers.quadratic_systems import GramSystem, KernelSystem, sketch
from convexformer.solvers.workspace import Kernels, NearKernels, Workspace, low_precision


@pytest.fixture(autouse=True, params=["exact", "kept", "followed"])
def kernels(request, monkeypatch):
    """Systems in float64, or in float32 with tokens' own kernels or with one that follows."""
    if request.param != "exact":
        monkeypatch.setattr(quadratic_model, "LARGE_KERNEL", 0)
        monkeypatch.setattr(quadratic_systems, "LARGE_SYSTEM", 0)
    if request.param == "kept":
        monkeypatch.setattr(workspace_module, "MOST_OVER_X", 1 << 20)
    if request.param == "followed":
        monkeypatch.setattr(workspace_module, "CACHE_BYTES", 0)
    return request.param


GRAM, KERNEL = (150, 6, 4), (60, 20, 6)  # N, n, d: few and many coefficients beside samples


def data(shape, c=12, seed=0, dtype=np.float64, noise=0.5):
    rng = np.random.default_rng(seed)
    N, n, d = shape
    X = (rng.normal(size=(N, 1, d)) + rng.normal(size=shape) + rng.normal(size=(n, d))).astype(
        dtype
    )
    Y = np.tensordot(X[:, :3], rng.normal(size=(3, d, c)), axes=2)
    return X, Y + noise * Y.std() * rng.normal(size=Y.shape)


def problem_of(X, Y, intercept=True, weight=None, mask=None, penalty=None):
    return Problem(TokenDesign(X, mask), Squared(), penalty or Token(), Y, weight, intercept)


ALONE = {"max_iter": 1000, "strategy": "newton"}


def own(problem, fraction, tol=1e-6, init=None):
    """What this strategy reaches alone."""
    with pytest.MonkeyPatch.context() as patch:
        forbid(patch, *(name for name in choose.STRATEGIES if name != "newton"))
        found = solve(problem, fraction * problem.beta_max, tol=tol, init=init, **ALONE)
    assert found.strategy == "newton"
    return found


def check(problem, solution, tol=1e-6):
    beta = solution.certificate.beta
    again = problem.certificate(solution.Z, solution.intercept, beta)
    assert solution.converged
    assert again.relative_gap <= tol * (1 + 1e-6)
    wider = again.relative_gap - solution.certificate.relative_gap  # by a bound on rounding
    assert -1e-3 * tol <= wider <= 1e-3 * tol + 1e-11


@pytest.mark.parametrize("shape", [GRAM, KERNEL])
@pytest.mark.parametrize("fraction", [0.5, 0.1, 0.01])
@pytest.mark.parametrize("intercept", [False, True])
def test_reaches_the_gap_by_itself(shape, fraction, intercept):
    problem = problem_of(*data(shape), intercept=intercept)
    check(problem, own(problem, fraction))


@pytest.mark.parametrize("shape", [GRAM, KERNEL])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_float32_serves_and_float64_makes_up_for_it(shape, dtype):
    problem = problem_of(*data(shape, c=80, dtype=dtype))
    for tol in (1e-4, 1e-6, 1e-9):
        check(problem, own(problem, 0.1, tol), tol)


@pytest.mark.parametrize("shape", [GRAM, KERNEL])
@pytest.mark.parametrize("x_scale", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("y_scale", [1e-8, 1e8])
def test_scales(shape, x_scale, y_scale):
    X, Y = data(shape)
    problem = problem_of(x_scale * X, y_scale * Y)
    check(problem, own(problem, 0.1))


@pytest.mark.parametrize("shape", [GRAM, KERNEL])
def test_unkind_input(shape):
    X, Y = data(shape)
    X[:, 1] = X[:, 0]  # a duplicate
    X[:, 2] = 0.0
    X[:, 3] += 30.0
    Y[:, 3:] = Y[:, :3] @ np.ones((3, Y.shape[1] - 3))  # of rank 3
    Y[:, 0] = 7.0
    rng = np.random.default_rng(1)
    weight, mask = rng.integers(0, 3, len(X)).astype(float), rng.random(X.shape[:2]) > 0.2
    penalty = Token(rng.uniform(0.5, 2.0, shape[1]))
    for problem in (
        problem_of(X, Y),
        problem_of(X, Y, weight=weight),
        problem_of(X, Y, mask=mask, intercept=False),
        problem_of(X, Y, penalty=penalty),
        problem_of(np.asfortranarray(X)[::2], Y[::2]),
    ):
        beta = 0.05 * problem.beta_max
        solution = solve(problem, beta, strategy="newton")
        assert solution.converged
        assert problem.certificate(solution.Z, solution.intercept, beta).relative_gap <= 1.001e-6


def test_gates():
    X, Y = data((80, 6, 4))
    gates = np.random.default_rng(0).random((80, 5)) > 0.5
    problem = Problem(GatedDesign(TokenDesign(X), gates), Squared(), Token(), Y)
    check(problem, own(problem, 0.1))


def test_constant_targets():
    X, _ = data(KERNEL)
    problem = problem_of(X, np.full((len(X), 9), 3.0))
    solution = solve(problem, 1.0)
    assert solution.converged
    assert not np.any(solution.Z)


@pytest.mark.parametrize("shape", [GRAM, KERNEL])
def test_warm_start_saves_steps(shape):
    problem = problem_of(*data(shape))
    cold = own(problem, 0.1)
    check(problem, own(problem, 0.099, init=cold))
    again = own(problem, 0.1, init=cold)
    assert again.n_iter <= 1


def test_paths():
    problem = problem_of(*data(KERNEL))
    betas = problem.beta_max * np.geomspace(1, 0.01, 6)
    for solution in solve_path(problem, betas, strategy="newton"):
        assert (
            problem.certificate(
                solution.Z, solution.intercept, solution.certificate.beta
            ).relative_gap
            <= 1.001e-6
        )


def test_early_ends_are_honest():
    problem = problem_of(*data(KERNEL))
    beta = 0.1 * problem.beta_max
    seen = []
    short = solve(problem, beta, max_iter=0, callback=seen.append, strategy="newton")
    assert not short.converged
    assert len(seen) == len(short.trace) == 1
    assert short.certificate.relative_gap == pytest.approx(
        problem.certificate(short.Z, short.intercept, beta).relative_gap
    )
    assert not solve(problem, beta, max_time=0.0, strategy="newton").converged
    good = own(problem, 0.1)
    kept = solve(problem, beta, tol=1e-12, max_iter=0, init=good, strategy="newton")
    assert kept.certificate.relative_gap <= good.certificate.relative_gap * (1 + 1e-6)


@pytest.mark.parametrize("fraction", [0.999, 0.99, 0.9])
def test_just_below_the_largest_beta(fraction):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X, Y = rng.normal(size=(300, 20, 10)), rng.normal(size=(300, 128))
        problem = Problem(TokenDesign(X), Squared(), Token(), Y)
        assert solve(problem, fraction * problem.beta_max, strategy="newton").converged


@pytest.mark.parametrize("limits", [{"max_iter": 0}, {"max_iter": 6}, {"max_time": 1e-4}])
def test_what_ends_early_says_where_it_is(limits):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 30, 10)) + rng.normal(size=(400, 1, 10))
    Y = rng.normal(size=(400, 64)) + X[:, 3, :1]
    problem = Problem(TokenDesign(X), Squared(), Token(), Y)
    solution = solve(problem, 0.01 * problem.beta_max, strategy="newton", **limits)
    beta = 0.01 * problem.beta_max
    own = problem.certificate(solution.Z, solution.intercept, beta)
    assert solution.certificate.relative_gap == pytest.approx(own.relative_gap, rel=1e-9)
    # No line of the trace promises more than what is certified in the end.
    gap = start(problem, solution).gap(beta)
    assert min(point.relative_gap for point in solution.trace) >= 0.999 * gap


@pytest.mark.parametrize("seed", [1, 7, 8])
def test_at_beta_max_no_token_is_used(seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60, 20, 6))
    Y = np.tensordot(X[:, :3], rng.normal(size=(3, 6, 8)), axes=2) + rng.normal(size=(60, 8))
    for intercept in (False, True):
        problem = Problem(TokenDesign(X), Squared(), Token(), Y, intercept=intercept)
        found = solve(problem, problem.beta_max, strategy="newton")
        assert found.converged and not np.any(found.Z)
        below = problem.beta_max * (1 - 1e-15)
        assert solve(problem, below, strategy="newton").converged


def test_agrees_with_block_descent():
    problem = problem_of(*data(KERNEL, c=70))
    beta = 0.1 * problem.beta_max
    one, other = own(problem, 0.1, 1e-9), solve(problem, beta, tol=1e-9, strategy="block-descent")
    np.testing.assert_allclose(one.Z, other.Z, atol=1e-4 * np.abs(other.Z).max())
    np.testing.assert_allclose(one.intercept, other.intercept, atol=1e-3)


def test_both_systems_are_the_same(kernels):
    X, Y = data((50, 8, 5), c=20)
    weight = np.random.default_rng(0).integers(0, 3, 50).astype(float)
    problem = problem_of(X, Y, weight=weight)
    work, groups, beta = Workspace(problem), np.arange(8), 40.0
    Q, root = work.grams.matrix(groups), np.sqrt(weight)[:, None]
    gram = GramSystem(Q, problem.null.M.reshape(len(Q), -1), 8, beta)
    used = Kernels(problem.design, problem.center)
    if kernels != "exact":
        used = NearKernels(problem.design, 1).on(work.columns.of(groups), True)
    at = problem.null
    start = [A[..., None, :] for A in (at.V, at.S, at.M, at.Z)]
    kernel = KernelSystem(used, groups, root[:, :, None], start, 1, beta)
    for eta in ([0.0, 0.3, 2.0, 1e-7, 0.0, 1.0, 0.1, 5.0], [0.0] * 8, [1.0] * 8):
        one, other = gram.solve(np.array(eta), 1e-9), kernel.solve(np.array(eta), 1e-9)
        assert one.value == pytest.approx(other.value, rel=1e-4, abs=1e-9)
        np.testing.assert_allclose(one.squares[1], other.squares[1], rtol=1e-4)
        np.testing.assert_allclose(one.z, other.z, atol=1e-4 * np.abs(one.z).max())
        cells = np.array([0, 1, 2, 3, 5, 6, 7])
        A, B = gram.curvature(one, cells), kernel.curvature(other, cells)
        np.testing.assert_allclose(A, B, rtol=1e-3, atol=1e-4 * B.max())


def test_sketch_keeps_inner_products_on_average():
    rng = np.random.default_rng(0)
    mean = np.mean([(S := sketch(9, 4, rng)) @ S.T for _ in range(4000)], axis=0)
    np.testing.assert_allclose(mean, np.eye(9), atol=0.1)


@pytest.mark.parametrize("mean", [0.0, 10.0], ids=["centred", "offset"])
@pytest.mark.parametrize("scale", [1e-24, 1.0, 1e24])
def test_kernels_follow_their_weights(scale, mean, kernels):
    if kernels == "exact":
        pytest.skip("it is formed from its weights alone")
    X = np.random.default_rng(0).normal(size=(31, 4, 3)) + mean
    design, groups = TokenDesign(scale * X), np.arange(4)
    problem = Problem(design, Squared(), Token(), X[:, 0], intercept=False)
    columns = Workspace(problem).columns
    near = NearKernels(design, 1).on(columns.of(groups), False)
    assert near.keeps_own() == (workspace_module.CACHE_BYTES > 0)
    for eta in ([1.0, 0.0, 2.0, 0.0], [1.5, 0.1, 0.0, 3.0], [1.6, 0.1, 1.0, 3.1], [0.0] * 4):
        K = np.einsum("ikd,k,jkd->ij", X, eta, X)
        found = near.weighted(groups, np.array([eta]) / scale**2)[0]
        lag = 0.0 if near.keeps_own() else workspace_module.LAG
        rounding = 1e-6 * np.sum(X[0] ** 2)
        np.testing.assert_allclose(found, K, atol=(lag + 1e-5) * np.abs(K).max() + rounding)

    some = np.array([0, 2])  # columns of fewer tokens: those that are gone do not count
    near.on(low_precision(design, some, None), False)
    assert near.last is None
    K = np.einsum("ikd,jkd->ij", X[:, some], X[:, some])
    found = near.weighted(some, np.full((1, 2), scale**-2))[0]
    np.testing.assert_allclose(found, K, atol=1e-5 * np.abs(K).max())


def test_a_near_system_knows_the_value_of_its_coefficients(kernels, monkeypatch):
    """Also where conjugate gradients end early: the value is of z, the gap counts what q missed."""
    if kernels == "exact":
        pytest.skip("it is solved to rounding")
    monkeypatch.setattr(quadratic_systems, "RESIDUAL", 1e9)
    X, Y = data(KERNEL)
    problem = problem_of(X, Y)
    groups, at, beta = np.arange(20), problem.null, 40.0
    near = NearKernels(problem.design, 1).on(Workspace(problem).columns.of(groups), True)
    near.weighted(groups, np.full((1, 20), 1e-3))  # far from what is asked for
    start = [A[..., None, :] for A in (at.V, at.S, at.M, at.Z)]
    system = KernelSystem(near, groups, np.ones((60, 1, 1)), start, 1, beta)
    eta = np.full(20, 0.5)
    state = system.solve(eta, 1e9)
    Z = state.z.reshape(problem.shape)
    ridge = 0.5 * beta * float(np.sum(Z**2)) / 0.5
    assert state.value == pytest.approx(problem.at(Z).loss + ridge - at.loss, rel=1e-4)
    assert state.missed > 1e-4 * abs(state.value)


def test_float64_takes_over_where_float32_has_not_the_digits(kernels, monkeypatch):
    problem, rough = problem_of(*data(KERNEL)), []

    def gives_up(self, scaled, noise):
        rough.append(noise)
        raise quadratic_systems.RoughError

    monkeypatch.setattr(KernelSystem, "_solved_nearly", gives_up)
    check(problem, own(problem, 0.1))
    assert bool(rough) == (kernels != "exact")
