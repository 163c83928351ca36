"""Many outputs that share tokens: certified, on kind and unkind data, by either space."""

import numpy as np
import pytest
from tests.strategies import forbid, start, task_of, tune

from convexformer.problem import GatedDesign, Problem, Squared, Token, TokenDesign
from convexformer.solvers import choose, many_outputs, solve, solve_path
from convexformer.solvers.many_outputs import kernel as kernel_module
from convexformer.solvers.many_outputs import newton
from convexformer.solvers.many_outputs.kernel import Kernel, WeightedTokens
from convexformer.solvers.many_outputs.systems import SharedGram, SharedKernel, sketch
from convexformer.solvers.workspace import Workspace


@pytest.fixture(autouse=True, params=[1, 1000], ids=["kept", "formed"])
def any_size(request, monkeypatch):
    """Small problems serve as well as large ones here, with tokens' own kernels or without."""
    tune(monkeypatch, many_entries=0)
    monkeypatch.setattr(kernel_module, "KEPT_DIM", request.param)


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


ALONE = {"max_iter": 1000, "strategy": "many-outputs"}


def own(problem, fraction, tol=1e-6, init=None):
    """What this strategy reaches alone."""
    assert choose.shares_factor(problem)
    with pytest.MonkeyPatch.context() as patch:
        forbid(patch, *(name for name in choose.STRATEGIES if name != "many-outputs"))
        found = solve(problem, fraction * problem.beta_max, tol=tol, init=init, **ALONE)
    assert found.strategy == "many-outputs"
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
def test_agrees_with_the_generic_route(shape):
    problem = problem_of(*data(shape, c=70))
    beta = 0.1 * problem.beta_max
    one, other = own(problem, 0.1, 1e-9), solve(problem, beta, tol=1e-9, strategy="newton")
    np.testing.assert_allclose(one.Z, other.Z, atol=1e-4 * np.abs(other.Z).max())
    np.testing.assert_allclose(one.intercept, other.intercept, atol=1e-3)


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
        solution = solve(problem, beta, strategy="many-outputs")
        assert solution.converged
        assert problem.certificate(solution.Z, solution.intercept, beta).relative_gap <= 1.001e-6


def test_gates():
    X, Y = data((80, 6, 4))
    gates = np.random.default_rng(0).random((80, 5)) > 0.5
    problem = Problem(GatedDesign(TokenDesign(X), gates), Squared(), Token(), Y)
    check(problem, own(problem, 0.1))


def test_outputs_few_or_samples_many_are_left_to_others(monkeypatch):
    X, Y = data(KERNEL)
    assert choose.shares_factor(problem_of(X, Y))
    assert not choose.shares_factor(problem_of(X, Y[:, :2]))
    tune(monkeypatch, largest_kernel=10)
    assert not choose.shares_factor(problem_of(X, Y))


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
    warm = own(problem, 0.099, init=cold)
    check(problem, warm)
    assert warm.n_iter < cold.n_iter
    again = own(problem, 0.1, init=cold)
    assert again.n_iter <= 1


def test_paths():
    problem = problem_of(*data(KERNEL))
    betas = problem.beta_max * np.geomspace(1, 0.01, 6)
    for solution in solve_path(problem, betas, strategy="many-outputs"):
        assert (
            problem.certificate(
                solution.Z, solution.intercept, solution.certificate.beta
            ).relative_gap
            <= 1.001e-6
        )


def test_kernels_serve_a_whole_path(monkeypatch):
    problem = problem_of(*data(KERNEL))
    made, old, task = [], Kernel.__init__, task_of(problem, 1.0)

    def count(self, *args):
        made.append(self)
        old(self, *args)

    monkeypatch.setattr(Kernel, "__init__", count)
    for fraction in (0.3, 0.2):
        task.beta = fraction * problem.beta_max
        assert many_outputs.minimise(task, problem.null)[1]
    assert len(made) == 1


def test_early_ends_are_honest():
    problem = problem_of(*data(KERNEL))
    beta = 0.1 * problem.beta_max
    seen = []
    short = solve(problem, beta, max_iter=2, callback=seen.append, strategy="many-outputs")
    assert not short.converged
    assert short.n_iter == 2
    assert len(seen) == len(short.trace) > 2
    assert short.certificate.relative_gap == pytest.approx(
        problem.certificate(short.Z, short.intercept, beta).relative_gap
    )
    assert not solve(problem, beta, max_time=0.0, strategy="many-outputs").converged
    good = own(problem, 0.1)
    kept = solve(problem, beta, tol=1e-12, max_iter=0, init=good, strategy="many-outputs")
    assert kept.certificate.relative_gap <= good.certificate.relative_gap * (1 + 1e-6)


