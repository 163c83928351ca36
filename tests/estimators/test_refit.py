"""`refit` of the estimators: other coefficients, the same selection, honest names."""

import pickle
import signal
import time
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import train_test_split
from sklearn.utils.estimator_checks import parametrize_with_checks

from convexformer import (
    ConvexAttentionClassifier,
    ConvexAttentionClassifierCV,
    ConvexAttentionRegressor,
    ConvexAttentionRegressorCV,
    ConvexSequenceRegressor,
    ConvexTransformerClassifier,
    ConvexTransformerClassifierCV,
    ConvexTransformerRegressor,
    ConvexTransformerRegressorCV,
    Offsets,
    attention_path,
    load_model,
)
from convexformer.datasets import splice
from convexformer.solvers import Status
from convexformer.solvers import refit as module
from convexformer.solvers.refit import RIDGES

rng = np.random.default_rng(0)
X = rng.normal(size=(90, 6, 3))
y = 3 * X[:, 1, 0] - 2 * X[:, 4, 2] + rng.normal(size=90)
LABEL = np.where(y > 0, "up", "down")
GATED = {"n_gates": 6, "gates": "axis", "random_state": 0}
GRID = {"n_betas": 6, "eps": 0.05, "cv": 3}

MODELS = {
    "regressor": (ConvexAttentionRegressor(0.3), y),
    "several outputs": (ConvexAttentionRegressor(0.3), np.column_stack([y, X[:, 0, 0], -y])),
    "huber": (ConvexAttentionRegressor(0.3, loss="huber"), y),
    "poisson": (ConvexAttentionRegressor(0.3, loss="poisson"), np.round(np.exp(0.3 * y))),
    "classifier": (ConvexAttentionClassifier(0.3), LABEL),
    "multiclass": (ConvexAttentionClassifier(0.3), np.digitize(y, [-2, 2])),
    "multilabel": (ConvexAttentionClassifier(0.3), (X[:, :3, 0] > 0).astype(int)),
    "gated regressor": (ConvexTransformerRegressor(0.3, **GATED), y),
    "gated classifier": (ConvexTransformerClassifier(0.3, **GATED), LABEL),
    "regressor cv": (ConvexAttentionRegressorCV(**GRID), y),
    "classifier cv": (ConvexAttentionClassifierCV(**GRID), LABEL),
    "gated regressor cv": (ConvexTransformerRegressorCV(**GRID, **GATED), y),
    "gated classifier cv": (ConvexTransformerClassifierCV(**GRID, **GATED), LABEL),
    "sequence": (ConvexSequenceRegressor(0.3), np.roll(X, 1, axis=1)[:, :, :2] + y[:, None, None]),
}


@pytest.fixture(params=MODELS)
def case(request):
    model, target = MODELS[request.param]
    return clone(model).set_params(refit=True).fit(X, target), target


def test_the_selection_is_the_certified_fit(case):
    model, target = case
    beta = {} if hasattr(model, "beta") else {"betas": [model.beta_fraction_]}
    certified = clone(model).set_params(refit=False, **beta).fit(X, target)
    assert certified.certificate_ == model.selection_certificate_
    assert_array_equal(certified.coef_, model.selection_coef_)
    assert_array_equal(certified.intercept_, model.selection_intercept_)
    assert_array_equal(model.coef_ != 0, certified.coef_ != 0)
    assert not np.allclose(model.coef_, certified.coef_)
    assert (model.beta_, model.n_iter_) == (certified.beta_, certified.n_iter_)
    if hasattr(model, "tokens_"):
        assert_array_equal(model.tokens_, certified.tokens_)
        assert model.token_norms_.sum() > certified.token_norms_.sum()


def test_no_certificate_under_a_false_name(case):
    model, target = case
    assert not hasattr(model, "certificate_")
    with pytest.raises(AttributeError, match=r"not the certified optimum.*selection_certificate_"):
        _ = model.certificate_
    model.set_params(refit=False).fit(X, target)  # and nothing stays behind
    assert model.certificate_.relative_gap <= 1e-6
    assert not hasattr(model, "selection_coef_") and not hasattr(model, "ridge_")
    with pytest.raises(AttributeError, match="was not refitted; see certificate_"):
        _ = model.selection_certificate_


