"""Finished jobs in a file, and time that is not to be exceeded."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from .records import Record, alike, append, read_lines, stamp

Report = Callable[[int, str], None]


class Task(Protocol):
    """A job: told apart by its key, and run in a folder in which it may keep what is half done."""

    @property
    def key(self) -> Record: ...

    def run(self, folder: Path) -> Record: ...


class OutOfTime(Exception):
    """There is no time to begin another job; what is finished is kept."""


def _is_of(key: Record, line: Record) -> bool:
    """Whether a finished job agrees with all that this key says."""
    return all(name in line and alike(value, line[name]) for name, value in key.items())


class Ledger:
    """Does jobs that are not done yet, and remembers all.

    Parameters
    ----------
    folder : Path
        For ``jobs.jsonl``, a line per finished job, and ``running``, what is half done.
    max_minutes : float, optional
        No job is begun after so long.
    report : callable, optional
        Called as ``report(done, what)`` before every job that has to be run.
    """

    def __init__(
        self,
        folder: Path,
        max_minutes: float | None = None,
        report: Report = lambda done, what: None,
    ) -> None:
        self.file, self.running, self.report = folder / "jobs.jsonl", folder / "running", report
        self.lines = list(read_lines(self.file))
        self.records: list[Record] = []
        self.complete = True
        self.deadline = None if max_minutes is None else time.monotonic() + 60 * max_minutes

    def do(self, job: Task, *, at_once: bool = False) -> Record:
        """The record of a job, from the file or by running it; `at_once`: even if time is over."""
        key = job.key
        record = next((line for line in reversed(self.lines) if _is_of(key, line)), None)
        if record is None:
            late = self.deadline is not None and time.monotonic() > self.deadline
            if late and not at_once:
                raise OutOfTime
            self.report(len(self.records), str(job))
            record = job.run(self.running) | stamp()
            append(self.file, record)
            self.lines.append(record)
        self.records.append(record)
        return record

    @contextmanager
    def part(self) -> Iterator[None]:
        """A part of the work that may be left for later, when there is no time to begin its jobs.

        Parts after it are still asked for, so that what they have finished is in the records.
        """
        try:
            yield
        except OutOfTime:
            self.complete = False

    def do_all(self, jobs: Iterable[Task]) -> list[Record]:
        """The records of `jobs`, in their order."""
        return [self.do(job) for job in jobs]
