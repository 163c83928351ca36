"""Many narrow rows of X: both products in one pass, and Gram matrices without gathering."""

import numpy as np
import pytest
from tests.duals import dual_at

from convexformer.problem import Problem, Squared, TokenDesign, TokenOutput, tokens
from convexformer.problem.designs import Design
from convexformer.solvers import solve


def made(weighted=False, intercept=True, c=1, N=3000, n=6, d=5):
    rng = np.random.default_rng(0)
    X, weight = rng.normal(size=(N, n, d)) + 3.0, rng.uniform(0, 2, N) if weighted else None
    y = X[:, 1, :c] - X[:, 2, 1 : 1 + c] + rng.normal(size=(N, c)) + 7.0
    return Problem(TokenDesign(X), Squared(), TokenOutput(), y, weight, intercept)


@pytest.fixture
def far(monkeypatch):
    """As if X were beyond the cache."""
    monkeypatch.setattr(tokens, "FAR_BYTES", 0)


@pytest.mark.parametrize("c", [1, 2, 3, 4])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_scores_and_dual_points_are_those_of_two_passes(core, monkeypatch, weighted, intercept, c):
    Z = np.random.default_rng(1).normal(size=(6, 5, c))
    plain = made(weighted, intercept, c)
    assert not plain.follows
    monkeypatch.setattr(tokens, "FAR_BYTES", 0)
    far = made(weighted, intercept, c)
    assert far.follows
    np.testing.assert_allclose(far.scores(Z), plain.scores(Z), atol=1e-11)
    assert far.beta_max == pytest.approx(plain.beta_max, rel=1e-12)
    beta, b = 0.1 * plain.beta_max, np.full(c, 0.3)
    one, other = (p.certificate(Z, b, beta) for p in (far, plain))
    assert one.primal == pytest.approx(other.primal, rel=1e-12)
    assert one.dual == pytest.approx(other.dual, rel=1e-10)
    best = [p.at(Z, b) for p in (far, plain)]
    for name in ("M", "V", "S", "F", "b"):
        np.testing.assert_allclose(*(getattr(point, name) for point in best), atol=1e-9)


def test_rows_are_followed_from_afar(monkeypatch):
    X = made().design.X
    for far in (0, 1 << 40):
        monkeypatch.setattr(tokens, "FAR_BYTES", far)
        assert TokenDesign(X).follows(4) is (far == 0)
        assert not TokenDesign(X).follows(5)


@pytest.mark.usefixtures("far")
def test_a_point_costs_one_pass(monkeypatch):
    problem, passes = made(), []
    plain = TokenDesign.follow
    monkeypatch.setattr(
        TokenDesign, "follow", lambda self, *given: passes.append(1) or plain(self, *given)
    )
    for name in ("predict", "correlate"):  # nothing but `follow` reads X
        monkeypatch.setattr(TokenDesign, name, lambda *_: pytest.fail("a pass more"))
    Z = np.ones((6, 5, 1))
    first = len(passes)
    point = problem.at(Z, np.zeros(1))
    assert point.gap(1.0) > 0
    assert len(passes) == first + 1
    monkeypatch.undo()
    np.testing.assert_allclose(point.M, problem.design.correlate(point.V), atol=1e-9)
    other = dual_at(problem, np.random.default_rng(0).normal(size=(3000, 1)))
    np.testing.assert_allclose(other.M, problem.design.correlate(other.V), atol=1e-9)


@pytest.mark.usefixtures("far")
def test_the_optimum_is_found_and_copies_keep_their_own():
    problem = made()
    assert solve(problem, 0.1 * problem.beta_max, tol=1e-9).converged
    Z = np.ones((6, 5, 1))
    problem.at(Z)
    others = problem.outputs([0]), problem._with_targets(-problem.Y, -problem.shift)
    assert np.abs(others[0].at(Z).V - others[1].at(Z).V).max() > 1.0
    for other, point in ((o, p) for o in others for p in (o.at(Z), dual_at(o, o.scores(Z)))):
        assert point.V is not None and other.follows
        np.testing.assert_allclose(point.M, problem.design.correlate(point.V), atol=1e-9)


@pytest.mark.usefixtures("far")
def test_without_an_intercept_a_constant_matters():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 6, 5))
    X[:, 0] = 0.0
    X[:, 0, 0] = 1.0  # a token that is an intercept
    y = X[:, 1, :1] + 5.0 + rng.normal(size=(3000, 1))
    fresh, used = (
        Problem(TokenDesign(X), Squared(), TokenOutput(), y, intercept=False) for _ in range(2)
    )
    Z = np.zeros((6, 5, 1))
    Z[0, 0] = 2.0
    used.certificate(Z, np.zeros(1), 0.8 * fresh.beta_max)
    assert used.beta_max == pytest.approx(fresh.beta_max, rel=1e-12)
    found, expected = (solve(p, 0.8 * fresh.beta_max).certificate for p in (used, fresh))
    assert found.primal == pytest.approx(expected.primal, rel=1e-6)


