"""``convexformer explain``: what a saved model uses, and what was proved about it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ._console import InputError, emit, say, show
from ._figures import check_figure, headless, save
from ._options import command
from ._terminal import visible

if TYPE_CHECKING:
    from rich.table import Table


@command
def explain(
    model: Path,
    *,
    tokens: str | None = None,
    channels: str | None = None,
    figure: Path | None = None,
    force: bool = False,
    json: bool = False,
) -> None:
    """Say which tokens a model uses, what it reads in them, and what was proved.

    Parameters
    ----------
    model
        A model saved by fit.
    tokens : A,B,...
        Names, separated by commas.
    channels : A,B,...
        Names, separated by commas.
    figure
        Draw the token map to this file: png, pdf or svg.
    """
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
        headless()
        from convexformer.plotting import TokenMapDisplay

        names: dict[str, Any] = {"tokens": token_names, "channels": channel_names}
        save(TokenMapDisplay.from_estimator(fitted, **names).figure_, figure)
        result["figure"] = figure
    if json:
        emit(result)
        return
    say((type(fitted).__name__, "bold"), f": {usage(result)} are used\n")
    if result["tokens"]:
        show(_table(result))
    if result["n_outputs"] == 1 and "classes" in result:
        say(f"\n+ speaks for {fitted.classes_[-1]}, - against it", style="dim")
    show("", proof_words(fitted))
    if figure is not None:
        say(f"Figure: {figure}", style="dim")


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
        reads[token] = [
            {"output": outputs[i], "channel": channels[j], "coefficient": float(Z[i, g, j])}
            | ({"gate": int(g)} if gated else {})
            for i, g, j in zip(*np.unravel_index(largest, Z.shape), strict=True)
            if Z[i, g, j] != 0
        ]
    return reads


def _table(result: dict[str, Any]) -> Table:
    from rich.columns import Columns

    from ._words import token_table

    shown = [what for what in ("output", "channel") if result[f"n_{what}s"] > 1]
    always_open = result.get("always_open", [])

    def terms(token: str) -> Columns:  # as many beside each other as there is room
        words = [_term(term, shown, always_open) for term in result["reads"][token]]
        return Columns(words, padding=(0, 2, 0, 0))

    reads = "reads mostly" if "channel" in shown else "coefficients"  # nothing to choose from
    return token_table(result, 20, reads, terms)


def _term(term: dict[str, Any], shown: list[str], always_open: list[int]) -> Text:
    where = visible("/".join(term[name] for name in shown))
    if "gate" in term and term["gate"] not in always_open:
        where += f" (gate {term['gate']})"
    colour = "red" if term["coefficient"] > 0 else "blue"
    return Text.assemble(f"{where} ".lstrip(), (f"{term['coefficient']:+#.2g}", colour))
