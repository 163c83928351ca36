"""Tables: reading them, finding columns, and saying what is wrong with them."""

from __future__ import annotations

import difflib
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._console import InputError, shortened
from ._files import reading

TABLES = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
PARQUET = (".parquet", ".pq")
LEAVE_OUT = "leave such columns out with --drop NAME"  # of commands that fit
LONGEST_VALUE = 60  # characters of a value that an error shows
LONGEST_INTEGER = 64  # bits
INDEX_COLUMN = re.compile(r"Unnamed: \d+")  # what pandas calls a column without a name
OTHER_SEPARATORS = {";": ";", "\t": "tabs", "|": "|", ",": ","}


def read_frame(path: Path, kind: str) -> Any:
    """The table in a file, its columns named by strings."""
    import pandas as pd

    if kind in PARQUET:
        with reading(path, "Write it again, for example with pandas.DataFrame.to_parquet."):
            frame = pd.read_parquet(path)
        names = [str(name) for name in frame.columns]
    else:
        with reading(path, "Save it as UTF-8 text, a row in each line."):
            frame, names = _read_text(path, TABLES[kind])
    _check_different(path, names)
    frame.columns = [str(name) for name in frame.columns]
    if frame.shape[1] == 1:
        (header,) = frame.columns
        for separator, name in OTHER_SEPARATORS.items():
            if separator in header:
                raise InputError(
                    f"{path} has a single column, {header[:60]!r}: is it separated by {name}? "
                    "Save it with commas, or with tabs as .tsv."
                )
    return frame


def _read_text(path: Path, separator: str) -> tuple[Any, list[str]]:
    """The table in a text file, and the names as its header has them; pandas renames equal ones."""
    import pandas as pd

    # Without index_col rows that are too long would lend their first value to an index.
    options: dict[str, Any] = {"sep": separator, "index_col": False}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(path, **options)
    except pd.errors.ParserWarning as error:
        raise InputError(
            f"{path} has rows with more values than its header has names: name every column."
        ) from error
    header = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False, **options)
    return frame, list(header.iloc[0])


def _check_different(path: Path, names: Sequence[str]) -> None:
    """Raise where two columns have the same name: neither can be asked for."""
    twice = [name for name, count in Counter(names).items() if name and count > 1]
    if twice:
        raise InputError(
            f"{path} has several columns named {some(twice)}; give every column its own name."
        )


def check_columns(path: Path, columns: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise where a wanted column is missing, naming those that are like it."""
    for name in wanted:
        if name not in columns:
            near = difflib.get_close_matches(name, columns, n=3)
            hint = f"did you mean {' or '.join(near)}? Its" if near else "its"
            raise InputError(f"{path} has no column {name!r}; {hint} columns are {some(columns)}.")


def index_columns(columns: Sequence[str], asked: Sequence[str]) -> list[str]:
    """Columns without a name that nobody asked for: row numbers, as pandas writes them."""
    return [name for name in columns if INDEX_COLUMN.fullmatch(name) and name not in asked]


def labels(y: Any) -> NDArray[Any]:
    """A column as numbers or strings."""
    too_long = _long_integer(y)
    if too_long:
        raise InputError(f"column {y.name!r} holds {too_long}; {AS_FLOAT}.")
    values = y.to_numpy()
    return values if values.dtype.kind in "biuf" else values.astype(str)


def check_numeric(features: Any, cure: str) -> None:
    """Raise where a column holds anything but finite numbers; `cure` follows "encode or impute"."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    def numeric(column: Any) -> bool:
        return is_numeric_dtype(column) or is_bool_dtype(column)

    wrong = [name for name in features if not numeric(features[name])]
    if wrong:
        raise InputError(
            f"not numeric: {some(wrong)} ({_first_text(features[wrong[0]])}); encode such columns "
            f"as numbers, {cure}"
        )
    finite = np.isfinite(features.to_numpy(np.float64, na_value=np.nan)).all(axis=0)
    if not finite.all():
        bad = some([str(name) for name in features.columns[~finite]])
        raise InputError(f"NaN (empty) or infinite values in {bad}; impute them, {cure}")


def _first_text(column: Any) -> str:
    """Where a column first is no number."""
    import pandas as pd

    too_long = _long_integer(column)
    if too_long:
        return f"{too_long}: {AS_FLOAT}"
    text = pd.to_numeric(column, errors="coerce").isna() & column.notna()
    if not text.any():
        return f"of type {column.dtype}"
    row = int(np.argmax(text.to_numpy()))
    return f"{shortened(repr(column.iloc[row]), LONGEST_VALUE)} in row {row + 1}"


AS_FLOAT = "write it with an exponent, such as 1e30"


def _long_integer(column: Any) -> str:
    """Where a column first has an integer that no type of NumPy's holds; "" where it has none."""
    if column.dtype == object:  # else no value is a Python integer
        for row, value in enumerate(column, start=1):
            if type(value) is int and value.bit_length() > LONGEST_INTEGER:
                return f"an integer of {len(str(abs(value)))} digits in row {row}"
    return ""


def grouping(
    columns: Sequence[str], separator: str
) -> tuple[list[list[int]], list[str], list[str]]:
    """Columns ``token<sep>channel`` by token and channel, in order of first appearance."""
    places: dict[str, dict[str, int]] = {}  # of columns, by token and channel
    for j, column in enumerate(columns):
        token, found, channel = column.partition(separator)
        if not found:
            raise InputError(
                f"column {column!r} has no {separator!r} to divide token from channel; leave it "
                "out with --drop NAME or name another separator."
            )
        places.setdefault(token, {})[channel] = j
    first, *others = places
    for token in others:
        if places[token].keys() != places[first].keys():
            raise InputError(
                f"all tokens need the same channels, but {first!r} has {some([*places[first]])} "
                f"and {token!r} has {some([*places[token]])}."
            )
    channels = list(places[first])
    return (
        [[place[channel] for channel in channels] for place in places.values()],
        [*places],
        channels,
    )


def some(names: Sequence[str], most: int = 12) -> str:
    """All names, or the first and the last of many: targets often stand last."""
    if len(names) <= most:
        return ", ".join(names)
    shown = [*names[: most - 3], "...", *names[-3:]]
    return f"{', '.join(shown)} ({len(names)} in all)"
