"""The contestants, one file each; their packages are imported only where they run.

A contestant is a module with

``ENVIRONMENT``
    which virtual environment has its packages, and ``PACKAGES``, whose versions are recorded;
``COMPILES``
    (optional) True where the first call of every kind compiles, to be let do so untimed;
``unfit(task)``
    why it cannot solve a task, or "";
``sweeps(task)``
    its settings: for every variant of the method a list, the loosest tolerance first, in which only
    the last entry of a setting changes;
``load()``
    imports its packages;
``prepare(task)``
    brings arrays into the layout it likes best (not timed);
``solve(prepared, setting)``
    ``[(Z, b), ...]``, one pair for every beta of the task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from types import ModuleType

import numpy as np

from ..objective import Array, Task

NAMES = (
    "convexformer",
    "adelie",
    "celer",
    "skglm",
    "skglm_fista",
    "group_lasso",
    "scnn",
    "cvxpy",
    "sklearn",
)
OURS = NAMES[0]

Solutions = list[tuple[Array, Array]]


def contestant(name: str) -> ModuleType:
    """The module of a contestant, without its packages."""
    if name not in NAMES:
        raise ValueError(f"Unknown contestant {name!r}; choose from {', '.join(NAMES)}.")
    return import_module(f"{__name__}.{name}")


def design_matrix(task: Task) -> Array:
    """All columns, ``(N, groups * d)`` in Fortran order; gates are multiplied out."""
    N = len(task.X)
    A = np.asarray(task.X, dtype=np.float64).reshape(N, -1)
    if task.gates is not None:
        A = (task.gates[:, :, None] * A[:, None, :]).reshape(N, -1)
    return np.asfortranarray(A)


def numbers_of(task: Task) -> int:
    """How many numbers `design_matrix` holds."""
    return len(task.X) * task.shape[0] * task.shape[1]


def by_output(task: Task, solve: Callable[[Task], Solutions]) -> Solutions:
    """Solve output by output, for those that know a single one; they must be separable."""
    columns = [
        solve(replace(task, Y=np.ascontiguousarray(task.Y[:, [j]]))) for j in range(task.Y.shape[1])
    ]
    return [
        (np.concatenate([Z for Z, _ in at], axis=2), np.concatenate([b for _, b in at]))
        for at in zip(*columns, strict=True)
    ]


def tolerances(*exponents: int, name: str = "tol", **fixed: object) -> list[dict[str, object]]:
    """Settings that differ in one tolerance alone; that tolerance is their last entry."""
    return [{**fixed, name: 10.0**exponent} for exponent in exponents]