def test_hands_over_what_it_cannot_solve(monkeypatch):
    problem = problem_of(*data(KERNEL))

    def fail(*args):
        raise np.linalg.LinAlgError

    monkeypatch.setattr(Kernel, "solve", fail)
    beta = 0.1 * problem.beta_max
    assert not many_outputs.minimise(task_of(problem, beta), problem.null)[1]
    found = solve(problem, beta, strategy="many-outputs")
    assert found.strategy.startswith("many-outputs + ")
    check(problem, found)


def test_both_systems_are_the_same():
    X, Y = data((50, 8, 5), c=20)
    problem = problem_of(X, Y, weight=np.random.default_rng(0).integers(0, 3, 50).astype(float))
    columns, everything, beta = WeightedTokens(problem, np.float64), np.arange(8), 40.0
    Y = columns.balanced(columns.root * problem.Y)
    Q = Workspace(problem).grams.matrix(everything)
    B = columns.correlate(Y, everything).reshape(len(Q), -1)
    gram = SharedGram(Q, B, float(np.vdot(Y, Y)), everything, beta, np.float32)
    kernel = SharedKernel(Y, columns, Kernel(columns, np.float32), everything, beta)
    eta, radius = np.array([0.0, 0.3, 2.0, 1e-7, 0.0, 1.0, 0.1, 5.0]), np.linspace(1, 2, 8)
    one, other = gram.measure(eta, 1e-9), kernel.measure(eta, 1e-9)
    np.testing.assert_allclose(one.squares, other.squares, rtol=1e-6)
    assert one.reach == pytest.approx(other.reach, rel=1e-6)
    assert one.size == pytest.approx(other.size, rel=1e-6)
    np.testing.assert_allclose(
        gram.coefficients(everything), kernel.coefficients(everything), atol=1e-8
    )
    A, cells = kernel.curvature(everything, radius), np.array([0, 1, 2, 3, 5, 6, 7])
    np.testing.assert_allclose(
        gram.curvature(cells, radius[cells]),
        A[np.ix_(cells, cells)],
        rtol=1e-3,
        atol=1e-4 * A.max(),
    )


def test_sketch_keeps_inner_products_on_average():
    rng = np.random.default_rng(0)
    mean = np.mean([(S := sketch(9, 4, rng)) @ S.T for _ in range(4000)], axis=0)
    np.testing.assert_allclose(mean, np.eye(9), atol=0.1)
    np.testing.assert_array_equal(sketch(4, 6, rng), np.eye(4))


@pytest.mark.parametrize("fraction", [0.999, 0.99, 0.9])
def test_just_below_the_largest_beta(fraction):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X, Y = rng.normal(size=(300, 20, 10)), rng.normal(size=(300, 128))
        problem = Problem(TokenDesign(X), Squared(), Token(), Y)
        assert solve(problem, fraction * problem.beta_max, strategy="many-outputs").converged


@pytest.mark.parametrize("limits", [{"max_iter": 0}, {"max_iter": 6}, {"max_time": 1e-4}])
def test_what_ends_early_says_where_it_is(limits):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 30, 10)) + rng.normal(size=(400, 1, 10))
    Y = rng.normal(size=(400, 64)) + X[:, 3, :1]
    problem = Problem(TokenDesign(X), Squared(), Token(), Y)
    solution = solve(problem, 0.01 * problem.beta_max, strategy="many-outputs", **limits)
    beta = 0.01 * problem.beta_max
    own = problem.certificate(solution.Z, solution.intercept, beta)
    assert solution.certificate.relative_gap == pytest.approx(own.relative_gap, rel=1e-9)
    # No line of the trace promises more than what is certified in the end.
    gap = start(problem, solution).gap(beta)
    assert min(point.relative_gap for point in solution.trace) >= 0.999 * gap


def test_a_kernel_that_cannot_be_factorised_does_not_pass_for_one(monkeypatch):
    X = np.random.default_rng(0).normal(size=(30, 4, 3))
    problem = Problem(TokenDesign(X), Squared(), Token(), X[:, 0], intercept=False)
    kernel = Kernel(WeightedTokens(problem, np.float64), np.float64)
    eta = np.array([1.0, 0.0, 2.0, 0.0])

    with monkeypatch.context() as patch:
        patch.setattr(kernel, "_pftrf", lambda N, T, **options: (T, 1))
        for _ in range(2):
            with pytest.raises(np.linalg.LinAlgError):
                kernel.update(eta, 0.0)
    kernel.update(eta, 0.0)
    K = np.eye(30) + np.einsum("ikd,k,jkd->ij", X, eta, X)
    np.testing.assert_allclose(K @ kernel.solve(X[:, 1]), X[:, 1], atol=1e-12)
    kernel.update(np.zeros(4), 0.0)  # no trace is left of what was added and taken off again
    np.testing.assert_array_equal(kernel.solve(X[:, 1]), X[:, 1])


