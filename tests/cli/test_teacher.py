"""``reproduce teacher``: a quick look that ends with one JSON object, and clear errors."""

import json

import pytest
from tests.experiments.test_teacher import encoder, mrpc  # noqa: F401  # fixtures

from convexformer.experiments import teacher
from convexformer.experiments.teacher_jobs import Budget


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(teacher, "QUICK_BUDGET", Budget(steps=25, seeds=1))


def test_a_quick_run_ends_with_one_json_object(run, tmp_path, short, encoder, mrpc):  # noqa: F811
    words = ("--model", encoder, "--layer", 1, "--tokens", 10, "--mrpc", mrpc, "--quick")
    shown = run("reproduce", "teacher", *words, "--out", tmp_path).stdout
    told = json.loads(shown.splitlines()[-1])
    assert told["students"].keys() == set(teacher.QUICK_STUDENTS) and told["text"] == "MRPC"
    for name, student in told["students"].items():
        assert student["test_loss"] > 0 and student["seconds"] >= 0
        assert ("relative_gap" in student) == (name in teacher.CERTIFIED)
        assert student.get("relative_gap", 0) <= 1e-4
    assert "convex, offsets" in shown and max(map(len, shown.splitlines()[:-1])) <= 80
    alone = run("reproduce", "teacher", *words, "--out", tmp_path, "--json").stdout
    assert json.loads(alone) == told  # finished jobs are kept


def test_a_folder_without_mrpc_is_told_in_one_line(run, tmp_path):
    words = ("--mrpc", tmp_path / "nowhere", "--out", tmp_path / "out")
    stderr = run("reproduce", "teacher", *words, code=2).stderr
    assert "has no msr_paraphrase_train.txt" in stderr and stderr.count("\n") == 1


def test_options_that_a_quick_run_does_not_have(run, tmp_path):
    for words in (("--few",), ("--page", tmp_path / "page.md"), ("--max-minutes", 1)):
        options = ("reproduce", "teacher", "--quick", *words, "--out", tmp_path)
        assert "leave --few, --page and --max-minutes out" in run(*options, code=2).stderr
    assert not list(tmp_path.iterdir())
