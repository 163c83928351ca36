"""The small slips of the errata page of which a computation can show something."""

import numpy as np
import pytest
import torch
from tests.theorems.data import generic

from convexformer.nn import SimplexAttention, SoftmaxAttention
from convexformer.problem import Logistic, Problem, Squared, TokenDesign, TokenOutput
from convexformer.solvers import solve


def test_small_slip_the_sign_of_the_conjugate():
    """Printed: maximise ``-L*(v)``, from a Lagrangian with ``+ v'(yhat - scores)``.

    Its minimum over yhat is ``-L*(-v)``. The constraint is the same for v and -v, so that the two
    have the same maximum, at opposite points; at the multiplier of the optimum they differ.
    """
    X, Y = generic("squared", 1)
    problem = Problem(TokenDesign(X), Squared(), TokenOutput(), Y, intercept=False)
    beta = 0.2 * problem.beta_max
    solution = solve(problem, beta, tol=1e-12)
    v = Y - np.tensordot(X, solution.Z, axes=2)  # minus the slope of the loss
    assert np.linalg.norm(np.einsum("ikd,ic->kdc", X, v), axis=1).max() <= beta * (1 + 1e-5)

    def conjugate(v):  # of 1/2 (f - y)^2, by its definition max_f f v - loss
        return 0.5 * np.sum(v**2) + np.sum(v * Y)

    assert -conjugate(-v) == pytest.approx(10.1020, abs=1e-4)  # the optimum
    assert -conjugate(v) == pytest.approx(-16.5086, abs=1e-3)  # as printed, at the same v


def test_small_slip_the_sign_of_the_conjugate_of_a_loss_with_a_bounded_slope():
    """Logistic loss: at the multiplier the printed dual is minus infinity."""
    X, Y = generic("logistic", 1)
    problem = Problem(TokenDesign(X), Logistic(), TokenOutput(), Y, intercept=False)
    beta = 0.2 * problem.beta_max
    solution = solve(problem, beta, tol=1e-10)
    F = np.tensordot(X, solution.Z, axes=2)
    v = Y / (1 + np.exp(Y * F))
    f = np.linspace(-60, 60, 200_001)

    def conjugate(v, y):
        return np.max(f * v - np.logaddexp(0, -y * f))

    right = -sum(conjugate(-v_i, y_i) for v_i, y_i in zip(v.ravel(), Y.ravel(), strict=True))
    assert right == pytest.approx(solution.certificate.primal, rel=1e-5)
    # f v - loss(f) grows without end: at f = y 60 it is already above this for every sample
    printed = [conjugate(v_i, y_i) for v_i, y_i in zip(v.ravel(), Y.ravel(), strict=True)]
    np.testing.assert_array_less(59 * np.abs(v.ravel()), printed)


def test_small_slip_objectives_under_different_regularisers():
    """The same predictions, from both networks of the student-teacher figure, at their least decay.

    With uniform attention and a value matrix ``u 1'`` plain decay charges the nuclear norm,
    ``sqrt(c) |u|``, and the alternative network ``c |u|``.
    """
    c, beta, n = 4, 1.0, 5
    rng = np.random.default_rng(0)
    X, u = torch.tensor(rng.normal(size=(20, n, 3))), rng.normal(size=3)
    Y = torch.tensor(rng.normal(size=(20, c)))
    size = np.linalg.norm(u)
    standard = SoftmaxAttention(3, c, 1, head_dim=1, readout="first", dtype=torch.float64)
    alternative = SimplexAttention(n, 3, c, 1, parametrization="projection", dtype=torch.float64)
    balance = np.sqrt(size * np.sqrt(c))  # of the value, and of the output
    with torch.no_grad():
        standard.query.zero_()
        standard.key.zero_()  # uniform attention
        standard.value[0, :, 0] = torch.tensor(balance * u / size)
        standard.output[0, 0] = balance / np.sqrt(c)
        alternative.theta.fill_(1 / n)
        alternative.values[0] = torch.tensor(np.sqrt(size * c) * u / size)
        alternative.outputs.fill_(np.sqrt(size / c))
    assert torch.allclose(standard(X), alternative(X), atol=1e-12)
    assert standard.decay().item() / 2 == pytest.approx(np.sqrt(c) * size)
    assert alternative.decay().item() / 2 == pytest.approx(c * size)  # twice as much, for c = 4
    objectives = [
        network.objective(X, Y, "squared", beta).item() for network in (standard, alternative)
    ]
    assert objectives[1] - objectives[0] == pytest.approx(beta * (c - np.sqrt(c)) * size)