@pytest.mark.parametrize("rows", [1, 6, 259, 515])
def test_any_number_of_rows(core, rows):
    rng = np.random.default_rng(rows)
    design = TokenDesign(rng.normal(size=(rows, 3, 7)))
    weight = rng.uniform(0, 2, rows)
    for c in (1, 2, 3, 4):
        given = rng.normal(size=(3, 7, c)), rng.normal(size=(rows, c)), weight
        found, expected = (kind.follow(design, *given) for kind in (TokenDesign, Design))
        for part, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(part, other, atol=1e-11)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(
    ("N", "n", "d", "new", "old"),
    [
        (300, 9, 16, [1, 4, 7], [0, 8]),
        (391, 6, 16, [0, 1, 2, 3, 4, 5], []),
        (517, 5, 3, [4], [0, 2, 3]),
        (130, 40, 1, [39, 7], []),
        (258, 40, 16, [39, 7], [0]),
    ],
)
def test_gram_matrices_are_those_of_gathered_columns(core, N, n, d, new, old, weighted, dtype):
    rng = np.random.default_rng(0)
    design = TokenDesign(1e3 * (rng.normal(size=(N, n, d)) + 1.0))
    new, old = np.array(new), np.array(old, dtype=np.intp)
    weight, center = np.ones(N), None
    if weighted:
        weight, center = rng.uniform(0, 2, N), design.means(np.ones(N))
    off = N * 1e6 * (1e-14 if dtype is np.float64 else 2e-6)
    both = np.concatenate([new, old])
    found = design.gram(both, weight[:, None], center, dtype, len(new))
    exact = Design.gram(design, both, weight[:, None], center, np.float64, len(new))
    for part, expected in zip(found, exact, strict=True):
        assert part.shape == expected.shape
        np.testing.assert_allclose(part, expected, atol=off)
    inner, across = design.cross_gram(old, new, weight, center, dtype)
    np.testing.assert_array_equal(inner, found[0][0][:, : inner.shape[1]])
    np.testing.assert_array_equal(across.T, found[0][0][:, inner.shape[1] :])


def test_half_of_a_gram_matrix_of_few_plain_columns_is_formed():
    X = np.ones((30, 4, 5))
    few, many = tokens.FEW_COLUMNS, tokens.FEW_COLUMNS + 1
    assert TokenDesign(X).halves_gram(few) and not TokenDesign(X).halves_gram(many)
    assert not TokenDesign(X.astype(np.float32)).halves_gram(few)
    assert not TokenDesign(X, np.ones((30, 4), dtype=bool)).halves_gram(few)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_squares_that_do_not_fit_float32_are_scaled_first(core, size):
    X = np.random.default_rng(0).normal(size=(200, 4, 3))
    groups = np.array([0, 2]), np.array([1])
    given = np.ones(200), None, np.float32
    for part, expected in zip(
        TokenDesign(size * X).cross_gram(*groups, *given),
        TokenDesign(X).cross_gram(*groups, *given),
        strict=True,
    ):
        np.testing.assert_allclose(part / size**2, expected, atol=1e-3)


def test_groups_and_sizes_that_do_not_fit_are_refused(compiled):
    group, ones = np.array([2, 0], np.int32), np.ones(8)
    given = [np.ones((8, 6)), group, np.zeros(4), ones, ones, np.zeros((8, 8)), np.zeros(8)]
    compiled.gram_of_columns((8, 6, 2, 2, 4, 8), 1, *given)
    assert np.all(given[5][:4, :4] == 8) and np.all(given[6][:4] == 8)
    for j in range(7):
        with pytest.raises(ValueError, match="numbers of type"):
            compiled.gram_of_columns(
                (8, 6, 2, 2, 4, 8), 1, *given[:j], given[j][:-1], *given[j + 1 :]
            )
    for shape in [(8, 6, 2, 2, 5, 8), (8, 6, 2, 2, 4, 16), (8, 6, 4, 2, 4, 8), (8, 6, 2, 0, 0, 8)]:
        with pytest.raises(ValueError, match="Sizes"):
            compiled.gram_of_columns(shape, 1, *given)
    for wrong in (3, -1):
        group[0] = wrong
        with pytest.raises(ValueError, match="out of range"):
            compiled.gram_of_columns((8, 6, 2, 2, 4, 8), 1, *given)


def test_sums_of_many_rows_round_little(compiled):
    rows = 300_000
    given = np.full((rows, 1), 0.1), np.zeros(1), np.ones(rows), np.ones(rows), np.empty(0)
    M = np.zeros(1)
    compiled.predict_and_correlate((rows, 1, 1, 0), *given, np.empty(rows), np.empty(rows), M)
    assert M[0] == pytest.approx(0.1 * rows, rel=1e-13)


def test_arrays_that_do_not_fit_are_refused(compiled):
    X, z, y, weight = np.ones((8, 3)), np.ones(3), np.arange(8.0), np.ones(8)
    s, v, M = np.empty(8), np.empty(8), np.zeros((2, 3))
    good = [X, z, y, weight, np.ones(8), s, v, M]
    compiled.predict_and_correlate((8, 3, 1, 1), *good)
    assert np.all(s == 3) and np.array_equal(v, y - 3)
    assert np.all(np.sum(y - 3) == M[0]) and np.all(M[1] == 8)
    for j in range(8):
        with pytest.raises(ValueError, match="numbers of type"):
            compiled.predict_and_correlate((8, 3, 1, 1), *good[:j], good[j][:-1], *good[j + 1 :])
    M.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        compiled.predict_and_correlate((8, 3, 1, 1), *good)
    for sizes in [(8, 3, 1, 2), (8, 3, 2, 1), (8, 3, 5, 0), (8, 3, 0, 0)]:
        with pytest.raises(ValueError, match="Sizes"):
            compiled.predict_and_correlate(sizes, *good)
