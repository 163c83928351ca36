"""Block coordinate descent over tokens, compiled and in NumPy: the squared loss."""

import shutil
from functools import partial

import numpy as np
import pytest
from tests.strategies import only, start, task_of, without_gram

from convexformer import _core
from convexformer._core import _numpy
from convexformer.problem import (
    Certificate,
    GatedDesign,
    Logistic,
    Problem,
    Squared,
    Token,
    TokenDesign,
    TokenOutput,
)
from convexformer.solvers import block_descent, solve, solve_path
from convexformer.solvers.block_descent import BlockDescent, Tokens
from convexformer.solvers.solution import Clock, Solution, Status

descend = partial(solve, strategy="block-descent")


def made(N=600, n=30, d=6, common=0.0, scale=1.0, gates=0, penalty=None, size=1.0, **more):
    rng = np.random.default_rng(0)
    X = scale * (rng.normal(size=(N, n, d)) + common * rng.normal(size=(N, 1, d)))
    y = np.einsum("nkd,kd->n", X[:, :4], rng.normal(size=(4, d)))
    y = size * (y / y.std() + 0.5 * rng.normal(size=N))
    design = TokenDesign(X)
    if gates:
        design = GatedDesign(design, rng.random((N, gates)) < 0.5)
    return Problem(design, Squared(), TokenOutput(penalty), y[:, None], **more)


@pytest.fixture(params=["compiled", "packed", "NumPy"])
def cycle(request, monkeypatch):
    """All ways, in turn."""
    if request.param == "NumPy":
        monkeypatch.setattr(_core, "block_descent", _numpy.block_descent)
    elif not _core.COMPILED:
        pytest.skip("nothing was compiled")
    if request.param == "packed":
        monkeypatch.setattr(block_descent, "FAR_BYTES", 0.0)
    return _core.block_descent


@pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler")
def test_where_there_is_a_compiler_all_is_compiled():
    assert _core.COMPILED


@pytest.fixture
def descent_only(monkeypatch):
    """In samples, and by nothing else."""
    without_gram(monkeypatch)
    only(monkeypatch, "block-descent")


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


@pytest.mark.usefixtures("cycle", "descent_only")
@pytest.mark.parametrize("fraction", [0.5, 0.1, 0.02])
@pytest.mark.parametrize("case", CASES)
def test_the_optimum_is_newtons(monkeypatch, case, fraction):
    problem = made(**CASES[case])
    beta = fraction * problem.beta_max
    found = descend(problem, beta, tol=1e-8)
    assert found.converged and found.strategy == "block-descent"
    monkeypatch.undo()
    expected = solve(problem, beta, tol=1e-10, strategy="newton").certificate
    assert found.certificate.primal == pytest.approx(expected.primal, rel=2e-8)
    assert found.certificate.dual <= expected.primal * (1 + 1e-12)


@pytest.mark.usefixtures("descent_only")
@pytest.mark.parametrize("intercept", [True, False])
def test_pairs_that_cancel_have_a_length(intercept):
    rng = np.random.default_rng(0)
    b = np.stack([rng.permutation(np.arange(1000) % 2) for _ in range(100)], axis=1)
    X = np.stack([b, 1 - b], axis=2).astype(float) - (0.0 if intercept else 0.5)
    y = X[:, :5, 0] @ rng.normal(size=5) + 0.5 * rng.normal(size=1000)
    problem = Problem(TokenDesign(X), Squared(), TokenOutput(), y[:, None], intercept=intercept)
    assert descend(problem, 0.1 * problem.beta_max, tol=1e-8).converged


@pytest.mark.usefixtures("descent_only")
@pytest.mark.parametrize("scale", [1e45, 1e-45, 1e100])
def test_targets_of_any_size(scale):
    one, other = made(), made(size=scale)
    found = descend(other, 0.1 * other.beta_max, tol=1e-8)
    expected = descend(one, 0.1 * one.beta_max, tol=1e-8)
    assert found.converged and found.n_iter == expected.n_iter
    np.testing.assert_allclose(found.Z, scale * expected.Z, atol=1e-5 * scale)


