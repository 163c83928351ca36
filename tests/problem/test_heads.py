"""Heads: blocks go to heads and back, decay is twice the penalty, only nonzero blocks count."""

import numpy as np
import pytest

from convexformer.problem.heads import (
    decay,
    head_count,
    recover_heads,
    recover_sequence_heads,
)

PENALTIES = ("token-output", "token", "nuclear")


def penalty_value(Z, penalty, weights=1.0):
    if penalty == "token-output":
        per_group = np.linalg.norm(Z, axis=1).sum(axis=1)
    elif penalty == "token":
        per_group = np.linalg.norm(Z, axis=(1, 2))
    else:
        per_group = np.linalg.norm(Z, ord="nuc", axis=(1, 2))
    return np.sum(weights * per_group)


@pytest.fixture
def Z():
    """Six groups: empty, dense, one column, rank one, empty, tiny."""
    rng = np.random.default_rng(0)
    Z = np.zeros((6, 4, 3))
    Z[1] = rng.normal(size=(4, 3))
    Z[2, :, 1] = rng.normal(size=4)
    Z[3] = np.outer(rng.normal(size=4), rng.normal(size=3))
    Z[5, 2, 0] = 1e-200
    return Z


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_heads_sum_to_the_coefficients(Z, penalty, weighted):
    weights = np.linspace(0.5, 2.0, 6) if weighted else None
    heads = recover_heads(Z, penalty, weights)
    np.testing.assert_allclose(heads.coefficients(), Z, rtol=1e-13, atol=1e-15)
    expected = penalty_value(Z, penalty, 1.0 if weights is None else weights)
    assert decay(heads) / 2 == pytest.approx(expected, rel=1e-14)


def test_a_head_per_column_block_or_singular_value(Z):
    counts = [len(recover_heads(Z, penalty)) for penalty in PENALTIES]
    assert counts == [head_count(Z, penalty) for penalty in PENALTIES] == [8, 4, 6]
    np.testing.assert_array_equal(recover_heads(Z, "token").groups, [1, 2, 3, 5])
    np.testing.assert_array_equal(recover_heads(Z, "nuclear").groups, [1, 1, 1, 2, 3, 5])
    np.testing.assert_array_equal(recover_heads(Z, "token-output").groups, [1, 1, 1, 2, 3, 3, 3, 5])


@pytest.mark.parametrize("penalty", PENALTIES)
def test_both_layers_of_a_head_are_balanced(Z, penalty):
    """The scaling lemma: at the optimum both layers decay equally."""
    heads = recover_heads(Z, penalty)
    first = np.linalg.norm(heads.values.reshape(len(heads), -1), axis=1)
    second = np.linalg.norm(heads.outputs.reshape(len(heads), -1), axis=1)
    np.testing.assert_allclose(first, second, rtol=1e-12)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_zero_needs_no_heads(penalty):
    heads = recover_heads(np.zeros((3, 2, 2)), penalty)
    assert len(heads) == 0 and decay(heads) == 0
    np.testing.assert_array_equal(heads.coefficients(), np.zeros((3, 2, 2)))


def test_rounding_is_no_rank():
    rng = np.random.default_rng(0)
    Z = np.outer(rng.normal(size=5), rng.normal(size=4))[None] + 1e-14 * rng.normal(size=(1, 5, 4))
    assert head_count(Z, "nuclear") == 1
    assert head_count(Z, "nuclear", rank_tol=0.0) == 4


def test_mistakes_are_told():
    with pytest.raises(ValueError, match="penalty must be one of token-output, token, nuclear"):
        recover_heads(np.zeros((2, 2, 1)), "lasso")
    with pytest.raises(ValueError, match=r"shape \(groups, d, c\) and be finite, got \(2, 2\)"):
        recover_heads(np.zeros((2, 2)), "token")
    with pytest.raises(ValueError, match="be finite"):
        recover_heads(np.full((2, 2, 1), np.nan), "token")
    with pytest.raises(ValueError, match="2 positive finite numbers"):
        recover_heads(np.zeros((2, 2, 1)), "token", weights=[1.0, 0.0])


# Matrix targets -------------------------------------------------------------------------------


def parts(rng, equal):
    A, B = rng.random((2, 2, 3, 4, 4))  # (d, c, n, n) each
    A[1, 2] = 0.0
    B[0] = 0.0
    if equal:
        for part in (A, B):
            sums = part.sum(axis=3, keepdims=True)
            part *= np.divide(
                sums.mean(axis=2, keepdims=True), sums, out=np.zeros_like(sums), where=sums > 0
            )
    return A, B


@pytest.mark.parametrize("attention", ["stochastic", "substochastic"])
def test_sequence_heads_sum_to_the_coefficients(attention):
    A, B = parts(np.random.default_rng(0), equal=attention == "stochastic")
    heads = recover_sequence_heads(A, B, attention)
    assert len(heads) == 5 + 3  # a part that is zero gives no head
    np.testing.assert_allclose(heads.coefficients(), A - B, rtol=1e-12, atol=1e-15)
    largest = A.sum(axis=3).max(axis=2).sum() + B.sum(axis=3).max(axis=2).sum()
    assert decay(heads) / 2 == pytest.approx(largest, rel=1e-13)
    sums = heads.attention.sum(axis=2)
    assert np.all(heads.attention >= 0) and np.all(sums <= 1 + 1e-15)
    if attention == "stochastic":
        np.testing.assert_allclose(sums, 1.0, rtol=1e-15)
    else:
        np.testing.assert_allclose(sums.max(axis=1), 1.0, rtol=1e-15)


def test_sequence_mistakes_are_told():
    A, B = parts(np.random.default_rng(0), equal=False)
    with pytest.raises(ValueError, match="different sums"):
        recover_sequence_heads(A, B)
    with pytest.raises(ValueError, match="nonnegative"):
        recover_sequence_heads(A - 1, B)
    with pytest.raises(ValueError, match=r"shape \(d, c, n, n\)"):
        recover_sequence_heads(A[..., :2], B[..., :2])
    with pytest.raises(ValueError, match="'stochastic' or 'substochastic', got 'sub'"):
        recover_sequence_heads(A, B, "sub")
