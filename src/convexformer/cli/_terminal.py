"""What reaches the terminal: no text commands it, no character and no closed pipe stops a command.

Names come from files that others wrote, so they may hold anything: escape sequences that clear the
screen, marks that turn the direction of writing, letters that the terminal cannot show.
"""

from __future__ import annotations

import codecs
import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NoReturn, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from typer.core import TyperGroup

CLOSED_PIPE = 128 + 13  # exit code: what a shell reports of a program that SIGPIPE has ended

# Control characters but tab and line feed; line separators; marks that change the direction of
# writing; halves of surrogate pairs, which no encoding has.
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
BREAKS_TABLES = re.compile(f"{UNSAFE.pattern}|[\t\n]")
DELETE = "\x7f"
CONTROL_PICTURES = 0x2400  # code point of the picture of the first control character
ENCODING_ERRORS = "convexformer.spell"  # name under which `spell` is registered

SPELLED = {
    **dict.fromkeys("█▉▊▋", "#"),  # of bars
    **dict.fromkeys("▌▍▎▏─━", "-"),
    **{"β": "beta", "±": "+-", "²": "^2", "³": "^3", "≤": "<=", "≥": ">=", "−": "-", "×": "x"},
    **{"…": "...", "“": '"', "”": '"', "–": "-", "│": "|", "•": "*", "→": "->"},
}
BRAILLE = range(0x2800, 0x2900)  # code points of what rich's spinner turns


def visible(text: str) -> str:
    r"""A name with a visible sign for each character that commands the terminal or ends a line.

    Examples
    --------
    >>> from convexformer.cli._terminal import visible
    >>> visible("P2\x1b[2J")
    'P2␛[2J'
    >>> visible("two\nlines")
    'two␊lines'
    """
    return BREAKS_TABLES.sub(_sign, text)


def _sign(match: re.Match[str]) -> str:
    character = match[0]
    if character < " ":
        return chr(CONTROL_PICTURES + ord(character))
    return "␡" if character == DELETE else "\N{REPLACEMENT CHARACTER}"


def spell(error: UnicodeError) -> tuple[str, int]:
    """Error handler of an encoding: ASCII for what it cannot show, a ``\\u`` code at worst."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    return "".join(map(_ascii, characters)), error.end


def _ascii(character: str) -> str:
    if ord(character) in BRAILLE:
        return "*"
    return SPELLED.get(character) or character.encode("ascii", "backslashreplace").decode()


codecs.register_error(ENCODING_ERRORS, spell)


class Terminal(Console):
    """A console that shows text as it is: no markup, no emoji codes, nothing unsafe."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Everything that is printed comes through here, in tables and live lines too.

        A sign is wider than the character that it stands for. Tables therefore call :func:`visible`
        themselves, so that columns are measured with the signs and no number is cut off.
        """
        for segment in super().render(renderable, options):
            if segment.control or not UNSAFE.search(segment.text):
                yield segment
            else:
                yield Segment(UNSAFE.sub(_sign, segment.text), segment.style)

    def on_broken_pipe(self) -> NoReturn:
        """Leave the exit code to :class:`Commands`: rich would end with 1, as if for an error."""
        raise  # rich calls this where it handles the error


class Commands(TyperGroup):
    """The commands, on streams that any character can be written to, and that may be closed."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run a command; a reader that has gone away, as of ``| head``, ends it in silence."""
        for name in ("stdout", "stderr"):
            setattr(sys, name, _prepared(getattr(sys, name)))
        try:
            try:
                return super().main(*args, **options)
            finally:
                sys.stdout.flush()  # here, where a closed pipe can still be answered
        except BrokenPipeError:
            _leave()

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was named."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would end with 1, as if for an error
            _leave()


def _prepared(stream: TextIO | None) -> TextIO:
    if stream is None:  # closed by who called
        return open(os.devnull, "w")
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors=ENCODING_ERRORS)
    return stream


def _leave() -> NoReturn:
    """End with what is still to be written going nowhere, else Python complains of it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # a stream that is no file
            os.dup2(nowhere, stream.fileno())
    sys.exit(CLOSED_PIPE)
