"""Bytes of a model file: safetensors with a checksum, checked before any array is made.

A safetensors file is the length of its header (8 bytes), the header (JSON: what every array is and
where it lies, and metadata) and the arrays. From format 2 on the metadata begin with the SHA-256 of
the whole file, taken with zeros in the checksum's own place. No byte can change unnoticed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import convexformer

Array = NDArray[np.float64]

FORMAT = "convexformer"
VERSION = 2  # version 1 had no checksum and no status
LENGTH_BYTES = 8  # of the header's length, little-endian
HEADER_LIMIT = 100_000_000  # bytes, the limit of safetensors itself
BEGINNING = b'{"__metadata__":{"checksum":"'  # of the header of every version with a checksum
DIGITS = 64  # of a SHA-256 in hexadecimal
CHECKSUM = slice(LENGTH_BYTES + len(BEGINNING), LENGTH_BYTES + len(BEGINNING) + DIGITS)
DTYPE = "F64"  # of all arrays
MOST_AXES = 4  # of any array
INTEGER_DIGITS = 20  # with its sign, an integer of 64 bits has no more


class OtherFileError(ValueError):
    """A file that is whole, but that this version of the library cannot read."""


@dataclass(frozen=True)
class Tensor:
    """Where an array lies in a file, and its shape."""

    start: int  # bytes from the beginning of the file
    shape: tuple[int, ...]

    def read(self, content: bytearray) -> Array:
        """The array, copied."""
        count = math.prod(self.shape)
        stored = np.frombuffer(content, "<f8", count, self.start)
        return stored.astype(np.float64, copy=True).reshape(self.shape)


@dataclass(frozen=True)
class Layout:
    """What the header of a model file says."""

    version: int
    description: dict[str, Any]
    tensors: dict[str, Tensor]


def pack(description: dict[str, Any], arrays: dict[str, Array]) -> bytearray:
    """A model file of the current version."""
    header: dict[str, Any] = {
        "__metadata__": {
            "checksum": "0" * DIGITS,
            "format": FORMAT,
            "format_version": str(VERSION),
            "model": json.dumps(description),
        }
    }
    parts, end = [], 0
    for name, array in arrays.items():
        parts.append(np.ascontiguousarray(array, dtype="<f8").tobytes())
        begin, end = end, end + len(parts[-1])
        header[name] = {"dtype": DTYPE, "shape": array.shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)  # arrays begin at multiples of their item size
    content = bytearray(b"".join([len(text).to_bytes(LENGTH_BYTES, "little"), text, *parts]))
    content[CHECKSUM] = checksum(content)
    return content


def checksum(content: bytearray) -> bytes:
    """SHA-256 of a file, with zeros in the checksum's own place."""
    digest = hashlib.sha256(memoryview(content)[: CHECKSUM.start])
    digest.update(b"0" * DIGITS)
    digest.update(memoryview(content)[CHECKSUM.stop :])
    return digest.hexdigest().encode()


def read_content(path: Path) -> bytearray:
    """All bytes of a file; devices and pipes, which may never end, are refused."""
    with open(path, "rb", opener=_open_at_once) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OtherFileError("it is no regular file. Pass a file that save wrote.")
        content = bytearray(status.st_size)
        del content[file.readinto(content) :]  # where the file was cut meanwhile
    return content


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for the other end of a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def unpack(content: bytearray) -> Layout:
    """The layout of a model file; a ValueError says what is wrong with it.

    Nothing is parsed before the checksum agrees, and no array is made. Files of format 1 have no
    checksum.
    """
    stop = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little")
    if not LENGTH_BYTES < stop <= min(len(content), LENGTH_BYTES + HEADER_LIMIT):
        raise ValueError("it is truncated, damaged, or no safetensors file")
    checked = content.startswith(BEGINNING, LENGTH_BYTES)
    if checked and content[CHECKSUM] != checksum(content):
        raise ValueError(
            "its checksum does not agree with its content, so it is truncated or damaged"
        )
    header = strict_object(content[LENGTH_BYTES:stop])
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise OtherFileError(
            "it is a safetensors file, but holds no convexformer model. Pass a file that an "
            "estimator's save method wrote."
        )
    version = _version(metadata, checked)
    description = strict_object(metadata["model"])
    return Layout(version, description, _tensors(header, stop, len(content)))


def _version(metadata: dict[str, Any], checked: bool) -> int:
    """Version of the format, with the keys that belong to it."""
    text = metadata.get("format_version")
    version = int(text) if isinstance(text, str) and text.isdecimal() and len(text) < 5 else 0
    if version > VERSION:
        raise OtherFileError(
            f"it has format version {version}, and convexformer {convexformer.__version__} reads "
            f"versions up to {VERSION}. Upgrade convexformer."
        )
    expected = {"format", "format_version", "model"} | ({"checksum"} if checked else set())
    if version > 1 and not checked:
        raise ValueError("its checksum is missing, so it is damaged or another program wrote it")
    if version != (VERSION if checked else 1) or set(metadata) != expected:
        raise ValueError("its metadata are damaged")
    if not isinstance(metadata["model"], str):
        raise ValueError("its description of the model is no text")
    return version


def _tensors(header: dict[str, Any], start: int, size: int) -> dict[str, Tensor]:
    """Arrays that fill the file from `start` to `size` without gaps, in the order they lie in."""
    found = {}
    for name, entry in header.items():
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"the entry of array {name!a} is damaged")
        if entry["dtype"] != DTYPE:
            raise ValueError(f"array {name!a} is not of dtype {DTYPE}")
        shape, offsets = entry["shape"], entry["data_offsets"]
        if not (_whole(shape) and len(shape) <= MOST_AXES and _whole(offsets)):
            raise ValueError(f"shape or offsets of array {name!a} are damaged")
        found[name] = (offsets, tuple(shape))
    tensors, end = {}, 0
    for name, (offsets, shape) in sorted(found.items(), key=lambda item: item[1]):
        begin, end = end, end + 8 * math.prod(shape)
        if offsets != [begin, end]:
            raise ValueError(f"shape and offsets of array {name!a} disagree")
        tensors[name] = Tensor(start + begin, shape)
    if start + end != size:
        raise ValueError(f"its arrays end at byte {start + end} and the file at {size}")
    return tensors


def _whole(values: Any) -> bool:
    """Whether `values` is a list of whole numbers that are not negative."""
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


# JSON -----------------------------------------------------------------------------------------


def strict_object(text: str | bytearray) -> dict[str, Any]:
    """A JSON object: no name twice, no integer beyond 64 bits, no deep nesting."""
    try:
        text = text if isinstance(text, str) else text.decode()
        value = json.loads(text, object_pairs_hook=_unique, parse_int=_integer)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"its JSON is damaged ({error})") from error
    if not isinstance(value, dict):
        raise ValueError("its JSON holds no object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("its JSON has the same name twice")
    return found


def _integer(digits: str) -> int:
    if len(digits) > INTEGER_DIGITS:
        raise ValueError("its JSON has an integer of more than 64 bits")
    return int(digits)
