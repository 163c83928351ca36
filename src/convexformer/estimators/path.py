"""Solutions for many betas, and the largest beta worth trying."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from .._names import model_names
from ..problem import Certificate
from ..problem.norms import safe_norm
from ..solvers import Solution, solve_path
from ..solvers.solution import Clock, advice, interruption
from ._parameters import read_fractions, read_token_weights
from ._reading import Array, warn
from .attention import ConvexAttention
from .transformer import Gated


@dataclass(frozen=True)
class AttentionPath:
    """Certified solutions for decreasing betas.

    Attributes
    ----------
    betas : ndarray of shape (B,)
        Fractions of `beta_max`, decreasing.
    beta_max : float
        Smallest absolute beta at which ``Z = 0``; ``betas * beta_max`` are the absolute betas.
    coefs : ndarray of shape (B, c, n, d), or (B, c, gates, n, d) of a gated model
    intercepts : ndarray of shape (B, c)
    certificates : list of Certificate
        One per beta.
    token_norms : ndarray of shape (B, n)
        Euclidean norm of every token's coefficients, over all outputs; of a gated model, the sum
        over gates and outputs.
    n_tokens_used : ndarray of int of shape (B,)
        Tokens with coefficients other than zero.
    classes : ndarray of shape (n_classes,), or None for regression
    token_weights : ndarray of shape (n,), or None
        Penalty weights of the tokens, where they have any.
    gate_directions, gate_thresholds : ndarray of shape (gates, n, d) and (gates,), or None
        The gates of a gated model, the same at every beta; one that is always open has threshold
        ``-inf``.
    token_names : list of str, or None
        Names of the tokens, of offsets and tables: ``-1``, ``0``, ``first``; names of columns.
    """

    betas: Array
    beta_max: float
    coefs: Array
    intercepts: Array
    certificates: list[Certificate]
    token_norms: Array
    n_tokens_used: NDArray[np.intp]
    classes: NDArray | None = None
    token_weights: Array | None = None
    gate_directions: Array | None = None
    gate_thresholds: Array | None = None
    token_names: list[str] | None = None

    @property
    def worst_gap(self) -> float:
        """Largest relative duality gap on the path."""
        return max(float(certificate.relative_gap) for certificate in self.certificates)

    @property
    def weighted_norms(self) -> Array:
        """`token_norms` times `token_weights`: what can be compared between tokens, ``(B, n)``."""
        weights = self.token_weights
        return self.token_norms if weights is None else self.token_norms * weights

    def __repr__(self) -> str:
        first, last = self.n_tokens_used[[0, -1]]
        return (
            f"AttentionPath({len(self.betas)} betas from {self.betas[0]:.3g} to "
            f"{self.betas[-1]:.3g} of beta_max={self.beta_max:.4g}; {first} to {last} of "
            f"{self.coefs.shape[-2]} tokens; worst relative gap {self.worst_gap:.1e})"
        )


def attention_path(
    estimator: Any,
    X: Any,
    y: Any = None,
    *,
    betas: Any = None,
    n_betas: int = 40,
    eps: float | None = None,
    sample_weight: Any = None,
    mask: Any = None,
    separators: Any = None,
) -> AttentionPath:
    r"""Solve for a decreasing sequence of betas, each started from the last.

    Parameters
    ----------
    estimator : ConvexAttention* or ConvexTransformer*
        Whose path to follow: its loss, penalty and settings, but for `beta` (`betas`). It is not
        fitted by this. `max_iter` is for every beta and `max_time` for the whole path: betas that
        are left then have the coefficients of the last one, and true certificates, which take two
        passes over X each. ``on_interrupt="keep"`` ends the path at the beta that was being solved,
        and warns. ``verbose=True`` prints a line per beta; a callable receives every iteration of
        every beta. Gates are drawn once.
    X : array-like of shape (n_samples, n_tokens, n_channels) or (n_samples, n_features)
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
    betas : array-like of shape (B,), optional
        Fractions of beta_max; sorted in decreasing order. If omitted, `n_betas` of them from 1 to
        `eps`, geometrically.
    n_betas : int, default=40
    eps : float, optional
        1e-3 if omitted; 0.01 for gated models, where weak penalties cost more.
    sample_weight : array-like of shape (n_samples,), optional
    mask : array-like of shape (n_samples, n_tokens), optional
        True where a token is real.
    separators : array-like of shape (n_samples, n_tokens), optional
        True at separators, for ``tokens=Offsets(...)`` with that landmark.

    Returns
    -------
    AttentionPath

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer import ConvexAttentionRegressor, attention_path
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 5, 3))
    >>> y = 3 * X[:, 4, 0] + X[:, 1, 2] + 0.1 * rng.normal(size=100)
    >>> path = attention_path(ConvexAttentionRegressor(), X, y, betas=[1.0, 0.5, 0.2])
    >>> path.n_tokens_used
    array([0, 1, 2])
    >>> path.worst_gap <= 1e-6
    True

    Of a gated model:

    >>> from convexformer import ConvexTransformerRegressor
    >>> gated = ConvexTransformerRegressor(n_gates=3, random_state=0)
    >>> attention_path(gated, X, abs(y), betas=[1.0, 0.5, 0.2]).coefs.shape
    (3, 1, 4, 5, 3)

    Notes
    -----
    A path is of certified solutions: it has no `refit`, and an estimator that asks for one is an
    error. Cross-validation with ``refit=True`` scores a refitted path.
    """
    model = _copy(estimator)
    if eps is None:
        eps = 0.01 if isinstance(model, Gated) else 1e-3
    fractions = read_fractions(betas, n_betas, eps)
    clock = Clock(model.max_iter, model.max_time)
    data = model._read(X, y, sample_weight, mask, separators)
    problem = model._prepared_problem(data)
    solutions: list[Solution] = []
    with interruption(model.on_interrupt):  # between betas, too
        for solution in solve_path(
            problem,
            (fractions * problem.beta_max).tolist(),
            callback=model.verbose if callable(model.verbose) else None,
            on_interrupt=model.on_interrupt,
            **model._limits(clock),
        ):
            solutions.append(solution)
            if model.verbose and not callable(model.verbose):
                point, k = solution.trace[-1], len(solutions)
                print(
                    f"[attention_path] beta {k:3d} of {len(fractions)}  {fractions[k - 1]:8.4f} "
                    f"beta_max  {point.seconds:8.2f} s  relative gap {point.relative_gap:8.1e}  "
                    f"{point.n_active:5d} {model._groups_name}",
                    flush=True,
                )
    if len(solutions) < len(fractions):
        warn(
            f"Interrupted: the path ends at beta {len(solutions)} of {len(fractions)}.",
            ConvergenceWarning,
        )
    result = _path_of(model, fractions[: len(solutions)], problem.beta_max, solutions)
    failed = sum(not solution.converged for solution in solutions)
    if failed:
        warn(
            f"{failed} of {len(solutions)} betas stopped above tol={model.tol:g}; the worst "
            f"relative duality gap is {result.worst_gap:.1e}. The certificates hold the true gaps. "
            f"{advice(solution.status for solution in solutions)}",
            ConvergenceWarning,
        )
    return result


def beta_max(
    estimator: Any,
    X: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    mask: Any = None,
    separators: Any = None,
) -> float:
    r"""Smallest absolute beta at which the optimum uses no token.

    .. math:: \beta_{\max} = \max_{k, l} \|X_k^\top V[:, l]\|_2 / w_k

    with :math:`V = -\mathrm{loss}'` at the best constant prediction (for ``penalty="token"``, the
    Frobenius norm over all outputs). It is 0 for constant targets or X all zero.

    Parameters
    ----------
    estimator : ConvexAttention* or ConvexTransformer*
        Whose loss, penalty and settings to use. It is not fitted by this.
    X : array-like of shape (n_samples, n_tokens, n_channels) or (n_samples, n_features)
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
    sample_weight : array-like of shape (n_samples,), optional
    mask : array-like of shape (n_samples, n_tokens), optional
        True where a token is real.
    separators : array-like of shape (n_samples, n_tokens), optional
        True at separators, for ``tokens=Offsets(...)`` with that landmark.

    Returns
    -------
    float

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer import ConvexAttentionRegressor, beta_max
    >>> X = np.array([[[1.0]], [[-1.0]]])
    >>> beta_max(ConvexAttentionRegressor(), X, [3.0, 1.0])
    2.0
    """
    model = _copy(estimator)
    data = model._read(X, y, sample_weight, mask, separators)
    return model._prepared_problem(data).beta_max


def _copy(estimator: Any) -> ConvexAttention:
    """A copy, which may be changed."""
    if not isinstance(estimator, ConvexAttention):
        raise ValueError(
            "A path takes a ConvexAttention* or ConvexTransformer* estimator first; got "
            f"{type(estimator).__name__}. Of a pipeline pass the last step, and X transformed."
        )
    if estimator.refit is not False:
        raise ValueError(
            "A path is of certified solutions and is not refitted: pass "
            "clone(estimator).set_params(refit=False)."
        )
    model = copy.copy(estimator)
    if isinstance(model, Gated):  # to draw gates uses up a RandomState
        model.random_state = copy.deepcopy(model.random_state)
    return model


def _path_of(
    model: ConvexAttention, fractions: Array, beta_max: float, solutions: list[Solution]
) -> AttentionPath:
    models = [copy.copy(model)._keep(solution) for solution in solutions]
    of_outputs = np.stack([np.atleast_2d(each.token_norms_) for each in models])  # (B, c, n)
    norms = of_outputs.sum(axis=1) if isinstance(model, Gated) else safe_norm(of_outputs, axis=1)
    n = norms.shape[1]
    return AttentionPath(
        betas=fractions,
        beta_max=beta_max,
        coefs=np.stack([each.coef_ for each in models]),
        intercepts=np.stack([solution.intercept for solution in solutions]),
        certificates=[solution.certificate for solution in solutions],
        token_norms=norms,
        n_tokens_used=np.count_nonzero(norms, axis=1),
        classes=getattr(model, "classes_", None),
        token_weights=read_token_weights(model.token_weights, n),
        gate_directions=getattr(model, "gate_directions_", None),
        gate_thresholds=getattr(model, "gate_thresholds_", None),
        token_names=model_names(model, n)[0],
    )
