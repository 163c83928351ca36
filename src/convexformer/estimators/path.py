"""Solutions for many betas, and the largest beta worth trying."""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from .._names import model_names
from ..problem import Certificate, Problem
from ..problem.points import safe_norm
from ..solvers import Solution, solve_path
from ..solvers.interruption import interruption
from ..solvers.solution import advice
from ._base import ConvexAttention
from ._gated import Gated
from ._validation import Array, check_choice, check_fractions, check_token_weights, time_left
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
        return (
            f"AttentionPath({len(self.betas)} betas from {self.betas[0]:.3g} to "
            f"{self.betas[-1]:.3g} of beta_max={self.beta_max:.4g}; "
            f"{self.n_tokens_used[0]} to {self.n_tokens_used[-1]} of "
            f"{self.coefs.shape[-2]} tokens; "
            f"worst relative gap {self.worst_gap:.1e})"
        )


def attention_path(
    X: Any,
    y: Any,
    *,
    estimator: Any = None,
    betas: Any = None,
    n_betas: int = 40,
    eps: float | None = None,
    sample_weight: Any = None,
    mask: Any = None,
    separators: Any = None,
    task: str = "regression",
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
    on_interrupt: str = "raise",
    verbose: Any = False,
) -> AttentionPath:
    r"""Solve for a decreasing sequence of betas, each started from the last.

    .. math:: \min_{Z, b}\ \sum_i a_i\,\mathrm{loss}\Bigl(\sum_k X_{ik} Z_k + b,\ y_i\Bigr)
              + \beta \sum_k w_k \sum_l \|Z_k[:, l]\|_2

    Parameters
    ----------
    X : array-like of shape (n_samples, n_tokens, n_channels) or (n_samples, n_features)
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
    estimator : ConvexAttention* or ConvexTransformer*, optional
        Whose path to follow, with its settings in place of all that are named below from `task`
        to `max_time`. Gated models have paths this way; the gates are drawn once, by the
        estimator's `random_state`. It is not fitted by this.
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
    task : {"regression", "classification"}, default="regression"
    penalty, loss, huber_delta, fit_intercept, class_weight, token_weights, tokens, n_tokens
        As in :class:`ConvexAttentionRegressor` and :class:`ConvexAttentionClassifier`; `loss` and
        `huber_delta` are for regression, `class_weight` for classification.
    tol : float, default=1e-6
        Relative duality gap at which to stop, for every beta.
    max_iter : int, default=10000
        Most iterations for every beta.
    max_time : float, optional
        Most seconds for the whole path. Betas that are left then have the coefficients of the
        last one, and true certificates, which take two passes over X each.
    on_interrupt : {"raise", "keep"}, default="raise"
        What Ctrl-C does. "raise": KeyboardInterrupt. "keep": the path ends at the beta that was
        being solved, with the best coefficients so far and their true certificate, and warns; a
        second Ctrl-C raises.
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

    Of a gated model:

    >>> from convexformer import ConvexTransformerRegressor
    >>> gated = ConvexTransformerRegressor(n_gates=3, random_state=0)
    >>> attention_path(X, abs(y), estimator=gated, betas=[1.0, 0.5, 0.2]).coefs.shape
    (3, 1, 4, 5, 3)

    Notes
    -----
    A path is of certified solutions: it has no `refit`, and an estimator that asks for one is an
    error. Cross-validation with ``refit=True`` scores a refitted path.
    """
    settings = {
        "task": task,
        "loss": loss,
        "huber_delta": huber_delta,
        "class_weight": class_weight,
        "penalty": penalty,
        "fit_intercept": fit_intercept,
        "token_weights": token_weights,
        "tokens": tokens,
        "n_tokens": n_tokens,
        "tol": tol,
        "max_iter": max_iter,
        "max_time": max_time,
        "on_interrupt": on_interrupt,
    }
    model = _model(estimator, settings, attention_path)
    if eps is None:
        eps = 0.01 if isinstance(model, Gated) else 1e-3
    fractions = check_fractions(betas, n_betas, eps)
    begin = time.perf_counter()
    problem = _problem(model, X, y, sample_weight, mask, separators)
    absolute = (fractions * problem.beta_max).tolist()
    solutions: list[Solution] = []
    with interruption(model.on_interrupt):  # between betas, too
        for solution in solve_path(
            problem,
            absolute,
            tol=model.tol,
            max_iter=model.max_iter,
            max_time=time_left(model.max_time, begin),
            callback=verbose if callable(verbose) else None,
            on_interrupt=model.on_interrupt,
        ):
            solutions.append(solution)
            if verbose and not callable(verbose):
                print(_line(len(solutions), fractions, solution, model._groups_name), flush=True)
    if len(solutions) < len(fractions):
        warnings.warn(
            f"Interrupted: the path ends at beta {len(solutions)} of {len(fractions)}.",
            ConvergenceWarning,
            stacklevel=2,
        )
    result = _collect(model, fractions[: len(solutions)], problem.beta_max, solutions)
    _warn_unless_converged(solutions, result.worst_gap, model.tol)
    return result


