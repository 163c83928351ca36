"""scikit-learn's own checks, on 2-D data where every column is a token.

One check of one variant is expected to fail, see below. The cross-validated estimators run them
with few betas and folds only for time; scikit-learn skips its array-API check unless
SCIPY_ARRAY_API is set.
"""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from convexformer import (
    ConvexAttentionClassifier,
    ConvexAttentionClassifierCV,
    ConvexAttentionRegressor,
    ConvexAttentionRegressorCV,
    TokenScaler,
)

QUICK = {"n_betas": 4, "eps": 0.05, "cv": 3}


def expected_failures(estimator):
    if getattr(estimator, "loss", None) == "poisson":
        # The check draws negative targets although the tag `positive_only` forbids them.
        return {"check_regressor_multioutput": "counts cannot be negative"}
    return {}


# Missing classes and unreached tolerances are part of what the checks try.
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [
        ConvexAttentionRegressor(),
        ConvexAttentionRegressor(loss="huber", penalty="token", fit_intercept=False, tol=1e-10),
        ConvexAttentionRegressor(loss="poisson"),
        ConvexAttentionClassifier(),
        ConvexAttentionClassifier(penalty="token", class_weight="balanced", warm_start=True),
        ConvexAttentionRegressorCV(**QUICK),
        ConvexAttentionClassifierCV(selection="one-standard-error", **QUICK),
        TokenScaler(),
        TokenScaler(per="token-channel"),
    ],
    expected_failed_checks=expected_failures,
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)
