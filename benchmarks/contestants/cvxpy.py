"""CVXPY with Clarabel: an interior-point method, for small tasks only."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..objective import Array, Task
from . import Solutions, design_matrix, numbers_of, tolerances

ENVIRONMENT = "main"
PACKAGES = ("cvxpy", "clarabel", "numpy")

MOST = 300_000  # numbers in the design


def unfit(task: Task) -> str:
    return f"designs up to {MOST:,} numbers" if numbers_of(task) > MOST else ""


def sweeps(task: Task) -> list[list[dict[str, Any]]]:
    return [tolerances(-4, -6, -8, -10)]


def load() -> None:
    import cvxpy  # noqa: F401


def prepare(task: Task) -> tuple[Task, Array]:
    return task, design_matrix(task)


def solve(prepared: tuple[Task, Array], setting: dict[str, Any]) -> Solutions:
    import cvxpy as cp

    task, A = prepared
    groups, d, c = task.shape
    Z, b = cp.Variable((groups * d, c)), cp.Variable(c)
    F = A @ Z + (np.ones((len(A), 1)) @ cp.reshape(b, (1, c), order="C") if task.intercept else 0)
    blocks = [Z[k * d : (k + 1) * d] for k in range(groups)]
    axis = 0 if task.penalty == "token-output" else None
    norms = sum(
        cp.sum(cp.norm(block, 2, axis=0)) if axis == 0 else cp.norm(block, "fro")
        for block in blocks
    )
    beta = cp.Parameter(nonneg=True)
    problem = cp.Problem(cp.Minimize(_loss(task, F) + beta * norms))
    found: Solutions = []
    for beta.value in task.betas:
        tol = {name: setting["tol"] for name in ("tol_gap_abs", "tol_gap_rel", "tol_feas")}
        problem.solve(solver="CLARABEL", max_threads=1, **tol)
        intercept = b.value if task.intercept else np.zeros(c)
        found.append((np.asarray(Z.value).reshape(task.shape), np.asarray(intercept)))
    return found


def _loss(task: Task, F: Any) -> Any:
    import cvxpy as cp

    if task.loss == "squared":
        return 0.5 * cp.sum_squares(F - task.Y)
    if task.loss == "logistic":
        return cp.sum(cp.logistic(-cp.multiply(task.Y, F)))
    return cp.sum(cp.log_sum_exp(F, axis=1)) - cp.sum(cp.multiply(task.Y, F))
