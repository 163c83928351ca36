"""``convexformer costs``: parameters and FLOPs of the models of the paper's Table 1."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from . import _options as opt
from ._console import InputError, emit, friendly, out

if TYPE_CHECKING:
    from convexformer.costs import Cost

Tokens = Annotated[int, typer.Option(min=1, help="Number of tokens, n.")]
Dim = Annotated[int, typer.Option(min=1, help="Embedding dimension, d.")]
Heads = Annotated[int, typer.Option(min=1, help="Number of heads or gates, h.")]
Outputs = Annotated[int, typer.Option(min=1, help="Number of outputs, c.")]
Hidden = Annotated[
    int | None,
    typer.Option(min=1, help="Hidden units m of the standard block.", show_default="4 dim"),
]


@friendly
def costs(
    tokens: Tokens,
    dim: Dim,
    heads: Heads,
    outputs: Outputs,
    hidden: Hidden = None,
    json: opt.Json = False,
) -> None:
    """Count parameters and FLOPs of convex and nonconvex models, beside the formulas."""
    from convexformer.costs import costs as count_costs

    try:
        table = count_costs(tokens, dim, heads, outputs, hidden)
    except ImportError as error:
        raise InputError(error) from error
    if json:
        sizes = {"tokens": tokens, "dim": dim, "heads": heads, "outputs": outputs}
        emit(sizes | {"models": [asdict(cost) for cost in table]})
        return
    _show(table)


def _show(table: list[Cost]) -> None:
    from ._words import plain_table

    console = out()
    for layer in dict.fromkeys(cost.layer for cost in table):
        rows = [cost for cost in table if cost.layer == layer]
        for title, counted, formula, paper in (
            ("parameters", "counted_parameters", "parameters_formula", "paper_parameters"),
            ("FLOPs", "counted_flops", "flops_formula", "paper_flops"),
        ):
            shown = plain_table(layer, title, "formula", "in the paper", right=(title,))
            for cost in rows:
                order = f"O({getattr(cost, paper)})" if title == "FLOPs" else getattr(cost, paper)
                shown.add_row(
                    Text(cost.model, "bold"),
                    f"{getattr(cost, counted):,}",
                    getattr(cost, formula),
                    Text(order, "dim"),
                )
            console.print(shown)
            console.print()
        for cost in rows:
            if cost.correction:
                console.print(Text(f"{cost.model}: {cost.correction}", "yellow"))
        console.print()
    note = "Counted in the modules: trained weights, and matrix products for one sample."
    console.print(Text(note, "dim"))
