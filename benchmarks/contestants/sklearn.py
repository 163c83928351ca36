"""scikit-learn: `MultiTaskLasso`, where tokens are scalar and outputs share them.

Its squared loss is divided by N. (`Lasso` is the same with one output; no estimator of
scikit-learn has groups of columns.)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..objective import Array, Task
from . import Solutions, design_matrix, tolerances

ENVIRONMENT = "main"
PACKAGES = ("scikit-learn", "numpy")


def unfit(task: Task) -> str:
    if task.loss != "squared" or task.shape[1] > 1:
        return "no groups of columns"
    if task.penalty == "token-output" and task.Y.shape[1] > 1:
        return "one task at a time"
    return ""


def sweeps(task: Task) -> list[list[dict[str, Any]]]:
    return [tolerances(-3, -4, -5, -6, -7, -8, -10, -12)]


def load() -> None:
    import sklearn.linear_model  # noqa: F401


def prepare(task: Task) -> tuple[Task, Array]:
    return task, design_matrix(task)


def solve(prepared: tuple[Task, Array], setting: dict[str, Any]) -> Solutions:
    from sklearn.linear_model import MultiTaskLasso

    task, A = prepared
    model = MultiTaskLasso(
        fit_intercept=task.intercept, max_iter=10**7, tol=setting["tol"], warm_start=True
    )
    found: Solutions = []
    for beta in task.betas:
        model.alpha = beta / len(A)
        model.fit(A, task.Y)
        b = np.full(task.shape[2], model.intercept_)
        found.append((model.coef_.T.reshape(task.shape).copy(), b))
    return found
