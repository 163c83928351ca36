"""Gated estimators: what gates add, and that everything else is as without them."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from convexformer import (
    ConvexAttentionClassifier,
    ConvexAttentionRegressor,
    ConvexTransformerClassifier,
    ConvexTransformerClassifierCV,
    ConvexTransformerRegressor,
    ConvexTransformerRegressorCV,
    load_model,
)


# One gate: of several that agree on a handful of samples, the optimum is not unique, and a check
# that compares predictions for samples of weight zero would compare two optima. Others compare nine
# digits of two fits that round differently, more than a gap of 1e-6 promises.
@parametrize_with_checks(
    [
        ConvexTransformerRegressor(n_gates=1, random_state=0),
        ConvexTransformerClassifier(n_gates=3, random_state=0),
        ConvexTransformerRegressorCV(n_gates=2, random_state=0, n_betas=4, cv=2, tol=1e-9),
        ConvexTransformerClassifierCV(n_gates=2, random_state=0, n_betas=4, cv=2, tol=1e-9),
    ]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def interaction(N=300, seed=0):
    """A product of two channels, which no linear model knows."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, 4, 2))
    return X, (X[:, 1, 0] * X[:, 2, 1] > 0).astype(int)


@pytest.mark.parametrize("gates", ["gaussian", "axis", "pairs"])
def test_gates_find_an_interaction(gates):
    X, y = interaction()
    linear = ConvexAttentionClassifier(beta=0.05).fit(X, y)
    model = ConvexTransformerClassifier(beta=0.05, gates=gates, random_state=0).fit(X, y)
    assert linear.score(X, y) < 0.65
    assert model.score(X, y) > 0.9
    assert model.certificate_.relative_gap <= 1e-6
    assert model.coef_.shape == (1, 65, 4, 2)
    assert model.token_norms_.shape == (4,)
    assert set(np.argsort(-model.token_norms_)[:2]) == {1, 2}


def test_the_objective_is_that_of_the_dense_design():
    X, y = interaction(80)
    model = ConvexTransformerClassifier(beta=0.1, n_gates=5, gate_weight=1.0, random_state=1).fit(
        X, y
    )
    opened = np.einsum("ikd,hkd->ih", X, model.gate_directions_) >= model.gate_thresholds_
    dense = (opened[:, :, None, None] * X[:, None]).reshape(80, -1, 2)
    same = ConvexAttentionClassifier(beta=0.1).fit(dense, y)
    assert model.certificate_.primal == pytest.approx(same.certificate_.primal, rel=2e-6)
    np.testing.assert_allclose(model.decision_function(X), same.decision_function(dense), atol=1e-3)
    assert model.beta_max_ == pytest.approx(same.beta_max_)


def test_without_other_gates_it_is_convex_attention():
    X, y = interaction()
    closed = (np.zeros((1, 4, 2)), np.array([np.inf]))
    model = ConvexTransformerClassifier(beta=0.1, gates=closed).fit(X, y)
    plain = ConvexAttentionClassifier(beta=0.1).fit(X, y)
    np.testing.assert_allclose(model.coef_[:, 0], plain.coef_, atol=1e-4)
    assert not np.any(model.coef_[:, 1])
    assert model.gate_norms_[1] == 0


def test_gates_are_reproducible_and_the_first_is_always_open():
    X, y = interaction(100)
    one, two, other = (
        ConvexTransformerClassifier(n_gates=4, random_state=seed).fit(X, y) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one.gate_directions_, two.gate_directions_)
    np.testing.assert_array_equal(one.coef_, two.coef_)
    assert np.any(one.gate_directions_ != other.gate_directions_)
    assert one.gate_thresholds_[0] == -np.inf


def test_masked_tokens_do_not_open_gates():
    X, y = interaction(100)
    mask = np.random.default_rng(0).random((100, 4)) < 0.8
    zeros = np.where(mask[:, :, None], X, 0.0)
    broken = np.where(mask[:, :, None], X, np.nan)
    model = ConvexTransformerClassifier(n_gates=6, random_state=0)
    with_mask = clone(model).fit(broken, y, mask=mask)
    with_zeros = clone(model).fit(zeros, y)
    np.testing.assert_allclose(
        with_mask.decision_function(broken, mask=mask), with_zeros.decision_function(zeros)
    )


