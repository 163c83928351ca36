r"""The contest: what is minimised, what counts as solved, and how time is read off.

Every contestant minimises, for the same arrays and the same beta,

.. math:: P(Z, b) = \sum_i \mathrm{loss}(F_i, Y_i) + \beta \sum_{\text{cells}} \|z\|_2,
          \qquad F = \sum_j m_j \odot \sum_k X_k Z_{jk} + 1 b^\top

(one gate that is always open where there are no gates) and hands back ``(Z, b)``. Whatever it says
of itself is ignored: `evaluate` recomputes P and a dual bound D in float64, from Z and b alone. The
relative gap ``(P - D) / P`` is the only currency. This file needs NumPy, nothing of convexformer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

GAPS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # the times reported are times to these relative gaps
ARRAYS = ("X", "Y", "gates", "directions")
BLOCK = 1 << 24  # numbers of X that are held in float64 at once


class MissingDataError(FileNotFoundError):
    """Data of a cell are not on this machine; the message says which command brings them."""


@dataclass(frozen=True)
class Task:
    """One problem, or a path of them, as contestants receive it.

    Attributes
    ----------
    X : ndarray of shape (N, n, d)
    Y : ndarray of shape (N, c)
        Numbers, -1/+1 (logistic) or one-hot rows (softmax).
    gates : ndarray of bool of shape (N, h), optional
    directions : ndarray of shape (n * d, h), optional
        Gate j is open where the flat sample's product with column j is positive.
    loss : "squared", "logistic" or "softmax"
    penalty : "token-output" or "token"
        A cell is a token of one output, or a token of all outputs; with gates, of each gate.
    intercept : bool
    betas : tuple of float
        Absolute penalty strengths; more than one is a path, to be solved in this order.
    """

    X: NDArray[Any]
    Y: Array
    gates: NDArray[np.bool_] | None = None
    directions: Array | None = None
    loss: str = "squared"
    penalty: str = "token-output"
    intercept: bool = False
    betas: tuple[float, ...] = ()

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of Z: ``(groups, d, c)``."""
        h = 1 if self.gates is None else self.gates.shape[1]
        return h * self.X.shape[1], self.X.shape[2], self.Y.shape[1]

    def save(self, folder: Path) -> None:
        """Write arrays and words into `folder`, for other processes to `load`."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in ARRAYS:
            if getattr(self, name) is not None:
                np.save(folder / f"{name}.npy", getattr(self, name))
        words = {name: getattr(self, name) for name in ("loss", "penalty", "intercept", "betas")}
        (folder / "task.json").write_text(json.dumps(words))

    @classmethod
    def load(cls, folder: Path) -> Task:
        words = json.loads((folder / "task.json").read_text())
        words["betas"] = tuple(words["betas"])
        files = [path for path in folder.glob("*.npy") if path.stem in ARRAYS]
        return cls(**{path.stem: np.load(path) for path in files}, **words)

    def at(self, *fractions: float) -> Task:
        """The same at these fractions of beta_max."""
        most = beta_max(self)
        return replace(self, betas=tuple(most * fraction for fraction in fractions))


@dataclass(frozen=True)
class Cell:
    """One line of the grid.

    Attributes
    ----------
    name : str
    make : callable
        Makes the task, without its betas.
    fractions : tuple of float
        Of beta_max; more than one is a path.
    correlated : bool
        Whether tokens resemble each other: here block descent needs thousands of sweeps.
    gap : float
        Relative gap at which the cell counts as solved.
    threads : int
    goal : float, optional
        Wall seconds that ours must not exceed.
    """

    name: str
    make: Callable[[], Task]
    fractions: tuple[float, ...]
    correlated: bool = False
    gap: float = 1e-6
    threads: int = 1
    goal: float | None = None

    def task(self) -> Task:
        return self.make().at(*self.fractions)


# The gap ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Value:
    """What a pair (Z, b) is worth."""

    primal: float
    dual: float
    active: int  # groups in use

    @property
    def relative_gap(self) -> float:
        return (self.primal - self.dual) / self.primal if self.primal > 0 else self.primal


def evaluate(task: Task, Z: Array, b: Array, beta: float) -> Value:
    """P at ``(Z, b)``, and the dual bound of the residuals there, scaled into the feasible set."""
    if Z.shape != task.shape or b.shape != task.shape[2:]:
        raise ValueError(f"Z has shape {Z.shape} and b {b.shape}; the task has {task.shape}.")
    Z, b = np.asarray(Z, dtype=np.float64), np.asarray(b, dtype=np.float64)
    S = _scores(task, Z)
    primal = float(_loss(task, S + b).sum()) + beta * float(_norms(task, Z).sum())
    V = _dual_point(task, S, b)
    active = int(np.count_nonzero(np.any(Z != 0, axis=(1, 2))))
    return Value(primal, _dual_value(task, V, beta), active)


def beta_max(task: Task) -> float:
    """Smallest beta at which ``Z = 0`` is optimal."""
    S = np.zeros(task.Y.shape)
    V = _dual_point(task, S, np.zeros(task.Y.shape[1]))
    return float(_norms(task, _correlate(task, V)).max())


def _blocks(task: Task) -> Iterator[tuple[slice, Array]]:
    N, width = len(task.X), task.X[0].size
    step = max(1, BLOCK // width)
    for start in range(0, N, step):
        rows = slice(start, min(start + step, N))
        yield rows, np.asarray(task.X[rows], dtype=np.float64).reshape(-1, width)


def _scores(task: Task, Z: Array) -> Array:
    groups, _, c = task.shape
    h = groups // task.X.shape[1]
    W = Z.reshape(h, -1, c).transpose(1, 0, 2).reshape(-1, h * c)
    S = np.empty((len(task.X), c))
    for rows, A in _blocks(task):
        by_gate = (A @ W).reshape(-1, h, c)
        if task.gates is not None:
            by_gate *= task.gates[rows][:, :, None]
        S[rows] = by_gate.sum(axis=1)
    return S


def _correlate(task: Task, V: Array) -> Array:
    groups, d, c = task.shape
    h = groups // task.X.shape[1]
    M = np.zeros((task.X[0].size, h * c))
    for rows, A in _blocks(task):
        gated = V[rows][:, None, :]
        if task.gates is not None:
            gated = gated * task.gates[rows][:, :, None]
        M += A.T @ gated.reshape(len(A), -1)
    return M.reshape(-1, h, c).transpose(1, 0, 2).reshape(groups, d, c)


def _norms(task: Task, Z: Array) -> Array:
    """Norm of every cell: ``(groups, cells)``."""
    if task.penalty == "token":
        return np.sqrt(np.sum(Z * Z, axis=(1, 2)))[:, None]
    return np.sqrt(np.sum(Z * Z, axis=1))


def _loss(task: Task, F: Array) -> Array:
    if task.loss == "squared":
        return 0.5 * (F - task.Y) ** 2
    if task.loss == "logistic":
        return np.logaddexp(0.0, -task.Y * F)
    return _logsumexp(F) - np.sum(F * task.Y, axis=1, keepdims=True)


def _logsumexp(F: Array) -> Array:
    top = F.max(axis=1, keepdims=True)
    return top + np.log(np.exp(F - top).sum(axis=1, keepdims=True))


def _chances(task: Task, F: Array) -> Array:
    """Probability of the label +1, or of every class."""
    if task.loss == "logistic":
        return np.exp(-np.logaddexp(0.0, -F))
    return np.exp(F - _logsumexp(F))


def _labels(task: Task) -> Array:
    return (task.Y + 1) / 2 if task.loss == "logistic" else task.Y


def _dual_point(task: Task, S: Array, b: Array) -> Array:
    """``V = -loss'`` at the best intercept; its columns sum to zero where there is one."""
    if task.loss == "squared":
        R = task.Y - S
        return R - R.mean(axis=0) if task.intercept else R
    labels = _labels(task)
    if not task.intercept:
        return labels - _chances(task, S)
    P = _chances(task, S + _best_intercept(task, S, b))
    P += (labels - P).mean(axis=0)  # exactly balanced; what leaves [0, 1] is drawn to the priors
    priors = np.broadcast_to(labels.mean(axis=0), P.shape)
    outside = np.maximum(0.0, np.maximum(P - 1, -P))
    t = np.max(outside / np.where(outside > 0, np.abs(priors - P), 1.0))
    return labels - ((1 - t) * P + t * priors)


