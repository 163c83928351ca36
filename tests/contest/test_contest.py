"""The contest end to end: contestants, the runner, what it keeps, and the page."""

import json
import re
from functools import partial

import numpy as np
import pytest
from benchmarks import check, floor, page, run, scaling
from benchmarks.cells import GRIDS, PATH, gated, made
from benchmarks.contestants import NAMES, contestant
from benchmarks.objective import GAPS, Cell, Task
from benchmarks.processes import Process
from benchmarks.summary import RESULTS, read, summarise

MAIN = [name for name in NAMES if contestant(name).ENVIRONMENT == "main"]


@pytest.mark.parametrize("name", MAIN)
def test_contestants_solve_what_they_are_asked(name):
    found = list(check.check(name))
    assert found
    assert [title for title, _, gap in found if not gap <= check.GAP] == []


def _tiny_grid():
    return [
        Cell("one/0.1", partial(made, 60, 5, 1, intercept=True), (0.1,), correlated=True),
        Cell("path", partial(made, 40, 4, 2), PATH[::10]),
        Cell("gated/0.2", partial(gated, 40, 2, 2, 2), (0.2,), goal=1e-9),
    ]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(GRIDS, "quick", _tiny_grid)
        patch.setattr(run, "speeds", partial(run.speeds, 100, 1))
        run.main(["--grid", "quick", "--contestants", "cvxpy,sklearn", "--results", str(folder)])
        before = (folder / "quick.json").read_text()
        patch.setattr(run.Contest, "play", lambda *_: pytest.fail("a finished cell was run again"))
        run.main(["--grid", "quick", "--contestants", "cvxpy,sklearn", "--results", str(folder)])
        assert (folder / "quick.json").read_text() == before
    return folder


def test_all_runs_are_kept(results):
    cells = read("quick", results)["cells"]
    assert list(cells) == ["one/0.1", "path", "gated/0.2"]
    runs = cells["one/0.1"]["runs"]
    assert {one["contestant"] for one in runs} == set(MAIN)
    assert cells["gated/0.2"]["unfit"] == {"sklearn": "no groups of columns"}
    for name in MAIN:
        own = [one for one in runs if one["contestant"] == name]
        assert [one["first"] for one in own].count(True) == 1
        assert own[-1]["first"] and own[-1]["loading"] > 0
        assert all(one["wall"] > 0 and not one["failed"] for one in own)
        assert all(one["cpu"] > 0 for one in own if not one["first"])  # clocks are coarse
        swept = [one["setting"]["tol"] for one in own[: -run.REPETITIONS["quick"]]]
        assert swept == sorted(swept, reverse=True)


