"""Probes of paraphrases: matches, features of pairs, and a run on a small encoder."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.small_models import WORDS, make_bert, save

from convexformer.activations import extract
from convexformer.datasets import SentencePairs, prose
from convexformer.experiments import classification_probes as probes
from convexformer.experiments.classification_page import render
from convexformer.experiments.paraphrase_data import SLOTS, TOKENS, matches, pair_features


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
    single = extract(encoder, ["the cat"], 1, tmp_path / "single", keep=("output",))
    with pytest.raises(ValueError, match="no pair of sentences"):
        pair_features(single, np.arange(1), length=4)


def test_probes_see_what_is_there(pairs, encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(probes, "EPOCHS", 5)
    results = probes.run(pairs, tmp_path, model=encoder, layer=1)
    assert results == json.loads((tmp_path / "results.json").read_text())
    words = "convexformer reproduce paraphrase"
    assert results["command"] == f"{words} --model {encoder} --layer 1"
    assert probes.command("minilm", 5) == words
    rows = {row["probe"]: row for row in results["rows"]}
    assert rows.keys() == probes.PROBES.keys()
    assert rows["convex"]["relative_gap"] <= 1e-4 and rows["convex"]["test"]["accuracy"] > 0.8
    assert all(
        0.4 < row["test"][score] <= 1 for row in rows.values() for score in ("accuracy", "f1")
    )
    page = render(results)
    assert all(row["label"] in page for row in rows.values())


def test_sentences_without_labels_are_an_error(tmp_path):
    with pytest.raises(ValueError, match="have no labels"):
        probes.run(prose(), tmp_path)


def test_the_committed_page_is_that_of_the_committed_results():
    root = Path(__file__).parents[2]
    results = json.loads((root / "benchmarks" / "paraphrase" / "results.json").read_text())
    assert (root / "docs" / "paraphrase.md").read_text() == render(results)
    assert results["text"] == "MRPC" and len(results["rows"]) == len(probes.PROBES)
