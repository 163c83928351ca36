"""Refits: against scikit-learn on the selected columns, and their gradient by differences."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from tests.generated import cases, fits

from convexformer.problem import (
    GatedDesign,
    Huber,
    Logistic,
    Nuclear,
    OffsetDesign,
    Offsets,
    Poisson,
    Problem,
    Softmax,
    Squared,
    Token,
    TokenDesign,
    TokenOutput,
)
from convexformer.solvers import refit as module
from convexformer.solvers import solve
from convexformer.solvers.refit import refit

N, n, d = 120, 6, 3
rng = np.random.default_rng(0)
X = rng.normal(size=(N, n, d)) * [1.0, 3.0, 0.5] + 1.0
A = rng.normal(size=(n, d, 3)) * np.array([0, 1, 0, 2, 0, 0.5])[:, None, None]
SCORES = np.tensordot(X - 1, A, axes=2) + rng.normal(size=(N, 3))
WEIGHT = rng.uniform(0.2, 2.0, size=N)
MASK = rng.uniform(size=(N, n)) < 0.8

LOSSES = {
    "squared": (Squared(), SCORES),
    "huber": (Huber(0.5), SCORES),
    "logistic": (Logistic(), np.where(SCORES > 0, 1.0, -1.0)),
    "softmax": (Softmax(), np.eye(3)[SCORES.argmax(axis=1)]),
    "poisson": (Poisson(), rng.poisson(np.exp(np.clip(0.3 * SCORES, -3, 3))).astype(float)),
}


def problem_of(loss, penalty=TokenOutput, outputs=3, **options):
    kind, Y = LOSSES[loss]
    mask = options.pop("mask", None)
    weights = options.pop("weights", None)
    return Problem(TokenDesign(X, mask), kind, penalty(weights), Y[:, :outputs], **options)


def strength(problem, selected, ridge):
    """``ridge * beta * w / norm`` for every token and output, 0 where it is not used: (n, c)."""
    Z, weights = selected.Z, problem.penalty.column(len(selected.Z))
    if isinstance(problem.penalty, TokenOutput):
        slope, size = np.linalg.norm(Z, axis=1), np.linalg.norm(Z, axis=1)
    else:
        size = np.linalg.norm(Z, axis=(1, 2))[:, None]
        nuclear = isinstance(problem.penalty, Nuclear)
        slope = np.linalg.norm(Z, "nuc", axis=(1, 2))[:, None] if nuclear else size
    with np.errstate(invalid="ignore"):
        ratio = np.where(size > 0, slope / size**2, 0.0)
    found = ridge * selected.certificate.beta * weights * ratio
    return np.broadcast_to(found, (len(Z), Z.shape[2]))


def objective(problem, Z, b, strength):
    return problem.objective(Z, b, 0.0) + 0.5 * np.sum(strength[:, None] * Z**2)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("penalty", [TokenOutput, Token, Nuclear])
@pytest.mark.parametrize("loss", LOSSES)
def test_no_model_on_the_selection_is_better(loss, penalty, intercept):
    weights = np.linspace(0.5, 2.0, n)
    problem = problem_of(
        loss, penalty, sample_weight=WEIGHT, mask=MASK, weights=weights, intercept=intercept
    )
    selected = solve(problem, 0.4 * problem.beta_max)
    found = refit(problem, selected, 0.01)
    assert found.converged
    used = np.broadcast_to(problem.penalty.norms(selected.Z)[:, None] > 0, problem.shape)
    if penalty is Nuclear:
        used = np.broadcast_to(np.any(used, axis=(1, 2), keepdims=True), problem.shape)
    assert 0 < np.count_nonzero(used) < used.size
    assert np.array_equal(found.Z != 0, used)
    assert np.array_equal(found.ridge, 0.01 * np.any(used, axis=(0, 1)))
    ridge = strength(problem, selected, 0.01)
    best = objective(problem, found.Z, found.intercept, ridge)
    assert best < objective(problem, selected.Z, selected.intercept, ridge)
    scale = np.sqrt(np.mean(found.Z**2))
    for seed in range(3):
        moves = np.random.default_rng(seed)
        step = 1e-4 * scale * np.where(used, moves.normal(size=problem.shape), 0.0)
        shift = 1e-4 * intercept * moves.normal(size=3)
        up = objective(problem, found.Z + step, found.intercept + shift, ridge)
        down = objective(problem, found.Z - step, found.intercept - shift, ridge)
        assert min(up, down) > best
        assert abs(up - down) <= 1e-4 * (up + down - 2 * best) + 1e-12 * best


@pytest.mark.parametrize("penalty", [TokenOutput, Token])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_ridge_of_one_is_the_certified_fit(loss, penalty):
    weights = np.linspace(0.5, 2.0, n)
    problem = problem_of(loss, penalty, sample_weight=WEIGHT, mask=MASK, weights=weights)
    selected = solve(problem, 0.3 * problem.beta_max, tol=1e-13)
    again = refit(problem, selected, 1.0)
    assert_allclose(again.Z, selected.Z, atol=1e-5 * np.abs(selected.Z).max())
    weaker = [np.linalg.norm(refit(problem, selected, ridge).Z) for ridge in (1.0, 0.3, 0.01)]
    assert weaker == sorted(weaker)


def test_with_the_nuclear_norm_a_ridge_of_one_is_another_fit():
    problem = problem_of("squared", Nuclear)
    selected = solve(problem, 0.3 * problem.beta_max)
    again = refit(problem, selected, 1.0)
    moved = np.abs(again.Z - selected.Z).max() / np.abs(selected.Z).max()
    assert 0.01 < moved < 0.2


def wide_case(noise=0.6):
    """More columns than samples, correlated tokens, decaying channels: weak ridges overfit."""
    random = np.random.default_rng(5)
    shared, own = random.normal(size=(400, 1, 60)), random.normal(size=(400, 5, 60))
    wide = (0.9 * shared + 0.45 * own) * np.arange(1, 61) ** -0.5
    f = wide[:, 1] @ random.normal(size=60) + 0.5 * (wide[:, 3] @ random.normal(size=60))
    return wide, (f / f.std() + noise * random.normal(size=400))[:, None]


def test_the_ridge_is_that_of_cross_validation():
    wide, y = wide_case()
    problem = Problem(TokenDesign(wide[:150]), Squared(), TokenOutput(), y[:150])
    selected = solve(problem, 0.1 * problem.beta_max)
    used = np.flatnonzero(np.any(selected.Z, axis=(1, 2)))
    scale = np.repeat(np.sqrt(strength(problem, selected, 1.0)[used, 0]), 60)
    columns, fold = wide[:150, used].reshape(150, -1) / scale, module._folds(problem)
    assert np.bincount(fold).tolist() == [30] * 5
    losses = [
        sum(
            np.sum(
                (_ridge(columns, y, 0.8 * ridge, fold != k).predict(columns) - y[:150, 0])[
                    fold == k
                ]
                ** 2
            )
            for k in range(5)
        )
        for ridge in module.RIDGES
    ]
    assert refit(problem, selected).ridge == module.RIDGES[int(np.argmin(losses))] < 1


def _ridge(columns, y, alpha, rows):
    return Ridge(alpha).fit(columns[rows], y[:150, 0][rows])


def test_wide_tokens_are_not_overfitted():
    wide, y = wide_case()
    train, test = slice(0, 250), slice(250, 400)
    problem = Problem(TokenDesign(wide[train]), Squared(), TokenOutput(), y[train])

    def error(fitted):
        scores = np.tensordot(wide[test], fitted.Z, axes=2) + fitted.intercept
        return np.mean((scores - y[test]) ** 2)

    for fraction in (0.5, 0.3, 0.1):
        selected = solve(problem, fraction * problem.beta_max)
        chosen = error(refit(problem, selected))
        assert chosen < 1.05 * error(selected)
        assert chosen < 0.95 * error(refit(problem, selected, 1e-3))


def test_folds_have_equal_shares_of_classes_and_whole_sequences():
    fold = module._folds(problem_of("softmax"))
    counts = np.array(
        [np.bincount(fold[label], minlength=5) for label in LOSSES["softmax"][1].T > 0]
    )
    assert np.ptp(counts, axis=1).max() <= 1
    design = OffsetDesign(X, Offsets(-1, 1))
    fold = module._folds(Problem(design, Squared(), TokenOutput(), X[:, :, :1].reshape(-1, 1)))
    assert np.all(fold.reshape(N, n) == fold.reshape(N, n)[:, :1])
    assert set(fold.tolist()) == set(range(5))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("loss", LOSSES)
def test_samples_without_weight_change_nothing(loss):
    """Neither which samples share a fold, nor what is lost on those held out."""
    alone, where = problem_of(loss), [50, 50]
    far = 1e4 * np.random.default_rng(3).normal(size=(n, d))
    problem = Problem(
        TokenDesign(np.insert(X, where, [far, -far], axis=0)),
        alone.loss,
        alone.penalty,
        np.insert(LOSSES[loss][1], where, LOSSES[loss][1][0], axis=0),
        np.insert(np.ones(N), where, 0.0),
    )
    assert np.array_equal(np.delete(module._folds(problem), [50, 51]), module._folds(alone))
    selected = solve(alone, 0.3 * alone.beta_max)
    found, expected = refit(problem, selected), refit(alone, selected)
    assert np.array_equal(found.ridge, expected.ridge)
    assert 0 < expected.ridge.max() < 1
    assert_allclose(found.Z, expected.Z, atol=1e-6 * np.abs(expected.Z).max())


def test_a_class_of_one_sample_is_always_trained_on():
    Y = np.where(np.arange(N) == 7, 1.0, -1.0)[:, None]
    problem = Problem(TokenDesign(X), Logistic(), TokenOutput(), Y)
    selected = solve(problem, 0.3 * problem.beta_max)
    assert len(module._training_parts(problem)) == 4
    assert refit(problem, selected).converged


@pytest.mark.parametrize("loss", ["squared", "huber", "logistic", "poisson"])
@pytest.mark.parametrize("intercept", [True, False])
def test_systems_by_samples_and_by_columns_agree(loss, intercept, monkeypatch):
    wide = np.random.default_rng(2).normal(size=(N, n, 40))
    kind, Y = LOSSES[loss]
    weight = np.where(np.arange(N) % 5 == 0, 0.0, WEIGHT)  # as folds have, samples held out
    problem = Problem(TokenDesign(wide), kind, TokenOutput(), Y[:, :1], weight, intercept=intercept)
    selected = solve(problem, 0.1 * problem.beta_max)
    assert np.count_nonzero(selected.Z) > N
    by_samples = refit(problem, selected, 0.1)
    monkeypatch.setattr(module, "MOST_AXES", 0)
    by_columns = refit(problem, selected, 0.1)
    assert by_samples.converged and by_columns.converged
    assert_allclose(by_samples.Z, by_columns.Z, atol=1e-6 * np.abs(by_columns.Z).max())
    assert_allclose(by_samples.intercept, by_columns.intercept, atol=1e-6)


def columns_of(problem, found, output=0):
    """The used tokens, and their columns in units in which the ridge is the same for all."""
    used = np.flatnonzero(np.any(found.Z[:, :, output], axis=1))
    scale = np.sqrt(strength(problem, found.selection, 0.01)[used, output])
    return used, (X[:, used] / scale[:, None]).reshape(N, -1), np.repeat(scale, d)


def test_squared_is_ridge_regression():
    problem = problem_of("squared", outputs=2, sample_weight=WEIGHT)
    found = refit(problem, solve(problem, 0.3 * problem.beta_max), ridge=0.01)
    for j in range(2):
        used, columns, scale = columns_of(problem, found, j)
        peer = Ridge(1.0).fit(columns, SCORES[:, j], sample_weight=WEIGHT)
        assert_allclose(found.Z[used, :, j].ravel() * scale, peer.coef_, rtol=1e-8, atol=1e-10)
        assert_allclose(found.intercept[j], peer.intercept_, rtol=1e-8)


def test_logistic_is_logistic_regression():
    problem = problem_of("logistic", outputs=1, sample_weight=WEIGHT)
    found = refit(problem, solve(problem, 0.3 * problem.beta_max), ridge=0.01)
    used, columns, scale = columns_of(problem, found)
    peer = LogisticRegression(C=1.0, tol=1e-12, max_iter=1000, solver="newton-cg")
    peer.fit(columns, problem.Y[:, 0], sample_weight=WEIGHT)
    assert_allclose(found.Z[used, :, 0].ravel() * scale, peer.coef_[0], atol=1e-6)
    assert_allclose(found.intercept, peer.intercept_, atol=1e-6)


def test_softmax_is_multinomial_regression():
    problem = problem_of("softmax", Token)
    found = refit(problem, solve(problem, 0.3 * problem.beta_max), ridge=0.01)
    used, columns, scale = columns_of(problem, found)
    peer = LogisticRegression(C=1.0, tol=1e-12, max_iter=2000, solver="newton-cg")
    peer.fit(columns, problem.Y.argmax(axis=1))
    assert_allclose(found.Z[used].reshape(-1, 3).T * scale, peer.coef_, atol=1e-6)
    assert_allclose(found.intercept, peer.intercept_ - peer.intercept_.mean(), atol=1e-6)


def test_poisson_is_poisson_regression():
    problem = problem_of("poisson", outputs=1)
    found = refit(problem, solve(problem, 0.3 * problem.beta_max), ridge=0.01)
    used, columns, scale = columns_of(problem, found)
    peer = PoissonRegressor(alpha=1.0 / N, solver="newton-cholesky", tol=1e-12)
    peer.fit(columns, problem.Y[:, 0])
    assert_allclose(found.Z[used, :, 0].ravel() * scale, peer.coef_, atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_principal_axes_do_not_matter(loss, monkeypatch):
    problem = problem_of(loss, sample_weight=WEIGHT)
    selected = solve(problem, 0.3 * problem.beta_max)
    direct = refit(problem, selected, 0.01)
    monkeypatch.setattr(module, "MOST_AXES", 0)
    iterated = refit(problem, selected, 0.01)
    assert iterated.converged
    assert_allclose(iterated.Z, direct.Z, atol=1e-6 * np.abs(direct.Z).max())


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_separable_classes_stay_finite(loss, scale):
    wide = scale * np.random.default_rng(1).normal(size=(20, 8, 4))
    y = np.arange(20) % 3
    Y = np.eye(3)[y] if loss == "softmax" else np.where(y == 0, 1.0, -1.0)[:, None]
    problem = Problem(TokenDesign(wide), LOSSES[loss][0], TokenOutput(), Y)
    found = refit(problem, solve(problem, 0.01 * problem.beta_max), 0.1)
    assert found.converged
    scores = problem.predict(found.Z, found.intercept)
    hit = scores.argmax(axis=1) == y if loss == "softmax" else scores[:, 0] * Y[:, 0] > 0
    assert np.all(hit)
    assert 1 < np.abs(scores).max() < 100


def test_gated_selection():
    gates = np.column_stack([np.ones(N, dtype=bool), X[:, 1, 0] > 1, X[:, 3, 1] > 1])
    y = SCORES[:, :1] + 5 * np.maximum(X[:, 1, :1] - 1, 0)
    problem = Problem(GatedDesign(TokenDesign(X), gates), Squared(), TokenOutput(), y)
    selected = solve(problem, 0.2 * problem.beta_max)
    found = refit(problem, selected, ridge=0.1)
    used = np.flatnonzero(np.any(selected.Z, axis=(1, 2)))
    columns = problem.design.gather(slice(0, N), used)
    scale = np.repeat(np.sqrt(strength(problem, selected, 0.1)[used, 0]), d)
    peer = Ridge(1.0).fit(columns / scale, y[:, 0])
    assert_allclose(found.Z[used, :, 0].ravel() * scale, peer.coef_, rtol=1e-7)


def test_weights_are_scales():
    weights = np.linspace(0.3, 3.0, n)
    weighted = problem_of("logistic", weights=weights)
    scaled = Problem(
        TokenDesign(X / weights[:, None]), Logistic(), TokenOutput(), LOSSES["logistic"][1]
    )
    beta = 0.3 * weighted.beta_max
    one, other = (refit(p, solve(p, beta, tol=1e-12), 0.01) for p in (weighted, scaled))
    assert_allclose(one.Z * weights[:, None, None], other.Z, atol=1e-6)


def test_units_do_not_matter():
    problem = problem_of("huber", outputs=1)
    found = refit(problem, solve(problem, 0.3 * problem.beta_max, tol=1e-12), 0.01)
    other = Problem(
        TokenDesign(np.repeat(1e3 * X, 2, axis=0)),
        Huber(0.5),
        TokenOutput(),
        np.repeat(problem.Y + 7.0, 2, axis=0),
    )
    again = refit(other, solve(other, 0.3 * other.beta_max, tol=1e-12), 0.01)
    assert_allclose(1e3 * again.Z, found.Z, atol=1e-6)


def test_nothing_selected():
    problem = problem_of("softmax")
    zero = solve(problem, problem.beta_max)
    found = refit(problem, zero)
    assert found.converged
    assert not np.any(found.Z) and not np.any(found.ridge)
    assert_allclose(found.intercept, zero.intercept, atol=1e-12)


@pytest.mark.parametrize("most", [module.MOST_AXES, 0], ids=["axes", "none"])
def test_nasty_problems(most, monkeypatch):
    """Constant, huge, tiny, copied and separating columns, few samples, strange weights."""
    monkeypatch.setattr(module, "MOST_AXES", most)
    for fit in fits(cases()[:: 37 if most else 83]):
        problem = fit.case.raw().problem()
        found = refit(problem, fit.solution, 0.01)
        assert found.converged or not most, fit.case.name  # conjugate gradients may stop early
        assert np.all(np.isfinite(found.Z)) and np.all(np.isfinite(found.intercept))
        ridge = module._shrinkage(problem, fit.solution) * 0.01
        before = objective(problem, fit.solution.Z, fit.solution.intercept, ridge)
        after = objective(problem, found.Z, found.intercept, ridge)
        assert after <= before * (1 + 1e-9) + 1e-300, fit.case.name
