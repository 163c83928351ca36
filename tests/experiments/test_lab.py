"""Finished jobs in a file: what a full disk or a hand may do to it."""

from dataclasses import dataclass

import pytest
from experiments.lab import Experiment, KeyedJob, alike, append, is_of, read_lines
from jinja2 import UndefinedError


@pytest.mark.parametrize("line", ["not a record\n", '{"job": 2, "curve": [0.1, 0.'])
def test_a_line_that_is_no_record_is_named(tmp_path, line):
    file = tmp_path / "jobs.jsonl"
    append(file, {"job": 1})
    with file.open("a") as more:
        more.write(line)
    with pytest.raises(ValueError, match=r"jobs\.jsonl, line 2"):
        list(read_lines(file))


def test_jobs_finished_on_another_machine_are_finished_here():
    """Its logarithms, and grids that are made of them, may differ in the last bit."""
    key = {"job": "fit", "definition": {"betas": [0.3, 0.0002385479950138836], "gates": 8}}
    line = key | {"definition": {"betas": [0.3, 0.00023854799501388363], "gates": 8}, "loss": 0.5}
    assert key != {name: line[name] for name in key} and is_of(key, line)
    for other in ({"betas": [0.3, 0.00024], "gates": 8}, {"betas": [0.3], "gates": 8}):
        assert not is_of(key, line | {"definition": other})
    assert not is_of(key | {"seed": 0}, line)
    assert not alike({"share": None}, {"share": 0.1}) and not alike([1], {"a": 1})


# The command line -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Square(KeyedJob):
    """A job that cannot be smaller."""

    number: int

    def run(self):
        return {"square": self.number**2}


@pytest.fixture
def experiment(tmp_path):
    (tmp_path / "page.md").write_text("By {{ names[0] }}: {{ total | f('.1f') }}, {{ date }}\n")
    return Experiment(str(tmp_path), "Squares.", "squares.md", lambda _: {"names": ["us"]})


def squares(ledger):
    found = ledger.do_each(Square(number) for number in (1, 2, 3))
    return ledger.header() | {"total": sum(job["square"] for job in found)}


def command(experiment, *words, run=squares):
    options = experiment.parser().parse_args(["--out", str(experiment.home), *words])
    return experiment.main(run, options)


def test_a_command_writes_results_and_a_page_and_does_no_job_twice(experiment, tmp_path, capsys):
    page = tmp_path / "docs" / "squares.md"
    assert command(experiment, "--page", str(page)) == 0
    assert page.read_text().startswith("By us: 14.0, 20")
    assert capsys.readouterr().err.count("jobs done; Square(number=") == 3
    assert command(experiment, "--page", str(page)) == 0 and capsys.readouterr().err == ""
    page.unlink()
    never = lambda ledger: pytest.fail("nothing is to be run")
    assert command(experiment, "--page", str(page), "--page-only", run=never) == 0
    assert page.exists()


def test_a_command_without_time_says_so_and_writes_no_page(experiment, tmp_path, capsys):
    page = tmp_path / "squares.md"
    assert command(experiment, "--page", str(page), "--max-minutes", "-1") == 1
    assert "no time to begin another job. Not all jobs are done" in capsys.readouterr().out
    assert not page.exists() and not list(read_lines(tmp_path / "jobs.jsonl"))


def test_an_interrupted_command_keeps_what_is_finished(experiment, tmp_path, capsys):
    def stopped(ledger):
        ledger.do(Square(1))
        raise KeyboardInterrupt

    assert command(experiment, run=stopped) == 130
    assert f"kept in {tmp_path}: run again to go on" in capsys.readouterr().out
    assert len(list(read_lines(tmp_path / "jobs.jsonl"))) == 1


def test_a_name_that_a_template_lacks_is_an_error(experiment, tmp_path):
    (tmp_path / "page.md").write_text("{{ nobody }}")
    with pytest.raises(UndefinedError, match="nobody"):
        experiment.text({"date": "today"})


def test_a_quick_look_at_grokking_prints_its_page(tmp_path, monkeypatch, capsys):
    from experiments.grokking import __main__ as grokking

    one = {"split": 0, "steps_to_99": 150, "seconds_to_99": 0.75, "persistent": True}
    never = {"split": 1, "steps_to_99": None, "seconds_to_99": None, "persistent": None}
    records = [one | {"lowest_after": 0.99}, never | {"lowest_after": None}]
    monkeypatch.setattr(
        grokking, "run_quick", lambda ledger: ledger.header() | {"records": records}
    )
    assert grokking.main(["--quick", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "| 0 | 150 | 0.75 | 0.9900 | True |\n| 1 | never |" in shown


def test_a_quick_look_leaves_what_is_published_alone(experiment, tmp_path, capsys):
    (tmp_path / "quick.md").write_text("In all {{ total }}.")
    (tmp_path / "results.json").write_text("published")
    assert experiment.look(squares, experiment.parser().parse_args([])) == 0
    assert capsys.readouterr().out.endswith("In all 14.\n")
    assert (tmp_path / "results.json").read_text() == "published"
