"""``convexformer path``: in which order tokens enter as the penalty is relaxed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ._console import (
    InputError,
    check_folder,
    check_output,
    emit,
    live,
    note,
    say,
    show,
    to_json,
    write,
)
from ._figures import FIGURES, headless, save
from ._options import Penalty, Task, command
from ._terminal import visible

if TYPE_CHECKING:
    from convexformer import AttentionPath


@command
def path(
    data: Path,
    *,
    target: str,
    out: Path | None = None,
    task: Task = "auto",
    n_tokens: int | None = None,
    group_by_prefix: str | None = None,
    drop: list[str] | None = None,
    n_betas: int = 40,
    eps: float = 1e-3,
    scale: bool = False,
    penalty: Penalty = "token-output",
    tol: float = 1e-6,
    max_time: float | None = None,
    force: bool = False,
    json: bool = False,
) -> None:
    """Fit models for many betas and show in which order tokens enter.

    Parameters
    ----------
    out
        csv, json or figure (png, pdf, svg), by its ending; a folder gets all three.
    n_betas : at least 1
        Number of betas.
    eps
        Smallest beta as a fraction of beta_max.
    """
    from convexformer import attention_path

    from ._data import choose_task, read_samples, scaled_weights, source_files
    from ._fit import _estimator

    samples = read_samples(
        data, target, n_tokens=n_tokens, group_by_prefix=group_by_prefix, drop=drop or ()
    )
    kind = choose_task(samples.y, task, target)
    files = [] if out is None else _outputs(out, force, source_files(data, target))
    weights = scaled_weights(samples, scale)
    if not json:
        note(samples.notes)
    start = time.perf_counter()
    with live("following the path") as report:
        options = {"penalty": penalty, "token_weights": weights, "tol": tol, "verbose": report}
        solved = attention_path(
            _estimator(kind, options | {"max_time": max_time}),
            samples.X,
            samples.y,
            n_betas=n_betas,
            eps=eps,
            sample_weight=samples.sample_weight,
            mask=samples.mask,
        )
    names = samples.token_names or [str(k) for k in range(solved.token_norms.shape[1])]
    result = _result(solved, names, kind, tol)
    result |= {"seconds": time.perf_counter() - start, "notes": samples.notes, "files": files}
    _write(files, solved, result)
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
    from .._names import entry_order

    norms = solved.weighted_norms  # (B, n), as of tokens on one scale
    models = zip(solved.betas, solved.n_tokens_used, solved.certificates, norms, strict=True)
    return {
        "task": kind,
        "beta_max": solved.beta_max,
        "relative_gap": solved.worst_gap,
        "entry_order": [names[k] for k in entry_order(norms)],
        "tokens": names,
        "models": [
            {
                "beta": beta,
                "n_tokens_used": count,
                "relative_gap": certificate.relative_gap,
                "converged": certificate.relative_gap <= tol,
                "objective": certificate.primal,
                "token_norms": token_norms,
            }
            for beta, count, certificate, token_norms in models
        ],
    }


def _write(files: list[Path], solved: AttentionPath, result: dict[str, Any]) -> None:
    for file in files:
        kind = file.suffix.lower()
        if kind == ".json":
            write(file, to_json(result) + "\n")
        elif kind == ".csv":
            write(file, _csv(result))
        else:
            headless()
            from convexformer.plotting import PathDisplay

            save(PathDisplay.from_path(solved, tokens=result["tokens"]).figure_, file)


def _csv(result: dict[str, Any]) -> str:
    """One row per beta: beta, tokens used, gap, objective, and the norm of every token."""
    import pandas as pd

    frame = pd.DataFrame(result["models"])
    norms = pd.DataFrame(frame.pop("token_norms").tolist(), columns=result["tokens"])
    return str(pd.concat([frame, norms], axis=1).to_csv(index=False))


def _show(result: dict[str, Any], most: int = 12) -> None:
    from ._words import plain_table

    models, right = result["models"], ("tokens used",)
    table = plain_table("beta / beta_max", "tokens used", "relative gap", "largest", right=right)
    step = max(1, -(-len(models) // most))
    for model in models[::-step][::-1]:
        norms = model["token_norms"]
        largest = [result["tokens"][k] for k in (-norms).argsort(kind="stable")[:5] if norms[k] > 0]
        numbers = (
            f"{model['beta']:.3g}",
            str(model["n_tokens_used"]),
            f"{model['relative_gap']:.1e}",
        )
        table.add_row(*numbers, Text(visible(" ".join(largest)), "bold"))
    show(table)
    order = result["entry_order"]
    more = f" and {len(order) - most} more" if len(order) > most else ""
    lead = "\nTokens enter in the order " if order else "\nNo token enters."
    say(lead, (visible(" ".join(order[:most])), "bold"), more)
    _show_verdict(result)
    for file in result["files"]:
        say(f"Wrote {file}", style="dim")


def _show_verdict(result: dict[str, Any]) -> None:
    """How many models are optimal to the tolerance, and how far the worst may be from it."""
    models, worst = result["models"], f"{result['relative_gap']:.1e}"
    reached = [model["relative_gap"] for model in models if model["converged"]]
    spent, gap = f" in {result['seconds']:.2f} s", ": relative duality gap at most "
    if len(reached) == len(models):
        head = f"{len(models)} certified model{'s' * (len(models) > 1)}"
        say((head, "bold green"), f"{spent}{gap}{worst}.")
        return
    say(
        (f"{len(reached)} of {len(models)} models reached the tolerance", "bold yellow"),
        spent + (f"{gap}{max(reached):.1e}" if reached else ""),
        f". The other {len(models) - len(reached)} did not converge: their gaps go up to {worst}.",
    )
