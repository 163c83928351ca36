"""Cross-validation: against a loop by hand, rules of choice, folds that lack a class."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, log_loss, mean_squared_error, roc_auc_score
from sklearn.model_selection import GroupKFold, KFold, LeaveOneGroupOut, StratifiedKFold

from convexformer import (
    ConvexAttentionClassifier,
    ConvexAttentionClassifierCV,
    ConvexAttentionRegressor,
    ConvexAttentionRegressorCV,
)

BETAS = [0.8, 0.4, 0.1, 0.02]


@pytest.fixture(scope="module")
def X():
    return np.random.default_rng(0).normal(size=(90, 6, 2))


@pytest.fixture(scope="module")
def y(X):
    return X[:, 1, 0] - X[:, 4, 1] + np.random.default_rng(1).normal(size=90)


@pytest.fixture(scope="module")
def label(y):
    return np.array(["low", "mid", "top"])[np.digitize(y, [-0.8, 0.9])]


def by_hand(model, X, y, splitter, score, weight=None):
    """Cold fits at fractions of each fold's own beta_max."""
    scores = np.empty((splitter.get_n_splits(), len(BETAS)))
    for k, (train, test) in enumerate(splitter.split(X, y)):
        for j, beta in enumerate(BETAS):
            a = None if weight is None else weight[train]
            fitted = clone(model).set_params(beta=beta).fit(X[train], y[train], sample_weight=a)
            scores[k, j] = score(fitted, test)
    return scores


