"""Paths and beta_max as functions."""

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline

from convexformer import (
    AttentionPath,
    ConvexAttentionClassifier,
    ConvexAttentionClassifierCV,
    ConvexAttentionRegressor,
    ConvexTransformerClassifier,
    ConvexTransformerRegressor,
    attention_path,
    beta_max,
)


@pytest.fixture(scope="module")
def X():
    return np.random.default_rng(0).normal(size=(50, 6, 2))


@pytest.fixture(scope="module")
def y(X):
    return 2 * X[:, 1, 0] - X[:, 4, 1] + 0.2 * np.random.default_rng(1).normal(size=50)


def test_path_of_a_regression(X, y):
    path = attention_path(X, y, n_betas=8, eps=0.05)
    assert isinstance(path, AttentionPath)
    np.testing.assert_allclose(path.betas, np.geomspace(1, 0.05, 8))
    assert path.beta_max == pytest.approx(beta_max(X, y))
    assert path.coefs.shape == (8, 1, 6, 2)
    assert path.intercepts.shape == (8, 1)
    assert path.token_norms.shape == (8, 6)
    np.testing.assert_allclose(path.token_norms, np.linalg.norm(path.coefs[:, 0], axis=2))
    np.testing.assert_array_equal(path.n_tokens_used, np.count_nonzero(path.token_norms, axis=1))
    assert path.n_tokens_used[0] == 0
    assert path.classes is None
    assert path.worst_gap <= 1e-6
    for beta, certificate in zip(path.betas, path.certificates, strict=True):
        assert certificate.beta == pytest.approx(beta * path.beta_max)
    assert "8 betas" in repr(path)


@pytest.mark.parametrize("penalty", ["token-output", "token"])
def test_every_point_equals_a_cold_fit(X, y, penalty):
    label = np.digitize(y, [-1, 1])
    path = attention_path(
        X, label, task="classification", betas=[0.1, 0.6], penalty=penalty, tol=1e-9
    )
    assert path.betas.tolist() == [0.6, 0.1]
    assert path.classes.tolist() == [0, 1, 2]
    for k, beta in enumerate(path.betas):
        model = ConvexAttentionClassifier(beta, penalty=penalty, tol=1e-9).fit(X, label)
        np.testing.assert_allclose(path.coefs[k], model.coef_, atol=1e-3)
        assert path.certificates[k].primal == pytest.approx(model.certificate_.primal, rel=1e-8)
    np.testing.assert_allclose(path.token_norms[1], np.linalg.norm(path.coefs[1], axis=(0, 2)))


def test_options_reach_the_problem(X, y):
    counts = np.round(np.abs(y))
    options = {
        "loss": "poisson",
        "sample_weight": np.arange(50.0),
        "mask": np.tile(np.arange(6) != 1, (50, 1)),
        "token_weights": [1, 2, 3, 4, 5, 6],
        "fit_intercept": False,
    }
    path = attention_path(X, counts, betas=[0.2], **options)
    model = ConvexAttentionRegressor(
        0.2, loss="poisson", token_weights=options["token_weights"], fit_intercept=False
    ).fit(X, counts, sample_weight=options["sample_weight"], mask=options["mask"])
    np.testing.assert_allclose(path.coefs[0], model.coef_, atol=1e-4)
    assert not np.any(path.intercepts)
    assert beta_max(X, counts, **options) == pytest.approx(model.beta_max_)
    flat = beta_max(X.reshape(50, 12), counts, n_tokens=6, **options)
    assert flat == pytest.approx(model.beta_max_)


def test_beta_max_is_the_threshold(X, y):
    label = y > 0
    top = beta_max(X, label, task="classification", class_weight="balanced")
    fit = lambda beta: ConvexAttentionClassifier(
        beta, beta_scale="absolute", class_weight="balanced"
    ).fit(X, label)
    assert len(fit(1.0001 * top).tokens_) == 0
    assert len(fit(0.999 * top).tokens_) == 1


def test_beta_max_zero_path(X):
    path = attention_path(X, np.full(50, 2.0), n_betas=3)
    assert path.beta_max == 0
    assert not np.any(path.coefs)
    np.testing.assert_allclose(path.intercepts, 2)


