"""What every dataset is made of: tokens, classes, and names for everything."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TokenDataset:
    """Samples as tokens ``X (N, n, d)`` with class labels, and a name for each axis.

    Attributes
    ----------
    name : str
        Short name of the dataset.
    X : ndarray of shape (n_samples, n_tokens, n_channels), float64
        Tokens: measurements as they are (not scaled), or letters one-hot, every row ``X[i, k]``
        summing to 1.
    y : ndarray of shape (n_samples,), int64
        Class labels, indices into `target_names`.
    target_names : tuple of str
        Name of each class.
    token_names : tuple of str
        Name of each position.
    channel_names : tuple of str
        Name of each measurement, or each letter of the alphabet.
    description : str
        Source, meaning and preparation of the data.
    sequences : tuple of str, or None
        The sequences that `X` encodes, where it encodes letters.
    groups : ndarray of shape (n_samples,), int64, or None
        Whom a sample comes from, where that is known: samples of one group belong on one side of a
        split.
    target_values : ndarray of shape (n_samples,), float64, or None
        The measured quantity from which `y` was derived, where there is one.
    """

    name: str
    X: NDArray[np.float64]
    y: NDArray[np.int64]
    target_names: tuple[str, ...]
    token_names: tuple[str, ...]
    channel_names: tuple[str, ...]
    description: str
    sequences: tuple[str, ...] | None = None
    groups: NDArray[np.int64] | None = None
    target_values: NDArray[np.float64] | None = None

    def __repr__(self) -> str:
        N, n, d = self.X.shape
        counts = np.bincount(self.y, minlength=len(self.target_names))
        classes = ", ".join(f"{c} {t}" for c, t in zip(counts, self.target_names, strict=True))
        return f"<TokenDataset {self.name}: {N} samples x {n} tokens x {d} channels; {classes}>"


def one_hot(
    sequences: Sequence[str],
    channel_names: Sequence[str],
    ambiguous: Mapping[str, str] | None = None,
) -> NDArray[np.float64]:
    """Encode sequences of equal length as one-hot tokens.

    ``X[i, k, j] = 1`` if letter k of sequence i is letter j of the alphabet, else 0. An ambiguous
    letter that stands for m letters of the alphabet gets 1/m in each of them: the expected one-hot
    row if all are equally likely, so that rows always sum to 1.

    Parameters
    ----------
    sequences : sequence of str
        At least one sequence, all of the same length.
    channel_names : sequence of str
        The letters of the alphabet, in the order of the channels.
    ambiguous : mapping of str to str, optional
        For each further letter, the letters of the alphabet that it may stand for.

    Returns
    -------
    ndarray of shape (n_samples, n_tokens, n_channels), float64

    Examples
    --------
    >>> from convexformer.datasets import one_hot
    >>> one_hot(["AC", "NA"], "ACGT", ambiguous={"N": "ACGT"})[1]
    array([[0.25, 0.25, 0.25, 0.25],
           [1.  , 0.  , 0.  , 0.  ]])
    """
    lengths = {len(sequence) for sequence in sequences}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(
            f"one_hot needs non-empty sequences of one length, got lengths {sorted(lengths)}; "
            "cut or pad them first."
        )
    meanings = {letter: letter for letter in channel_names} | dict(ambiguous or {})
    unknown = set("".join(sequences)) - set(meanings)
    if unknown:
        raise ValueError(
            f"one_hot got letters {''.join(sorted(unknown))!r} outside the alphabet "
            f"{''.join(meanings)!r}; remove these sequences or list the letters in `ambiguous`."
        )
    # One row per letter, then one look-up for all sequences at once.
    column = {letter: j for j, letter in enumerate(channel_names)}
    rows = np.zeros((max(map(ord, meanings)) + 1, len(column)))
    for letter, members in meanings.items():
        rows[ord(letter), [column[member] for member in members]] = 1 / len(members)
    codes = np.array([list(map(ord, sequence)) for sequence in sequences])  # (N, n)
    return rows[codes]  # (N, n, d)
