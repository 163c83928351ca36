r"""adelie: block coordinate descent on a path, in C++.

Its loss is divided by N, and for several outputs by c as well; groups of a multi-response fit hold
a token of all outputs, which is the `token` penalty. Group weights default to the square roots of
group sizes, so ones are passed. ``start`` says how it comes to a single beta: at once, or on a path
of three or of ten values from beta_max. ``gram`` is its covariance method; forming ``X'X`` is part
of the time (for several outputs it took twice as long as the other method, and is not tried).
``sparse`` gives it X that is mostly zero as a sparse matrix, made for nothing.

A logistic or softmax fit has two tolerances: ``tol`` ends the block descent on one quadratic
approximation, ``irls_tol`` the sequence of these approximations. A tight ``tol`` wastes work on
approximations that are replaced soon, so ``tol`` stays loose while ``irls_tol`` is tightened.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..objective import Array, Task, beta_max
from . import Solutions, by_output, design_matrix, numbers_of, tolerances

ENVIRONMENT = "peers"
PACKAGES = ("adelie", "numpy")

EXPONENTS = (-5, -7, -9, -11, -13, -15, -17, -19)  # it stops on the square of a change
IRLS_EXPONENTS = (-7, -9, -11, -12, -13, -14, -15, -16, -17)
LOOSE = (1e-4, 1e-6)  # of `tol`: 1e-3 takes as long as 1e-4, and 1e-7 longer than 1e-6
POINTS = {"short path": 3, "path": 10}  # how many values of beta lie on these paths
MOST_IN_GRAM = 4096  # columns: above, forming X'X costs more than all else


def unfit(task: Task) -> str:
    if task.loss == "softmax" and task.penalty == "token-output":
        return "groups hold all classes"
    if task.loss == "logistic" and task.penalty == "token" and task.Y.shape[1] > 1:
        return "no multi-label loss"
    if numbers_of(task) * 8 > 4e9:
        return "the float64 design would take more than 4 GB"
    return ""


def sweeps(task: Task) -> list[list[dict[str, Any]]]:
    path, sparse = len(task.betas) > 1, _mostly_zero(task)
    if task.loss != "squared":
        return [
            tolerances(*IRLS_EXPONENTS, name="irls_tol", start=start, **storage, tol=tol)
            for storage in ([{}, {"sparse": True}] if sparse else [{}])
            for start in (["given"] if path else ["at once", *POINTS])
            for tol in LOOSE
        ]
    starts = ["given"] if path else ["at once", "path"]
    found = [tolerances(*EXPONENTS, start=start) for start in starts]
    groups, d, c = task.shape
    if c == 1 and not task.intercept and groups * d <= MOST_IN_GRAM:
        found.append(tolerances(*EXPONENTS, start=starts[0], gram=True))
    if sparse:
        found.append(tolerances(*EXPONENTS, start=starts[0], sparse=True))
    return found


def _mostly_zero(task: Task) -> bool:
    return task.gates is None and np.count_nonzero(task.X) < 0.1 * task.X.size


def load() -> None:
    import adelie  # noqa: F401


def prepare(task: Task) -> tuple[Task, Array, Any]:
    import adelie as ad
    from scipy.sparse import csc_matrix

    A = design_matrix(task)
    sparse = any(one[0].get("sparse") for one in sweeps(task))
    return task, A, ad.matrix.sparse(csc_matrix(A), method="naive") if sparse else None


def solve(prepared: tuple[Task, Array, Any], setting: dict[str, Any]) -> Solutions:
    task, A, sparse = prepared
    A = sparse if setting.get("sparse") else A
    if task.Y.shape[1] > 1 and task.penalty == "token-output":
        return by_output(task, lambda one: _solve(one, A, setting))
    return _solve(task, A, setting)


def _solve(task: Task, A: Any, setting: dict[str, Any]) -> Solutions:
    import adelie as ad

    betas = list(task.betas)
    if setting["start"] in POINTS:
        betas = list(np.geomspace(beta_max(task), betas[0], POINTS[setting["start"]]))
    common = {
        "groups": np.arange(task.shape[0]) * task.shape[1],
        "penalty": np.ones(task.shape[0]),
        "tol": setting["tol"],
        "max_iters": 10**9,
        "early_exit": False,
        "progress_bar": False,
    }
    scale = len(task.Y) * (task.Y.shape[1] if task.loss != "logistic" else 1)
    lambdas = np.array(betas) / scale
    if setting.get("gram"):
        gram, v = np.asfortranarray(A.T @ A) / scale, A.T @ task.Y[:, 0] / scale
        state = ad.gaussian_cov(A=gram, v=v, lmda_path=lambdas, **common)
    else:
        if task.loss != "squared":
            common |= {"irls_tol": setting["irls_tol"], "irls_max_iters": 10**9}
        state = ad.grpnet(
            X=A, glm=_glm(task), lmda_path=lambdas, intercept=task.intercept, **common
        )
    last = [len(betas) - 1] if setting["start"] in POINTS else range(len(betas))
    return [_solution(task, state, row) for row in last]


def _glm(task: Task) -> Any:
    import adelie as ad

    Y = np.asfortranarray(task.Y)
    if task.loss == "softmax":
        return ad.glm.multinomial(np.ascontiguousarray(Y))
    if task.loss == "logistic":
        return ad.glm.binomial((Y[:, 0] + 1) / 2)
    return ad.glm.gaussian(Y[:, 0]) if Y.shape[1] == 1 else ad.glm.multigaussian(task.Y)


def _solution(task: Task, state: Any, row: int) -> tuple[Array, Array]:
    Z = np.asarray(state.betas[row].todense()).reshape(task.shape)
    c = task.shape[2]
    if not task.intercept:
        return Z, np.zeros(c)
    return Z, np.asarray(state.intercepts[row], dtype=np.float64).reshape(c)
