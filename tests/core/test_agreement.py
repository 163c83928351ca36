"""Both cores agree: every kernel gives the same numbers, compiled and in NumPy.

Sizes that are refused, and more shapes, are in the other files of this folder.
"""

import copy

import numpy as np
import pytest

from convexformer import _core
from convexformer._core import _numpy

RNG = np.random.default_rng(0)
DECLINED = {"loss_point", "balance", "newton"}


def normal(*shape):
    return RNG.normal(size=shape)


def csr(rows=60, columns=40):
    """Start, column and value of the entries of X."""
    X = np.where(RNG.random((rows, columns)) < 0.1, normal(rows, columns), 0.0)
    row, place = np.nonzero(X)
    start = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))])
    return X, start.astype(np.int32), place.astype(np.int32), X[row, place]


def tokens(n=5, d=6, c=2, N=90, in_samples=True):
    """What block descent takes."""
    A = normal(n, d, N).astype(np.float32)
    gram, v = A @ A.transpose(0, 2, 1), normal(c, N)
    flat = A.reshape(n * d, N).astype(float)
    given = A if in_samples else (flat @ flat.T).reshape(n, d, n * d)
    shape = (n, d, c, given.shape[2], c, in_samples)
    step = 1 / np.linalg.eigvalsh(gram.astype(float)).max(axis=1)
    M = np.einsum("kdi,ci->kcd", A.astype(float), v)
    square = np.array([np.sum(v**2)])
    return [given, gram, shape, step, np.full(n, 3.0), square, np.zeros((n, c, d)), M]


def one_hot(c, N):
    return np.eye(c)[RNG.integers(c, size=N)].T.copy()


X, START, COLUMN, VALUE = csr()
SHAPE = (60, len(VALUE), 40, 3)
ROOT = RNG.uniform(0.5, 2.0, 70)
SIGNS = np.sign(normal(50, 2))
PLACE = np.where(np.arange(40) % 2, -1, np.arange(40) // 2).astype(np.int32)
GROUPS = np.array([4, 0, 3], dtype=np.int32)
CASES = {
    "block_descent": tokens(),
    "block_descent by Gram matrix": tokens(in_samples=False),
    "transpose_tokens": [normal(70, 30), GROUPS, normal(3, 5), normal(3), ROOT]
    + [np.zeros((3, 5, 80), np.float32), (70, 30, 3, 5, 8, 80)],
    "prepare_tokens": [normal(4, 7, 300).astype(np.float32), np.zeros((4, 7, 7), np.float32)]
    + [np.ones(4), np.zeros((4, 7, 300), np.int16), (4, 7, 300)],
    "csr_entries": [(60, 40, 1000), X, np.zeros(60, np.int32)]
    + [np.zeros(1000, np.int32), np.zeros(1000)],
    "csr_predict": [SHAPE, START, COLUMN, VALUE, normal(3, 40), np.zeros((3, 60))],
    "csr_correlate": [SHAPE, START, COLUMN, VALUE, normal(3, 60), np.zeros((3, 40))],
    "csr_gram": [(60, len(VALUE), 40, 20), START, COLUMN, VALUE, ROOT[:60], PLACE]
    + [np.zeros((20, 20)), np.zeros(20)],
    "predict_and_correlate": [(70, 30, 3, 0), normal(70, 30), normal(30, 3), normal(70, 3), ROOT]
    + [np.empty(0), np.zeros((70, 3)), np.zeros((70, 3)), np.zeros((3, 30))],
    "gram_of_columns": [(70, 32, 2, 8, 16, 16), True, normal(70, 32), GROUPS[:2] % 4]
    + [normal(16), ROOT, normal(70), np.zeros((16, 16)), np.zeros(16)],
    "few_columns_product": [(70, 30, 3), False, normal(70, 30), normal(30, 3), np.zeros((70, 3))],
    "logistic_expansion": [(50, 2), normal(50, 2), SIGNS, *np.zeros((3, 50, 2))],
    "logistic_dual": [(50, 2), 0.5 * SIGNS, SIGNS, np.zeros((50, 2))],
    "softmax_expansion": [(50, 4), normal(4, 50), one_hot(4, 50), np.zeros((50, 1))]
    + [*np.zeros((2, 4, 50))],
    "softmax_dual": [(50, 4), np.zeros((4, 50)), one_hot(4, 50), np.zeros((50, 1))],
}


@pytest.mark.parametrize("case", CASES)
def test_both_cores_agree(case, compiled):
    kernel = case.split()[0]
    results = []
    for core in (compiled, _numpy):
        given = copy.deepcopy(CASES[case])
        found = getattr(core, kernel)(*given)
        results.append([*given, 0.0 if found is None else found])
    for here, there in zip(*results, strict=True):
        if isinstance(here, np.ndarray) and here.dtype == np.int32:
            np.testing.assert_array_equal(here[: len(VALUE)], there[: len(VALUE)])
        elif kernel == "csr_entries" and isinstance(here, np.ndarray):
            np.testing.assert_array_equal(here.ravel()[: len(VALUE)], there.ravel()[: len(VALUE)])
        else:
            single = kernel in ("block_descent", "prepare_tokens", "transpose_tokens")
            scale = np.abs(np.asarray(there, dtype=float)).max(initial=0.0)
            atol = scale * (2e-3 if single else 1e-12)
            if isinstance(here, np.ndarray) and here.dtype == np.int16:
                atol = 1.0
            np.testing.assert_allclose(here, there, rtol=1e-12, atol=atol)


def test_every_kernel_is_in_both_cores(compiled):
    public = {name for name in vars(compiled) if not name.startswith("_")}
    assert public == set(_core.KERNELS) == set(_numpy.__all__)
    tested = {case.split()[0] for case in CASES} | DECLINED | {"wide_registers"}
    assert tested == set(_core.KERNELS)


def test_numpys_core_can_be_asked_for(monkeypatch):
    import subprocess
    import sys

    monkeypatch.setenv("CONVEXFORMER_CORE", "numpy")
    code = "from convexformer import _core; print(_core.COMPILED, _core.newton.__module__)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "convexformer._core._numpy"]
