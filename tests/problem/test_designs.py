"""Designs: every way X may be stored gives the dense algebra, without copying X whole."""

import tracemalloc

import numpy as np
import pytest

from convexformer.problem import Problem, Squared, Token, TokenDesign, designs
from convexformer.solvers import solve

N, n, d, c = 23, 6, 4, 3
GROUPS = np.array([4, 0, 3])


def base(seed=0):
    return np.random.default_rng(seed).normal(size=(N, n, d)) + 1.0


def store(kind, tmp_path):
    """X in some storage, its mask, and the dense float64 array it means."""
    X, mask = base(), None
    if kind == "single":
        X = X.astype(np.float32)
    elif kind == "fortran":
        X = np.asfortranarray(X)
    elif kind == "reversed":
        X = np.ascontiguousarray(X[::-1, :, ::-1])[::-1, :, ::-1]
    elif kind == "every-other":
        X = np.repeat(X, 2, axis=1)[:, ::2]
    elif kind == "transposed":
        X = np.ascontiguousarray(X.transpose(1, 0, 2)).transpose(1, 0, 2)
    elif kind.startswith("memmap"):
        dtype = np.float32 if kind.endswith("single") else np.float64
        np.save(tmp_path / "X.npy", X.astype(dtype))
        X = np.load(tmp_path / "X.npy", mmap_mode="r")
    elif kind.startswith("masked"):
        mask = np.random.default_rng(1).random((N, n)) < 0.6
        mask[3], mask[:, 4] = False, False
        X[~mask] = np.nan if kind != "masked-infinite" else np.inf
        X = X.astype(np.float32) if kind == "masked-single" else X
    dense = np.array(X, dtype=np.float64)
    if mask is not None:
        dense[~mask] = 0.0
    if X.flags.writeable:
        X.flags.writeable = False  # no method may write into what belongs to the user
    return X, mask, dense


KINDS = [
    "plain",
    "single",
    "fortran",
    "reversed",
    "every-other",
    "transposed",
    "memmap",
    "memmap-single",
    "masked",
    "masked-infinite",
    "masked-single",
]


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


SIZES = {
    "one-block": {},
    "many-blocks": {"BLOCK_BYTES": 200},  # one sample, or one group, at a time
    "tiles": {"CACHED_BYTES": 300, "TILE_ROWS": 5},  # a few samples of a group
}


@pytest.fixture(params=SIZES)
def stored(kind, request, tmp_path, monkeypatch):
    for name, value in SIZES[request.param].items():
        monkeypatch.setattr(designs, name, value)
    X, mask, dense = store(kind, tmp_path)
    return TokenDesign(X, mask), dense


def close(actual, expected):
    assert actual.dtype == np.float64
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


def test_predict_and_correlate(stored):
    design, X = stored
    rng = np.random.default_rng(2)
    Z, V = rng.normal(size=(n, d, c)), rng.normal(size=(N, c))
    close(design.predict(Z), np.einsum("ikd,kdc->ic", X, Z))
    close(design.correlate(V), np.einsum("ikd,ic->kdc", X, V))
    close(design.predict(Z[GROUPS], GROUPS), np.einsum("ikd,kdc->ic", X[:, GROUPS], Z[GROUPS]))
    close(design.correlate(V, GROUPS), np.einsum("ikd,ic->kdc", X[:, GROUPS], V))


def test_products_go_by_tiles_where_tokens_are_many(monkeypatch):
    design, seen = TokenDesign(base().astype(np.float32)), []
    gather = design.gather
    monkeypatch.setattr(design, "gather", lambda r, g: seen.append((r, len(g))) or gather(r, g))
    for name, value in SIZES["tiles"].items():
        monkeypatch.setattr(designs, name, value)
    design.correlate(np.ones((N, 1)))
    assert len(seen) > n and all(r.stop - r.start <= 5 and count < n for r, count in seen)


def test_predict_and_correlate_are_adjoint(stored):
    design, _ = stored
    rng = np.random.default_rng(3)
    Z, V = rng.normal(size=(n, d, c)), rng.normal(size=(N, c))
    left, right = np.sum(design.predict(Z) * V), np.sum(Z * design.correlate(V))
    assert left == pytest.approx(right, rel=1e-12)


def test_means(stored):
    design, X = stored
    a = np.random.default_rng(4).uniform(0, 2, size=N)
    close(design.means(a), np.einsum("i,ikd->kd", a, X) / a.sum())


@pytest.mark.parametrize("centred", [False, True])
def test_gram_takes_signed_weights(stored, centred):
    design, X = stored
    center = np.random.default_rng(5).normal(size=(n, d)) if centred else None
    A = (X if center is None else X - center)[:, GROUPS].reshape(N, -1)
    weights = np.random.default_rng(6).normal(size=(N, 3))
    weights[:, 1] = 1.0
    Q, q = design.gram(GROUPS, weights, center)
    close(Q, np.einsum("ip,ir,iq->rpq", A, weights, A))
    close(q, A.T @ weights)


