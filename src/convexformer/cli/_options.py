"""Commands out of functions: parameters become arguments and options, their docstring the help.

A parameter that can be given by position is an argument, one that needs its name an option. After
its name the docstring may say, divided by semicolons, what stands for an option's value in the
help, the least value (``at least 2``) and words for the default (``default 0.1``). Parameters that
several commands have are described once, here.

Parameters
----------
data
    npz (arrays X and y; mask, sample_weight, token_names and channel_names are used where there are
    such arrays), npy, csv, tsv or parquet.
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

import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer

from ._console import friendly

Task = Literal["auto", "regression", "classification"]
Penalty = Literal["token-output", "token", "nuclear"]

DESCRIBED = re.compile(r"^(\w+)(?: : (.+))?\n((?:    .+\n?)+)", re.MULTILINE)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """A command that shows what is wrong with its input in one line."""
    words, own = _described(function.__doc__)
    descriptions = _described(__doc__)[1] | own
    signature = inspect.signature(function, eval_str=True)
    parameters = [
        parameter.replace(annotation=_annotated(parameter, *descriptions[name]))
        if name in descriptions
        else parameter
        for name, parameter in signature.parameters.items()
    ]
    made: Any = friendly(function)
    made.__doc__ = words
    made.__signature__ = signature.replace(parameters=parameters)
    made.__annotations__ = {one.name: one.annotation for one in parameters}
    return made


def _described(docstring: str | None) -> tuple[str, dict[str, tuple[str, str]]]:
    """What comes before the parameters; by parameter, what follows its name and its description."""
    words, _, section = inspect.cleandoc(docstring or "").partition("\n\nParameters\n----------\n")
    found: list[tuple[str, str, str]] = DESCRIBED.findall(section)
    return words, {name: (more, " ".join(text.split())) for name, more, text in found}


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
