"""Arguments and options that several commands have."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Task(StrEnum):
    """What is predicted."""

    auto = "auto"
    regression = "regression"
    classification = "classification"


class Penalty(StrEnum):
    """Which coefficients share one norm."""

    token_output = "token-output"
    token = "token"
    nuclear = "nuclear"


Data = Annotated[
    Path,
    typer.Argument(
        help="npz (arrays X and y; mask, sample_weight, token_names and channel_names are used "
        "where there are such arrays), npy, csv, tsv or parquet.",
        metavar="DATA",
    ),
]
Target = Annotated[
    str,
    typer.Option(
        help="What to predict: an array of the npz, a column of the table, or a second npy file."
    ),
]
TaskOption = Annotated[
    Task, typer.Option("--task", help="auto: labels and few whole numbers are classes.")
]
NTokens = Annotated[
    int | None,
    typer.Option(min=1, help="Cut 2-D data into so many tokens; else each column is a token."),
]
GroupByPrefix = Annotated[
    str | None,
    typer.Option(metavar="SEP", help="Columns token<SEP>channel form one token each."),
]
Drop = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN", help="Leave a column out. Repeatable.")
]
Scale = Annotated[
    bool,
    typer.Option(
        "--scale",
        help="Put tokens on one scale: weight their penalties by their standard deviations.",
    ),
]
PenaltyOption = Annotated[
    Penalty,
    typer.Option(
        "--penalty",
        help="token: all outputs share their tokens; nuclear: and few directions of each token.",
    ),
]
Tol = Annotated[float, typer.Option(help="Relative duality gap at which to stop.")]
MaxTime = Annotated[float | None, typer.Option(help="Most seconds to spend.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite what exists.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
