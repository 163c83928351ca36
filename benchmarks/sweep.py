"""The rules of a sweep: when it ends, whether it was complete, and when it gives a lower bound.

A contestant has several *branches* of settings, one for every variant of its method. Inside a
branch only the last entry of a setting changes, a tolerance, from loose to tight. Every setting may
take the whole time limit. A branch ends

- at the first setting that meets the gap;
- at the first setting that the limit stopped, because a tighter tolerance of the same variant does
  the same work and more;
- when its settings are used up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .objective import Run, setting_key


def stopped(run: Run, limit: float) -> bool:
    """Whether the time limit ended a run; some packages report this as an error of their own."""
    return run.failed == "out of time" or (bool(run.failed) and run.cpu >= limit)


def until_decided(runs: Iterable[Run], gap: float, limit: float) -> Iterator[Run]:
    """The runs of one branch, up to the one that ends it."""
    for run in runs:
        yield run
        if run.gap <= gap or stopped(run, limit):
            return


def branch_of(setting: dict[str, Any]) -> str:
    """What the settings of one branch have in common: all but the last entry."""
    return setting_key(dict(list(setting.items())[:-1]))


def swept(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The runs of one contestant by branch, each setting once, in the order of the sweep."""
    branches: dict[str, dict[str, Run]] = {}
    for run in runs:
        if not run.first:
            branch = branches.setdefault(branch_of(run.setting), {})
            branch.setdefault(setting_key(run.setting), run)
    return {name: list(branch.values()) for name, branch in branches.items()}


def bounded(runs: Iterable[Run], limit: float) -> bool:
    """Whether "slower than the limit" holds for all settings of a contestant that met no gap.

    It does if the limit ended every branch: looser settings finished and did not meet the gap,
    so more time would not help them. It does not if a branch ended otherwise: its settings were
    used up, a run failed for a reason of its own, or (in older results) the time of the whole
    sweep ran out.

    Examples
    --------
    >>> from benchmarks.objective import Run
    >>> loose = Run("a", {"tol": 1e-3}, cpu=1.0, wall=1.0, gap=0.1)
    >>> tight = Run("a", {"tol": 1e-6}, cpu=3.0, wall=3.0, gap=float("inf"), failed="out of time")
    >>> bounded([loose, tight], limit=3.0), bounded([loose], limit=3.0)
    (True, False)
    """
    branches = swept(runs).values()
    return bool(branches) and all(
        stopped(branch[-1], limit)
        and all(not run.failed or stopped(run, limit) for run in branch[:-1])
        for branch in branches
    )


def complete(
    runs: Iterable[Run], sweeps: Sequence[Sequence[dict[str, Any]]], gap: float, limit: float
) -> bool:
    """Whether every branch of `sweeps` was run until it was decided."""
    branches = swept(runs)
    return all(_decided(branches.get(branch_of(s[0]), []), s, gap, limit) for s in sweeps)


def _decided(
    runs: Sequence[Run], settings: Sequence[dict[str, Any]], gap: float, limit: float
) -> bool:
    if not runs:
        return False
    last = runs[-1]
    return last.gap <= gap or stopped(last, limit) or last.setting == settings[-1]
