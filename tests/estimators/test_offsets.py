"""Estimators with offsets: what those of the tokens written out are, in the shape of sequences."""

import numpy as np
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.metrics import accuracy_score, mean_squared_error, r2_score
from sklearn.model_selection import GridSearchCV, KFold
from tests.oracle import oracle
from tests.raw import Raw

import convexformer
from convexformer import (
    ConvexAttentionClassifier,
    ConvexAttentionRegressor,
    ConvexAttentionRegressorCV,
    ConvexTransformerClassifier,
    ConvexTransformerClassifierCV,
    ConvexTransformerRegressor,
    Offsets,
    TokenMapDisplay,
    attention_path,
    beta_max,
    load_model,
)

pytestmark = pytest.mark.filterwarnings("ignore:The chosen beta")  # of grids that are short

N, n, d = 24, 9, 3
SEEN = Offsets(-2, 2, landmarks=("first", "mean", "separators"))
BARE = {"separators": None}
NAMES = np.array(SEEN.names)
MODELS = [
    ConvexAttentionRegressor,
    ConvexAttentionClassifier,
    ConvexTransformerRegressor,
    ConvexTransformerClassifier,
]
CV_MODELS = [getattr(convexformer, f"{kind.__name__}CV") for kind in MODELS]


class Data:
    """Sequences of several lengths; position t is decided by the token at t - 2."""

    def __init__(self, seed=0, sequences=N):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(3, n + 1, size=sequences)
        lengths[0] = n
        self.mask = np.arange(n) < lengths[:, None]
        self.separators = (rng.random((sequences, n)) < 0.3) & self.mask
        self.X = rng.normal(size=(sequences, n, d))
        before = np.pad(self.X, ((0, 0), (2, 0), (0, 0)))[:, :n]
        self.y = before @ [1.0, -2.0, 0.5] + 0.1 * rng.normal(size=(sequences, n))
        self.label = np.where(self.y > 0, 1, 0)
        self.X[~self.mask], self.y[~self.mask] = np.nan, np.nan
        self.label[~self.mask] = 77
        self.extra = {"mask": self.mask, "separators": self.separators}
        self.written = SEEN.expand(self.X, self.mask, self.separators)

    def target(self, kind):
        return self.y if "Regressor" in kind.__name__ else self.label


@pytest.fixture(scope="module")
def data():
    return Data()


def options(kind, **more):
    gates = {"n_gates": 3, "random_state": 0} if "Transformer" in kind.__name__ else {}
    return gates | more


# The same problem as that of the tokens written out ----------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
def test_fit_is_that_of_the_tokens_written_out(data, kind):
    y = data.target(kind)
    weights = np.linspace(0.5, 2.0, len(SEEN))
    settings = options(kind, beta=0.1, token_weights=weights)
    model = kind(tokens=SEEN, **settings).fit(data.X, y, **data.extra)
    same = kind(**settings).fit(data.written, y[data.mask])
    assert model.certificate_.relative_gap <= 1e-6
    assert model.certificate_.primal == pytest.approx(same.certificate_.primal, rel=2e-6)
    assert model.beta_max_ == pytest.approx(same.beta_max_, rel=1e-12)
    np.testing.assert_allclose(model.coef_, same.coef_, atol=2e-3)
    assert model.coef_.shape == same.coef_.shape
    assert model.n_tokens_ == len(SEEN)
    assert model.token_names_.tolist() == list(SEEN.names)
    score = model.score(data.X, y, **data.extra)
    assert score == pytest.approx(same.score(data.written, y[data.mask]), abs=0.02)


def test_targets_of_several_outputs(data):
    Y = np.stack([data.y, -2 * data.y], axis=2)
    model = ConvexAttentionRegressor(tokens=SEEN, penalty="token").fit(data.X, Y, **data.extra)
    same = ConvexAttentionRegressor(penalty="token").fit(data.written, Y[data.mask])
    predicted = model.predict(data.X, **data.extra)
    assert predicted.shape == (N, n, 2)
    np.testing.assert_allclose(predicted[data.mask], same.predict(data.written), atol=1e-3)
    expected = r2_score(Y[data.mask], predicted[data.mask])
    assert model.score(data.X, Y, **data.extra) == pytest.approx(expected)


