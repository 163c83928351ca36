"""What gated estimators add: fixed gates, and coefficients per gate."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from ..problem import Design, GatedDesign, Gates
from ..problem.gated import always_open, axis_gates, distinct_rows, gaussian_gates, pair_gates
from ..problem.points import safe_norm
from ._base import ConvexAttention, TrainingData
from ._samples import Samples
from ._validation import Array, check_bool, check_count, check_positive
from .persistence import Persistent

KINDS = ("axis", "pairs", "gaussian")


class Gated(ConvexAttention, Persistent):
    """Tokens seen through fixed gates, the first of them always open unless ``open_gate=False``."""

    n_gates: int
    gates: Any
    open_gate: bool
    gate_weight: float
    random_state: Any

    gate_directions_: Array
    gate_thresholds_: Array

    _groups_name: ClassVar[str] = "(gate, token) pairs"

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_count("n_gates", self.n_gates)
        check_bool("open_gate", self.open_gate)
        check_positive("gate_weight", self.gate_weight, "1 penalises all gates alike.")
        if isinstance(self.gates, str) and self.gates not in KINDS:
            raise ValueError(
                f"gates must be one of {KINDS} or a pair of arrays (directions (h, n, d), "
                f"thresholds (h,)); got {self.gates!r}."
            )

    def _prepare(self, data: TrainingData) -> None:
        tokens = data.samples.design()
        drawn = self._drawn(tokens, data)
        if self.open_gate:
            drawn = always_open(tokens.n_groups, tokens.dim) + drawn
        self.gate_directions_, self.gate_thresholds_ = drawn.directions, drawn.thresholds

    def _drawn(self, tokens: Design, data: TrainingData) -> Gates:
        """The gates besides the one that is always open."""
        n, d = tokens.n_groups, tokens.dim
        if not isinstance(self.gates, str):
            return _given_gates(self.gates, n, d)
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        rng = np.random.default_rng(seed)
        if self.gates == "gaussian":
            return gaussian_gates(rng, self.n_gates, n, d)
        rows = distinct_rows(tokens, data.weight)
        if self.gates == "axis":
            return axis_gates(rng, self.n_gates, tokens, rows)
        return pair_gates(rng, self.n_gates, tokens, rows, self._sides(data.Y[rows]))

    def _sides(self, Y: Array) -> NDArray[np.intp]:
        """Labels between which to draw gates: classes, or above and below the median."""
        median = np.median(Y, axis=0)  # it may be the largest: most of two labels
        above = np.where(median < np.max(Y, axis=0), np.greater(Y, median), np.equal(Y, median))
        return np.unique(above, axis=0, return_inverse=True)[1].ravel()

    def _design(self, samples: Samples) -> Design:
        tokens = samples.design()
        gates = Gates(self.gate_directions_, self.gate_thresholds_)
        return GatedDesign(tokens, gates.open(tokens))

    def _penalty_weights(self) -> Array | None:
        """Every token's weight under every gate, times `gate_weight` where the gate may close.

        Without an open gate there is nothing to weigh gates against: a factor that all blocks
        share would only rename beta.
        """
        weights = super()._penalty_weights()
        h, n = self.gate_directions_.shape[:2]
        closes = self.gate_thresholds_ > -np.inf
        factors = np.where(closes, float(self.gate_weight), 1.0) if not all(closes) else np.ones(h)
        if weights is None and np.all(factors == 1.0):
            return None
        return np.outer(factors, np.ones(n) if weights is None else weights).ravel()

    def _coefficients(self) -> Array:
        c, h, n, d = self.coef_.shape
        return self.coef_.reshape(c, h * n, d).transpose(1, 2, 0)

    def _set_coefficients(self, coef: Array, intercept: Array) -> None:
        n, d = self.gate_directions_.shape[1:]
        self.coef_ = np.ascontiguousarray(coef).reshape(len(coef), -1, n, d)  # (c, h, n, d)
        self.intercept_ = np.ascontiguousarray(intercept)
        norms = safe_norm(self.coef_, axis=3)  # (c, h, n)
        self.gate_norms_ = norms.sum(axis=(0, 2))
        self.tokens_ = np.flatnonzero(np.any(norms, axis=(0, 1)))
        per_token = norms.sum(axis=1)
        self.token_norms_ = per_token[0] if len(per_token) == 1 else per_token


def _given_gates(gates: Any, n: int, d: int) -> Gates:
    try:
        directions, thresholds = gates
        drawn = Gates(np.asarray(directions, dtype=float), np.asarray(thresholds, dtype=float))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"gates must be one of {KINDS} or a pair of arrays (directions (h, {n}, {d}), "
            f"thresholds (h,)); got {type(gates).__name__}."
        ) from error
    if drawn.directions.shape[1:] != (n, d) or drawn.thresholds.shape != drawn.directions.shape[:1]:
        raise ValueError(
            f"gates must have directions (h, {n}, {d}) and thresholds (h,) for this X; got shapes "
            f"{drawn.directions.shape} and {drawn.thresholds.shape}."
        )
    if np.any(np.isnan(drawn.directions)) or np.any(np.isnan(drawn.thresholds)):
        raise ValueError("gates contain NaN.")
    return drawn
