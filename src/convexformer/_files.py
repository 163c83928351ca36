"""Files that are written whole or not at all, whatever interrupts the writer."""

from __future__ import annotations

import glob
import os
import secrets
import stat
import time
from contextlib import suppress
from pathlib import Path

STALE = 24 * 3600  # seconds after which a part is of a writer that was killed


def write_whole(path: str | os.PathLike[str], content: bytes | bytearray) -> None:
    """Write `content` to a file beside `path`, then move that file into place.

    A reader sees the old file or the new one, also after a crash. An existing file keeps its mode,
    and a symlink stays a symlink: its target is replaced. What killed writers left is removed a day
    later.

    Parameters
    ----------
    path : path-like
    content : bytes-like
    """
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(f"{path} is a symlink that leads back to itself. Name another file.")
    for old in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        with suppress(OSError):  # gone, or of another user
            if time.time() - old.stat().st_mtime > STALE:
                old.unlink()
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with open(part, "xb") as file:
            with suppress(FileNotFoundError):  # before the content is there for others to read
                os.chmod(part, stat.S_IMODE(os.stat(target).st_mode))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
    if os.name != "nt":  # Windows cannot open folders
        handle = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(handle)  # of the new name
        finally:
            os.close(handle)
