"""Solutions for many betas, and the largest beta worth trying."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from ..problem import Certificate
from ..problem.penalties import safe_norm
from ..solvers import Solution, solve_path
from ._base import ConvexAttention
from ._validation import Array, check_choice, check_fractions
from .attention import ConvexAttentionClassifier, ConvexAttentionRegressor


@dataclass(frozen=True)
class AttentionPath:
    """Certified solutions for decreasing betas.

    Attributes
    ----------
    betas : ndarray of shape (B,)
        Fractions of `beta_max`, decreasing.
    beta_max : float
        Smallest absolute beta at which ``Z = 0``; ``betas * beta_max`` are the absolute betas.
    coefs : ndarray of shape (B, c, n, d)
    intercepts : ndarray of shape (B, c)
    certificates : list of Certificate
        One per beta.
    token_norms : ndarray of shape (B, n)
        Euclidean norm of every token's coefficients, over all outputs.
    n_tokens_used : ndarray of int of shape (B,)
        Tokens with coefficients other than zero.
    classes : ndarray of shape (n_classes,), or None for regression
    """

    betas: Array
    beta_max: float
    coefs: Array
    intercepts: Array
    certificates: list[Certificate]
    token_norms: Array
    n_tokens_used: NDArray[np.intp]
    classes: NDArray | None = None

    @property
    def worst_gap(self) -> float:
        """Largest relative duality gap on the path."""
        return max(float(certificate.relative_gap) for certificate in self.certificates)

    def __repr__(self) -> str:
        return (
            f"AttentionPath({len(self.betas)} betas from {self.betas[0]:.3g} to "
            f"{self.betas[-1]:.3g} of beta_max={self.beta_max:.4g}; "
            f"{self.n_tokens_used[0]} to {self.n_tokens_used[-1]} of {self.coefs.shape[2]} tokens; "
            f"worst relative gap {self.worst_gap:.1e})"
        )


def attention_path(
    X: Any,
    y: Any,
    *,
    task: str = "regression",
    betas: Any = None,
    n_betas: int = 40,
    eps: float = 1e-3,
    sample_weight: Any = None,
    mask: Any = None,
    separators: Any = None,
    penalty: str = "token-output",
    loss: str = "squared",
    huber_delta: float = 1.35,
    fit_intercept: bool = True,
    class_weight: Any = None,
    token_weights: Any = None,
    tokens: Any = "absolute",
    n_tokens: int | None = None,
    tol: float = 1e-6,
    max_iter: int = 10_000,
    max_time: float | None = None,
    verbose: Any = False,
) -> AttentionPath:
    r"""Solve for a decreasing sequence of betas, each started from the last.

    .. math:: \min_{Z, b}\ \sum_i a_i\,\mathrm{loss}\Bigl(\sum_k X_{ik} Z_k + b,\ y_i\Bigr)
              + \beta \sum_k w_k \sum_l \|Z_k[:, l]\|_2

    Parameters
    ----------
    X : array-like of shape (n_samples, n_tokens, n_channels) or (n_samples, n_features)
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
    task : {"regression", "classification"}, default="regression"
    betas : array-like of shape (B,), optional
        Fractions of beta_max; sorted in decreasing order. If omitted, `n_betas` of them from 1 to
        `eps`, geometrically.
    n_betas : int, default=40
    eps : float, default=1e-3
    sample_weight : array-like of shape (n_samples,), optional
    mask : array-like of shape (n_samples, n_tokens), optional
        True where a token is real.
    separators : array-like of shape (n_samples, n_tokens), optional
        True at separators, for ``tokens=Offsets(...)`` with that landmark.
    penalty, loss, huber_delta, fit_intercept, class_weight, token_weights, tokens, n_tokens
        As in :class:`ConvexAttentionRegressor` and :class:`ConvexAttentionClassifier`; `loss` and
        `huber_delta` are for regression, `class_weight` for classification.
    tol : float, default=1e-6
        Relative duality gap at which to stop, for every beta.
    max_iter : int, default=10000
        Most iterations for every beta.
    max_time : float, optional
        Most seconds for the whole path.
    verbose : bool or callable, default=False
        True prints a line per beta; a callable receives every iteration of every beta instead, as a
        named tuple ``(iteration, seconds, relative_gap, n_active)``.

    Returns
    -------
    AttentionPath

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer import attention_path
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 5, 3))
    >>> y = 3 * X[:, 4, 0] + X[:, 1, 2] + 0.1 * rng.normal(size=100)
    >>> path = attention_path(X, y, betas=[1.0, 0.5, 0.2])
    >>> path.n_tokens_used
    array([0, 1, 2])
    >>> path.worst_gap <= 1e-6
    True
    """
    shared = {
        "penalty": penalty,
        "fit_intercept": fit_intercept,
        "token_weights": token_weights,
        "tokens": tokens,
        "n_tokens": n_tokens,
        "tol": tol,
        "max_iter": max_iter,
        "max_time": max_time,
    }
    model = _model(task, loss, huber_delta, class_weight, shared)
    fractions = check_fractions(betas, n_betas, eps)
    problem = model._problem(model._read(X, y, sample_weight, mask, separators))
    solutions: list[Solution] = []
    for solution in solve_path(
        problem,
        (fractions * problem.beta_max).tolist(),
        tol=tol,
        max_iter=max_iter,
        max_time=max_time,
        callback=verbose if callable(verbose) else None,
    ):
        solutions.append(solution)
        if verbose and not callable(verbose):
            print(_line(len(solutions), fractions, solution), flush=True)
    result = _collect(fractions, problem.beta_max, solutions, getattr(model, "classes_", None))
    _warn_unless_converged(solutions, result.worst_gap, tol)
    return result


def beta_max(
    X: Any,
    y: Any,
    *,
    task: str = "regression",
    sample_weight: Any = None,
    mask: Any = None,
    separators: Any = None,
    penalty: str = "token-output",
    loss: str = "squared",
    huber_delta: float = 1.35,
    fit_intercept: bool = True,
    class_weight: Any = None,
    token_weights: Any = None,
    tokens: Any = "absolute",
    n_tokens: int | None = None,
) -> float:
    r"""Smallest absolute beta at which the optimum uses no token.

    .. math:: \beta_{\max} = \max_{k, l} \|X_k^\top V[:, l]\|_2 / w_k

    with :math:`V = -\mathrm{loss}'` at the best constant prediction (for ``penalty="token"``, the
    Frobenius norm over all outputs). It is 0 for constant targets or X all zero.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_tokens, n_channels) or (n_samples, n_features)
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
    task : {"regression", "classification"}, default="regression"
    sample_weight : array-like of shape (n_samples,), optional
    mask : array-like of shape (n_samples, n_tokens), optional
        True where a token is real.
    separators : array-like of shape (n_samples, n_tokens), optional
        True at separators, for ``tokens=Offsets(...)`` with that landmark.
    penalty, loss, huber_delta, fit_intercept, class_weight, token_weights, tokens, n_tokens
        As in :func:`attention_path`.

    Returns
    -------
    float

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer import beta_max
    >>> X = np.array([[[1.0]], [[-1.0]]])
    >>> beta_max(X, [3.0, 1.0])
    2.0
    """
    shared = {
        "penalty": penalty,
        "fit_intercept": fit_intercept,
        "token_weights": token_weights,
        "tokens": tokens,
        "n_tokens": n_tokens,
    }
    model = _model(task, loss, huber_delta, class_weight, shared)
    return model._problem(model._read(X, y, sample_weight, mask, separators)).beta_max


def _model(
    task: str, loss: str, huber_delta: float, class_weight: Any, shared: dict[str, Any]
) -> ConvexAttention:
    """The estimator whose reading of the data a path shares."""
    check_choice("task", task, ("regression", "classification"))
    if task == "classification":
        if loss != "squared":
            raise ValueError(
                f"loss={loss!r} is for task='regression'; classification has a loss of its own. "
                "Leave it out."
            )
        return ConvexAttentionClassifier(class_weight=class_weight, **shared)
    if class_weight is not None:
        raise ValueError("class_weight is for task='classification'. Use sample_weight instead.")
    return ConvexAttentionRegressor(loss=loss, huber_delta=huber_delta, **shared)


def _line(number: int, fractions: Array, solution: Solution) -> str:
    used = np.count_nonzero(np.any(solution.Z, axis=(1, 2)))
    return (
        f"[attention_path] beta {number:3d} of {len(fractions)}  {fractions[number - 1]:8.4f} "
        f"beta_max  {solution.trace[-1].seconds:8.2f} s  "
        f"relative gap {solution.certificate.relative_gap:8.1e}  {used:5d} tokens"
    )


def _collect(
    fractions: Array, beta_max: float, solutions: list[Solution], classes: NDArray | None
) -> AttentionPath:
    Z = np.stack([solution.Z for solution in solutions])  # (B, n, d, c)
    norms = safe_norm(Z.reshape(*Z.shape[:2], -1), axis=2)
    return AttentionPath(
        betas=fractions,
        beta_max=beta_max,
        coefs=np.ascontiguousarray(Z.transpose(0, 3, 1, 2)),
        intercepts=np.stack([solution.intercept for solution in solutions]),
        certificates=[solution.certificate for solution in solutions],
        token_norms=norms,
        n_tokens_used=np.count_nonzero(norms, axis=1),
        classes=classes,
    )


def _warn_unless_converged(solutions: list[Solution], worst_gap: float, tol: float) -> None:
    failed = sum(not solution.converged for solution in solutions)
    if failed:
        warnings.warn(
            f"{failed} of {len(solutions)} betas stopped above tol={tol:g}; the worst relative "
            f"duality gap is {worst_gap:.1e}. The certificates hold the true gaps. Raise max_iter "
            "or max_time, scale X (TokenScaler), or accept the gap with a larger tol.",
            ConvergenceWarning,
            stacklevel=3,
        )