@pytest.mark.parametrize("cv", [False, True])
def test_saved_models_predict_the_same(tmp_path, cv):
    X, y = interaction(120)
    settings = {"n_gates": 4, "gates": "pairs", "random_state": 0}
    model = (
        ConvexTransformerClassifierCV(n_betas=4, cv=2, **settings)
        if cv
        else ConvexTransformerClassifier(**settings)
    ).fit(X, y)
    model.save(tmp_path / "m.safetensors")
    again = load_model(tmp_path / "m.safetensors")
    assert type(again) is type(model)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(again.token_norms_, model.token_norms_)
    assert again.certificate_ == model.certificate_


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_pairs_are_drawn_whichever_class_has_the_majority(share):
    X, _ = interaction()
    f = X[:, 0, 0] * X[:, 2, 1]
    y = (f > np.quantile(f, 1 - share)).astype(int)
    model = ConvexTransformerClassifier(0.1, n_gates=16, gates="pairs", random_state=0).fit(X, y)
    assert np.all(np.abs(model.gate_directions_[1:]).sum(axis=(1, 2)) > 0)


def test_warm_start_takes_fewer_iterations():
    X, y = interaction()
    Y = np.stack([y, X[:, 0, 0]], axis=1)
    model = ConvexTransformerRegressor(
        0.1, penalty="nuclear", n_gates=8, random_state=0, warm_start=True
    )
    cold = model.fit(X, Y).n_iter_
    assert model.fit(X, Y).n_iter_ < cold


def test_several_outputs_weights_and_losses():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3, 2))
    Y = np.maximum(X[:, :2, 0], 0)
    for penalty in ("token-output", "token"):
        model = ConvexTransformerRegressor(
            0.1, n_gates=6, random_state=0, penalty=penalty, token_weights=[1.0, 2.0, 50.0]
        ).fit(X, Y)
        assert model.coef_.shape == (2, 7, 3, 2)
        assert model.token_norms_.shape == (2, 3)
        assert 2 not in model.tokens_
        assert model.predict(X).shape == (80, 2)
        assert model.certificate_.relative_gap <= 1e-6
    counts = rng.poisson(np.exp(0.3 * X[:, 0, 0]))
    model = ConvexTransformerRegressor(0.3, n_gates=6, random_state=0, loss="poisson")
    assert model.fit(X, counts).certificate_.relative_gap <= 1e-6


def test_regression_through_gates_beats_the_linear_one():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4, 2))
    y = np.abs(X[:, 1, 0])
    linear = ConvexAttentionRegressor(0.05).fit(X, y)
    model = ConvexTransformerRegressor(0.05, gates="axis", random_state=0).fit(X, y)
    assert linear.score(X, y) < 0.2
    assert model.score(X, y) > 0.8


@pytest.mark.parametrize(
    ("gates", "message"),
    [
        ("random", "gates must be one of"),
        (3, "gates must be one of"),
        ((np.ones((2, 3, 2)), np.zeros(2)), r"directions \(h, 4, 2\)"),
        ((np.ones((2, 4, 2)), np.zeros(3)), r"thresholds \(h,\)"),
        ((np.full((1, 4, 2), np.nan), np.zeros(1)), "NaN"),
    ],
)
def test_bad_gates_are_refused_in_words(gates, message):
    X, y = interaction(30)
    with pytest.raises(ValueError, match=message):
        ConvexTransformerClassifier(gates=gates).fit(X, y)


def test_constant_data_have_gates_too():
    X, y = np.ones((20, 2, 2)), np.arange(20) % 2
    for gates in ("axis", "pairs"):
        model = ConvexTransformerClassifier(gates=gates, n_gates=3, random_state=0).fit(X, y)
        assert model.certificate_.relative_gap <= 1e-6


def test_verbose_counts_what_is_active(capsys):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4, 2))
    model = ConvexTransformerRegressor(0.1, n_gates=6, random_state=0, tol=1e-3, verbose=True)
    model.fit(X, X[:, 0, 0] * X[:, 1, 1])
    last = capsys.readouterr().out.splitlines()[-1]
    pairs = np.count_nonzero(np.any(model.coef_, axis=(0, 3)))
    assert last.endswith(f" {pairs} (gate, token) pairs")


def small_squared_case():
    rng = np.random.default_rng(3)
    X, Y = rng.normal(size=(24, 3, 2)), rng.normal(size=(24, 2))
    gates = (rng.normal(size=(4, 3, 1)) * rng.normal(size=(4, 1, 2)), np.zeros(4))
    opened = np.einsum("ikd,hkd->ih", X, gates[0]) >= 0
    return X, Y + 2 * np.maximum(X[:, 1], 0), gates, opened