def test_oracle():
    data = Data(seed=3, sequences=4)
    seen = Offsets(-1, 1, landmarks=["mean"])
    written = seen.expand(data.X, data.mask)
    Y = data.y[data.mask][:, None]
    weight = np.linspace(0.5, 2.0, len(Y))
    by_position = np.full(data.mask.shape, np.nan)
    by_position[data.mask] = weight
    for loss, target in (("squared", data.y), ("logistic", data.label)):
        kind = ConvexAttentionRegressor if loss == "squared" else ConvexAttentionClassifier
        model = kind(0.2, tokens=seen, tol=1e-8)
        model.fit(data.X, target, sample_weight=by_position, mask=data.mask)
        numbers = Y if loss == "squared" else np.where(Y > 0, 1.0, -1.0)
        raw = Raw(written, numbers, loss, sample_weight=weight)
        best, Z, _ = oracle(raw, model.beta_)
        assert model.certificate_.primal == pytest.approx(best, rel=1e-6)
        assert model.certificate_.dual <= best * (1 + 1e-9)
        np.testing.assert_allclose(model.coef_.transpose(1, 2, 0), Z, atol=1e-3)


def test_weights_per_sequence_and_per_position(data):
    per_sequence = np.random.default_rng(1).uniform(0.1, 2.0, size=N)
    per_position = np.repeat(per_sequence[:, None], n, axis=1)
    per_position[~data.mask] = np.nan
    models = [
        ConvexAttentionRegressor(tokens=SEEN).fit(data.X, data.y, weight, **data.extra)
        for weight in (per_sequence, per_position)
    ]
    np.testing.assert_array_equal(models[0].coef_, models[1].coef_)
    rows = per_position[data.mask]
    same = ConvexAttentionRegressor().fit(data.written, data.y[data.mask], rows)
    np.testing.assert_allclose(models[0].coef_, same.coef_, atol=1e-3)
    expected = r2_score(
        data.y[data.mask], models[0].predict(data.X, **data.extra)[data.mask], sample_weight=rows
    )
    for weight in (per_sequence, per_position):
        assert models[0].score(data.X, data.y, weight, **data.extra) == pytest.approx(expected)


@pytest.mark.parametrize("penalty", ["token", "nuclear"])
def test_refit_and_other_penalties(data, penalty):
    Y = np.stack([data.y, -data.y + np.arange(n)], axis=2)
    settings = {"beta": 0.2, "penalty": penalty, "refit": True}
    model = ConvexAttentionRegressor(tokens=SEEN, **settings).fit(data.X, Y, **data.extra)
    same = ConvexAttentionRegressor(**settings).fit(data.written, Y[data.mask])
    np.testing.assert_allclose(model.coef_, same.coef_, atol=1e-3)


def test_float32_and_without_a_mask():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(15, 6, 2)).astype(np.float32)
    y = X.sum(axis=2) + X.mean(axis=(1, 2))[:, None]
    seen = Offsets(0, 1, landmarks=["last", "mean"])
    model = ConvexAttentionRegressor(0.05, tokens=seen).fit(X, y)
    same = ConvexAttentionRegressor(0.05).fit(seen.expand(X), y.reshape(-1))
    np.testing.assert_allclose(model.coef_, same.coef_, atol=1e-4)
    assert np.all(np.isfinite(model.predict(X)))
    other_length = model.predict(X[:, :3])
    assert other_length.shape == (15, 3)
    expected = same.predict(seen.expand(X[:, :3])).reshape(15, 3)
    np.testing.assert_allclose(other_length, expected, atol=1e-3)


