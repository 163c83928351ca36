"""What all experiments share: finished jobs in a file, whole files, the machine, and tables."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = ("convexformer", "numpy", "scipy", "scikit-learn", "torch")

Record = dict[str, Any]


def append(file: Path, record: Record) -> None:
    """Add a line in one write, so that runs side by side do not mix theirs."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        _cut_unfinished(descriptor)
        os.write(descriptor, (json.dumps(record) + "\n").encode())
    finally:
        os.close(descriptor)


def _cut_unfinished(descriptor: int) -> None:
    """Drop a last line without an end, which a full disk may leave."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        whole = os.pread(descriptor, size, 0)
        os.ftruncate(descriptor, whole.rfind(b"\n") + 1)


def read_lines(file: Path) -> Iterator[Record]:
    """The records that :func:`append` added; none where there is no file yet.

    A last line that was not written to its end is passed over: its job will be done again.
    """
    text = file.read_text() if file.exists() else ""
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{file}, line {number}, is not a record ({error}). Remove the line; its job will "
                "be done again."
            ) from error


def alike(a: Any, b: Any) -> bool:
    """Whether values as JSON has them are equal but for the last bits of numbers.

    Logarithms differ there from one machine to another, and with them grids of penalties: what was
    finished elsewhere is finished.

    Examples
    --------
    >>> alike({"betas": [0.1 + 0.2]}, {"betas": [0.3]}), alike([0.3], [0.31])
    (True, False)
    """
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(alike(a[name], b[name]) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-12)
    return bool(a == b)


def replace(file: Path, text: str) -> None:
    """Write a file whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(file)


def stamp() -> Record:
    """When and on what a job was run."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "environment": environment(),
    }


def environment() -> Record:
    """What a job is run on."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = models[0].split(":")[1].strip() if models else cpu
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": 1,
        "versions": {package: version(package) for package in PACKAGES}
        | {"python": platform.python_version()},
    }


def environments(jobs: Iterable[Record]) -> list[Record]:
    """The different environments of `jobs`, in the order they are met."""
    different: list[Record] = []
    for job in jobs:
        if job["environment"] not in different:
            different.append(job["environment"])
    return different


# Markdown ---------------------------------------------------------------------------------------


def environment_line(one: Record) -> str:
    """An environment as an item of a list."""
    versions = ", ".join(f"{name} {number}" for name, number in one["versions"].items())
    return f"- {one['cpu']}, {one['cores']} cores of which {one['threads']} was used; {versions}"


def table(header: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