def test_progress(X, y, capsys):
    points = []
    attention_path(X, y, betas=[0.5, 0.1], verbose=points.append)
    assert points[-1].relative_gap <= 1e-6
    assert capsys.readouterr().out == ""
    attention_path(X, y, betas=[0.5, 0.1], verbose=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "beta   2 of 2" in lines[1]


def test_unconverged_path_warns(X, y):
    with pytest.warns(ConvergenceWarning, match="1 of 2 betas.*worst relative"):
        path = attention_path(X, y, betas=[1.0, 0.01], max_iter=1, tol=1e-12)
    assert path.worst_gap > 1e-12


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": "ranking"}, "'regression', 'classification'"),
        ({"task": "classification", "loss": "huber"}, "loss='huber' is for"),
        ({"class_weight": "balanced"}, "class_weight is for"),
        ({"betas": [0.0]}, "positive"),
        ({"tol": 0}, "tol"),
    ],
)
def test_bad_options(X, y, options, words):
    with pytest.raises(ValueError, match=words):
        attention_path(X, y > 0, **options)


def test_labels_need_the_right_task(X, y):
    with pytest.raises(ValueError, match=r"y must hold numbers.*task='classification'"):
        attention_path(X, np.where(y > 0, "a", "b"))


# Paths of estimators ---------------------------------------------------------------------------


@pytest.mark.parametrize("n_classes", [None, 2, 3])
def test_path_of_a_gated_model(X, y, n_classes):
    options = {"n_gates": 3, "random_state": 0, "token_weights": np.linspace(0.5, 1.5, 6)}
    target = y if n_classes is None else np.digitize(y, [0, 2][: n_classes - 1])
    kind = ConvexTransformerRegressor if n_classes is None else ConvexTransformerClassifier
    path = attention_path(X, target, estimator=kind(tol=1e-9, **options), betas=[1.0, 0.5, 0.1])
    c = 3 if n_classes == 3 else 1
    assert path.coefs.shape == (3, c, 4, 6, 2)
    assert path.token_norms.shape == (3, 6)
    assert path.beta_max == pytest.approx(beta_max(X, target, estimator=kind(**options)))
    for k, beta in enumerate(path.betas):
        model = kind(beta, tol=1e-9, **options).fit(X, target)
        np.testing.assert_array_equal(path.gate_directions, model.gate_directions_)
        np.testing.assert_array_equal(path.gate_thresholds, model.gate_thresholds_)
        assert path.certificates[k].primal == pytest.approx(model.certificate_.primal, rel=1e-8)
        norms = model.token_norms_ if c == 1 else model.token_norms_.sum(axis=0)
        np.testing.assert_allclose(path.token_norms[k], norms, atol=1e-3)
        assert path.n_tokens_used[k] == len(model.tokens_)
    assert "of 6 tokens" in repr(path)


def test_gated_paths_end_earlier(X, y):
    gated = ConvexTransformerRegressor(n_gates=2, random_state=0)
    assert attention_path(X, y, estimator=gated, n_betas=3).betas[-1] == pytest.approx(0.01)
    assert attention_path(X, y, n_betas=3).betas[-1] == pytest.approx(1e-3)


def test_an_estimator_is_the_same_as_its_settings(X, y, capsys):
    label = y > 0
    estimator = ConvexAttentionClassifier(penalty="token", class_weight="balanced", tol=1e-4)
    one = attention_path(X, label, estimator=estimator, n_betas=4, verbose=True)
    assert capsys.readouterr().out.count(" tokens\n") == 4
    options = {"penalty": "token", "class_weight": "balanced", "tol": 1e-4}
    other = attention_path(X, label, task="classification", n_betas=4, **options)
    np.testing.assert_array_equal(one.coefs, other.coefs)
    assert not hasattr(estimator, "coef_")
    cross_validated = ConvexAttentionClassifierCV(
        penalty="token", class_weight="balanced", tol=1e-4
    )
    again = attention_path(X, label, estimator=cross_validated, n_betas=4)
    np.testing.assert_array_equal(again.coefs, one.coefs)


def test_what_an_estimator_excludes(X, y):
    with pytest.raises(ValueError, match="its own settings; got penalty, tol as well"):
        attention_path(X, y, estimator=ConvexAttentionRegressor(), penalty="token", tol=1e-3)
    with pytest.raises(ValueError, match=r"got Pipeline\. Of a pipeline pass the last step"):
        attention_path(X, y, estimator=make_pipeline(ConvexAttentionRegressor()))
    with pytest.raises(ValueError, match="certified solutions and is not refitted"):
        attention_path(X, y, estimator=ConvexAttentionRegressor(refit=True))


def test_truth_is_no_number():
    X = np.random.default_rng(0).normal(size=(30, 3, 2))
    with pytest.raises(ValueError, match="pass task='classification'"):
        attention_path(X, X[:, 0, 0] > 0)
    assert attention_path(X, X[:, 0, 0] > 0, task="classification", n_betas=3).worst_gap <= 1e-6
