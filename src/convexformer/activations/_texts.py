"""Texts from a file: one per line, or pairs separated by a tab."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

Text = str | tuple[str, str]


def read_texts(path: str | os.PathLike[str]) -> list[Text]:
    """Texts of a UTF-8 file, a line each; a line with a tab is a pair.

    Parameters
    ----------
    path : path-like

    Returns
    -------
    list of str, or of (str, str)

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from convexformer.activations import read_texts
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "texts.txt")
    ...     _ = file.write_text("A question?\\tAn answer.\\nAnother?\\tYes.\\n")
    ...     read_texts(file)
    [('A question?', 'An answer.'), ('Another?', 'Yes.')]
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give a text file with a text per line.")
    if not path.is_file():
        raise ValueError(f"there is no file {path}; give a text file with a text per line.")
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}); convert it first.") from error
    lines = [line.removesuffix("\r") for line in lines]
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise ValueError(f"{path} is empty; it must hold a text per line.")
    return check_texts([_read_line(line) for line in lines], f"line {{}} of {path}")


def _read_line(line: str) -> Text | tuple[str, ...]:
    return tuple(line.split("\t")) if "\t" in line else line


def check_texts(texts: Sequence[object], name: str = "texts[{}]") -> list[Text]:
    """`texts`, all single or all pairs, none blank; `name` says which, from 1 for lines."""
    if isinstance(texts, str):
        raise ValueError("texts must be a list of texts, got one text; pass [text].")
    first = 1 if name.startswith("line") else 0
    found: list[Text] = []
    for number, text in enumerate(texts, start=first):
        parts = (text,) if isinstance(text, str) else _row(text)
        words = [part for part in parts if isinstance(part, str)]
        if not 1 <= len(words) == len(parts) <= 2:
            raise ValueError(
                f"{name.format(number)} must be a text or a pair of texts (in a file, separated by "
                f"one tab); got {str(text)[:80]!r}."
            )
        if not all(word.strip() for word in words):
            raise ValueError(f"{name.format(number)} is blank; remove it.")
        if found and isinstance(found[0], str) != (len(words) == 1):
            raise ValueError(
                f"{name.format(number)} is {'one text' if len(words) == 1 else 'a pair'}, the ones "
                "before are not; give only single texts or only pairs."
            )
        found.append(words[0] if len(words) == 1 else (words[0], words[1]))
    if not found:
        raise ValueError("texts is empty; give at least one text.")
    return found


def _row(text: object) -> tuple[object, ...]:
    return tuple(text) if isinstance(text, (tuple, list)) else ()


def fingerprint(texts: Sequence[Text]) -> str:
    """SHA-256 of the texts."""
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()
