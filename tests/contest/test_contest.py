"""The contest end to end: contestants, the runner, what it keeps, and the page."""

import json
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from benchmarks import check, floor, page, run, scaling, sweep
from benchmarks.cells import GRIDS, PATH, gated, made
from benchmarks.contestants import NAMES, adelie, contestant
from benchmarks.objective import GAPS, Cell, Run, Task, beta_max, evaluate
from benchmarks.processes import Process, available
from benchmarks.summary import RESULTS, read, summarise, task_like

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
    for one in record["runs"]:  # no peer arrives, and settings are used up
        if one["contestant"] != "convexformer":
            one["gap"], one["cpu"] = 1e-3, 7.0
    unknown = summarise("one/0.1", record)
    assert unknown.best is None and unknown.ratio is None and unknown.goal == ("10x", None)
    assert not unknown.sooner and not unknown.short_by_value
    assert page._ratio(unknown) == "not known" and floor.missed(unknown) is False
    stopped = json.loads(json.dumps(record))
    for one in stopped["runs"]:  # no peer arrives, and the limit stopped every setting
        if one["contestant"] != "convexformer":
            one["gap"], one["failed"], one["primals"] = None, "out of time", []
    for limit, goal in ((12.0, True), (9.0, None)):  # a low bound does not show that a goal fails
        stopped["limit"] = limit * cell.ours.seconds
        lower = summarise("one/0.1", stopped)
        assert lower.best is None and lower.ratio == pytest.approx(limit)
        assert lower.goal == ("10x", goal) and page._ratio(lower).startswith("> ")
    for one in record["runs"]:  # one arrives
        if one["contestant"] != "convexformer":
            one["gap"], one["cpu"] = 1e-7, 12.0 * cell.ours.seconds
    uncertified = summarise("one/0.1", record)
    assert uncertified.goal == ("10x", True)
    for one in record["runs"]:  # and another is done by value
        if one["contestant"] != "convexformer" and not one["first"]:
            one["primals"] = next(
                own["primals"] for own in record["runs"] if own["setting"].get("tol") == 1e-6
            )
            one["cpu"], one["gap"] = 9.0 * cell.ours.seconds, 1e-3
            break
    assert summarise("one/0.1", record).short_by_value
    for one in record["runs"]:  # but one is sooner to a looser gap
        if one["contestant"] != "convexformer":
            one["cpu"] = 1e-9
    assert summarise("one/0.1", record).sooner


def _run(cpu, gap=np.inf, failed="", **setting):
    return Run("peer", setting, cpu=cpu, wall=cpu, gap=gap, failed=failed)


LATE = "out of time"


@pytest.mark.parametrize(
    ("runs", "known"),
    [
        ([_run(3.0, failed=LATE, tol=1e-3)], True),
        ([_run(1.0, 0.1, tol=1e-3), _run(3.0, failed=LATE, tol=1e-5)], True),
        ([_run(3.2, failed="IndexError: index (9) out of range", tol=1e-3)], True),
        ([_run(2.9, 0.1, tol=1e-3), _run(2.9, 0.1, tol=1e-5)], False),  # cut, or used up
        ([_run(1.0, failed="ValueError: no", tol=1e-3)], False),
        ([_run(1.0, failed="not finite", tol=1e-3), _run(3.0, failed=LATE, tol=1e-5)], False),
        ([_run(3.0, failed=LATE, start="a", tol=1.0), _run(1.0, 0.1, start="b", tol=1.0)], False),
        ([_run(3.0, failed=LATE, tol=1.0, irls_tol=1.0), _run(1.0, 0.1, tol=0.1, irls_tol=1.0)],
         False),
        ([], False),
    ],
)  # fmt: skip
def test_a_lower_bound_holds_only_where_the_limit_ended_every_branch(runs, known):
    assert sweep.bounded(runs, limit=3.0) is known


def test_a_branch_ends_where_the_gap_is_met_or_the_limit_stops_it():
    loose, tight = _run(2.9, 0.1, tol=1e-3), _run(2.9, 1e-8, tol=1e-5)
    late, never = _run(3.0, failed=LATE, tol=1e-4), _run(9.0, tol=1e-9)
    assert list(sweep.until_decided([loose, tight, never], 1e-6, 3.0)) == [loose, tight]
    assert list(sweep.until_decided([loose, late, never], 1e-6, 3.0)) == [loose, late]
    crowd = [_run(2.9, 0.1, tol=10.0**-k) for k in range(5)]  # each setting has the whole limit
    assert list(sweep.until_decided(crowd, 1e-6, 3.0)) == crowd


def test_a_sweep_is_complete_when_every_branch_was_decided():
    sweeps = [[{"start": s, "tol": t} for t in (1e-3, 1e-5)] for s in ("a", "b")]
    loose, late = _run(1.0, 0.1, start="a", tol=1e-3), _run(3.0, failed=LATE, start="b", tol=1e-3)
    met = _run(2.0, 1e-7, start="a", tol=1e-5)
    assert sweep.complete([loose, met, late], sweeps, 1e-6, 3.0)
    assert not sweep.complete([loose, met], sweeps, 1e-6, 3.0)  # the second branch is missing
    assert not sweep.complete([loose, late], sweeps, 1e-6, 3.0)  # the first one was cut


def test_adelie_tightens_one_tolerance_at_a_time():
    softmax = made(60, 5, 2, 3, loss="softmax", penalty="token", intercept=True).at(0.1)
    for branch in contestant("adelie").sweeps(softmax):
        assert len({one["tol"] for one in branch}) == 1
        assert len({sweep.branch_of(one) for one in branch}) == 1
        tight = [one["irls_tol"] for one in branch]
        assert tight == sorted(tight, reverse=True) and tight[-1] < 1e-16 < branch[0]["tol"]
    for name in NAMES:  # settings of one branch differ in their last entry alone
        if not contestant(name).unfit(softmax):
            for branch in contestant(name).sweeps(softmax):
                assert len({sweep.branch_of(one) for one in branch}) == 1


