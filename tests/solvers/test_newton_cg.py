"""Newton's method by conjugate gradients: certified optima, and its parts against dense algebra."""

import time

import numpy as np
import pytest
from tests.strategies import forbid, task_of

from convexformer.problem import (
    PENALTIES,
    Huber,
    Logistic,
    Poisson,
    Problem,
    Softmax,
    Squared,
    TokenDesign,
)
from convexformer.problem.stopping import check_stop
from convexformer.solvers import Status, newton_cg, solve, solve_path
from convexformer.solvers.choose import STRATEGIES
from convexformer.solvers.newton_cg import (
    FactoredStart,
    Model,
    NewtonSteps,
    Preconditioner,
    Sketch,
    conjugate_gradients,
)
from convexformer.solvers.workspace import low_precision

LOSSES = [
    (Squared(), 1),
    (Squared(), 3),
    (Logistic(), 1),
    (Logistic(), 3),
    (Poisson(), 1),
    (Poisson(), 2),
    (Softmax(), 3),
]
IDS = [f"{type(loss).__name__.lower()}-{c}" for loss, c in LOSSES]


def made(loss, c=1, penalty="token", intercept=True, weighted=False, N=300, n=8, d=20, seed=0):
    """Tokens that are alike, with a spectrum that decays, as states of an encoder have it."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0] / np.arange(1, d + 1)
    X = (rng.normal(size=(N, 1, d)) + 0.5 * rng.normal(size=(N, n, d))) @ basis + rng.normal(size=d)
    F = np.einsum("nkd,kdc->nc", X[:, :3], rng.normal(size=(3, d, c)))
    Y = F = (F - F.mean(axis=0)) / F.std(axis=0) + 0.5 * rng.normal(size=F.shape)
    if isinstance(loss, Logistic):
        Y = np.where(F > 0, 1.0, -1.0)
    elif isinstance(loss, Poisson):
        Y = rng.poisson(np.exp(0.5 * F)).astype(float)
    elif isinstance(loss, Softmax):
        Y = np.eye(c)[F.argmax(axis=1)]
    weight = rng.integers(0, 3, size=N).astype(float) if weighted else None
    weights = rng.uniform(0.5, 2.0, size=n) if weighted else None
    return Problem(TokenDesign(X), loss, PENALTIES[penalty](weights), Y, weight, intercept)


def only(monkeypatch):
    forbid(monkeypatch, *(name for name in STRATEGIES if name != "newton-cg"))


# The optimum --------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("intercept", [True, False], ids=["intercept", "none"])
@pytest.mark.parametrize("penalty", ["token", "token-output"])
@pytest.mark.parametrize(("loss", "c"), LOSSES, ids=IDS)
def test_the_optimum_is_newtons(monkeypatch, loss, c, penalty, intercept, weighted):
    problem = made(loss, c, penalty, intercept, weighted)
    for fraction in (0.5, 0.1, 0.02):
        beta = fraction * problem.beta_max
        expected = solve(problem, beta, tol=1e-10, strategy="newton")
        with monkeypatch.context() as patch:
            if fraction >= 0.1:  # below it may hand over, where steps are slow
                only(patch)
            found = solve(problem, beta, strategy="newton-cg")
        assert expected.converged and found.converged
        assert found.strategy.startswith("newton-cg")
        assert found.certificate.primal == pytest.approx(expected.certificate.primal, rel=1.1e-6)
        assert found.certificate.dual <= expected.certificate.primal * (1 + 1e-12)
        again = problem.certificate(found.Z, found.intercept, beta)
        assert again.relative_gap <= 1e-6


@pytest.mark.parametrize("penalty", ["token", "token-output"])
@pytest.mark.parametrize(("loss", "c"), LOSSES, ids=IDS)
def test_scores_in_float32_do_not_add_up(loss, c, penalty):
    """What a step promised in float32 was once taken for its objective: no other step was less."""
    problem = made(loss, c, penalty)
    found = solve(problem, 0.03 * problem.beta_max, tol=1e-9, strategy="newton-cg")
    assert found.converged
    task = task_of(problem, 0.03 * problem.beta_max, 1e-6)
    at, done = newton_cg.minimise(task, problem.null)
    assert done
    scale = np.abs(problem.scores(at.Z)).max()
    np.testing.assert_allclose(at.S, problem.scores(at.Z), atol=1e-12 * scale)


@pytest.mark.parametrize("x_scale", [1e-20, 1e-6, 1e6, 1e20])
def test_units_of_x_make_no_difference(x_scale):
    one = made(Logistic())
    other = Problem(TokenDesign(x_scale * one.design.X), one.loss, one.penalty, one.Y)
    first, second = (solve(p, 0.1 * p.beta_max, strategy="newton-cg") for p in (one, other))
    assert second.converged
    assert second.certificate.primal == pytest.approx(first.certificate.primal, rel=2e-6)


def test_a_huber_loss_is_refused():
    problem = made(Squared())
    huber = problem.with_loss(Huber())
    with pytest.raises(ValueError, match="cannot minimise a Huber loss"):
        solve(huber, 0.1 * huber.beta_max, strategy="newton-cg")


# Cells come and go --------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", ["token", "token-output"])
@pytest.mark.parametrize(("loss", "c"), [(Squared(), 3), (Logistic(), 1), (Softmax(), 3)])
def test_cells_enter_a_start_without_them(monkeypatch, loss, c, penalty):
    problem = made(loss, c, penalty)
    beta = 0.02 * problem.beta_max
    few = solve(problem, 0.5 * problem.beta_max, strategy="newton")
    expected = solve(problem, beta, tol=1e-10, strategy="newton")
    assert np.count_nonzero(expected.Z.any(axis=1)) > np.count_nonzero(few.Z.any(axis=1))
    monkeypatch.setattr(FactoredStart, "run", lambda self: pytest.fail("L-BFGS"))
    monkeypatch.setattr(newton_cg, "START_GAP", np.inf)
    found = solve(problem, beta, strategy="newton-cg", init=few)
    assert found.converged and found.strategy.startswith("newton-cg")
    assert found.certificate.primal == pytest.approx(expected.certificate.primal, rel=1.1e-6)


@pytest.mark.parametrize("penalty", ["token", "token-output"])
@pytest.mark.parametrize(("loss", "c"), [(Squared(), 3), (Logistic(), 1), (Softmax(), 3)])
def test_cells_leave_a_start_with_all_of_them(monkeypatch, loss, c, penalty):
    problem = made(loss, c, penalty)
    beta = 0.3 * problem.beta_max
    expected = solve(problem, beta, tol=1e-10, strategy="newton")
    many = solve(problem, 0.01 * problem.beta_max, strategy="newton")
    gone = many.Z.any(axis=1) & ~expected.Z.any(axis=1)
    assert gone.any()
    monkeypatch.setattr(FactoredStart, "run", lambda self: pytest.fail("L-BFGS"))
    monkeypatch.setattr(newton_cg, "START_GAP", np.inf)
    found = solve(problem, beta, strategy="newton-cg", init=many)
    assert found.converged and found.strategy.startswith("newton-cg")
    assert found.certificate.primal == pytest.approx(expected.certificate.primal, rel=1.1e-6)
    assert (~found.Z.any(axis=1) & gone).any()  # exactly zero


def test_a_step_never_raises_the_objective():
    problem = made(Logistic())
    beta, rng = 0.05 * problem.beta_max, np.random.default_rng(0)
    for scale in (0.0, 1e-3, 1.0, 10.0):
        Z = scale * rng.normal(size=problem.shape)
        at = problem.at(Z)
        task = task_of(problem, beta)
        steps = NewtonSteps(task)
        X = task.work.columns.of(np.arange(problem.shape[0]))
        for _ in range(5):
            found = steps.step(at, X)
            if found is None:
                break
            assert found.primal(beta) < at.primal(beta)
            at = found


def test_a_path():
    problem = made(Logistic())
    betas = problem.beta_max * np.geomspace(1.0, 0.02, 8)
    for beta, found in zip(betas, solve_path(problem, betas, strategy="newton-cg"), strict=True):
        assert found.converged and found.certificate.beta == beta


# The start ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("intercept", [True, False], ids=["intercept", "none"])
@pytest.mark.parametrize("penalty", ["token", "token-output"])
@pytest.mark.parametrize(("loss", "c"), LOSSES, ids=IDS)
def test_the_factored_slope_is_that_of_finite_differences(
    monkeypatch, loss, c, penalty, intercept, weighted
):
    problem = made(loss, c, penalty, intercept, weighted, n=4, d=5)
    groups = np.array([0, 1, 3])
    start = FactoredStart(
        task_of(problem, 0.1 * problem.beta_max),
        problem.null,
        low_precision(problem.design, groups, problem.center),
        1e-4,
    )
    exact(monkeypatch, start.X, problem, groups)
    rng = np.random.default_rng(0)
    cells = c if penalty == "token-output" else 1
    start.shapes = (3, 5, c), (3, 1, cells)
    monkeypatch.setattr(start, "_note", lambda *_: None)
    x = 0.3 * rng.normal(size=3 * 5 * c + 3 * cells + c)
    x[-c:] *= intercept
    value, slope = start._objective(x)
    v, s, b = np.split(x, np.cumsum([3 * 5 * c, 3 * cells]))
    Z = np.zeros(problem.shape)
    Z[groups] = s.reshape(3, 1, cells) * v.reshape(3, 5, c)
    loss_value = problem.risk.value(problem.scores(Z) + b)
    squares = (v.reshape(3, 5, c) ** 2).sum(axis=1 if cells == c and cells > 1 else (1, 2))
    ridge = (s.reshape(3, cells) ** 2 + squares.reshape(3, cells)) * start.strength[:, 0, :]
    assert value == pytest.approx(loss_value + 0.5 * ridge.sum(), rel=1e-10)
    free = slice(None) if intercept else slice(0, -c)
    for axis in rng.normal(size=(4, len(x))):
        axis[-c:] *= intercept
        step = 1e-6
        both = [start._objective(x + t * axis)[0] for t in (step, -step)]
        expected = (both[0] - both[1]) / (2 * step)
        assert slope[free] @ axis[free] == pytest.approx(expected, rel=1e-5, abs=1e-6)
    if not intercept:
        assert not slope[-c:].any()


def exact(monkeypatch, X, problem, groups):
    """Let the products of `X` be in float64."""
    A = problem.design.gather(slice(None), groups)
    if problem.center is not None:
        A = A - problem.center[groups].ravel()
    monkeypatch.setattr(X, "predict", lambda Z, used=None: A @ Z.reshape(A.shape[1], -1))
    shape = (len(groups), problem.design.dim, -1)
    monkeypatch.setattr(X, "correlate", lambda V, used=None: (A.T @ V).reshape(shape))
    return A


@pytest.mark.parametrize("penalty", ["token", "token-output"])
@pytest.mark.parametrize(("loss", "c"), LOSSES, ids=IDS)
def test_a_start_is_near_the_optimum(loss, c, penalty):
    problem = made(loss, c, penalty)
    beta = 0.1 * problem.beta_max
    X = low_precision(problem.design, np.arange(8), problem.center)
    at = FactoredStart(task_of(problem, beta), problem.null, X, 1e-4).run()
    assert at.gap(beta) <= 0.02 < problem.null.gap(beta)
    # The factored objective is never below the convex one.
    expected = solve(problem, beta, tol=1e-9, strategy="newton").certificate
    assert at.primal(beta) >= expected.dual


# The model ----------------------------------------------------------------------------------------


def dense(problem, groups, F):
    """``X' H X`` with the intercept eliminated, coefficients ordered (group, channel, output)."""
    A = problem.design.gather(slice(None), groups)
    c, p = problem.n_outputs, A.shape[1]
    H = problem.risk.curvature(F)
    blocks = np.zeros((len(A), c, c))  # of every sample
    for j in range(c):
        blocks[:, j, j] = H[:, j]
    if problem.loss.joint:
        blocks -= H[:, :, None] * H[:, None, :]
    blocks *= problem.weight[:, None, None]
    Q = np.einsum("ip,ijl,iq->pjql", A, blocks, A).reshape(p * c, p * c)
    if problem.intercept:
        q = np.einsum("ip,ijl->pjl", A, blocks).reshape(p * c, c)
        Q -= q @ np.linalg.pinv(blocks.sum(axis=0), rcond=1e-12) @ q.T
    return Q