def beta_max(
    X: Any,
    y: Any,
    *,
    estimator: Any = None,
    sample_weight: Any = None,
    mask: Any = None,
    separators: Any = None,
    task: str = "regression",
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
    estimator : ConvexAttention* or ConvexTransformer*, optional
        Whose settings to use, as in :func:`attention_path`.
    sample_weight : array-like of shape (n_samples,), optional
    mask : array-like of shape (n_samples, n_tokens), optional
        True where a token is real.
    separators : array-like of shape (n_samples, n_tokens), optional
        True at separators, for ``tokens=Offsets(...)`` with that landmark.
    task : {"regression", "classification"}, default="regression"
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
    settings = {
        "task": task,
        "loss": loss,
        "huber_delta": huber_delta,
        "class_weight": class_weight,
        "penalty": penalty,
        "fit_intercept": fit_intercept,
        "token_weights": token_weights,
        "tokens": tokens,
        "n_tokens": n_tokens,
    }
    model = _model(estimator, settings, beta_max)
    return _problem(model, X, y, sample_weight, mask, separators).beta_max


def _model(estimator: Any, settings: dict[str, Any], asked: Callable[..., Any]) -> ConvexAttention:
    """The estimator whose reading of the data a path shares."""
    if estimator is None:
        return _described(**settings)
    known = inspect.signature(asked).parameters
    given = [name for name, value in settings.items() if repr(value) != repr(known[name].default)]
    if given:
        raise ValueError(
            f"An estimator brings its own settings; got {', '.join(given)} as well. Set them on "
            "the estimator."
        )
    if not isinstance(estimator, ConvexAttention):
        raise ValueError(
            "estimator must be a ConvexAttention* or ConvexTransformer* estimator; got "
            f"{type(estimator).__name__}. Of a pipeline pass the last step, and X as the steps "
            "before it transform it."
        )
    if estimator.refit is not False:
        raise ValueError(
            "A path is of certified solutions and is not refitted: pass "
            "clone(estimator).set_params(refit=False)."
        )
    return clone(estimator)


def _described(
    task: str, loss: str, huber_delta: float, class_weight: Any, **shared: Any
) -> ConvexAttention:
    """The estimator that settings describe."""
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


def _problem(
    model: ConvexAttention, X: Any, y: Any, sample_weight: Any, mask: Any, separators: Any
) -> Problem:
    data = model._read(X, y, sample_weight, mask, separators)
    if isinstance(model, ConvexAttentionRegressor) and np.asarray(y).dtype == bool:
        raise ValueError("y is True or False, which are classes: pass task='classification'.")
    model._prepare(data)
    return model._problem(data)


def _line(number: int, fractions: Array, solution: Solution, what: str) -> str:
    used = np.count_nonzero(np.any(solution.Z, axis=(1, 2)))
    return (
        f"[attention_path] beta {number:3d} of {len(fractions)}  {fractions[number - 1]:8.4f} "
        f"beta_max  {solution.trace[-1].seconds:8.2f} s  "
        f"relative gap {solution.certificate.relative_gap:8.1e}  {used:5d} {what}"
    )


def _collect(
    model: ConvexAttention, fractions: Array, beta_max: float, solutions: list[Solution]
) -> AttentionPath:
    coefs, norms = [], []
    for solution in solutions:
        model._keep(solution)
        coefs.append(model.coef_)
        if isinstance(model, Gated):
            norms.append(safe_norm(model.coef_, axis=-1).sum(axis=(0, 1)))
        else:
            norms.append(safe_norm(solution.Z.reshape(len(solution.Z), -1), axis=1))
    return AttentionPath(
        betas=fractions,
        beta_max=beta_max,
        coefs=np.stack(coefs),
        intercepts=np.stack([solution.intercept for solution in solutions]),
        certificates=[solution.certificate for solution in solutions],
        token_norms=np.stack(norms),
        n_tokens_used=np.count_nonzero(norms, axis=1),
        classes=getattr(model, "classes_", None),
        token_weights=check_token_weights(model.token_weights, len(norms[0])),
        gate_directions=getattr(model, "gate_directions_", None),
        gate_thresholds=getattr(model, "gate_thresholds_", None),
        token_names=model_names(model, len(norms[0]))[0],
    )


def _warn_unless_converged(solutions: list[Solution], worst_gap: float, tol: float) -> None:
    failed = sum(not solution.converged for solution in solutions)
    if failed:
        warnings.warn(
            f"{failed} of {len(solutions)} betas stopped above tol={tol:g}; the worst relative "
            f"duality gap is {worst_gap:.1e}. The certificates hold the true gaps. "
            f"{advice(solution.status for solution in solutions)}",
            ConvergenceWarning,
            stacklevel=3,
        )
