"""What a sample is: a sequence or, with offsets, every real position of a sequence.

Everything that tells the two apart is here. Inside, targets, weights and scores have one row per
sample; outside, with offsets, they have the shape of the sequences, ``(N, n, ...)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..problem import Design, OffsetDesign, Offsets, TokenDesign
from ._validation import (
    Mask,
    Tokens,
    as_numpy,
    check_mask,
    check_same_length,
    check_tokens,
)

PADDING = {"f": np.nan, "i": -1, "O": None}  # by kind of dtype; "" for text, False for booleans


@dataclass(frozen=True)
class Samples:
    """Validated sequences, and which of their parts are samples."""

    X: Tokens  # (N, n, d)
    mask: Mask | None  # (N, n)
    separators: Mask | None = None  # (N, n)
    offsets: Offsets | None = None  # None: whole sequences are samples

    def __len__(self) -> int:
        """How many sequences there are."""
        return len(self.X)

    @property
    def n_tokens(self) -> int:
        """How many tokens a sample has."""
        return self.X.shape[1] if self.offsets is None else len(self.offsets)

    def design(self) -> Design:
        """The tokens of all samples."""
        if self.offsets is None:
            return TokenDesign(self.X, self.mask)
        return OffsetDesign(self.X, self.offsets, self.mask, self.separators)

    def dense(self) -> Tokens:
        """The same written out, ``(samples, tokens, d)`` with zeros at padding."""
        if self.offsets is not None:
            return self.offsets.expand(self.X, self.mask, self.separators)
        if self.mask is None:
            return self.X
        return np.where(self.mask[:, :, None], self.X, self.X.dtype.type(0))

    def take(self, sequences: NDArray[np.intp]) -> Samples:
        """Some of the sequences (copied)."""
        mask = None if self.mask is None else self.mask[sequences]
        separators = None if self.separators is None else self.separators[sequences]
        return Samples(self.X[sequences], mask, separators, self.offsets)

    def rows_of(self, sequences: NDArray[np.intp]) -> NDArray[np.intp]:
        """The samples of some sequences, in their order."""
        if self.offsets is None:
            return sequences
        bounds = np.searchsorted(self._positions[0], np.arange(len(self) + 1))
        parts = [np.arange(bounds[i], bounds[i + 1]) for i in np.arange(len(self))[sequences]]
        return np.concatenate([np.arange(0), *parts])

    @cached_property
    def _positions(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Sequence and place of every sample, with offsets."""
        real = np.ones(self.X.shape[:2], dtype=bool) if self.mask is None else self.mask
        sequence, place = np.nonzero(real)
        return sequence, place

    # Values of sequences or positions to values of samples, and back ---------------------------

    def targets(self, y: Any) -> Any:
        """`y`, with offsets only at real positions: ``(samples,)`` or ``(samples, c)``."""
        if self.offsets is None or y is None:
            return y
        shape = self.X.shape[:2]
        try:
            y = np.asarray(as_numpy(y, "y"))
            got = f"shape {y.shape}"
        except ValueError:  # of lists that differ in length
            y, got = np.zeros(0), "sequences of different lengths"
        if y.ndim not in (2, 3) or y.shape[:2] != shape:
            raise ValueError(
                f"With tokens=Offsets, y must have a target for every position, shape {shape} or "
                f"{shape} + (n_outputs,), got {got}. Pad it: what stands at padding is not read."
            )
        return y[self._positions]

    def check_targets(self, y: NDArray) -> None:
        """Raise unless every sample has a target."""
        if self.offsets is None:  # else they were taken by position
            check_same_length(self.X, y)

    def weights(self, values: Any, name: str = "sample_weight") -> Any:
        """Weights per sequence, or with offsets also per position, as weights of samples."""
        if self.offsets is None or values is None:
            return values
        array, shape = np.asarray(as_numpy(values, name)), self.X.shape[:2]
        if array.shape == shape[:1]:
            return array[self._positions[0]]
        if array.shape == shape:
            return array[self._positions]
        raise ValueError(
            f"{name} must have one value per sequence, shape ({len(self)},), or one per position, "
            f"shape {shape}, got {array.shape}."
        )

    def arranged(self, values: NDArray) -> NDArray:
        """Values of samples where they belong; with offsets ``(N, n, ...)``, marked at padding."""
        if self.offsets is None:
            return values
        kind = values.dtype
        blank = PADDING.get(kind.kind, kind.type())
        out = np.full(self.X.shape[:2] + values.shape[1:], blank, dtype=kind)
        out[self._positions] = values
        return out


def read_samples(estimator: Any, X: Any, mask: Any, separators: Any, *, reset: bool) -> Samples:
    """Read what an estimator was given, and remember or compare its shape."""
    offsets = estimator.tokens if isinstance(estimator.tokens, Offsets) else None
    X, mask = check_tokens(estimator, X, mask, reset=reset, any_length=offsets is not None)
    if offsets is None:
        if separators is not None:
            raise ValueError(
                "separators are a landmark of tokens=Offsets(low, high, landmarks=['separators']), "
                "and tokens='absolute' has none. Leave them out, or set tokens."
            )
        return Samples(X, mask)
    if separators is not None and "separators" not in offsets.landmarks:
        raise ValueError(
            f"separators are a landmark, and those of tokens={offsets} do not name it: leave "
            "separators out, or add 'separators' to the landmarks."
        )
    flags = check_mask(separators, X.shape[:2], "separators", "a token is a separator")
    samples = Samples(X, mask, flags, offsets)
    if reset:
        _check_window(samples, offsets)
        estimator.n_tokens_ = len(offsets)
        estimator.token_names_ = np.array(offsets.names)
    return samples


def _check_window(samples: Samples, offsets: Offsets) -> None:
    """Raise where an end of the window lies outside every sequence."""
    sequence, place = samples._positions
    new = np.flatnonzero(np.diff(sequence, prepend=-1))  # the first sample of every sequence
    last = np.append(new[1:], len(place)) - 1
    reach = int(np.max(place[last] - place[new]))
    if max(abs(offsets.low), abs(offsets.high)) > reach:
        raise ValueError(
            f"Offsets({offsets.low}, {offsets.high}) reaches beyond every sequence: the longest "
            f"has {reach + 1} tokens, so no offset but -{reach} ... {reach} is ever inside. Use a "
            "smaller window."
        )
