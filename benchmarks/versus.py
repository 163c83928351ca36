"""Compare this tree with another commit, cell by cell, side by side.

``python -m benchmarks.versus 10b1b08 --grid quick`` builds the commit in a temporary worktree. Both
trees then solve the same cells in turn, each in a process of its own, and the gap of every run is
recomputed. Printed are median seconds of both, and the ratio now / before: below 1 is faster. Use
an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from .cells import GRIDS
from .contestants import OURS
from .objective import Cell, MissingDataError
from .processes import ROOT, Process

WIDTH = 54  # of the longest name of a cell
LIMIT = 600.0  # seconds of processor time that a run may take


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """The sources of `commit` in a temporary folder, compiled."""
    with tempfile.TemporaryDirectory(prefix="versus-") as folder:
        tree = Path(folder) / "tree"
        _run(["git", "worktree", "add", "--quiet", "--detach", str(tree), commit], ROOT)
        try:
            _run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], tree)
            yield tree
        finally:
            _run(["git", "worktree", "remove", "--force", str(tree)], ROOT)


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def compare(cell: Cell, trees: dict[str, Path], rounds: int) -> dict[str, Any]:
    """Median seconds and largest gap of every tree in one cell."""
    task = cell.task()
    processes = {name: Process(OURS, cell.threads, root=tree) for name, tree in trees.items()}
    runs: dict[str, list[Any]] = {name: [] for name in trees}
    with tempfile.TemporaryDirectory(prefix="versus-") as folder:
        task.save(Path(folder))
        try:
            for process in processes.values():
                process.give(Path(folder))
            for k in range(rounds + 1):  # the first round warms up
                for name in list(trees) if k % 2 else reversed(trees):
                    run = processes[name].run(task, {"tol": cell.gap}, LIMIT)
                    runs[name] += [run] if k else []
        finally:
            for process in processes.values():
                process.end()
    return {
        name: {
            "seconds": float(np.median([run.cpu for run in own])),
            "gap": max(run.gap for run in own),
            "failed": next((run.failed for run in own if run.failed), ""),
            "runs": [run.cpu for run in own],
        }
        for name, own in runs.items()
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", help="what to compare with")
    parser.add_argument("--grid", choices=list(GRIDS), default="quick")
    parser.add_argument("--only", default="", help="cells whose name starts so")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="a JSON file for all runs")
    options = parser.parse_args(arguments)
    cells = [cell for cell in GRIDS[options.grid]() if cell.name.startswith(options.only)]
    results: dict[str, Any] = {}
    print(f"{'cell':{WIDTH}}{'before':>10}{'now':>10}{'now / before':>14}")
    with worktree(options.commit) as before:
        trees = {"before": before, "now": ROOT}
        for cell in cells:
            try:
                results[cell.name] = found = compare(cell, trees, options.rounds)
            except MissingDataError as missing:
                print(f"{cell.name:{WIDTH}} skipped: {missing}", flush=True)
                continue
            _print(cell, found)
            if options.out:
                _write(options, results)
    if results:
        _print_sum(results)


def _print(cell: Cell, found: dict[str, Any]) -> None:
    old, new = found["before"], found["now"]
    notes = [
        f"{name}: {one['failed'] or 'gap {:.0e}'.format(one['gap'])}"
        for name, one in found.items()
        if one["failed"] or one["gap"] > cell.gap
    ]
    ratio = new["seconds"] / old["seconds"]
    line = f"{cell.name:{WIDTH}}{old['seconds']:10.4f}{new['seconds']:10.4f}{ratio:14.2f}"
    print(line, *notes, flush=True)


def _print_sum(results: dict[str, Any]) -> None:
    old, new = (
        np.array([found[name]["seconds"] for found in results.values()])
        for name in ("before", "now")
    )
    print(f"{'sum':{WIDTH}}{old.sum():10.4f}{new.sum():10.4f}{new.sum() / old.sum():14.2f}")
    print(f"{'geometric mean':{WIDTH + 20}}{np.exp(np.log(new / old).mean()):14.2f}")


def _write(options: argparse.Namespace, cells: dict[str, Any]) -> None:
    words = f"python -m benchmarks.versus {options.commit} --grid {options.grid}"
    measured = datetime.now(UTC).isoformat(timespec="minutes")
    record = {"command": words, "measured": measured, "rounds": options.rounds, "cells": cells}
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
