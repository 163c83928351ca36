"""Refits of matrix targets: against a general quadratic program with the same constraints."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from convexformer.problem.sequence import SequenceProblem, to_tokens
from convexformer.solvers.matrix_targets import solve_sequence
from convexformer.solvers.refit import refit_sequence

N, n, d, c = 80, 5, 3, 2
rng = np.random.default_rng(0)
X = rng.normal(size=(N, n, d)) + [0.0, 1.0, 5.0]
Y = np.roll(X, 1, axis=1)[:, :, :c] + 0.5 * X[:, :, 1:] + rng.normal(size=(N, n, c)) + 2.0
WEIGHT = rng.uniform(0.2, 2.0, size=N)
MASK = rng.uniform(size=(N, n)) < 0.8


def least_squares(problem, Z, ridge, attention, mask):
    """Stack all samples and positions of an output, and solve the optimality conditions at once."""
    T = to_tokens(Z)  # (n, d, n, c)
    real = np.ones((N, n), dtype=bool) if mask is None else mask
    inputs = np.where(real[:, :, None], X, 0.0)
    best = np.zeros_like(T)
    for j in range(c):
        k, ch, r = np.nonzero(T[..., j])
        A = np.zeros((N, n, len(k) + problem.intercept))
        A[:, r, np.arange(len(k))] = inputs[:, k, ch]
        A[:, :, len(k) :] = 1.0
        w = problem.weight * real
        Q = np.einsum("irp,ir,irq->pq", A, np.broadcast_to(w, (N, n)), A)
        Q[np.arange(len(k)), np.arange(len(k))] += ridge[j]
        right = np.einsum("irp,ir,ir->p", A, np.broadcast_to(w, (N, n)), Y[:, :, j])
        rows = []
        for channel in range(d if attention == "stochastic" else 0):
            sums = [(ch == channel) & (r == row) for row in range(n)]
            rows += list(np.diff(np.array(sums, dtype=float), axis=0))  # neighbouring rows agree
        C = np.zeros((len(rows), len(Q)))
        C[:, : len(k)] = np.reshape(rows, (len(rows), len(k)))
        kkt = np.block([[Q, C.T], [C, np.zeros((len(C), len(C)))]])
        x = np.linalg.lstsq(kkt, np.append(right, np.zeros(len(C))), rcond=1e-12)[0]
        best[k, ch, r, j] = x[: len(k)]
    return best


@pytest.mark.parametrize("beta", [0.6, 0.1])
@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("attention", ["stochastic", "substochastic"])
def test_constrained_least_squares(attention, intercept, mask, beta):
    problem = SequenceProblem(X, Y, attention, WEIGHT, mask, intercept)
    selected = solve_sequence(problem, beta * problem.beta_max)
    found = refit_sequence(problem, selected, 1e-2)
    assert 0 < np.count_nonzero(selected.Z) < selected.Z.size
    assert not np.any(found.Z[selected.Z == 0])
    peer = least_squares(problem, selected.Z, found.ridge, attention, mask)
    assert_allclose(to_tokens(found.Z), peer, atol=1e-8)
    if attention == "stochastic":
        assert_allclose(np.ptp(found.Z.sum(axis=3), axis=2), 0.0, atol=1e-12)
    loss = [problem.objective(model.Z, model.intercept, 0.0) for model in (found, selected)]
    assert loss[0] < loss[1]


def test_a_channel_with_an_empty_row_sums_to_zero():
    problem = SequenceProblem(X, Y)
    selected = solve_sequence(problem, 0.1 * problem.beta_max)
    selected.Z[:, :, 0] = 0.0
    found = refit_sequence(problem, selected)
    assert np.any(found.Z)
    assert_allclose(found.Z.sum(axis=3), 0.0, atol=1e-12)


def test_nothing_selected():
    problem = SequenceProblem(X, Y)
    zero = solve_sequence(problem, problem.beta_max)
    found = refit_sequence(problem, zero)
    assert not np.any(found.Z) and not np.any(found.ridge)
    assert_allclose(found.intercept, zero.intercept)
