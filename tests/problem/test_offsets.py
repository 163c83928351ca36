"""Offset designs against the tokens they never write out."""

import tracemalloc

import numpy as np
import pytest

from convexformer.problem import GatedDesign, Gates, OffsetDesign, Offsets, TokenDesign, designs

N, n, d, c = 7, 5, 3, 2
SEEN = Offsets(-2, 1, landmarks=("first", "last", "mean", "separators"))
GROUPS = np.array([6, 0, 3, 2, 7])


def store(kind, tmp_path):
    """X in some storage, mask and separators."""
    rng = np.random.default_rng(0)
    X, mask = rng.normal(size=(N, n, d)) + 1.0, None
    separators = rng.random((N, n)) < 0.4
    separators[0] = False
    if kind == "single":
        X = X.astype(np.float32)
    elif kind == "transposed":
        X = np.ascontiguousarray(X.transpose(2, 1, 0)).transpose(2, 1, 0)
    elif kind == "memmap":
        np.save(tmp_path / "X.npy", X)
        X = np.load(tmp_path / "X.npy", mmap_mode="r")
    elif kind.startswith("masked"):
        mask = rng.random((N, n)) < 0.6
        mask[3], mask[4] = False, [False, True, True, False, False]
        X[~mask] = np.nan
        X = np.asfortranarray(X) if kind == "masked-strided" else X
    return X, mask, separators


def written_out(X, mask, separators, seen=SEEN):
    """The meaning of an offset design, token by token."""
    mask = np.ones(X.shape[:2], bool) if mask is None else mask
    rows = []
    for tokens, real, flags in zip(X.astype(float), mask, separators, strict=True):
        places = np.flatnonzero(real)
        landmark = {
            "first": lambda x, at, flags: x[at[0]],
            "last": lambda x, at, flags: x[at[-1]],
            "mean": lambda x, at, flags: x[at].mean(axis=0),
            "separators": lambda x, at, flags: x[at][flags[at]].sum(0) / max(1, flags[at].sum()),
        }
        for t in places:
            near = [tokens[t + o] if t + o in places else np.zeros(d) for o in seen.window]
            far = [landmark[name](tokens, places, flags) for name in seen.landmarks]
            rows.append(near + far)
    return np.array(rows)


@pytest.fixture(params=["plain", "single", "transposed", "memmap", "masked", "masked-strided"])
def stored(request, tmp_path):
    return store(request.param, tmp_path)


@pytest.fixture(params=[None, 200], ids=["one-block", "many-blocks"])
def both(stored, request, monkeypatch):
    if request.param:  # bytes: sequences are cut in the middle
        monkeypatch.setattr(designs, "BLOCK_BYTES", request.param)
    X, mask, separators = stored
    return OffsetDesign(X, SEEN, mask, separators), TokenDesign(written_out(*stored))


def close(actual, expected):
    assert actual.dtype == np.float64
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


def agree(design, dense, groups):
    """All that solvers ask of a design."""
    rng = np.random.default_rng(2)
    assert (design.n_samples, design.n_groups) == (dense.n_samples, dense.n_groups)
    Z, V = rng.normal(size=(dense.n_groups, d, c)), rng.normal(size=(dense.n_samples, c))
    center, w = rng.normal(size=(dense.n_groups, d)), rng.random(dense.n_samples)
    G, eta = rng.normal(size=(len(groups), d)), rng.random(len(groups))
    everything = np.arange(dense.n_groups)
    close(design.predict(Z), dense.predict(Z))
    close(design.predict(Z[groups], groups), dense.predict(Z[groups], groups))
    close(design.correlate(V), dense.correlate(V))
    close(design.correlate(V, groups), dense.correlate(V, groups))
    close(design.means(w), dense.means(w))
    close(design.gather(slice(3, 9), groups), dense.gather(slice(3, 9), groups))
    for one, two in zip(design.gram(groups, V, center), dense.gram(groups, V, center), strict=True):
        close(one, two)
    crossed = (
        one.cross_gram(groups[2:], groups[:2], w, center, np.float64) for one in (design, dense)
    )
    for one, two in zip(*crossed, strict=True):
        close(one, two)
    close(design.kernel(groups, eta, center), dense.kernel(groups, eta, center))
    close(design.contributions(groups, G, center), dense.contributions(groups, G, center))
    close(
        np.concatenate([A for _, A in design.columns()]),
        dense.gather(slice(0, dense.n_samples), everything),
    )


