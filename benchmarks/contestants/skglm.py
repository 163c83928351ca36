"""skglm: block coordinate descent with Anderson acceleration, or prox-Newton; compiled by Numba.

Losses are divided by N; group weights of one are passed. Both solvers get enough iterations that
only the tolerance, a distance to the subdifferential, stops them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..objective import Array, Task
from . import Solutions, by_output, design_matrix, numbers_of, tolerances

ENVIRONMENT = "peers"
PACKAGES = ("skglm", "numba", "numpy")
COMPILES = True  # seconds of it, in the first call of every kind

EXPONENTS = (-3, -4, -5, -6, -7, -8, -9, -10)


def unfit(task: Task) -> str:
    if task.loss == "softmax":
        return "no softmax loss"
    if task.penalty == "token" and task.Y.shape[1] > 1:
        return "groups hold one output"
    if numbers_of(task) * 8 > 4e9:
        return "the float64 design would take more than 4 GB"
    return ""


def sweeps(task: Task) -> list[list[dict[str, Any]]]:
    if task.loss == "squared":
        return [tolerances(*EXPONENTS, solver="GroupBCD")]
    return [tolerances(*EXPONENTS, solver=name) for name in ("GroupBCD", "GroupProxNewton")]


def load() -> None:
    import skglm  # noqa: F401


def prepare(task: Task) -> tuple[Task, Array]:
    return task, design_matrix(task)


def solve(prepared: tuple[Task, Array], setting: dict[str, Any]) -> Solutions:
    task, A = prepared
    return by_output(task, lambda one: _solve(one, A, setting))


def _solve(task: Task, A: Array, setting: dict[str, Any]) -> Solutions:
    from skglm import solvers
    from skglm.datafits import LogisticGroup, QuadraticGroup
    from skglm.penalties import WeightedGroupL2
    from skglm.utils.data import grp_converter
    from skglm.utils.jit_compilation import compiled_clone

    indices, pointers = grp_converter(task.shape[1], A.shape[1])
    kind = QuadraticGroup if task.loss == "squared" else LogisticGroup
    datafit = compiled_clone(kind(pointers, indices))
    solver = getattr(solvers, setting["solver"])(
        max_iter=10**6, tol=setting["tol"], fit_intercept=task.intercept
    )
    y, weights, found = np.ascontiguousarray(task.Y[:, 0]), np.ones(task.shape[0]), []
    w: Array | None = None
    fit: Array | None = None
    for beta in task.betas:
        penalty = WeightedGroupL2(beta / len(A), weights, pointers, indices)
        w, *_ = solver.solve(A, y, datafit, compiled_clone(penalty), w, fit, run_checks=False)
        b = w[-1:].copy() if task.intercept else np.zeros(1)
        coef = w[: A.shape[1]].copy()
        fit = A @ coef + b if len(task.betas) > 1 else None
        found.append((coef.reshape(task.shape), b))
    return found
