"""Reading what users pass: tokens, masks, weights and parameters.

Arrays are never copied where their dtype allows it, padding is never read as a number, and every
error says what was wrong, what was got and what to do.
"""

from __future__ import annotations

import math
import numbers
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_array, validate_data

Tokens = NDArray[np.floating]
Mask = NDArray[np.bool_]
Array = NDArray[np.float64]

REAL_KINDS = "biuf"  # of dtypes: real numbers
MOST_TEXT = 60  # characters of a value that an error shows
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
    if values.dtype.kind in "UST":
        return None if not values.size else _decoded(values.flat[0])
    if values.dtype.kind == "O":
        return next((_decoded(v) for v in values.flat if isinstance(v, (str, bytes))), None)
    return None


def _decoded(text: Any) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)


def _spells_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def warn_of_one_sample(n_samples: int) -> None:
    """Warn where a method of an estimator, two calls above, fits to a single sample."""
    if n_samples == 1:
        warnings.warn(
            "X has one sample, and one sample cannot tell which tokens matter. Pass more samples.",
            UserWarning,
            stacklevel=5,
        )


def check_tokens(
    estimator: Any, X: Any, mask: Any = None, *, reset: bool, any_length: bool = False
) -> tuple[Tokens, Mask | None]:
    """Read `X` as ``(N, n, d)`` floats with a mask, and remember or compare its shape.

    A 2-D `X` is cut into ``estimator.n_tokens`` tokens, or into one token per column. The result
    is a view of `X` wherever it is an array of float32 or float64. With `any_length`, X must be 3-D
    and its number of tokens need not be that of the fit.
    """
    X = ranked(X)
    rank = len(X.shape)
    check_numbers(X, "X", ENCODE)
    if any_length and rank != 3:
        raise ValueError(
            "tokens=Offsets needs X of shape (samples, positions, channels), got shape "
            f"{tuple(X.shape)}. For sequences of single numbers use X[:, :, None]."
        )
    if rank not in (2, 3):
        raise ValueError(
            "X must be 3-D (samples, tokens, channels) or 2-D (samples, columns), got shape "
            f"{tuple(X.shape)}. Reshape your data: {_reshape(tuple(X.shape))}"
        )
    if rank == 2 and not reset:
        _check_not_one_sample(estimator, tuple(X.shape))
    options: dict[str, Any] = {"dtype": (np.float64, np.float32), "ensure_all_finite": False}
    if rank == 2:
        X = validate_data(estimator, X, reset=reset, **options)
        X = _cut(X, estimator.n_tokens)
    else:
        X = check_array(X, allow_nd=True, estimator=estimator, input_name="X", **options)
        _check_3d(X, getattr(estimator, "n_tokens", None))  # some read nothing but 3-D
        if reset:
            estimator.n_features_in_ = X.shape[1] * X.shape[2]
            if hasattr(estimator, "feature_names_in_"):  # of an earlier fit on a table
                del estimator.feature_names_in_
    if reset:
        for name in ("token_names_", "channel_names_"):  # given to an earlier fit
            vars(estimator).pop(name, None)
        estimator.n_tokens_, estimator.n_channels_ = X.shape[1:]
    elif any_length and X.shape[2] != estimator.n_channels_:
        raise ValueError(
            f"X has {X.shape[2]} channels, but this {type(estimator).__name__} was fitted on "
            f"{estimator.n_channels_}."
        )
    elif not any_length and X.shape[1:] != (estimator.n_tokens_, estimator.n_channels_):
        raise ValueError(
            f"X has {X.shape[1]} tokens of {X.shape[2]} channels, but this "
            f"{type(estimator).__name__} was fitted on {estimator.n_tokens_} tokens of "
            f"{estimator.n_channels_} channels. Cut or pad the samples to that shape (and pass "
            "mask), or fit again."
        )
    mask = check_mask(mask, X.shape[:2])
    if reset and mask is not None and not np.any(mask):
        raise ValueError(
            "mask is False everywhere: there is no real token to learn from. It is True where a "
            "token is real and False at padding; if yours is the other way round, pass ~mask."
        )
    check_finite(X, mask)
    return X, mask


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


