"""Files that are written whole or not at all, whatever interrupts the writer."""

from __future__ import annotations

import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows, where an open file cannot be removed and so needs no lock
    fcntl = None  # type: ignore[assignment]


def write_whole(path: str | os.PathLike[str], content: bytes | bytearray) -> None:
    """Write `content` to a file beside `path`, then move that file into place.

    A reader sees the old file or the new one, also after a crash. An existing file keeps its mode,
    and a symlink stays a symlink: its target is replaced.

    Parameters
    ----------
    path : path-like
    content : bytes-like
    """
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(f"{path} is a symlink that leads back to itself. Name another file.")
    remove_stale_parts(target)
    while not _written(target, content):
        pass
    _sync_folder(target.parent)


def remove_stale_parts(target: Path) -> None:
    """Remove what killed writers of `target` left; parts of living writers are locked."""
    name = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]+\.part")
    with os.scandir(target.parent) as entries:
        parts = [
            Path(entry.path)
            for entry in entries
            if name.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
        ]
    for part in parts:
        with suppress(OSError), open(part, "r+b") as file:  # locked, or of another user: stays
            _lock(file)
            part.unlink()


def _written(target: Path, content: bytes | bytearray) -> bool:
    """Whether the file was written; False where another process removed the part as stale."""
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with open(part, "xb") as file:
            with suppress(OSError):  # file systems without locks
                _lock(file)
            if os.fstat(file.fileno()).st_nlink == 0:  # removed before it was locked
                return False
            with suppress(FileNotFoundError):  # before the content is there for others to read
                os.chmod(part, stat.S_IMODE(os.stat(target).st_mode))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            if fcntl is None:
                file.close()  # Windows does not move open files; elsewhere the lock must hold on
            os.replace(part, target)
        return True
    finally:
        part.unlink(missing_ok=True)


def _lock(file: IO[bytes]) -> None:
    """Lock a file until it is closed; OSError where another process has the lock."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _sync_folder(folder: Path) -> None:
    """Put the new name on the disk too."""
    if os.name == "nt":  # Windows cannot open folders
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
