"""The reproduce command: a table for people, one JSON object, and nothing lost."""

import json

import pytest
from tests.nn.test_import import WITHOUT_TORCH
from tests.nn.test_import import run as run_python

ONE = ("reproduce", "equivalence", "--quick", "--steps", 40, "--problem", "matrix")


def test_help_names_the_experiments(run):
    assert "equivalence" in run("reproduce", "--help").stdout
    shown = run("reproduce", "equivalence", "--help").stdout
    for option in ("--out", "--starts", "--steps", "--quick", "--seed", "--json"):
        assert option in shown


def test_a_quick_run_writes_results_page_and_figure(run, run_json, tmp_path):
    folder = tmp_path / "runs"
    shown = run(*ONE, "--out", folder).stdout
    assert "best above" in shown and "0 of 120 runs went below the floor" in shown
    assert max(map(len, shown.splitlines()[:-1])) <= 80  # the last line holds paths
    assert (folder / "jobs.jsonl").read_text().count("\n") == 6
    assert (folder / "figures/equivalence.png").stat().st_size > 1000
    assert "figures/equivalence.png" in (folder / "equivalence.md").read_text()
    page = tmp_path / "docs" / "page.md"
    again = run_json(*ONE, "--out", folder, "--page", page)  # all jobs are done already
    stored = json.loads((folder / "results.json").read_text())
    assert again["rows"] == stored["rows"] and len(again["rows"]) == 6
    assert again["settings"] == {"starts": 20, "steps": 40, "seed": 0, "quick": True}
    assert again["command"].endswith("--starts 20 --steps 40 --seed 0 --problem matrix")
    assert all(row["below"] == 0 for row in again["rows"])
    figure = page.parent / "figures/page.png"
    assert again["files"] == [str(folder / "results.json"), str(page), str(figure)]
    assert figure.exists() and "figures/page.png" in page.read_text()


def test_an_interruption_says_where_finished_jobs_are(run, tmp_path, monkeypatch):
    from convexformer.experiments import equivalence

    real, ran = equivalence.run_job, []

    def stop_at_second(job):
        if ran:
            raise KeyboardInterrupt
        ran.append(job)
        return real(job)

    monkeypatch.setattr(equivalence, "run_job", stop_at_second)
    result = run(*ONE, "--steps", 2, "--out", tmp_path, code=130)
    assert "finished jobs (1) are kept" in " ".join(result.stderr.split())
    assert (tmp_path / "jobs.jsonl").read_text().count("\n") == 1


@pytest.mark.parametrize(
    ("more", "message"),
    [(("--problem", "riddle"), "no problem riddle"), (("--out", "none/none"), "does not exist")],
)
def test_wrong_input_is_told_in_one_line(run, tmp_path, monkeypatch, more, message):
    monkeypatch.chdir(tmp_path)
    stderr = run("reproduce", "equivalence", *more, code=2).stderr
    assert message in stderr and stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("package", "cure"),
    [("torch", 'pip install "convexformer[nn]"'), ("matplotlib", "pip install matplotlib")],
)
def test_a_missing_package_is_named_with_its_cure(tmp_path, package, cure):
    words = ["reproduce", "equivalence", "--out", str(tmp_path)]
    absent = WITHOUT_TORCH.replace('"torch"', repr(package))
    result = run_python(f"{absent}\nfrom convexformer.cli import app; app({words})")
    assert result.returncode == 2 and result.stdout == ""
    assert cure in result.stderr and result.stderr.count("\n") == 1
