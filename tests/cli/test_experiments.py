"""Progress of long runs."""

from convexformer.cli import _experiments


def test_without_a_terminal_finished_jobs_are_told_now_and_then(tmp_path, monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr(_experiments.time, "monotonic", lambda: now)
    with _experiments.progress(tmp_path) as report:
        for done, now in ((0, 20.0), (1, 30.0), (1, 60.0), (2, 61.0), (3, 62.0)):  # noqa: B007
            report(done, "a job")
    assert capsys.readouterr().err.splitlines() == ["1 jobs done; a job", "2 jobs done; a job"]
