"""Strategies one by one, for tests: how to forbid some, tune them, and call them directly."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import pytest

from convexformer.problem import Point, Problem
from convexformer.solvers import Solution, block_descent, choose, workspace
from convexformer.solvers.solution import Clock, Task
from convexformer.solvers.workspace import Workspace

module = sys.modules["convexformer.solvers.solve"]  # its name is that of a function


def never(*args: object, **kwargs: object) -> Any:
    """What is not to be called."""
    raise AssertionError("What was not to be called was called.")


def forbid(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let an error be raised where one of these strategies is taken."""
    for name in names:
        monkeypatch.setitem(module.RUN, name, never)


def only(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Forbid all strategies but this one, and let it never give up."""
    forbid(monkeypatch, *(other for other in module.RUN if other != name))
    monkeypatch.setattr(
        "convexformer.solvers.working_set.Round._newton_seconds", lambda self, Z: float("inf")
    )


def tune(monkeypatch: pytest.MonkeyPatch, **numbers: float) -> None:
    """Change numbers by which strategies are chosen, or that they share."""
    tuning = dataclasses.replace(choose.TUNING, **numbers)
    for place in (choose, block_descent, workspace):
        monkeypatch.setattr(place, "TUNING", tuning)


def without_gram(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let block descent read tokens, however quick their Gram matrix would be."""
    for place in ("block_descent", "working_set"):
        monkeypatch.setattr(f"convexformer.solvers.{place}.gram_is_quick", lambda *args: False)


def task_of(problem: Problem, beta: float, tol: float = 1e-6, **clock: Any) -> Task:
    """What a strategy is asked to do."""
    clock.setdefault("max_iter", 10_000)
    return Task(problem, beta, tol, Clock(**clock), Workspace(problem))


def start(problem: Problem, init: Solution | None = None) -> Point:
    """The point of a solution, or of the model without tokens."""
    if init is None:
        return problem.null
    return problem.at(init.Z, problem.inner_intercept(init.Z, init.intercept))
