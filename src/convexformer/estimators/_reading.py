"""Reading what users pass as data: tokens, masks, targets' places and sample weights.

Arrays are never copied where their dtype allows it, padding is never read as a number, and every
error says what was wrong, what was got and what to do.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_array, validate_data

from ..problem import Design, OffsetDesign, Offsets, TokenDesign
from ..problem.arrays import Array

Tokens = NDArray[np.floating]
Mask = NDArray[np.bool_]

FLOATS: dict[str, Any] = {"dtype": (np.float64, np.float32), "ensure_all_finite": False}
BLOCK_ENTRIES = 1 << 22  # of X looked at together: large beside a Python loop, small beside X


# Arrays ---------------------------------------------------------------------------------------


def as_numpy(data: Any, name: str) -> Any:
    """Tensors of other libraries as NumPy arrays (sharing memory); anything else untouched."""
    if isinstance(data, np.ndarray) or not callable(getattr(data, "numpy", None)):
        return data
    for step in ("detach", "cpu"):  # PyTorch: out of the graph, off the device
        if callable(getattr(data, step, None)):
            data = getattr(data, step)()
    try:
        return data.numpy()
    except TypeError as error:  # bfloat16 has no NumPy counterpart
        raise ValueError(
            f"{name} is a tensor that NumPy cannot read ({error}). Convert it first, "
            f"for example with {name}.float()."
        ) from error


def ranked(X: Any) -> Any:
    """`X` with a shape: lists and tensors become arrays, ragged ones an error in words."""
    X = as_numpy(X, "X")
    try:
        return X if hasattr(X, "shape") else np.asarray(X)
    except ValueError as error:
        raise ValueError(
            f"X is ragged: its samples or tokens differ in length ({error}). Pad them to one "
            "length, X of shape (samples, tokens, channels), and pass mask (samples, tokens), "
            "True where a token is real."
        ) from error


def check_numbers(data: Any, name: str) -> None:
    """Raise where `data`, an array or a table, holds text, which NumPy would convert."""
    values = np.asarray(data)
    for value in values.flat if values.dtype.kind in "USTO" else ():
        if isinstance(value, (str, bytes)):
            raise ValueError(
                f"{name} must hold numbers, got text of shape {values.shape}, such as "
                f"{value[:60]!r}. Encode text one-hot (convexformer.datasets.one_hot, "
                "OneHotEncoder); for labels use a classifier (ConvexAttentionClassifier). If it "
                f"spells numbers, convert it: numpy.asarray({name}, float)."
            )


def blank(dtype: np.dtype[Any]) -> Any:
    """What predictions of a dtype hold at padding; "" for text, False for booleans."""
    return {"f": np.nan, "i": -1, "O": None}.get(dtype.kind, dtype.type())


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, naming the line outside this package that called one of its methods."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__package__") == __package__:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def check_tokens(
    estimator: Any, X: Any, mask: Any = None, *, reset: bool, any_length: bool = False
) -> tuple[Tokens, Mask | None]:
    """Read `X` as ``(N, n, d)`` floats with a mask, and remember or compare its shape.

    A 2-D `X` is cut into ``estimator.n_tokens`` tokens, or into one token per column. The result
    is a view of `X` wherever it is an array of float32 or float64. With `any_length`, X must be 3-D
    and its number of tokens need not be that of the fit.
    """
    X = ranked(X)
    check_numbers(X, "X")
    flat = len(X.shape) == 2 and hasattr(estimator, "n_tokens") and not any_length
    if len(X.shape) != 3 and not flat:
        raise ValueError(
            "X must be 3-D (samples, tokens, channels), or 2-D (samples, columns) where tokens are "
            f"places of a table, got shape {tuple(X.shape)}. Reshape your data: one row of a table "
            "X.reshape(1, -1), single numbers X[:, :, None], one sample of tokens and channels "
            "X[None], axes of places to one axis of tokens X.reshape(len(X), -1, X.shape[-1])."
        )
    if not reset:
        _check_shape(estimator, tuple(X.shape), any_length)
    X = _cut(estimator, X, reset) if flat else _whole(estimator, X, reset)
    if reset:
        for name in ("token_names_", "channel_names_"):  # given to an earlier fit
            vars(estimator).pop(name, None)
        estimator.n_tokens_, estimator.n_channels_ = X.shape[1:]
    mask = check_mask(mask, X.shape[:2])
    if reset and mask is not None and not np.any(mask):
        raise ValueError(
            "mask is False everywhere: there is no real token to learn from. It is True where a "
            "token is real; if yours is the other way round, pass ~mask."
        )
    check_finite(X, mask)
    return X, mask


def _check_shape(estimator: Any, shape: tuple[int, ...], any_length: bool) -> None:
    """Raise unless X has a shape that the fitted estimator can read."""
    n, d = estimator.n_tokens_, estimator.n_channels_
    if len(shape) == 3:
        fits = shape[1:] == (shape[1] if any_length else n, d)
    else:  # a table, not one sample
        fits = (shape != (n, d) or n == 1) and (estimator.n_tokens is not None or d == 1)
    if not fits:
        tokens = "tokens" if any_length else f"{n} tokens"
        raise ValueError(
            f"X has shape {shape}, but this {type(estimator).__name__} was fitted on {tokens} of "
            f"{d} channels. Pass one sample as X[None], cut or pad sequences to that shape (and "
            f"pass mask), and reshape a table to (N, {n}, {d}), or fit with n_tokens={n}."
        )


def _cut(estimator: Any, X: Any, reset: bool) -> Tokens:
    """A table cut into tokens."""
    X = validate_data(estimator, X, reset=reset, **FLOATS)
    columns = X.shape[1]
    n = columns if estimator.n_tokens is None else estimator.n_tokens
    if columns % n:
        raise ValueError(
            f"2-D X with {columns} columns cannot be cut into n_tokens={n} tokens of equal length, "
            "the columns ordered token by token. Choose another n_tokens."
        )
    return X.reshape(len(X), n, columns // n)  # splits one axis: always a view


def _whole(estimator: Any, X: Any, reset: bool) -> Tokens:
    """Tokens of 3-D X."""
    X = check_array(X, allow_nd=True, estimator=estimator, input_name="X", **FLOATS)
    if 0 in X.shape:
        raise ValueError(
            f"X is empty: got shape {X.shape}, at least one sample, token and channel is needed."
        )
    n = getattr(estimator, "n_tokens", None)  # some read nothing but 3-D
    if n is not None and X.shape[1] != n:
        raise ValueError(
            f"X has {X.shape[1]} tokens (shape {X.shape}) but n_tokens={n} was set: leave it None."
        )
    if reset:
        estimator.n_features_in_ = X.shape[1] * X.shape[2]
        vars(estimator).pop("feature_names_in_", None)  # of an earlier fit on a table
    return X


def check_mask(
    mask: Any,
    shape: tuple[int, int],
    name: str = "mask",
    meaning: str = "a token is real and False at padding",
) -> Mask | None:
    """Read a mask as booleans of `shape`; 0/1 numbers (attention masks of tokenisers) are fine."""
    if mask is None:
        return None
    mask = np.asarray(as_numpy(mask, name))
    numbers = mask.dtype != np.bool_
    if mask.shape != shape or (numbers and not np.all(np.isin(mask, (0, 1)))):
        raise ValueError(
            f"{name} must have shape (samples, tokens) = {shape} and hold booleans or 0 and 1, got "
            f"{mask.shape} of {mask.dtype}. It is True where {meaning}. After PooledTokens pass "
            "none: padding is zero already."
        )
    return mask.astype(np.bool_, copy=False)


def blocks(X: Tokens) -> Iterator[slice]:
    """Slices of samples that are small beside `X`."""
    step = max(1, BLOCK_ENTRIES // max(1, X[0].size))
    for start in range(0, len(X), step):
        yield slice(start, min(start + step, len(X)))


def check_finite(X: Tokens, mask: Mask | None) -> None:
    """Raise where a real token holds NaN or infinity, block by block."""
    for rows in blocks(X):
        block = X[rows]
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(np.sum(block)):  # one pass without a temporary, nearly always enough
                continue
        bad = ~np.isfinite(block)
        if mask is not None:
            bad &= mask[rows, :, None]
        if np.any(bad):
            i, k, j = np.argwhere(bad)[0]
            raise ValueError(
                f"Input X contains NaN or infinity: {block[i, k, j]} at sample "
                f"{rows.start + i}, token {k}, channel {j}. Remove or impute such values; if they "
                "are padding, pass mask (samples, tokens), False there."
            )


def check_sample_weight(sample_weight: Any, n_samples: int) -> Array | None:
    """Read sample weights: finite, not negative, not all zero."""
    if sample_weight is None:
        return None
    read: dict[str, Any] = {"input_name": "sample_weight", "ensure_non_negative": True}
    given = np.atleast_1d(np.asarray(as_numpy(sample_weight, "sample_weight")))
    weight: Array = check_array(given, ensure_2d=False, dtype=np.float64, **read)
    if weight.shape != (n_samples,) or not np.any(weight):
        raise ValueError(
            f"sample_weight must have one weight per sample, shape ({n_samples},), got "
            f"{weight.shape}, and must not be zero for every sample."
        )
    return weight


def required(estimator: Any, y: Any) -> Any:
    """`y`, which must have been passed."""
    if y is None:
        name = type(estimator).__name__
        raise ValueError(f"{name} requires y to be passed, but the target y is None.")
    return as_numpy(y, "y")


# Samples --------------------------------------------------------------------------------------


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
        mask, separators = (
            None if flags is None else flags[sequences] for flags in (self.mask, self.separators)
        )
        return Samples(self.X[sequences], mask, separators, self.offsets)

    def rows_of(self, sequences: NDArray[np.intp]) -> NDArray[np.intp]:
        """The samples of some sequences, in their order."""
        if self.offsets is None:
            return sequences
        rows = self.arranged(np.arange(len(self._positions[0])))[sequences]
        return rows[rows >= 0]

    @cached_property
    def _positions(self) -> tuple[NDArray[np.intp], ...]:
        """Sequence and place of every sample, with offsets."""
        return np.nonzero(np.ones(self.X.shape[:2]) if self.mask is None else self.mask)

    # Values of sequences or positions to values of samples, and back ---------------------------

    def rows(self, values: Any, name: str) -> Any:
        """Values of positions, or of sequences, as those of samples; `name` says of what."""
        if self.offsets is None or values is None:
            return as_numpy(values, name)
        array, shape = np.asarray(as_numpy(values, name)), self.X.shape[:2]
        if array.shape[:2] != shape and (name == "y" or array.shape != shape[:1]):
            others = "" if name == "y" else f", or one per sequence, shape ({len(self)},)"
            raise ValueError(
                f"With tokens=Offsets, {name} must have a value for every position, shape {shape}"
                f"{others}, got {array.shape}. Pad it: what stands at padding is not read."
            )
        return array[self._positions[: array.ndim]]

    def arranged(self, values: NDArray) -> NDArray:
        """Values of samples where they belong; with offsets ``(N, n, ...)``, marked at padding."""
        if self.offsets is None:
            return values
        shape = self.X.shape[:2] + values.shape[1:]
        out = np.full(shape, blank(values.dtype), dtype=values.dtype)
        out[self._positions] = values
        return out


def read_samples(estimator: Any, X: Any, mask: Any, separators: Any, *, reset: bool) -> Samples:
    """Read what an estimator was given, and remember or compare its shape."""
    offsets = estimator.tokens if isinstance(estimator.tokens, Offsets) else None
    X, mask = check_tokens(estimator, X, mask, reset=reset, any_length=offsets is not None)
    if separators is not None and "separators" not in (offsets.landmarks if offsets else ()):
        raise ValueError(
            f"separators are a landmark, which tokens={estimator.tokens!r} does not name: leave "
            "separators out, or set tokens=Offsets(low, high, landmarks=['separators'])."
        )
    flags = check_mask(separators, X.shape[:2], "separators", "a token is a separator")
    if offsets is not None and reset:
        if max(abs(offsets.low), abs(offsets.high)) >= X.shape[1]:
            raise ValueError(
                f"{offsets} reaches beyond every sequence, as X has {X.shape[1]} positions. Use a "
                "smaller window."
            )
        estimator.n_tokens_, estimator.token_names_ = len(offsets), np.array(offsets.names)
    return Samples(X, mask, flags, offsets)
