"""Time limits and Ctrl-C: no loop runs on after either, and what is returned is certified."""

import os
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from convexformer.problem import (
    PENALTIES,
    Huber,
    Logistic,
    Poisson,
    Problem,
    Softmax,
    Squared,
    TokenDesign,
)
from convexformer.problem.gated import GatedDesign, gaussian_gates
from convexformer.problem.sequence import SequenceProblem
from convexformer.problem.stopping import check_stop, until
from convexformer.solvers import Status, linalg, proximal_gradient, solve, solve_path
from convexformer.solvers.linalg import bounded_quadratic, cholesky, solved
from convexformer.solvers.matrix_targets import solve_sequence
from convexformer.solvers.solution import interruption

LIMIT = 0.3  # seconds
SLACK = 0.5  # seconds of work on top of what is promised, for a busy machine


def tokens(N, n, d, seed=0):
    """Tokens that have most in common, with a spectrum that decays: slow to solve."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(N, 1, d))
    return (common + 0.3 * rng.normal(size=(N, n, d))) / np.arange(1, d + 1) ** 1.5


def targets(loss, X, c, seed=1):
    rng = np.random.default_rng(seed)
    F = X.reshape(len(X), -1) @ rng.normal(size=(X[0].size, c))
    F = F / F.std(axis=0) + 0.5 * rng.normal(size=F.shape)
    if isinstance(loss, Poisson):
        return rng.poisson(np.exp(np.clip(F, -3, 3))).astype(float)
    if isinstance(loss, Logistic):
        F[:2] = np.array([[1.0], [-1.0]])
        return np.sign(F)
    if isinstance(loss, Softmax):
        Y = np.eye(c)[F.argmax(axis=1)]
        Y[:c] = np.eye(c)
        return Y
    return F


def made(shape, loss, c=1, penalty="token-output", kind="dense"):
    X = tokens(*shape)
    Y = targets(loss, X, c)
    mask = np.random.default_rng(2).random(shape[:2]) < 0.8 if kind == "masked" else None
    design = TokenDesign(X.astype(np.float32) if kind == "float32" else X, mask)
    if kind == "gated":
        gates = gaussian_gates(np.random.default_rng(3), 5, *shape[1:])
        design = GatedDesign(design, gates.open(design))
    return Problem(design, loss, PENALTIES[penalty](None), Y)


def two_passes(problem):
    """Seconds of work that two passes over X take."""
    Z = np.random.default_rng(4).normal(size=problem.shape)
    start = time.process_time()
    problem.design.correlate(problem.design.predict(Z))
    return time.process_time() - start


class Overrun:
    """Seconds of this process's own work after `limit` seconds, however busy the machine is."""

    def __enter__(self):
        self.at_limit = None
        self.timer = threading.Timer(LIMIT, self.note)
        self.timer.start()
        return self

    def note(self):
        self.at_limit = time.process_time()

    def __exit__(self, *error):
        self.timer.cancel()
        self.seconds = 0.0 if self.at_limit is None else time.process_time() - self.at_limit


SHAPES = [(8, 16, 384), (8, 1000, 64), (300, 50, 100), (3000, 20, 50)]
LOSSES = [
    (Squared(), 1),
    (Squared(), 5),
    (Squared(), 40),
    (Huber(1.35), 3),
    (Poisson(), 1),
    (Logistic(), 1),
    (Logistic(), 3),
    (Softmax(), 3),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("loss", "c"), LOSSES, ids=lambda value: str(value).split("(")[0])
@pytest.mark.parametrize("penalty", ["token-output", "token", "nuclear"])
def test_max_time_is_kept(shape, loss, c, penalty):
    if penalty == "nuclear" and (c == 1 or shape[1] == 1000):
        pytest.skip("one output has one singular value; 1,000 tokens' take longer than X")
    check_overrun(made(shape, loss, c, penalty))


@pytest.mark.parametrize("kind", ["float32", "masked", "gated"])
@pytest.mark.parametrize(("loss", "c"), [(Squared(), 1), (Logistic(), 1), (Softmax(), 3)])
def test_max_time_is_kept_on_all_designs(kind, loss, c):
    check_overrun(made((1000, 20, 50), loss, c, kind=kind))


