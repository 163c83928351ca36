"""The page of probes says what the committed results say."""

import json

import pytest

pytest.importorskip("torch")

from experiments.lab import Ledger
from experiments.probes import experiment as probes
from experiments.probes.__main__ import EXPERIMENT
from experiments.probes.experiment import MAPS, above, facts
from experiments.sentences import SentencePairs

from convexformer.probes import LayerProbe


@pytest.fixture(scope="module")
def stored():
    return json.loads((EXPERIMENT.home / "results.json").read_text())


def test_the_committed_results_follow_from_the_committed_jobs(stored):
    pairs = SentencePairs("MRPC", [], [], [])
    ledger = Ledger(EXPERIMENT.home, report=lambda done, what: pytest.fail(what))
    assert probes.run(ledger, pairs) == stored
    assert [len(stored[name]) for name in ("minilm", "mpnet")] == [6, 1]
    maps = json.loads(MAPS.read_text())
    assert maps["text"] == "MRPC" and maps["settings"]["seeds"] >= 3


def test_a_large_encoder_that_is_missing_is_left_for_later(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(probes, "LAYERS", ())
    results = probes.run(Ledger(tmp_path), SentencePairs("MRPC", [], [], []))
    assert not results["complete"] and results["mpnet"] == []


def test_the_page_begins_with_what_was_found(stored):
    first = EXPERIMENT.text(stored).split("\n\n")[1]
    assert first.startswith("<!-- found -->\n**In a small sentence encoder")


def test_sentences_follow_the_numbers(stored):
    (record,) = stored["mpnet"]
    heads = LayerProbe.from_dict(record).heads
    words = EXPERIMENT.text(stored).split("### At the paper's scale")[1]
    assert f"static mixing explains {sum(head.share for head in heads) / 12:.2f}" in words
    assert "6 of 12. In the other 6" in words and "5 of them read the mean most" in words
    assert "Extraction took 169 s." in words and "layer took 170 s." in words
    assert facts(stored)["minilm"]["extraction"] == "7 to 18"
    assert above(0.0649, 2) == "0.07" and above(0.07, 2) == "0.08"


def test_certificates_and_agreement_are_as_promised(stored):
    results = {
        f"{name}-{record['layer']}": LayerProbe.from_dict(record)
        for name in ("minilm", "mpnet")
        for record in stored[name]
    }
    assert max(result.worst_gap for result in results.values()) <= 1e-6
    large = results.pop("mpnet-5")
    assert sum(result.agreement for result in results.values()) == 60
    for head in (head for result in results.values() for head in result.heads):
        offsets = sorted(head.model_attention[:17], reverse=True)
        assert head.offset == head.model_offset or offsets[0] - offsets[1] < 0.002
    others = [head for head in large.heads if head.offset != head.model_offset]
    assert len(others) == 6 and all(max(head.model_attention[:17]) < 0.09 for head in others)
    assert sum(head.top[0] == "mean" for head in others) == 5
