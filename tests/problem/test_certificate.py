"""Certificates: the dual value is a lower bound wherever it is computed, and never clipped."""

import itertools
from dataclasses import FrozenInstanceError
from functools import cache

import numpy as np
import pytest
from tests.duals import dual_at
from tests.generated import small
from tests.oracle import oracle
from tests.problem.test_problem import IDS, NAMES, SETTINGS, random_model
from tests.raw import Raw

from convexformer.problem import Certificate

FRACTION = 0.1


@cache
def solved(setting):
    """A problem, its beta, and the objective and model the oracle found."""
    raw = small(*setting, c=3, weighted=True, seed=1)
    problem = raw.problem()
    beta = FRACTION * problem.beta_max
    return raw, problem, beta, *oracle(raw, beta)


@pytest.mark.parametrize("setting", SETTINGS, ids=IDS)
def test_the_oracles_model_is_certified(setting):
    _, problem, beta, objective, Z, b = solved(setting)
    certificate = problem.certificate(Z, b, beta)
    assert certificate.primal == pytest.approx(objective, rel=1e-12)
    # Of a Poisson loss Clarabel has fewer digits, more or less by the processor.
    digits = 1e-4 if setting[0] == "poisson" else 1e-5
    assert -1e-12 <= certificate.relative_gap <= digits


@pytest.mark.parametrize("setting", SETTINGS, ids=IDS)
@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 30.0, 1e3])
def test_no_model_has_a_dual_value_above_the_optimum(setting, scale):
    """Weak duality at random models: wrong intercepts, saturated scores and overflow included."""
    raw, problem, beta, optimum, best, _ = solved(setting)
    for seed in range(6):
        Z, b = random_model(raw, seed, scale)
        if seed == 1:
            b = b + 800.0 * raw.intercept
        if seed == 2:
            Z = best + scale * Z
        dual = problem.certificate(Z, b, beta).dual
        assert dual <= optimum * (1 + 1e-12)


@pytest.mark.parametrize("best", [True, False], ids=["best-intercept", "any-intercept"])
@pytest.mark.parametrize("setting", SETTINGS, ids=IDS)
def test_the_bound_is_feasible(setting, best):
    """In the conjugate's domain, summing to zero with an intercept: what makes it a bound."""
    raw, problem, beta, optimum, *_ = solved(setting)
    lower, upper = (raw.weight[:, None] * x for x in _bounds(raw))
    for scale, seed in itertools.product((0.01, 0.1, 1.0, 30.0), range(3)):
        Z, b = random_model(raw, seed, scale)
        S = problem.scores(Z)
        point = dual_at(problem, S + (problem.risk.best_intercept(S, b) if best else b))
        slack = 1e-12 * (1 + np.abs(point.V))
        assert np.all(lower - slack <= point.V) and np.all(upper + slack >= point.V)
        if raw.intercept:
            assert np.all(np.abs(point.V.sum(axis=0)) <= 1e-12 * np.abs(point.V).sum(axis=0))
        if raw.loss == "softmax":  # probabilities sum to one
            np.testing.assert_allclose(point.V.sum(axis=1), 0, atol=1e-12 if best else 1e-10)
        np.testing.assert_allclose(point.M, problem.design.correlate(point.V), rtol=1e-12)
        assert problem.dual_value(point.V, point.norms, beta) <= optimum * (1 + 1e-12)


def _bounds(raw):
    """The conjugate's domain, a second time."""
    Y = raw.Y
    return {
        "squared": (-1e300 + 0 * Y, 1e300 + 0 * Y),
        "huber": (-1.35 + 0 * Y, 1.35 + 0 * Y),
        "logistic": (np.minimum(Y, 0), np.maximum(Y, 0)),
        "softmax": (Y - 1, Y),
        "poisson": (-1e300 + 0 * Y, Y),
    }[raw.loss]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("intercept", [True, False])