def test_max_time_is_kept_where_conjugate_gradients_are_slow():
    check_overrun(made((1500, 16, 96), Softmax(), 3), fraction=0.1)


def check_overrun(problem, fraction=0.01):
    beta, most = fraction * problem.beta_max, max(LIMIT, two_passes(problem)) + SLACK
    with Overrun() as overrun:
        found = solve(problem, beta, tol=1e-9, max_time=LIMIT, max_iter=10**9)
    assert overrun.seconds <= most
    assert found.status in (Status.TIME, Status.CONVERGED, Status.PRECISION)
    primal = problem.objective(found.Z, found.intercept, beta)
    assert found.certificate.dual <= primal <= found.certificate.primal * (1 + 1e-9)


@pytest.mark.parametrize("max_time", [0.0, 0.02, 0.1])
@pytest.mark.parametrize(("loss", "c"), LOSSES[:3] + LOSSES[-2:])
def test_what_was_found_in_time_is_no_worse_than_nothing(max_time, loss, c):
    problem = made((300, 50, 100), loss, c, "token")
    beta = 0.01 * problem.beta_max
    found = solve(problem, beta, tol=1e-12, max_time=max_time)
    zero = problem.certificate(np.zeros(problem.shape), problem.null.b, beta)
    assert found.certificate.primal <= zero.primal * (1 + 1e-9)
    assert found.trace


def sequences(shape, loss, c):
    """A problem with targets at every position, drawn from the tokens in reverse order."""
    X = tokens(*shape)
    rows = X[:, ::-1].reshape(-1, 1, X.shape[2])
    return SequenceProblem(X, targets(loss, rows, c).reshape(*X.shape[:2], c), loss=loss)


def check_sequence_overrun(problem, fraction):
    beta = fraction * problem.beta_max
    with Overrun() as overrun:
        found = solve_sequence(problem, beta, tol=1e-15, max_time=LIMIT, max_iter=10**9)
    assert overrun.seconds <= max(LIMIT, two_passes(problem.positions)) + SLACK
    primal = problem.objective(found.Z, found.intercept, beta)
    assert found.certificate.dual <= primal <= found.certificate.primal * (1 + 1e-9) < np.inf
    return found


SEQUENCE_LOSSES = [(Squared(), 2), (Huber(), 2), (Poisson(), 2), (Logistic(), 2), (Softmax(), 3)]


@pytest.mark.parametrize(("loss", "c"), SEQUENCE_LOSSES)
def test_matrix_targets_keep_max_time_where_no_model_is_formed_in_time(loss, c):
    found = check_sequence_overrun(sequences((4000, 24, 12), loss, c), 0.1)
    assert found.status is Status.TIME


@pytest.mark.parametrize(("loss", "c"), SEQUENCE_LOSSES)
def test_matrix_targets_keep_max_time_between_iterations(loss, c):
    found = check_sequence_overrun(sequences((300, 8, 4), loss, c), 1e-4)
    assert found.status in (Status.TIME, Status.PRECISION)


def test_matrix_targets_keep_max_time_where_factors_take_long():
    X = tokens(50, 30, 40)
    mask = np.arange(30) < 20 + np.arange(50)[:, None]
    found = check_sequence_overrun(SequenceProblem(X, X[:, ::-1, :3], mask=mask), 0.01)
    assert found.status is Status.TIME


# No number ---------------------------------------------------------------------


@pytest.mark.parametrize("penalty", ["token-output", "token", "nuclear"])
def test_a_start_that_is_no_number_is_refused(penalty):
    problem = made((60, 5, 4), Softmax(), 3, penalty)
    start = solve(problem, 0.5 * problem.beta_max)
    start.Z[0, 0, 0] = np.nan
    with pytest.raises(ValueError, match="init contains NaN"):
        solve(problem, 0.1 * problem.beta_max, init=start)


def test_a_proximal_step_on_no_numbers_ends():
    problem = made((60, 5, 4), Softmax(), 3, "nuclear")
    at = replace(problem.null, loss=np.nan)  # as where a loss overflowed
    assert proximal_gradient._accelerated_step(problem, 1.0, at, 1.0, lambda: False) is None


