"""Run the contest: cell by cell, contestants in turn, repetitions interleaved.

``python -m benchmarks.run --grid standard``. In every cell ours runs first; ``--factor`` times
what it took is the time limit of a peer's run, within bounds. Each contestant then sweeps its
settings by the rules of `sweep`: every setting may take the whole limit. What met the gap is
repeated in turn with the others, and once more as the first call of a fresh process. All runs are
kept. Finished cells stay in ``results/GRID.json``; running again does what is missing.
``--fresh`` begins anew. ``--stale`` runs the cells anew in which the settings of today were not
all tried, those first where this may change a published claim.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from .cells import GRIDS
from .contestants import NAMES, OURS, contestant
from .encoder import text
from .machine import describe, speeds
from .objective import Cell, MissingDataError, Run, Task, times_to
from .processes import Process, available
from .summary import awaits_rerun, summarise
from .sweep import until_decided

RESULTS = Path(__file__).parent / "results"
FACTOR = 12.0  # a peer's run may take so many times as long as ours: more than the goal of 10
REPETITIONS = {"quick": 2, "standard": 5, "large": 1, "states": 3, "drawn": 3}
LIMITS = {  # of a peer's run
    "quick": (1.0, 2.0),
    "standard": (3.0, 60.0),
    "large": (60.0, 600.0),
    "states": (3.0, 60.0),
    "drawn": (3.0, 60.0),
}
OUR_LIMIT = {"quick": 30.0, "standard": 120.0, "large": 1200.0, "states": 300.0, "drawn": 120.0}
PEERS: dict[str, tuple[str, ...]] = {  # quick: those that neither compile nor need a minute
    "quick": ("adelie", "celer", "cvxpy", "sklearn"),
    "standard": NAMES[1:],
    "large": (),  # ours alone, unless peers are named
    "states": (),
    "drawn": (),
}
FIRST_CALLS: dict[str, tuple[float, ...]] = {  # at these fractions
    "quick": (0.1,),
    "standard": (0.1,),
    "large": (),
    "states": (),
    "drawn": (),
}


class Contest:
    """The processes of all contestants and the rules of one grid."""

    def __init__(self, grid: str, names: list[str], factor: float = FACTOR) -> None:
        self.grid, self.names, self.factor = grid, names, factor
        self.processes: dict[tuple[str, int], Process] = {}

    def process(self, name: str, threads: int) -> Process:
        key = (name, threads)
        if key not in self.processes:
            self.processes[key] = Process(name, threads)
        return self.processes[key]

    def end(self) -> None:
        for process in self.processes.values():
            process.end()

    @property
    def versions(self) -> dict[str, str]:
        """By package; one that an environment has in another version is named with it."""
        found: dict[str, str] = {}
        for process in self.processes.values():
            environment = process.module.ENVIRONMENT
            for name, number in process.versions.items():
                other = environment != "main" and name == "numpy"
                found[f"{name} ({environment})" if other else name] = number
        return found

    def play(self, cell: Cell) -> dict[str, Any]:
        """All runs of one cell."""
        task = cell.task()
        if self.grid == "large":  # memory is the highest ever of a process: each cell has its own
            self.end()
        unfit = {name: contestant(name).unfit(task) for name in self.names}
        fit = [name for name in self.names if not unfit[name]]
        with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
            folder = Path(scratch)
            task.save(folder)
            for name in fit:
                self.process(name, cell.threads).give(folder)
            runs, limit = self._sweeps(cell, task, fit)
            runs += self._repeats(cell, task, runs, limit)
            if cell.fractions[-1] in FIRST_CALLS[self.grid]:
                runs += self._first_calls(cell, task, runs, limit, folder)
        return {
            "measured": datetime.now(UTC).isoformat(timespec="minutes"),
            "text": text() if "encoder" in cell.name else "",
            "shape": [*task.X.shape, task.Y.shape[1]],
            "gates": 0 if task.gates is None else task.gates.shape[1],
            "dtype": str(task.X.dtype),
            "loss": task.loss,
            "penalty": task.penalty,
            "intercept": task.intercept,
            "fractions": list(cell.fractions),
            "correlated": cell.correlated,
            "gap": cell.gap,
            "goal": cell.goal,
            "threads": cell.threads,
            "limit": limit,
            "unfit": {name: why for name, why in unfit.items() if why},
            "runs": [run.to_dict() for run in runs],
        }

    def _sweeps(self, cell: Cell, task: Task, fit: list[str]) -> tuple[list[Run], float]:
        low, high = LIMITS[self.grid]
        runs: list[Run] = []
        limit = OUR_LIMIT[self.grid]
        for name in fit:
            process = self.process(name, cell.threads)
            own = [
                run
                for sweep in process.module.sweeps(task)
                for run in self._sweep(process, cell, task, sweep, limit)
            ]
            runs += own
            if name == OURS:
                took = float(np.median(times_to(own, cell.gap) or [high]))
                limit = float(np.clip(self.factor * took, low, high))
            _log(cell, name, own)
        return runs, limit

    def _sweep(
        self,
        process: Process,
        cell: Cell,
        task: Task,
        settings: list[dict[str, Any]],
        limit: float,
    ) -> Iterator[Run]:
        worth = self._worth(settings, cell)
        runs = (process.run(task, setting, limit) for setting in worth)
        return until_decided(runs, cell.gap, limit)

    def _worth(self, settings: list[dict[str, Any]], cell: Cell) -> list[dict[str, Any]]:
        """Of large cells, where a run takes minutes, only tolerances close to the gap."""
        if self.grid != "large":
            return settings
        return [one for one in settings if cell.gap <= one["tol"] < 11 * cell.gap] or settings

    def _winners(self, cell: Cell, runs: list[Run]) -> dict[str, dict[str, Any]]:
        """Of every contestant the fastest setting that met the gap."""
        met = [run for run in runs if not run.failed and run.gap <= cell.gap]
        return {run.contestant: run.setting for run in sorted(met, key=lambda run: -run.cpu)}

    def _repeats(self, cell: Cell, task: Task, runs: list[Run], limit: float) -> list[Run]:
        winners = self._winners(cell, runs)
        return [
            self.process(name, cell.threads).run(task, setting, _limit(name, limit, self.grid))
            for _ in range(REPETITIONS[self.grid] - 1)
            for name, setting in winners.items()
        ]

    def first_call_again(self, cell: Cell, record: dict[str, Any]) -> None:
        """Measure the first call of ours anew, in a cell that was played."""
        task, runs = cell.task(), record["runs"]
        mine = [k for k, run in enumerate(runs) if run["first"] and run["contestant"] == OURS]
        with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
            task.save(Path(scratch))
            for k in mine:
                process = Process(OURS, cell.threads, cold=True)
                process.give(Path(scratch))
                run = process.run(task, runs[k]["setting"], OUR_LIMIT[self.grid])
                run.first, run.loading = True, process.loading
                process.end()
                runs[k] = run.to_dict()

    def _first_calls(
        self, cell: Cell, task: Task, runs: list[Run], limit: float, folder: Path
    ) -> list[Run]:
        found = []
        for name, setting in self._winners(cell, runs).items():
            process = Process(name, cell.threads, cold=True)
            process.give(folder)
            run = process.run(task, setting, 60.0 + limit)
            run.first, run.loading = True, process.loading
            process.end()
            found.append(run)
        return found


def _limit(name: str, limit: float, grid: str) -> float:
    return OUR_LIMIT[grid] if name == OURS else 2 * limit  # the second may be a little slower


def _log(cell: Cell, name: str, runs: list[Run]) -> None:
    met = times_to(runs, cell.gap, "cpu" if cell.threads == 1 else "wall")
    best = min((run.gap for run in runs), default=np.inf)
    words = f"{met[0]:.4f} s" if met else f"not reached (gap {best:.0e})"
    print(f"{cell.name:28} {name:14} {words}", file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grid", choices=list(GRIDS), default="standard")
    parser.add_argument("--only", default="", help="cells whose name starts so")
    parser.add_argument("--contestants", help="comma-separated; else those of the grid")
    parser.add_argument("--factor", type=float, default=FACTOR, help="time of a peer over ours")
    parser.add_argument("--fresh", action="store_true", help="forget what was measured before")
    parser.add_argument(
        "--stale", action="store_true", help="run cells anew whose settings were not all tried"
    )
    parser.add_argument("--list", action="store_true", help="name the cells, run none")
    parser.add_argument("--first-calls", action="store_true", help="only these anew, of ours")
    parser.add_argument("--max-minutes", type=float, default=float("inf"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    file = options.results / f"{options.grid}.json"
    results = {"cells": {}} if options.fresh or not file.exists() else json.loads(file.read_text())
    names = [name for name in _names(options.contestants, options.grid) if available(name)]
    contest = Contest(options.grid, names, options.factor)
    stop = time.monotonic() + 60 * options.max_minutes
    cells = [cell for cell in GRIDS[options.grid]() if cell.name.startswith(options.only)]
    if options.first_calls:
        for cell in cells:
            if cell.fractions[-1] in FIRST_CALLS[options.grid]:
                contest.first_call_again(cell, results["cells"][cell.name])
        _write(file, results)
        return
    missing = [cell for cell in cells if cell.name not in results["cells"]]
    if options.stale:
        missing += stale(cells, results["cells"], names)
    if options.list:
        print("\n".join(cell.name for cell in missing))
        return
    if not missing:
        print(f"{file} has every cell; --fresh measures them anew", file=sys.stderr)
    try:
        for cell in missing:
            if time.monotonic() > stop:
                print("out of minutes; run again for the rest", file=sys.stderr)
                break
            try:
                results["cells"][cell.name] = contest.play(cell)
            except MissingDataError as absent:
                print(f"{cell.name:28} skipped: {absent}", file=sys.stderr, flush=True)
                continue
            everything = {one.name: None for one in GRIDS[options.grid]()}  # in the grid's order
            found = {name: results["cells"].get(name) for name in everything | results["cells"]}
            results["cells"] = {name: one for name, one in found.items() if one is not None}
            results["environment"] = describe(contest.versions, _command(options), results)
            results["speeds"] = results.get("speeds") or speeds()
            _write(file, results)
    finally:
        contest.end()


def stale(cells: list[Cell], done: dict[str, Any], names: list[str]) -> list[Cell]:
    """Finished cells that `summary.awaits_rerun` names, in the order of running them again.

    First come those that publish a claim which other settings may change: a softmax loss, where
    the two tolerances of adelie matter most, and cells in which no peer arrived. The quickest
    come first among equals.
    """
    found = []
    for cell in cells:
        record = done.get(cell.name)
        if record is None or not awaits_rerun(record, names):
            continue
        claim = record["loss"] == "softmax", summarise(cell.name, record).best is None
        found.append((not claim[0], not claim[1], record["limit"], cell.name, cell))
    return [item[-1] for item in sorted(found, key=lambda item: item[:-1])]


def _command(options: argparse.Namespace) -> str:
    words = ["python -m benchmarks.run", f"--grid {options.grid}", f"--factor {options.factor:g}"]
    words += ["--stale"] if options.stale else []
    return " ".join([*words, f'--only "{options.only}"'] if options.only else words)


def _names(given: str | None, grid: str) -> list[str]:
    """Contestants to run, ours first, because it sets the time limit."""
    peers = given.split(",") if given else list(PEERS[grid])
    return [OURS] + [name for name in peers if name != OURS]


def _write(file: Path, results: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    half = file.with_suffix(".half")
    half.write_text(json.dumps(results, indent=1).replace("Infinity", "null") + "\n")
    half.replace(file)


if __name__ == "__main__":
    main()