def test_dual_value_is_the_tables(name, intercept):
    """``D`` inside the norm ball, from the formulas of the theory, weights included."""
    raw = small(name, intercept=intercept, c=3, weighted=True)
    problem = raw.problem()
    point = problem.null
    V, a, keep = point.V, raw.weight, raw.weight > 0
    U, Y, a = V[keep] / a[keep, None], raw.Y[keep], a[keep]
    with np.errstate(divide="ignore", invalid="ignore"):
        if name in ("squared", "huber"):
            entropy = Y * U - U**2 / 2
        elif name == "logistic":
            q = Y * U
            entropy = -q * np.log(q) - (1 - q) * np.log(1 - q)
        elif name == "softmax":
            entropy = -(Y - U) * np.log(Y - U)
        else:
            entropy = (Y - U) * (1 - np.log(Y - U)) + np.nan_to_num(Y * np.log(Y)) - Y
    expected = float(np.sum(a[:, None] * entropy))
    assert point.dual(2 * problem.beta_max) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("name", ["squared", "huber"])
def test_a_common_shift_of_targets_changes_nothing(name):
    raw = small(name, c=2)
    far = Raw(raw.X, raw.Y + 1e8, name)
    Z, b = random_model(raw, scale=0.3)
    near, far = raw.problem().certificate(Z, b, 1.0), far.problem().certificate(Z, b + 1e8, 1.0)
    assert near.primal == pytest.approx(far.primal, rel=1e-6)  # Y + 1e8 has lost half its digits
    assert near.dual == pytest.approx(far.dual, rel=1e-6)


def test_single_precision_is_certified_in_double():
    raw = small("squared", c=2)
    single = Raw(raw.X.astype(np.float32), raw.Y, "squared")
    double = Raw(single.X.astype(np.float64), raw.Y, "squared")
    Z, b = random_model(raw, scale=0.3)
    first, second = (r.problem().certificate(Z, b, 1.0) for r in (single, double))
    assert first.primal == pytest.approx(second.primal, rel=1e-14)
    assert first.dual == pytest.approx(second.dual, rel=1e-13)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("size", [1e-3, 1e-6, 1e-9])
def test_nearly_constant_counts_have_a_sound_gap(size, intercept):
    """The deviance of a good fit is tiny beside its terms; the gap must not drown in rounding."""
    rng = np.random.default_rng(0)
    Y = np.exp(size * rng.normal(size=(30, 1)))
    problem = Raw(rng.normal(size=(30, 3, 2)), Y, "poisson", intercept=intercept).problem()
    zero = np.zeros(problem.shape)
    certificate = problem.certificate(zero, problem.null.b, 2 * problem.beta_max)
    assert certificate.primal == pytest.approx(
        0.5 * np.sum((Y - Y.mean() ** intercept) ** 2), rel=0.01
    )
    assert abs(certificate.relative_gap) <= 1e-12


@pytest.mark.parametrize("name", ["squared", "huber", "poisson"])
@pytest.mark.parametrize("value", [0.1, 3.0, 1e6 + 0.1])
def test_constant_targets_are_fitted_exactly(name, value):
    rng = np.random.default_rng(0)
    problem = Raw(rng.normal(size=(30, 3, 2)), np.full((30, 1), value), name).problem()
    zero = np.zeros(problem.shape)
    b = problem.outer_intercept(zero, problem.null.b)
    assert problem.certificate(zero, b, problem.beta_max).relative_gap <= 1e-12
    expected = np.log(value) if name == "poisson" else value
    assert b == pytest.approx(expected, rel=1e-15)


# The record ---------------------------------------------------------------------------------------


def test_gap_is_never_clipped():
    certificate = Certificate(primal=2.0, dual=2.0 + 4e-15, beta=1.0, beta_max=3.0)
    assert certificate.gap == 2.0 - (2.0 + 4e-15) < 0
    assert certificate.relative_gap == certificate.gap / 2.0


def test_nothing_over_nothing_is_no_gap():
    assert Certificate(0.0, 0.0, 1.0, 1.0).relative_gap == 0.0
    assert Certificate(0.0, -1.0, 1.0, 1.0).relative_gap == 1.0


def test_certificate_is_a_record():
    certificate = Certificate(2.0, 1.5, 0.5, 5.0)
    assert certificate.to_dict() == {
        "primal": 2.0,
        "dual": 1.5,
        "beta": 0.5,
        "beta_max": 5.0,
        "negligible": 0.0,
        "gap": 0.5,
        "relative_gap": 0.25,
    }
    assert "relative_gap=2.5e-01" in repr(certificate)
    with pytest.raises(FrozenInstanceError):
        certificate.primal = 0.0
