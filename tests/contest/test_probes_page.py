"""The page of probes says what the committed results say."""

import json

import pytest

pytest.importorskip("torch")

from benchmarks import probes

from convexformer.probes import LayerProbe


def test_tables_of_the_page_are_those_of_the_results():
    page = probes.PAGE.read_text()
    assert len(list(probes.RESULTS.glob("minilm-*.json"))) == probes.LAYERS
    assert len(list(probes.RESULTS.glob("mpnet-*.json"))) == 1
    for file in probes.RESULTS.glob("*.json"):
        row = probes._row(LayerProbe.from_dict(json.loads(file.read_text())))
        assert "| " + " | ".join(row) + " |" in page
    maps = json.loads(probes.MAPS.read_text())
    assert probes.maps_page.render(maps) in page
    assert maps["text"] == "MRPC" and maps["settings"]["seeds"] >= 3


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
