"""The comparison is fair (splits, budgets, choices), resumable, and its page follows from it."""

import json

import numpy as np
import pytest
from experiments.lab import Ledger, standard_error
from experiments.predictive import experiment as predictive
from experiments.predictive.__main__ import EXPERIMENT
from experiments.predictive.contestants import (
    BUDGET,
    CONTESTANTS,
    Contestant,
    ScaledSVC,
    flat,
    grid,
)
from experiments.predictive.experiment import compare, facts, kind_scores, summarise

from convexformer import ConvexTransformerClassifier, ConvexTransformerRegressor
from convexformer.datasets import TokenDataset, hla, motion, pendigits, splice

# The budget ends some fits early, as it may.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def toy(n_samples=150, seed=0, groups=None) -> TokenDataset:
    """Three classes, told apart by the first of two tokens."""
    rng = np.random.default_rng(seed)
    y = np.arange(n_samples) % 3
    X = rng.normal(size=(n_samples, 2, 3))
    X[np.arange(n_samples), 0, y] += 3
    return TokenDataset(
        name="toy",
        X=100 + 50 * X,
        y=y,
        target_names=("a", "b", "c"),
        token_names=("told", "noise"),
        channel_names=("u", "v", "w"),
        description="",
        groups=groups,
    )


class Fixed:
    """Says what its configuration says, and notes what it was given."""

    seen: list = []  # noqa: RUF012

    def __init__(self, answer):
        self.answer = answer

    def fit(self, X, y):
        Fixed.seen.append((X, y))
        return self

    def predict(self, X):
        return np.full(len(X), self.answer)


FIXED = Contestant("fixed", grid(answer=(0, 2, 1, 2)), lambda c, seed: Fixed(**c))


@pytest.fixture
def small(monkeypatch):
    """Only the toy data, and two quick contestants."""
    quick = {name: CONTESTANTS[name] for name in ("attention", "logistic")}
    monkeypatch.setattr(predictive, "DATASETS", {"toy": toy})
    monkeypatch.setattr(predictive, "CONTESTANTS", quick)
    return quick


# Splits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [hla, splice, motion])
def test_parts_are_60_20_20_and_every_sample_is_tested_once(load):
    data = load()
    splits = [predictive.split(data, seed) for seed in predictive.SEEDS]
    for rows in splits:
        parts = [rows.train, rows.validation, rows.test]
        assert sorted(np.concatenate(parts)) == list(range(len(data.y)))
        shares = [len(part) / len(data.y) for part in parts]
        np.testing.assert_allclose(
            shares, [0.6, 0.2, 0.2], atol=0.1 if data.groups is not None else 0.001
        )
    assert sorted(np.concatenate([rows.test for rows in splits])) == list(range(len(data.y)))


def test_persons_are_never_on_both_sides():
    data = motion()
    for seed in predictive.SEEDS:
        rows = predictive.split(data, seed)
        persons = [set(data.groups[part]) for part in (rows.train, rows.validation, rows.test)]
        assert [len(some) for some in persons] == [6, 2, 2]
        assert len(set.union(*persons)) == 10


def test_classes_have_equal_shares_in_every_part():
    data = pendigits()
    rows = predictive.split(data, 3)
    for part in (rows.train, rows.validation, rows.test):
        shares = np.bincount(data.y[part]) / len(part)
        np.testing.assert_allclose(shares, np.bincount(data.y) / len(data.y), atol=0.002)


# Contestants ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONTESTANTS)
def test_every_contestant_has_the_same_budget_of_different_configurations(name):
    configs = [json.dumps(config) for config in CONTESTANTS[name].grid]
    assert len(configs) == len(set(configs)) == BUDGET


@pytest.mark.parametrize("name", CONTESTANTS)
def test_every_contestant_learns_the_toy(name):
    contestant = CONTESTANTS[name]
    short = Contestant(**{**vars(contestant), "grid": contestant.grid[1:2]})
    record = predictive.contest(toy(300), short, seed=1)
    assert record["score"] > 0.8
    assert (record["relative_gap"] is not None) == contestant.convex
    if contestant.convex:
        assert record["relative_gap"] <= 1e-6
        assert 1 <= record["tokens_used"] <= record["n_tokens"] == 2 + 2 * (name == "pooled")


@pytest.mark.parametrize("name", CONTESTANTS)
def test_the_same_seed_gives_the_same_score(name):
    contestant = CONTESTANTS[name]
    short = Contestant(**{**vars(contestant), "grid": contestant.grid[1:2]})
    first, second = (predictive.contest(splice_part(), short, seed=2) for _ in range(2))
    assert first["score"] == second["score"] and first["score"] > 0.6


