"""skglm's FISTA, with the global step size, given a group penalty by a small adapter."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..objective import Array, Task
from . import Solutions, by_output, numbers_of, skglm, tolerances

ENVIRONMENT = "peers"
PACKAGES = skglm.PACKAGES


MOST = 15_000_000  # numbers of a design: larger ones of the grid take it minutes to a gap of .1


def unfit(task: Task) -> str:
    if numbers_of(task) > MOST:
        return f"designs up to {MOST:,} numbers, for its pace"
    return "no intercept in FISTA" if task.intercept else skglm.unfit(task)


def sweeps(task: Task) -> list[list[dict[str, Any]]]:
    return [tolerances(-3, -4, -5, -6, -7, -8, -9, -10)]


load, prepare = skglm.load, skglm.prepare


class _Loss:
    """What FISTA asks of a datafit."""

    def __init__(self, loss: str) -> None:
        self.logistic = loss == "logistic"

    def initialize(self, A: Array, y: Array) -> None:
        """Nothing to set up."""

    def get_global_lipschitz(self, A: Array, y: Array) -> float:
        from scipy.sparse.linalg import svds

        top = svds(A, k=1, return_singular_vectors=False)[0]
        return float(top**2) / len(y) * (0.25 if self.logistic else 1.0)

    def gradient(self, A: Array, y: Array, f: Array) -> Array:
        R = -y * np.exp(-np.logaddexp(0.0, y * f)) if self.logistic else f - y
        return np.asarray(A.T @ R) / len(y)

    def value(self, y: Array, w: Array, f: Array) -> float:
        terms = np.logaddexp(0.0, -y * f) if self.logistic else 0.5 * (f - y) ** 2
        return float(np.mean(terms))


class _Groups:
    """What FISTA asks of a penalty."""

    def __init__(self, alpha: float, d: int) -> None:
        self.alpha, self.d = alpha, d

    def value(self, w: Array) -> float:
        return self.alpha * float(np.linalg.norm(w.reshape(-1, self.d), axis=1).sum())

    def prox_vec(self, w: Array, step: float) -> Array:
        W = w.reshape(-1, self.d)
        norms = np.maximum(np.linalg.norm(W, axis=1, keepdims=True), 1e-300)
        return np.asarray(np.maximum(0.0, 1 - step * self.alpha / norms) * W).reshape(-1)

    def subdiff_distance(self, w: Array, gradient: Array, features: Array) -> Array:
        W, G = w.reshape(-1, self.d), gradient.reshape(-1, self.d)
        norms = np.linalg.norm(W, axis=1, keepdims=True)
        used = np.linalg.norm(G + self.alpha * W / np.maximum(norms, 1e-300), axis=1)
        unused = np.maximum(0.0, np.linalg.norm(G, axis=1) - self.alpha)
        return np.where(norms[:, 0] > 0, used, unused)


def solve(prepared: tuple[Task, Array], setting: dict[str, Any]) -> Solutions:
    task, A = prepared
    return by_output(task, lambda one: _solve(one, A, setting))


def _solve(task: Task, A: Array, setting: dict[str, Any]) -> Solutions:
    from skglm.solvers import FISTA

    solver = FISTA(max_iter=10**7, tol=setting["tol"])
    y, w, found = task.Y[:, 0], None, []
    for beta in task.betas:
        penalty = _Groups(beta / len(A), task.shape[1])
        w, *_ = solver._solve(
            A, y, _Loss(task.loss), penalty, w
        )  # as `solve`, but compiles nothing
        found.append((w.reshape(task.shape).copy(), np.zeros(1)))
    return found
