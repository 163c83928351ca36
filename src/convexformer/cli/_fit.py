"""``convexformer fit``: a data file in, a certified model out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from . import _options as opt
from ._console import InputError, check_output, emit, friendly, live, out, tell

if TYPE_CHECKING:
    from ._data import Samples

Out = Annotated[Path, typer.Option(help="File to save the model to (safetensors).")]
Beta = Annotated[
    float | None,
    typer.Option(help="Penalty strength as a fraction of beta_max.", show_default="0.1"),
]
CV = Annotated[
    int | None, typer.Option(min=2, metavar="FOLDS", help="Choose beta by cross-validation.")
]
Eps = Annotated[
    float | None,
    typer.Option(
        help="Smallest beta that --cv tries, as a fraction of beta_max.", show_default="0.001"
    ),
]
Refit = Annotated[
    bool,
    typer.Option(
        "--refit",
        help="Fit the selected tokens once more, with a weaker ridge in place of the penalty: few "
        "tokens predict better, but not as the certified optimum.",
    ),
]

Gates = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="See tokens through so many fixed gates, for interactions that sums of tokens miss.",
        show_default="none",
    ),
]
Seed = Annotated[int, typer.Option(help="Draws the gates.")]


@friendly
def fit(
    data: opt.Data,
    target: opt.Target,
    out: Out,
    task: opt.TaskOption = opt.Task.auto,
    n_tokens: opt.NTokens = None,
    group_by_prefix: opt.GroupByPrefix = None,
    drop: opt.Drop = None,
    beta: Beta = None,
    cv: CV = None,
    eps: Eps = None,
    scale: opt.Scale = False,
    refit: Refit = False,
    gates: Gates = None,
    seed: Seed = 0,
    penalty: opt.PenaltyOption = opt.Penalty.token_output,
    tol: opt.Tol = 1e-6,
    max_time: opt.MaxTime = None,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:
    """Fit a model to a certified global optimum (and from there, with --refit) and save it."""
    if cv is not None and beta is not None:
        raise InputError("--cv chooses beta; give --cv or --beta, not both.")
    if cv is None and eps is not None:
        raise InputError("--eps says which betas --cv tries; give --cv as well, or leave it out.")
    from ._data import choose_task, read_samples, scaled_weights, source_files
    from ._names import remember_names
    from ._words import describe

    samples = read_samples(
        data, target, n_tokens=n_tokens, group_by_prefix=group_by_prefix, drop=drop or ()
    )
    kind = choose_task(samples.y, task.value, target)
    _check_model_file(out, force, source_files(data, target))  # after mistakes in the input
    weights = scaled_weights(samples, scale)
    if not json:
        tell(samples.notes)
    # With n_tokens the model also reads the table it came from, 2-D as that is.
    common = {"n_tokens": samples.X.shape[1]} if samples.X.ndim == 3 else {}
    common |= {"token_weights": weights, "penalty": penalty.value, "tol": tol, "max_time": max_time}
    common["refit"] = refit
    if gates is not None:
        common |= {"n_gates": gates, "random_state": seed}
    model = _estimator(kind, beta, cv, eps, common)
    start = time.perf_counter()
    with live("fitting", "tokens" if gates is None else "(gate, token) pairs") as report:
        model.set_params(verbose=report)
        model.fit(samples.X, samples.y, sample_weight=samples.sample_weight, mask=samples.mask)
    seconds = time.perf_counter() - start
    remember_names(model, samples)
    model.set_params(verbose=False).save(out, overwrite=force)
    result = {"model": out, "task": kind, "n_samples": len(samples.X), "seconds": seconds}
    result["notes"] = samples.notes
    result |= describe(model, samples.token_names or None)
    if cv is not None:
        result["cv"] = {
            "folds": len(model.scores_),
            "n_betas": len(model.betas_),
            "score": model.best_score_,
            "score_name": "minus the mean log loss" if hasattr(model, "classes_") else _LOSS,
        }
    if json:
        emit(result)
    else:
        _show(model, samples, result, guessed=task is opt.Task.auto)


_LOSS = "minus half the mean squared error"


def _check_model_file(out: Path, force: bool, inputs: list[Path]) -> None:
    """Raise where `out` cannot be written, or has the name of a data file."""
    from ._data import EXTENSIONS, extension

    check_output(out, force, inputs)
    if extension(out) in EXTENSIONS:
        raise InputError(
            f"--out is the file for the model, and {out.name} is the name of a data file; name it "
            f"{out.name.partition('.')[0]}.safetensors, for example."
        )


def _estimator(
    kind: str, beta: float | None, cv: int | None, eps: float | None, common: dict[str, Any]
) -> Any:
    import convexformer as cf

    family = "Transformer" if "n_gates" in common else "Attention"
    task = "Classifier" if kind == "classification" else "Regressor"
    chosen = getattr(cf, f"Convex{family}{task}{'' if cv is None else 'CV'}")
    if cv is not None:
        return chosen(cv=cv, **({} if eps is None else {"eps": eps}), **common)
    return chosen(0.1 if beta is None else beta, **common)


def _show(model: Any, samples: Samples, result: dict[str, Any], *, guessed: bool) -> None:
    from ._words import plural, proof_words, token_table, usage

    console = out()
    N, n, d = samples.X.shape
    hint = "  (guessed, see --task)" if guessed else ""
    console.print(
        Text.assemble(
            (result["task"].capitalize(), "bold"),
            f" on {plural(N, 'sample')} of {plural(n, 'token')} x {plural(d, 'channel')}",
            (hint, "dim"),
        )
    )
    at = "" if result["beta"] is None else f" at beta = {result['beta']:.3g} beta_max"
    console.print(f"{usage(result)} are used{at}." + ("" if "cv" in result else "\n"))
    if "cv" in result:
        console.print(
            "beta chosen by {folds}-fold CV among {n_betas}, "
            "score {score:.4g} ({score_name}).\n".format(**result["cv"])
        )
    if result["tokens"]:
        console.print(token_table(model, samples.token_names or None), "")
    console.print(proof_words(model))
    console.print(Text(f"Saved to {result['model']} after {result['seconds']:.2f} s.", "dim"))
