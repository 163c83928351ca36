"""Constructor parameters of estimators: declared, documented and checked once.

A parameter is a field of the class that it belongs to, with its default, and has its entry in the
docstring of that class. `estimator` builds the constructor and the docstring of a public class from
those of its bases. `CHECKS` says which values are valid.
"""

from __future__ import annotations

import inspect
import numbers
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeVar, dataclass_transform

import numpy as np
from sklearn.metrics import get_scorer_names

from ..problem import PENALTIES, Offsets
from ..problem.sequence import ATTENTION
from ..solvers.solution import ON_INTERRUPT
from ._reading import Array, as_numpy

Class = TypeVar("Class", bound=type)
Check = Callable[[str, Any], object]  # raises a ValueError

HEADING = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
ENTRY = re.compile(r"^(?=\S)", re.MULTILINE)
GATES = ("axis", "pairs", "gaussian")


# Constructor and documentation ----------------------------------------------------------------


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def parameters(kind: Class) -> Class:
    """Make the annotated fields of a class, and those of its bases, parameters of its constructor.

    Bases without this decorator declare no parameters: they are the place for fitted attributes.
    """
    made: Any = dataclass(kind, eq=False, repr=False, match_args=False, kw_only=True)
    constructor = made.__init__
    signature = inspect.signature(constructor)
    order = ["self", *(name for base in kind.__mro__ for name in _fields(base))]
    listed = sorted(
        signature.parameters.values(),
        key=lambda parameter: (parameter.kind, order.index(parameter.name)),
    )
    constructor.__signature__ = signature.replace(parameters=listed)
    return kind


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def estimator(kind: Class) -> Class:
    """As `parameters`, and document all parameters and attributes of the class and its bases.

    Examples
    --------
    >>> from convexformer.estimators._parameters import estimator, parameters
    >>> @parameters
    ... class Base:
    ...     '''Parameters
    ...     ----------
    ...     tol : float, default=0.1
    ...         When to stop.
    ...     '''
    ...     tol: float = 0.1
    >>> @estimator
    ... class Mean(Base):
    ...     '''The mean.'''
    >>> Mean(tol=1.0).tol
    1.0
    >>> print(Mean.__doc__)
    The mean.
    <BLANKLINE>
    Parameters
    ----------
    tol : float, default=0.1
        When to stop.
    """
    kind = parameters(kind)
    if kind.__doc__:  # python -OO leaves none
        kind.__doc__ = _documentation(kind)
    return kind


def _fields(kind: type) -> Iterator[str]:
    """Parameters that a class declares itself."""
    if "__dataclass_fields__" in vars(kind):
        yield from inspect.get_annotations(kind)


def _documentation(kind: type) -> str:
    """A numpydoc docstring: the class's own, with the entries and notes of its bases.

    Where several describe the same name, the first in the method resolution order is taken.
    """
    own = sections(kind)
    found = [sections(base) for base in kind.__mro__]
    described = entries(*(of.get("Parameters", "") for of in found))
    wanted = list(inspect.signature(kind).parameters)
    own["Parameters"] = _listed(described[name] for name in wanted if name in described)
    own["Attributes"] = _listed(entries(*(of.get("Attributes", "") for of in found)).values())
    own["Notes"] = "\n\n".join(of["Notes"] for of in found if "Notes" in of)
    parts = [own[""]]
    for title in ("Parameters", "Attributes", "See Also", "Notes", "Examples"):
        if own.get(title):
            parts.append(f"{title}\n{'-' * len(title)}\n{own[title]}")
    return "\n\n".join(parts)


def sections(kind: type) -> dict[str, str]:
    """Text of every section of a class's own docstring; what comes first has no title."""
    text = inspect.cleandoc(vars(kind).get("__doc__") or "")
    ours = kind.__module__.startswith(__package__) or "__dataclass_fields__" in vars(kind)
    opening, *rest = HEADING.split(text if ours else "")
    pairs = zip(rest[::2], rest[1::2], strict=True)
    return {"": opening.strip()} | {title: body.strip("\n") for title, body in pairs}


def entries(*bodies: str) -> dict[str, str]:
    """Entries of numpydoc sections by the names they describe, of the first that names them."""
    found: dict[str, str] = {}
    for body in bodies:
        for entry in ENTRY.split(body)[1:]:
            header = entry.split("\n", 1)[0].partition(" : ")[0]
            for name in header.split(", "):
                found.setdefault(name.strip(), entry.rstrip())
    return found


def _listed(texts: Any) -> str:
    return "\n".join(dict.fromkeys(texts))  # several names may share an entry


# Valid values ---------------------------------------------------------------------------------


def check_parameters(model: Any) -> None:
    """Raise where a parameter of an estimator has a value that `CHECKS` excludes."""
    for name, value in model.get_params(deep=False).items():
        if name in CHECKS:
            CHECKS[name](name, value)


def one_of(*choices: Any) -> Check:
    """A check for one of `choices`."""

    def check(name: str, value: Any) -> None:
        if not any(isinstance(value, type(choice)) and value == choice for choice in choices):
            listed = ", ".join(map(repr, choices))
            raise ValueError(f"{name} must be one of {listed}; got {value!r}.")

    return check


