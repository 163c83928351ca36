"""How time and memory of ours grow as N, n, d, c and h double four times.

``python -m benchmarks.scaling``. Every point is solved three times in a fresh process; time is the
median, memory the highest resident set less that of a process without data.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from .cells import gated, made
from .contestants import OURS
from .machine import describe
from .objective import Run, Task
from .processes import Process
from .summary import RESULTS, read

BASE = {"N": 2000, "n": 32, "d": 32, "c": 8, "h": 2}
FRACTION, TOLERANCE = 0.1, 1e-6
DOUBLINGS, REPETITIONS = 4, 3

WHY = {
    "N": "passes over X, sweeps over tokens and Gram matrices are sums over samples: 1, but for a "
    "round more or less, as at the last size",
    "n": "passes over X and sweeps are linear in n: 1; less while tokens in use grow more slowly",
    "d": "passes over X and sweeps are linear in d, the Gram matrix of every token by itself is "
    "quadratic: between 1 and 2",
    "c": "outputs that share tokens share a factorisation; only products with c columns grow, "
    "linearly",
    "h": "all gates read X together, for c columns each, and sweeps grow with blocks in use: 1; "
    "less while these grow more slowly",
}


@dataclass(frozen=True)
class Plan:
    """Sizes of an axis, and the task at each."""

    axis: str
    base: dict[str, int]
    doublings: int

    def sizes(self) -> list[int]:
        return [self.base[self.axis] * 2**k for k in range(self.doublings + 1)]

    def task(self, size: int) -> Task:
        sizes = {**self.base, self.axis: size}
        N, n, d = sizes["N"], sizes["n"], sizes["d"]
        if self.axis == "h":
            task = gated(N, n, d, sizes["h"])
        elif self.axis == "c":
            task = made(N, n, d, sizes["c"], correlated=True, penalty="token", intercept=True)
        else:
            task = made(N, n, d, correlated=True, intercept=True)
        return task.at(FRACTION)


def measure(plan: Plan) -> dict[str, Any]:
    """All points of an axis with the slopes over its upper half."""
    points = []
    empty = _runs(Plan("N", {"N": 50, "n": 2, "d": 2, "c": 1, "h": 1}, 0).task(50), 1)
    for size in plan.sizes():
        task = plan.task(size)
        runs = _runs(task, REPETITIONS)
        points.append(
            {
                "size": size,
                "cpu": float(np.median([run.cpu for run in runs])),
                "wall": float(np.median([run.wall for run in runs])),
                "memory": max(0.1, max(run.memory for run in runs) - empty[0].memory),
                "bytes": task.X.nbytes,
                "gap": max(run.gap for run in runs),
                "active": runs[-1].active,
            }
        )
        print(f"{plan.axis}={size}: {points[-1]}", file=sys.stderr, flush=True)
    return {
        "points": points,
        "slope": slope(plan.sizes(), [point["cpu"] for point in points]),
        "memory_slope": slope(plan.sizes(), [point["memory"] for point in points]),
        "why": WHY[plan.axis],
    }


def slope(sizes: list[int], values: list[float]) -> float:
    """Slope of log value against log size, by least squares over the last three points.

    Examples
    --------
    >>> from benchmarks.scaling import slope
    >>> round(slope([1, 2, 4, 8], [9.0, 4.0, 16.0, 64.0]), 6)
    2.0
    """
    x, y = np.log(sizes[-3:]), np.log(np.maximum(values[-3:], 1e-9))
    return float(np.polyfit(x, y, 1)[0])


def _runs(task: Task, times: int) -> list[Run]:
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        task.save(Path(scratch))
        process = Process(OURS)
        process.give(Path(scratch))
        try:
            return [process.run(task, {"tol": TOLERANCE}, 600.0) for _ in range(times)]
        finally:
            process.end()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--axes", default="N,n,d,c,h")
    parser.add_argument("--doublings", type=int, default=DOUBLINGS)
    parser.add_argument("--results", type=Path, default=RESULTS)
    for name, size in BASE.items():
        parser.add_argument(f"--base-{name}", type=int, default=size)
    options = parser.parse_args(arguments)
    base = {name: getattr(options, f"base_{name}") for name in BASE}
    results = read("scaling", options.results) or {"axes": {}}
    for axis in options.axes.split(","):
        results["axes"][axis] = measure(Plan(axis, base, options.doublings))
        told = results["axes"][axis]
        print(
            f"{axis}: time grows as {axis}^{told['slope']:.2f}, memory as "
            f"{axis}^{told['memory_slope']:.2f}; {told['why']}"
        )
    command = " ".join(["python -m benchmarks.scaling", *sys.argv[1:]])
    versions = {name: version(name) for name in ("convexformer", "numpy", "scipy")}
    results |= {"base": base, "environment": describe(versions, command, results)}
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "scaling.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
