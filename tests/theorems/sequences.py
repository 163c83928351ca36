"""The programs for matrix targets by other means, for tests of what networks make of them."""

import cvxpy as cp
import numpy as np


def sequence_oracle(X, Y, beta, attention):
    """The exact program for matrix targets by CVXPY: A and B."""
    n, d = X.shape[1:]
    c = Y.shape[2]
    cells = [(j, k) for j in range(d) for k in range(c)]
    parts = {cell: [cp.Variable((n, n), nonneg=True) for _ in range(2)] for cell in cells}
    loss, penalty, constraints = 0, 0, []
    for k in range(c):
        F = sum((parts[j, k][0] - parts[j, k][1]) @ X[:, :, j].T for j in range(d))  # (n, N)
        loss += cp.sum_squares(F - Y[:, :, k].T) / 2
    for pair in parts.values():
        for part in pair:
            sums = cp.sum(part, axis=1)
            penalty += cp.max(sums)
            if attention == "stochastic":
                constraints.append(sums == sums[0])
    problem = cp.Problem(cp.Minimize(loss + beta * penalty), constraints)
    options = {f"tol_{name}": 1e-12 for name in ("gap_abs", "gap_rel", "feas")}
    problem.solve(solver=cp.CLARABEL, **options)
    A, B = (
        np.stack([[np.maximum(parts[j, k][s].value, 0) for k in range(c)] for j in range(d)])
        for s in range(2)
    )
    return A, B


def level(part):
    """Rows scaled to exactly equal sums, as row-stochastic attention has them; noise removed."""
    sums = part.sum(axis=3, keepdims=True)
    size = sums.max(axis=2, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(size > 1e-6, part * size / sums, 0.0)