@pytest.mark.usefixtures("descent_only")
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
        init = Solution(Z, np.zeros(1), Certificate(1.0, 0.0, 1.0, 1.0), Status.ITERATIONS)
    else:
        X[:, ::2] *= 1e12
        X[:, 1::4] *= 1e-12
    y = X[:, 3] @ rng.normal(size=8)
    y = y / y.std() + 0.5 * rng.normal(size=800)
    problem = Problem(TokenDesign(X), Squared(), TokenOutput(), y[:, None])
    found = descend(problem, 0.3 * problem.beta_max, init=init)
    assert found.converged


def spied(monkeypatch):
    """What every cycle returns."""
    found, plain = [], _core.block_descent

    def spy(*state):
        found.append(plain(*state))
        return found[-1]

    monkeypatch.setattr(_core, "block_descent", spy)
    return found


@pytest.mark.usefixtures("cycle")
def test_alike_tokens_are_left_to_newton_after_a_few_cycles(monkeypatch):
    problem = made(N=3000, n=40, d=12, common=30.0, intercept=False)  # cycles take a millisecond
    cycles = spied(monkeypatch)
    without_gram(monkeypatch)
    found = descend(problem, 0.01 * problem.beta_max)
    assert found.converged and found.strategy == "block-descent + newton"
    assert 0 < len(cycles) <= 20


WAYS = ["in samples", "in coefficients"]


def state(n=5, d=3, c=2, N=40, part=None, way="in samples", seed=0, packed=False):
    """What a cycle takes, of random tokens, some in use; and the tokens and what is left."""
    rng = np.random.default_rng(seed)
    part = part or c
    A = rng.normal(size=(n, d, N)).astype(np.float32)
    if packed:
        A = np.rint(1000 * A) / np.float32(1000)
    grams = A @ A.transpose(0, 2, 1)
    Z = rng.normal(size=(n, c, d)) * (np.arange(n) % 2)[:, None, None]
    v = rng.normal(size=(c, N))
    M = np.einsum("kdi,ci->kcd", A.astype(float), v)
    limit = rng.uniform(1, 8, n)
    step = 1 / np.linalg.eigvalsh(grams.astype(float)).max(axis=1)
    square = np.sum(v.reshape(c // part, -1) ** 2, axis=1)
    flat = A.reshape(n * d, N)
    tokens = A if way != WAYS[1] else (flat.astype(float) @ flat.T).reshape(n, d, n * d)
    shape = (n, d, c, tokens.shape[2], part, way != WAYS[1])
    state = tuple(tokens), tuple(grams), shape, step, limit, square, Z, M
    return state, A.astype(float), v


@pytest.mark.skipif(not _core.COMPILED, reason="nothing was compiled")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "shape",
    [
        (5, 3, 2, 40),
        (7, 1, 4, 33),
        (1, 9, 1, 15),
        (6, 8, 3, 1029),
        (40, 2, 1, 500),
        (9, 5, 4, 70, 1),
        (3, 19, 5, 2100),
        (4, 19, 1, 2112),  # from here on samples fill wide registers
        (5, 17, 2, 96, 1),
        (4, 13, 4, 1056, 1),
        (3, 67, 2, 160, 1),
        (2, 130, 1, 320),
    ],
)
def test_what_is_compiled_does_what_numpy_does(shape, way):
    size = dict(zip(("n", "d", "c", "N", "part"), shape, strict=False))
    one, other = (state(**size, way=way)[0] for _ in range(2))
    for at in (one, other):  # a token that some outputs use
        at[6][1:2, ::2] = 0.0
    for count in (5, 5, 2):
        found, expected = _core.block_descent(*one, count), _numpy.block_descent(*other, count)
        assert found[0] == pytest.approx(expected[0], rel=1e-6)
        assert found[1] == pytest.approx(expected[1], rel=1e-2, abs=1e-5 * expected[0])
    for here, there in zip(one[5:8], other[5:8], strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-3, atol=1e-4 * np.abs(there).max())


@pytest.mark.skipif(not _core.COMPILED, reason="nothing was compiled")
@pytest.mark.parametrize(
    "shape",
    [
        (5, 3, 2, 40),
        (4, 19, 1, 2100),
        (6, 8, 5, 1029, 1),
        (4, 19, 1, 2112),
        (5, 17, 2, 96, 1),
        (4, 13, 7, 1056, 1),
    ],
)
def test_packed_tokens_move_as_others_do(shape):
    size = dict(zip(("n", "d", "c", "N", "part"), shape, strict=False))
    plain, packed, in_numpy = (state(**size, packed=True)[0] for _ in range(3))
    for at in (packed, in_numpy):
        for array, factor in zip(at[5:8], (1.0, 1e-3, 1e3), strict=True):
            array *= factor
    tokens = tuple(np.rint(1000 * A).astype(np.int16) for A in plain[0])
    grams = tuple(np.float32(1e6) * G for G in plain[1])
    more = plain[2], plain[3] * 1e-6, plain[4] * 1e3
    for cycle, at in ((_core.block_descent, packed), (_numpy.block_descent, in_numpy)):
        expected = _core.block_descent(*state(**size, packed=True)[0])
        found = cycle(tokens, grams, *more, *at[5:])
        assert found[0] == pytest.approx(expected[0], rel=1e-6)
        assert found[1] == pytest.approx(expected[1], rel=1e-2, abs=1e-5 * expected[0])


@pytest.mark.skipif(not _core.COMPILED, reason="nothing was compiled")
@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("shape", [(3, 1, 5), (4, 7, 600), (2, 12, 1500), (2, 14, 4128)])
def test_tokens_are_prepared(shape, packs):
    n, d, _ = shape
    A = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    A[1] *= 1e-6
    if shape[2] == 600:
        A[2], A[3, 0, 0] = 0.0, 1e5  # one of nothing, and one whose other entries are small beside
    found, expected = [], []
    for prepare, results in ((_core.prepare_tokens, found), (_numpy.prepare_tokens, expected)):
        gram, unit = np.empty((n, d, d), np.float32), np.full(n, 2.0)
        packed = np.empty(shape, np.int16) if packs else None
        prepare(A.copy(), gram, unit, packed, shape)
        results += [gram, unit, packed]
    for G, other in zip(found[0], expected[0], strict=True):
        np.testing.assert_allclose(G, other, rtol=2e-3, atol=1e-3 * np.trace(other) / d)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-6)
    if packs:
        assert np.abs(found[2].astype(int) - expected[2]).max() <= 1
        given = unit[:, None, None] / 2 * found[2]
        np.testing.assert_allclose(given, A, atol=2e-5 * np.abs(A).max())


