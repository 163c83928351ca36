"""Paths and beta_max as functions."""

import numpy as np
import pytest
from sklearn.base import clone
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
    path = attention_path(ConvexAttentionRegressor(), X, y, n_betas=8, eps=0.05)
    assert isinstance(path, AttentionPath)
    np.testing.assert_allclose(path.betas, np.geomspace(1, 0.05, 8))
    assert path.beta_max == pytest.approx(beta_max(ConvexAttentionRegressor(), X, y))
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
    followed = ConvexAttentionClassifier(penalty=penalty, tol=1e-9)
    path = attention_path(followed, X, label, betas=[0.1, 0.6])
    assert path.betas.tolist() == [0.6, 0.1]
    assert path.classes.tolist() == [0, 1, 2]
    for k, beta in enumerate(path.betas):
        model = ConvexAttentionClassifier(beta, penalty=penalty, tol=1e-9).fit(X, label)
        np.testing.assert_allclose(path.coefs[k], model.coef_, atol=1e-3)
        assert path.certificates[k].primal == pytest.approx(model.certificate_.primal, rel=1e-8)
    np.testing.assert_allclose(path.token_norms[1], np.linalg.norm(path.coefs[1], axis=(0, 2)))


def test_options_reach_the_problem(X, y):
    counts = np.round(np.abs(y))
    given = {"sample_weight": np.arange(50.0), "mask": np.tile(np.arange(6) != 1, (50, 1))}
    followed = ConvexAttentionRegressor(
        0.2, loss="poisson", token_weights=[1, 2, 3, 4, 5, 6], fit_intercept=False
    )
    path = attention_path(followed, X, counts, betas=[0.2], **given)
    model = clone(followed).fit(X, counts, **given)
    np.testing.assert_allclose(path.coefs[0], model.coef_, atol=1e-4)
    assert not np.any(path.intercepts)
    assert beta_max(followed, X, counts, **given) == pytest.approx(model.beta_max_)
    flat = beta_max(followed.set_params(n_tokens=6), X.reshape(50, 12), counts, **given)
    assert flat == pytest.approx(model.beta_max_)


def test_beta_max_is_the_threshold(X, y):
    label = y > 0
    top = beta_max(ConvexAttentionClassifier(class_weight="balanced"), X, label)
    fit = lambda beta: ConvexAttentionClassifier(
        beta, beta_scale="absolute", class_weight="balanced"
    ).fit(X, label)
    assert len(fit(1.0001 * top).tokens_) == 0
    assert len(fit(0.999 * top).tokens_) == 1


def test_beta_max_zero_path(X):
    path = attention_path(ConvexAttentionRegressor(), X, np.full(50, 2.0), n_betas=3)
    assert path.beta_max == 0
    assert not np.any(path.coefs)
    np.testing.assert_allclose(path.intercepts, 2)


def test_progress(X, y, capsys):
    points = []
    watched = ConvexAttentionRegressor(verbose=points.append)
    attention_path(watched, X, y, betas=[0.5, 0.1])
    assert points[-1].relative_gap <= 1e-6
    assert capsys.readouterr().out == ""
    attention_path(ConvexAttentionRegressor(verbose=True), X, y, betas=[0.5, 0.1])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "beta   2 of 2" in lines[1]


def test_unconverged_path_warns(X, y):
    with pytest.warns(ConvergenceWarning, match="1 of 2 betas.*worst relative"):
        hasty = ConvexAttentionRegressor(max_iter=1, tol=1e-12)
        path = attention_path(hasty, X, y, betas=[1.0, 0.01])
    assert path.worst_gap > 1e-12


@pytest.mark.parametrize(
    ("settings", "options", "words"),
    [
        ({}, {"betas": [0.0]}, "positive"),
        ({}, {"n_betas": 0}, "n_betas must be a whole number"),
        ({}, {"eps": 1}, "eps must be below 1"),
        ({"tol": 0}, {}, "tol"),
        ({"class_weight": "heavy"}, {}, "class_weight must be 'balanced'"),
    ],
)
def test_bad_options(X, y, settings, options, words):
    with pytest.raises(ValueError, match=words):
        attention_path(ConvexAttentionClassifier(**settings), X, y > 0, **options)


