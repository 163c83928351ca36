"""The command line. Heavy imports wait inside the commands, so that --help is quick."""

from __future__ import annotations

from typing import Annotated

import typer

from ._bench import bench
from ._costs import costs
from ._demo import demo
from ._explain import explain
from ._extract import extract
from ._fit import fit
from ._path import path
from ._predict import predict
from ._probe import probe
from ._reproduce import reproduce
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
        from convexformer import __version__

        print(f"convexformer {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Attention trained to a certified global optimum."""


for command in (demo, fit, path, predict, explain, extract, probe, costs, bench):
    app.command()(command)
app.add_typer(reproduce, name="reproduce")
