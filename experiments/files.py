"""Files of records: lines that are added whole, and files that are written whole."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def replace(file: Path, content: str | bytes) -> None:
    """Write a file whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    draft.write_bytes(content.encode() if isinstance(content, str) else content)
    draft.replace(file)
