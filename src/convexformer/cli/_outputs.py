"""Files that commands write: checked before any work is done, written whole or not at all."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._files import write_whole
from ._console import InputError

FIGURES = (".png", ".pdf", ".svg")
DPI = 200


def check_output(
    path: Path, force: bool, inputs: Sequence[Path] = (), kinds: Sequence[str] = ()
) -> None:
    """Raise if `path` exists, could not be written, or does not end as one of the `kinds` does.

    A file that the command reads, one of `inputs`, is never overwritten, also not with --force.
    """
    if kinds and path.suffix.lower() not in kinds:
        raise InputError(f"{path} must end in {' or '.join(kinds)}.")
    if path.is_dir():
        raise InputError(f"{path} is a directory; give the name of a file.")
    if path.exists():
        if any(source.exists() and path.samefile(source) for source in inputs):
            raise InputError(f"{path} is a file that this command reads; name another one.")
        if not force:
            raise InputError(f"{path} exists; use --force to overwrite it.")
        _check_permission(path)
    check_folder(path.parent, new=False)


def check_folder(folder: Path, *, new: bool = True) -> None:
    """Raise unless files can be made in `folder`; a `new` one is made with the first file."""
    if folder.exists() and not folder.is_dir() and new:
        raise InputError(f"{folder} is a file; give the name of a folder.")
    place = folder.parent if new and not folder.exists() else folder
    if not place.is_dir():
        raise InputError(f"the folder {place} does not exist; create it or name another.")
    _check_permission(place)


def _check_permission(path: Path) -> None:
    if not os.access(path, os.W_OK):
        raise InputError(f"{path} cannot be written: permission denied.")


def check_files(
    folder: Path, names: Sequence[str], force: bool, inputs: Sequence[Path] = ()
) -> list[Path]:
    """The files `names` in `folder`; raises if one of them cannot be written."""
    check_folder(folder)
    files = [folder / name for name in names]
    for file in files if folder.is_dir() else ():
        check_output(file, force, inputs)
    return files


def write(path: Path, content: bytes | str) -> None:
    """Write a file whole or not at all: an old one stays until the new one is complete."""
    path.parent.mkdir(exist_ok=True)
    try:
        write_whole(path, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}.") from error


def save(figure: Any, path: Path) -> None:
    """Write a figure in the format its name says, and close it."""
    from matplotlib import pyplot as plt

    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix.lower()[1:], dpi=DPI)
    plt.close(figure)
    write(path, buffer.getvalue())
