"""The judge: its gap agrees with certificates, and it shares no code with what it judges."""

import ast
import doctest
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks import objective, scaling
from benchmarks.check import tiny_tasks
from benchmarks.objective import Task, beta_max, evaluate

from convexformer import problem as p
from convexformer.solvers import solve

TASKS = {name: task for name, task in tiny_tasks() if not name.endswith("path")}


def _problem(task):
    design = p.TokenDesign(task.X)
    if task.gates is not None:
        design = p.GatedDesign(design, task.gates)
    loss = {"squared": p.Squared, "logistic": p.Logistic, "softmax": p.Softmax}[task.loss]()
    penalty = p.PENALTIES[task.penalty]()
    return p.Problem(design, loss, penalty, task.Y, intercept=task.intercept)


@pytest.mark.parametrize("name", TASKS)
def test_the_gap_agrees_with_certificates(name):
    task, rng = TASKS[name], np.random.default_rng(1)
    problem, (beta,) = _problem(task), task.betas
    assert beta_max(task) == pytest.approx(problem.beta_max, rel=1e-12)
    found = [(s.Z, s.intercept) for s in (solve(problem, beta, tol=tol) for tol in (0.1, 1e-8))]
    found.append((rng.normal(size=task.shape), rng.normal(size=task.shape[2]) * task.intercept))
    for Z, b in found:
        value, certificate = evaluate(task, Z, b, beta), problem.certificate(Z, b, beta)
        assert value.primal == pytest.approx(certificate.primal, rel=1e-12)
        assert value.dual == pytest.approx(certificate.dual, rel=1e-7, abs=1e-9)
    assert evaluate(task, *found[1], beta).relative_gap <= 1e-8


def test_samples_on_the_wrong_side_leave_a_valid_bound():
    """Saturated probabilities leave the conjugate's domain once they are balanced."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3, 2))
    y = np.where(rng.normal(size=(40, 1)) > 0, 1.0, -1.0)
    task = Task(X, y, loss="logistic", intercept=True).at(0.1)
    Z, b = 50 * rng.normal(size=task.shape), np.zeros(1)
    best = solve(_problem(task), task.betas[0], tol=1e-8).certificate
    with np.errstate(all="raise", under="ignore"):
        value = evaluate(task, Z, b, task.betas[0])
    assert value.dual <= best.primal < value.primal


def test_large_arrays_are_read_in_blocks(monkeypatch):
    task = TASKS["gated n=3"]
    Z = np.random.default_rng(0).normal(size=task.shape)
    whole = evaluate(task, Z, np.zeros(1), 1.0)
    monkeypatch.setattr(objective, "BLOCK", 50)
    parts = evaluate(task, Z, np.zeros(1), 1.0)
    assert parts.primal == pytest.approx(whole.primal, rel=1e-12)
    assert parts.dual == pytest.approx(whole.dual, rel=1e-12)


def test_a_wrong_shape_is_named():
    task = TASKS["gated n=3"]
    with pytest.raises(ValueError, match=r"Z has shape \(1, 2, 1\)"):
        evaluate(task, np.zeros((1, 2, 1)), np.zeros(1), 1.0)


def test_tasks_survive_files(tmp_path):
    task = TASKS["gated n=3"]
    task.save(tmp_path)
    back = Task.load(tmp_path)
    assert replace(back, **dict.fromkeys(objective.ARRAYS)) == replace(
        task, **dict.fromkeys(objective.ARRAYS)
    )
    assert all(np.array_equal(getattr(back, a), getattr(task, a)) for a in objective.ARRAYS)


def test_the_judge_imports_numpy_and_nothing_of_ours():
    tree = ast.parse(Path(objective.__file__).read_text())
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    roots = {name.split(".")[0] for name in names}
    assert roots == {
        "__future__",
        "collections",
        "dataclasses",
        "json",
        "numpy",
        "pathlib",
        "typing",
    }


@pytest.mark.parametrize("module", [objective, scaling])
def test_doctests(module):
    result = doctest.testmod(module)
    assert result.attempted > 0 and result.failed == 0
