"""Which strategy is chosen for which shape, and that the cost model is whole."""

import inspect
import re
import sys
from dataclasses import fields

import numpy as np
import pytest
from benchmarks.cells import made
from tests.raw import LOSSES
from tests.strategies import module, tune

from convexformer import _core
from convexformer.problem import PENALTIES, Problem, TokenDesign
from convexformer.solvers import choose, solve
from convexformer.solvers.choose import STRATEGIES, TUNING, Tuning, forecasts, suits

pytestmark = pytest.mark.skipif(not _core.COMPILED, reason="choices are pinned for compiled code")

AR, BOTH = {"correlated": True}, {"correlated": True, "intercept": True}
TOKEN = {"penalty": "token", "intercept": True}
LOGISTIC, SOFTMAX = {"loss": "logistic"}, {"loss": "softmax", "intercept": True}


CHOICES = [  # N, n, d, c; more; at half, a tenth and a fiftieth of beta_max
    ((1000, 50, 32), {}, "block-descent"),
    ((1000, 50, 32), LOGISTIC, "gradient"),
    ((2000, 64, 128), AR, "block-descent"),
    ((2000, 64, 128), AR | LOGISTIC, "gradient"),
    ((500, 128, 384), AR, "newton"),
    ((500, 32, 32), AR, "block-descent"),
    ((40_000, 16, 16), {}, "block-descent"),
    ((8000, 8, 16), {}, "block-descent"),
    ((200, 12, 8), BOTH, "block-descent"),
    ((200, 12, 8), BOTH | LOGISTIC, "compiled-newton"),
    ((40, 5, 3), {}, "newton"),
    ((40, 5, 3), LOGISTIC, "compiled-newton"),
    ((40, 6, 300), {}, "newton"),  # tokens' own Gram matrices would be larger than tokens
    ((100, 200, 30), AR, "newton"),
    ((300, 60, 64), AR | LOGISTIC, "gradient"),
    ((1000, 200, 1, 16), TOKEN, "block-descent"),
    ((2000, 32, 64, 4), TOKEN | AR, "block-descent"),
    ((2000, 32, 64, 4), TOKEN, "block-descent"),
    ((2000, 32, 64, 4), BOTH, "block-descent"),
    ((2000, 32, 64, 16), TOKEN | AR, "block-descent"),
    ((2000, 32, 64, 64), TOKEN | AR, "block-descent"),
    ((1000, 32, 384, 16), TOKEN | AR, "newton"),
    ((1000, 10, 8, 3), SOFTMAX | TOKEN, "compiled-newton"),
    ((1000, 10, 8, 3), SOFTMAX, "compiled-newton"),
    ((500, 32, 96, 4), SOFTMAX | TOKEN | AR, "gradient"),
    ((1000, 20, 8, 2), SOFTMAX | TOKEN, "compiled-newton"),
    ((100, 6, 4, 3), SOFTMAX | TOKEN, "compiled-newton"),
    ((1000, 50, 16), {"loss": "huber", "intercept": True}, "gradient"),
    ((300, 60, 32), {"loss": "huber"} | AR, "gradient"),
    ((1000, 50, 16), {"loss": "poisson", "intercept": True}, "gradient"),
    ((1000, 30, 8, 3), {"loss": "poisson", "penalty": "token"}, "gradient"),
    ((200, 12, 8), {"loss": "poisson"}, "newton"),
    ((1000, 30, 8, 3), {"loss": "logistic", "penalty": "token"}, "gradient"),
    ((1000, 30, 8, 3), LOGISTIC, "gradient"),
    ((300, 10, 8, 3), {"penalty": "nuclear"}, "accelerated-gradient"),
]  # fmt: skip


def problem_of(shape, loss="squared", penalty="token-output", intercept=False, **more):
    kind = loss if loss in ("squared", "logistic", "softmax") else "squared"
    task = made(*shape, loss=kind, penalty=penalty, intercept=intercept, **more)
    Y = task.Y
    if loss == "poisson":
        Y = np.random.default_rng(1).poisson(np.exp(0.5 * Y)).astype(float)
    design = TokenDesign(task.X)
    return Problem(design, LOSSES[loss], PENALTIES[penalty](), Y, intercept=intercept)


@pytest.mark.parametrize(("shape", "more", "expected"), CHOICES, ids=str)
def test_shapes_have_their_strategy(shape, more, expected):
    problem = problem_of(shape, **more)
    found = {f: choose.choose(problem, f * problem.beta_max) for f in (0.5, 0.1, 0.02)}
    assert set(found.values()) == {expected}, found
    for fraction in found:
        beta = fraction * problem.beta_max
        table = forecasts(problem, beta)
        seconds = [one.seconds for one in table]
        assert seconds == sorted(seconds) and table[0].strategy == expected
        names = [one.strategy for one in table]
        assert len(set(names)) == len(names)
        assert all(suits(name, problem) for name in names)
        assert seconds[0] > 0 or names == ["accelerated-gradient"]


def test_what_is_ruled_out_is_not_chosen():
    problem = problem_of((1000, 50, 32))
    beta, tried = 0.1 * problem.beta_max, set()
    names = [one.strategy for one in forecasts(problem, beta)]
    for expected in [*names, "accelerated-gradient", "accelerated-gradient"]:
        assert choose.choose(problem, beta, without=tried) == expected
        tried.add(expected)


def test_more_tokens_in_use_take_longer():
    problem = problem_of((1000, 50, 32))
    beta = 0.9 * problem.beta_max
    Z = np.zeros(problem.shape)
    at = [problem.null]
    for n in (10, 50):
        Z[:n] = 1e-9
        at.append(problem.at(Z.copy()))
    table = [{one.strategy: one.seconds for one in forecasts(problem, beta, p)} for p in at]
    for name in table[0]:
        seconds = [row[name] for row in table if name in row]
        assert seconds == sorted(seconds) and seconds[0] < seconds[-1]


def test_numbers_of_the_tuning_change_choices(monkeypatch):
    problem = problem_of((1000, 50, 32))
    beta = 0.1 * problem.beta_max
    tune(monkeypatch, visit_seconds=1.0)
    assert choose.choose(problem, beta) == "newton"
    assert solve(problem, beta, max_iter=1).strategy.startswith("newton")


def test_every_strategy_is_named_described_and_run():
    assert set(STRATEGIES) - set(module.RUN) <= {"douglas-rachford"}  # of matrix targets
    assert set(module.RUN) <= set(STRATEGIES)
    assert set(module.FIRST_ORDER) <= set(STRATEGIES)
    for name, text in STRATEGIES.items():
        assert re.fullmatch("[a-z]+(-[a-z]+)*", name) and text.endswith(".") and len(text) > 30
        assert name == "douglas-rachford" or callable(module.RUN[name])


def test_every_number_of_the_tuning_is_explained_and_used():
    source = inspect.getsource(Tuning)
    everything = "".join(
        inspect.getsource(loaded)
        for name, loaded in sorted(sys.modules.items())
        if name.startswith("convexformer.solvers") and not name.endswith(("_sweeps", "_core"))
    )
    for field in fields(Tuning):
        (line,) = re.findall(rf"^    {field.name}: .*$", source, flags=re.MULTILINE)
        assert "  # " in line, f"{field.name} has no comment"
        assert re.search(rf"(TUNING|tuning)\.{field.name}\b", everything), field.name
        assert getattr(TUNING, field.name) > 0
    with pytest.raises(AttributeError):
        TUNING.cache_bytes = 1.0
    assert "measured on" in Tuning.__doc__
