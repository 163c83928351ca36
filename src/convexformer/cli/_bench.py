"""``convexformer bench``: seconds to a certified gap, on the reader's own machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from . import _options as opt
from ._console import emit, friendly, out
from ._words import plain_table

CELL = "Run this cell only: isotropic, correlated, tall or scalar. Repeatable."
Cells = Annotated[list[str] | None, typer.Option("--cell", help=CELL)]


@friendly
def bench(cell: Cells = None, json: opt.Json = False) -> None:
    """Time the solver on this machine, and peers, at the same certified gap.

    Peers are celer, if it is installed, and scikit-learn's Lasso, for tokens of one channel.
    """
    from threadpoolctl import threadpool_limits

    from convexformer.bench import CELLS, GAP, race
    from convexformer.solvers import COMPILED

    known = {one.name: one for one in CELLS}
    unknown = [name for name in cell or () if name not in known]
    if unknown:
        raise ValueError(f"Unknown cell {unknown[0]!r}; choose from {', '.join(known)}.")
    with threadpool_limits(1):
        timings = list(race(tuple(known[name] for name in dict.fromkeys(cell or known))))
    if json:
        facts = {"gap": GAP, "threads": 1, "compiled": COMPILED}
        emit(facts | {"timings": [asdict(timing) for timing in timings]})
        return
    console = out()
    right = ("N x n x d", "beta", "seconds", "gap", "tokens")
    shown = plain_table(
        "cell", "N x n x d", "beta", "solver", "seconds", "gap", "tokens", right=right
    )
    for timing in timings:
        ours = timing.solver == "convexformer"
        shown.add_row(
            timing.cell if ours else "",
            " x ".join(map(str, timing.shape)) if ours else "",
            f"{timing.fraction:g}" if ours else "",
            Text(timing.solver, "bold" if ours else ""),
            f"{timing.seconds:.3g}",
            Text(f"{timing.relative_gap:.0e}", "green" if timing.relative_gap <= GAP else "yellow"),
            str(timing.tokens),
        )
    console.print(shown)
    note = (
        f"Processor seconds on one thread to a relative duality gap of {GAP:g}, median of up to "
        "five runs; beta is a fraction "
        "of beta_max. The contest with all peers: docs/benchmarks.md."
    )
    if not COMPILED:
        note += " Sweeps were not compiled when convexformer was installed: with a C compiler small"
        note += " problems are quicker."
    console.print(Text(note, "dim"))