@pytest.fixture(params=[True, False], ids=["intercept", "none"])
def intercept(request):
    return request.param


@pytest.fixture(params=list(zip(LOSSES, IDS, strict=True)), ids=IDS)
def model(request, intercept):
    (loss, c), _ = request.param
    problem = made(loss, c, intercept=intercept, weighted=True, n=5, d=4)
    groups = np.array([0, 2, 3])
    F = 0.3 * np.random.default_rng(1).normal(size=problem.Y.shape)
    X = low_precision(problem.design, groups, problem.center)
    return Model(X, problem.risk, F), dense(problem, groups, F), (3, 4, c)


def test_products_are_those_of_the_hessian(model):
    model, Q, shape = model
    Z = np.random.default_rng(0).normal(size=shape)
    expected = (Q @ Z.ravel()).reshape(shape)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(model.apply(Z), expected, atol=1e-4 * scale)
    several = np.random.default_rng(1).normal(size=(*shape, 7))
    expected = (Q @ several.reshape(-1, 7)).reshape(several.shape)
    np.testing.assert_allclose(model.apply(several), expected, atol=1e-4 * np.abs(expected).max())


def test_many_products_at_once_are_formed_in_blocks(model, monkeypatch):
    model, _, shape = model
    several = np.random.default_rng(1).normal(size=(*shape, 7))
    whole = model.apply(several)
    monkeypatch.setattr(newton_cg, "BLOCK_NUMBERS", 2 * len(model.H) * shape[2])
    np.testing.assert_allclose(model.apply(several), whole, atol=1e-5 * np.abs(whole).max())