@pytest.mark.parametrize("intercept", [False, True])
def test_two_classes_are_one_logistic_output(intercept):
    two = made(60, 5, 2, 2, loss="softmax", penalty="token", intercept=intercept).at(0.3)
    one = adelie.as_logistic(two)
    assert one.shape == (5, 2, 1) and set(np.unique(one.Y)) == {-1.0, 1.0}
    rng = np.random.default_rng(1)
    w, b = rng.normal(size=one.shape), rng.normal(size=1) * intercept
    Z, both = np.concatenate([-w, w], axis=2) / 2, np.append(-b, b) / 2
    primals = [
        evaluate(two, Z, both, two.betas[0]).primal,
        evaluate(one, w, b, one.betas[0]).primal,
    ]
    assert primals[0] == pytest.approx(primals[1], rel=1e-12)
    assert beta_max(one) * np.sqrt(2) == pytest.approx(beta_max(two), rel=1e-12)


def test_adelie_is_given_warm_starts_float32_and_no_slack():
    wide, narrow = (made(20, 3, d).at(0.1) for d in (adelie.WIDE, 2))
    for task, slack in ((wide, True), (narrow, False)):
        settings = [branch[0] for branch in adelie.sweeps(task)]
        assert {one["start"] for one in settings} == {"at once", "short path", "warm"}
        warm = [one for one in settings if one["start"] == "warm"]
        assert {one.get("dtype") for one in warm} == {None, "float32"}
        assert all(("slack" in one) is slack for one in warm)
    for branch in adelie.sweeps(wide):
        assert len({sweep.branch_of(one) for one in branch}) == 1
    float32 = adelie.sweeps(replace(wide, loss="logistic"))
    assert not any("dtype" in branch[0] for branch in float32)
    path = adelie.sweeps(made(20, 3, 2).at(0.5, 0.1))
    assert {branch[0]["start"] for branch in path} == {"given"}


@pytest.mark.skipif(not available("adelie"), reason="adelie's environment is not installed")
@pytest.mark.parametrize("loss", ["squared", "logistic", "softmax"])
def test_every_variant_of_adelie_comes_near_the_optimum(loss, tmp_path):
    shape = (60, 5, 2) if loss != "squared" else (300, 3, adelie.WIDE)
    penalty = "token" if loss == "softmax" else "token-output"
    task = made(*shape, 2 if loss == "softmax" else 1, loss=loss, penalty=penalty).at(0.3)
    task.save(tmp_path)
    process = Process("adelie", cold=True)
    process.give(tmp_path)
    try:
        for branch in adelie.sweeps(task):
            runs = sweep.until_decided((process.run(task, s, 10.0) for s in branch), 1e-4, 10.0)
            assert list(runs)[-1].gap <= 1e-4, branch[0]
    finally:
        process.end()


def test_a_stand_in_has_the_settings_of_the_cell(results):
    done = read("quick", results)["cells"]
    for cell in _tiny_grid():
        task, like = cell.task(), task_like(done[cell.name])
        assert like.shape == task.shape and len(like.betas) == len(task.betas)
        for name in NAMES:
            module = contestant(name)
            assert module.unfit(like) == module.unfit(task)
            if not module.unfit(task):
                assert module.sweeps(like) == module.sweeps(task)


def test_cells_that_wait_for_a_rerun_make_no_claim(results, tmp_path, monkeypatch):
    record = read("quick", results)
    fast = [
        run for run in record["cells"]["one/0.1"]["runs"] if run["contestant"] == "convexformer"
    ]
    for one in fast:
        one["cpu"] = 1e-9
    for grid in ("quick", "standard"):
        (tmp_path / f"{grid}.json").write_text(json.dumps(record))
    shown = page.render(tmp_path)
    assert "†" not in shown.partition("## The grid")[2] and "10x yes" in shown
    assert "wait for a rerun:" not in shown and "measured with today's settings" in shown
    monkeypatch.setattr(contestant("cvxpy"), "sweeps", lambda _: [[{"other": 1, "tol": 1e-3}]])
    shown = page.render(tmp_path)
    assert "All of them wait for a rerun:" in shown and "today's settings: a peer" not in shown
    for name in record["cells"]:
        assert f"| {name} † |" in shown and f"| {name} |" not in shown
    assert "No peer arrived sooner" not in shown and "10x yes" not in shown
    assert "| 10x open |" in shown and "cells with a dagger were measured" in shown
    page.draw_race(page.summaries(record), tmp_path / "race.svg")
    assert (tmp_path / "race.svg").stat().st_size > 0


def test_stale_cells_are_those_whose_settings_were_not_all_tried(results, monkeypatch, capsys):
    done, cells = read("quick", results)["cells"], _tiny_grid()
    names = ["convexformer", "cvxpy", "sklearn"]
    assert run.stale(cells, done, names) == []
    monkeypatch.setattr(contestant("cvxpy"), "sweeps", lambda _: [[{"other": 1, "tol": 1e-3}]])
    found = [cell.name for cell in run.stale(cells, done, names)]
    assert sorted(found) == sorted(done)
    monkeypatch.setitem(GRIDS, "quick", _tiny_grid)
    run.main(["--grid", "quick", "--stale", "--list", "--contestants", "cvxpy,sklearn",
              "--results", str(results)])  # fmt: skip
    assert capsys.readouterr().out.split() == found


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