def test_a_quadratic_of_no_numbers_is_refused():
    with pytest.raises(np.linalg.LinAlgError, match="not finite"):
        bounded_quadratic(np.full((2, 2), np.nan), np.ones(2), np.zeros(2))


# Pieces ---------------------------------------------------------------------


def test_the_inner_block_ends_first():
    reached = []
    with until(lambda: True):
        with until(lambda: False):
            check_stop()
            reached.append("inside")
        check_stop()
        reached.append("outside")
    check_stop()
    assert reached == ["inside"]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_factors_by_blocks_are_factors(monkeypatch, order, dtype):
    A = np.random.default_rng(0).normal(size=(40, 25))
    T = np.array(A.T @ A + np.eye(25), dtype=dtype, order=order)
    expected = cholesky(T.copy(order="K"))
    monkeypatch.setattr(linalg, "BLOCK", 4)
    tolerance = 1e-4 if dtype == np.float32 else 1e-12
    for overwrite in (False, True):
        L = cholesky(T.copy(order="K"), overwrite=overwrite)
        np.testing.assert_allclose(L, expected, atol=tolerance)
        right = T @ np.ones((25, 1), dtype)
        np.testing.assert_allclose(solved(L, right), 1.0, atol=10 * tolerance)
    with pytest.raises(np.linalg.LinAlgError):
        cholesky(-T)


# Ctrl-C ---------------------------------------------------------------------


def hard():
    problem = made((600, 30, 50), Softmax(), 3)
    return problem, 1e-3 * problem.beta_max


class CtrlC:
    """Ctrl-C some seconds after the block begins."""

    def __init__(self, seconds):
        self.timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))

    def __enter__(self):
        self.timer.start()

    def __exit__(self, *error):
        self.timer.cancel()


def test_ctrl_c_keeps_the_best_iterate():
    problem, beta = hard()
    handler = signal.getsignal(signal.SIGINT)
    start = time.process_time()
    with CtrlC(0.2):
        found = solve(problem, beta, tol=1e-13, on_interrupt="keep")
    assert time.process_time() - start < 0.2 + LIMIT + SLACK
    assert found.status is Status.INTERRUPTED and "Interrupted" in str(found.status)
    again = problem.certificate(found.Z, found.intercept, beta)
    assert again.primal == pytest.approx(found.certificate.primal, rel=1e-8)
    assert signal.getsignal(signal.SIGINT) is handler


def test_ctrl_c_raises_unless_asked_to_keep():
    problem, beta = hard()
    with pytest.raises(KeyboardInterrupt), CtrlC(0.1):
        solve(problem, beta, tol=1e-13)


def test_the_second_ctrl_c_raises():
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interruption("keep") as asked:
        signal.raise_signal(signal.SIGINT)
        assert asked()
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is handler


def test_handlers_come_back_after_errors_and_other_threads_have_none():
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), interruption("keep"):
        1 / 0  # noqa: B018
    assert signal.getsignal(signal.SIGINT) is handler
    seen = []

    def elsewhere():
        with interruption("keep") as asked:
            seen.append((asked(), signal.getsignal(signal.SIGINT) is handler))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [(False, True)]
    with pytest.raises(ValueError, match="on_interrupt must be one of"):
        solve(*hard(), on_interrupt="stop")


def test_a_process_that_ignores_ctrl_c_goes_on_ignoring_it():
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruption("keep") as asked:
            signal.raise_signal(signal.SIGINT)
            assert not asked()
    finally:
        signal.signal(signal.SIGINT, handler)


def test_a_path_ends_with_the_beta_that_ctrl_c_met():
    problem, _ = hard()
    betas = np.geomspace(1.0, 1e-3, 30) * problem.beta_max
    found = []
    for solution in solve_path(problem, betas, tol=1e-10, on_interrupt="keep"):
        found.append(solution)
        if len(found) == 3:
            ctrl_c = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
            ctrl_c.start()
    ctrl_c.join()
    assert 3 < len(found) < len(betas)
    assert all(solution.status is Status.CONVERGED for solution in found[:-1])
    assert found[-1].certificate.beta == betas[len(found) - 1]
