"""Reading data files: npz, npy, csv and parquet into tokens ``(N, n, d)`` and a target."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._names import split_names
from ._console import InputError, shortened

if TYPE_CHECKING:
    from ._fit import Training

TABLES = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t", ".parquet": "", ".pq": ""}
"""Extensions of tables, and what separates the columns of those that are text."""

EXTENSIONS = (".npz", ".npy", *TABLES)
EXTRA = ["mask", "sample_weight"]
NAMES = ["token_names", "channel_names"]
LONGEST = 160  # characters of what an error quotes: NumPy's messages may hold a whole header
NUMBERS_AND_TEXT = "biufcUSmM"  # kinds of dtypes that are arrays of plain values
UNNAMED = "Unnamed: "  # how pandas begins the name of a column without one


@dataclass
class Samples:
    """What a data file holds."""

    X: NDArray[Any]  # (N, n, d)
    y: NDArray[Any]  # (N,) or (N, c)
    extra: dict[str, NDArray[Any]]  # mask and sample_weight, where there are such arrays
    names: dict[str, list[str]]  # by the attribute of a model that keeps them
    notes: list[str]  # what was used or left out without being asked


def extension(path: Path) -> str:
    """The extension of a data file, with ``.gz`` taken together with what is before it."""
    return "".join(path.suffixes[-2:] if path.suffix == ".gz" else path.suffixes[-1:]).lower()


@contextmanager
def reading(path: Path, cure: str) -> Iterator[None]:
    """Say what was wrong with the file at `path`, and the `cure`, however its reader failed.

    zipfile, zlib, NumPy, pandas, pyarrow and json raise more than a dozen kinds of errors for files
    that are damaged, encrypted, larger than memory or made up.
    """
    if not path.is_file():
        raise InputError(f"there is no file {path}.")
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = shortened(str(error).rstrip(".") or type(error).__name__, LONGEST)
        raise InputError(f"{path} cannot be read: {reason}. {cure}") from error


def read_samples(options: Training) -> Samples:
    """Read the data to fit to.

    Parameters
    ----------
    options : Training
        `data` is ``.npz`` with arrays X, the target, and optionally mask, sample_weight,
        token_names, channel_names; ``.npy`` with X; ``.csv``, ``.tsv`` (also ``.gz``) or
        ``.parquet``. `target` names the array or column to predict; for ``.npy``, another ``.npy``
        file. The others say what a token is, and which columns to leave out.
    """
    by_prefix = options.group_by_prefix is not None
    if options.n_tokens is not None and by_prefix:
        raise InputError("--n-tokens and --group-by-prefix both say what a token is; give one.")
    if is_table(options.data):
        return _from_table(options)
    if by_prefix or options.drop:
        raise InputError("--group-by-prefix and --drop need the column names of a table.")
    return _from_arrays(options)


def read_inputs(path: Path, columns: Sequence[str] | None) -> tuple[Any, NDArray[Any] | None]:
    """X and mask of a data file to predict for; of a table, the `columns` a model was fitted on."""
    if not is_table(path):
        arrays = _read_arrays(path, ["X"], ["mask"])
        return arrays["X"], arrays.get("mask")
    if columns is None:
        raise InputError("the model was not fitted on a table, so columns mean nothing to it.")
    return _numbers(_read_frame(path, columns)[list(columns)], "as they were for the fit."), None


def is_table(path: Path) -> bool:
    """Whether a data file is a table; raises if it is none that can be read."""
    kind = extension(path)
    if kind not in EXTENSIONS:
        raise InputError(
            f"{path} has the unknown extension {kind or '(none)'!r}; known are "
            f"{', '.join(EXTENSIONS)}."
        )
    return kind in TABLES


def _from_arrays(options: Training) -> Samples:
    path, target = options.data, options.target
    if extension(path) == ".npz":
        arrays = _read_arrays(path, ["X", target], [*EXTRA, *NAMES])
        y = arrays[target]
    elif extension(Path(target)) == ".npy":
        arrays = _read_arrays(path, ["X"])
        y = _read_arrays(Path(target), ["X"])["X"]
    else:
        raise InputError(
            f"--target must name a second .npy file that holds the targets of {path}; got {target}."
        )
    X = _cut(arrays["X"], options.n_tokens) if arrays["X"].ndim == 2 else arrays["X"]
    names = {
        f"{name}_": check_names(name, arrays[name], X.shape[axis])
        for axis, name in enumerate(NAMES, start=1)
        if name in arrays and X.ndim == 3
    }
    extra = {name: arrays[name] for name in EXTRA if name in arrays}
    used = ", ".join(name for name in (*extra, *NAMES) if name in arrays)
    notes = [f"used for their names: {used}"] if used else []
    if "mask" in extra:
        padding = np.mean(extra["mask"] == 0)
        notes += [f"mask: {100 * padding:.3g} % of tokens are padding"]
    return Samples(X, y[:, 0] if y.shape[1:] == (1,) else np.atleast_1d(y), extra, names, notes)


def _read_arrays(path: Path, wanted: list[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    """Arrays of an npz file; of an npy file its only array, as X."""
    with reading(path, "Write the file again with numpy.savez or numpy.save."):
        found: Any = np.load(path, allow_pickle=False)
        found = {"X": found} if isinstance(found, np.ndarray) else found
        for name in wanted:
            if name not in found:
                raise InputError(f"{path} has no array {name!r}; it holds {_some(found)}.")
        names = [name for name in (*wanted, *optional) if name in found]
        arrays = {name: np.asarray(found[name]) for name in names}
    for name, array in arrays.items():
        if array.dtype.kind not in NUMBERS_AND_TEXT:
            raise InputError(f"array {name!r} of {path} holds records; save numbers or strings.")
    return arrays


def check_names(what: str, given: Any, count: int) -> list[str]:
    """Names as a list; raises unless there are `count` of them, all different."""
    names = [str(name).strip() for name in np.ravel(given)]
    if len(names) != count:
        raise InputError(f"{what} must be a list of {count} names, got {len(names)}.")
    if len(set(names)) < count:
        raise InputError(f"{what} holds the same name twice; names must differ.")
    return names


def _cut(X: NDArray[Any], n_tokens: int | None) -> NDArray[Any]:
    """Columns into tokens of equal length."""
    n = X.shape[1] if n_tokens is None else n_tokens
    if n < 1 or X.shape[1] % n:
        raise InputError(f"{X.shape[1]} columns cannot be cut into {n} tokens of equal length.")
    return X.reshape(len(X), n, X.shape[1] // n)


def _from_table(options: Training) -> Samples:
    path, target, drop = options.data, options.target, options.drop or []
    frame = _read_frame(path, [target, *drop])
    y = frame[target]
    if y.isna().any():
        raise InputError(f"column {target!r} lacks a value in {y.isna().sum()} of {len(y)} rows.")
    unnamed = [name for name in frame if name.startswith(UNNAMED) and name not in drop]
    features = frame.drop(columns=[target, *drop, *unnamed])
    features = _numbers(features, "or leave such columns out with --drop NAME.")
    if options.group_by_prefix is None:
        X = _cut(features.to_numpy(), options.n_tokens)
        tokens, channels = split_names(list(features), X.shape[1])
    else:
        columns, tokens, channels = _grouped(list(features), options.group_by_prefix)
        features = features[columns]
        X = _cut(features.to_numpy(), len(tokens))
    y = y.to_numpy() if y.dtype.kind in "biuf" else y.to_numpy().astype(str)
    names: dict[str, Any] = {"token_names_": tokens, "channel_names_": channels}
    names = {attribute: given for attribute, given in names.items() if given}
    notes = [f"left out {name!r}, a column of row numbers" for name in unnamed]
    return Samples(X, y, {}, {"feature_names_in_": list(features)} | names, notes)


def _read_frame(path: Path, wanted: Sequence[str]) -> Any:
    """The table in a file, its columns named by strings that differ; the `wanted` ones are there.

    pandas renames columns of equal names, so the header is read by itself.
    """
    import pandas as pd

    with reading(path, "Save the table again, as UTF-8 text or as parquet."):
        if not (separator := TABLES[extension(path)]):
            frame = header = pd.read_parquet(path)
        else:
            # Rows longer than the header warn; else their first values would become an index.
            options: dict[str, Any] = {"sep": separator, "index_col": False}
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)
                frame = pd.read_csv(path, **options)
            first = pd.read_csv(path, header=None, nrows=1, dtype=str, na_filter=False, **options)
            header = first.set_axis(first.iloc[0], axis="columns")
    frame.columns = frame.columns.map(str)
    names = header.columns.map(str)
    twice = names[names.duplicated() & (names != "")]
    if len(twice):
        raise InputError(f"{path} has several columns named {_some(twice)}; names must differ.")
    for name in wanted:
        if name not in frame:
            raise InputError(f"{path} has no column {name!r}; its columns are {_some(names)}.")
    return frame


def _numbers(features: Any, cure: str) -> Any:
    """The same columns in float64; raises where one holds anything but finite numbers."""
    import pandas as pd

    numbers = features.apply(pd.to_numeric, errors="coerce").astype(np.float64)
    rows, columns = np.nonzero(~np.isfinite(numbers.to_numpy()))
    if len(rows):
        value = shortened(str(features.iat[rows[0], columns[0]]), LONGEST)
        raise InputError(
            f"no finite numbers in {_some(features.columns[np.unique(columns)])} ({value} in row "
            f"{rows[0] + 1}); encode or impute such columns, {cure}"
        )
    return numbers


def _grouped(columns: list[str], separator: str) -> tuple[list[str], list[str], list[str]]:
    """Columns ``token<sep>channel`` token by token; names of the tokens and of the channels."""
    parts = [column.partition(separator) for column in columns]
    for column, (_, found, _) in zip(columns, parts, strict=True):
        if not found:
            raise InputError(
                f"column {column!r} has no {separator!r} to divide token from channel; leave it "
                "out with --drop NAME or name another separator."
            )
    tokens = list(dict.fromkeys(token for token, _, _ in parts))
    channels = list(dict.fromkeys(channel for _, _, channel in parts))
    wanted = [f"{token}{separator}{channel}" for token in tokens for channel in channels]
    if missing := [name for name in wanted if name not in columns]:
        raise InputError(f"all tokens need the same channels; there is no {_some(missing)}.")
    return wanted, tokens, channels


def _some(names: Any) -> str:
    """All names, or the first and the last of many: targets often stand last."""
    return shortened(", ".join(names), LONGEST)
