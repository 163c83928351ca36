"""What it takes to check an answer, beside what it takes to find one.

``python -m benchmarks.floor --grid quick``, or of all grids. In every cell that is short of its
goal: processor time of building the problem and of certifying solutions that are known already. Who
has to be certified is not quicker than that, however they are found.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

from .cells import GRIDS
from .contestants.convexformer import problem_of, solve
from .machine import describe
from .objective import Cell
from .summary import RESULTS, CellSummary, read, summarise

REPETITIONS = 7
SHORT = 0.05  # seconds: shorter checks are repeated, because clocks of processor time are coarse


def seconds(cell: Cell) -> float:
    """To build the problem of a cell and certify what solves it."""
    task = cell.task()
    found = solve(task, {"tol": cell.gap})
    times = []
    for _ in range(REPETITIONS):
        start, calls = time.process_time(), 0
        while calls == 0 or time.process_time() < start + SHORT:
            problem = problem_of(task)
            for (Z, b), beta in zip(found, task.betas, strict=True):
                problem.certificate(Z, b, beta)
            calls += 1
        times.append((time.process_time() - start) / calls)
    return float(np.median(times))


def short_of_goal(grid: str, folder: Path) -> list[str]:
    """Cells of a grid whose goal was missed."""
    results = read(grid, folder)
    cells = [summarise(*item) for item in results["cells"].items()] if results else []
    return [cell.name for cell in cells if missed(cell)]


def missed(cell: CellSummary) -> bool:
    """Whether a goal is known not to hold."""
    return cell.goal is not None and cell.goal[1] is False


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--grid", choices=GRIDS, action="append")
    asked = parser.parse_args(arguments)
    folder, file = asked.results, asked.results / "floor.json"
    found: dict[str, dict[str, float]] = (
        json.loads(file.read_text())["seconds"] if file.exists() else {}
    )
    for grid in asked.grid or GRIDS:
        missed = short_of_goal(grid, folder)
        found[grid] = {cell.name: seconds(cell) for cell in GRIDS[grid]() if cell.name in missed}
        for name, took in found[grid].items():
            print(f"{grid} {name}: {took:.3g} s", file=sys.stderr, flush=True)
    versions = {name: version(name) for name in ("convexformer", "numpy", "scipy")}
    told = describe(versions, "python -m benchmarks.floor", {})
    text = json.dumps({"environment": told, "seconds": found}, indent=1) + "\n"
    file.write_text(text)


if __name__ == "__main__":
    main()
