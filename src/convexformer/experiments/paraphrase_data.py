"""What probes of frozen states read of a pair of sentences: slots, poolings, scores of matches.

Positions of free text mean nothing from one pair to the next. Slots do: every token is matched to
the nearest one of the other sentence, and slot k is the k-th worst of these matches, as the
absolute difference of both states. Whether one sentence says more than the other shows in the
worst.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..activations import Activations

Floats = NDArray[np.float32]

SLOTS = 8  # worst matches of either sentence
SCORES = 16  # worst distances of either sentence

TOKENS = (
    *(f"first, match {k + 1}" for k in range(SLOTS)),
    *(f"second, match {k + 1}" for k in range(SLOTS)),
    "[CLS]",
    "difference of means",
    "product of means",
)


@dataclass(frozen=True)
class PairFeatures:
    """What probes read of N pairs.

    Attributes
    ----------
    slots : ndarray of shape (N, len(TOKENS), d)
        Aligned differences, worst matches first, and three tokens of the whole pair.
    first : ndarray of shape (N, d)
        The state of [CLS].
    pooled : ndarray of shape (N, 2 d)
        Absolute difference and product of both sentences' mean states.
    scores : ndarray of shape (N, 2 SCORES + 4)
        Distances of the worst matches, their means, and the lengths.
    states : ndarray of shape (N, n, d), mask : ndarray of bool of shape (N, n)
        All states, for attention pooling.
    """

    slots: Floats
    first: Floats
    pooled: Floats
    scores: Floats
    states: Floats
    mask: NDArray[np.bool_]


def pair_features(found: Activations, rows: NDArray[np.intp], length: int) -> PairFeatures:
    """Features of some texts of an extraction of pairs, with its kind "output"."""
    each = [_one(found, int(i)) for i in rows]
    slots, first, pooled, scores = (np.stack(part) for part in zip(*each, strict=True))
    states = np.zeros((len(rows), length, found.dim), np.float32)
    mask = np.zeros((len(rows), length), dtype=bool)
    for r, i in enumerate(rows):
        n = min(length, int(found.lengths[i]))
        states[r, :n], mask[r, :n] = np.asarray(found[int(i)].output)[:n], True
    return PairFeatures(slots, first, pooled, scores, states, mask)


def _one(found: Activations, i: int) -> tuple[Floats, Floats, Floats, Floats]:
    text = found[i]
    H = np.asarray(text.output, dtype=np.float32)
    A, B = H[text.segments == 0], H[text.segments == 1]  # tokens of either sentence
    if not (len(A) and len(B)):
        raise ValueError(f"text {i} is no pair of sentences; probes of paraphrases need pairs.")
    first, second = matches(A, B), matches(B, A)
    a, b = A.mean(axis=0), B.mean(axis=0)
    whole = np.stack([H[0], np.abs(a - b), a * b])
    slots = np.concatenate([padded(first[0], SLOTS), padded(second[0], SLOTS), whole])
    lengths = np.log([len(A), len(B)])
    means = np.array([first[1].mean(), second[1].mean()])
    scores = np.concatenate(
        [padded(first[1], SCORES), padded(second[1], SCORES), means, lengths]
    ).astype(np.float32)
    return slots, H[0], np.concatenate([np.abs(a - b), a * b]), scores


def matches(A: Floats, B: Floats) -> tuple[Floats, Floats]:
    """Differences ``|a - b|`` of tokens of A to their nearest of B, and distances, worst first.

    Nearest is by the cosine; the distance is one minus it.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer.experiments.paraphrase_data import matches
    >>> A = np.array([[1.0, 0.0], [0.0, 2.0]], dtype=np.float32)
    >>> B = np.array([[3.0, 0.0]], dtype=np.float32)
    >>> matches(A, B)[1].tolist()  # the second token of A has no like in B
    [1.0, 0.0]
    """
    unit = [V / np.linalg.norm(V, axis=1, keepdims=True) for V in (A, B)]
    cosine = unit[0] @ unit[1].T  # (A, B)
    nearest, distance = np.argmax(cosine, axis=1), 1 - np.max(cosine, axis=1)
    order = np.argsort(-distance, kind="stable")
    return np.abs(A - B[nearest])[order], distance[order]


def padded(values: Floats, count: int) -> Floats:
    """The first `count` rows, with zeros where there are fewer."""
    missing = [(0, max(0, count - len(values)))] + [(0, 0)] * (values.ndim - 1)
    return np.pad(values[:count], missing)
