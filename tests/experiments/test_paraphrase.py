"""Probes of paraphrases: matches, features of pairs, and a run on a small encoder."""

import json

import numpy as np
import pytest
from experiments.lab import Ledger
from experiments.paraphrase import experiment as probes
from experiments.paraphrase.__main__ import EXPERIMENT
from experiments.paraphrase.experiment import SLOTS, TOKENS, matches, pair_features
from experiments.sentences import SentencePairs, prose
from tests.small_models import WORDS, make_bert, save

from convexformer.activations import extract


def make_pairs(count, seed=0):
    """A paraphrase is the same sentence with one word changed; else all words are others."""
    rng = np.random.default_rng(seed)
    pairs, labels = [], rng.integers(2, size=count)
    for label in labels:
        first = rng.choice(WORDS[:6], size=5)
        second = first.copy() if label else rng.choice(WORDS[6:], size=5)
        second[rng.integers(5)] = rng.choice(WORDS)
        pairs.append((" ".join(first), " ".join(second)))
    return pairs, labels


@pytest.fixture(scope="module")
def pairs():
    parts = [make_pairs(count, seed) for seed, count in enumerate((120, 40, 40))]
    return SentencePairs("MRPC", *(part for part, _ in parts), labels=tuple(y for _, y in parts))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return save(make_bert(), tmp_path_factory.mktemp("encoder"))


def test_the_worst_match_comes_first():
    A = np.array([[1, 0, 0], [0, 1, 0], [0, 1, 1]], dtype=np.float32)
    B = np.array([[2, 0, 0], [0, 0, 1]], dtype=np.float32)
    differences, distances = matches(A, B)
    assert distances.tolist() == pytest.approx([1, 1 - 0.5**0.5, 0], abs=1e-6)
    assert differences[2].tolist() == [1, 0, 0]  # nearest by direction, not by length


def test_features_have_a_slot_for_every_name(pairs, encoder, tmp_path):
    found = extract(encoder, pairs.validation, 1, tmp_path, keep=("output",))
    told = pair_features(found, np.arange(5), length=9)
    assert told.slots.shape == (5, len(TOKENS), 24) and told.mask.all()
    assert not np.any(told.slots[:, 5:SLOTS])  # five words: there is no sixth match
    np.testing.assert_array_equal(told.slots[:, 2 * SLOTS], told.first)


def test_probes_see_what_is_there(pairs, encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(probes, "EPOCHS", 5)
    frozen = probes.Frozen(pairs, tmp_path / "activations", str(encoder), layer=1)
    results = probes.run(Ledger(tmp_path), frozen)
    rows = {row["probe"]: row for row in results["rows"]}
    assert rows.keys() == probes.PROBES.keys()
    assert rows["convex"]["relative_gap"] <= 1e-4 and rows["convex"]["test"]["accuracy"] > 0.8
    assert all(
        0.4 < row["test"][score] <= 1 for row in rows.values() for score in ("accuracy", "f1")
    )
    page = EXPERIMENT.text(results)
    assert all(row["label"] in page for row in rows.values())
    again = probes.Frozen(pairs, tmp_path / "nowhere", str(encoder), layer=1)
    assert probes.run(Ledger(tmp_path), again) == results  # nothing is extracted
    assert not (tmp_path / "nowhere").exists()


def test_sentences_without_labels_are_an_error(tmp_path):
    with pytest.raises(ValueError, match="have no labels"):
        probes.Frozen(prose(), tmp_path, "minilm", 5)


def test_the_committed_results_are_of_every_probe():
    results = json.loads((EXPERIMENT.home / "results.json").read_text())
    lines = (EXPERIMENT.home / "jobs.jsonl").read_text().splitlines()
    assert results["text"] == "MRPC" and len(results["rows"]) == len(probes.PROBES) == len(lines)
    for row, line in zip(results["rows"], map(json.loads, lines), strict=True):
        assert row.items() <= line.items()
