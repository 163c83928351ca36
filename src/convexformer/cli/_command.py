"""Commands out of functions: parameters become arguments and options, their docstring the help.

A command returns its result, which `--json` prints, and what people are shown of it. Notes of a
result are printed on stderr, what was wrong with the input in one line with exit code 2.

A parameter that can be given by position is an argument, one that needs its name an option; one
that is a dataclass stands for the fields of that class. After its name the docstring may say,
divided by semicolons, what stands for an option's value in the help, the least value (``at least
2``) and words for the default (``default 0.1``). Parameters that several commands have are
described once, here.

Parameters
----------
data
    npz (arrays X and y; mask, sample_weight, token_names and channel_names are used where there are
    such arrays), npy, csv, tsv or parquet.
model
    A model saved by fit.
target
    What to predict: an array of the npz, a column of the table, or a second npy file.
task
    auto: labels and few whole numbers are classes.
n_tokens : at least 1
    Cut 2-D data into so many tokens; else each column is a token.
group_by_prefix : SEP
    Columns token<SEP>channel form one token each.
drop : COLUMN
    Leave a column out. Repeatable.
scale
    Put tokens on one scale: weight their penalties by their standard deviations.
penalty
    token: all outputs share their tokens; nuclear: and few directions of each token.
tol
    Relative duality gap at which to stop.
max_time
    Most seconds to spend.
layer
    Layer to read, counted from 0.
texts
    A text per line, or pairs separated by a tab.
max_length : at least 1; default the model's limit
    Most tokens of a text.
truncate
    Cut texts that are longer.
figure
    Draw to this file: png, pdf or svg.
force
    Overwrite what exists.
json
    Print one JSON object and nothing else.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from ._console import InputError, emit, in_options, out, remark, warned

BAD_INPUT = 2  # exit code, the one that typer uses for wrong options
INTERRUPTED = 130  # exit code: what a shell reports of a program that Ctrl-C has ended

DESCRIBED = re.compile(r"^(\w+)(?: : (.+))?\n((?:    .+\n?)+)", re.MULTILINE)

Answer = tuple[dict[str, Any], list[RenderableType]]
"""What a command found, for ``--json`` and for people; what is a str is shown without wrapping."""


def command(function: Callable[..., Answer]) -> Callable[..., None]:
    """A command of the app."""
    given = list(inspect.signature(function, eval_str=True).parameters.values())
    bundles: dict[str, Any] = {p.name: p.annotation for p in given if is_dataclass(p.annotation)}

    @functools.wraps(function)
    def run(*, json: bool = False, **options: Any) -> None:
        for name, kind in bundles.items():
            options[name] = kind(**{one.name: options.pop(one.name) for one in fields(kind)})
        result, shown = _answer(function, options, json)
        if json:
            emit(result)
            return
        for note in result.get("notes", ()):
            remark("note", "dim", note)
        for thing in shown:
            out.print(thing, soft_wrap=isinstance(thing, str))

    text, own = _described(function.__doc__)
    descriptions = _described(__doc__)[1] | own
    json = inspect.signature(run, follow_wrapped=False, eval_str=True).parameters["json"]
    flat = [*(field for one in given for field in _fields(one)), json]
    parameters = [p.replace(annotation=_annotated(p, *descriptions[p.name])) for p in flat]
    made: Any = run
    made.__doc__ = text
    made.__signature__ = inspect.Signature(parameters)
    made.__annotations__ = {one.name: one.annotation for one in parameters}
    return made


def _fields(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    """A parameter, or what a dataclass is made of that it stands for."""
    if not is_dataclass(parameter.annotation):
        return [parameter]
    kind: Any = parameter.annotation
    return list(inspect.signature(kind, eval_str=True).parameters.values())


def _answer(function: Callable[..., Answer], options: dict[str, Any], json: bool) -> Answer:
    """What `function` returns; what is wrong with the input ends it in one line.

    The library raises ValueError for input that cannot be used, and nothing else does on purpose. A
    bug still shows its traceback.
    """
    try:
        with warned():
            return function(**options)
    except BrokenPipeError:  # an OSError, but not one of the input
        raise
    except (ValueError, OSError, ImportError, MemoryError, OverflowError) as error:
        message = str(error) or type(error).__name__
        if isinstance(error, FileNotFoundError):
            message = f"there is no file {error.filename}."
        elif not isinstance(error, InputError):
            message = in_options(message)
        if json:
            emit({"error": message})
        remark("error", "bold red", message)
        raise typer.Exit(BAD_INPUT) from None
    except KeyboardInterrupt as stop:
        remark("stopped", "yellow", str(stop) or "nothing was written")
        raise typer.Exit(INTERRUPTED) from None


def _described(docstring: str | None) -> tuple[str, dict[str, tuple[str, str]]]:
    """What comes before the parameters; by parameter, what follows its name and its description."""
    text, _, section = inspect.cleandoc(docstring or "").partition("\n\nParameters\n----------\n")
    found: list[tuple[str, str, str]] = DESCRIBED.findall(section)
    return text, {name: (more, " ".join(words.split())) for name, more, words in found}


def _annotated(parameter: inspect.Parameter, more: str, text: str) -> Any:
    """The type of a parameter, with what typer is to know of it."""
    known: dict[str, Any] = {"help": text}
    for part in filter(None, more.split("; ")):
        if part.startswith("at least "):
            known["min"] = int(part.removeprefix("at least "))
        elif part.startswith("default "):
            known["show_default"] = part.removeprefix("default ")
        else:
            known["metavar"] = part
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
        option = typer.Option(f"--{parameter.name.replace('_', '-')}", **known)
        return Annotated[parameter.annotation, option]
    return Annotated[parameter.annotation, typer.Argument(metavar=parameter.name.upper(), **known)]
