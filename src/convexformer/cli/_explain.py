"""``convexformer explain``: what a saved model uses, and what was proved about it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from . import _options as opt
from ._console import InputError, check_output, emit, friendly, out
from ._figures import FIGURES, headless, save
from ._terminal import visible

if TYPE_CHECKING:
    from rich.table import Table

Model = Annotated[Path, typer.Argument(help="A model saved by fit.", metavar="MODEL")]
Names = Annotated[str | None, typer.Option(metavar="A,B,...", help="Names, separated by commas.")]
FigureFile = Annotated[
    Path | None, typer.Option(help="Draw the token map to this file: png, pdf or svg.")
]


@friendly
def explain(
    model: Model,
    tokens: Names = None,
    channels: Names = None,
    figure: FigureFile = None,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:
    """Say which tokens a model uses, what it reads in them, and what was proved."""
    if figure is not None:
        check_figure(figure, force, [model])
    from .._names import model_names
    from ._files import read_model
    from ._words import describe, proof_words, usage

    fitted = read_model(model)
    if hasattr(fitted, "attention_maps_"):
        raise InputError(
            f"{model} holds a {type(fitted).__name__}, which explain does not know; load it in "
            "Python (convexformer.load_model) and see its attention_maps_."
        )
    known_tokens, known_channels = model_names(fitted, fitted.n_tokens_)
    token_names = _names(tokens, fitted.n_tokens_, "--tokens") or known_tokens
    channel_names = _names(channels, fitted.n_channels_, "--channels") or known_channels
    result = {"model": model} | describe(fitted, token_names)
    result["reads"] = _reads(fitted, result, token_names, channel_names)
    if figure is not None:
        _draw(fitted, token_names, channel_names, figure)
        result["figure"] = figure
    if json:
        emit(result)
        return
    console = out()
    console.print(Text.assemble((type(fitted).__name__, "bold"), f": {usage(result)} are used\n"))
    if result["tokens"]:
        console.print(_table(result))
    if result["n_outputs"] == 1 and "classes" in result:
        console.print(Text(f"\n+ speaks for {fitted.classes_[-1]}, - against it", "dim"))
    console.print()
    console.print(proof_words(fitted))
    if figure is not None:
        console.print(Text(f"Figure: {figure}", "dim"))


def _names(given: str | None, count: int, option: str) -> list[str] | None:
    if given is None:
        return None
    names = [name.strip() for name in given.split(",")]
    if len(names) != count:
        raise InputError(f"{option} has {len(names)} names and the model {count}; give as many.")
    if len(set(names)) < count:
        raise InputError(f"{option} holds the same name twice; names must differ.")
    return names


def _reads(
    model: Any, result: dict[str, Any], tokens: list[str] | None, channels: list[str] | None
) -> dict[str, list[dict[str, Any]]]:
    """For every token in use, its three largest coefficients."""
    import numpy as np

    gated = model.coef_.ndim == 4
    coef = model.coef_ if gated else model.coef_[:, None]  # (c, h, n, d)
    c, _, n, d = coef.shape
    tokens = tokens or [str(k) for k in range(n)]
    channels = channels or [str(j) for j in range(d)]
    outputs = [str(label) for label in getattr(model, "classes_", range(c))][-c:]
    reads = {}
    for token in result["tokens"]:
        Z = coef[:, :, tokens.index(token)]  # (c, h, d)
        largest = np.argsort(-np.abs(Z), axis=None, kind="stable")[:3]
        pairs = [np.unravel_index(i, Z.shape) for i in largest]
        reads[token] = [
            {"output": outputs[i], "channel": channels[j], "coefficient": float(Z[i, g, j])}
            | ({"gate": int(g)} if gated else {})
            for i, g, j in pairs
            if Z[i, g, j] != 0
        ]
    return reads


def _table(result: dict[str, Any], most: int = 20) -> Table:
    from rich.columns import Columns

    from ._words import bar, plain_table

    norms = result["token_norms"]
    shown = [
        name
        for name, count in (("output", result["n_outputs"]), ("channel", result["n_channels"]))
        if count > 1
    ]
    reads = "reads mostly" if "channel" in shown else "coefficients"  # nothing to choose from
    table = plain_table("token", "norm", "", reads, right=("norm",))
    table.columns[-1].no_wrap = False  # where lines are short, this column alone gives way
    for token in result["tokens"][:most]:
        always_open = result.get("always_open", [])
        terms = [_term(term, shown, always_open) for term in result["reads"][token]]
        words = Columns(terms, padding=(0, 2, 0, 0))  # as many beside each other as there is room
        length = bar(norms[token], max(norms.values()), 10)
        table.add_row(Text(visible(token), "bold"), f"{norms[token]:#.3g}", length, words)
    if len(norms) > most:
        table.add_row(Text(f"and {len(norms) - most} more", "dim"))
    return table


def _term(term: dict[str, Any], shown: list[str], always_open: list[int]) -> Text:
    where = visible("/".join(term[name] for name in shown))
    if "gate" in term and term["gate"] not in always_open:
        where += f" (gate {term['gate']})"
    colour = "red" if term["coefficient"] > 0 else "blue"
    return Text.assemble(f"{where} ".lstrip(), (f"{term['coefficient']:+#.2g}", colour))


def check_figure(path: Path, force: bool, inputs: list[Path]) -> None:
    """Raise where the figure `path` cannot be drawn, or is one of the files that are read."""
    if path.suffix.lower() not in FIGURES:
        raise InputError(f"{path} is no figure we can draw; use one of {', '.join(FIGURES)}.")
    check_output(path, force, inputs)


def _draw(model: Any, tokens: list[str] | None, channels: list[str] | None, path: Path) -> None:
    """Draw the token map of a fitted model to a file."""
    headless()
    from convexformer.plotting import TokenMapDisplay

    save(TokenMapDisplay.from_estimator(model, tokens=tokens, channels=channels).figure_, path)
