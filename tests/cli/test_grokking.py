"""``reproduce grokking``: several values to an option, a quick look, and one JSON object."""

import json
from dataclasses import replace

import pytest

from convexformer.cli import _grokking
from convexformer.experiments import grokking, grokking_small


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(grokking, "QUICK_STEPS", 25)
    monkeypatch.setattr(grokking, "QUICK_SEEDS", 2)


def test_a_quick_run_ends_with_one_json_object(run, tmp_path, short):
    shown = run("reproduce", "grokking", "--quick", "--out", tmp_path).stdout
    told = json.loads(shown.splitlines()[-1])
    assert told == {
        "steps_to_99": [None, None],
        "persistent": [None, None],
        "seconds": [None, None],
        "lowest_after": [None, None],
    }
    assert shown.count("never") == 4 and max(map(len, shown.splitlines()[:-1])) <= 80
    alone = run("reproduce", "grokking", "--quick", "--out", tmp_path, "--json").stdout
    assert json.loads(alone) == told


def test_options_take_several_values(run, tmp_path, monkeypatch):
    seen = []

    def stop(folder, settings, **_):
        seen.append(settings)
        raise ValueError("enough")

    monkeypatch.setattr(grokking, "run", stop)
    words = ("--layers", 1, 2, "--models", "gated", "mlp", "--seeds", 3, "--modulus", 97)
    run("reproduce", "grokking", *words, "--out", tmp_path, code=2)
    (settings,) = seen
    assert (settings.layers, settings.models) == ((1, 2), ("gated", "mlp"))
    assert (settings.seeds, settings.moduli) == (3, (97,))


def test_wrong_input_is_told_in_one_line(run, tmp_path):
    stderr = run("reproduce", "grokking", "--models", "gru", "--out", tmp_path, code=2).stderr
    assert "no model gru; choose of gated, power" in stderr and stderr.count("\n") == 1
    stderr = run("reproduce", "grokking", "--layers", "3", "--out", tmp_path, code=2).stderr
    assert "1, 2 or 4 layers, got 3" in stderr
    wrong = ("--models", "mlp", "--layers", "2")
    stderr = run("reproduce", "grokking", *wrong, "--out", tmp_path, code=2).stderr
    assert "none of the models mlp is trained modulo 97 or 15 with 2 layers" in stderr
    stderr = run("reproduce", "grokking", "--quick", "--modulus", "15", code=2).stderr
    assert "leave the other options out" in stderr
    wrong = ("--modulus", "15", "--models", "prox")
    stderr = run("reproduce", "grokking", *wrong, "--out", tmp_path, code=2).stderr
    assert "none of the models prox is trained modulo 15" in stderr
    wrong = ("--modulus", "15", "--seeds", "3")
    stderr = run("reproduce", "grokking", *wrong, "--out", tmp_path, code=2).stderr
    assert "the same 20 splits: leave --seeds out" in stderr


def test_help_names_all_networks():
    assert _grokking.NAMES.split(", ") == list(grokking.MODELS)


def test_modulo_15_trains_the_wanted_networks_alone(run, tmp_path, monkeypatch):
    monkeypatch.setattr(grokking_small, "TUNING_STEPS", 50)
    monkeypatch.setitem(grokking_small.SMALL, "mlp", replace(grokking_small.SMALL["mlp"], steps=50))
    words = ("--modulus", 15, "--models", "mlp", "--out", tmp_path)
    shown = run("reproduce", "grokking", *words).stdout
    assert "modulo 15, on 20 splits" in shown and "gated" not in shown
    results = json.loads((tmp_path / "results.json").read_text())
    assert {record["name"] for record in results["small"]} == {"mlp"}
    command = "convexformer reproduce grokking --modulus 15 --layers 1 2 4 --models mlp"
    assert results["command"] == command


def test_an_interruption_says_where_finished_jobs_are(run, tmp_path, monkeypatch):
    def stop(folder, report):
        report(4, "a job")
        raise KeyboardInterrupt

    monkeypatch.setattr(grokking, "run_quick", stop)
    result = run("reproduce", "grokking", "--quick", "--out", tmp_path, code=130)
    assert "finished jobs (4) are kept" in " ".join(result.stderr.split())
