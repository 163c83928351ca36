"""Texts from a file: one per line, or pairs separated by a tab."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
    if not path.is_file():
        raise ValueError(f"there is no file {path}; give a text file with a text per line.")
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}); convert it first.") from error
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise ValueError(f"{path} is empty; it must hold a text per line.")
    texts = [tuple(line.split("\t")) if "\t" in line else line for line in lines]
    return check_texts(texts, f"line {{}} of {path}", first=1)


def check_texts(texts: Sequence[object], name: str = "texts[{}]", first: int = 0) -> list[Text]:
    """`texts`, all single or all pairs, none blank; errors name one by its number from `first`."""
    if isinstance(texts, str):
        raise ValueError("texts must be a list of texts, got one text; pass [text].")
    found: list[Any] = []
    for number, text in enumerate(texts, start=first):
        parts = tuple(text) if isinstance(text, (tuple, list)) else (text,)
        wrong = ""
        if len(parts) not in (1, 2) or not all(isinstance(part, str) for part in parts):
            wrong = "must be a text or a pair of texts (in a file, separated by one tab)"
        elif not all(part.strip() for part in parts):
            wrong = "is blank; remove it"
        elif found and isinstance(found[0], str) != (len(parts) == 1):
            kind = "one text" if len(parts) == 1 else "a pair"
            wrong = f"is {kind}, the ones before are not; give only single texts or only pairs"
        if wrong:
            raise ValueError(f"{name.format(number)} {wrong}; got {str(text)[:80]!r}.")
        found.append(parts if len(parts) == 2 else parts[0])
    if not found:
        raise ValueError("texts is empty; give at least one text.")
    return found


def fingerprint(texts: Sequence[Text]) -> str:
    """SHA-256 of the texts."""
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()