def test_saved_and_pickled(case, tmp_path):
    model, _ = case
    model.save(tmp_path / "model.safetensors")
    for again in (load_model(tmp_path / "model.safetensors"), pickle.loads(pickle.dumps(model))):
        assert_array_equal(again.predict(X), model.predict(X))
        for name in ("coef_", "selection_coef_", "selection_intercept_", "ridge_"):
            assert_array_equal(getattr(again, name), getattr(model, name))
        assert again.selection_certificate_ == model.selection_certificate_
        assert not hasattr(again, "certificate_")
        assert again.refit is True


def test_the_network_has_the_same_scores(case):
    torch = pytest.importorskip("torch")
    model, _ = case
    answer = getattr(model, "decision_function", model.predict)
    scores = answer(X) if answer(X).ndim > 1 else answer(X)[:, None]
    if getattr(model, "loss", None) == "poisson":
        scores = np.log(scores)
    with torch.no_grad():
        assert_allclose(model.to_network()(torch.tensor(X)).numpy(), scores, atol=1e-8)


def shrinkage(model):
    """Square roots of ``beta / norm`` of the certified fit, for the columns in use."""
    norms = np.linalg.norm(model.selection_coef_[0, model.tokens_], axis=1)
    return np.repeat(np.sqrt(model.beta_ / norms), X.shape[2])


def test_ridge_regression_on_the_selected_columns():
    model = ConvexAttentionRegressor(0.3, refit=0.05, token_weights=np.ones(6)).fit(X, y)
    columns = X[:, model.tokens_].reshape(len(X), -1)
    assert 0 < len(model.tokens_) < 6
    assert_allclose(model.ridge_, 0.05)
    scale = shrinkage(model)
    peer = Ridge(0.05).fit(columns / scale, y)
    assert_allclose(model.coef_[0, model.tokens_].ravel() * scale, peer.coef_, atol=1e-9)
    assert_allclose(model.predict(X), peer.predict(columns / scale))


def test_logistic_regression_on_the_selected_columns():
    model = ConvexAttentionClassifier(0.3, refit=True, class_weight="balanced").fit(X, LABEL)
    columns = X[:, model.tokens_].reshape(len(X), -1)
    peer = LogisticRegression(
        C=1 / model.ridge_[0], class_weight="balanced", tol=1e-12, solver="newton-cg", max_iter=500
    )
    columns = columns / shrinkage(model)
    peer.fit(columns, LABEL)
    assert_allclose(
        model.coef_[0, model.tokens_].ravel() * shrinkage(model), peer.coef_[0], atol=1e-6
    )
    assert_allclose(model.predict_proba(X), peer.predict_proba(columns), atol=1e-6)


@pytest.mark.parametrize("penalty", ["token-output", "token", "nuclear"])
def test_every_output_keeps_its_own_tokens(penalty):
    Y = np.column_stack([y, 2 * X[:, 0, 0] + rng.normal(size=90)])
    model = ConvexAttentionRegressor(0.5, penalty=penalty, refit=True).fit(X, Y)
    used = [np.flatnonzero(row).tolist() for row in model.token_norms_]
    assert used == ([[1, 4], [0]] if penalty == "token-output" else [[0, 1, 4], [0, 1, 4]])


def test_few_tokens_predict_better():
    data = splice()
    train, test, y_train, y_test = train_test_split(
        data.X, data.y, test_size=0.3, random_state=0, stratify=data.y
    )
    certified = ConvexAttentionClassifier(0.4, penalty="token").fit(train, y_train)
    refitted = clone(certified).set_params(refit=True).fit(train, y_train)
    assert len(certified.tokens_) <= 6
    assert refitted.score(test, y_test) > certified.score(test, y_test) + 0.05
    assert refitted.score(test, y_test) > 0.93


