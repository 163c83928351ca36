"""What the runs of a cell say: who met the gap, when, and by how much ours is ahead."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .contestants import OURS, contestant
from .objective import GAPS, Run, Task, times_to
from .sweep import bounded, complete, stopped

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Standing:
    """One contestant in one cell; seconds are medians of processor time (wall on two threads)."""

    name: str
    seconds: float | None  # to the gap of the cell
    spread: tuple[float, float] | None  # fastest and slowest repetition
    by_gap: dict[float, float]  # seconds to each gap that was met
    by_value: float | None  # seconds to an objective that close to the optimum, certified or not
    first: float | None  # first call of a fresh process, without importing
    loading: float | None  # importing, there
    reached: float  # smallest gap of all runs
    stopped: float  # seconds of the longest run
    only_stopped: bool  # whether the time limit ended every run
    bounded: bool  # whether it is known to take longer than the limit, see `sweep.bounded`


@dataclass(frozen=True)
class CellSummary:
    """All contestants of a cell."""

    name: str
    facts: dict[str, Any]
    ours: Standing
    peers: list[Standing]
    waits: bool = False  # for a rerun: some of the peers' settings of today were not tried

    @property
    def title(self) -> str:
        """The name, with a dagger if the cell waits for a rerun."""
        return f"{self.name} †" if self.waits else self.name

    @property
    def best(self) -> Standing | None:
        """The fastest peer that met the gap."""
        met = [peer for peer in self.peers if peer.seconds is not None]
        return min(met, key=lambda peer: peer.seconds or 0.0, default=None)

    @property
    def ratio(self) -> float | None:
        """How many times as long the best peer took.

        Where none arrived it is a lower bound, if the time limit ended every branch of settings
        of every peer. Otherwise it is not known.
        """
        if self.ours.seconds is None or not self.peers:
            return None
        if self.best is not None:
            return (self.best.seconds or 0.0) / self.ours.seconds
        if all(peer.bounded for peer in self.peers):
            return float(self.facts["limit"]) / self.ours.seconds
        return None

    @property
    def sooner(self) -> bool:
        """Whether a peer was ahead to a gap that is looser than the cell's."""
        ours = self.ours.by_gap
        return any(
            gap > self.facts["gap"] and seconds < ours.get(gap, np.inf)
            for peer in self.peers
            for gap, seconds in peer.by_gap.items()
        )

    @property
    def short_by_value(self) -> bool:
        """Whether a ratio meets its goal only as runs do not count that nobody knows to be done."""
        values = [peer.by_value for peer in self.peers if peer.by_value is not None]
        if self.facts["goal"] is not None or not values or not (self.goal and self.goal[1]):
            return False
        return min(values) < self._asked_ratio() * (self.ours.seconds or 0.0)

    @property
    def goal(self) -> tuple[str, bool | None] | None:
        """What is asked of the cell, and whether it holds; None where that is not known."""
        if self.facts["goal"] is not None:
            limit = self.facts["goal"]
            took = self.ours.seconds
            return f"{limit:g} s", took is not None and took <= limit
        if not self.peers:
            return None
        asked = self._asked_ratio()
        if self.ratio is None and self.ours.seconds is not None:
            return f"{asked:g}x", None
        if self.ratio is not None and self.best is None and self.ratio < asked:
            return f"{asked:g}x", None  # the lower bound is below what is asked
        return f"{asked:g}x", self.ratio is not None and self.ratio >= asked

    @property
    def allowed(self) -> float | None:
        """Seconds within which the goal would hold, if there is one and a peer to beat."""
        if self.facts["goal"] is not None:
            return float(self.facts["goal"])
        if self.best is None or self.best.seconds is None:
            return None
        return self.best.seconds / self._asked_ratio()

    def _asked_ratio(self) -> float:
        if len(self.facts["fractions"]) > 1:
            return 3.0
        if self.name.startswith("softmax") and self.facts["goal"] is None:
            return 20.0
        return 10.0 if self.facts["correlated"] and self.facts["fractions"][0] <= 0.1 else 2.0

    @property
    def memory_of_x(self) -> float:
        """Highest memory of the process of ours, as a multiple of X."""
        return float(self.facts["memory"]) * 2**20 / self.bytes_of_x

    @property
    def bytes_of_x(self) -> int:
        N, n, d, _ = self.facts["shape"]
        return int(N * n * d * (4 if self.facts["dtype"] == "float32" else 8))

    @property
    def late_at_first(self) -> bool:
        """Whether a peer was faster in a fresh process, importing included."""
        called = [one for one in [self.ours, *self.peers] if one.first is not None]
        times = {one.name: (one.first or 0.0) + (one.loading or 0.0) for one in called}
        return OURS in times and times[OURS] > min(times.values())

    @property
    def active_columns(self) -> int:
        """Columns of the design that the optimum uses."""
        return int(self.facts["active"]) * int(self.facts["shape"][2])

    def limits(self, speeds: dict[str, dict[str, float]]) -> tuple[float, float]:
        """Seconds of reading X once, and of forming one second-order matrix of the optimum."""
        N = self.facts["shape"][0]
        speed = speeds[str(self.facts["threads"])]
        p = self.active_columns
        flops = N * p * min(N, p)  # a symmetric product: p x p of the Gram, or N x N of the kernel
        reading = self.bytes_of_x / (1e9 * speed["read GB/s"])
        return reading, flops / (1e9 * speed["syrk64 GFlop/s"])


