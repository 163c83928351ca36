"""A remark: plain weight decay has a convex program too, and predicts about as well."""

import json
from pathlib import Path

import pytest
from tests.theorems.data import EXACT, generic, lowest

from convexformer.nn import SimplexAttention
from convexformer.problem import PENALTIES, Problem, Squared, TokenDesign
from convexformer.solvers import solve


def test_plain_decay_is_the_nuclear_norm():
    X, Y = generic("squared", 2)
    optimum = {}
    for penalty in ("token-output", "nuclear"):
        problem = Problem(TokenDesign(X), Squared(), PENALTIES[penalty](), Y, intercept=False)
        optimum[penalty] = solve(problem, 4.0, tol=1e-7).certificate.primal

    def make():
        return SimplexAttention(4, 2, 2, 12, penalty="nuclear", **EXACT)  # ||w2||^2 + ||w3||_2^2

    trained = lowest(make, X, Y, "squared", 4.0).min()
    assert optimum["token-output"] == pytest.approx(35.4931, abs=1e-3)
    assert optimum["nuclear"] == pytest.approx(33.3933, abs=1e-3)  # 5.9 % lower
    assert trained == pytest.approx(optimum["nuclear"], rel=1e-5)


def test_students_support_the_paper_in_that_the_choice_hardly_matters():
    """Test losses of the certified students of docs/teacher.md under either decay."""
    file = Path(__file__).parents[2] / "experiments/teacher/results.json"
    losses = {
        (row["task"]["target"], row["student"]): round(row["test_loss"], 3)
        for row in json.loads(file.read_text())["rows"]
        if row["task"]["dim"] == 64
    }
    at_first = [losses["first", student] for student in ("positions", "positions-nuclear")]
    whole = [losses["attention", student] for student in ("offsets-output", "offsets-nuclear")]
    assert (at_first, whole) == ([0.319, 0.318], [0.390, 0.400])