def test_path_and_beta_max(data):
    tied = ConvexAttentionRegressor(tokens=SEEN)
    path = attention_path(tied, data.X, data.y, betas=[1.0, 0.3], **data.extra)
    assert path.coefs.shape == (2, 1, len(SEEN), d)
    model = ConvexAttentionRegressor(0.3, tokens=SEEN).fit(data.X, data.y, **data.extra)
    np.testing.assert_allclose(path.coefs[1], model.coef_, atol=1e-3)
    assert beta_max(tied, data.X, data.y, **data.extra) == pytest.approx(model.beta_max_)


# What it is for -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
def test_recovery_of_an_offset(data, kind):
    more = options(kind, beta=0.3)
    model = kind(tokens=SEEN, **more).fit(data.X, data.target(kind), **data.extra)
    norms = model.token_norms_
    assert NAMES[np.argmax(norms)] == "-2"
    assert norms.max() > 0.8 * norms.sum()


@pytest.mark.parametrize("landmark", ["first", "last", "mean", "separators"])
def test_recovery_of_a_landmark(landmark):
    rng = np.random.default_rng(4)
    X, separators = rng.normal(size=(80, 8, 2)), rng.random((80, 8)) < 0.3
    seen = Offsets(-1, 1, landmarks=["first", "last", "mean", "separators"])
    flags = {
        "first": np.arange(8) == 0,
        "last": np.arange(8) == 7,
        "mean": np.ones(8),
        "separators": separators,
    }[landmark] * np.ones((80, 8))
    value = np.einsum("in,ind->id", flags / np.maximum(1, flags.sum(1, keepdims=True)), X)[:, 0]
    y = value[:, None] + 0.1 * rng.normal(size=(80, 8))
    # A weak penalty: it charges for coefficients, and those of a mean must be large.
    model = ConvexAttentionRegressor(0.01, tokens=seen).fit(X, y, separators=separators)
    assert model.token_names_[np.argmax(model.token_norms_)] == landmark
    assert model.token_norms_.max() > 0.8 * model.token_norms_.sum()


# Shapes and padding -------------------------------------------------------------------------------


def test_padding_is_never_read(data):
    """Other numbers there, in X, y, weights and separators, change nothing."""
    zero = np.where(data.mask[:, :, None], data.X, 0.0)
    flags = np.where(data.mask, data.separators, True)
    y = np.where(data.mask, data.y, 1e9)
    one = ConvexAttentionRegressor(tokens=SEEN).fit(data.X, data.y, **data.extra)
    two = ConvexAttentionRegressor(tokens=SEEN).fit(zero, y, mask=data.mask, separators=flags)
    np.testing.assert_array_equal(one.coef_, two.coef_)
    np.testing.assert_array_equal(
        one.predict(data.X, **data.extra), two.predict(zero, mask=data.mask, separators=flags)
    )


def test_predictions_at_padding(data):
    regressor = ConvexAttentionRegressor(tokens=SEEN).fit(data.X, data.y, **data.extra)
    predicted = regressor.predict(data.X, **data.extra)
    np.testing.assert_array_equal(np.isnan(predicted), ~data.mask)
    names = {int: -1, "U": "", object: None, bool: False, float: np.nan}
    for kind, blank in names.items():
        labels = data.label.astype(bool)
        if kind in ("U", object):
            labels = np.where(labels, "yes", "no").astype(kind)
        model = ConvexAttentionClassifier(tokens=SEEN).fit(
            data.X, labels.astype(kind), **data.extra
        )
        predicted = model.predict(data.X, **data.extra)
        assert predicted.dtype == labels.astype(kind).dtype
        np.testing.assert_array_equal(predicted[~data.mask], np.full((~data.mask).sum(), blank))
        assert set(predicted[data.mask].tolist()) == set(model.classes_.tolist())
    assert model.score(data.X, labels.astype(float), **data.extra) == accuracy_score(
        labels[data.mask], predicted[data.mask]
    )


