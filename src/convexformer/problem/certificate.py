"""The proof that comes with every fit."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Certificate:
    r"""A primal value and a dual bound: no model of the class has an objective below `dual`.

    Attributes
    ----------
    primal : float
        Objective of the model, :math:`P(Z) \ge 0`.
    dual : float
        A lower bound on the objective of *every* model, :math:`D(V) \le \min P`.
    beta : float
        Penalty strength (absolute).
    beta_max : float
        Smallest penalty strength at which the optimum is ``Z = 0``.
    negligible : float
        Gap that counts as none: what rounding of the intercept leaves of an objective whose
        minimum is zero (constant counts under a Poisson loss).

    Notes
    -----
    Both values carry a bound on their own rounding: in exact arithmetic, for the data and the
    coefficients as they are, ``dual <= minimum <= objective <= primal``.

    Examples
    --------
    >>> from convexformer import Certificate
    >>> certificate = Certificate(primal=2.0, dual=1.999999, beta=0.5, beta_max=5.0)
    >>> f"{certificate.relative_gap:.1e}"
    '5.0e-07'
    """

    primal: float
    dual: float
    beta: float
    beta_max: float
    negligible: float = 0.0

    @property
    def gap(self) -> float:
        """``primal - dual``."""
        return self.primal - self.dual

    @property
    def relative_gap(self) -> float:
        """``gap / primal``, with 0 / 0 = 0 (a perfect fit of constant targets)."""
        if 0 <= self.gap <= self.negligible:
            return 0.0
        return self.gap / self.primal if self.primal > 0 else self.gap

    def to_dict(self) -> dict[str, float]:
        """All figures, for JSON."""
        return asdict(self) | {"gap": self.gap, "relative_gap": self.relative_gap}

    def __repr__(self) -> str:
        return (
            f"Certificate(primal={self.primal:.9g}, dual={self.dual:.9g}, "
            f"relative_gap={self.relative_gap:.1e}, beta={self.beta:.4g}, "
            f"beta_max={self.beta_max:.4g})"
        )


def check_range(size: float) -> float:
    """`size` of numbers, where float64 has room for their squares."""
    if size == 0 or 1e-150 < size < 1e150:
        return size
    raise ValueError(
        f"X, the targets or their products are of the size {size:.1g}: squares of such numbers "
        "leave the range of float64. Scale X or y."
    )
