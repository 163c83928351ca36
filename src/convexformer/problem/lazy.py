"""A cached property without a lock, so that threads with objects of their own never wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class lazy(Generic[Value]):
    """A property that is computed when it is first read, and kept in the instance.

    `functools.cached_property` of Python 3.11 has one lock for all instances of a class. Here two
    threads may compute the value of one instance twice; either value will do.

    Examples
    --------
    >>> from convexformer.problem.lazy import lazy
    >>> class Square:
    ...     side = 3
    ...
    ...     @lazy
    ...     def area(self):
    ...         return self.side**2
    >>> square = Square()
    >>> square.area, vars(square)
    (9, {'area': 9})
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self.compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Value:
        if instance is None:
            return self  # type: ignore[return-value]
        value = instance.__dict__[self.name] = self.compute(instance)
        return value