def test_cross_validation_scores_refitted_models():
    betas = [0.8, 0.4, 0.1, 0.02, 0.002]
    model = ConvexAttentionRegressorCV(betas, cv=3, refit=0.1).fit(X, y)
    rows = np.arange(len(X))
    for k, test in enumerate(np.array_split(rows, 3)):
        train = np.setdiff1d(rows, test)
        for j, beta in enumerate(betas):
            single = ConvexAttentionRegressor(beta, refit=0.1).fit(X[train], y[train])
            loss = 0.5 * np.mean((single.predict(X[test]) - y[test]) ** 2)
            assert_allclose(model.scores_[k, j], -loss, rtol=1e-6)
    plain = ConvexAttentionRegressorCV(betas, cv=3).fit(X, y)
    assert model.beta_fraction_ > plain.beta_fraction_  # nothing has to be bought by a weak penalty


def test_cross_validation_chooses_beta_and_ridge_together():
    betas = [0.8, 0.3, 0.1]
    model = ConvexAttentionRegressorCV(betas, cv=3, refit=True).fit(X, y)
    fixed = {
        ridge: ConvexAttentionRegressorCV(betas, cv=3, refit=ridge).fit(X, y) for ridge in RIDGES
    }
    best = np.array([one.mean_scores_ for one in fixed.values()])
    assert_allclose(model.mean_scores_, best.max(axis=0), rtol=1e-6)
    ridge, beta = np.unravel_index(np.argmax(best), best.shape)
    assert model.beta_fraction_ == betas[beta]
    assert_allclose(model.ridge_, RIDGES[ridge])
    assert_allclose(model.coef_, fixed[RIDGES[ridge]].coef_, rtol=1e-6)


def test_a_fold_without_a_class():
    label = np.where(np.arange(90) < 30, "a", LABEL)
    folds = [(np.arange(30, 90), np.arange(30)), (np.arange(60), np.arange(60, 90))]
    model = ConvexAttentionClassifierCV([0.5, 0.3], cv=folds)
    with pytest.warns(UserWarning, match="Fold 0 is left out"):
        model.set_params(refit=True).fit(X, label)
    assert np.all(np.isnan(model.scores_[0])) and np.all(np.isfinite(model.scores_[1]))
    assert hasattr(model, "selection_certificate_")


def test_masks_weights_and_warm_starts():
    mask = rng.uniform(size=(90, 6)) < 0.8
    dirty = np.where(mask[:, :, None], X, np.nan)
    weight = rng.integers(0, 3, size=90)
    model = ConvexAttentionRegressor(0.3, refit=0.1, warm_start=True)
    model.fit(dirty, y, sample_weight=weight, mask=mask)
    rows = np.repeat(np.arange(90), weight)
    other = clone(model).fit(np.where(mask[:, :, None], X, 0.0)[rows], y[rows])
    assert_allclose(model.coef_, other.coef_, atol=1e-6)
    first = model.coef_
    model.fit(dirty, y, sample_weight=weight, mask=mask)
    assert_allclose(model.coef_, first, atol=1e-6)


def test_offsets():
    """A refit on offsets is one on the tokens written out."""
    offsets = Offsets(-1, 1, landmarks=["mean"])
    target = 2 * np.roll(X[:, :, 0], 1, axis=1) + 0.1 * rng.normal(size=(90, 6))
    target[:, 0] = 0.0
    mask = np.arange(6) < rng.integers(3, 7, size=(90, 1))
    model = ConvexAttentionRegressor(0.3, refit=0.1, tokens=offsets).fit(X, target, mask=mask)
    written = ConvexAttentionRegressor(0.3, refit=0.1).fit(offsets.expand(X, mask), target[mask])
    assert model.tokens_.tolist() == [0]
    assert_allclose(model.coef_, written.coef_, atol=1e-9)
    path = attention_path(clone(model).set_params(refit=False), X, target, mask=mask)
    assert path.coefs.shape == (40, 1, 4, 3)


def test_separable_classes():
    few = rng.normal(size=(16, 6, 4))
    for target in (np.arange(16) % 2, np.arange(16) % 4):
        model = ConvexAttentionClassifier(0.01, refit=True).fit(few, target)
        assert np.all(np.isfinite(model.coef_)) and np.abs(model.coef_).max() < 100
        assert model.score(few, target) == 1.0