@pytest.mark.parametrize("separable", [True, False])
def test_cells_enter_along_their_correlation_and_not_too_far(model, separable):
    model, Q, shape = model
    rng = np.random.default_rng(0)
    G = rng.normal(size=shape)
    G[1] = 0.0  # a cell that does not enter
    axis = 1 if separable else (1, 2)
    size = np.sqrt((G**2).sum(axis=axis)).reshape(3, -1)
    radius = 0.5 * np.where(size > 0, size, 1.0).min(axis=1, keepdims=True)
    move = model.entry(G, radius, separable)
    assert not move[1].any() and np.all(np.isfinite(move))
    lengths = np.sqrt((move**2).sum(axis=axis)).reshape(3, -1)
    sizes, ratio = np.where(size > 0, size, 1.0), np.where(size > 0, lengths, 0.0)
    expand = (lambda u: u[:, None, :]) if separable else (lambda u: u.reshape(3, 1, 1))
    np.testing.assert_allclose(move, expand(ratio / sizes) * G, atol=1e-12)
    # Of the model along the move: descent, and no further than its minimum.
    gain = float(np.sum((size - radius).clip(0) * lengths))
    bend = float(move.ravel() @ Q @ move.ravel())
    assert gain > 0 and bend <= gain * (1 + 1e-3)


