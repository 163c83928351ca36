"""What all commands share: errors in one line, one JSON object, a live line, safe outputs."""

from __future__ import annotations

import functools
import json
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import typer
from rich.text import Text

from .._files import write_whole
from ._hints import in_options
from ._terminal import DELETE, Terminal

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import ProgressColumn

P = ParamSpec("P")
R = TypeVar("R")

LONGEST_LINE = 900  # characters of an error, a note or a warning
BEYOND = {
    MemoryError: "more memory is needed than there is; give less at a time: ",
    OverflowError: "a number is too large to calculate with: ",
}
"""What comes before Python's words for input that is beyond the machine."""

BAD_INPUT = 2  # exit code, the one that typer uses for wrong options

STYLES = {"accent": "bold cyan", "good": "green", "warn": "yellow", "quiet": "dim"}


class InputError(Exception):
    """Something the user gave cannot be used; the message says what, and what to do."""


def out() -> Terminal:
    """Where results go. Made anew each time, because tests and pipes replace ``sys.stdout``."""
    return Terminal()


def err() -> Terminal:
    """Where progress, warnings and errors go."""
    return Terminal(stderr=True)


def fail(message: object) -> NoReturn:
    """Say what was wrong in one line on stderr and leave with exit code 2."""
    _remark("error", "bold red", one_line(message))
    raise typer.Exit(BAD_INPUT)


def one_line(message: object) -> str:
    """A message in one line that can be read: what others put into it may be very long."""
    return shortened(in_options(" ".join(str(message).split())), LONGEST_LINE)


def shortened(text: str, most: int) -> str:
    """`text`, or its beginning and its end where it has more than `most` characters."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} ... {text[-half:]}"


def say(*parts: str | Text | tuple[str, str], style: str = "", whole: bool = False) -> None:
    """Print parts of a text, some with a style of their own; as a `whole`, its lines stay lines."""
    out().print(Text.assemble(*parts, style=style), soft_wrap=whole)


def show(*things: RenderableType) -> None:
    """Print tables and texts on stdout, one below the other."""
    for thing in things:
        out().print(thing)


def _remark(kind: str, style: str, line: str) -> None:
    """A line on stderr, which says first what kind of line it is."""
    err().print(Text.assemble((f"{kind}: ", style), line), soft_wrap=True)


def friendly(command: Callable[P, R]) -> Callable[P, R]:
    """Turn what is wrong with the input into one line; a bug still shows its traceback.

    The library raises ValueError for input that cannot be used, and nothing else does on purpose.
    """

    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with warned():
                return command(*args, **kwargs)
        except BrokenPipeError:  # an OSError, but not one of the input
            raise
        except (InputError, ValueError, OSError, MemoryError, OverflowError) as error:
            message = one_line(f"{BEYOND.get(type(error), '')}{error}")
            if kwargs.get("json"):
                emit({"error": message})
            fail(message)
        except KeyboardInterrupt:
            err().print("stopped; nothing was written", style=STYLES["warn"])
            raise typer.Exit(130) from None

    return wrapper


def note(notes: Sequence[str]) -> None:
    """Print notes on stderr, a line each."""
    for words in notes:
        _remark("note", STYLES["quiet"], words)


def emit(result: dict[str, Any]) -> None:
    """Print exactly one JSON object on stdout, in ASCII: every terminal shows it, none obeys it."""
    print(to_json(result, ascii_only=True).replace(DELETE, "\\u007f"))


def to_json(result: Any, *, ascii_only: bool = False) -> str:
    """JSON of plain numbers and strings; NaN and infinity, which JSON lacks, become null."""
    return json.dumps(_plain(result), ensure_ascii=ascii_only, allow_nan=False)


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


@dataclass(frozen=True)
class Report:
    """What a live line says: an estimator calls it with trace points, and tells it of folds."""

    what: str
    groups: str  # what the solver counts as active
    show: Callable[[str], None]

    def __call__(self, point: Any) -> None:
        gap = f"relative gap [bold]{point.relative_gap:.1e}[/]"
        self.show(f"{self.what}  {gap}  {point.n_active} {self.groups}")

    def step(self, words: str) -> None:
        """Say how far cross-validation has come."""
        self.show(f"{self.what}  {words}")


@contextmanager
def progress(what: str, *columns: str | ProgressColumn) -> Iterator[Callable[..., None]]:
    """A line on stderr while the body runs, where that is a terminal; yields what updates it."""
    from rich.progress import Progress

    console = err()
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task(what, total=None)
        yield functools.partial(bar.update, task)


@contextmanager
def live(what: str, groups: str = "tokens") -> Iterator[Report]:
    """A line with the gap and the elapsed time; yields a report for every trace point.

    Warnings of the library are printed afterwards, one line each.
    """
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with warned(), progress(what, *columns) as update:
        yield Report(what, groups, lambda line: update(description=line))


@contextmanager
def counted(what: str) -> Iterator[Callable[..., None]]:
    """A bar with the time left; yields what is to be told how many are done of how many."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    columns = (BarColumn(24), MofNCompleteColumn(), TextColumn("{task.description}"))
    with progress(what, *columns, TimeRemainingColumn()) as update:
        yield lambda done, total, **more: update(completed=done, total=total, **more)


@contextmanager
def warned() -> Iterator[None]:
    """Print what the library warns of in the body on stderr afterwards, a line each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    told = [w.message for w in caught if issubclass(w.category, UserWarning)]
    for message in dict.fromkeys(map(one_line, told)):
        _remark("warning", STYLES["warn"], message)


def check_output(path: Path, force: bool, inputs: Sequence[Path] = ()) -> Path:
    """Raise, before any work is done, if `path` exists or could not be written.

    A file that the command reads, one of `inputs`, is never overwritten, also not with --force.
    """
    if path.is_dir():
        raise InputError(f"{path} is a directory; give the name of a file.")
    for source in inputs:
        if path.exists() and source.exists() and path.samefile(source):
            raise InputError(
                f"{path} is a file that this command reads, and would be overwritten; give the "
                "output another name."
            )
    if path.exists() and not force:
        raise InputError(f"{path} exists; use --force to overwrite it.")
    if path.exists() and not os.access(path, os.W_OK):
        raise InputError(f"{path} cannot be written: permission denied.")
    check_directory(path.parent)
    return path


def check_directory(folder: Path) -> None:
    """Raise unless files can be made in `folder`."""
    if not folder.is_dir():
        raise InputError(f"the folder {folder} does not exist; create it or name another.")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be written: {error.strerror}.") from error


def check_place(folder: Path) -> None:
    """Raise, before any work is done, unless files can be made in `folder`.

    A folder that is not there yet is made with the first file, if its parent is there.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give the name of a folder.")
    check_directory(folder if folder.is_dir() else folder.parent)


def check_folder(
    folder: Path, names: Sequence[str], force: bool, inputs: Sequence[Path] = ()
) -> list[Path]:
    """The files `names` in `folder`; raises, before any work is done, if one cannot be written."""
    check_place(folder)
    return [
        check_output(folder / name, force, inputs) if folder.is_dir() else folder / name
        for name in names
    ]


def write(path: Path, content: bytes | str) -> None:
    """Write a file whole or not at all: an old one stays until the new one is complete."""
    path.parent.mkdir(exist_ok=True)
    try:
        write_whole(path, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}.") from error
