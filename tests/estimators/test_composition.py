"""Inside scikit-learn's own machinery: pipelines, searches, metadata routing."""

import numpy as np
import pytest
import sklearn
from sklearn.metrics import make_scorer, mean_squared_error
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline

from convexformer import (
    ConvexAttentionClassifier,
    ConvexAttentionClassifierCV,
    ConvexAttentionRegressor,
    ConvexAttentionRegressorCV,
    TokenScaler,
)


@pytest.fixture(scope="module")
def X():
    return np.random.default_rng(0).normal(size=(60, 5, 3)) * [1.0, 10.0, 0.1] + [0, 5, 1]


@pytest.fixture(scope="module")
def y(X):
    return X[:, 1, 0] + 0.1 * X[:, 3, 1] + 0.2 * np.random.default_rng(1).normal(size=60)


@pytest.fixture(scope="module")
def mask():
    return np.random.default_rng(2).random((60, 5)) > 0.25


@pytest.fixture(scope="module")
def padded(X, mask):
    return np.where(mask[:, :, None], X, np.nan)


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def test_pipeline(X, y):
    pipe = make_pipeline(TokenScaler(), ConvexAttentionRegressor()).fit(X, y)
    scaled = TokenScaler().fit_transform(X)
    np.testing.assert_array_equal(
        pipe.predict(X), ConvexAttentionRegressor().fit(scaled, y).predict(scaled)
    )


def test_grid_search(X, y):
    search = GridSearchCV(
        make_pipeline(TokenScaler(), ConvexAttentionClassifier()),
        {
            "tokenscaler__per": ["channel", "token-channel"],
            "convexattentionclassifier__beta": np.array([0.5, 0.1]),
            "convexattentionclassifier__penalty": np.array(["token", "token-output"]),
            "convexattentionclassifier__fit_intercept": np.array([True, False]),
        },
        cv=2,
        error_score="raise",
    ).fit(X, y > y.mean())
    assert search.best_score_ > 0.6
    assert search.n_features_in_ == 15


def test_grid_search_with_groups(X, y):
    groups = np.arange(60) % 3
    search = GridSearchCV(ConvexAttentionRegressor(), {"beta": [0.9, 0.1]}, cv=GroupKFold(3))
    search.fit(X, y, groups=groups)
    by_hand = cross_val_score(
        ConvexAttentionRegressor(beta=0.1), X, y, cv=GroupKFold(3), groups=groups
    )
    assert search.best_params_ == {"beta": 0.1}
    assert search.best_score_ == pytest.approx(by_hand.mean())


def test_cross_val_score(X, y):
    scores = cross_val_score(ConvexAttentionClassifier(), X, y > y.mean(), cv=3, scoring="roc_auc")
    assert np.all(scores > 0.6)
    scores = cross_val_score(
        ConvexAttentionRegressorCV(n_betas=4, cv=2), X.reshape(60, -1), y, cv=2
    )
    assert scores.shape == (2,)


def test_mask_through_a_pipeline(routing, padded, mask, y):
    pipe = make_pipeline(
        TokenScaler().set_fit_request(mask=True).set_transform_request(mask=True),
        ConvexAttentionRegressor()
        .set_fit_request(mask=True)
        .set_predict_request(mask=True)
        .set_score_request(mask=True),
    ).fit(padded, y, mask=mask)
    scaled = TokenScaler().fit_transform(padded, mask=mask)
    alone = ConvexAttentionRegressor().fit(scaled, y, mask=mask)
    np.testing.assert_array_equal(pipe.predict(padded, mask=mask), alone.predict(scaled, mask=mask))
    assert pipe.score(padded, y, mask=mask) == alone.score(scaled, y, mask=mask)


def test_mask_and_weight_through_cross_validate(routing, padded, mask, y):
    model = (
        ConvexAttentionClassifier()
        .set_fit_request(mask=True, sample_weight=True)
        .set_score_request(mask=True, sample_weight=True)
    )
    label, weight = y > y.mean(), np.arange(60) % 3 + 1.0
    cv = KFold(3)
    result = cross_validate(
        model, padded, label, cv=cv, params={"mask": mask, "sample_weight": weight}
    )
    for score, (train, test) in zip(result["test_score"], cv.split(padded), strict=True):
        fitted = ConvexAttentionClassifier().fit(
            padded[train], label[train], sample_weight=weight[train], mask=mask[train]
        )
        expected = fitted.score(
            padded[test], label[test], sample_weight=weight[test], mask=mask[test]
        )
        assert score == pytest.approx(expected)


def test_mask_through_grid_search(routing, padded, mask, y):
    model = ConvexAttentionRegressor().set_fit_request(mask=True).set_score_request(mask=True)
    search = GridSearchCV(model, {"beta": [0.5, 0.1]}, cv=3, error_score="raise")
    search.fit(padded, y, mask=mask)
    assert search.best_params_ == {"beta": 0.1}


def test_unrequested_mask_is_an_error(routing, padded, mask, y):
    with pytest.raises(ValueError, match=r"mask.*not explicitly set"):
        cross_validate(ConvexAttentionRegressor(), padded, y, params={"mask": mask})


def test_every_method_can_request_mask_and_separators(routing):
    model = ConvexAttentionClassifier()
    for method in ("fit", "predict", "predict_proba", "predict_log_proba", "decision_function"):
        getattr(model, f"set_{method}_request")(mask=True, separators=True)
    model.set_score_request(mask=True, separators=True, sample_weight=True)
    requests = model.get_metadata_routing()
    assert requests.predict_proba.requests == {"mask": True, "separators": True}
    assert requests.score.requests == {"mask": True, "separators": True, "sample_weight": True}


def test_groups_and_weights_of_a_cv_estimator(routing, X, y):
    groups, weight = np.arange(60) % 3, np.arange(60) % 4 + 1.0
    scorer = make_scorer(mean_squared_error, greater_is_better=False)
    model = ConvexAttentionRegressorCV(
        betas=[0.5, 0.1],
        cv=GroupKFold(3),
        scoring=scorer.set_score_request(sample_weight=True),
    ).fit(X, y, sample_weight=weight, groups=groups)
    for k, (train, test) in enumerate(GroupKFold(3).split(X, y, groups)):
        fitted = ConvexAttentionRegressor(0.1).fit(X[train], y[train], weight[train])
        expected = -mean_squared_error(y[test], fitted.predict(X[test]), sample_weight=weight[test])
        assert model.scores_[k, 1] == pytest.approx(expected, rel=1e-3)


def test_cv_estimator_inside_cross_validate(routing, padded, mask, y):
    model = ConvexAttentionClassifierCV(betas=[0.5, 0.1], cv=2)
    model.set_fit_request(mask=True).set_score_request(mask=True)
    result = cross_validate(model, padded, y > y.mean(), cv=2, params={"mask": mask})
    assert np.all(np.isfinite(result["test_score"]))


def test_weights_of_a_cv_estimator_without_scorer(routing, X, y):
    weight = np.arange(60) % 4 + 1.0
    model = ConvexAttentionRegressorCV(betas=[0.5, 0.1], cv=3).fit(X, y, sample_weight=weight)
    with sklearn.config_context(enable_metadata_routing=False):
        plain = ConvexAttentionRegressorCV(betas=[0.5, 0.1], cv=3).fit(X, y, sample_weight=weight)
    np.testing.assert_array_equal(model.scores_, plain.scores_)
