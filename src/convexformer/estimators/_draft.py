"""Fits that succeed as a whole or leave the estimator as it was."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

Estimator = TypeVar("Estimator")
Args = ParamSpec("Args")


def all_or_nothing(
    fit: Callable[Concatenate[Estimator, Args], Estimator],
) -> Callable[Concatenate[Estimator, Args], Estimator]:
    """Let `fit` work on a copy, whose attributes become the estimator's in one step at the end.

    A fit that raises, Ctrl-C included, leaves an estimator unfitted, or with its old model whole.
    Attributes that others set on the estimator meanwhile, such as a callback, stay as they set
    them.

    Examples
    --------
    >>> from convexformer.estimators._draft import all_or_nothing
    >>> class Mean:
    ...     @all_or_nothing
    ...     def fit(self, y):
    ...         self.count_ = len(y)
    ...         self.mean_ = sum(y) / self.count_
    ...         return self
    >>> model = Mean().fit([1, 3])
    >>> model.fit([])
    Traceback (most recent call last):
    ZeroDivisionError: division by zero
    >>> model.count_, model.mean_
    (2, 2.0)
    """

    @wraps(fit)
    def fit_whole(self: Estimator, /, *args: Args.args, **kwargs: Args.kwargs) -> Estimator:
        before = dict(vars(self))
        draft = object.__new__(type(self))  # copy.copy would drop what __getstate__ leaves out
        draft.__dict__ = dict(before)
        fit(draft, *args, **kwargs)
        set_meanwhile = {
            name: value
            for name, value in vars(self).items()
            if name not in before or value is not before[name]
        }
        self.__dict__ = vars(draft) | set_meanwhile  # one assignment, which no signal divides
        return self

    return fit_whole