def splice_part() -> TokenDataset:
    data = splice()
    return TokenDataset(**{**vars(data), "X": data.X[:300, 25:35], "y": data.y[:300]})


def test_gamma_is_in_units_of_scikit_learns():
    X, y = toy().X.reshape(150, -1), toy().y
    ours, theirs = ScaledSVC(gamma=1.0).fit(X, y), ScaledSVC.__base__(gamma="scale").fit(X, y)
    np.testing.assert_allclose(ours.decision_function(X), theirs.decision_function(X))
    assert ours.gamma == 1.0


def test_vectors_are_tokens_side_by_side():
    X = np.arange(12.0).reshape(2, 3, 2)
    np.testing.assert_array_equal(flat(None)[0].transform(X)[1], np.arange(6.0, 12.0))


# Jobs -------------------------------------------------------------------------------------------


def test_validation_chooses_and_the_test_part_does_not():
    # By persons, so that the classes can differ: 0 is most frequent in training, 1 in validation.
    data = toy(100, groups=np.repeat(np.arange(5), 20))
    for seed in predictive.SEEDS:
        rows = predictive.split(data, seed)
        data.y[rows.train], data.y[rows.validation], data.y[rows.test] = 0, 1, 2
        record = predictive.contest(data, FIXED, seed)
        assert record["config"] == {"answer": 1} and record["score"] == 0
        assert record["validation_scores"] == [0, 0, 1, 0]


def test_ties_go_to_the_simplest():
    data = toy(100)
    data.y[:] = 2
    record = predictive.contest(data, FIXED, 0)
    assert record["validation_scores"] == [0, 1, 0, 1]
    assert record["config"] == {"answer": 2} and record["score"] == 1