@pytest.mark.skipif(not _core.COMPILED, reason="nothing was compiled")
def test_arrays_of_tokens_must_fit():
    A, gram = np.ones((2, 3, 8), np.float32), np.empty((2, 3, 3), np.float32)
    unit, packed = np.ones(2), np.empty((2, 3, 8), np.int16)
    for j, wrong in ((0, 3), (1, 4), (2, 9), (1, 0), (0, -1)):
        shape = tuple(wrong if i == j else size for i, size in enumerate((2, 3, 8)))
        with pytest.raises(ValueError, match=r"expected|out of range"):
            _core.prepare_tokens(A, gram, unit, packed, shape)
    with pytest.raises(ValueError, match="expected"):
        _core.prepare_tokens(A, gram, unit, packed.astype(np.int32), (2, 3, 8))


def test_tokens_are_packed_where_that_is_quicker(monkeypatch):
    problem, groups = made(N=100, n=6, d=3), np.arange(6)
    kinds = []
    for size, gain in ((1e9, 0.0), (1e9, 1.0), (0.0, 0.0)):
        monkeypatch.setattr(block_descent, "FAR_BYTES", size)
        kinds.append(Tokens(problem).of(groups, gain).A[0].dtype)
    packed = np.dtype(np.int16 if _core.COMPILED else np.float32)
    assert kinds == [np.float32, packed, packed]


def test_a_last_cycle_is_as_short_as_will_do(monkeypatch):
    problem, counts, plain = made(N=400, n=30, d=4), [], _core.block_descent
    monkeypatch.setattr(_core, "block_descent", lambda *at: counts.append(at[8]) or plain(*at))
    for fraction in (0.2, 0.1, 0.05, 0.02):
        assert descend(problem, fraction * problem.beta_max).converged
    most = _numpy.SWEEPS
    assert set(counts) <= set(range(2, most + 1)) and most in counts and min(counts) < most


