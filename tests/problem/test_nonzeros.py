"""X that is mostly zero: the same answers from its entries alone."""

import numpy as np
import pytest

from convexformer.problem import (
    Huber,
    Logistic,
    Problem,
    Softmax,
    Squared,
    Token,
    TokenDesign,
)
from convexformer.problem.designs import Design
from convexformer.problem.tokens import Nonzeros
from convexformer.solvers import solve
from convexformer.solvers.choose import newton_seconds


def letters(N=700, n=6, d=20, seed=0, dtype=np.float64):
    """One letter out of `d` at every place."""
    rng = np.random.default_rng(seed)
    X = np.zeros((N, n, d), dtype=dtype)
    X[np.arange(N)[:, None], np.arange(n), rng.integers(0, d, (N, n))] = 1.0
    return X * rng.uniform(0.5, 2.0, (N, n, 1)).astype(dtype)


@pytest.mark.parametrize(
    ("X", "mask"),
    [
        (letters(), None),
        (letters(dtype=np.float32), None),
        (letters(N=1400)[::2], None),
        (letters(n=12)[:, :6], None),
        (
            np.where(np.arange(6)[:, None] < 4, letters(), np.nan),
            np.tile(np.arange(6) < 4, (700, 1)),
        ),
    ],
    ids=["plain", "float32", "rows apart", "tokens apart", "masked"],
)
@pytest.mark.parametrize("c", [1, 3])
def test_products_are_those_of_all_entries(core, X, mask, c):
    rng = np.random.default_rng(1)
    design = TokenDesign(X, mask)
    assert design._nonzeros is not None
    A = X.astype(float).reshape(700, -1)
    if mask is not None:
        A = np.where(np.repeat(mask, 20, axis=1), A, 0.0)
    assert design._nonzeros.size == np.count_nonzero(A)
    Z, V, groups = rng.normal(size=(6, 20, c)), rng.normal(size=(700, c)), np.array([1, 3, 5])
    np.testing.assert_allclose(design.predict(Z), A @ Z.reshape(-1, c), atol=1e-12)
    some = np.zeros_like(Z)
    some[groups] = Z[groups]
    np.testing.assert_allclose(
        design.predict(Z[groups], groups), A @ some.reshape(-1, c), atol=1e-12
    )
    M = (A.T @ V).reshape(6, 20, c)
    np.testing.assert_allclose(design.correlate(V), M, atol=1e-12)
    np.testing.assert_allclose(design.correlate(V, groups), M[groups], atol=1e-12)


@pytest.mark.parametrize("centered", [False, True])
def test_gram_matrices_are_those_of_all_entries(core, centered):
    rng = np.random.default_rng(1)
    design, W = TokenDesign(letters()), rng.uniform(size=(700, 2))
    center = design.means(W[:, 0]) if centered else None
    groups = np.array([0, 2, 5])
    found, expected = (way(design, groups, W, center) for way in (TokenDesign.gram, Design.gram))
    for here, there in zip(found, expected, strict=True):
        np.testing.assert_allclose(here, there, atol=1e-11)
    for old, new in (([4, 1], [3, 0]), ([], [2, 1])):
        given = (np.array(old, dtype=np.intp), np.array(new), W[:, 0], center, np.float64)
        found, expected = (
            way(design, *given) for way in (TokenDesign.cross_gram, Design.cross_gram)
        )
        for here, there in zip(found, expected, strict=True):
            np.testing.assert_allclose(here, there, atol=1e-11)


def test_groups_of_a_gram_matrix_come_in_any_order(core):
    design, W = TokenDesign(letters()), np.random.default_rng(1).uniform(size=(700, 1))
    for groups in (np.array([3, 1]), np.array([5, 0, 2])):
        found, expected = (
            way(design, groups, W, None)[0] for way in (TokenDesign.gram, Design.gram)
        )
        np.testing.assert_allclose(found, expected, atol=1e-11)


@pytest.mark.parametrize("offset", [1e4, 1e8, 1.7e9])
def test_a_column_far_from_zero_keeps_its_digits(core, offset):
    X, rng = letters(N=2000, n=12), np.random.default_rng(0)
    X[:, 0, 0] = offset + rng.normal(size=2000)
    y = X[:, 1, :1] + 0.5 * rng.normal(size=(2000, 1))
    problem = Problem(TokenDesign(X), Squared(), Token(), y)
    assert problem.design.is_sparse
    found = problem.design.gram(np.arange(12), np.ones((2000, 1)), problem.center)[0][0]
    A = (X - problem.center).reshape(2000, -1)
    np.testing.assert_allclose(found, A.T @ A, atol=1e-6 * np.trace(A.T @ A))
    solution = solve(problem, 0.1 * problem.beta_max, max_iter=100)
    assert solution.converged


def test_one_product_is_not_worth_listing():
    X, Z = letters(), np.random.default_rng(0).normal(size=(6, 20, 1))
    design = TokenDesign(X)
    np.testing.assert_allclose(design.predict(Z), X.reshape(700, -1) @ Z.reshape(-1, 1))
    assert design._listed is None
    design.correlate(np.ones((700, 1)))
    assert design._listed is not None


