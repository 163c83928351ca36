"""The same data in other units: the same predictions, or words about the range of numbers."""

import time
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from convexformer import (
    ConvexAttentionClassifier,
    ConvexAttentionRegressor,
    ConvexAttentionRegressorCV,
    ConvexSequenceRegressor,
    ConvexTransformerClassifier,
    ConvexTransformerRegressor,
    Offsets,
    attention_path,
)

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 5, 3))
Y = X[:, 1, 0] + 0.5 * X[:, 2, 1] + 0.1 * rng.normal(size=60)
CLASSES = np.digitize(Y, [-0.5, 0.5])
SHIFTED = np.roll(X, 1, axis=1)[:, :, 0]
SLACK = 1.0  # seconds that a fit of this size may take more on a busy machine

MODELS = {
    "squared": (ConvexAttentionRegressor(), Y),
    "huber": (ConvexAttentionRegressor(loss="huber"), Y),
    "nuclear": (ConvexAttentionRegressor(penalty="nuclear", tol=1e-4), np.stack([Y, -(Y**2)], 1)),
    "softmax": (ConvexAttentionClassifier(), CLASSES),
    "refit": (ConvexAttentionRegressor(refit=True), Y),
    "gates": (ConvexTransformerRegressor(n_gates=4, random_state=0), Y),
    "gaussian": (ConvexTransformerClassifier(n_gates=4, gates="gaussian", random_state=0), CLASSES),
    "offsets": (ConvexAttentionRegressor(tokens=Offsets(-1, 1, landmarks=("first",))), SHIFTED),
    "cv": (ConvexAttentionRegressorCV(n_betas=4, eps=0.05, cv=2), Y),
    "sequence": (ConvexSequenceRegressor(0.2), X[:, ::-1, :1]),
}


@pytest.mark.filterwarnings("ignore:The chosen beta:UserWarning")
@pytest.mark.parametrize("unit", [1e-100, 1e78, 1e90, 1e110])
@pytest.mark.parametrize("name", MODELS)
def test_units_of_x_change_nothing(name, unit):
    model, y = MODELS[name]
    start = time.process_time()
    expected = model.fit(X, y).predict(X)
    middle = time.process_time()
    found = model.fit(unit * X, y).predict(unit * X)
    assert time.process_time() - middle <= 3 * (middle - start) + SLACK
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(found, expected, atol=2e-3)
    else:
        assert np.mean(found == expected) > 0.97
    assert model._certificate.relative_gap <= model.tol


@pytest.mark.parametrize("unit", [1e-300, 1e-160, 1e150, 1e300])
@pytest.mark.parametrize("name", MODELS)
def test_numbers_beyond_the_range_of_squares_are_refused_in_words(name, unit):
    model, y = MODELS[name]
    with pytest.raises(ValueError, match="are of the size"):
        model.fit(unit * X, y)


@pytest.mark.parametrize("unit", [1e-100, 1e90])
def test_units_of_x_change_no_path(unit):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        expected, found = (
            attention_path(ConvexAttentionRegressor(), data, Y, n_betas=10)
            for data in (X, unit * X)
        )
    np.testing.assert_array_equal(found.n_tokens_used, expected.n_tokens_used)
    np.testing.assert_allclose(unit * found.coefs, expected.coefs, atol=2e-3)