@pytest.mark.parametrize("function", [attention_path, beta_max])
def test_a_call_without_an_estimator_says_what_comes_first(X, y, function):
    with pytest.raises(ValueError, match=r"takes a .* estimator first.*got ndarray"):
        function(X, y)
    with pytest.raises(TypeError, match="unexpected keyword argument 'task'"):
        function(X, y, task="classification")
    with pytest.raises(ValueError, match="requires y"):
        function(ConvexAttentionRegressor(), X)


def test_labels_need_a_classifier(X, y):
    with pytest.raises(ValueError, match=r"y must hold numbers.*use a classifier"):
        attention_path(ConvexAttentionRegressor(), X, np.where(y > 0, "a", "b"))


# Paths of other estimators ---------------------------------------------------------------------


@pytest.mark.parametrize("n_classes", [None, 2, 3])
def test_path_of_a_gated_model(X, y, n_classes):
    options = {"n_gates": 3, "random_state": 0, "token_weights": np.linspace(0.5, 1.5, 6)}
    target = y if n_classes is None else np.digitize(y, [0, 2][: n_classes - 1])
    kind = ConvexTransformerRegressor if n_classes is None else ConvexTransformerClassifier
    path = attention_path(kind(tol=1e-9, **options), X, target, betas=[1.0, 0.5, 0.1])
    c = 3 if n_classes == 3 else 1
    assert path.coefs.shape == (3, c, 4, 6, 2)
    assert path.token_norms.shape == (3, 6)
    assert path.beta_max == pytest.approx(beta_max(kind(**options), X, target))
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
    assert attention_path(gated, X, y, n_betas=3).betas[-1] == pytest.approx(0.01)
    assert attention_path(ConvexAttentionRegressor(), X, y, n_betas=3).betas[-1] == pytest.approx(
        1e-3
    )


def test_an_estimator_is_left_as_it_was(X, y, capsys):
    label = y > 0
    estimator = ConvexAttentionClassifier(
        penalty="token", class_weight="balanced", tol=1e-4, verbose=True
    )
    one = attention_path(estimator, X, label, n_betas=4)
    assert capsys.readouterr().out.count(" tokens\n") == 4
    assert not hasattr(estimator, "coef_")
    cross_validated = ConvexAttentionClassifierCV(
        penalty="token", class_weight="balanced", tol=1e-4
    )
    again = attention_path(cross_validated, X, label, n_betas=4)
    np.testing.assert_array_equal(again.coefs, one.coefs)
    fitted = cross_validated.set_params(n_betas=3, cv=2).fit(X, label)
    before = fitted.coef_.copy()
    attention_path(fitted, X, label, n_betas=4)
    np.testing.assert_array_equal(fitted.coef_, before)


def test_gates_of_a_random_state_are_not_used_up(X, y):
    state = np.random.RandomState(0)
    gated = ConvexTransformerRegressor(n_gates=2, random_state=state)
    one, other = (attention_path(gated, X, y, n_betas=2) for _ in range(2))
    np.testing.assert_array_equal(one.gate_directions, other.gate_directions)


def test_a_callback_is_called_itself_and_never_copied(X, y):
    class Callback:
        points = 0

        def __call__(self, point):
            self.points += 1

        def __deepcopy__(self, memo):
            raise TypeError("cannot be copied")

    callback = Callback()
    attention_path(ConvexAttentionRegressor(verbose=callback), X, y, n_betas=2)
    assert callback.points


def test_what_a_path_excludes(X, y):
    with pytest.raises(ValueError, match=r"got Pipeline\. Of a pipeline pass the last step"):
        attention_path(make_pipeline(ConvexAttentionRegressor()), X, y)
    with pytest.raises(ValueError, match="certified solutions and is not refitted"):
        attention_path(ConvexAttentionRegressor(refit=True), X, y)


def test_truth_is_a_class_or_zero_and_one(X):
    path = attention_path(ConvexAttentionClassifier(), X, X[:, 0, 0] > 0, n_betas=3)
    assert path.worst_gap <= 1e-6 and path.classes.tolist() == [False, True]
    path = attention_path(ConvexAttentionRegressor(), X, X[:, 0, 0] > 0, n_betas=3)
    model = ConvexAttentionRegressor(path.betas[-1]).fit(X, X[:, 0, 0] > 0)
    np.testing.assert_allclose(path.coefs[-1], model.coef_, atol=1e-4)
