"""The command line. Heavy imports wait inside the commands, so that --help is quick."""

from __future__ import annotations

from typing import Annotated

import typer

from ._demo import demo
from ._explain import explain
from ._extract import extract
from ._fit import fit
from ._path import path
from ._predict import predict
from ._probe import probe
from ._terminal import Commands

__all__ = ["app"]

app = typer.Typer(
    cls=Commands,
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
            print(
                "Not compiled when it was installed: with a C compiler small problems are quicker."
            )
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Attention trained to a certified global optimum."""


for command in (demo, fit, path, predict, explain, extract, probe):
    app.command()(command)
