"""What reaches the terminal: results, one JSON object, live lines, warnings and errors.

Names come from files that others wrote, so they may hold anything: escape sequences that clear the
screen, marks that turn the direction of writing. The consoles here show a sign in their place.
"""

from __future__ import annotations

import functools
import json
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

LONGEST_LINE = 900  # characters of an error, a note or a warning

# Control characters but tab and line feed; line separators; marks that change the direction of
# writing; halves of surrogate pairs, which no encoding has.
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
PARAMETER = re.compile(r"(?<![\w./-])(cv|eps|max_length|max_time|n_tokens|tol|truncate)\b(?!\.\w)")


class InputError(ValueError):
    """Something the user gave cannot be used; the message says what, and what to do."""


class Terminal(Console):
    """A console that shows text as it is: no markup, no emoji codes, nothing unsafe."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Everything that is printed comes through here, in tables and live lines too.

        A sign is wider than what it stands for, so cells of tables call :func:`visible` before.
        """
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


def visible(text: str) -> str:
    r"""Text with a visible sign for each character that commands the terminal.

    Examples
    --------
    >>> from convexformer.cli._console import visible
    >>> visible("P2\x1b[2J")
    'P2�[2J'
    """
    return UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text)


out = Terminal()
err = Terminal(stderr=True)


def remark(kind: str, style: str, message: str) -> None:
    """A line on stderr, which says first what kind of line it is."""
    line = shortened(" ".join(message.split()), LONGEST_LINE)
    err.print(Text.assemble((f"{kind}: ", style), line), soft_wrap=True)


def in_options(message: str) -> str:
    """What the library says, which names parameters, with the options of the commands instead.

    Examples
    --------
    >>> from convexformer.cli._console import in_options
    >>> in_options("max_time ran out. Scale X (TokenScaler), or raise tol.")
    '--max-time ran out. Scale X (--scale), or raise --tol.'
    """
    message = PARAMETER.sub(lambda found: f"--{found[1].replace('_', '-')}", message)
    return message.replace("TokenScaler", "--scale")


def shortened(text: str, most: int) -> str:
    """`text`, or its beginning and its end where it has more than `most` characters."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} ... {text[-half:]}"


def emit(result: dict[str, Any]) -> None:
    """Print one JSON object on stdout."""
    print(to_json(result), flush=True)


def to_json(result: Any) -> str:
    """JSON of plain numbers and strings, in ASCII: every terminal shows it, none obeys it.

    NaN and infinity, which JSON lacks, become null.
    """
    return json.dumps(_plain(result), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy arrays and scalars
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


@contextmanager
def warned() -> Iterator[None]:
    """Print what the library warns of in the body on stderr afterwards, a line each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    told = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    for message in dict.fromkeys(told):
        remark("warning", "yellow", in_options(message))


@contextmanager
def progress(what: str) -> Iterator[Callable[..., None]]:
    """A line on stderr while the body runs, where that is a terminal; yields what updates it.

    The line has the time that has passed and, once a total is known, a bar and the time left.
    """
    from rich import progress as rich

    words, bar = rich.TextColumn("{task.description}"), rich.BarColumn(24)
    columns = (bar, words, rich.TimeElapsedColumn(), rich.TimeRemainingColumn())
    hidden = not err.is_terminal
    with rich.Progress(*columns, console=err, transient=True, disable=hidden) as lines:
        yield functools.partial(lines.update, lines.add_task(what, total=None))


@dataclass(frozen=True)
class Report:
    """What a live line says: an estimator calls it with trace points, and tells it of folds."""

    what: str
    update: Callable[..., None]

    def __call__(self, point: Any) -> None:
        gap = f"relative gap [bold]{point.relative_gap:.1e}[/]"
        self.update(description=f"{self.what}  {gap}  {point.n_active} groups")

    def step(self, words: str) -> None:
        """Say how far cross-validation has come."""
        self.update(description=f"{self.what}  {words}")


@contextmanager
def live(what: str) -> Iterator[Report]:
    """A line with the gap and the elapsed time; yields a report for every trace point."""
    with progress(what) as update:
        yield Report(what, update)


def plain_table(*columns: str, right: Iterable[str] = ()) -> Table:
    """A table without a frame; the columns in `right` are numbers, those without a name bars.

    Where there is little room only words are wrapped: no number is lost.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in columns:
        number = name in right
        table.add_column(name, justify="right" if number else "left", no_wrap=number or not name)
    return table