def test_outliers_of_a_huber_loss_are_not_scattered():
    X, rng = letters(N=1000, n=10, d=30), np.random.default_rng(0)
    y = X[:, 1].sum(axis=1, keepdims=True) + rng.standard_t(2, size=(1000, 1))
    dense, sparse = (Problem(TokenDesign(X), loss, Token(), y) for loss in (Huber(), Squared()))
    assert newton_seconds(dense, 300) > 2 * newton_seconds(sparse, 300)


@pytest.mark.parametrize("loss", [Squared(), Logistic(), Softmax()])
def test_the_same_optimum_is_found(monkeypatch, loss):
    X, rng = letters(), np.random.default_rng(2)
    F = np.einsum("nkd,kdc->nc", X[:, :3], rng.normal(size=(3, 20, 3))) + rng.normal(size=(700, 3))
    Y = np.eye(3)[F.argmax(axis=1)] if isinstance(loss, Softmax) else F[:, :1]
    Y = np.sign(Y) if isinstance(loss, Logistic) else Y
    found = []
    for dense in (False, True):
        if dense:
            monkeypatch.setattr(TokenDesign, "_nonzeros", None)
        problem = Problem(TokenDesign(X), loss, Token(), Y)
        found.append(solve(problem, 0.1 * problem.beta_max, tol=1e-8))
        assert found[-1].converged
    np.testing.assert_allclose(*(one.certificate.primal for one in found), rtol=2e-8)


def test_too_many_entries_are_not_listed(core):
    X = letters()
    assert TokenDesign(np.random.default_rng(0).normal(size=(700, 6, 20)))._nonzeros is None
    assert TokenDesign(X[:200])._nonzeros is None  # few samples
    X[1::2] = 1.0  # many, but not where X is looked at
    assert TokenDesign(X)._nonzeros is None
    A = np.eye(12)[:10]
    assert Nonzeros.of([(slice(0, 10), A)], 10, 12).size == 10
    A[-1, :2] = 1.0
    assert Nonzeros.of([(slice(0, 10), A)], 10, 12).size == 12
    A[0, -1] = 1.0
    assert Nonzeros.of([(slice(0, 10), A)], 10, 12) is None


@pytest.mark.parametrize("columns", [1, 7, 8, 63, 64, 65, 180, 1000, 5000])
def test_entries_are_all_that_is_not_zero(core, columns):
    rng = np.random.default_rng(columns)
    A = rng.normal(size=(70, columns)) * (rng.random((70, columns)) < 0.05)
    A[13, -1], A[-1, 0] = np.nan, -0.0
    found = Nonzeros.of([(slice(0, 33), A[:33]), (slice(33, 70), A[33:])], 70, columns)
    rows, places = np.nonzero(A)
    np.testing.assert_array_equal(np.diff(found.start), np.bincount(rows, minlength=70))
    np.testing.assert_array_equal(found.column, places)
    np.testing.assert_array_equal(found.value, A[rows, places])


def test_nothing_but_zeros(core):
    X = np.zeros((300, 3, 10))
    assert TokenDesign(X)._nonzeros.size == 0
    problem = Problem(TokenDesign(X), Squared(), Token(), np.arange(300.0)[:, None])
    assert problem.beta_max == 0.0 and solve(problem, 0.0).converged


def test_arrays_that_do_not_fit_are_refused(compiled):
    X = Nonzeros.of([(slice(0, 4), np.eye(4, 40))], 4, 40)
    place, weight = np.arange(40, dtype=np.int32), np.ones(4)
    Q, q = np.zeros((40, 40)), np.zeros(40)
    good = [(4, 4, 40, 40), X.start, X.column, X.value, weight, place, Q, q]
    compiled.csr_gram(*good)
    np.testing.assert_array_equal(Q, np.diag(np.arange(40) < 4).astype(float))
    np.testing.assert_array_equal(q, np.diag(Q))
    wrong = {
        1: X.start + np.int32(1),
        2: X.column + np.int32(37),
        4: weight[1:],
        5: place + np.int32(1),
        6: Q.astype(np.float32),
        7: q[1:],
    }
    for j, array in wrong.items():
        with pytest.raises(ValueError, match=r"range|numbers of type"):
            compiled.csr_gram(*good[:j], array, *good[j + 1 :])
    with pytest.raises(ValueError, match="range"):
        compiled.csr_entries(
            (4, 40, 0), np.zeros((4, 40)), *(np.zeros(0, np.int32),) * 2, np.zeros(0)
        )
    for product, sizes in (
        (compiled.csr_predict, (40, 4)),
        (compiled.csr_correlate, (4, 40)),
    ):
        good = [(4, 4, 40, 1), X.start, X.column, X.value, *map(np.zeros, sizes)]
        product(*good)
        for j, array in {2: X.column + np.int32(37), 4: np.zeros(41), 5: np.zeros(3)}.items():
            with pytest.raises(ValueError, match=r"range|numbers of type"):
                product(*good[:j], array, *good[j + 1 :])
