"""Threads of experiments that are timed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits


@contextmanager
def one_thread() -> Iterator[None]:
    """So that seconds can be compared, and sums are always taken in the same order.

    Random numbers of others are left as they were.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1), torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
