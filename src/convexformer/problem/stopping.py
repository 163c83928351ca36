"""How long computations stop early: they ask, between pieces of work, whether to go on.

Whoever holds a result that can stand as it is puts what may take long into ``with until(late):``.
Loops inside, however deep, call :func:`check_stop`; once ``late()`` is true that leaves the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_late: ContextVar[Callable[[], bool] | None] = ContextVar("late", default=None)


class Stopped(Exception):
    """A long computation was left before its end."""


@contextmanager
def until(late: Callable[[], bool]) -> Iterator[None]:
    """Run a block until its end, or until `late` is true at a :func:`check_stop` inside.

    Examples
    --------
    >>> from convexformer.problem.stopping import check_stop, until
    >>> done = []
    >>> with until(lambda: len(done) == 3):
    ...     while True:
    ...         check_stop()
    ...         done.append("a piece of work")
    >>> len(done)
    3
    """
    token = _late.set(late)
    try:
        yield
    except Stopped:
        pass
    finally:
        _late.reset(token)


def check_stop() -> None:
    """Leave the innermost :func:`until` block if its time is up; elsewhere do nothing."""
    late = _late.get()
    if late is not None and late():
        raise Stopped