def _best_intercept(task: Task, S: Array, b: Array) -> Array:
    """Damped Newton on the c intercepts."""
    labels, value = _labels(task), _loss(task, S + b).sum()
    for _ in range(100):
        P = _chances(task, S + b)
        slope = (labels - P).sum(axis=0)
        H = np.diag(P.sum(axis=0)) - P.T @ P
        if task.loss == "logistic":
            H = np.diag(np.sum(P * (1 - P), axis=0))
        step = np.linalg.lstsq(H + 1e-12 * np.eye(len(H)), slope, rcond=1e-12)[0]
        for halving in range(30):
            trial = _loss(task, S + b + 0.5**halving * step).sum()
            if trial <= value:
                break
        else:
            break
        b, gained, value = b + 0.5**halving * step, value - trial, trial
        if gained <= 1e-15 * abs(value) and np.all(np.abs(slope) <= 1e-11 * len(S)):
            break
    return b


def _dual_value(task: Task, V: Array, beta: float) -> float:
    separable = task.penalty == "token-output" and task.loss != "softmax"
    norms = _norms(task, _correlate(task, V)).max(axis=0 if separable else None)
    limit = beta / np.maximum(norms, np.finfo(float).tiny)
    axis = 0 if separable else None
    if task.loss == "squared":
        Y = task.Y - task.Y.mean(axis=0) if task.intercept else task.Y
        ray = np.sum(Y * V, axis=axis) / np.maximum(np.sum(V * V, axis=axis), np.finfo(float).tiny)
        V = np.clip(ray, 0.0, limit) * V
        return float(np.sum(V * (Y - 0.5 * V)))
    P = np.clip(_labels(task) - np.minimum(1.0, limit) * V, 0.0, 1.0)
    terms = _entropy(P) + (_entropy(1 - P) if task.loss == "logistic" else 0.0)
    return float(np.sum(terms))


