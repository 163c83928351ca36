"""Reading data files: npz, npy, csv and parquet into tokens ``(N, n, d)`` and a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._names import split_names
from ._console import InputError, shortened
from ._files import check_file, read_npy, read_npz
from ._tables import (
    LEAVE_OUT,
    LONGEST_VALUE,
    PARQUET,
    TABLES,
    check_columns,
    check_numeric,
    grouping,
    index_columns,
    labels,
    read_frame,
)
from ._words import plural

EXTENSIONS = (".npz", ".npy", *TABLES, *PARQUET)
UNLIKE_SCALES = 100  # tokens whose scales differ by more are worth a word
FEW_CLASSES = 10  # whole numbers with at most so many values are taken for classes


@dataclass
class Samples:
    """What a data file holds."""

    X: NDArray[Any]  # (N, n, d)
    y: NDArray[Any]  # (N,) or (N, c)
    mask: NDArray[Any] | None = None
    sample_weight: NDArray[Any] | None = None
    token_names: list[str] = field(default_factory=list)
    channel_names: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)  # of a table, in the order of X
    notes: list[str] = field(default_factory=list)  # what was used or left out without being asked

    def name(self, model: Any) -> None:
        """Keep names with a fitted model: columns for predict, tokens and channels for people."""
        for attribute, names in (
            ("feature_names_in_", self.columns),
            ("token_names_", self.token_names),
            ("channel_names_", self.channel_names),
        ):
            if names:
                setattr(model, attribute, np.array(names, dtype=object))

    def __post_init__(self) -> None:
        if self.y.ndim == 0:
            raise InputError("the target is a single value; give one for every sample.")
        if self.y.ndim == 2 and self.y.shape[1] == 1:
            self.y = self.y[:, 0]
        if self.X.ndim == 3:
            for axis, what in enumerate(_NAMES, start=1):
                names = getattr(self, what)
                if names and len(names) != self.X.shape[axis]:
                    raise InputError(
                        f"{what} has {len(names)} names for {self.X.shape[axis]} in X, whose shape "
                        f"is {self.X.shape}; give one name for each."
                    )
                if len(set(names)) < len(names):
                    raise InputError(f"{what} holds the same name twice; names must differ.")


def extension(path: Path) -> str:
    """The extension of a data file, with ``.gz`` taken together with what is before it."""
    return "".join(path.suffixes[-2:]).lower() if path.suffix == ".gz" else path.suffix.lower()


def source_files(path: Path, target: str) -> list[Path]:
    """The files that :func:`read_samples` reads."""
    return [path, Path(target)] if extension(path) == ".npy" else [path]


def _check_kind(path: Path) -> str:
    kind = extension(path)
    if kind not in EXTENSIONS:
        raise InputError(
            f"{path} has the unknown extension {kind or '(none)'!r}; known are "
            f"{', '.join(EXTENSIONS)}."
        )
    check_file(path)
    return kind


def read_samples(
    path: Path,
    target: str,
    *,
    n_tokens: int | None = None,
    group_by_prefix: str | None = None,
    drop: Sequence[str] = (),
) -> Samples:
    """Read a data file.

    Parameters
    ----------
    path : Path
        ``.npz`` with arrays X, the target, and optionally mask, sample_weight, token_names,
        channel_names; ``.npy`` with X; ``.csv``, ``.tsv`` (also ``.gz``) or ``.parquet``.
    target : str
        Name of the array or column to predict; for ``.npy``, another ``.npy`` file.
    n_tokens : int, optional
        Cut the columns of 2-D data into so many tokens; by default each column is a token.
    group_by_prefix : str, optional
        Separator: columns ``token<sep>channel`` of a table are grouped by what is before it.
    drop : sequence of str
        Columns of a table to leave out.
    """
    kind = _check_kind(path)
    if n_tokens is not None and group_by_prefix is not None:
        raise InputError("--n-tokens and --group-by-prefix both say what a token is; give one.")
    table = kind in TABLES or kind in PARQUET
    if not table and (group_by_prefix is not None or drop):
        raise InputError("--group-by-prefix and --drop need the column names of a table.")
    if table:
        return _read_table(path, kind, target, n_tokens, group_by_prefix, drop)
    samples = _read_npz(path, target) if kind == ".npz" else _read_npy(path, target)
    return _cut(samples, n_tokens)


def read_inputs(path: Path, columns: Sequence[str] | None) -> tuple[Any, NDArray[Any] | None]:
    """X and mask of a data file to predict for; of a table, the `columns` a model was fitted on."""
    kind = _check_kind(path)
    if kind in TABLES or kind in PARQUET:
        if columns is None:
            raise InputError("the model was not fitted on a table, so columns mean nothing to it.")
        frame = read_frame(path, kind)
        check_columns(path, list(frame.columns), columns)
        if not len(frame):
            raise InputError(f"{path} has 0 rows: there is nothing to predict for.")
        check_numeric(frame[list(columns)], "as they were for the fit.")
        return frame[list(columns)], None
    if kind == ".npy":
        return read_npy(path), None
    samples = _read_npz(path, "X")
    return samples.X, samples.mask


def _read_npz(path: Path, target: str) -> Samples:
    arrays = read_npz(path, ("X", target), ("mask", "sample_weight", *_NAMES))
    return Samples(
        arrays["X"],
        arrays[target],
        arrays.get("mask"),
        arrays.get("sample_weight"),
        notes=_notes(arrays),
        **{what: _names(what, arrays[what]) for what in _NAMES if what in arrays},
    )


_NAMES = ("token_names", "channel_names")


def _names(what: str, names: NDArray[Any]) -> list[str]:
    if names.ndim != 1:
        raise InputError(f"{what} must be a list of names, got an array of shape {names.shape}.")
    return [str(name) for name in names]


def _notes(arrays: dict[str, Any]) -> list[str]:
    """Which arrays of an npz are used because of their names."""
    notes = []
    if "mask" in arrays:
        mask = arrays["mask"]
        padding = 1 - np.count_nonzero(mask) / max(1, mask.size)
        notes.append(f"mask: {100 * padding:.3g} % of tokens are padding")
    if "sample_weight" in arrays:
        weight = arrays["sample_weight"]
        if weight.size and weight.dtype.kind in "biuf":
            notes.append(f"sample_weight: weights from {weight.min():g} to {weight.max():g}")
    named = [name for name in _NAMES if name in arrays]
    return notes + ([f"names are taken from {' and '.join(named)}"] if named else [])


def _read_npy(path: Path, target: str) -> Samples:
    other = Path(target)
    if other.suffix.lower() != ".npy":
        raise InputError(
            f"--target must name a second .npy file that holds the targets of {path}; got {target}."
        )
    return Samples(read_npy(path), read_npy(other))


def _cut(samples: Samples, n_tokens: int | None) -> Samples:
    """2-D arrays into tokens of equal length."""
    if samples.X.ndim != 2:
        if n_tokens is not None and (samples.X.ndim != 3 or samples.X.shape[1] != n_tokens):
            raise InputError(
                f"X has shape {samples.X.shape} and --n-tokens is {n_tokens}; leave it out for "
                "3-D data."
            )
        return samples
    samples.X = _tokens(samples.X, n_tokens)
    samples.__post_init__()
    return samples


def _tokens(X: NDArray[Any], n_tokens: int | None) -> NDArray[Any]:
    columns = X.shape[1]
    n = columns if n_tokens is None else n_tokens
    if n < 1 or columns % n:
        divisors = [k for k in range(1, columns + 1) if columns % k == 0]
        raise InputError(
            f"{columns} columns cannot be cut into {n} tokens of equal length; --n-tokens may be "
            f"{', '.join(map(str, divisors))}."
        )
    return X.reshape(len(X), n, columns // n)


def _read_table(
    path: Path,
    kind: str,
    target: str,
    n_tokens: int | None,
    separator: str | None,
    drop: Sequence[str],
) -> Samples:
    frame = read_frame(path, kind)
    check_columns(path, list(frame.columns), (target, *drop))
    y = frame[target]
    if y.isna().any():
        raise InputError(
            f"column {target!r} lacks a value in {plural(int(y.isna().sum()), 'row')}."
        )
    unnamed = index_columns(frame.columns, (target, *drop))
    features = frame.drop(columns=[target, *drop, *unnamed])
    if not features.shape[1] or not len(features):
        raise InputError(
            f"{path} has {plural(len(features), 'row')} and "
            f"{plural(features.shape[1], 'feature column')}."
        )
    check_numeric(features, f"or {LEAVE_OUT}.")
    values, columns = features.to_numpy(dtype=np.float64), list(features.columns)
    if separator is None:
        X = _tokens(values, n_tokens)
        tokens, channels = split_names(columns, X.shape[1])
    else:
        index, tokens, channels = grouping(columns, separator)
        X, columns = values[:, index], [columns[j] for token in index for j in token]
    samples = Samples(X, labels(y), token_names=tokens or [], channel_names=channels or [])
    samples.columns = columns
    samples.notes += [f"left out {name!r}, a column of row numbers" for name in unnamed]
    return samples


def choose_task(y: NDArray[Any], asked: str, target: str) -> str:
    """What `asked` says, or a guess; raises where classes cannot be meant."""
    task = guess_task(y) if asked == "auto" else asked
    if task == "regression" or y.ndim != 1 or not len(y):
        return task
    values = np.unique(y)
    if len(values) == 1:
        value = shortened(str(values[0]), LONGEST_VALUE)
        raise InputError(
            f"{target!r} has one value only, {value}: there are no classes to tell apart. If "
            "it is a number to predict, use --task regression."
        )
    if y.dtype.kind == "f":
        broken = values[np.isfinite(values) & (values != np.round(values))]
        if len(broken):
            raise InputError(
                f"{target!r} holds numbers such as {broken[0]:g}, which are no classes; use --task "
                "regression."
            )
    return task


def guess_task(y: NDArray[Any]) -> str:
    """Labels and few whole numbers mean classes, everything else regression."""
    if y.dtype.kind not in "iuf":
        return "classification"
    if y.ndim == 2 and y.shape[1] > 1:
        return "classification" if np.isin(y, (0, 1)).all() else "regression"
    values = np.unique(y)
    whole = bool(np.all(np.isfinite(values)) and np.all(values == np.round(values)))
    return "classification" if whole and len(values) <= FEW_CLASSES else "regression"


def token_scales(samples: Samples) -> NDArray[np.float64] | None:
    """Standard deviation of each token over samples, its channels pooled; 1 where it is constant.

    Dividing token k by ``s_k`` is the same problem as weighting its penalty by ``s_k``. None for
    data that cannot be fitted, about which the estimator says more.
    """
    X, mask = samples.X, samples.mask
    if X.ndim != 3 or X.dtype.kind not in "biuf":
        return None
    real = np.ones(X.shape[:2], dtype=bool) if mask is None else np.asarray(mask) != 0
    if real.shape != X.shape[:2] or not np.isfinite(X[real]).all():
        return None
    padding = np.broadcast_to(~real[:, :, None], X.shape)
    with np.errstate(over="ignore"):
        variances = np.ma.array(X, np.float64, mask=padding).var(axis=0)  # (n, d)
    scales = np.sqrt(variances.mean(axis=1).filled(0.0))
    return np.where(scales > 0, scales, 1.0)


def scaled_weights(samples: Samples, scale: bool) -> NDArray[np.float64] | None:
    """Penalty weights that put tokens on one scale, if asked for; else a note where they differ."""
    scales = token_scales(samples)
    if scale or scales is None:
        return scales if scale else None
    low, high = int(np.argmin(scales)), int(np.argmax(scales))
    ratio = scales[high] / scales[low]
    if ratio > UNLIKE_SCALES:
        names = samples.token_names or [str(k) for k in range(len(scales))]
        samples.notes.append(
            f"token scales differ {ratio:.2g} times ({names[high]} varies most, {names[low]} "
            "least), and the penalty favours tokens that vary much; use --scale"
        )
    return None
