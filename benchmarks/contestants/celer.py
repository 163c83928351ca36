"""celer: block coordinate descent on working sets with dual extrapolation, in Cython.

Its squared loss is divided by N; group weights are one. ``tol`` bounds its own duality gap,
relative to the mean square of y.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..objective import Array, Task
from . import Solutions, by_output, design_matrix, numbers_of, tolerances

ENVIRONMENT = "peers"
PACKAGES = ("celer", "numpy")


def unfit(task: Task) -> str:
    if task.loss != "squared":
        return "group penalties for the squared loss only"
    if task.penalty == "token" and task.Y.shape[1] > 1 and task.shape[1] > 1:
        return "several outputs share scalar tokens only"
    if numbers_of(task) * 8 > 4e9:
        return "the float64 design would take more than 4 GB"
    return ""


def sweeps(task: Task) -> list[list[dict[str, Any]]]:
    return [tolerances(-3, -5, -6, -7, -8, -9, -10, -12)]


def load() -> None:
    import celer  # noqa: F401


def prepare(task: Task) -> tuple[Task, Array]:
    return task, design_matrix(task)


def solve(prepared: tuple[Task, Array], setting: dict[str, Any]) -> Solutions:
    task, A = prepared
    if task.Y.shape[1] > 1 and task.penalty == "token-output":
        return by_output(task, lambda one: _solve(one, A, setting))
    return _solve(task, A, setting)


def _solve(task: Task, A: Array, setting: dict[str, Any]) -> Solutions:
    from celer import GroupLasso, MultiTaskLasso

    common = {
        "max_iter": 10**6,
        "tol": setting["tol"],
        "fit_intercept": task.intercept,
        "warm_start": True,
    }
    single = task.Y.shape[1] == 1
    model = GroupLasso(groups=task.shape[1], **common) if single else MultiTaskLasso(**common)
    found: Solutions = []
    for beta in task.betas:
        model.alpha = beta / len(A)
        model.fit(A, task.Y[:, 0] if single else task.Y)
        Z = model.coef_.reshape(task.shape) if single else model.coef_.T.reshape(task.shape)
        found.append((Z.copy(), np.full(task.shape[2], model.intercept_)))
    return found
