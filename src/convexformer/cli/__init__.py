"""The command line. Heavy imports wait inside the commands, so that --help is quick."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Annotated

import typer

from ._activations import extract, probe
from ._demo import demo
from ._fit import fit, path
from ._models import explain, predict

__all__ = ["app"]

app = typer.Typer(
    help="Attention trained to a certified global optimum.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from convexformer import __version__, solvers

        print(f"convexformer {__version__}")
        if not solvers.COMPILED:
            print("Not compiled when installed: with a C compiler small problems are quicker.")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Attention trained to a certified global optimum."""
    os.environ["MPLBACKEND"] = "Agg"  # figures are drawn without a display
    with suppress(AttributeError):  # a stream that was closed, or that is no text file
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]


for command in (demo, fit, path, predict, explain, extract, probe):
    app.command()(command)
