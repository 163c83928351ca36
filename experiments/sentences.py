"""Pairs of sentences to feed to an encoder: MRPC from its own files, else prose of this project."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convexformer.activations import Activations, extract

MRPC_FOLDER = "CONVEXFORMER_MRPC"  # environment variable
MRPC_FILES = ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt", "dev_ids.tsv")
PROSE_PARTS = (0.7, 0.85)  # where training and validation end

Pair = tuple[str, str]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class SentencePairs:
    """Pairs of sentences in three parts.

    Attributes
    ----------
    name : str
        "MRPC" or "prose".
    train, validation, test : list of (str, str)
    labels : tuple of ndarray of int, optional
        Of the parts, 1 where the second sentence says what the first says. None for prose.
    """

    name: str
    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]
    labels: tuple[Labels, ...] | None = None

    @property
    def parts(self) -> tuple[list[Pair], list[Pair], list[Pair]]:
        return self.train, self.validation, self.test


def sentence_pairs(mrpc_folder: str | os.PathLike[str] | None = None) -> SentencePairs:
    """MRPC where its folder is named, else prose of this project.

    Parameters
    ----------
    mrpc_folder : path-like, optional
        See :func:`mrpc`. If omitted, that of the environment variable ``CONVEXFORMER_MRPC``; where
        there is none, :func:`prose` is returned.
    """
    folder = os.environ.get(MRPC_FOLDER) if mrpc_folder is None else mrpc_folder
    return mrpc(folder) if folder else prose()


def mrpc(folder: str | os.PathLike[str]) -> SentencePairs:
    """The Microsoft Research Paraphrase Corpus in the splits of GLUE: 3668, 408 and 1725 pairs.

    Parameters
    ----------
    folder : path-like
        With the files ``msr_paraphrase_train.txt`` and ``msr_paraphrase_test.txt`` as Microsoft
        distributes them, and GLUE's ``dev_ids.tsv``, which says which pairs of the first file are
        for validation. They may not be passed on.
    """
    folder = Path(folder)
    missing = [name for name in MRPC_FILES if not (folder / name).is_file()]
    if missing:
        raise ValueError(
            f"{folder} has no {' and no '.join(missing)}. Name a folder with MRPC's files "
            f"({', '.join(MRPC_FILES)}), or leave it out to use sentences of this project."
        )
    learnt, tested, listed = (folder / name for name in MRPC_FILES)
    held = {tuple(line.split("\t")) for line in listed.read_text().splitlines()}
    rows = list(_rows(learnt))
    train = [row for row in rows if row[0] not in held]
    validation = [row for row in rows if row[0] in held]
    parts = (train, validation, list(_rows(tested)))
    labels = tuple(np.array([label for _, label, _ in part]) for part in parts)
    first, second, third = ([pair for *_, pair in part] for part in parts)
    return SentencePairs("MRPC", first, second, third, labels)


def _rows(file: Path) -> Iterator[tuple[tuple[str, str], int, Pair]]:
    """Ids, label and sentences of every line; quotes mean nothing in these files."""
    for number, line in enumerate(file.read_text(encoding="utf-8-sig").splitlines()[1:], start=2):
        cells = line.split("\t")
        if len(cells) != 5 or cells[0] not in ("0", "1"):
            raise ValueError(f"line {number} of {file} is not a pair of MRPC: {line[:60]!r}.")
        yield (cells[1], cells[2]), int(cells[0]), (cells[3], cells[4])


def read_states(
    model: str,
    texts: Sequence[Any],
    layer: int,
    folder: Path,
    keep: Sequence[str],
    max_length: int | None = None,
) -> Activations:
    """What a layer of an encoder reads and writes; what another one left in the folder goes."""
    return extract(
        model, texts, layer, folder, keep=keep, max_length=max_length, truncate=True, overwrite=True
    )


def prose() -> SentencePairs:
    """Neighbouring sentences of prose about this project, in the order in which they stand.

    Parts are consecutive, and no sentence is in two of them. There are no labels.

    Examples
    --------
    >>> from experiments.sentences import prose
    >>> pairs = prose()
    >>> len(pairs.train), len(pairs.validation), len(pairs.test)
    (1064, 227, 227)
    >>> pairs.train[0][0]
    'Attention trained to a certified global optimum.'
    """
    file = Path(__file__).with_name("sentences.txt")
    lines = file.read_text(encoding="utf-8").splitlines()
    end, last = (round(share * len(lines)) for share in PROSE_PARTS)
    parts = (lines[:end], lines[end:last], lines[last:])
    train, validation, test = (list(pairwise(part)) for part in parts)
    return SentencePairs("prose", train, validation, test)
