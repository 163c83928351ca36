"""The page of probes says what the committed results say."""

import json

import pytest

pytest.importorskip("torch")

from benchmarks import probes

from convexformer.probes import LayerProbe


def test_tables_of_the_page_are_those_of_the_results():
    page = probes.PAGE.read_text()
    files = sorted(probes.RESULTS.glob("*.json"))
    assert len(files) == probes.LAYERS
    for file in files:
        row = probes._row(LayerProbe.from_dict(json.loads(file.read_text())))
        assert "| " + " | ".join(row) + " |" in page
    assert probes._maps_table(json.loads(probes.MAPS.read_text())) in page


def test_certificates_and_agreement_are_as_promised():
    results = [
        LayerProbe.from_dict(json.loads(file.read_text())) for file in probes.RESULTS.glob("*.json")
    ]
    assert max(result.worst_gap for result in results) <= 1e-6
    assert sum(result.agreement for result in results) == 60
    for head in (head for result in results for head in result.heads):
        offsets = sorted(head.model_attention[:17], reverse=True)
        assert head.offset == head.model_offset or offsets[0] - offsets[1] < 0.002
