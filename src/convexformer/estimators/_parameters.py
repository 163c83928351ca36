"""Constructor parameters of estimators: declared, documented and checked once.

A parameter is a field of the class that it belongs to, with its default, and has its entry in the
docstring of that class. `estimator` builds the constructor and the docstring of a public class from
those of its bases. `CHECKS` says which values are valid.
"""

from __future__ import annotations

import inspect
import numbers
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, dataclass_transform

import numpy as np
from sklearn.metrics import get_scorer_names

from ..problem import PENALTIES, Offsets
from ..problem.sequence import ATTENTION
from ..solvers.solution import ON_INTERRUPT
from ._reading import Array, as_numpy

Class = TypeVar("Class", bound=type)

HEADING = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
ENTRY = re.compile(r"^(?=\S)", re.MULTILINE)


# Constructor and documentation ----------------------------------------------------------------


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def parameters(kind: Class) -> Class:
    """Make the annotated fields of a class, and those of its bases, parameters of its constructor.

    Bases without this decorator declare no parameters: they are the place for fitted attributes.
    """
    made: Any = dataclass(kind, eq=False, repr=False, match_args=False, kw_only=True)
    constructor = made.__init__
    signature = inspect.signature(constructor)
    order = ["self", *(name for base in kind.__mro__ for name in inspect.get_annotations(base))]
    listed = sorted(signature.parameters.values(), key=lambda p: (p.kind, order.index(p.name)))
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


def _documentation(kind: type) -> str:
    """A numpydoc docstring: the class's own, with the entries and notes of its bases.

    Where several describe the same name, the first in the method resolution order is taken.
    """
    found = [sections(base) for base in kind.__mro__]
    described = entries(*(of.get("Parameters", "") for of in found))
    attributes = entries(*(of.get("Attributes", "") for of in found))
    wanted = [described[name] for name in inspect.signature(kind).parameters if name in described]
    own = found[0] | {
        "Parameters": "\n".join(dict.fromkeys(wanted)),  # several names may share an entry
        "Attributes": "\n".join(dict.fromkeys(attributes.values())),
        "Notes": "\n\n".join(of["Notes"] for of in found if "Notes" in of),
    }
    order = ("Parameters", "Attributes", "See Also", "Notes", "Examples")
    parts = [f"{title}\n{'-' * len(title)}\n{own[title]}" for title in order if own.get(title)]
    return "\n\n".join([own[""], *parts])


def sections(kind: type) -> dict[str, str]:
    """Text of every section of a class's own docstring; what comes first has no title."""
    ours = not kind.__module__.startswith("sklearn.")
    text = inspect.cleandoc(vars(kind).get("__doc__") or "") if ours else ""
    opening, *rest = HEADING.split(text)
    pairs = zip(rest[::2], rest[1::2], strict=True)
    return {"": opening.strip()} | {title: body.strip("\n") for title, body in pairs}


def entries(*bodies: str) -> dict[str, str]:
    """Entries of numpydoc sections by the names they describe, of the first that names them."""
    found: dict[str, str] = {}
    for entry in ENTRY.split("\n".join(bodies)):
        header = entry.split("\n", 1)[0].partition(" : ")[0]
        for name in header.split(", ") if header else ():
            found.setdefault(name.strip(), entry.rstrip())
    return found


# Valid values ---------------------------------------------------------------------------------


class Check(NamedTuple):
    """Which values are valid, in code and in words."""

    valid: Callable[[Any], Any]
    words: str


def check_parameters(model: Any) -> None:
    """Raise where a parameter of an estimator has a value that `CHECKS` excludes."""
    for name, value in model.get_params(deep=False).items():
        check_parameter(name, value)


def check_parameter(name: str, value: Any) -> None:
    """Raise unless `value` is one of those that `CHECKS` allows."""
    allowed = CHECKS.get(name, (value,))
    if not any(_is_valid(value, by) for by in allowed):
        *others, last = (by.words if isinstance(by, Check) else _named(by) for by in allowed)
        words = f"{', '.join(others)} or {last}" if others else last
        raise ValueError(f"{name} must be {words}; got {value!r}.")