def _entropy(P: Array) -> Array:
    return -P * np.log(np.where(P > 0, P, 1.0))


# The clock -------------------------------------------------------------------------------------


@dataclass
class Run:
    """One timed call of a contestant, with the gap that was recomputed from what it returned."""

    contestant: str
    setting: dict[str, Any]
    cpu: float
    wall: float
    gap: float  # of a path: the largest
    primals: list[float] = field(default_factory=list)
    duals: list[float] = field(default_factory=list)
    active: int = 0  # groups in use at the last beta
    first: bool = False  # the first call of a fresh process
    loading: float = 0.0  # seconds of importing, in a fresh process
    memory: float = 0.0  # highest resident set of the process, MB
    failed: str = ""  # why there is no gap: out of time, or the error

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def setting_key(setting: dict[str, Any]) -> str:
    return json.dumps(setting, sort_keys=True)


def times_to(runs: Iterable[Run], gap: float, clock: str = "cpu") -> list[float]:
    """Seconds of the repetitions of the fastest setting whose every run met `gap`; [] if none.

    Examples
    --------
    >>> from benchmarks.objective import Run, times_to
    >>> loose = [Run("a", {"tol": 0.1}, cpu=1.0, wall=1.0, gap=1e-3)]
    >>> tight = [Run("a", {"tol": 0.01}, cpu=s, wall=s, gap=1e-7) for s in (2.0, 2.5)]
    >>> times_to(loose + tight, gap=1e-2), times_to(loose + tight, gap=1e-6)
    ([1.0], [2.0, 2.5])
    """
    by_setting: dict[str, list[Run]] = {}
    for run in runs:
        if not run.first:
            by_setting.setdefault(setting_key(run.setting), []).append(run)
    met = [
        [getattr(run, clock) for run in group]
        for group in by_setting.values()
        if all(not run.failed and run.gap <= gap for run in group)
    ]
    return min(met, key=lambda seconds: float(np.median(seconds)), default=[])
