"""group-lasso: FISTA with restarts in NumPy.

Losses are divided by N, and ``scale_reg="none"`` keeps group weights at one. Its step halves the
gradient but not the penalty (`_fista.py`, version 1.5.0), so that what it minimises has twice the
penalty of what its documentation says: half of beta is passed. Its logistic loss is
a softmax over classes; two columns ``(-w, w)`` give the scores ``2 w`` of the logistic loss at
penalty ``sqrt(2) ||w||``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..objective import Array, Task
from . import Solutions, by_output, design_matrix, numbers_of, tolerances

ENVIRONMENT = "peers"
PACKAGES = ("group-lasso", "numpy")

MOST = 2_000_000  # numbers in the design


def unfit(task: Task) -> str:
    if task.loss == "softmax" and task.penalty == "token-output":
        return "groups hold all classes"
    if task.loss == "logistic" and task.penalty == "token" and task.Y.shape[1] > 1:
        return "no multi-label loss"
    if numbers_of(task) > MOST:
        return f"designs up to {MOST:,} numbers, for its pace"
    return ""


def sweeps(task: Task) -> list[list[dict[str, Any]]]:
    return [tolerances(-3, -5, -6, -7, -8, -9, -10)]


def load() -> None:
    import group_lasso  # noqa: F401


def prepare(task: Task) -> tuple[Task, Array]:
    return task, design_matrix(task)


def solve(prepared: tuple[Task, Array], setting: dict[str, Any]) -> Solutions:
    task, A = prepared
    if task.penalty == "token-output":
        return by_output(task, lambda one: _solve(one, A, setting))
    return _solve(task, A, setting)


def _solve(task: Task, A: Array, setting: dict[str, Any]) -> Solutions:
    from group_lasso import GroupLasso, LogisticGroupLasso

    common = {
        "groups": np.repeat(np.arange(task.shape[0]), task.shape[1]),
        "l1_reg": 0.0,
        "scale_reg": "none",
        "n_iter": 10**7,
        "tol": setting["tol"],
        "fit_intercept": task.intercept,
        "warm_start": True,
        "supress_warning": True,
        "random_state": 0,
    }
    model: Any = GroupLasso(**common) if task.loss == "squared" else LogisticGroupLasso(**common)
    y = task.Y.argmax(axis=1) if task.loss == "softmax" else task.Y
    y = y[:, 0] > 0 if task.loss == "logistic" else y
    found: Solutions = []
    for beta in task.betas:
        strength = beta * np.sqrt(2) if task.loss == "logistic" else beta
        model.group_reg = 0.5 * strength / len(A)
        model.fit(A, y)
        W, b = model.coef_, np.ravel(model.intercept_)
        if task.loss == "logistic":
            W, b = W[:, 1:] - W[:, :1], b[1:] - b[:1]
        found.append((W.reshape(task.shape).copy(), b.copy()))
    return found
