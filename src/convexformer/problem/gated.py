r"""The gated-ReLU layer (Theorem 3): tokens that only count where a fixed gate is open.

.. math:: F_i = \sum_j m_{ij} \sum_k X_{ik} Z_{jk}, \qquad
          m_{ij} = 1\{\langle U_j, X_i\rangle \ge t_j\}

A group is a pair (gate j, token k), numbered ``j * n + k``. The ``N x (h n d)`` design is never
built: correlations of all gates are one product ``X' [m_1 V, ..., m_h V]`` per block of samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from .designs import Array, Design, Groups, transposed_product


@dataclass(frozen=True)
class Gates:
    """Directions and thresholds of fixed gates.

    Attributes
    ----------
    directions : ndarray of shape (h, n, d)
    thresholds : ndarray of shape (h,)
        ``-inf`` for a gate that is always open.
    """

    directions: Array
    thresholds: Array

    def __len__(self) -> int:
        return len(self.directions)

    def __add__(self, other: Gates) -> Gates:
        return Gates(
            np.concatenate([self.directions, other.directions]),
            np.concatenate([self.thresholds, other.thresholds]),
        )

    def open(self, tokens: Design) -> NDArray[np.bool_]:
        """Which gates are open for which samples, ``(N, h)``."""
        W = np.moveaxis(self.directions, 0, 2)  # (n, d, h)
        return tokens.predict(np.ascontiguousarray(W)) >= self.thresholds


def always_open(n: int, d: int) -> Gates:
    """A single gate that is always open: the layer without a FCN."""
    return Gates(np.zeros((1, n, d)), np.array([-np.inf]))


def gaussian_gates(rng: np.random.Generator, h: int, n: int, d: int) -> Gates:
    """The paper's: ``U_j = u v'`` with Gaussian u and v, against zero."""
    u, v = rng.normal(size=(h, n, 1)), rng.normal(size=(h, 1, d))
    return Gates(u * v, np.zeros(h))


def axis_gates(rng: np.random.Generator, h: int, tokens: Design, rows: Groups) -> Gates:
    """One channel of one token, against a threshold between two of its values in `rows`."""
    n, d = tokens.n_groups, tokens.dim
    directions, thresholds = np.zeros((h, n, d)), np.zeros(h)
    sample = _values(tokens, rng.permutation(rows)[:500])
    varying = np.flatnonzero(np.ptp(sample, axis=0) > 0)
    if not len(varying):
        return Gates(directions, thresholds)
    for j, column in enumerate(rng.choice(varying, size=h)):
        values = np.unique(sample[:, column])
        low = rng.integers(len(values) - 1)
        directions[j].flat[column] = 1.0
        thresholds[j] = 0.5 * (values[low] + values[low + 1])
    return Gates(directions, thresholds)


def pair_gates(
    rng: np.random.Generator, h: int, tokens: Design, rows: Groups, labels: NDArray[np.intp]
) -> Gates:
    """Half-way between one of `rows` and its nearest neighbour of another label."""
    n, d = tokens.n_groups, tokens.dim
    directions, thresholds = np.zeros((h, n, d)), np.zeros(h)
    chosen = rng.permutation(len(rows))[:2000]
    sample, labels = _values(tokens, rows[chosen]), labels[chosen]
    for j, i in enumerate(rng.integers(len(chosen), size=h)):
        others = np.flatnonzero(labels != labels[i])
        if len(others):
            distance = np.sum((sample[others] - sample[i]) ** 2, axis=1)
            near = sample[others[np.argmin(distance)]]
            directions[j] = (sample[i] - near).reshape(n, d)
            thresholds[j] = 0.5 * float((sample[i] - near) @ (sample[i] + near))
    return Gates(directions, thresholds)


def distinct_rows(tokens: Design, weight: Array | None = None) -> Groups:
    """Samples of positive weight, equal ones once, in an order that only their values decide.

    Gates drawn from them do not change when samples are shuffled, or repeated in place of weights.
    """
    marks = np.empty(tokens.n_samples, dtype=np.int64)
    for rows, A in tokens.columns():
        marks[rows] = [crc32(row.tobytes()) for row in A]
    kept = np.arange(len(marks)) if weight is None else np.flatnonzero(weight > 0)
    return kept[np.unique(marks[kept], return_index=True)[1]]


def _values(tokens: Design, rows: Groups) -> Array:
    """Some samples, flat: ``(rows, n * d)``."""
    everything = np.arange(tokens.n_groups)
    return np.concatenate([tokens.gather(slice(i, i + 1), everything) for i in rows])


class GatedDesign(Design):
    """Tokens seen through gates.

    Parameters
    ----------
    tokens : Design
        A :class:`TokenDesign`, or an :class:`OffsetDesign`.
    open_gates : ndarray of bool of shape (N, h)
    """

    def __init__(self, tokens: Design, open_gates: NDArray[np.bool_]) -> None:
        if open_gates.ndim != 2 or len(open_gates) != tokens.n_samples:
            raise ValueError(
                f"open_gates must have shape ({tokens.n_samples}, h), got {open_gates.shape}."
            )
        self.tokens, self.gates = tokens, open_gates
        self.n_samples, self.dim, self.nbytes = tokens.n_samples, tokens.dim, tokens.nbytes
        self.n_tokens, self.n_gates = tokens.n_groups, open_gates.shape[1]
        self.n_groups = self.n_gates * self.n_tokens

    @property
    def sequences(self) -> NDArray[np.intp]:
        return self.tokens.sequences

    def rescaled(self, unit: float) -> GatedDesign:
        return GatedDesign(self.tokens.rescaled(unit), self.gates)

    def gather(self, rows: slice, groups: Groups) -> Array:
        gate, token = np.divmod(groups, self.n_tokens)
        A = self.tokens.gather(rows, token)  # (rows, groups * d), a fresh copy
        closed = np.flatnonzero(~self.gates[rows][:, gate])  # of these indices NumPy is quickest
        A.reshape(-1, self.dim)[closed] = 0.0
        return A

    def some(self) -> Array:
        return self.tokens.some()  # before gates are closed

    @cached_property
    def norm(self) -> float:
        return float(np.sqrt(self.n_gates)) * self.tokens.norm

    def prefers_all(self, groups: Groups) -> bool:
        return 32 * len(groups) >= self.n_groups  # tokens are shared by gates, gathered ones not

    def _predict_all(self, Z: Array) -> Array:
        c = Z.shape[2]
        Z = Z.reshape(self.n_gates, -1, c)  # (h, n * d, c)
        used = np.flatnonzero(np.any(Z, axis=(1, 2)))
        W = Z[used].transpose(1, 0, 2).reshape(-1, len(used) * c)
        F = np.zeros((self.n_samples, c))
        for rows, A in self.tokens.columns(extra=len(used) * c):
            per_gate = (A @ W).reshape(len(A), len(used), c)
            F[rows] = np.einsum("ijc,ij->ic", per_gate, self.gates[rows][:, used].astype(float))
        return F

    def _correlate_all(self, V: Array) -> Array:
        c = V.shape[1]
        M = np.zeros((self.n_tokens * self.dim, self.n_gates * c))
        for rows, A in self.tokens.columns(extra=self.n_gates * c):
            gated = self.gates[rows][:, :, None] * V[rows][:, None, :]
            M += transposed_product(A, gated.reshape(len(A), -1))
        M = M.reshape(self.n_tokens, self.dim, self.n_gates, c)
        return np.ascontiguousarray(M.transpose(2, 0, 1, 3)).reshape(-1, self.dim, c)