@pytest.mark.parametrize("N", [1, 2, 30, 31])
@pytest.mark.parametrize("kept", [0, 2, 4])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e25])
def test_kernels_follow_their_weights(N, kept, scale, monkeypatch):
    X = np.random.default_rng(0).normal(size=(N, 4, 3))
    design = TokenDesign((scale * X).astype(np.float32))
    problem = Problem(design, Squared(), Token(), X[:, 0], intercept=False)
    kernel = Kernel(WeightedTokens(problem, np.float32), np.float32)
    monkeypatch.setattr(kernel_module, "KEPT_BYTES", kept * kernel.K.nbytes)
    for eta in ([1.0, 0.0, 2.0, 0.0], [1.5, 0.1, 0.0, 3.0], [1.5, 0.1, 1.0, 3.0]):
        kernel.update(np.array(eta) / scale**2, 0.0)
        assert kernel.is_at(np.array(eta) / scale**2)
        M = np.eye(N) + np.einsum("ikd,k,jkd->ij", X, eta, X)
        np.testing.assert_allclose(M @ kernel.solve(X[:, 1]), X[:, 1], atol=1e-4)
        U = kernel.half(np.eye(N, dtype=np.float32, order="F"))
        np.testing.assert_allclose(U.T @ U, np.linalg.inv(M), atol=1e-4)
    assert len(kernel._own) == (kept if kernel_module.KEPT_DIM == 1 else 0)


def test_only_tokens_without_a_kernel_of_their_own_may_lag(monkeypatch):
    X, Y = data((40, 4, 3))
    kernel = Kernel(WeightedTokens(problem_of(X, Y), np.float64), np.float64)
    monkeypatch.setattr(kernel_module, "KEPT_BYTES", 2 * kernel.K.nbytes)
    kernel.update(np.array([1.0, 1.0, 1.0, 0.0]), 0.1)
    kernel.update(np.array([1.05, 1.0, 1.05, 0.0]), 0.1)
    keeps = kernel_module.KEPT_DIM == 1
    np.testing.assert_array_equal(kernel.scaled, [1.05 if keeps else 1.0, 1.0, 1.0, 0.0])


def test_residuals_are_estimated_from_mixes():
    X, Y = data((60, 20, 6), c=200)
    columns, everything = WeightedTokens(problem_of(X, Y), np.float64), np.arange(20)
    Y = columns.balanced(Y)
    system = SharedKernel(Y, columns, Kernel(columns, np.float32), everything, 1.0)
    system.measure(np.linspace(0.0, 1.0, 20), 1e-3)
    system.V = system.V + 0.01 * np.random.default_rng(0).normal(size=Y.shape)
    assert system._residual()[0] == pytest.approx(system._residual(200)[0], rel=0.2)


@pytest.mark.parametrize("seed", [1, 7, 8])
def test_at_beta_max_no_token_is_used(seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60, 20, 6))
    Y = np.tensordot(X[:, :3], rng.normal(size=(3, 6, 8)), axes=2) + rng.normal(size=(60, 8))
    for intercept in (False, True):
        problem = Problem(TokenDesign(X), Squared(), Token(), Y, intercept=intercept)
        found = solve(problem, problem.beta_max, strategy="many-outputs")
        assert found.converged and not np.any(found.Z)
        below = problem.beta_max * (1 - 1e-15)
        assert solve(problem, below, strategy="many-outputs").converged


def test_a_hessian_takes_the_last_move_to_what_came_of_it():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(5, 5))
    A, exact = root @ root.T + np.eye(5), np.diag(np.arange(1.0, 6.0))
    move = rng.normal(size=5)
    B = newton.secant(A, move, exact @ move)
    np.testing.assert_allclose(B @ move, exact @ move)
    assert np.linalg.eigvalsh(B).min() > 0
    across = np.linalg.svd(np.stack([A @ move, exact @ move]))[2][2:].T  # to both of them
    np.testing.assert_allclose(across.T @ B @ across, across.T @ A @ across)


@pytest.mark.parametrize("missed", [0.0, np.inf], ids=["always", "never"])
@pytest.mark.parametrize(("shape", "kind"), [(GRAM, SharedGram), (KERNEL, SharedKernel)])
def test_old_hessians_save_new_ones_not_digits(shape, kind, missed, monkeypatch):
    problem, calls, curvature = problem_of(*data(shape)), [], kind.curvature

    def counted(system, *args):
        calls.append(1)
        return curvature(system, *args)

    monkeypatch.setattr(kind, "curvature", counted)
    usual = own(problem, 0.1)
    calls, fewer = [], len(calls)
    monkeypatch.setattr(newton, "MISSED", missed)
    solution = own(problem, 0.1)
    check(problem, solution)
    assert solution.certificate.primal == pytest.approx(usual.certificate.primal, rel=1e-5)
    assert len(calls) <= fewer if missed == 0 else len(calls) >= fewer