def program_by_cvxpy(X, Y, opened, beta, factors):
    """Theorem 3 as printed, ``factors`` aside: each gate's own coefficients, no intercept."""
    cp = pytest.importorskip("cvxpy")
    (_, n, d), c, h = X.shape, Y.shape[1], opened.shape[1]
    Z = [[cp.Variable((d, c)) for _ in range(n)] for _ in range(h)]
    F = sum(
        cp.multiply(np.repeat(opened[:, j : j + 1], c, axis=1), X[:, k] @ Z[j][k])
        for j in range(h)
        for k in range(n)
    )
    penalty = sum(factors[j] * cp.sum(cp.norm(Z[j][k], axis=0)) for j in range(h) for k in range(n))
    program = cp.Problem(cp.Minimize(cp.sum_squares(F - Y) / 2 + beta * penalty))
    return program.solve(solver=cp.CLARABEL)


def test_without_the_open_gate_it_is_the_printed_program_of_theorem_3():
    X, Y, gates, opened = small_squared_case()
    model = ConvexTransformerRegressor(
        2.0, beta_scale="absolute", gates=gates, open_gate=False, fit_intercept=False, tol=1e-9
    ).fit(X, Y)
    assert model.coef_.shape == (2, 4, 3, 2)
    np.testing.assert_array_equal(model.gate_directions_, gates[0])
    printed = program_by_cvxpy(X, Y, opened, 2.0, np.ones(4))
    assert model.certificate_.primal == pytest.approx(printed, rel=1e-6)
    opened = np.column_stack([np.ones(24), opened])
    with_open = clone(model).set_params(open_gate=True, gate_weight=1.0).fit(X, Y)
    assert with_open.certificate_.primal == pytest.approx(
        program_by_cvxpy(X, Y, opened, 2.0, np.ones(5)), rel=1e-6
    )
    assert with_open.certificate_.primal < 0.99 * printed


def test_gate_weight_multiplies_the_penalty_of_gates_that_may_close():
    X, Y, gates, opened = small_squared_case()
    model = ConvexTransformerRegressor(
        2.0, beta_scale="absolute", gates=gates, gate_weight=1.5, fit_intercept=False, tol=1e-9
    ).fit(X, Y)
    opened = np.column_stack([np.ones(24), opened])
    weighted = program_by_cvxpy(X, Y, opened, 2.0, [1.0, 1.5, 1.5, 1.5, 1.5])
    assert model.certificate_.primal == pytest.approx(weighted, rel=1e-6)
    assert np.any(model.gate_norms_[1:])


def test_gate_weight_multiplies_token_weights():
    X, y = interaction(100)
    tokens = np.array([1.0, 2.0, 0.5, 1.0])
    model = ConvexTransformerClassifier(
        0.1, n_gates=3, random_state=0, gate_weight=3.0, token_weights=tokens
    ).fit(X, y)
    opened = np.einsum("ikd,hkd->ih", X, model.gate_directions_) >= model.gate_thresholds_
    dense = (opened[:, :, None, None] * X[:, None]).reshape(100, -1, 2)
    weights = np.concatenate([tokens, *[3.0 * tokens] * 3])
    same = ConvexAttentionClassifier(0.1, token_weights=weights).fit(dense, y)
    assert model.certificate_.primal == pytest.approx(same.certificate_.primal, rel=2e-6)
    assert model.beta_max_ == pytest.approx(same.beta_max_)


def test_heavy_gates_leave_convex_attention_and_need_an_open_one():
    X, y = interaction()
    heavy = ConvexTransformerClassifier(0.1, n_gates=8, random_state=0, gate_weight=1e3).fit(X, y)
    plain = ConvexAttentionClassifier(0.1).fit(X, y)
    assert not np.any(heavy.gate_norms_[1:])
    np.testing.assert_allclose(heavy.coef_[:, 0], plain.coef_, atol=1e-4)
    closing = ConvexTransformerClassifier(0.1, n_gates=8, random_state=0, open_gate=False)
    light, heavy = (clone(closing).set_params(gate_weight=w).fit(X, y) for w in (1.0, 1e3))
    np.testing.assert_array_equal(heavy.coef_, light.coef_)


@pytest.mark.parametrize(
    ("parameter", "message"),
    [({"open_gate": "no"}, "open_gate must be"), ({"gate_weight": 0}, "gate_weight must be")],
)
def test_bad_parameters_of_gates_are_refused_in_words(parameter, message):
    X, y = interaction(30)
    with pytest.raises(ValueError, match=message):
        ConvexTransformerClassifier(**parameter).fit(X, y)


def test_saved_models_without_the_open_gate(tmp_path):
    X, y = interaction(120)
    model = ConvexTransformerClassifier(
        n_gates=4, open_gate=False, gate_weight=1.5, random_state=0
    ).fit(X, y)
    model.save(tmp_path / "m.safetensors")
    again = load_model(tmp_path / "m.safetensors")
    assert (again.open_gate, again.gate_weight) == (False, 1.5)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
