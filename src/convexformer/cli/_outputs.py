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
        if not os.access(path, os.W_OK):
            raise InputError(f"{path} cannot be written: permission denied.")
    _check_inside(path.parent)


def check_folder(folder: Path, names: Sequence[str] = (), force: bool = False) -> list[Path]:
    """The files `names` in `folder`, which is made with the first file; raises if it cannot be."""
    files = [folder / name for name in names]
    if folder.is_dir():
        for file in files:
            check_output(file, force)
    elif folder.exists():
        raise InputError(f"{folder} is a file; give the name of a folder.")
    _check_inside(folder if folder.is_dir() else folder.parent)
    return files


def _check_inside(folder: Path) -> None:
    if not folder.is_dir():
        raise InputError(f"the folder {folder} does not exist; create it or name another.")
    if not os.access(folder, os.W_OK):
        raise InputError(f"the folder {folder} cannot be written: permission denied.")


def write(path: Path, content: bytes | str) -> None:
    """Write a file whole or not at all: an old one stays until the new one is complete."""
    path.parent.mkdir(exist_ok=True)
    write_whole(path, content.encode() if isinstance(content, str) else content)


def save(figure: Any, path: Path) -> None:
    """Write a figure in the format its name says, and close it."""
    from matplotlib import pyplot as plt

    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix.lower()[1:], dpi=DPI)
    plt.close(figure)
    write(path, buffer.getvalue())