def runs_of(record: dict[str, Any]) -> list[Run]:
    """All runs of a cell of ``results/*.json``."""
    return [
        Run(**{**run, "gap": np.inf if run["gap"] is None else run["gap"]})
        for run in record["runs"]
    ]


def summaries(results: dict[str, Any]) -> list[CellSummary]:
    """All cells of a grid, with what waits for a rerun marked."""
    peers = peers_in(results)
    return [
        replace(summarise(name, record), waits=awaits_rerun(record, peers))
        for name, record in results["cells"].items()
    ]


def summarise(name: str, record: dict[str, Any]) -> CellSummary:
    """The standings of one cell of ``results/*.json``."""
    runs = runs_of(record)
    clock = "cpu" if record["threads"] == 1 else "wall"
    bound = np.max([run.duals for run in runs if run.duals], axis=0, initial=-np.inf)
    names = list(dict.fromkeys(run.contestant for run in runs))
    standings = {
        one: _standing(one, [r for r in runs if r.contestant == one], record, bound, clock)
        for one in names
    }
    met = [run for run in runs if run.contestant == OURS and run.duals]
    best = min(met, key=lambda run: run.gap, default=None)
    facts = {key: value for key, value in record.items() if key != "runs"}
    facts["active"] = best.active if best else 0
    facts["memory"] = best.memory if best else 0.0
    return CellSummary(
        name, facts, standings[OURS], [standings[one] for one in names if one != OURS]
    )


def peers_in(results: dict[str, Any]) -> list[str]:
    """Peers that ran in some cell of a grid's results."""
    runs = (run for record in results["cells"].values() for run in record["runs"])
    return [name for name in dict.fromkeys(run["contestant"] for run in runs) if name != OURS]


def awaits_rerun(record: dict[str, Any], names: Iterable[str]) -> bool:
    """Whether some of today's settings of these peers were not tried in a cell."""
    task, runs = task_like(record), runs_of(record)
    return not all(
        complete(
            [run for run in runs if run.contestant == name],
            contestant(name).sweeps(task),
            record["gap"],
            record["limit"],
        )
        for name in names
        if name != OURS and not contestant(name).unfit(task)
    )


def task_like(record: dict[str, Any]) -> Task:
    """A task of the same kind and size as that of a cell, with arrays of one repeated number.

    Which settings a contestant has depends on nothing else, except that adelie is given X that is
    mostly zero as a sparse matrix. Results tell that by the settings that were tried.
    """
    *shape, c = record["shape"]
    N, n, d = shape
    sparse = any(run["setting"].get("sparse") for run in record["runs"])
    h = record["gates"]
    return Task(
        np.broadcast_to(0.0 if sparse else 1.0, shape),
        np.broadcast_to(1.0, (N, c)),
        np.broadcast_to(True, (N, h)) if h else None,
        np.broadcast_to(1.0, (n * d, h)) if h else None,
        loss=record["loss"],
        penalty=record["penalty"],
        intercept=record["intercept"],
        betas=tuple(record["fractions"]),
    )


def _standing(
    name: str, runs: list[Run], record: dict[str, Any], bound: Any, clock: str
) -> Standing:
    gap, limit = record["gap"], record["limit"]
    met = times_to(runs, gap, clock)
    by_gap = {}
    for one in GAPS:
        seconds = times_to(runs, one, clock)
        if seconds:
            by_gap[one] = float(np.median(seconds))
    close = [
        getattr(run, clock)
        for run in runs
        if run.primals and not run.first and np.max(1 - bound / np.array(run.primals)) <= gap
    ]
    first = next((run for run in runs if run.first and not run.failed), None)
    return Standing(
        name,
        float(np.median(met)) if met else None,
        (min(met), max(met)) if met else None,
        by_gap,
        min(close, default=None),
        first.wall if first else None,  # one short call: clocks of processor time are coarse
        first.loading if first else None,
        min((run.gap for run in runs), default=np.inf),
        max((getattr(run, clock) for run in runs if not run.first), default=0.0),
        all(stopped(run, limit) for run in runs),
        bounded(runs, limit),
    )


def read(grid: str, folder: Path = RESULTS) -> dict[str, Any] | None:
    """The results of a grid, None where it was not run."""
    file = folder / f"{grid}.json"
    return json.loads(file.read_text()) if file.exists() else None