def _is_valid(value: Any, by: Any) -> bool:
    if isinstance(by, Check):
        return bool(by.valid(value))
    if isinstance(by, type):
        return isinstance(value, by)
    return value is by or (isinstance(value, (str, np.bool_)) and value == by)


def _named(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else repr(value)


def is_boolean(value: Any) -> bool:
    """Whether `value` is True or False."""
    return isinstance(value, (bool, np.bool_))


def is_positive(value: Any) -> bool:
    """Whether `value` is a positive finite number."""
    real = isinstance(value, numbers.Real) and not is_boolean(value)
    return real and bool(np.isfinite(value) and value > 0)


def are_positive(values: Any) -> bool:
    """Whether `values` is a vector of positive finite numbers, which is not empty."""
    vector = np.asarray(as_numpy(values, "values"), dtype=np.float64)
    return vector.ndim == 1 and vector.size > 0 and bool(np.all(np.isfinite(vector) & (vector > 0)))


POSITIVE = Check(is_positive, "a positive number")
COUNT = Check(
    lambda value: isinstance(value, numbers.Integral) and not is_boolean(value) and int(value) > 0,
    "a whole number, at least 1",
)
BETA = Check(
    is_positive, "a positive number (0 removes the penalty and with it the certificate; try 1e-4)"
)
SCORING = Check(
    lambda value: callable(value) or value in get_scorer_names(),
    "a callable, a name among sklearn.metrics.get_scorer_names()",
)

CHECKS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("n_betas", "n_gates", "max_iter"), (COUNT,)),
    **dict.fromkeys(
        ("fit_intercept", "open_gate", "warm_start", "with_mean", "with_std"), (True, False)
    ),
    **dict.fromkeys(("huber_delta", "gate_weight", "tol", "epsilon"), (POSITIVE,)),
    "beta": (BETA,),
    "beta_scale": ("relative", "absolute"),
    "betas": (Check(are_positive, "a vector of positive finite fractions of beta_max"), None),
    "eps": (Check(lambda value: is_positive(value) and value < 1, "below 1 and positive"),),
    "selection": ("best", "one-standard-error"),
    "scoring": (SCORING, None),
    "penalty": tuple(PENALTIES),
    "attention": ATTENTION,
    "loss": ("squared", "huber", "poisson"),
    "refit": (POSITIVE, True, False),
    "class_weight": ("balanced", dict, None),
    "tokens": ("absolute", Offsets),
    "n_tokens": (COUNT, None),
    "max_time": (Check(is_positive, "a positive number (of seconds)"), None),
    "on_interrupt": ON_INTERRUPT,
    "per": ("channel", "token-channel"),
}
"""What every parameter may be whose validity does not depend on the data: values, types, checks."""


# Parameters that are arrays -------------------------------------------------------------------


def read_fractions(betas: Any, n_betas: Any, eps: Any) -> Array:
    """Fractions of beta_max in decreasing order: those given, or ``1 ... eps`` geometrically."""
    for name, value in {"betas": betas, "n_betas": n_betas, "eps": eps}.items():
        check_parameter(name, value)
    if betas is None:
        return np.geomspace(1.0, eps, n_betas)
    return np.unique(np.asarray(as_numpy(betas, "betas"), dtype=np.float64))[::-1]


def read_token_weights(token_weights: Any, n_tokens: int) -> Array | None:
    """One positive penalty factor per token."""
    if token_weights is None:
        return None
    if not (are_positive(token_weights) and len(token_weights) == n_tokens):
        raise ValueError(
            f"token_weights must be positive, one factor per token, shape ({n_tokens},); got "
            f"{token_weights!r}. To leave a token out, mask it or drop it from X."
        )
    return np.asarray(as_numpy(token_weights, "token_weights"), dtype=np.float64)
