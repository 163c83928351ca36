"""scnn: FISTA with restarts for gated ReLU networks, in PyTorch.

Its groups are whole gates, so it fits where a sample is one token. Its squared loss is divided by
2 N. Columns are not rescaled, because that would change the penalty.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..objective import Array, Task
from . import Solutions, tolerances

ENVIRONMENT = "scnn"
PACKAGES = ("pyscnn", "torch", "numpy")


def unfit(task: Task) -> str:
    if task.directions is None:
        return "gated networks only"
    if task.X.shape[1] > 1:
        return "groups are whole gates"
    if task.loss != "squared" or task.Y.shape[1] > 1 or task.intercept:
        return "squared loss, one output, no intercept"
    return ""


def sweeps(task: Task) -> list[list[dict[str, Any]]]:
    return [tolerances(-6, -8, -10, -12, -14, -16, -18)]


def load() -> None:
    import scnn.optimize  # noqa: F401


def prepare(task: Task) -> Task:
    return task


def solve(task: Task, setting: dict[str, Any]) -> Solutions:
    from scnn.metrics import Metrics
    from scnn.models import ConvexGatedReLU
    from scnn.optimize import optimize_path
    from scnn.regularizers import NeuronGL1
    from scnn.solvers import RFISTA

    model = ConvexGatedReLU(np.asarray(task.directions), c=1)
    solver = RFISTA(model, max_iters=10**6, tol=setting["tol"])
    A = np.asarray(task.X, dtype=np.float64)[:, 0]
    models, _ = optimize_path(
        model,
        solver,
        [NeuronGL1(beta / len(A)) for beta in task.betas],
        Metrics(),
        A,
        task.Y[:, 0],
        return_convex=True,
        unitize_data=False,
        dtype="float64",
    )
    return [(_gates_in_order(task, model), np.zeros(1)) for model in models]


def _gates_in_order(task: Task, model: Any) -> Array:
    """Its weights ``(c, gates, d)`` as ours; it sorts gates, and keeps one of equal ones."""
    Z, U = np.zeros(task.shape), np.asarray(task.directions)
    for gate, weights in zip(
        np.asarray(model.G).T, np.asarray(model.parameters[0])[0], strict=True
    ):
        Z[np.argmin(np.linalg.norm(U.T - gate, axis=1)), :, 0] = weights
    return Z
