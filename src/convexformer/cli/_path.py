"""``convexformer path``: in which order tokens enter as the penalty is relaxed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from . import _options as opt
from ._console import (
    InputError,
    check_folder,
    check_output,
    emit,
    friendly,
    live,
    out,
    tell,
    to_json,
    write,
)
from ._figures import FIGURES, headless, save
from ._terminal import visible

if TYPE_CHECKING:
    from convexformer import AttentionPath

Out = Annotated[
    Path | None,
    typer.Option(
        help="csv, json or figure (png, pdf, svg), by its ending; a folder gets all three."
    ),
]
NBetas = Annotated[int, typer.Option(min=1, help="Number of betas.")]
Eps = Annotated[float, typer.Option(help="Smallest beta as a fraction of beta_max.")]


@friendly
def path(
    data: opt.Data,
    target: opt.Target,
    out: Out = None,
    task: opt.TaskOption = opt.Task.auto,
    n_tokens: opt.NTokens = None,
    group_by_prefix: opt.GroupByPrefix = None,
    drop: opt.Drop = None,
    n_betas: NBetas = 40,
    eps: Eps = 1e-3,
    scale: opt.Scale = False,
    penalty: opt.PenaltyOption = opt.Penalty.token_output,
    tol: opt.Tol = 1e-6,
    max_time: opt.MaxTime = None,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:
    """Fit models for many betas and show in which order tokens enter."""
    from convexformer import attention_path

    from ._data import choose_task, read_samples, scaled_weights, source_files

    samples = read_samples(
        data, target, n_tokens=n_tokens, group_by_prefix=group_by_prefix, drop=drop or ()
    )
    kind = choose_task(samples.y, task.value, target)
    files = [] if out is None else _outputs(out, force, source_files(data, target))
    weights = scaled_weights(samples, scale)
    if not json:
        tell(samples.notes)
    start = time.perf_counter()
    with live("following the path") as report:
        solved = attention_path(
            samples.X,
            samples.y,
            task=kind,
            n_betas=n_betas,
            eps=eps,
            sample_weight=samples.sample_weight,
            mask=samples.mask,
            penalty=penalty.value,
            token_weights=weights,
            tol=tol,
            max_time=max_time,
            verbose=report,
        )
    names = samples.token_names or [str(k) for k in range(solved.token_norms.shape[1])]
    result = _result(solved, names, kind, tol)
    result |= {"seconds": time.perf_counter() - start, "notes": samples.notes, "files": files}
    _write(files, solved, names, result)
    if json:
        emit(result)
    else:
        _show(result)


def _outputs(given: Path, force: bool, inputs: list[Path]) -> list[Path]:
    """The files to write; raises before any work where one of them cannot be."""
    kinds = (".csv", ".json", *FIGURES)
    if given.is_dir() or not given.suffix:
        return check_folder(given, ("path.csv", "path.json", "path.png"), force, inputs)
    if given.suffix.lower() not in kinds:
        raise InputError(f"{given} should end in {', '.join(kinds)}, or be a folder.")
    return [check_output(given, force, inputs)]


def _result(solved: AttentionPath, names: list[str], kind: str, tol: float) -> dict[str, Any]:
    import numpy as np

    norms_by_beta = solved.weighted_norms  # (B, n), as of tokens on one scale
    used = norms_by_beta > 0
    entered = np.flatnonzero(used.any(axis=0))
    first = used.argmax(axis=0)
    order = sorted(entered, key=lambda k: (first[k], -norms_by_beta[first[k], k]))
    return {
        "task": kind,
        "beta_max": solved.beta_max,
        "relative_gap": solved.worst_gap,
        "entry_order": [names[k] for k in order],
        "tokens": names,
        "models": [
            {
                "beta": beta,
                "n_tokens_used": count,
                "relative_gap": certificate.relative_gap,
                "converged": certificate.relative_gap <= tol,
                "objective": certificate.primal,
                "token_norms": norms,
            }
            for beta, count, certificate, norms in zip(
                solved.betas,
                solved.n_tokens_used,
                solved.certificates,
                norms_by_beta,
                strict=True,
            )
        ],
    }


def _write(
    files: list[Path], solved: AttentionPath, names: list[str], result: dict[str, Any]
) -> None:
    for file in files:
        kind = file.suffix.lower()
        if kind == ".json":
            write(file, to_json(result) + "\n")
        elif kind == ".csv":
            write(file, _csv(result))
        else:
            headless()
            from convexformer.plotting import PathDisplay

            save(PathDisplay.from_path(solved, tokens=names).figure_, file)


def _csv(result: dict[str, Any]) -> str:
    """One row per beta: beta, tokens used, gap, objective, and the norm of every token."""
    import pandas as pd

    rows = [
        {key: value for key, value in model.items() if key != "token_norms"}
        | dict(zip(result["tokens"], model["token_norms"], strict=True))
        for model in result["models"]
    ]
    return str(pd.DataFrame(rows).to_csv(index=False))


def _show(result: dict[str, Any], most: int = 12) -> None:
    from ._words import plain_table

    console, models = out(), result["models"]
    table = plain_table(
        "beta / beta_max", "tokens used", "relative gap", "largest", right=("tokens used",)
    )
    step = max(1, -(-len(models) // most))
    for model in models[::-step][::-1]:
        norms = model["token_norms"]
        largest = [result["tokens"][k] for k in (-norms).argsort(kind="stable")[:5] if norms[k] > 0]
        table.add_row(
            f"{model['beta']:.3g}",
            str(model["n_tokens_used"]),
            f"{model['relative_gap']:.1e}",
            Text(visible(" ".join(largest)), "bold"),
        )
    console.print(table)
    order = result["entry_order"]
    more = f" and {len(order) - most} more" if len(order) > most else ""
    lead = "\nTokens enter in the order " if order else "\nNo token enters."
    console.print(Text.assemble(lead, (visible(" ".join(order[:most])), "bold"), more))
    console.print(_verdict(result))
    for file in result["files"]:
        console.print(Text(f"Wrote {file}", "dim"))


def _verdict(result: dict[str, Any]) -> Text:
    """How many models are optimal to the tolerance, and how far the worst may be from it."""
    models = result["models"]
    reached = [model for model in models if model["converged"]]
    spent = f" in {result['seconds']:.2f} s: relative duality gap at most "
    if len(reached) == len(models):
        head, style = f"{len(models)} certified model{'s' * (len(models) > 1)}", "bold green"
        return Text.assemble((head, style), f"{spent}{result['relative_gap']:.1e}.")
    head, style = f"{len(reached)} of {len(models)} models reached the tolerance", "bold yellow"
    return Text.assemble(
        (head, style),
        f"{spent}{max((m['relative_gap'] for m in reached), default=float('nan')):.1e}"
        if reached
        else f" in {result['seconds']:.2f} s",
        f". The other {len(models) - len(reached)} did not converge: their gaps go up to "
        f"{result['relative_gap']:.1e}.",
    )