def boolean(name: str, value: Any) -> None:
    """Raise unless `value` is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False; got {value!r}.")


def positive(hint: str = "", *, optional: bool = False) -> Check:
    """A check for a positive finite number (or None, where `optional`)."""

    def check(name: str, value: Any) -> None:
        real = isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))
        if (value is not None or not optional) and not (real and np.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be a positive number; got {value!r}. {hint}".rstrip())

    return check


def count(*, optional: bool = False) -> Check:
    """A check for a whole number >= 1 (or None, where `optional`)."""

    def check(name: str, value: Any) -> None:
        whole = isinstance(value, numbers.Integral) and not isinstance(value, (bool, np.bool_))
        if (value is not None or not optional) and not (whole and value >= 1):
            raise ValueError(f"{name} must be a whole number, at least 1; got {value!r}.")

    return check


def _beta(name: str, value: Any) -> None:
    if isinstance(value, numbers.Real) and value == 0:
        raise ValueError(
            "beta=0 removes the penalty and with it the certificate; use a small beta such as 1e-4."
        )
    positive("By default it is a fraction of beta_max.")(name, value)


def _eps(name: str, value: Any) -> None:
    positive("It is the smallest beta as a fraction of beta_max.")(name, value)
    if value >= 1:
        raise ValueError(f"eps must be below 1, the fraction the path starts from; got {value}.")


def unless(excepted: Callable[[Any], bool], check: Check) -> Check:
    """`check`, but for values that are `excepted`."""
    return lambda name, value: None if excepted(value) else check(name, value)


def _gates(name: str, value: Any) -> None:
    if isinstance(value, str) and value not in GATES:
        raise ValueError(
            f"gates must be one of {GATES} or a pair of arrays (directions (h, n, d), "
            f"thresholds (h,)); got {value!r}."
        )


def _scoring(name: str, value: Any) -> None:
    if not (value is None or isinstance(value, str) or callable(value)):
        raise ValueError(
            "scoring must be the name of one scikit-learn scorer, a callable or None; got "
            f"{value!r}."
        )
    known = get_scorer_names()
    if isinstance(value, str) and value not in known:
        near = get_close_matches(value, known, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(
            f"scoring={value!r} is no scorer of scikit-learn; {hint}"
            "sklearn.metrics.get_scorer_names() lists them all."
        )


CHECKS: dict[str, Check] = {
    "beta": _beta,
    "beta_scale": one_of("relative", "absolute"),
    "betas": lambda _, value: value is None or read_fractions(value, None, None),
    "n_betas": count(),
    "eps": _eps,
    "selection": one_of("best", "one-standard-error"),
    "scoring": _scoring,
    "penalty": one_of(*PENALTIES),
    "attention": one_of(*ATTENTION),
    "loss": one_of("squared", "huber", "poisson"),
    "huber_delta": positive("It is in units of y."),
    "fit_intercept": boolean,
    "refit": unless(
        lambda value: isinstance(value, (bool, np.bool_)),
        positive(
            "It is the strength of the ridge. Or use True, which chooses it, or False, for no "
            "refit."
        ),
    ),
    "class_weight": unless(
        lambda value: value is None or isinstance(value, dict), one_of("balanced")
    ),
    "tokens": unless(lambda value: isinstance(value, Offsets), one_of("absolute", Offsets(-4, 4))),
    "n_tokens": count(optional=True),
    "n_gates": count(),
    "gates": _gates,
    "open_gate": boolean,
    "gate_weight": positive("1 penalises all gates alike."),
    "tol": positive("It is the relative duality gap at which to stop."),
    "max_iter": count(),
    "max_time": positive("It is in seconds.", optional=True),
    "on_interrupt": one_of(*ON_INTERRUPT),
    "warm_start": boolean,
    "per": one_of("channel", "token-channel"),
    "with_mean": boolean,
    "with_std": boolean,
    "epsilon": positive("It keeps the logarithm of the variance finite."),
}
"""Check of every parameter whose validity does not depend on the data."""


# Parameters that are arrays -------------------------------------------------------------------


def read_fractions(betas: Any, n_betas: Any, eps: Any) -> Array:
    """Fractions of beta_max in decreasing order: those given, or ``1 ... eps`` geometrically."""
    if betas is None:
        CHECKS["n_betas"]("n_betas", n_betas)
        CHECKS["eps"]("eps", eps)
        return np.geomspace(1.0, eps, n_betas)
    fractions = np.asarray(as_numpy(betas, "betas"), dtype=np.float64)
    if fractions.ndim != 1 or len(fractions) == 0:
        raise ValueError(f"betas must be a non-empty vector, got shape {fractions.shape}.")
    if not np.all(np.isfinite(fractions) & (fractions > 0)):
        raise ValueError(
            "betas must be positive finite fractions of beta_max; beta=0 removes the penalty and "
            f"with it the certificate. Use a small one such as 1e-4. Got {fractions.tolist()}."
        )
    return np.unique(fractions)[::-1]


def read_token_weights(token_weights: Any, n_tokens: int) -> Array | None:
    """One positive penalty factor per token."""
    if token_weights is None:
        return None
    weights = np.asarray(as_numpy(token_weights, "token_weights"), dtype=np.float64)
    if weights.shape != (n_tokens,):
        raise ValueError(
            f"token_weights must have one factor per token, shape ({n_tokens},), got "
            f"{weights.shape}."
        )
    if not np.all(np.isfinite(weights) & (weights > 0)):
        raise ValueError(
            "token_weights must be positive finite numbers. To leave a token out, mask it or drop "
            "it from X."
        )
    return weights
