r"""adelie: block coordinate descent on a path, in C++.

Its loss is divided by N, and for several outputs by c as well; groups of a multi-response fit hold
a token of all outputs, which is the `token` penalty. Group weights default to the square roots of
group sizes, so ones are passed. A setting may say:

``start``
    how it comes to a single beta: at once; on a short path of three values from beta_max; or warm,
    which is a path to beta with a loose tolerance, then a second call at beta with the tight one,
    started from the first by ``warm_start``.
``slack``
    0 where groups are wide: its screening rule then lets in no groups beyond those that it asks
    for. Each group that it lets in costs a decomposition of that group's columns.
``dtype``
    float32, with a looser ``newton_tol``, because the default one is below what float32 resolves.
    X is converted for nothing.
``gram``
    its covariance method; forming ``X'X`` is part of the time (for several outputs it took twice
    as long as the other method, and is not tried).
``sparse``
    X that is mostly zero as a sparse matrix, made for nothing.

A logistic or softmax fit has two tolerances: ``tol`` ends the block descent on one quadratic
approximation, ``irls_tol`` the sequence of these approximations. A tight ``tol`` wastes work on
approximations that are replaced soon, so ``tol`` stays loose while ``irls_tol`` is tightened.

A softmax of two classes is solved as a logistic fit, which is the same problem with one output
(see `as_logistic`) and many times faster in adelie.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..objective import Array, Task, beta_max
from . import Solutions, by_output, design_matrix, numbers_of, tolerances

ENVIRONMENT = "peers"
PACKAGES = ("adelie", "numpy")

EXPONENTS = (-5, -7, -9, -11, -13, -15, -17, -19)  # it stops on the square of a change
FLOAT32_EXPONENTS = (-9, -11, -12, -13, -14, -15)
IRLS_EXPONENTS = (-7, -9, -11, -12, -13, -14, -15, -16, -17)
LOOSE = (1e-4, 1e-6)  # of `tol`: 1e-3 takes as long as 1e-4, and 1e-7 longer than 1e-6
LOOSE_PHASE = 1e-5  # tolerance of the first call of a warm start: `irls_tol`, or `tol` if squared
SHORT_PATH = 3  # values of beta
WARM_PATH = {"squared": 7, "logistic": 4, "softmax": 4}  # values of beta of the first call
MOST_IN_GRAM = 4096  # columns: above, forming X'X costs more than all else
ROWS_LOOKED_AT = 100  # to tell whether X is mostly zero
WIDE = 64  # channels of a group, from which on screening without slack is faster
FLOAT32_NEWTON_TOL = 1e-5
MOST_SWEEPS = 10**9  # never reached in float64: a tolerance or the time limit ends a run
MOST_FLOAT32_SWEEPS = 10**6  # a tolerance below the resolution of float32 would never be met


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
    starts = ["given"] if path else ["at once", "short path", "warm"]
    if task.loss != "squared":
        return [
            tolerances(*IRLS_EXPONENTS, name="irls_tol", start=start, **storage, tol=tol)
            for storage in ([{}, {"sparse": True}] if sparse else [{}])
            for start in starts
            for tol in LOOSE
        ]
    groups, d, c = task.shape
    slack: dict[str, Any] = {"slack": 0} if d >= WIDE else {}
    found = [tolerances(*EXPONENTS, start=starts[0])]
    found += [tolerances(*EXPONENTS, start=start, **slack) for start in starts[1:]]
    if path and slack:
        found.append(tolerances(*EXPONENTS, start=starts[0], **slack))
    found += [
        tolerances(*FLOAT32_EXPONENTS, start=start, **slack, dtype="float32")
        for start in starts
        if start != "short path"
    ]
    if c == 1 and not task.intercept and groups * d <= MOST_IN_GRAM:
        found.append(tolerances(*EXPONENTS, start=starts[0], gram=True))
    if sparse:
        found.append(tolerances(*EXPONENTS, start=starts[0], sparse=True))
    return found


def _mostly_zero(task: Task) -> bool:
    X = task.X[:ROWS_LOOKED_AT]
    return task.gates is None and np.count_nonzero(X) < 0.1 * X.size


def as_logistic(task: Task) -> Task:
    r"""The logistic problem of one output that a softmax of two classes is.

    A softmax depends on ``w = z_2 - z_1`` alone. Of all pairs with the same ``w``, ``(-w / 2,
    w / 2)`` has the smallest norm, :math:`\|w\| / \sqrt 2`, hence the smaller beta.
    """
    labels = np.ascontiguousarray(2 * task.Y[:, 1:] - 1)
    betas = tuple(float(beta / np.sqrt(2)) for beta in task.betas)
    return replace(task, Y=labels, loss="logistic", betas=betas)


def load() -> None:
    import adelie  # noqa: F401


def prepare(task: Task) -> tuple[Task, dict[str, Any]]:
    """The task, and X in every form that a setting may ask for."""
    import adelie as ad
    from scipy.sparse import csc_matrix

    forms: dict[str, Any] = {"float64": design_matrix(task)}
    settings = [sweep[0] for sweep in sweeps(task)]
    if any("dtype" in one for one in settings):
        forms["float32"] = forms["float64"].astype(np.float32)
    if any("sparse" in one for one in settings):
        forms["sparse"] = ad.matrix.sparse(csc_matrix(forms["float64"]), method="naive")
    return task, forms


def solve(prepared: tuple[Task, dict[str, Any]], setting: dict[str, Any]) -> Solutions:
    task, forms = prepared
    A = forms["sparse" if setting.get("sparse") else setting.get("dtype", "float64")]
    if task.loss == "softmax" and task.Y.shape[1] == 2:
        found = _solve(as_logistic(task), A, setting)
        return [(np.concatenate([-w, w], axis=2) / 2, np.append(-b, b) / 2) for w, b in found]
    if task.Y.shape[1] > 1 and task.penalty == "token-output":
        return by_output(task, lambda one: _solve(one, A, setting))
    return _solve(task, A, setting)


def _solve(task: Task, A: Any, setting: dict[str, Any]) -> Solutions:
    import adelie as ad

    start, tight = setting["start"], _options(task, setting)
    dtype = setting.get("dtype", "float64")
    scale = len(task.Y) * (task.Y.shape[1] if task.loss != "logistic" else 1)
    lambdas = (np.array(task.betas) / scale).astype(dtype)
    if setting.get("gram"):
        gram, v = np.asfortranarray(A.T @ A) / scale, A.T @ task.Y[:, 0] / scale
        state = ad.gaussian_cov(A=gram, v=v, lmda_path=lambdas, **tight)
        return [_solution(task, state, row) for row in range(len(lambdas))]
    points = {"short path": SHORT_PATH, "warm": WARM_PATH[task.loss]}.get(start)
    both = {"X": A, "glm": _glm(task, dtype), "intercept": task.intercept}
    if points is None:
        state = ad.grpnet(lmda_path=lambdas, **both, **tight)
        return [_solution(task, state, row) for row in range(len(lambdas))]
    path = (np.geomspace(beta_max(task), task.betas[0], points) / scale).astype(dtype)
    if start == "short path":
        state = ad.grpnet(lmda_path=path, **both, **tight)
        return [_solution(task, state, points - 1)]
    loose = tight | {"tol" if task.loss == "squared" else "irls_tol": LOOSE_PHASE}
    first = ad.grpnet(lmda_path=path, **both, **loose)
    state = ad.grpnet(lmda_path=path[-1:], warm_start=first, **both, **tight)
    return [_solution(task, state, 0)]


def _options(task: Task, setting: dict[str, Any]) -> dict[str, Any]:
    """What a setting says, in adelie's words."""
    options = {
        "groups": np.arange(task.shape[0]) * task.shape[1],
        "penalty": np.ones(task.shape[0], setting.get("dtype", "float64")),
        "tol": setting["tol"],
        "max_iters": MOST_SWEEPS,
        "early_exit": False,
        "progress_bar": False,
    }
    if "irls_tol" in setting:
        options |= {"irls_tol": setting["irls_tol"], "irls_max_iters": MOST_SWEEPS}
    if "slack" in setting:
        options |= {"pivot_slack_ratio": setting["slack"], "pivot_subset_ratio": 1e-9}
    if "dtype" in setting:
        options |= {"newton_tol": FLOAT32_NEWTON_TOL, "max_iters": MOST_FLOAT32_SWEEPS}
    return options


def _glm(task: Task, dtype: str) -> Any:
    import adelie as ad

    Y = np.asfortranarray(task.Y, dtype=dtype)
    if task.loss == "softmax":
        return ad.glm.multinomial(np.ascontiguousarray(Y))
    if task.loss == "logistic":
        return ad.glm.binomial((Y[:, 0] + 1) / 2)
    return ad.glm.gaussian(Y[:, 0]) if Y.shape[1] == 1 else ad.glm.multigaussian(Y)


def _solution(task: Task, state: Any, row: int) -> tuple[Array, Array]:
    Z = np.asarray(state.betas[row].todense(), dtype=np.float64).reshape(task.shape)
    c = task.shape[2]
    if not task.intercept:
        return Z, np.zeros(c)
    return Z, np.asarray(state.intercepts[row], dtype=np.float64).reshape(c)