def test_one_cell_enters_to_its_best_or_less(model):
    model, Q, shape = model
    rng = np.random.default_rng(2)
    G = np.zeros(shape)
    G[0] = rng.normal(size=shape[1:])
    size = np.linalg.norm(G)
    radius = np.full((3, 1), 0.25 * size)
    move = model.entry(G, radius, False)
    unit = G.ravel() / size
    best = 0.75 * size / (unit @ Q @ unit)  # with the intercept at its best
    assert 0 < move.ravel() @ unit <= best * (1 + 1e-3)


# The preconditioner -------------------------------------------------------------------------------


def cells_of(model, shape, separable, rng):
    cells = shape[2] if separable else 1
    axis = 1 if separable else (1, 2)
    Z = rng.normal(size=shape)
    norms = np.sqrt((Z**2).sum(axis=axis)).reshape(shape[0], 1, cells)
    return Z / norms, np.sqrt(norms)


@pytest.mark.parametrize("separable", [True, False])
def test_a_sketch_of_full_rank_is_the_model(model, separable):
    model, Q, shape = model
    unit, scale = cells_of(model, shape, separable, np.random.default_rng(0))
    sketch = Sketch.of(model, scale, unit)
    B = sketch.factor(scale)
    wide = np.broadcast_to(scale, shape).ravel()
    expected = wide[:, None] * Q * wide
    np.testing.assert_allclose(B @ B.T, expected, atol=2e-4 * np.abs(expected).max())


@pytest.mark.parametrize("separable", [True, False])
def test_a_sketch_of_low_rank_is_below_the_model_and_exact_along_cells(
    model, separable, monkeypatch
):
    model, Q, shape = model
    monkeypatch.setattr(newton_cg, "RANK", 9)
    unit, scale = cells_of(model, shape, separable, np.random.default_rng(0))
    if unit[..., 0].size and scale.size > 9:
        pytest.skip("more cells than the rank")
    B = Sketch.of(model, scale, unit).factor(scale)
    wide = np.broadcast_to(scale, shape).ravel()
    S = wide[:, None] * Q * wide
    size = np.abs(np.linalg.eigvalsh(S)).max()
    assert np.linalg.eigvalsh(S - B @ B.T).min() >= -1e-3 * size
    for k in range(3):
        for cell in range(scale.shape[2]):
            u = np.zeros(shape)
            own = slice(cell, cell + 1) if separable else slice(None)
            u[k, :, own] = unit[k, :, own]
            u = u.ravel()
            assert u @ B @ B.T @ u == pytest.approx(u @ S @ u, abs=1e-3 * size)


