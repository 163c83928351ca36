"""Fitted models in words and tables; ``convexformer explain`` and ``predict``, of saved ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ._command import Answer, command
from ._console import InputError, plain_table, visible
from ._outputs import FIGURES, check_output, save, write

MOST_TOKENS = 20  # rows of a table
MOST_TERMS = 3  # coefficients that are told of a token


@command
def explain(
    model: Path,
    *,
    tokens: str | None = None,
    channels: str | None = None,
    figure: Path | None = None,
    force: bool = False,
) -> Answer:
    """Say which tokens a model uses, what it reads in them, and what was proved.

    Parameters
    ----------
    tokens : A,B,...
        Names, separated by commas.
    channels : A,B,...
        Names, separated by commas.
    """
    from convexformer import TokenMapDisplay, load_model

    from ._data import check_names

    if figure is not None:
        check_output(figure, force, [model], FIGURES)
    fitted = load_model(model)
    _refuse(fitted, hasattr(fitted, "attention_maps_"))
    names: dict[str, Any] = {
        "tokens": tokens and check_names("--tokens", tokens.split(","), fitted.n_tokens_),
        "channels": channels and check_names("--channels", channels.split(","), fitted.n_channels_),
    }
    result = {"model": model} | describe(fitted, **names)
    shown = [Text(type(fitted).__name__, "bold"), *model_words(result)]
    if figure is not None:
        save(TokenMapDisplay.from_estimator(fitted, **names).figure_, figure)
        result["figure"] = figure
        shown += [f"Figure: {figure}"]
    return result, shown


@command
def predict(model: Path, data: Path, *, out: Path, force: bool = False) -> Answer:
    """Predict with a saved model.

    Parameters
    ----------
    data
        npz (array X, and mask if there), npy, csv, tsv or parquet.
    out
        csv to write the predictions to, a row per sample.
    """
    import pandas as pd

    from convexformer import load_model

    from ._data import read_inputs

    fitted = load_model(model)
    by_offset = getattr(fitted, "tokens", "absolute") != "absolute"
    _refuse(fitted, by_offset or hasattr(fitted, "attention_maps_"))
    X, mask = read_inputs(data, getattr(fitted, "feature_names_in_", None))
    check_output(out, force, [model, data], [".csv"])
    columns = _columns("prediction", fitted.predict(X, mask=mask))
    if hasattr(fitted, "predict_proba"):
        columns |= _columns("probability", fitted.predict_proba(X, mask=mask), fitted.classes_)
    write(out, pd.DataFrame(columns).to_csv(index=False))
    result = {"model": model, "n_samples": len(X), "columns": list(columns), "file": out}
    return result, [f"Wrote {out} (rows: {len(X)})"]


def _refuse(fitted: Any, by_position: bool) -> None:
    """Raise if a model predicts every position of a sequence, which is no table."""
    if by_position:
        raise InputError(
            f"the model ({type(fitted).__name__}) predicts every position of a sequence, which "
            "this command does not know. Load it in Python with convexformer.load_model."
        )


def _columns(what: str, values: Any, names: Any = None) -> dict[str, Any]:
    """Columns of a table: one, or one per output."""
    if values.ndim == 1:
        return {what: values}
    names = range(values.shape[1]) if names is None else names
    return {f"{what} {name}": column for name, column in zip(names, values.T, strict=True)}


def describe(
    model: Any, tokens: list[str] | None = None, channels: list[str] | None = None
) -> dict[str, Any]:
    """What a fitted model is, uses and proves, for JSON; with its own names, or those given."""
    import numpy as np

    from .._names import largest_first, model_names

    gated = model.coef_.ndim == 4
    coef = model.coef_ if gated else model.coef_[:, None]  # (c, h, n, d)
    c, h, n, d = coef.shape
    named = model_names(model, n)
    tokens = tokens or named[0] or [str(k) for k in range(n)]
    channels = channels or named[1] or [str(j) for j in range(d)]
    outputs = [str(label) for label in getattr(model, "classes_", range(c))][-c:]
    norms = np.linalg.norm(coef, axis=3)  # (c, h, n)
    norms = norms.sum(axis=(0, 1)) if gated else np.linalg.norm(norms, axis=(0, 1))
    if model.token_weights is not None:  # (--scale): only weighted norms can be compared
        norms = norms * np.asarray(model.token_weights)

    def terms(Z: Any) -> list[dict[str, Any]]:
        """The largest coefficients of a token, ``(c, h, d)``."""
        largest = np.argsort(-np.abs(Z), axis=None, kind="stable")[:MOST_TERMS]
        return [
            {"output": outputs[i], "channel": channels[j], "coefficient": float(Z[i, g, j])}
            | ({"gate": int(g)} if gated else {})
            for i, g, j in zip(*np.unravel_index(largest, Z.shape), strict=True)
            if Z[i, g, j] != 0
        ]

    order = largest_first(norms)
    # Of a refitted model its selection was proved, and nothing of its coefficients.
    refitted = hasattr(model, "selection_certificate_")
    proof = model.selection_certificate_ if refitted else model.certificate_
    described = {
        "estimator": type(model).__name__,
        "n_tokens": n,
        "n_channels": d,
        "n_outputs": c,
        "tokens": [tokens[k] for k in order],
        "n_tokens_used": len(order),
        "token_norms": {tokens[k]: norms[k] for k in order},
        "reads": {tokens[k]: terms(coef[:, :, k]) for k in order},
        "refit": refitted,
        "converged": proof.relative_gap <= model.tol,
        "beta": proof.beta / proof.beta_max if proof.beta_max > 0 else None,
    }
    if refitted:
        described |= {"selection_certificate": proof.to_dict(), "ridge": model.ridge_}
    else:
        described |= {"certificate": proof.to_dict(), "relative_gap": proof.relative_gap}
    if gated:
        described |= {"n_gates": h, "gates": largest_first(model.gate_norms_)}
        described["always_open"] = np.flatnonzero(model.gate_thresholds_ == -np.inf)
    return described | ({"classes": model.classes_} if hasattr(model, "classes_") else {})


def model_words(described: dict[str, Any]) -> list[RenderableType]:
    """What a model that was described uses, what it reads there, and what was proved."""
    used = f"{described['n_tokens_used']} of {described['n_tokens']} tokens"
    if "gates" in described:
        used += f" and {len(described['gates'])} of {described['n_gates']} gates"
    at = "" if described["beta"] is None else f" at beta = {described['beta']:.3g} beta_max"
    shown: list[RenderableType] = [f"{used} are used{at}.\n"]
    if described["tokens"]:
        shown += [token_table(described), ""]
    if described["n_outputs"] == 1 and "classes" in described:
        shown += [Text(f"+ speaks for {described['classes'][-1]}, - against it\n", "dim")]
    return [*shown, proof_words(described)]


def token_table(described: dict[str, Any]) -> Table:
    """Tokens in use by norm, with bars and what is read there; of many, the first."""
    norms = described["token_norms"]
    table = plain_table("token", "norm", "", "reads mostly", right=["norm"])
    for token in described["tokens"][:MOST_TOKENS]:
        length = bar(norms[token] / max(norms.values()))
        terms = Text("  ").join(_term(term, described) for term in described["reads"][token])
        table.add_row(Text(visible(token), "bold"), f"{norms[token]:#.3g}", length, terms)
    if len(norms) > MOST_TOKENS:
        table.add_row(Text(f"and {len(norms) - MOST_TOKENS} more", "dim"))
    return table


def _term(term: dict[str, Any], described: dict[str, Any]) -> Text:
    where = "/".join(term[what] for what in ("output", "channel") if described[f"n_{what}s"] > 1)
    if "gate" in term and term["gate"] not in described["always_open"]:
        where += f" (gate {term['gate']})"
    colour = "red" if term["coefficient"] > 0 else "blue"
    return Text.assemble(visible(f"{where} ".lstrip()), (f"{term['coefficient']:+#.2g}", colour))


def bar(share: float, width: int = 10) -> Text:
    """A bar that is full for a `share` of 1."""
    return Text("█" * max(round(width * share), int(share > 0)), "cyan")


def proof_words(described: dict[str, Any]) -> Text:
    """What was proved about a model that was described."""
    refitted, reached = described["refit"], described["converged"]
    proof = described["selection_certificate" if refitted else "certificate"]
    objective, gap = f"{proof['primal']:.6g}", f"{proof['relative_gap']:.1e}"
    if refitted:
        selected = "certified optimum" if reached else "fit that is not yet optimal"
        return Text.assemble(
            ("Refitted, not the certified optimum", "bold yellow"),
            f". Tokens were selected by a {selected} (objective {objective}, relative duality gap "
            f"{gap}); coefficients were then fitted with a ridge in place of the penalty.",
        )
    return Text.assemble(
        ("Certified optimum", "bold green") if reached else ("Not yet optimal", "bold yellow"),
        f". The objective is {objective}, and the dual bound proves that no model of this class "
        f"can lower it by more than a fraction of {gap} (the relative duality gap).",
    )
