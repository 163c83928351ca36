"""What can be left out is left out, noted, and put back."""

import json
from functools import partial

import numpy as np
import pytest
from benchmarks import ablation
from benchmarks.cells import GRIDS, PATH, made
from benchmarks.contestants.convexformer import problem_of
from benchmarks.objective import Cell
from benchmarks.switches import STRATEGIES, switches

from convexformer import _core
from convexformer.problem import tokens
from convexformer.solvers import STRATEGIES as KNOWN
from convexformer.solvers import choose


def _patched():
    return {
        (name, owner, attribute): vars(owner).get(attribute)
        for name, switch in switches().items()
        for owner, attribute, _ in switch.patches
    }


def test_switches_restore_everything_even_after_an_error():
    before = _patched()
    for switch in switches().values():
        with pytest.raises(KeyError), switch.off():
            raise KeyError
    assert _patched() == before
    assert all(switch.words for switch in switches().values())


def test_what_is_patched_is_there():
    for name, switch in switches().items():
        for owner, attribute, _ in switch.patches:  # of int16 it is set in instances
            assert hasattr(owner, attribute) or name == "int16", (name, attribute)


def test_every_strategy_but_the_general_ones_can_be_left_out():
    assert set(STRATEGIES) == set(KNOWN) - {"newton", "accelerated-gradient", "douglas-rachford"}


@pytest.mark.parametrize(
    ("task", "uses"),
    [
        (made(1000, 10, 4), {"block-descent", "gram", "gram-in-place"}),
        (made(300, 40, 16), {"block-descent", "int16"}),
        (made(1000, 40, 8, loss="logistic"), {"gradient", "loss-kernels"}),
    ],
    ids=["tall", "wide", "logistic"],
)
def test_what_a_problem_uses_is_noted_and_left_out(compiled, task, uses):
    task = task.at(0.2)
    side = ablation.Side()
    for name, switch in switches().items():
        assert not switch.used
        with switch.off():
            ablation.run(task, 1e-4, side)
        assert switch.used or name not in uses, name
        assert not (switch.used and name in STRATEGIES) or name in uses, name
        with switch.off():  # each time it is noted anew
            assert not switch.used
    assert side.gap <= 1e-4  # still certified, whatever was left out


def test_a_strategy_that_is_left_out_is_not_chosen():
    problem = problem_of(made(500, 20, 4))
    beta = 0.1 * problem.beta_max
    first = choose.choose(problem, beta)
    with switches()[first].off() as switch:
        assert choose.choose(problem, beta) != first
        assert choose.choose(problem, beta, without=[choose.choose(problem, beta)]) != first
    assert switch.used and choose.choose(problem, beta) == first


def test_kernels_and_questions_are_answered_otherwise():
    known = switches()
    with known["loss-kernels"].off() as switch:
        assert _core.logistic_dual is not None and not switch.used
        V = np.full((3, 1), 0.5)
        _core.logistic_dual(V.shape, V, np.ones((3, 1)), V.copy())
        assert switch.used
    with known["sparse"].off() as switch:
        assert tokens.look_sparse(np.zeros((4, 4))) is False and switch.used
    assert tokens.look_sparse(np.zeros((4, 4)))


def test_extrapolation_is_of_paths():
    switch = switches()["extrapolation"]
    for fractions, used in (((0.5,), False), (PATH[:15:4], True)):
        with switch.off():
            ablation.run(made(200, 8, 3).at(*fractions), 1e-6, side := ablation.Side())
        assert switch.used is used and side.gap <= 1e-6


def test_the_table_and_the_record_of_a_cell(monkeypatch, tmp_path, capsys):
    cells = [Cell("one/0.2", partial(made, 400, 12, 4), (0.2,)), Cell("two", made, (0.2,))]
    monkeypatch.setitem(GRIDS, "quick", lambda: cells)
    out = tmp_path / "ablation.json"
    given = ["--grid", "quick", "--only", "one", "--rounds", "2", "--out", str(out)]
    ablation.main([*given, "--switch", "block-descent", "newton-cg", "compiled"])
    shown = capsys.readouterr().out
    assert "one/0.2" in shown and "two" not in shown
    assert "| newton-cg | 0 | | | |" in shown and "| block-descent | 1 | " in shown
    ablation.main([*given, "--switch", "gram"])  # is added
    found = json.loads(out.read_text())
    assert len(found["environment"]["commands"]) == 1 and found["environment"]["machine"]
    effects = found["cells"]["quick one/0.2"]["effects"]
    assert set(effects) == {"block-descent", "newton-cg", "compiled", "gram"}
    one = effects["block-descent"]
    assert one["ratio"] == np.median(one["off"]["seconds"]) / np.median(one["on"]["seconds"])
    assert len(one["on"]["seconds"]) == 2 and one["commit"] and one["measured"]
    assert one["on"]["strategy"] == "block-descent" != one["off"]["strategy"]
    assert max(effects[name][side]["gap"] for name in effects for side in ("on", "off")) <= 1e-6
    ablation.main(["--list"])
    assert all(name in capsys.readouterr().out for name in ["compiled"])