def test_scores_and_probabilities_have_positions(data):
    binary = ConvexAttentionClassifier(tokens=SEEN).fit(data.X, data.label, **data.extra)
    classes = np.digitize(np.nan_to_num(data.y), [-1.0, 1.0])
    several = ConvexAttentionClassifier(tokens=SEEN).fit(data.X, classes, **data.extra)
    labels = np.stack([data.y > 0, data.y > 1], axis=2).astype(int)
    multilabel = ConvexAttentionClassifier(tokens=SEEN).fit(data.X, labels, **data.extra)
    shapes = {binary: ((N, n), (N, n, 2)), several: ((N, n, 3),) * 2, multilabel: ((N, n, 2),) * 2}
    for model, (scores, probabilities) in shapes.items():
        assert model.decision_function(data.X, **data.extra).shape == scores
        P = model.predict_proba(data.X, **data.extra)
        assert P.shape == probabilities
        np.testing.assert_array_equal(np.isnan(P).any(axis=2), ~data.mask)
        np.testing.assert_allclose(np.log(P), model.predict_log_proba(data.X, **data.extra))
    assert multilabel.predict(data.X, **data.extra).shape == (N, n, 2)


# Cross-validation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CV_MODELS)
def test_folds_split_sequences(data, kind):
    y = data.target(kind)
    sequence = np.nonzero(data.mask)[0]
    folds = list(KFold(3).split(data.X))
    by_row = [tuple(np.flatnonzero(np.isin(sequence, part)) for part in fold) for fold in folds]
    settings = options(kind, betas=[0.5, 0.2, 0.1], tol=1e-8)
    model = kind(tokens=SEEN, cv=3, **settings).fit(data.X, y, **data.extra)
    same = kind(cv=by_row, **settings).fit(data.written, y[data.mask])
    np.testing.assert_allclose(model.scores_, same.scores_, rtol=1e-3)
    assert model.token_names_[np.argmax(model.token_norms_)] == "-2"
    assert model.predict(data.X, **data.extra).shape == (N, n)


def test_scorers_see_positions_as_samples(data):
    weight = np.random.default_rng(0).uniform(0.5, 2, size=(N, n))
    settings = {"betas": [0.5, 0.3], "cv": 3, "scoring": "neg_mean_squared_error", "tol": 1e-8}
    model = ConvexAttentionRegressorCV(tokens=SEEN, **settings)
    model.fit(data.X, data.y, sample_weight=weight, **data.extra)
    for k, (train, test) in enumerate(KFold(3).split(data.X)):
        fitted = ConvexAttentionRegressor(0.3, tokens=SEEN, tol=1e-8).fit(
            data.X[train],
            data.y[train],
            weight[train],
            mask=data.mask[train],
            separators=data.separators[train],
        )
        predicted = fitted.predict(data.X[test], data.mask[test], data.separators[test])
        real = data.mask[test]
        expected = -mean_squared_error(
            data.y[test][real], predicted[real], sample_weight=weight[test][real]
        )
        assert model.scores_[k, 1] == pytest.approx(expected, rel=1e-3)
    assert model.tokens == SEEN


def test_gated_classifier_with_a_scorer(data):
    model = ConvexTransformerClassifierCV(
        [0.5, 0.1], tokens=SEEN, cv=2, scoring="roc_auc", n_gates=2, random_state=0
    )
    model.fit(data.X, data.label, **data.extra)
    assert np.all(model.scores_[:, 1] > 0.8)


def test_metadata_is_routed(data):
    with sklearn.config_context(enable_metadata_routing=True):
        model = ConvexAttentionRegressor(tokens=SEEN)
        model.set_fit_request(mask=True, separators=True)
        model.set_score_request(mask=True, separators=True)
        seen = [Offsets(0, 1, "separators"), SEEN]
        search = GridSearchCV(model, {"tokens": seen}, cv=3, error_score="raise")
        search.fit(data.X, data.y, **data.extra)
    assert search.best_params_ == {"tokens": SEEN}


