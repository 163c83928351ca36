"""``convexformer probe``: tables, JSON, figures and errors."""

import json

import pytest
from tests.probes import heads

from convexformer.activations import Activations

KINDS = [heads.at_offset(-1), heads.first, heads.content]


@pytest.fixture(scope="module")
def activations(tmp_path_factory):
    return heads.write(tmp_path_factory.mktemp("made") / "heads", KINDS, n_texts=80).folder


def test_a_table_a_figure_and_json(run, run_json, activations, tmp_path):
    figure = tmp_path / "probe.png"
    told = run_json("probe", activations, "--window", 3, "--figure", figure)
    assert [head["top"][0] for head in told["heads"][:2]] == ["-1", "first"]
    assert told["worst_gap"] <= 1e-6 and told["heads"][2]["share"] < told["heads"][0]["share"]
    assert figure.stat().st_size > 10_000
    kept = tmp_path / "probe.json"
    kept.write_text(json.dumps(told))
    shown = run("probe", kept, "--figure", tmp_path / "again.png").stdout
    assert "Certified optimum for every head" in " ".join(shown.split())
    assert "looking both ways" in run("probe", activations, "--window", 3).stdout
    assert (tmp_path / "again.png").read_bytes() == figure.read_bytes()
    kept.write_text(json.dumps(told | {"tol": 1e-15}))
    assert "Not every head reached the gap of 1e-15" in run("probe", kept).stdout
    row = next(line for line in shown.splitlines() if line.split()[:1] == ["1"])
    assert f"{told['heads'][1]['share']:.2f}" in row and "first" in row


def test_from_a_model_and_texts(run, run_json, tmp_path):
    pytest.importorskip("transformers")
    from tests.small_models import WORDS, make_bert, save

    model = save(make_bert(), tmp_path / "bert")
    texts = tmp_path / "texts.txt"
    lines = [f"the {a} saw a {b} {c}" for a in WORDS[:4] for b in WORDS[4:7] for c in WORDS[:3]]
    texts.write_text("\n".join(lines) + "\n")
    told = run_json("probe", model, texts, "--layer", 2, "--window", 2, "--out", tmp_path / "kept")
    assert told["layer"] == 2 and len(told["heads"]) == 4 and sum(told["n_texts"]) == 36
    again = run_json("probe", tmp_path / "kept", "--window", 2)
    assert again["heads"] == told["heads"]
    options = ("--layer", 2, "--window", 2, "--max-texts", 24, "--out", tmp_path / "few")
    assert sum(run_json("probe", model, texts, *options)["n_texts"]) == 24
    assert len(Activations.open(tmp_path / "few")) == 24  # what is not used is not extracted
    texts.write_text("\n".join([lines[0], *lines, "cat " * 30]))
    assert "has 32 tokens" in run("probe", model, texts, "--layer", 2, code=2).stderr


def test_an_interruption_is_told(run, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("convexformer.activations.extract", interrupt)
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"text {number}\n" for number in range(20)))
    told = run("probe", "minilm", texts, "--layer", 0, code=130).stderr
    assert "the extraction is not complete" in told


def test_errors_are_one_line(run, activations, tmp_path):
    def error(*arguments):
        told = run("probe", *arguments, code=2).stderr
        assert told.startswith("error: ") and told.count("\n") == 1
        return told

    assert "give TEXTS and --layer" in error("minilm")
    assert "leave TEXTS and --layer out" in error(activations, "--layer", 1)
    assert "no file" in error(tmp_path / "none.json")
    (tmp_path / "other.json").write_text("{}")
    assert "leave TEXTS and --layer out" in error(tmp_path / "other.json", "texts.txt")
    assert "no result of probe --json" in error(tmp_path / "other.json")
    assert "--tol must be positive, got 0." in error("minilm", "texts.txt", "--tol", 0)
    assert "must end in .png or" in error(activations, "--figure", tmp_path / "probe.txt")


def test_texts_are_checked_before_the_model_is_sought(run, tmp_path):
    texts = tmp_path / "texts.txt"
    for lines, count in ([f"text {i}" for i in range(19)], 19), (["the same"] * 50, 1):
        texts.write_text("\n".join(lines))
        told = run("probe", "./no-such-model", texts, "--layer", 0, code=2).stderr
        assert "needs 20 different texts at least" in told and f"got {count}." in told


def test_few_texts_are_warned_of(run, tmp_path):
    few = heads.write(tmp_path / "few", [heads.uniform], n_texts=20).folder
    told = run("probe", few, "--window", 8)
    assert told.stderr.startswith("warning: few texts: ") and told.stderr.count("\n") == 1
    assert "for 120 coefficients" in told.stderr  # 20 places of 6 channels
    assert not run("probe", heads.write(tmp_path / "more", [heads.uniform]).folder).stderr


def test_a_constant_head_is_told_and_the_others_probed(run, run_json, tmp_path):
    made = heads.write(tmp_path / "made", KINDS, n_texts=60, constant=1).folder
    figure = tmp_path / "probe.png"
    told = run_json("probe", made, "--window", 3, "--figure", figure)
    assert told["heads"][1]["share"] is None and told["heads"][0]["share"] > 0.8
    kept = tmp_path / "probe.json"
    kept.write_text(json.dumps(told))
    shown = run("probe", kept, "--figure", tmp_path / "again.png").stdout
    row = next(line for line in shown.splitlines() if line.split()[:1] == ["1"])
    assert "writes the same everywhere" in row and "of 2 heads" in " ".join(shown.split())
    assert (tmp_path / "again.png").read_bytes() == figure.read_bytes()