def test_a_sketch_is_restricted_to_fewer_groups(model):
    model, _, shape = model
    unit, scale = cells_of(model, shape, False, np.random.default_rng(0))
    sketch = Sketch.of(model, scale, unit)
    columns, groups = model.X, model.X.groups
    model.X = type(columns)(columns.A, columns.unit, columns.offset, groups[[0, 2]], columns.dim)
    some = sketch.restricted(model)
    np.testing.assert_array_equal(some.B, sketch.B[[0, 2]])
    model.X = type(columns)(columns.A, columns.unit, columns.offset, groups + 1, columns.dim)
    assert sketch.restricted(model) is None


@pytest.mark.parametrize("axes", [(1,), (1, 2)])
@pytest.mark.parametrize("flat", [1e-3, 0.5])
def test_the_preconditioner_is_the_inverse(axes, flat):
    rng = np.random.default_rng(0)
    shape = (4, 3, 2)
    unit = rng.normal(size=shape)
    unit /= np.sqrt((unit**2).sum(axis=axes, keepdims=True))
    unit[1] = 0.0  # a cell that is not in use
    C = rng.normal(size=(24, 5))
    P = np.eye(24) + C @ C.T
    for k in range(4):
        for own in (slice(0, 1), slice(1, 2)) if axes == (1,) else (slice(None),):
            u = np.zeros(shape)
            u[k, :, own] = unit[k, :, own]
            P -= (1 - flat) * np.outer(u, u)
    inverse = Preconditioner(C, unit, axes, flat)
    t = rng.normal(size=shape)
    np.testing.assert_allclose(P @ inverse(t).ravel(), t.ravel(), atol=1e-9)


def test_conjugate_gradients_solve():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(30, 30))
    A = A @ A.T + 0.1 * np.eye(30)
    right, calls = rng.normal(size=30), []

    def operator(t):
        calls.append(1)
        return A @ t

    t, products = conjugate_gradients(operator, right, lambda r: r, 200, 1e-10)
    np.testing.assert_allclose(A @ t, right, atol=1e-6)
    assert products == len(calls) < 200
    exactly = np.linalg.inv(A)
    t, products = conjugate_gradients(operator, right, lambda r: exactly @ r, 200, 1e-10)
    assert products <= 2
    np.testing.assert_allclose(A @ t, right, atol=1e-6)
    t, products = conjugate_gradients(operator, right, lambda r: r, 3, 1e-10)
    assert products == 3 and np.all(np.isfinite(t))
    t, products = conjugate_gradients(lambda t: 0 * t, right, lambda r: r, 9)  # no curvature
    assert not t.any() and products == 0


# Limits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_time", [0.0, 0.05, 0.2])
@pytest.mark.parametrize(("loss", "c"), [(Squared(), 1), (Logistic(), 2), (Softmax(), 3)])
def test_max_time_is_kept(loss, c, max_time):
    problem = made(loss, c, N=2000, n=16, d=64)
    beta = 1e-3 * problem.beta_max
    _ = problem.design.norm
    start = time.process_time()
    found = solve(problem, beta, tol=1e-12, strategy="newton-cg", max_time=max_time)
    assert time.process_time() - start < max(max_time, 0.3) + 0.5
    assert found.status in (Status.TIME, Status.CONVERGED, Status.PRECISION)
    assert found.certificate.primal <= problem.null.loss * (1 + 1e-9)
    assert found.trace


def test_it_can_be_stopped_within_products(monkeypatch):
    problem = made(Logistic())
    task = task_of(problem, 0.01 * problem.beta_max, 1e-12)
    calls = []

    def late():
        calls.append(1)
        return len(calls) > 40

    monkeypatch.setattr(task.clock, "late", late)
    at, done = newton_cg.minimise(task, problem.null)
    assert done and at.primal(task.beta) <= problem.null.loss
    assert len(calls) < 60  # it has not gone on for long
    check_stop()  # nothing is left behind


def test_max_iter_is_kept():
    problem = made(Logistic())
    found = solve(problem, 0.01 * problem.beta_max, tol=1e-12, strategy="newton-cg", max_iter=2)
    assert found.n_iter == 2 and found.status is Status.ITERATIONS