@pytest.mark.usefixtures("cycle")
@pytest.mark.parametrize("gap", [0.0, -1e-18, 1e-3])
def test_a_round_may_start_where_it_ends(gap):
    problem = made(N=200, n=5, d=3)
    beta = 0.3 * problem.beta_max
    at, groups = start(problem, solve(problem, beta, tol=1e-12)), np.arange(5)
    descent = BlockDescent(task_of(problem, beta), at, groups, 1.0)
    descent.start = descent.least = gap * at.primal(beta)
    assert descent.run(1e-9, 1e-9, Clock(10))
    assert descent.found().primal(beta) <= at.primal(beta) * (1 + 1e-12)


@pytest.mark.usefixtures("cycle")
@pytest.mark.parametrize("way", WAYS)
def test_tokens_may_be_one_array(way):
    (at, *_), (other, *_) = (state(way=way) for _ in range(2))
    other = (np.array(other[0]), np.array(other[1]), *other[2:])
    assert _core.block_descent(*at) == _core.block_descent(*other)


@pytest.mark.skipif(not _core.COMPILED, reason="nothing was compiled")
def test_rows_become_columns():
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(45, 36)), np.array([4, 0, 3, 11], dtype=np.int32)
    A, shape = np.zeros((4, 3, 60), dtype=np.float32), (45, 36, 4, 3, 8, 60)
    center, factor, root = rng.normal(size=(4, 3)), 1.0 + np.arange(4), rng.uniform(size=45)
    given = (X, groups, center, factor, root, A)
    _core.transpose_tokens(*given, shape)
    expected = np.zeros_like(A)
    _numpy.transpose_tokens(*given[:5], expected, shape)
    np.testing.assert_allclose(A, expected, rtol=1e-6)
    np.testing.assert_allclose(A[1, :, 8:53], 2 * root * (X[:, :3] - center[1]).T, rtol=1e-6)
    assert not A[:, :, :8].any() and not A[:, :, 53:].any()
    for j, wrong in ((0, 44), (1, 35), (2, 3), (3, 4), (4, 16), (4, -1), (5, 59)):
        with pytest.raises(ValueError, match=r"expected|out of range"):
            _core.transpose_tokens(*given, (*shape[:j], wrong, *shape[j + 1 :]))
    for wrong in (groups + np.int32(1), groups - np.int32(1)):
        with pytest.raises(ValueError, match="out of range"):
            _core.transpose_tokens(X, wrong, *given[2:], shape)


@pytest.mark.skipif(not _core.COMPILED, reason="nothing was compiled")
@pytest.mark.parametrize("shape", [(150, 7, 13), (64, 3, 32), (1, 90, 1)])
def test_many_rows_become_columns(shape):
    X = np.random.default_rng(0).normal(size=shape)
    (N, n, d), groups = shape, np.arange(shape[1] - 1, -1, -1, dtype=np.int32)
    A = np.empty((n, d, N), dtype=np.float32)
    given = (X, groups, np.zeros((n, d)), np.ones(n), np.ones(N), A, (N, n * d, n, d, 0, N))
    _core.transpose_tokens(*given)
    assert np.array_equal(A, X[:, ::-1].transpose(1, 2, 0).astype(np.float32))