@pytest.mark.parametrize("centred", [False, True])
def test_kernel_and_contributions(stored, centred):
    design, X = stored
    center = np.random.default_rng(5).normal(size=(n, d)) if centred else None
    A = (X if center is None else X - center)[:, GROUPS]
    eta, G = np.array([0.3, 2.0, 1e-3]), np.random.default_rng(7).normal(size=(3, d))
    close(design.kernel(GROUPS, eta, center), np.einsum("k,ikd,jkd->ij", eta, A, A))
    close(design.contributions(GROUPS, G, center), np.einsum("ikd,kd->ik", A, G))


def test_no_groups_predict_nothing(stored):
    design, _ = stored
    nobody = np.array([], dtype=np.intp)
    close(design.predict(np.zeros((0, d, c)), nobody), np.zeros((N, c)))


# Memory -------------------------------------------------------------------------------------------

BLOCK = 1 << 18


def peak(function):
    """Most bytes that numpy held at once beyond what it held before."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("stored_as", ["contiguous", "single", "masked", "strided", "memmap"])
def test_no_method_copies_x_whole(stored_as, tmp_path, monkeypatch):
    monkeypatch.setattr(designs, "BLOCK_BYTES", BLOCK)
    rows, tokens, channels = 300, 200, 25
    X = np.random.default_rng(0).normal(size=(rows, tokens, channels))  # 12 MB
    mask = None
    if stored_as == "single":
        X = X.astype(np.float32)
    elif stored_as == "masked":
        mask = np.random.default_rng(1).random((rows, tokens)) < 0.7
        X[~mask] = np.nan
    elif stored_as == "strided":
        X = np.asfortranarray(X)
    elif stored_as == "memmap":
        np.save(tmp_path / "X.npy", X)
        X = np.load(tmp_path / "X.npy", mmap_mode="r")
    few, all_of_them = np.arange(0, 20, 4), np.arange(tokens)
    center = np.zeros((tokens, channels))
    Z, V = np.ones((tokens, channels, 1)), np.ones((rows, 1))

    def work():
        design = TokenDesign(X, mask)
        design.predict(Z)
        design.correlate(V)
        design.predict(Z[few], few)
        design.gram(few, V, center)
        design.contributions(all_of_them, Z[:, :, 0], center)

    assert peak(work) < 8 * BLOCK < X.nbytes
    kernel = 8 * rows * rows  # the result, and one product to add to it
    used = peak(lambda: TokenDesign(X, mask).kernel(all_of_them, np.ones(tokens), center))
    assert used < 3 * kernel + 8 * BLOCK < X.nbytes


def test_the_measure_of_memory_sees_a_copy():
    X = np.ones((400, 100, 25))
    assert peak(lambda: X * 1.0) >= X.nbytes


def test_float32_has_the_range_of_every_block(monkeypatch):
    monkeypatch.setattr(designs, "CACHED_BYTES", 1 << 12)
    X = 1e25 * np.random.default_rng(0).normal(size=(600, 3, 2))
    X[:300] = 0.0
    given = np.array([0]), np.array([1, 2]), np.ones(600), None
    found, expected = (TokenDesign(X).cross_gram(*given, kind) for kind in (np.float32, np.float64))
    for here, there in zip(found, expected, strict=True):
        np.testing.assert_allclose(here, there, atol=1e-5 * np.abs(expected[0]).max())


# Errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("X", "got"),
    [
        (np.ones((3, 2)), "float64 \\(3, 2\\)"),
        (np.ones((3, 2, 1), dtype=int), "int64 \\(3, 2, 1\\)"),
        (np.ones((3, 2, 1), dtype=np.float16), "float16"),
    ],
)
def test_x_of_another_kind_is_refused(X, got):
    with pytest.raises(ValueError, match=f"X must be a float32 or float64 array.*{got}"):
        TokenDesign(X)


@pytest.mark.parametrize("mask", [np.ones((3, 3), bool), np.ones((3, 2)), np.ones(3, bool)])
def test_a_mask_of_another_kind_is_refused(mask):
    with pytest.raises(ValueError, match="mask must be boolean of shape \\(3, 2\\), got"):
        TokenDesign(np.ones((3, 2, 1)), mask)


def test_sizes():
    design = TokenDesign(base())
    assert (design.n_samples, design.n_groups, design.dim) == (N, n, d)


@pytest.mark.parametrize("N", [80, 900])
@pytest.mark.parametrize("letters", [False, True])
def test_x_may_lie_at_any_address(N, letters):
    rng = np.random.default_rng(0)
    raw = np.zeros(8 * N * 40 + 4, np.uint8)
    X = raw[4:].view(float).reshape(N, 2, 20)
    X[:] = np.eye(20)[rng.integers(20, size=(N, 2))] if letters else rng.normal(size=X.shape)
    assert not X.flags.aligned
    problem = Problem(TokenDesign(X), Squared(), Token(), X[:, 0, :1] + rng.normal(size=(N, 1)))
    assert solve(problem, 0.1 * problem.beta_max).converged
