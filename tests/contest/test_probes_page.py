"""The page of probes says what the committed results say."""

import json
import re

import pytest

pytest.importorskip("torch")

from benchmarks import probes

from convexformer.probes import LayerProbe


def test_the_page_is_that_of_the_results():
    page = probes.PAGE.read_text()
    assert len(list(probes.RESULTS.glob("minilm-*.json"))) == probes.LAYERS
    assert len(list(probes.RESULTS.glob("mpnet-*.json"))) == 1
    made = probes.sections()
    assert set(made) == {"found", "minilm", "mpnet", "maps"}
    for name, text in made.items():
        assert f"<!-- {name} -->\n{text}\n\n<!-- end of {name} -->" in page
    maps = json.loads(probes.MAPS.read_text())
    assert maps["text"] == "MRPC" and maps["settings"]["seeds"] >= 3


def test_the_page_begins_with_what_was_found():
    first = probes.PAGE.read_text().split("\n\n")[1]
    assert first.startswith("<!-- found -->\n**In a small sentence encoder")


def test_numbers_of_runs_are_between_the_marks_only():
    """Outside of them there is no share (.58) and no time (24 s) that a run came to."""
    page = probes.PAGE.read_text()
    for name, text in probes.sections().items():
        page = page.replace(f"<!-- {name} -->\n{text}\n\n<!-- end of {name} -->", "")
    prose = page.split("```python")[0]
    assert re.findall(r"(?<![\w])0?\.\d\d|\b\d+ s\b", prose) == []


def test_sentences_follow_the_numbers():
    records, found = probes.read("mpnet")
    heads = found[0].heads
    words = " ".join(probes.findings(found, records))
    assert f"static mixing explains {sum(head.share for head in heads) / 12:.2f}" in words
    assert "6 of 12. In the other 6" in words and "5 of them read the mean most" in words
    assert "Extraction took 169 s." in words and "layer took 170 s." in words
    agreed = [head for head in heads if head.offset == head.model_offset]
    assert probes._agreement(agreed).endswith("6 of 6.")


def test_certificates_and_agreement_are_as_promised():
    results = {
        file.stem: LayerProbe.from_dict(json.loads(file.read_text()))
        for file in probes.RESULTS.glob("*.json")
    }
    assert max(result.worst_gap for result in results.values()) <= 1e-6
    large = results.pop("mpnet-layer-5")
    assert sum(result.agreement for result in results.values()) == 60
    for head in (head for result in results.values() for head in result.heads):
        offsets = sorted(head.model_attention[:17], reverse=True)
        assert head.offset == head.model_offset or offsets[0] - offsets[1] < 0.002
    others = [head for head in large.heads if head.offset != head.model_offset]
    assert len(others) == 6 and all(max(head.model_attention[:17]) < 0.09 for head in others)
    assert sum(head.top[0] == "mean" for head in others) == 5