def test_only_the_training_part_is_fitted_and_scales_the_tokens():
    data = toy()
    Fixed.seen.clear()
    predictive.contest(data, FIXED, 4)
    X, y = Fixed.seen[0]
    assert len(Fixed.seen) == len(FIXED.grid)
    np.testing.assert_array_equal(y, data.y[predictive.split(data, 4).train])
    np.testing.assert_allclose(X.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(X.std(axis=0), 1)


def test_letters_are_not_scaled():
    Fixed.seen.clear()
    predictive.contest(splice_part(), FIXED, 0)
    assert set(np.unique(Fixed.seen[0][0])) <= {0, 0.25, 0.5, 1 / 3, 1}


@pytest.mark.parametrize("letters", [True, False])
def test_appended_tokens_are_scaled_and_letters_are_not(letters):
    data, pooled = splice_part() if letters else toy(), CONTESTANTS["pooled"]
    train = predictive.split(data, 0).train
    X, n = predictive.tokens_for(data, pooled, train), data.X.shape[1]
    assert X.shape[1] == n + 2
    assert np.array_equal(X[:, :n], data.X) == letters
    np.testing.assert_allclose(X[train, n:].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(X[train, n:].std(axis=0), 1)


def test_auc_needs_scores_and_not_classes():
    class Ranks:
        def predict_proba(self, X):
            return np.stack([1 - X[:, 0, 0], X[:, 0, 0]], axis=1)

    X = np.array([0.1, 0.2, 0.3, 0.4]).reshape(4, 1, 1)
    assert predictive.score(Ranks(), X, np.array([0, 1, 0, 1]), "AUC") == 0.75


# Files ------------------------------------------------------------------------------------------


def test_a_run_can_be_cut_short_and_resumed(small, tmp_path, capsys):
    words = ["--out", str(tmp_path), "--max-minutes", "-1"]
    assert EXPERIMENT.main(predictive.run, EXPERIMENT.parser().parse_args(words)) == 1
    assert "run again" in capsys.readouterr().out and not (tmp_path / "predictive.md").exists()
    Ledger(tmp_path).do(predictive.Job("toy", "logistic", 3))
    first = (tmp_path / "jobs.jsonl").read_text()
    predictive.run(Ledger(tmp_path))
    again = (tmp_path / "jobs.jsonl").read_text()
    assert again.startswith(first) and again.count("\n") == 10
    keys = [(job["model"], job["seed"]) for job in map(json.loads, again.splitlines())]
    assert len(set(keys)) == 10
    predictive.run(Ledger(tmp_path))  # nothing left to do
    assert (tmp_path / "jobs.jsonl").read_text() == again


def test_results_of_another_grid_do_not_count(small, tmp_path, monkeypatch):
    predictive.run(Ledger(tmp_path))
    other = {**vars(small["logistic"]), "grid": small["logistic"].grid[:1]}
    monkeypatch.setitem(small, "logistic", Contestant(**other))
    results = predictive.run(Ledger(tmp_path, max_minutes=-1))
    assert not results["complete"] and set(results["datasets"]["toy"]) == {"attention"}


def test_results_say_what_was_done(small, tmp_path):
    results = predictive.run(Ledger(tmp_path))
    assert results["date"] and results["environments"][0]["versions"]["scikit-learn"]
    cell = results["datasets"]["toy"]["attention"]
    lines = map(json.loads, (tmp_path / "jobs.jsonl").read_text().splitlines())
    scores = {line["seed"]: line["score"] for line in lines if line["model"] == "attention"}
    assert cell["scores"] == [scores[seed] for seed in range(5)]
    assert cell["mean"] == pytest.approx(np.mean(cell["scores"]))
    assert max(cell["relative_gaps"]) <= 1e-6


def job(model, seed, score, dataset="toy"):
    return {
        "dataset": dataset, "seed": seed, "model": model, "metric": "accuracy", "score": score,
        "config": {}, "validation_scores": [0.5] * 6, "seconds": 1.0, "fit_seconds": 0.5,
        "n_tokens": 4, "tokens_used": 2,
        "relative_gap": 1e-7 if model == "attention" else None, "worst_gap": 1e-6,
        "date": "2020-01-01 00:00", "environment": {},
    }  # fmt: skip


def test_differences_are_paired_by_seed():
    jobs = [job("attention", 1, 0.7), job("attention", 0, 0.5), job("attention", 2, 0.9)]
    jobs += [job("logistic", 0, 0.4), job("logistic", 1, 0.6), job("svc", 0, 0.1)]
    cells = summarise(jobs, CONTESTANTS, ["toy", "none"])["datasets"]["toy"]
    assert cells["attention"]["scores"] == [0.5, 0.7, 0.9]
    assert cells["attention"]["standard_error"] == pytest.approx(0.2 / 3**0.5)
    (pair,) = compare(cells, ["attention"])
    assert (pair["model"], pair["than"]) == ("attention", "logistic")
    assert pair["mean"] == pytest.approx(0.1) and pair["standard_error"] == pytest.approx(0)


def test_the_page_says_who_is_ahead_and_what_is_read():
    jobs = [job("attention", seed, 0.7 + 0.1 * seed) for seed in (0, 1, 2)]
    jobs += [job("logistic", seed, 0.4 + 0.1 * seed) for seed in (0, 1, 2)]
    jobs += [job("kinds", seed, 0.3 + 0.1 * seed) | {"relative_gap": 1e-9} for seed in (0, 1, 2)]
    results = summarise(jobs, CONTESTANTS, ["toy"]) | {"date": "today", "environments": []}
    known, page = facts(results), EXPERIMENT.text(results)
    assert "ahead of the best other one (by test scores) on 1 of 1 data sets: toy (+0.30" in page
    assert "all tokens on 0 of 1 data sets** (); it reads 2.0 of 4 on toy." in page
    assert "| convex attention | **0.8000 ± 0.0577** |" in page and "| SVC (RBF) |  |" in page
    assert known["proved"] == len(known["gaps"]) == 2
    results["datasets"]["toy"]["attention"] |= {"tokens_used": [4, 4, 4], "relative_gaps": [1e-3]}
    page = EXPERIMENT.text(results)
    assert "all tokens on 1 of 1 data sets** (toy); it reads ." in page
    assert facts(results)["proved"] == 1
    assert "the largest relative gap is 1e-03 (convex attention on toy)" in page


def test_one_value_has_no_standard_error():
    assert standard_error([1.0]) is None


def committed():
    return json.loads((EXPERIMENT.home / "results.json").read_text())


def test_kinds_of_gates_are_compared_at_the_better_beta_of_every_seed():
    configs = [{"gates": kind, "beta": beta} for kind in ("axis", "pairs") for beta in (1, 2)]
    scores = [[0.5, 0.7, 0.1, 0.2], [0.9, 0.6, 0.4, 0.2]]
    cells = {"toy": {"kinds": {"validation_scores": scores}}}
    results = {"protocol": {"grids": {"kinds": configs}}, "datasets": cells}
    assert kind_scores(results)["axis"]["toy"] == pytest.approx(0.8)
    assert kind_scores(results)["pairs"]["toy"] == pytest.approx(0.3)


def test_default_gates_are_the_kind_that_validation_likes_best():
    scores = kind_scores(committed())
    best = max(scores, key=lambda kind: np.mean(list(scores[kind].values())))
    assert best == ConvexTransformerClassifier().gates == ConvexTransformerRegressor().gates