def test_first_calls_of_ours_may_be_measured_anew(results, tmp_path, monkeypatch):
    monkeypatch.setitem(GRIDS, "quick", lambda: _tiny_grid()[:1])
    (tmp_path / "quick.json").write_text((results / "quick.json").read_text())
    run.main(["--grid", "quick", "--first-calls", "--results", str(tmp_path)])
    old, new = (read("quick", where)["cells"]["one/0.1"]["runs"] for where in (results, tmp_path))
    changed = [k for k, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
    assert [(new[k]["contestant"], new[k]["first"]) for k in changed] == [("convexformer", True)]
    assert new[changed[0]]["loading"] > 0 and new[changed[0]]["gap"] <= 1e-2


def test_standings_follow_from_runs(results):
    record = read("quick", results)["cells"]["one/0.1"]
    cell = summarise("one/0.1", record)
    assert cell.ours.seconds == cell.ours.by_gap[1e-6] and cell.ours.reached <= 1e-6
    assert set(cell.ours.by_gap) == set(GAPS)
    assert cell.best is min(cell.peers, key=lambda peer: peer.seconds)
    assert cell.ratio == pytest.approx(cell.best.seconds / cell.ours.seconds)
    assert cell.goal == ("10x", cell.ratio >= 10)
    assert cell.allowed == pytest.approx(cell.best.seconds / 10)
    for one in record["runs"]:  # no peer arrives: the ratio is a lower bound
        if one["contestant"] != "convexformer":
            one["gap"], one["cpu"] = 1e-3, 7.0
    lower = summarise("one/0.1", record)
    assert lower.best is None and lower.ratio == pytest.approx(7.0 / cell.ours.seconds)
    assert not lower.sooner and not lower.short_by_value
    for one in record["runs"]:  # nor by value
        if one["contestant"] != "convexformer":
            one["cpu"] = 12.0 * cell.ours.seconds
    uncertified = summarise("one/0.1", record)
    assert uncertified.goal == ("10x", True) and not uncertified.short_by_value
    for one in record["runs"]:  # but one is done by value
        if one["contestant"] != "convexformer" and not one["first"]:
            one["primals"] = next(
                own["primals"] for own in record["runs"] if own["setting"].get("tol") == 1e-6
            )
            one["cpu"] = 9.0 * cell.ours.seconds
            break
    assert summarise("one/0.1", record).short_by_value
    for one in record["runs"]:  # but one is sooner to a looser gap
        if one["contestant"] != "convexformer":
            one["cpu"] = 1e-9
    assert summarise("one/0.1", record).sooner


def test_what_checking_an_answer_takes_is_on_the_page(results, tmp_path, monkeypatch):
    monkeypatch.setitem(GRIDS, "quick", _tiny_grid)
    (tmp_path / "quick.json").write_text((results / "quick.json").read_text())
    missed = floor.short_of_goal("quick", tmp_path)
    assert "gated/0.2" in missed
    floor.main(["--results", str(tmp_path)])
    found = read("floor", tmp_path)["seconds"]
    assert sorted(found["quick"]) == sorted(missed) and found["standard"] == {}
    floor.main(["--results", str(tmp_path), "--grid", "standard"])  # others stay as they are
    assert read("floor", tmp_path)["seconds"] == found
    assert all(0 < took < 1 for took in found["quick"].values())
    row = rf"\| gated/0\.2 \| 1e-06 \| {1e3 * found['quick']['gated/0.2']:.2g} \| "
    assert re.search(row, page.render(tmp_path))


def test_the_page_names_every_cell_and_every_loss(results, tmp_path):
    scaling.main([
        "--axes", "N,h", "--doublings", "1", "--base-N", "40", "--base-n", "3", "--base-d", "2",
        "--results", str(tmp_path),
    ])  # fmt: skip
    record = read("quick", results)
    for one in record["cells"]["path"]["runs"]:
        if one["contestant"] == "convexformer":
            one["cpu"] = 1e3
    record["cells"]["path"]["measured"] = "2020-01-01T00:00+00:00"
    (tmp_path / "quick.json").write_text(json.dumps(record))
    shown = page.render(tmp_path)
    for name in record["cells"]:
        assert f"| {name} |" in shown
    assert re.search(r"\*\*Lost\*\*, a peer was faster: .*path \(", shown)
    assert re.search(r"Short of the goal: .*gated/0\.2", shown)
    assert re.search(r"### Short of the goal\n(.*\n)*\| gated/0\.2 \| 1e-06 \| .* \|\n", shown)
    assert "as it was then, and perhaps on another machine: path.\n" in shown
    assert "| N | 40, 80 |" in shown and "| h | 2, 4 |" in shown


def test_the_published_page_is_that_of_the_published_results():
    assert (page.DOCS / "benchmarks.md").read_text() == page.render(RESULTS)


def test_a_run_that_is_late_is_stopped_and_the_next_one_works(tmp_path):
    task = made(300, 20, 10, correlated=True).at(0.02)
    task.save(tmp_path)
    process = Process("convexformer")
    process.give(tmp_path)
    try:
        late = process.run(task, {"tol": 1e-6}, 1e-3)
        assert late.failed == "out of time" and late.gap == np.inf
        assert process.run(task, {"tol": 1e-2}, 60.0).gap <= 1e-2
    finally:
        process.end()


def test_a_failure_is_a_result(tmp_path):
    task = Task(np.ones((4, 2, 1)), np.full((4, 1), np.nan), betas=(1.0,))
    task.save(tmp_path)
    process = Process("convexformer")
    process.give(tmp_path)
    try:
        assert (
            process.run(task, {"tol": 1e-2}, 60.0).failed
            == "ValueError: Y contains NaN or infinity."
        )
    finally:
        process.end()


def test_cells_have_names_of_their_own():
    for grid in GRIDS.values():
        names = [cell.name for cell in grid()]
        assert len(set(names)) == len(names) > 0
