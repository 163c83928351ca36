"""What every strategy and kernel earns: time without it over time with it, cell by cell.

``python -m benchmarks.ablation --grid quick standard --only hla`` leaves out one of `switches` at a
time. Runs with and without take turns, so that a machine that slows down slows both; the gap of
each is recomputed. A ratio of 2 says that the cell takes twice as long without; one below 1 says
that the switch does harm. "compiled" leaves out all compiled code, in a process of its own. What a
cell does not use is left out of its row. Use an otherwise idle machine.

All of it is kept in ``results/ablation.json``; running again replaces the cells that were run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from .cells import GRIDS
from .contestants import OURS
from .contestants.convexformer import problem_of
from .machine import describe
from .objective import Cell, MissingDataError, Task, evaluate
from .processes import ROOT, Process
from .summary import RESULTS
from .switches import Switch, switches

COMPILED = "compiled"
WIDTH = 54  # of the longest name of a cell
SHORT = 0.03  # seconds: shorter calls are repeated, because clocks of processor time are coarse
LONGEST = 30.0  # times as long as with it, or
LEAST_LIMIT = 5.0  # seconds, after which a run without something is ended


@dataclass
class Side:
    """Runs with, or without."""

    seconds: list[float] = field(default_factory=list)  # of processor time
    gap: float = 0.0  # the largest
    strategy: str = ""

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))


@dataclass
class Effect:
    """What one switch changes in one cell."""

    on: Side
    off: Side
    used: bool

    @property
    def ratio(self) -> float:
        """Time without over time with."""
        return self.off.median / self.on.median


# Measuring -----------------------------------------------------------------------------------


def run(task: Task, tol: float, side: Side, limit: float | None = None) -> None:
    """Solve once, or again and again while that is short; note the time and the gap."""
    from convexformer.solvers import solve_path

    start, calls = time.process_time(), 0
    while calls == 0 or time.process_time() < start + SHORT:
        path = solve_path(problem_of(task), task.betas, tol=tol, max_time=limit)
        found = list(path)
        calls += 1
    side.seconds.append((time.process_time() - start) / calls)
    side.strategy = ", ".join(dict.fromkeys(one.strategy for one in found if one.strategy))
    for one, beta in zip(found, task.betas, strict=True):
        value = evaluate(task, one.Z, one.intercept, beta)
        side.gap = max(side.gap, value.relative_gap)


def effect(task: Task, tol: float, switch: Switch, rounds: int) -> Effect:
    """Both sides in turn; what is not used is run once."""
    on, off = Side(), Side()
    run(task, tol, on)  # which also warms up
    limit = max(LEAST_LIMIT, LONGEST * on.median)
    with switch.off():
        run(task, tol, off, limit)
    if not switch.used:
        return Effect(on, off, False)
    on, off = Side(), Side()
    for k in range(rounds):
        for side in (on, off) if k % 2 else (off, on):
            with switch.off() if side is off else nullcontext():
                run(task, tol, side, limit if side is off else None)
    return Effect(on, off, True)


def compiled(cell: Cell, task: Task, rounds: int) -> Effect:
    """The same of all compiled code, in two processes."""
    on, off = Side(), Side()
    sides = {
        Process(OURS, cell.threads): on,
        Process(OURS, cell.threads, environment={"CONVEXFORMER_CORE": "numpy"}): off,
    }
    with tempfile.TemporaryDirectory(prefix="ablation-") as folder:
        task.save(Path(folder))
        try:
            for k in range(rounds + 1):  # the first round warms up
                for process, side in sides.items():
                    process.give(Path(folder))
                    limit = max(LEAST_LIMIT, LONGEST * max(on.seconds, default=LEAST_LIMIT))
                    found = process.run(task, {"tol": cell.gap}, limit)
                    if k:
                        side.seconds.append(found.cpu)
                        side.gap = max(side.gap, found.gap)
        finally:
            for process in sides:
                process.end()
    return Effect(on, off, True)


def measure(cell: Cell, chosen: Iterable[str], rounds: int) -> dict[str, Effect]:
    """The effect of every switch in one cell."""
    task, known, found = cell.task(), switches(), {}
    with threadpool_limits(cell.threads):
        for name in chosen:
            if name == COMPILED:
                found[name] = compiled(cell, task, rounds)
            else:
                found[name] = effect(task, cell.gap, known[name], rounds)
    return found


# Showing -------------------------------------------------------------------------------------


def line(cell: Cell, effects: dict[str, Effect]) -> str:
    """A cell, its seconds and strategy, and time without over with of all that it uses."""
    sides = [one.on for one in effects.values() if one.used] or [one.on for one in effects.values()]
    seconds = float(np.median([each for side in sides for each in side.seconds]))
    named = next((one.on.strategy for one in effects.values() if one.on.strategy), "")
    words = [f"{cell.name:{WIDTH}}{seconds:9.4f}  {named:18}"]
    for name, one in effects.items():
        if one.used:
            late = [
                f" (gap {side.gap:.0e} {which})"
                for which, side in (("with", one.on), ("without", one.off))
                if not side.gap <= cell.gap
            ]
            words.append(f"{name} {one.ratio:.2f}{''.join(late)}")
    return "  ".join(words)


def summary(ratios: dict[str, dict[str, float]]) -> Iterator[str]:
    """Of every switch: cells that use it, geometric mean, least and most, and where.

    Examples
    --------
    >>> from benchmarks.ablation import summary
    >>> print(*summary({"gram": {"quick i/0.5": 2.0, "quick i/0.1": 8.0}}), sep="\\n")
    | left out | cells | without / with | least | most |
    | --- | --- | --- | --- | --- |
    | gram | 2 | 4.00 | 2.00 (quick i/0.5) | 8.00 (quick i/0.1) |
    """
    yield "| left out | cells | without / with | least | most |"
    yield "| --- | --- | --- | --- | --- |"
    for name, by_cell in ratios.items():
        if not by_cell:
            yield f"| {name} | 0 | | | |"
            continue
        mean = float(np.exp(np.mean(np.log(list(by_cell.values())))))
        ends = [end(by_cell, key=lambda cell: by_cell[cell]) for end in (min, max)]
        least, most = (f"{by_cell[cell]:.2f} ({cell})" for cell in ends)
        yield f"| {name} | {len(by_cell)} | {mean:.2f} | {least} | {most} |"


def ratios_of(cells: dict[str, Any], names: Iterable[str]) -> dict[str, dict[str, float]]:
    """Of every switch the ratios of the cells that use it."""
    return {
        name: {
            cell: record["effects"][name]["ratio"]
            for cell, record in cells.items()
            if record["effects"].get(name, {}).get("used")
        }
        for name in names
    }


# The command ---------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> None:
    names = [*switches(), COMPILED]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grid", nargs="+", choices=list(GRIDS), default=["quick"])
    parser.add_argument("--only", default="", help="cells whose name starts so")
    parser.add_argument("--switch", nargs="+", choices=names, default=names)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--list", action="store_true", help="say what can be left out")
    parser.add_argument("--out", type=Path, default=RESULTS / "ablation.json")
    options = parser.parse_args(arguments)
    if options.list:
        for name, switch in switches().items():
            print(f"{name:16} {switch.words}")
        print(f"{COMPILED:16} all compiled code; NumPy instead")
        return
    results = json.loads(options.out.read_text()) if options.out.exists() else {"cells": {}}
    done: dict[str, Any] = {}
    print(f"{'cell':{WIDTH}}{'seconds':>9}  {'strategy':18}  without / with")
    for grid in options.grid:
        for cell in GRIDS[grid]():
            if not cell.name.startswith(options.only):
                continue
            try:
                effects = measure(cell, options.switch, options.rounds)
            except MissingDataError as missing:
                print(f"{cell.name:{WIDTH}} skipped: {missing}", flush=True)
                continue
            print(line(cell, effects), flush=True)
            done[f"{grid} {cell.name}"] = record = _record(effects)
            old = results["cells"].get(f"{grid} {cell.name}", {"effects": {}})
            record["effects"] = old["effects"] | record["effects"]
            results["cells"] |= done
            _write(options, results)
    print(*summary(ratios_of(done, options.switch)), sep="\n")


def _record(effects: dict[str, Effect]) -> dict[str, Any]:
    now, commit = datetime.now(UTC).isoformat(timespec="minutes"), _commit()
    found = {
        name: {**asdict(one), "ratio": one.ratio, "measured": now, "commit": commit}
        for name, one in effects.items()
    }
    return {"effects": found}


def _commit() -> str:
    """What was measured; "-dirty" where files differ from the commit."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def _write(options: argparse.Namespace, results: dict[str, Any]) -> None:
    words = [f"python -m benchmarks.ablation --grid {' '.join(options.grid)}"]
    words += [f'--only "{options.only}"'] if options.only else []
    words += [f"--rounds {options.rounds}"]
    versions = {name: version(name) for name in ("convexformer", "numpy", "scipy")}
    results["environment"] = describe(versions, " ".join(words), results)
    results["switches"] = {name: one.words for name, one in switches().items()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    half = options.out.with_suffix(".half")
    half.write_text(json.dumps(results, indent=1).replace("Infinity", "null") + "\n")
    half.replace(options.out)


if __name__ == "__main__":
    main()
