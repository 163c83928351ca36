"""Ours: `solve` and `solve_path`; building the problem is part of the time."""

from __future__ import annotations

from typing import Any

from ..objective import GAPS, Task
from . import Solutions

ENVIRONMENT = "main"
PACKAGES = ("convexformer", "numpy", "scipy")


def unfit(task: Task) -> str:
    return ""


def sweeps(task: Task) -> list[list[dict[str, Any]]]:
    return [[{"tol": gap} for gap in GAPS]]


def load() -> None:
    import convexformer.solvers  # noqa: F401


def prepare(task: Task) -> Task:
    return task


def solve(task: Task, setting: dict[str, Any]) -> Solutions:
    from convexformer.solvers import solve_path

    path = solve_path(problem_of(task), task.betas, tol=setting["tol"])
    return [(solution.Z, solution.intercept) for solution in path]


def problem_of(task: Task) -> Any:
    from convexformer import problem as p

    losses: dict[str, Any] = {"squared": p.Squared, "logistic": p.Logistic, "softmax": p.Softmax}
    design: Any = p.TokenDesign(task.X)
    if task.gates is not None:
        design = p.GatedDesign(design, task.gates)
    loss, penalty = losses[task.loss](), p.PENALTIES[task.penalty]()
    return p.Problem(design, loss, penalty, task.Y, intercept=task.intercept)
