"""Reading what users pass as data: tokens, masks, targets' places and sample weights.

Arrays are never copied where their dtype allows it, padding is never read as a number, and every
error says what was wrong, what was got and what to do.
"""

from __future__ import annotations

import math
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

Tokens = NDArray[np.floating]
Mask = NDArray[np.bool_]
Array = NDArray[np.float64]

REAL_KINDS = "biuf"  # of dtypes: real numbers
MOST_TEXT = 60  # characters of a value that an error shows
FLOATS: dict[str, Any] = {"dtype": (np.float64, np.float32), "ensure_all_finite": False}
BLOCK_ENTRIES = 1 << 22  # of X looked at together: large beside a Python loop, small beside X


# Arrays ---------------------------------------------------------------------------------------

ENCODE = (
    "Encode text first, one-hot for example: sequences of letters with "
    "convexformer.datasets.one_hot, columns of categories with sklearn's OneHotEncoder."
)


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
    if hasattr(X, "shape"):
        return X
    try:
        return np.asarray(X)
    except ValueError as error:
        raise ValueError(
            f"X is ragged: its samples or tokens differ in length ({error}). Pad them to one "
            "length, X of shape (samples, tokens, channels), and pass mask (samples, tokens), "
            "True where a token is real."
        ) from error


def check_numbers(data: Any, name: str, cure: str) -> None:
    """Raise where `data`, an array or a table, holds text, which NumPy would convert, or complex
    numbers; `cure` says what to do with text that spells no number."""
    table = hasattr(data, "iloc") and len(data.shape) == 2
    for column in (data.iloc[:, j] for j in range(data.shape[1])) if table else (data,):
        if getattr(getattr(column, "dtype", None), "kind", "O") in REAL_KINDS:
            continue
        values = np.asarray(column)
        shape = tuple(data.shape) if table else values.shape
        if values.dtype.kind == "c":
            raise ValueError(
                f"Complex data not supported: {name} of shape {shape} holds complex numbers. Pass "
                "their real and imaginary parts side by side."
            )
        text = _first_text(values)
        if text is not None:
            if _spells_number(text):
                cure = f"Convert it first: numpy.asarray({name}, dtype=float)."
            raise ValueError(
                f"{name} must hold numbers, got text of shape {shape}, such as {text[:MOST_TEXT]!r}"
                f". {cure}"
            )


def _first_text(values: NDArray[Any]) -> str | None:
    """The first string in an array, None where there is none."""
    if values.dtype.kind not in "USTO":
        return None
    text = next((value for value in values.flat if isinstance(value, (str, bytes))), None)
    return text.decode(errors="replace") if isinstance(text, bytes) else text


def _spells_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


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
    check_numbers(X, "X", ENCODE)
    if any_length and len(X.shape) != 3:
        raise ValueError(
            "tokens=Offsets needs X of shape (samples, positions, channels), got shape "
            f"{tuple(X.shape)}. For sequences of single numbers use X[:, :, None]."
        )
    if len(X.shape) not in (2, 3):
        raise ValueError(
            "X must be 3-D (samples, tokens, channels) or 2-D (samples, columns), got shape "
            f"{tuple(X.shape)}. Reshape your data: {_reshape(tuple(X.shape))}"
        )
    X = _cut(estimator, X, reset) if len(X.shape) == 2 else _whole(estimator, X, reset)
    if reset:
        for name in ("token_names_", "channel_names_"):  # given to an earlier fit
            vars(estimator).pop(name, None)
        estimator.n_tokens_, estimator.n_channels_ = X.shape[1:]
    else:
        _compare(estimator, X, any_length)
    mask = check_mask(mask, X.shape[:2])
    if reset and mask is not None and not np.any(mask):
        raise ValueError(
            "mask is False everywhere: there is no real token to learn from. It is True where a "
            "token is real and False at padding; if yours is the other way round, pass ~mask."
        )
    check_finite(X, mask)
    return X, mask