# Everything else ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS + CV_MODELS)
def test_saved_models_predict_the_same(data, kind, tmp_path):
    settings = {"betas": [0.5, 0.2], "cv": 2} if kind in CV_MODELS else {}
    model = kind(tokens=SEEN, **options(kind, **settings))
    model.fit(data.X, data.target(kind), **data.extra).save(tmp_path / "m.safetensors")
    again = load_model(tmp_path / "m.safetensors")
    assert again.tokens == SEEN
    assert again.token_names_.tolist() == list(SEEN.names)
    np.testing.assert_array_equal(
        again.predict(data.X, **data.extra), model.predict(data.X, **data.extra)
    )


@pytest.mark.parametrize("kind", MODELS)
def test_network_of_the_tokens_written_out(data, kind):
    model = kind(tokens=SEEN, **options(kind)).fit(data.X, data.target(kind), **data.extra)
    scores = model.to_network()(torch.tensor(data.written)).detach().numpy()[:, 0]
    answer = model.predict if "Regressor" in kind.__name__ else model.decision_function
    np.testing.assert_allclose(scores, answer(data.X, **data.extra)[data.mask], atol=1e-8)


def test_clones_and_displays(data):
    model = clone(ConvexAttentionRegressor(0.3, tokens=SEEN)).fit(data.X, data.y, **data.extra)
    assert model.tokens == SEEN
    assert TokenMapDisplay.from_estimator(model).tokens_used[0] == "-2"
    model.set_params(tokens="absolute").fit(np.ones((4, 2, 3)), [0.0, 1.0, 0.0, 1.0])
    assert not hasattr(model, "token_names_")


@pytest.mark.parametrize(
    ("settings", "changes", "words"),
    [
        ({}, {"y": np.zeros(N)}, r"y must have a value for every position, shape \(24, 9\)"),
        ({}, {"y": np.zeros((N, n - 1))}, r"y must have a value for every .*got \(24, 8\)"),
        ({}, {"y": None}, "requires y"),
        ({}, BARE, "landmarks has 'separators': pass separators"),
        ({}, {"separators": np.ones((N, 2))}, r"separators must have shape .*got \(24, 2\)"),
        (
            {},
            {"separators": np.full((N, n), 3)},
            "separators must .* booleans or 0",
        ),
        ({}, {"sample_weight": np.ones(n)}, r"every position, shape \(24, 9\), .*got \(9,\)"),
        ({}, {"X": np.ones((N, n))}, r"X must be 3-D.*X\[:, :, None\]"),
        ({}, {"mask": np.zeros((N, n), bool)}, "mask is False everywhere"),
        ({"tokens": Offsets(-9, 0)}, BARE, "reaches beyond every sequence, as X has 9"),
        ({"tokens": Offsets(4, 9)}, BARE, "reaches beyond every sequence"),
        ({"tokens": Offsets(-1, 1, "mean")}, {}, "not name: leave separators out"),
        ({"tokens": "relative"}, {}, "tokens must be 'absolute' or Offsets"),
        ({"tokens": "absolute"}, {}, "separators are a landmark.*set tokens=Offsets"),
        ({"token_weights": np.ones(3)}, {}, r"one factor per token, shape \(8,\)"),
    ],
)
def test_errors_say_what_to_do(data, settings, changes, words):
    passed = {"X": data.X, "y": data.y, **data.extra} | changes
    with pytest.raises(ValueError, match=words):
        ConvexAttentionRegressor(**({"tokens": SEEN} | settings)).fit(**passed)


def test_errors_of_predictions(data):
    model = ConvexAttentionRegressor(tokens=SEEN).fit(data.X, data.y, **data.extra)
    with pytest.raises(
        ValueError, match=r"shape .*, 2\), but .* was fitted on tokens of 3 channels"
    ):
        model.predict(data.written[:, :, :2])
    with pytest.raises(ValueError, match="pass separators"):
        model.predict(data.X, mask=data.mask)
    with pytest.raises(ValueError, match="y contains NaN"):
        ConvexAttentionRegressor(tokens=SEEN).fit(
            data.X, np.where(np.arange(n) == 0, np.nan, data.y), **data.extra
        )
