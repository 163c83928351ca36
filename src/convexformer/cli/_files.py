"""Opening files that others wrote: every way in which reading fails becomes one message."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ._console import InputError, shortened, warned

LONGEST_REASON = 160  # characters of a reader's own message: NumPy's may hold a whole header
MOST_BYTES_TOLD = 10**18  # a larger number of bytes is not written out
ENCRYPTED = 1  # bit of the flags of a member of a zip archive
NUMBERS_AND_TEXT = "biufcUSmM"  # kinds of dtypes that are arrays of plain values

HEADERS: dict[tuple[int, int], Callable[[Any], tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


@contextmanager
def reading(path: Path, cure: str) -> Iterator[None]:
    """Say what was wrong with the file at `path`, and the `cure`, however its reader failed.

    zipfile, zlib, NumPy, pandas, pyarrow and json raise more than a dozen kinds of errors for files
    that are damaged, encrypted or made up.
    """
    try:
        yield
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(f"{path} does not fit into memory; give a part of it.") from error
    except Exception as error:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise InputError(
            f"{path} cannot be read: {shortened(reason, LONGEST_REASON)}. {cure}"
        ) from error


def check_file(path: Path) -> None:
    """Raise where there is no file `path`."""
    if not path.is_file():
        raise InputError(f"there is no file {path}.")


def read_model(path: Path) -> Any:
    """The model that fit saved to `path`."""
    check_file(path)
    from convexformer import load_model

    with reading(path, "Fit and save the model again."):
        try:
            with warned():
                return load_model(path)
        except ValueError as error:  # says all of that itself
            raise InputError(error) from error


def read_npy(path: Path) -> NDArray[Any]:
    """The array in a file of :func:`numpy.save`."""
    check_file(path)
    with reading(path, "Write it again with numpy.save."), open(path, "rb") as stream:
        return _read_array(stream, str(path), path.stat().st_size)


def read_npz(path: Path, wanted: tuple[str, ...], optional: tuple[str, ...]) -> dict[str, Any]:
    """Arrays in a file of :func:`numpy.savez`; raises where one of the `wanted` is not there."""
    check_file(path)
    with reading(path, "Write it again with numpy.savez."):
        if not zipfile.is_zipfile(path):
            raise InputError(
                f"{path} is not an npz file, or is damaged; write it with numpy.savez. What "
                "numpy.save writes is named .npy."
            )
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            for name in wanted:
                if name not in members:
                    holds = ", ".join(members) or "nothing"
                    raise InputError(f"{path} has no array {name!r}; it holds {holds}.")
            arrays = {}
            for name in (name for name in (*wanted, *optional) if name in members):
                member, what = members[name], f"array {name!r} of {path}"
                if member.flag_bits & ENCRYPTED:
                    raise InputError(f"{what} is encrypted; save it without a password.")
                with archive.open(member) as stream:
                    arrays[name] = _read_array(stream, what, member.file_size)
    return arrays


def _read_array(stream: IO[bytes], name: str, size: int) -> NDArray[Any]:
    """One array in NumPy's format from `size` bytes; its header is judged before memory is used."""
    shape, dtype = _header(stream, name)
    if dtype.hasobject:
        raise InputError(
            f"{name} cannot be read: it holds Python objects; save numbers or strings."
        )
    if dtype.kind not in NUMBERS_AND_TEXT:
        raise InputError(f"{name} holds records of type {dtype}; save numbers or strings.")
    promised = math.prod(shape) * max(1, dtype.itemsize)
    held = size - stream.tell()
    if promised > held:
        raise InputError(
            f"{name} is damaged: its header promises values of {_bytes(promised)}, and there are "
            f"{_bytes(held)}. Write the file again."
        )
    memory = _memory()
    if memory is not None and promised > memory:
        raise InputError(
            f"{name} has {_bytes(promised)}, more than the memory of this machine "
            f"({_bytes(memory)}); give a part of it."
        )
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)


def _header(stream: IO[bytes], name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of the array that begins in `stream`."""
    version = np.lib.format.read_magic(stream)
    if version not in HEADERS:
        raise InputError(f"{name} holds records; save numbers or strings.")
    try:
        shape, _, dtype = HEADERS[version](stream)
    except Exception as error:  # of NumPy, the tokenizer and the parser of Python
        raise InputError(f"{name} has a malformed header; write the file again.") from error
    if not all(type(length) is int and length >= 0 for length in shape):
        raise InputError(f"{name} has a malformed header; write the file again.")
    return shape, dtype


def _bytes(count: int) -> str:
    if count > MOST_BYTES_TOLD:
        return "more bytes than any disk holds"
    return f"{count:,} bytes"


def _memory() -> int | None:
    """Bytes of memory in this machine, where the system tells."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