def _cut(estimator: Any, X: Any, reset: bool) -> Tokens:
    """A table cut into tokens."""
    if not reset:
        _check_not_one_sample(estimator, tuple(X.shape))
    X = validate_data(estimator, X, reset=reset, **FLOATS)
    columns = X.shape[1]
    n = columns if estimator.n_tokens is None else estimator.n_tokens
    if columns % n:
        raise ValueError(
            f"2-D X with {columns} columns cannot be cut into n_tokens={n} tokens of equal "
            f"length. Columns must be ordered token by token, {columns} = n_tokens * channels."
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
            f"X has {X.shape[1]} tokens (shape {X.shape}) but n_tokens={n} was set. Leave "
            "n_tokens=None for 3-D input, or pass X with that many tokens."
        )
    if reset:
        estimator.n_features_in_ = X.shape[1] * X.shape[2]
        vars(estimator).pop("feature_names_in_", None)  # of an earlier fit on a table
    return X


def _compare(estimator: Any, X: Tokens, any_length: bool) -> None:
    """Raise unless X has the shape that the estimator was fitted on."""
    name, n, d = type(estimator).__name__, estimator.n_tokens_, estimator.n_channels_
    if any_length and X.shape[2] != d:
        raise ValueError(f"X has {X.shape[2]} channels, but this {name} was fitted on {d}.")
    if not any_length and X.shape[1:] != (n, d):
        raise ValueError(
            f"X has {X.shape[1]} tokens of {X.shape[2]} channels, but this {name} was fitted on "
            f"{n} tokens of {d} channels. Cut or pad the samples to that shape (and pass mask), or "
            "fit again."
        )


def _reshape(shape: tuple[int, ...]) -> str:
    """What to do with an array that is neither 2-D nor 3-D."""
    if len(shape) < 2:
        return (
            "for one row of a table use X.reshape(1, -1), for one column X.reshape(-1, 1). One "
            "sample of tokens and channels is 2-D, and passed as X[None]."
        )
    joined = f"X.reshape({shape[0]}, {math.prod(shape[1:-1])}, {shape[-1]})"
    words = f"join the axes that are places, {joined}, so that each place is a token."
    return words if shape[0] > 1 else f"{words} If the first axis is one too many, use X[0]."


def _check_not_one_sample(estimator: Any, shape: tuple[int, int]) -> None:
    """Raise where 2-D input is one sample, or is flat and nothing says how it is to be cut."""
    n, d = estimator.n_tokens_, estimator.n_channels_
    fitted = f"this {type(estimator).__name__} was fitted on {n} tokens of {d} channels"
    if shape == (n, d) and n > 1:
        raise ValueError(f"X of shape {shape} is one sample, and {fitted}: pass X[None].")
    if estimator.n_tokens is not None or d == 1:
        return
    raise ValueError(
        f"X is 2-D, of shape {shape}, but {fitted}. Reshape it to (N, {n}, {d}), or fit with "
        f"n_tokens={n} to pass tables."
    )


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
    if mask.shape != shape:
        pooled = mask.shape == (shape[0], shape[1] - 2)
        hint = " After PooledTokens pass none: padding is zero already." if pooled else ""
        raise ValueError(
            f"{name} must have shape (samples, tokens) = {shape}, got {mask.shape}. "
            f"It is True where {meaning}.{hint}"
        )
    if mask.dtype != np.bool_ and not np.all(np.isin(mask, (0, 1))):
        raise ValueError(
            f"{name} must hold booleans or 0 and 1, got {mask.dtype} with other values. "
            f"It is True where {meaning}."
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
        if mask is None:
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
    weight = np.asarray(as_numpy(sample_weight, "sample_weight"))
    if weight.shape != (n_samples,):
        raise ValueError(
            f"sample_weight must have one weight per sample, shape ({n_samples},), got "
            f"{weight.shape}."
        )
    check_numbers(weight, "sample_weight", "Pass one number per sample.")
    weight = check_array(weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
    if np.any(weight < 0):
        raise ValueError(
            f"sample_weight has negative weights (lowest {weight.min():g}): the problem would not "
            "be convex. Use weights >= 0."
        )
    if not np.any(weight > 0):
        raise ValueError("sample_weight is zero for every sample: nothing is left to fit.")
    return weight


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
        if self.offsets is None and len(self.X) != len(y):  # else they were taken by position
            raise ValueError(
                f"X and y have inconsistent lengths: X of shape {self.X.shape} holds "
                f"{len(self.X)}, y {len(y)}. Pass one target per sample."
            )

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
        shape = self.X.shape[:2] + values.shape[1:]
        out = np.full(shape, blank(values.dtype), dtype=values.dtype)
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
