"""Every way of doing the linear algebra gives the same certified optimum."""

import numpy as np
import pytest
from tests.strategies import tune

from convexformer.problem import (
    GatedDesign,
    Huber,
    Logistic,
    Poisson,
    Problem,
    Softmax,
    Squared,
    Token,
    TokenDesign,
    TokenOutput,
)
from convexformer.solvers import choose, quadratic_model, solve, solve_path, workspace

N, n, d = 60, 8, 3
MODES = {  # a strategy, the ratio of coefficients to samples for kernels, other numbers
    "gram": ("newton", 1e9, {}),
    "kernel": ("newton", 0.0, {}),
    "own kernels": ("newton", 0.0, {"LARGE_KERNEL": 0, "MOST_OVER_X": 1e9}),
    "one kernel": ("newton", 0.0, {"LARGE_KERNEL": 0, "MOST_OVER_X": 0}),
    "products only": ("newton-cg", 1.2, {}),
    "compiled": ("compiled-newton", 1.2, {}),
    "descent": ("block-descent", 1.2, {}),
    "gradient": ("gradient", 1.2, {}),
}


def force(monkeypatch, mode):
    strategy, ratio, numbers = MODES[mode]
    tune(monkeypatch, kernel_ratio=ratio)
    for name, value in numbers.items():
        owner = workspace if hasattr(workspace, name) else quadratic_model
        monkeypatch.setattr(owner, name, value)
    return strategy


LOSSES = {
    "squared": Squared(),
    "huber": Huber(0.7),
    "logistic": Logistic(),
    "softmax": Softmax(),
    "poisson": Poisson(),
}


def problem(name, penalty, intercept, gated):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, n, d)) + 1.0
    c = 3 if name == "softmax" or penalty is Token else 1
    F = X[:, 2, :1] - X[:, 5, 1:2] + 0.5 * rng.normal(size=(N, c))
    Y = {
        "squared": F,
        "huber": F + 10 * (rng.random((N, c)) < 0.1),
        "logistic": np.where(F > 0, 1.0, -1.0),
        "softmax": np.eye(c)[np.argmax(F, axis=1)],
        "poisson": rng.poisson(np.exp(0.3 * F)).astype(float),
    }[name]
    design = TokenDesign(X)
    if gated:
        design = GatedDesign(design, np.column_stack([np.ones(N, bool), X[:, :3, 0] > 1]))
    weight = rng.random(N) + 0.1
    return Problem(design, LOSSES[name], penalty(), Y, weight, intercept)


@pytest.mark.parametrize("gated", [False, True], ids=["tokens", "gated"])
@pytest.mark.parametrize("intercept", [True, False], ids=["intercept", "none"])
@pytest.mark.parametrize("penalty", [TokenOutput, Token])
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("mode", MODES)
def test_modes_agree(mode, name, penalty, intercept, gated, monkeypatch):
    p = problem(name, penalty, intercept, gated)
    if not choose.suits(MODES[mode][0], p):
        with pytest.raises(ValueError, match="cannot minimise"):
            solve(p, p.beta_max, strategy=MODES[mode][0])
        return
    for fraction in (0.3, 0.03):
        usual = solve(p, fraction * p.beta_max, tol=1e-8)
        with monkeypatch.context() as patch:
            strategy = force(patch, mode)
            forced = solve(p, fraction * p.beta_max, tol=1e-6, strategy=strategy)
        assert forced.converged, forced.certificate
        assert forced.strategy.startswith(strategy)
        assert forced.certificate.primal == pytest.approx(usual.certificate.primal, rel=1.1e-6)
        assert usual.certificate.dual <= forced.certificate.primal * (1 + 1e-14)


@pytest.mark.parametrize("intercept", [True, False], ids=["intercept", "none"])
@pytest.mark.parametrize("penalty", [TokenOutput, Token])
def test_two_classes_are_one_output(penalty, intercept, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, n, d)) + 1.0
    Y = np.eye(2)[(X[:, 2, 0] + rng.normal(size=N) > 1.3).astype(int)]
    weights, weight = rng.random(n) + 0.5, rng.random(N)
    p = Problem(TokenDesign(X), Softmax(), penalty(weights), Y, weight, intercept)
    assert p.as_logistic is not None
    few, more = solve_path(p, [f * p.beta_max for f in (0.3, 0.03)], tol=1e-8)
    for found in (few, more):
        assert found.converged
        np.testing.assert_allclose(found.Z.sum(axis=2), 0.0, atol=1e-14)
    monkeypatch.setattr(Problem, "as_logistic", None)
    both = Problem(TokenDesign(X), Softmax(), penalty(weights), Y, weight, intercept)
    assert both.beta_max == pytest.approx(p.beta_max, rel=1e-12)
    jointly = solve(both, 0.03 * p.beta_max, tol=1e-8)
    again = both.certificate(more.Z, more.intercept, more.certificate.beta)
    for name in ("primal", "dual", "beta", "beta_max"):
        assert getattr(again, name) == pytest.approx(getattr(more.certificate, name), rel=1e-12)
    assert jointly.certificate.primal == pytest.approx(more.certificate.primal, rel=1e-7)
    differences = [np.diff(p.predict(s.Z, s.intercept)) for s in (more, jointly)]
    np.testing.assert_allclose(*differences, atol=1e-3)  # how they are split may differ


def test_products_only_for_tokens_of_one_channel(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 1, 1)) + rng.normal(size=(N, 20, 1))
    y = np.where(X[:, :9, 0] @ rng.normal(size=9) > 0, 1.0, -1.0)
    p = Problem(TokenDesign(X), Logistic(), TokenOutput(), y[:, None])
    strategy = force(monkeypatch, "products only")
    assert solve(p, 0.1 * p.beta_max, strategy=strategy).converged
