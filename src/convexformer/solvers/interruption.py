"""What Ctrl-C does to a solve: end it with KeyboardInterrupt, or with the best iterate so far."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

ON_INTERRUPT = ("raise", "keep")


class InterruptHandler:
    """A signal handler: the first Ctrl-C asks to stop, the second does what it did before."""

    def __init__(self, previous: Callable[[int, FrameType | None], Any]) -> None:
        self.asked, self.previous = False, previous

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            self.previous(number, frame)
        self.asked = True


@contextmanager
def interruption(on_interrupt: str) -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C has asked to stop since the block began, as a function.

    With "keep" the first Ctrl-C only asks, and the second raises KeyboardInterrupt; "raise" leaves
    both to Python. Signals reach the main thread alone, so in other threads nobody ever asks. A
    block inside another one shares its handler.

    Examples
    --------
    >>> import signal
    >>> from convexformer.solvers.interruption import interruption
    >>> with interruption("keep") as asked:
    ...     signal.raise_signal(signal.SIGINT)  # as Ctrl-C does
    ...     asked()
    True
    """
    if on_interrupt not in ON_INTERRUPT:
        raise ValueError(f"on_interrupt must be one of {ON_INTERRUPT}, got {on_interrupt!r}.")
    main = threading.current_thread() is threading.main_thread()
    previous = signal.getsignal(signal.SIGINT) if main and on_interrupt == "keep" else None
    if isinstance(previous, InterruptHandler):
        yield lambda: previous.asked
    elif not callable(previous):  # also where the process ignores Ctrl-C
        yield lambda: False
    else:
        handler = InterruptHandler(previous)
        try:
            signal.signal(signal.SIGINT, handler)
            yield lambda: handler.asked
        finally:
            signal.signal(signal.SIGINT, previous)