def test_regression_scores_equal_a_loop(X, y):
    cv = KFold(3, shuffle=True, random_state=0)
    model = ConvexAttentionRegressorCV(betas=BETAS, cv=cv, tol=1e-9).fit(X, y)
    expected = by_hand(
        ConvexAttentionRegressor(tol=1e-9),
        X,
        y,
        cv,
        lambda fitted, test: -0.5 * mean_squared_error(y[test], fitted.predict(X[test])),
    )
    np.testing.assert_allclose(model.scores_, expected, rtol=1e-4)
    np.testing.assert_array_equal(model.betas_, BETAS)
    np.testing.assert_allclose(model.mean_scores_, expected.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(model.std_scores_, expected.std(axis=0, ddof=1), rtol=1e-3)
    np.testing.assert_allclose(model.standard_errors_, model.std_scores_ / np.sqrt(3))
    best = int(np.argmax(expected.mean(axis=0)))
    assert 0 < best < len(BETAS) - 1  # or the data decide nothing
    assert (model.best_index_, model.beta_fraction_) == (best, BETAS[best])
    assert model.best_score_ == model.mean_scores_[best]


def test_final_fit_is_that_of_the_chosen_fraction(X, y):
    model = ConvexAttentionRegressorCV(betas=BETAS, cv=3).fit(X, y)
    alone = ConvexAttentionRegressor(beta=model.beta_fraction_).fit(X, y)
    np.testing.assert_array_equal(model.coef_, alone.coef_)
    assert model.certificate_ == alone.certificate_
    assert model.beta_ == pytest.approx(model.beta_fraction_ * model.beta_max_)
    np.testing.assert_array_equal(model.predict(X), alone.predict(X))


def test_class_scores_equal_a_loop(X, label):
    cv = StratifiedKFold(3)
    model = ConvexAttentionClassifierCV(betas=BETAS, cv=3, tol=1e-9).fit(X, label)
    expected = by_hand(
        ConvexAttentionClassifier(tol=1e-9),
        X,
        label,
        cv,
        lambda fitted, test: -log_loss(label[test], fitted.predict_proba(X[test])),
    )
    np.testing.assert_allclose(model.scores_, expected, rtol=1e-4)


def test_weights_count_in_fits_and_scores(X, y):
    weight = np.random.default_rng(5).integers(0, 3, size=90).astype(float)
    cv = KFold(3)
    model = ConvexAttentionRegressorCV(betas=BETAS, cv=cv, tol=1e-9)
    expected = by_hand(
        ConvexAttentionRegressor(tol=1e-9),
        X,
        y,
        cv,
        lambda fitted, test: (
            -0.5 * mean_squared_error(y[test], fitted.predict(X[test]), sample_weight=weight[test])
        ),
        weight,
    )
    np.testing.assert_allclose(model.fit(X, y, sample_weight=weight).scores_, expected, rtol=1e-4)
    named = clone(model).set_params(scoring="neg_mean_squared_error")
    np.testing.assert_allclose(
        named.fit(X, y, sample_weight=weight).scores_, 2 * expected, rtol=1e-4
    )


@pytest.mark.parametrize(
    ("scoring", "score"),
    [
        ("accuracy", lambda m, X, y: accuracy_score(y, m.predict(X))),
        ("roc_auc_ovr", lambda m, X, y: roc_auc_score(y, m.predict_proba(X), multi_class="ovr")),
        (lambda m, X, y: float(np.mean(m.predict(X) == y)), None),
    ],
)
def test_any_scorer(X, label, scoring, score):
    model = ConvexAttentionClassifierCV(betas=BETAS, cv=3, scoring=scoring).fit(X, label)
    score = score or scoring
    expected = by_hand(
        ConvexAttentionClassifier(),
        X,
        label,
        StratifiedKFold(3),
        lambda fitted, test: score(fitted, X[test], label[test]),
    )
    np.testing.assert_allclose(model.scores_, expected, atol=1e-3)


def test_multilabel_and_poisson_and_huber(X, y):
    Y = np.column_stack([y > 0, y > 0.5, X[:, 0, 0] > 0]).astype(int)
    model = ConvexAttentionClassifierCV(betas=BETAS, cv=3).fit(X, Y)
    assert model.predict(X).shape == Y.shape
    assert np.all(np.isfinite(model.scores_))
    for loss in ("poisson", "huber"):
        counts = np.random.default_rng(0).poisson(np.exp(0.5 * X[:, 1, 0]))
        model = ConvexAttentionRegressorCV(betas=BETAS, cv=3, loss=loss).fit(X, counts)
        assert 1 in model.tokens_
        assert np.all(model.scores_ < 0)


def test_mask_reaches_fits_and_scores(X, label):
    mask = np.random.default_rng(2).random((90, 6)) > 0.2
    padded = np.where(mask[:, :, None], X, [np.nan, 7.0])
    zeroed = np.where(mask[:, :, None], X, 0.0)
    for scoring in (None, "neg_log_loss"):
        model = ConvexAttentionClassifierCV(betas=BETAS, cv=3, scoring=scoring, tol=1e-8)
        masked = clone(model).fit(padded, label, mask=mask)
        plain = clone(model).fit(zeroed, label)
        np.testing.assert_allclose(masked.scores_, plain.scores_, atol=1e-5)
        np.testing.assert_allclose(masked.coef_, plain.coef_, atol=1e-5)


def test_folds_in_parallel_are_the_same(X, y):
    one = ConvexAttentionRegressorCV(betas=BETAS, cv=3).fit(X, y)
    two = ConvexAttentionRegressorCV(betas=BETAS, cv=3, n_jobs=2).fit(X, y)
    np.testing.assert_allclose(one.scores_, two.scores_, rtol=1e-10)


@pytest.mark.filterwarnings("ignore:The chosen beta")
def test_default_betas_and_order(X, y):
    model = ConvexAttentionRegressorCV(n_betas=4, eps=0.1, cv=2).fit(X, y)
    np.testing.assert_allclose(model.betas_, np.geomspace(1, 0.1, 4))
    model = ConvexAttentionRegressorCV(betas=[0.1, 0.5, 0.1, 0.9], cv=2).fit(X, y)
    assert model.betas_.tolist() == [0.9, 0.5, 0.1]


def test_two_dimensional_input(X, y):
    model = ConvexAttentionRegressorCV(betas=BETAS, cv=3, n_tokens=6, scoring="r2")
    flat = clone(model).fit(X.reshape(90, 12), y)
    deep = clone(model).fit(X, y)
    np.testing.assert_array_equal(flat.scores_, deep.scores_)
    np.testing.assert_array_equal(flat.predict(X.reshape(90, 12)), deep.predict(X))


# Rules -----------------------------------------------------------------------------------------


def choose(scores, rule):
    """A model that chose by scores ``(folds, B)``, whose betas decrease."""
    model = ConvexAttentionRegressorCV(selection=rule)
    model.betas_, model.scores_ = np.geomspace(1, 0.1, scores.shape[1]), scores
    model._choose()
    return model


def test_choice_by_hand():
    scores = np.array([[0.0, 3.0, 4.0, 3.9], [0.0, 4.0, 6.0, 4.1]])
    best = choose(scores, "best")
    np.testing.assert_allclose(best.mean_scores_, [0, 3.5, 5, 4])
    np.testing.assert_allclose(best.standard_errors_[2], np.sqrt(2) / np.sqrt(2))
    assert best.best_index_ == 2
    assert choose(scores, "one-standard-error").best_index_ == 2  # 3.5 < 5 - 1
    assert choose(scores + [[0, 0.6, 0, 0]], "one-standard-error").best_index_ == 1  # 4.1 >= 4


def test_ties_go_to_the_larger_beta():
    assert choose(np.ones((3, 4)), "best").best_index_ == 0


def test_nan_folds_count_for_nothing():
    scores = np.array([[1.0, 2.0], [np.nan, np.nan], [1.0, 2.0]])
    choice = choose(scores, "best")
    assert choice.best_index_ == 1
    np.testing.assert_array_equal(choice.mean_scores_, [1, 2])
    assert choose(np.array([[np.nan, 1.0]]), "one-standard-error").best_index_ == 1
    with pytest.raises(ValueError, match="No fold"):
        choose(np.full((2, 2), np.nan), "best")


def test_one_standard_error_is_sparser(X, y):
    best = ConvexAttentionRegressorCV(cv=4, n_betas=12).fit(X, y)
    sparse = clone(best).set_params(selection="one-standard-error").fit(X, y)
    limit = best.best_score_ - best.standard_errors_[best.best_index_]
    assert sparse.beta_fraction_ == best.betas_[best.mean_scores_ >= limit][0]
    assert sparse.beta_fraction_ > best.beta_fraction_
    assert len(sparse.tokens_) <= len(best.tokens_)


# Folds and groups ------------------------------------------------------------------------------


def test_groups_without_routing(X, y):
    groups = np.arange(90) % 4
    model = ConvexAttentionRegressorCV(betas=BETAS, cv=GroupKFold(4)).fit(X, y, groups=groups)
    splits = list(GroupKFold(4).split(X, y, groups))
    np.testing.assert_array_equal(
        model.scores_, clone(model).set_params(cv=splits).fit(X, y).scores_
    )
    with pytest.raises(ValueError, match="groups"):
        clone(model).fit(X, y)
    with pytest.raises(TypeError, match=r"unexpected.*weights"):
        clone(model).fit(X, y, groups=groups, weights=groups)


def test_class_missing_from_a_training_part(X, y):
    label = np.digitize(y, [0.0])
    label[:20] = 2  # class 2 is known to the first fold only
    cv = [(np.arange(20, 90), np.arange(20)), (np.arange(60), np.arange(60, 90))]
    with pytest.warns(UserWarning, match=r"Fold 0 is left out.*: Class 2 .*has no sample"):
        model = ConvexAttentionClassifierCV(betas=BETAS, cv=cv).fit(X, label)
    assert np.all(np.isnan(model.scores_[0]))
    assert np.all(model.scores_[1] > -5)
    np.testing.assert_array_equal(model.mean_scores_, model.scores_[1])
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.certificate_.relative_gap <= 1e-6


def test_one_class_left_leaves_the_fold_out(X, y):
    label = (np.arange(90) < 30).astype(int)
    groups = (np.arange(90) >= 30).astype(int) + (np.arange(90) >= 60)
    flipped = label.copy()
    flipped[::7] = 1 - flipped[::7]
    flipped[30:] = 0  # without the first group, one class is left
    with pytest.warns(UserWarning, match=r"Fold 0 is left out.*samples of one class only"):
        model = ConvexAttentionClassifierCV(betas=BETAS, cv=LeaveOneGroupOut()).fit(
            X, flipped, groups=groups
        )
    assert np.all(np.isnan(model.scores_[0]))
    assert np.all(np.isfinite(model.scores_[1:]))
    assert np.all(np.isfinite(model.mean_scores_))


def test_constant_label_in_a_training_part(X, y):
    Y = np.column_stack([y > 0, np.arange(90) < 20]).astype(int)
    cv = [(np.arange(20, 90), np.arange(20)), (np.arange(60), np.arange(60, 90))]
    with pytest.warns(UserWarning, match=r"Fold 0 is left out.*Output 1 has samples of one class"):
        model = ConvexAttentionClassifierCV(betas=BETAS, cv=cv).fit(X, Y)
    assert np.all(np.isnan(model.scores_[0])) and np.all(np.isfinite(model.scores_[1]))


@pytest.mark.filterwarnings("ignore:The chosen beta")
def test_zero_counts_leave_the_fold_out(X):
    counts = np.where(np.arange(90) < 30, 1 + np.arange(90) % 3, 0)
    cv = [(np.arange(30, 90), np.arange(30)), (np.arange(60), np.arange(60, 90))]
    with pytest.warns(UserWarning, match="All counts of an output are zero"):
        model = ConvexAttentionRegressorCV(betas=BETAS, cv=cv, loss="poisson").fit(X, counts)
    assert np.all(np.isnan(model.scores_[0]))


def test_weightless_fold_is_left_out(X, y):
    weight = np.r_[np.zeros(30), np.ones(60)]
    model = ConvexAttentionRegressorCV(betas=BETAS, cv=KFold(3)).fit(X, y, sample_weight=weight)
    assert np.all(np.isnan(model.scores_[0]))
    without = ConvexAttentionRegressorCV(betas=BETAS, cv=KFold(2)).fit(X[30:], y[30:])
    np.testing.assert_allclose(model.mean_scores_, without.mean_scores_, rtol=1e-3)


def test_unconverged_folds_warn(X, label):
    with pytest.warns(ConvergenceWarning) as caught:
        ConvexAttentionClassifierCV(betas=BETAS, cv=2, max_time=1e-9).fit(X, label)
    words = [str(warning.message) for warning in caught]
    assert any("On some folds" in text for text in words)
    assert any("Stopped at" in text for text in words)


def test_unknown_scorers_are_refused_in_words(X, label):
    with pytest.raises(
        ValueError, match=r"scoring must be .*get_scorer_names\(\) or None; got 'acc'"
    ):
        ConvexAttentionClassifierCV(scoring="acc").fit(X, label)


def test_verbose_prints_a_line_per_fold(X, y, capsys):
    ConvexAttentionRegressorCV(betas=BETAS, cv=3, verbose=True).fit(X, y)
    out = capsys.readouterr().out
    assert "fold 3 of 3" in out
    assert "relative gap" in out


def test_no_warnings_where_nothing_is_wrong(X, label):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ConvexAttentionClassifierCV(betas=BETAS, cv=3).fit(X, label)


def test_the_edge_of_the_grid_is_told():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4, 2))
    y = X[:, 1, 0] + 0.01 * rng.normal(size=60)
    with pytest.warns(UserWarning, match=r"0\.5 of beta_max, is the smallest tried.*smaller eps"):
        ConvexAttentionRegressorCV(betas=[1.0, 0.5], cv=3).fit(X, y)
    with pytest.warns(UserWarning, match="the empty model.*betas reach below 1"):
        model = ConvexAttentionRegressorCV(betas=[2.0, 1.0], cv=3).fit(X, y)
    assert len(model.tokens_) == 0
    noisy = y + rng.normal(size=60)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ConvexAttentionRegressorCV(betas=[0.5], cv=3).fit(X, noisy)
        ConvexAttentionRegressorCV(n_betas=10, cv=3).fit(X, noisy)
