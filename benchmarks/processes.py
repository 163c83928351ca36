"""Contestants' processes, seen from the runner: started, asked, and ended when late."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .contestants import contestant
from .objective import Run, Task, evaluate

ROOT = Path(__file__).resolve().parent.parent
GRACE = 1.0  # seconds of processor time past the limit before a process is ended
PATIENCE = 4.0  # on a busy machine the clock may show so many times the processor time
THREADS = ("OMP", "OPENBLAS", "MKL", "BLIS", "VECLIB_MAXIMUM", "NUMEXPR", "NUMBA")


def interpreter(environment: str) -> Path:
    """The Python of an environment; that of the runner is "main"."""
    if environment == "main":
        return Path(sys.executable)
    return ROOT / "benchmarks" / ".venvs" / environment / "bin" / "python"


def available(name: str) -> bool:
    """Whether the environment of a contestant was made."""
    return interpreter(contestant(name).ENVIRONMENT).exists()


class Process:
    """A contestant in its own process, started when first needed and again after a kill.

    Parameters
    ----------
    name : str
    threads : int
        What every library of threads is told.
    cold : bool
        Time the first call as it comes, with what it compiles.
    root : Path
        The tree whose package and worker are run: this one, or that of another commit.
    environment : dict of str, optional
        Variables of its environment, beside those of the runner.
    """

    def __init__(
        self,
        name: str,
        threads: int = 1,
        cold: bool = False,
        root: Path = ROOT,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.name, self.threads, self.cold, self.root = name, threads, cold, root
        self.environment = environment or {}
        self.module = contestant(name)
        self.loading, self.versions = 0.0, {}  # type: float, dict[str, str]
        self._child: subprocess.Popen[str] | None = None
        self._folder: Path | None = None
        self._loaded = self._late = False
        self._compiled: set[tuple[Any, ...]] = set()

    def give(self, folder: Path) -> None:
        """Choose the task that following runs solve; it is loaded when the first one is."""
        self._folder, self._loaded = folder, False

    def run(self, task: Task, setting: dict[str, Any], limit: float) -> Run:
        """Solve once; the gap is computed here, from what was written."""
        assert self._folder is not None, "give a task first"
        self._start()
        if getattr(self.module, "COMPILES", False) and not self.cold:
            self._compile(task, setting)
        if not self._loaded:
            self._ask({"task": str(self._folder)}, 600.0)
            self._loaded = True
        out = self._folder / f"{self.name}.npz"
        answer = self._ask(
            {
                "setting": setting,
                "limit": limit * self.threads,
                "again": not self.cold,
                "out": str(out),
            },
            limit * self.threads + GRACE,
        )
        if answer is None:
            why = "out of time" if self._late else "the process died"
            answer = {"wall": limit, "cpu": limit, "memory": 0.0, "failed": why}
        run = Run(self.name, setting, gap=np.inf, **answer)
        if not run.failed:
            self._judge(run, task, out)
        return run

    def _compile(self, task: Task, setting: dict[str, Any]) -> None:
        """Once for every kind of task, solve a piece of it, untimed."""
        kind = (task.loss, task.intercept, setting.get("solver"))
        if kind in self._compiled or self._folder is None:
            return
        gates = None if task.gates is None else task.gates[:50]
        piece = replace(task, X=task.X[:50], Y=task.Y[:50, :1], gates=gates).at(0.5)
        piece.save(self._folder / "piece")
        self._ask({"task": str(self._folder / "piece")}, 60.0)
        out = str(self._folder / "piece.npz")
        self._ask({"setting": setting, "limit": 120.0, "again": False, "out": out}, 120.0)
        self._compiled.add(kind)
        self._loaded = False

    def end(self) -> None:
        self._compiled.clear()
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            for pipe in (self._child.stdin, self._child.stdout):
                if pipe is not None:
                    pipe.close()
        self._child = None

    def _judge(self, run: Run, task: Task, out: Path) -> None:
        with np.load(out) as found:
            pairs = list(zip(found["Z"], found["b"], task.betas, strict=True))
        out.unlink()
        if not all(np.all(np.isfinite(Z)) and np.all(np.isfinite(b)) for Z, b, _ in pairs):
            run.failed = "not finite"
            return
        values = [evaluate(task, Z, b, beta) for Z, b, beta in pairs]
        run.gap = max(value.relative_gap for value in values)
        run.primals = [value.primal for value in values]
        run.duals = [value.dual for value in values]
        run.active = values[-1].active

    def _start(self) -> None:
        if self._child is not None:
            return
        one = {f"{library}_NUM_THREADS": str(self.threads) for library in THREADS}
        self._child = subprocess.Popen(
            [str(interpreter(self.module.ENVIRONMENT)), "-m", "benchmarks.worker", self.name],
            cwd=self.root,
            env={
                **os.environ,
                **one,
                "PYTHONWARNINGS": "ignore",
                "PYTHONPATH": str(self.root / "src"),
                **self.environment,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        answer = self._read(120.0)
        if answer is None:
            raise RuntimeError(
                f"{self.name} does not start; run "
                f"`{interpreter(self.module.ENVIRONMENT)} -m benchmarks.worker {self.name}` to see."
            )
        self.loading, self.versions, self._loaded = answer["loading"], answer["versions"], False

    def _ask(self, command: dict[str, Any], limit: float) -> dict[str, Any] | None:
        assert self._child is not None and self._child.stdin is not None
        self._child.stdin.write(json.dumps(command) + "\n")
        self._child.stdin.flush()
        answer = self._read(limit)
        if answer is None:
            self.end()
        return answer

    def _processor_time(self) -> float:
        """Of the process, where the system tells: compiled code does not see a signal's handler."""
        assert self._child is not None
        stat = Path(f"/proc/{self._child.pid}/stat")
        if not stat.exists():
            return 0.0
        fields = stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _read(self, limit: float) -> dict[str, Any] | None:
        """One answer; None where none came in time or the process died."""
        assert self._child is not None and self._child.stdout is not None
        self._late = False
        start, end = self._processor_time(), time.monotonic() + PATIENCE * limit
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._child.stdout, selectors.EVENT_READ)
            while not waiting.select(0.1):
                self._late = self._processor_time() > start + limit or time.monotonic() > end
                if self._late:
                    return None
        line = self._child.stdout.readline()
        return json.loads(line) if line else None
