"""One contestant in a process of its own: reads commands from stdin, answers on stdout, in JSON.

Run as ``python -m benchmarks.worker NAME``. ``{"task": folder}`` loads a task. ``{"setting": {...},
"limit": seconds, "again": bool, "out": file}`` solves it (again and again while that is short),
writes ``(Z, b)`` of every beta to `file` and answers with the times of one call. Whatever a package
prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from .contestants import contestant
from .objective import Task

SHORT = 0.03  # seconds: shorter calls are repeated, because clocks of processor time are coarse


LEEWAY = 30.0  # seconds of processor time past its limit after which a run ends whatever happens


class OutOfTimeError(Exception):
    """The processor time of a run is spent."""

    raised = False  # packages may catch it, or fail in other words


def main(name: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # stdout is for answers alone
    module, start = contestant(name), time.perf_counter()
    module.load()
    loading = time.perf_counter() - start
    _answer(answers, loading=loading, versions={pkg: version(pkg) for pkg in module.PACKAGES})
    signal.signal(signal.SIGPROF, _alarm)
    prepared: Any = None
    for line in sys.stdin:
        command = json.loads(line)
        if "task" in command:
            del prepared
            prepared = module.prepare(Task.load(Path(command["task"])))
            _answer(answers)
        else:
            _answer(answers, **_run(module, prepared, command))


def _answer(answers: TextIO, **words: Any) -> None:
    print(json.dumps(words), file=answers, flush=True)


def _alarm(*_: Any) -> None:
    OutOfTimeError.raised = True
    raise OutOfTimeError


def _run(module: Any, prepared: Any, command: dict[str, Any]) -> dict[str, Any]:
    """Times of one call, or why it failed. Packages that hold the GIL end by the parent's kill."""
    failed, OutOfTimeError.raised = "", False
    _end_after(command["limit"] + LEEWAY)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        signal.setitimer(signal.ITIMER_PROF, command["limit"])
        wall, cpu, calls = time.perf_counter(), time.process_time(), 0
        try:
            while calls == 0 or (command["again"] and time.perf_counter() < wall + SHORT):
                found = module.solve(prepared, command["setting"])
                calls += 1
        except Exception as error:  # a peer's failure is a result, not an end
            failed = f"{type(error).__name__}: {error}"[:200]
        finally:
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            wall, cpu = wall / max(calls, 1), cpu / max(calls, 1)
            signal.setitimer(signal.ITIMER_PROF, 0)
    if OutOfTimeError.raised:
        failed = "out of time"
    if not failed:
        Z, b = (np.stack(parts) for parts in zip(*found, strict=True))
        np.savez(command["out"], Z=Z, b=b)
    return {"wall": wall, "cpu": cpu, "memory": _memory(), "failed": failed}


def _end_after(seconds: float) -> None:
    """Have the system end this process then, in case the runner is gone by that time."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + seconds), hard))


def _memory() -> float:
    """Highest resident set so far, MB; `getrusage` would count what the parent had at the fork."""
    status = Path("/proc/self/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return float(lines["VmHWM"].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main(sys.argv[1])
