"""The optimum by other means: the program of THEORY, written in CVXPY and solved by Clarabel."""

from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np

from .raw import Array, Raw

TOLERANCES = (1e-13, 1e-11, 1e-9, 1e-8)  # Clarabel stalls at the tightest of some problems


def oracle(raw: Raw, beta: float) -> tuple[float, Array, Array]:
    """Minimise ``P(Z, b)``.

    Returns
    -------
    objective : float
        Recomputed from `Z` and `b` with the formulas of `Raw`: the value of a real model, hence
        never below the optimum, whatever Clarabel's tolerance.
    Z : ndarray of shape (n, d, c)
    b : ndarray of shape (c,)
    """
    N, n, d = raw.X.shape
    c = raw.Y.shape[1]
    Z = [cp.Variable((d, c)) for _ in range(n)]
    b = cp.Variable(c) if raw.intercept else np.zeros(c)
    F = sum(raw.tokens[:, k] @ Z[k] for k in range(n)) + np.ones((N, 1)) @ cp.reshape(
        b, (1, c), order="C"
    )
    norm_of = {
        "token-output": lambda Zk: cp.norm(Zk, axis=0),
        "token": lambda Zk: cp.norm(Zk, "fro"),
        "nuclear": cp.normNuc,
    }[raw.penalty]
    norms = [norm_of(Zk) for Zk in Z]
    penalty = sum(w * cp.sum(norm) for w, norm in zip(raw.groups, norms, strict=True))
    program = cp.Problem(cp.Minimize(_loss(raw, F) + beta * penalty))
    _solve(program)
    found = np.stack([Zk.value for Zk in Z])
    intercept = b.value if raw.intercept else b
    return raw.objective(found, intercept, beta), found, intercept


def _solve(program: cp.Problem) -> None:
    for tol in TOLERANCES:
        options = {f"tol_{name}": tol for name in ("gap_abs", "gap_rel", "feas")}
        options |= {"max_iter": 500, "accept_unknown": tol == TOLERANCES[-1]}
        with warnings.catch_warnings():  # "may be inaccurate": judged by the objective instead
            warnings.simplefilter("ignore")
            try:
                program.solve(solver=cp.CLARABEL, **options)
            except cp.SolverError:
                continue
        if program.status in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE):
            return
    raise RuntimeError("Clarabel found no solution at any tolerance.")


def _loss(raw: Raw, F: cp.Expression) -> cp.Expression:
    """``sum_i a_i loss(F_i, Y_i)`` up to the constant that makes Poisson a deviance."""
    Y, a = raw.Y, raw.weight
    A = np.repeat(a[:, None], Y.shape[1], axis=1)
    if raw.loss == "squared":
        return cp.sum_squares(cp.multiply(np.sqrt(A), F - Y)) / 2
    if raw.loss == "huber":  # CVXPY's is twice the usual
        return cp.sum(cp.multiply(A, cp.huber(F - Y, raw.delta))) / 2
    if raw.loss == "logistic":
        return cp.sum(cp.multiply(A, cp.logistic(-cp.multiply(Y, F))))
    if raw.loss == "softmax":
        return a @ cp.log_sum_exp(F, axis=1) - cp.sum(cp.multiply(A * Y, F))
    return cp.sum(cp.multiply(A, cp.exp(F) - cp.multiply(Y, F)))
