"""Bytes of a model file: safetensors with a checksum, checked before anything is parsed.

A safetensors file is the length of its header (8 bytes), the header (JSON: what every array is and
where it lies, and metadata) and the arrays. From format 2 on the metadata begin with the SHA-256 of
the whole file, taken with zeros in the checksum's own place. No byte can change unnoticed.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

import convexformer

from .problem.risk import Array

FORMAT = "convexformer"
VERSION = 2  # version 1 had no checksum and no status
BEGINNING = b'{"__metadata__":{"checksum":"'  # of the header of every version with a checksum
CHECKSUM = slice(8 + len(BEGINNING), 8 + len(BEGINNING) + 64)  # a SHA-256 in hexadecimal


class OtherFileError(ValueError):
    """A file that is whole, but that this version of the library cannot read."""


def pack(description: dict[str, Any], arrays: dict[str, Array]) -> bytearray:
    """A model file of the current version."""
    metadata = {"format": FORMAT, "format_version": str(VERSION), "model": json.dumps(description)}
    header: dict[str, Any] = {"__metadata__": {"checksum": "0" * 64, **metadata}}
    parts, end = [], 0
    for name, array in arrays.items():
        parts.append(np.ascontiguousarray(array, dtype="<f8").tobytes())
        begin, end = end, end + len(parts[-1])
        header[name] = {"dtype": "F64", "shape": array.shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # arrays begin at multiples of their item size
    content = bytearray(b"".join([len(text).to_bytes(8, "little"), text, *parts]))
    content[CHECKSUM] = checksum(content)
    return content


def checksum(content: bytes | bytearray) -> bytes:
    """SHA-256 of a file, with zeros in the checksum's own place."""
    digest = hashlib.sha256(memoryview(content)[: CHECKSUM.start])
    digest.update(b"0" * 64)
    digest.update(memoryview(content)[CHECKSUM.stop :])
    return digest.hexdigest().encode()


def unpack(content: bytes | bytearray) -> tuple[int, dict[str, Any], dict[str, Array]]:
    """Version, description and arrays of a model file, not yet compared with the class it names.

    Nothing is parsed before the checksum agrees. Files of format 1 have no checksum.
    """
    start = 8 + int.from_bytes(content[:8], "little")
    if not 8 < start <= len(content):
        raise ValueError("it is truncated, damaged, or no safetensors file")
    checked = content.startswith(BEGINNING, 8)
    if checked and content[CHECKSUM] != checksum(content):
        raise ValueError(
            "its checksum does not agree with its content, so it is truncated or damaged"
        )
    header = _read_object(content[8:start].decode())
    metadata = header.pop("__metadata__", {})
    if metadata.get("format") != FORMAT:
        raise OtherFileError(
            "it is a safetensors file, but holds no convexformer model. Pass a file that an "
            "estimator's save method wrote."
        )
    version = int(metadata["format_version"])
    if version > VERSION:
        raise OtherFileError(
            f"it has format version {version}, and convexformer {convexformer.__version__} reads "
            f"versions up to {VERSION}. Upgrade convexformer."
        )
    if version != (VERSION if checked else 1):
        raise ValueError("its checksum is missing, so it is damaged or another program wrote it")
    if any(entry["dtype"] != "F64" for entry in header.values()):
        raise ValueError("it holds arrays of another dtype than F64")
    try:
        return version, _read_object(metadata["model"]), load(bytes(content))
    except SafetensorError as error:
        raise ValueError(f"its arrays do not fill the file ({error})") from error


def _read_object(text: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("its JSON holds no object")
    return value