def test_products_equal_those_of_the_tokens_written_out(both):
    agree(*both, GROUPS)


def test_only_offsets_and_only_landmarks(both):
    for groups in (np.array([2, 0]), np.array([5, 7, 4]), np.array([1])):
        agree(*both, groups)


def test_no_groups_predict_nothing(both):
    design, _ = both
    nobody = np.array([], dtype=np.intp)
    close(design.predict(np.zeros((0, d, c)), nobody), np.zeros((design.n_samples, c)))
    assert design.correlate(np.ones((design.n_samples, c)), nobody).shape == (0, d, c)


def test_gates_on_top(both):
    design, dense = both
    rng = np.random.default_rng(3)
    gates = Gates(rng.normal(size=(3, dense.n_groups, d)), np.array([-np.inf, 0.0, 0.4]))
    opened = gates.open(design)
    np.testing.assert_array_equal(opened, gates.open(dense))
    agree(GatedDesign(design, opened), GatedDesign(dense, opened), np.array([17, 3, 9, 1]))


@pytest.mark.parametrize("seen", [Offsets(-9, 7), Offsets(2, 3), Offsets(-6, -5, ["mean"])])
def test_windows_longer_than_sequences(stored, seen):
    """Nothing is there to be seen, and nothing is read from the neighbouring sequence."""
    dense = TokenDesign(written_out(*stored, seen))
    agree(OffsetDesign(stored[0], seen, *stored[1:]), dense, np.array([1, 0]))


def test_expand_writes_out(stored):
    X, mask, separators = stored
    close(SEEN.expand(X, mask, separators), written_out(*stored))


def test_nothing_is_written_out():
    X = np.random.default_rng(0).normal(size=(2000, 100, 8))  # 13 MB; written out 256 MB
    seen = Offsets(-8, 8, landmarks=["first", "last", "mean"])
    tracemalloc.start()
    design = OffsetDesign(X, seen)
    design.predict(np.ones((20, 8, 1)))
    design.correlate(np.ones((design.n_samples, 1)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * X.nbytes


# Words --------------------------------------------------------------------------------------------


def test_names_follow_the_coefficients():
    assert SEEN.names == ("-2", "-1", "0", "+1", "first", "last", "mean", "separators")
    assert len(SEEN) == 8
    assert Offsets(0, 0, "mean") == Offsets(np.int64(0), 0, landmarks=["mean"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((2, -2), r"Offsets\(2, -2\) is empty.*Write Offsets\(-2, 2\)"),
        ((0.5, 2), "low must be a whole number of tokens; got 0.5"),
        ((0, True), "high must be a whole number of tokens; got True"),
        ((0, 1, ["middle"]), r"landmarks must be different ones of \('first', .*'middle'"),
        ((0, 1, ["mean", "mean"]), "landmarks must be different"),
        ((0, 1, 3), "landmarks must be different ones of .*got 3"),
    ],
)
def test_offsets_that_mean_nothing(arguments, words):
    with pytest.raises(ValueError, match=words):
        Offsets(*arguments)


def test_separators_must_be_there_and_fit():
    X = np.ones((3, 4, 2))
    with pytest.raises(ValueError, match="pass separators"):
        OffsetDesign(X, SEEN)
    with pytest.raises(ValueError, match=r"separators must be boolean of shape \(3, 4\), got"):
        OffsetDesign(X, SEEN, separators=np.ones((3, 5), bool))
    with pytest.raises(ValueError, match=r"mask must be boolean of shape \(3, 4\), got"):
        OffsetDesign(X, Offsets(0, 0), mask=np.ones((3, 5), bool))