def _cut(X: Tokens, n_tokens: int | None) -> Tokens:
    n = X.shape[1] if n_tokens is None else n_tokens
    if X.shape[1] % n:
        raise ValueError(
            f"2-D X with {X.shape[1]} columns cannot be cut into n_tokens={n} tokens of equal "
            f"length. Columns must be ordered token by token, {X.shape[1]} = n_tokens * channels."
        )
    return X.reshape(len(X), n, X.shape[1] // n)  # splits one axis: always a view


def _check_3d(X: Tokens, n_tokens: int | None) -> None:
    if 0 in X.shape:
        raise ValueError(
            f"X is empty: got shape {X.shape}, at least one sample, token and channel is needed."
        )
    if n_tokens is not None and X.shape[1] != n_tokens:
        raise ValueError(
            f"X has {X.shape[1]} tokens (shape {X.shape}) but n_tokens={n_tokens} was set. Leave "
            "n_tokens=None for 3-D input, or pass X with that many tokens."
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
    if mask.dtype != np.bool_:
        if not np.all(np.isin(mask, (0, 1))):
            raise ValueError(
                f"{name} must hold booleans or 0 and 1, got {mask.dtype} with other values. "
                f"It is True where {meaning}."
            )
        mask = mask.astype(np.bool_)
    return mask


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


def check_same_length(X: Tokens, y: NDArray) -> None:
    """Raise unless every sample has a target."""
    if len(X) != len(y):
        raise ValueError(
            f"X and y have inconsistent lengths: X of shape {X.shape} holds {len(X)}, y "
            f"{len(y)}. Pass one target per sample."
        )


def time_left(max_time: float | None, start: float) -> float | None:
    """What is left of `max_time` seconds that began at `start`; None if there is no limit."""
    return None if max_time is None else max(0.0, max_time - (time.perf_counter() - start))


# Parameters -----------------------------------------------------------------------------------


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise unless `value` is one of `choices`."""
    if not any(isinstance(value, type(choice)) and value == choice for choice in choices):
        listed = ", ".join(map(repr, choices))
        raise ValueError(f"{name} must be one of {listed}; got {value!r}.")


def check_bool(name: str, value: Any) -> None:
    """Raise unless `value` is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False; got {value!r}.")


def check_positive(name: str, value: Any, hint: str = "", *, optional: bool = False) -> None:
    """Raise unless `value` is a positive finite number (or None, where `optional`)."""
    if value is None and optional:
        return
    real = isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))
    if not (real and np.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a positive number; got {value!r}. {hint}".rstrip())


def check_count(name: str, value: Any, *, optional: bool = False) -> None:
    """Raise unless `value` is a whole number >= 1 (or None, where `optional`)."""
    if value is None and optional:
        return
    whole = isinstance(value, numbers.Integral) and not isinstance(value, (bool, np.bool_))
    if not (whole and value >= 1):
        raise ValueError(f"{name} must be a whole number, at least 1; got {value!r}.")


def check_token_weights(token_weights: Any, n_tokens: int) -> Array | None:
    """Read one positive penalty factor per token."""
    if token_weights is None:
        return None
    weights = np.asarray(as_numpy(token_weights, "token_weights"), dtype=np.float64)
    if weights.shape != (n_tokens,):
        raise ValueError(
            f"token_weights must have one factor per token, shape ({n_tokens},), got "
            f"{weights.shape}."
        )
    if not np.all(np.isfinite(weights) & (weights > 0)):
        raise ValueError(
            "token_weights must be positive finite numbers. To leave a token out, mask it or drop "
            "it from X."
        )
    return weights


def check_fractions(betas: Any, n_betas: Any, eps: Any) -> Array:
    """Fractions of beta_max in decreasing order: those given, or ``1 ... eps`` geometrically."""
    if betas is None:
        check_count("n_betas", n_betas)
        check_positive("eps", eps, "It is the smallest beta as a fraction of beta_max.")
        if eps >= 1:
            raise ValueError(f"eps must be below 1, the fraction the path starts from; got {eps}.")
        return np.geomspace(1.0, eps, n_betas)
    fractions = np.asarray(as_numpy(betas, "betas"), dtype=np.float64)
    if fractions.ndim != 1 or len(fractions) == 0:
        raise ValueError(f"betas must be a non-empty vector, got shape {fractions.shape}.")
    if not np.all(np.isfinite(fractions) & (fractions > 0)):
        raise ValueError(
            "betas must be positive finite fractions of beta_max; beta=0 removes the penalty and "
            f"with it the certificate. Use a small one such as 1e-4. Got {fractions.tolist()}."
        )
    return np.unique(fractions)[::-1]
