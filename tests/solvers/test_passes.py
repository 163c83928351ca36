"""How often a fit reads X, in passes over all of it; with half of the groups it is half a pass.

Passes of a problem (means and beta_max), of what strategies do, and of the final certificate, each
alone. The version before `Point`, with eight caches (commit c6b573e), took as many in all of these,
but for a warm start from a solution of the very same problem, whose scores and correlations it
remembered:

=====================================  =====  =====  ======
passes of the solve alone              fresh  warm   path
=====================================  =====  =====  ======
squared, at c6b573e and here           2.10   2.45    5.90
squared, correlated                    2.20   3.25    7.10
squared, correlated and wide           2.48   5.12    7.50
squared, three outputs                 2.15   2.45    5.90
logistic, at c6b573e and here          2.55   3.55   11.25
logistic, correlated                   2.40   3.75   14.75
softmax, three classes, c6b573e        4.90   4.90   14.50
softmax, here                          4.90   4.90   13.70
warm from the same problem, c6b573e           1.30
warm from the same problem, here              2.45
=====================================  =====  =====  ======

The last row is what a cache saved. At both commits a problem takes two passes, one for means and
correlations together and one for the norm of X; a certificate takes one for the correlations, and
for the scores a part, which is that of the groups in use (1.15 to 1.95 passes in all).
"""

import numpy as np
import pytest
from tests.passes import CountingDesign, count_certificates

from convexformer.problem import Logistic, Problem, Softmax, Squared, Token, TokenOutput
from convexformer.solvers import solve, solve_path

PLAIN = {"N": 900, "n": 20, "d": 8}
CORRELATED = PLAIN | {"common": 3.0}
WIDE = {"N": 200, "n": 40, "d": 16, "common": 1.0}
SLACK = 0.02  # parts of X that are only looked at

FITS = {  # loss, outputs, data, strategy; most passes of a fresh fit, a warm one, a path of 5
    "squared": (Squared(), 1, PLAIN, "block-descent", 2.10, 2.45, 5.90),
    "squared, correlated": (Squared(), 1, CORRELATED, "block-descent", 2.20, 3.25, 7.10),
    "squared, wide": (Squared(), 1, WIDE, "block-descent", 2.48, 5.12, 7.50),
    "squared, outputs": (Squared(), 3, PLAIN, "block-descent", 2.15, 2.45, 5.90),
    "logistic": (Logistic(), 1, PLAIN, "compiled-newton", 2.55, 3.55, 11.25),
    "logistic, correlated": (Logistic(), 1, CORRELATED, "compiled-newton", 2.40, 3.75, 14.75),
    "softmax": (Softmax(), 3, PLAIN, "gradient", 4.90, 4.90, 13.70),
}


@pytest.fixture(params=FITS)
def fit(request):
    return FITS[request.param]


@pytest.fixture(autouse=True)
def certificates_alone(compiled, monkeypatch):
    count_certificates(monkeypatch)


def made(loss, c, intercept=True, N=900, n=20, d=8, common=0.0):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, n, d)) + common * rng.normal(size=(N, 1, d))
    F = np.einsum("nkd,kdc->nc", X[:, :3], rng.normal(size=(3, d, c)))
    F = F / F.std() + 0.5 * rng.normal(size=F.shape)
    Y = F if loss.quadratic else np.eye(c)[F.argmax(axis=1)] if loss.joint else np.sign(F)
    design = CountingDesign(X)
    return Problem(design, loss, TokenOutput() if c == 1 else Token(), Y, intercept=intercept)


@pytest.mark.parametrize("intercept", [False, True])
def test_a_fresh_fit(fit, intercept):
    loss, c, data, strategy, most, *_ = fit
    problem = made(loss, c, intercept, **data)
    beta, passes = 0.1 * problem.beta_max, problem.design.passes
    problem.design.stage = "solve"
    found = solve(problem, beta, strategy=strategy)
    assert found.converged and found.strategy == strategy
    assert passes["problem"] <= 2.1  # means and correlations together, the norm, and some rows
    assert passes["solve"] <= most + SLACK
    used = np.count_nonzero(found.Z.any(axis=(1, 2))) / problem.design.n_groups
    assert passes["certificate"] <= 1.0 + used + SLACK * 5


def test_a_warm_start(fit):
    loss, c, data, strategy, _, most, _ = fit
    before = made(loss, c, **data)
    init = solve(before, 0.12 * before.beta_max, strategy=strategy)
    problem = made(loss, c, **data)
    beta = 0.1 * problem.beta_max
    problem.design.stage = "solve"
    assert solve(problem, beta, init=init, strategy=strategy).converged
    assert problem.design.passes["solve"] <= most + SLACK


def test_a_path(fit):
    loss, c, data, strategy, *_, most = fit
    problem = made(loss, c, **data)
    betas = problem.beta_max * np.geomspace(0.5, 0.1, 5)
    problem.design.stage = "solve"
    path = list(solve_path(problem, betas, strategy=strategy))
    assert all(solution.converged for solution in path)
    assert problem.design.passes["solve"] <= most + SLACK
    used = sum(np.count_nonzero(s.Z.any(axis=(1, 2))) for s in path) / problem.design.n_groups
    assert problem.design.passes["certificate"] <= len(path) + used + 5 * SLACK


def test_a_warm_start_from_a_solution_of_the_same_problem():
    """As many as from a solution of another problem: 1.15 more than at c6b573e, whose problems kept
    scores and correlations of the last coefficients. Paths, which need it, hand on their points.
    """
    problem = made(Squared(), 1)
    init = solve(problem, 0.12 * problem.beta_max)
    problem.design.stage = "solve"
    problem.design.passes.clear()
    assert solve(problem, 0.1 * problem.beta_max, init=init).converged
    assert problem.design.passes["solve"] <= 2.45 + SLACK


def test_products_are_counted_once_however_they_are_formed():
    rng = np.random.default_rng(0)
    design = CountingDesign(rng.normal(size=(300, 4, 3)))
    groups, weight = np.array([0, 2]), np.ones(300)
    for read, expected in (
        (lambda: design.predict(np.ones((4, 3, 1))), 1.0),
        (lambda: design.correlate(np.ones((300, 1)), groups), 0.5),
        (lambda: design.follow(np.ones((4, 3, 1)), np.ones((300, 1)), weight), 1.0),
        (lambda: design.gram(groups, weight[:, None], None), 0.5),
        (lambda: design.cross_gram(groups, np.array([3]), weight, None, np.float64), 0.75),
        (lambda: design.kernel(groups, np.ones(2), None), 0.5),
        (lambda: list(design.columns(groups)), 0.5),
        (lambda: design.gather(slice(0, 30), groups), 0.05),
        (lambda: list(design.columns()), 1.0),
        (lambda: design.whole(groups, np.float64), 0.5),
        (lambda: design.norm, 1.0),
        (lambda: design.norm, 1.0),
    ):
        design.passes.clear()
        design.__dict__.pop("norm", None)
        read()
        assert sum(design.passes.values()) == pytest.approx(expected)
    assert design.float64 is None and design.float32 is None