def test_beta_max_selects_nothing():
    model = ConvexAttentionRegressor(1.0, refit=True).fit(X, y)
    assert len(model.tokens_) == 0
    assert_allclose(model.predict(X), y.mean())
    assert_array_equal(model.ridge_, [0.0])


@pytest.mark.parametrize("refit", [0, -1.0, "yes", None, np.nan, np.inf])
@pytest.mark.parametrize("kind", ["regressor", "sequence"])
def test_bad_strengths(kind, refit):
    model, target = MODELS[kind]
    with pytest.raises(ValueError, match="refit must be a positive number, True or False; got"):
        clone(model).set_params(refit=refit).fit(X, target)


def test_early_stops_are_told(monkeypatch):
    with pytest.warns(ConvergenceWarning, match="selection_certificate_ holds its true gap"):
        ConvexAttentionClassifier(0.01, refit=True, max_time=1e-9).fit(X, LABEL)
    monkeypatch.setattr("convexformer.solvers.refit.MOST_STEPS", 1)
    with pytest.warns(ConvergenceWarning, match="The refit stopped before"):
        ConvexAttentionClassifier(0.3, refit=True).fit(X, LABEL)


def during_the_refit(monkeypatch, event):
    """Let `event` happen at every piece of work of a refit on all samples."""

    def after_the_event(whole, first, *others):
        if isinstance(first, np.ndarray) or first.problem.design.n_samples == len(X):
            event()
        return whole(first, *others)

    for name in ("_newton", "to_tokens"):
        monkeypatch.setattr(module, name, partial(after_the_event, getattr(module, name)))


@pytest.mark.parametrize("kind", ["regressor", "multilabel", "regressor cv", "sequence"])
@pytest.mark.parametrize("reason", ["max_time ran out", "Ctrl-C interrupted it"])
def test_a_refit_that_is_stopped_keeps_the_certified_fit(kind, reason, monkeypatch):
    model, target = clone(MODELS[kind][0]), MODELS[kind][1]
    if kind == "regressor cv":
        model.set_params(betas=[0.3, 0.2, 0.1])
    model.set_params(refit=True).fit(X, target)
    whole = {name: getattr(model, f"selection_{name}") for name in ("coef_", "certificate_")}
    if reason == "max_time ran out":
        model.set_params(max_time=1.0)
        during_the_refit(monkeypatch, lambda: time.sleep(1.0))
    else:
        model.set_params(on_interrupt="keep")
        during_the_refit(monkeypatch, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.warns(ConvergenceWarning, match=f"The refit stopped early, because {reason}"):
        model.fit(X, target)
    assert_array_equal(model.coef_, whole["coef_"])
    assert_array_equal(model.intercept_, model.selection_intercept_)
    assert model.selection_certificate_ == whole["certificate_"]
    assert model.status_ is Status.CONVERGED
    assert_array_equal(model.ridge_, float(kind != "sequence"))


def test_ctrl_c_during_the_refit_raises_unless_told_otherwise(monkeypatch):
    during_the_refit(monkeypatch, lambda: signal.raise_signal(signal.SIGINT))
    model = ConvexAttentionRegressor(0.3, refit=True)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert not hasattr(model, "coef_")


def test_a_refit_keeps_to_the_time():
    wide = np.random.default_rng(0).normal(size=(800, 14, 256)).astype(np.float32)
    target = wide[:, 3, 0] + 0.5 * np.random.default_rng(1).normal(size=800)
    start = time.perf_counter()
    with pytest.warns(ConvergenceWarning):
        ConvexAttentionRegressor(0.1, max_time=0.05, refit=True).fit(wide, target)
    assert time.perf_counter() - start < 2.0


@pytest.mark.filterwarnings("ignore")
# A number: with True, a sample of weight two and the same sample twice are other folds.
@parametrize_with_checks(
    [
        ConvexAttentionRegressor(refit=0.1),
        ConvexAttentionClassifier(refit=0.1, warm_start=True),
        ConvexAttentionRegressorCV(refit=True, n_betas=3, eps=0.1, cv=2),
        ConvexTransformerRegressor(refit=0.1, n_gates=1, random_state=0, tol=1e-12),
    ]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)