def quadratic(p=24, d=4, seed=0, rank=None):
    """A quadratic with a penalty: Hessian, descent direction at Z, Z, radius, bulk."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(rank or 3 * p, p)) / np.sqrt(p)
    Z, left = np.zeros((p // d, d, 1)), rng.normal(size=len(A))
    Z[0] = 0.1
    return A.T @ A, (A.T @ left).reshape(Z.shape), Z, np.full(p // d, 0.3), 0.5 * left @ left


def test_tokens_of_nothing_have_a_step():
    Q = np.zeros((6, 6))
    Q[3:, 3:] = np.eye(3)
    curvature = block_descent.from_gram(Q, 3).curvature
    assert np.all(curvature > 0) and np.all(np.isfinite(1.0 / curvature))


@pytest.mark.parametrize("size", [1.0, 100.0])
def test_tokens_of_very_different_sizes_have_units(size):
    X = np.random.default_rng(0).normal(size=(50, 4, 3))
    X[:, 2] *= size
    Q = (X.reshape(50, 12).T @ X.reshape(50, 12)).copy()
    tokens = block_descent.from_gram(Q, 3)
    assert (tokens.A is not Q and len(set(tokens.unit)) == 4) == (size > 1)
    scale = np.repeat(tokens.unit, 3)
    np.testing.assert_allclose(tokens.A.reshape(12, 12) * scale * scale[:, None], Q)


def test_a_start_may_use_tokens_that_are_zero_here():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 8, 4))
    y = np.sign(X[:, 1, :1] + rng.normal(size=(2000, 1)))
    X[:, 0] = 0.0
    for loss in (Squared(), Logistic()):
        problem = Problem(TokenDesign(X), loss, Token(), y)
        start = solve(problem, 0.2 * problem.beta_max)
        start.Z[0] = 1e-3
        found = solve(problem, 0.1 * problem.beta_max, init=start)  # a warning would be an error
        assert found.converged and not found.Z[0].any()


@pytest.mark.usefixtures("cycle")
@pytest.mark.parametrize("penalty", [Token, TokenOutput])
def test_tokens_that_the_optimum_does_not_use_are_zero(penalty):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        N, n, d = int(rng.integers(300, 800)), int(rng.integers(8, 25)), int(rng.integers(4, 14))
        X, W = rng.normal(size=(N, n, d)), np.zeros((n, d, 3))
        for j in range(3):
            W[rng.choice(n, 2, replace=False), :, j] = 1.0
        Y = np.einsum("nkd,kdc->nc", X, W) + 0.5 * rng.normal(size=(N, 3))
        problem = Problem(TokenDesign(X), Squared(), penalty(), Y)
        Z, exact = (descend(problem, 0.2 * problem.beta_max, tol=tol).Z for tol in (1e-6, 1e-12))
        assert np.array_equal(np.any(Z, axis=1), np.any(exact, axis=1))


@pytest.mark.usefixtures("cycle")
@pytest.mark.parametrize("way", WAYS)
def test_a_cycle_never_raises_the_objective(way):
    at = state(n=60, d=12, c=1, N=150, way=way)[0]
    values = [_core.block_descent(*at)[0] for _ in range(12)]
    assert np.all(np.diff(values) <= 1e-9 * values[0]) and values[-1] < 0.9 * values[0]


@pytest.mark.usefixtures("cycle")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("d", [1, 4])
def test_books_are_kept_when_there_is_nothing_left_to_move(d, way):
    at, A, v = state(n=3, d=d, c=8, N=640, part=1, way=way, seed=3)
    Z0 = at[6].copy()
    for _ in range(25):
        value, _ = _core.block_descent(*at)
    v = v - np.einsum("kcd,kdi->ci", at[6] - Z0, A)
    expected = 0.5 * np.sum(v**2) + np.sum(at[4] @ np.linalg.norm(at[6], axis=2))
    assert value == pytest.approx(expected, rel=1e-6)


@pytest.mark.usefixtures("cycle")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("penalty", [Token, TokenOutput])
def test_a_cycle_keeps_its_books(penalty, way):
    part = 2 if penalty is Token else 1
    at, A, v = state(n=8, N=100, part=part, way=way)
    limit, square, Z, M = at[4:]
    Z0, size = Z.copy(), np.abs(M).max()
    for _ in range(3):
        value, gap = _core.block_descent(*at)
    v = v - np.einsum("kcd,kdi->ci", Z - Z0, A)
    expected = np.einsum("kdi,ci->kcd", A, v)
    np.testing.assert_allclose(M, expected, atol=1e-6 * size)
    np.testing.assert_allclose(square, np.sum(v.reshape(2 // part, -1) ** 2, axis=1), rtol=1e-6)
    norms = np.linalg.norm(Z.reshape(8, -1, 3 * part), axis=2)
    assert value == pytest.approx(0.5 * np.sum(v**2) + np.sum(limit @ norms), rel=1e-6)
    # The targets are what is left and what was taken: the gap is the problem's own.
    X, Y = A.transpose(2, 0, 1), (v + np.einsum("kcd,kdi->ci", Z, A)).T
    problem = Problem(TokenDesign(X.copy()), Squared(), penalty(limit), Y, intercept=False)
    certificate = problem.certificate(Z.transpose(0, 2, 1), np.zeros(2), 1.0)
    assert gap == pytest.approx(certificate.gap, rel=1e-2, abs=1e-5 * value)


@pytest.mark.skipif(not _core.COMPILED, reason="nothing was compiled")
def test_arrays_that_do_not_fit_are_refused():
    good, _, _ = state()
    wrongs = ((0, good[0][:-1]), (1, good[0]), (3, good[3][1:]), (6, good[6].astype(np.float32)))
    for j, wrong in (*wrongs, (2, (*good[2][:5], False))):
        with pytest.raises(ValueError, match=r"expected|every token|out of range"):
            _core.block_descent(*good[:j], wrong, *good[j + 1 :])
    with pytest.raises((ValueError, BufferError)):
        _core.block_descent(*good[:6], good[6].transpose(0, 2, 1), *good[7:])
    for wrong in (0, _numpy.SWEEPS + 1):
        with pytest.raises(ValueError, match=f"1 to {_numpy.SWEEPS} sweeps"):
            _core.block_descent(*good, wrong)
    good[7].flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        _core.block_descent(*good)


@pytest.mark.usefixtures("cycle", "descent_only")
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("penalty", [Token, TokenOutput])
@pytest.mark.parametrize("c", [3, 7])
def test_several_outputs_move_together(monkeypatch, c, penalty, intercept):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 15, 4))
    Y = np.einsum("nkd,kdc->nc", X[:, :3], rng.normal(size=(3, 4, c))) + rng.normal(size=(400, c))
    problem = Problem(TokenDesign(X), Squared(), penalty(), Y, intercept=intercept)
    found = descend(problem, 0.1 * problem.beta_max, tol=1e-8)
    assert found.converged and found.strategy == "block-descent"
    monkeypatch.undo()
    expected = solve(problem, 0.1 * problem.beta_max, tol=1e-10, strategy="newton").certificate
    assert found.certificate.primal == pytest.approx(expected.primal, rel=2e-8)


def test_tokens_are_read_once_and_hold_what_was_asked_for():
    problem = made(N=50, n=8, d=2, common=3.0, sample_weight=np.linspace(0, 2, 50))
    tokens = Tokens(problem)
    first = tokens.of(np.array([1, 4, 6]))
    X = (problem.design.X - problem.center) * np.sqrt(problem.weight)[:, None, None]
    for k, A, unit, gram, curvature in zip((1, 4, 6), *first, strict=True):
        np.testing.assert_allclose(unit * A[:, :50], X[:, k].T, rtol=1e-6, atol=1e-6)
        assert not A[:, 50:].any()  # up to where a line of cache begins
        np.testing.assert_allclose(gram, A @ A.T, rtol=1e-3, atol=1e-3 * np.trace(gram))
        longest = np.linalg.norm(A, 2) ** 2
        assert 0.9999 * longest < curvature < 1.2 * longest
    again = tokens.of(np.array([1, 3, 4]))
    assert again.A[0] is first.A[0] and again.A[2] is first.A[1]
    assert tokens.of(np.array([4])).A[0] is first.A[1]
    assert list(tokens._kept) == [4]  # what is of no use is let go


def test_a_path_keeps_its_tokens(monkeypatch):
    problem, read = made(intercept=True), []
    plain = Tokens._read
    without_gram(monkeypatch)
    monkeypatch.setattr(
        Tokens, "_read", lambda self, groups: read.extend(groups.tolist()) or plain(self, groups)
    )
    betas = problem.beta_max * np.geomspace(1.0, 0.05, 12)
    assert all(s.converged for s in solve_path(problem, betas, strategy="block-descent"))
    assert len(read) == len(set(read))


def test_tokens_of_more_channels_than_samples_are_left_to_newton(monkeypatch):
    """Their own Gram matrices would be larger than they are."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 6, 300))
    problem = Problem(
        TokenDesign(X), Squared(), TokenOutput(), X[:, 0, :1] + rng.normal(size=(40, 1))
    )
    monkeypatch.setattr(Tokens, "of", lambda *_: pytest.fail("tokens were prepared"))
    assert solve(problem, 0.1 * problem.beta_max).converged
