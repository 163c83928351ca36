"""``convexformer fit``: a data file in, a certified model out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._console import InputError, check_output, emit, live, note, say, show
from ._options import Penalty, Task, command

if TYPE_CHECKING:
    from ._data import Samples


@command
def fit(
    data: Path,
    *,
    target: str,
    out: Path,
    task: Task = "auto",
    n_tokens: int | None = None,
    group_by_prefix: str | None = None,
    drop: list[str] | None = None,
    beta: float | None = None,
    cv: int | None = None,
    eps: float | None = None,
    scale: bool = False,
    refit: bool = False,
    gates: int | None = None,
    seed: int = 0,
    penalty: Penalty = "token-output",
    tol: float = 1e-6,
    max_time: float | None = None,
    force: bool = False,
    json: bool = False,
) -> None:
    """Fit a model to a certified global optimum (and from there, with --refit) and save it.

    Parameters
    ----------
    out
        File to save the model to (safetensors).
    beta : default 0.1
        Penalty strength as a fraction of beta_max.
    cv : FOLDS; at least 2
        Choose beta by cross-validation.
    eps : default 0.001
        Smallest beta that --cv tries, as a fraction of beta_max.
    refit
        Fit the selected tokens once more, with a weaker ridge in place of the penalty: few tokens
        predict better, but not as the certified optimum.
    gates : at least 1; default none
        See tokens through so many fixed gates, for interactions that sums of tokens miss.
    seed
        Draws the gates.
    """
    if cv is not None and beta is not None:
        raise InputError("--cv chooses beta; give --cv or --beta, not both.")
    if cv is None and eps is not None:
        raise InputError("--eps says which betas --cv tries; give --cv as well, or leave it out.")
    from ._data import choose_task, read_samples, scaled_weights, source_files
    from ._words import describe

    samples = read_samples(
        data, target, n_tokens=n_tokens, group_by_prefix=group_by_prefix, drop=drop or ()
    )
    kind = choose_task(samples.y, task, target)
    _check_model_file(out, force, source_files(data, target))  # after mistakes in the input
    weights = scaled_weights(samples, scale)
    if not json:
        note(samples.notes)
    options: dict[str, Any] = {"token_weights": weights, "penalty": penalty, "refit": refit}
    options |= {"tol": tol, "max_time": max_time}
    if samples.X.ndim == 3:  # the model then also reads the table it came from, 2-D as that is
        options["n_tokens"] = samples.X.shape[1]
    if gates is not None:
        options |= {"n_gates": gates, "random_state": seed}
    if cv is None:
        options["beta"] = 0.1 if beta is None else beta
    else:
        options |= {"cv": cv} if eps is None else {"cv": cv, "eps": eps}
    model = _estimator(kind, options)
    start = time.perf_counter()
    with live("fitting", "tokens" if gates is None else "(gate, token) pairs") as report:
        model.set_params(verbose=report)
        model.fit(samples.X, samples.y, sample_weight=samples.sample_weight, mask=samples.mask)
    seconds = time.perf_counter() - start
    samples.name(model)
    model.set_params(verbose=False).save(out, overwrite=force)
    result = {"model": out, "task": kind, "n_samples": len(samples.X), "seconds": seconds}
    result |= {"notes": samples.notes} | describe(model, samples.token_names or None)
    if cv is not None:
        loss = "the mean log loss" if hasattr(model, "classes_") else "half the mean squared error"
        result["cv"] = {
            "folds": len(model.scores_),
            "n_betas": len(model.betas_),
            "score": model.best_score_,
            "score_name": f"minus {loss}",
        }
    if json:
        emit(result)
    else:
        _show(model, samples, result, guessed=task == "auto")


def _check_model_file(out: Path, force: bool, inputs: list[Path]) -> None:
    """Raise where `out` cannot be written, or has the name of a data file."""
    from ._data import EXTENSIONS, extension

    check_output(out, force, inputs)
    if extension(out) in EXTENSIONS:
        raise InputError(
            f"--out is the file for the model, and {out.name} is the name of a data file; name it "
            f"{out.name.partition('.')[0]}.safetensors, for example."
        )


def _estimator(kind: str, options: dict[str, Any]) -> Any:
    """The estimator that has these options."""
    import convexformer

    family = "Transformer" if "n_gates" in options else "Attention"
    task = "Classifier" if kind == "classification" else "Regressor"
    by_folds = "CV" if "cv" in options else ""
    return getattr(convexformer, f"Convex{family}{task}{by_folds}")(**options)


def _show(model: Any, samples: Samples, result: dict[str, Any], *, guessed: bool) -> None:
    from ._words import plural, proof_words, token_table, usage

    counts = zip(samples.X.shape, ("sample", "token", "channel"), strict=True)
    N, n, d = (plural(count, noun) for count, noun in counts)
    hint = "  (guessed, see --task)" if guessed else ""
    say((result["task"].capitalize(), "bold"), f" on {N} of {n} x {d}", (hint, "dim"))
    at = "" if result["beta"] is None else f" at beta = {result['beta']:.3g} beta_max"
    say(f"{usage(result)} are used{at}.")
    if "cv" in result:
        words = "beta chosen by {folds}-fold CV among {n_betas}, score {score:.4g} ({score_name})."
        say(words.format(**result["cv"]))
    say()
    if result["tokens"]:
        show(token_table(result), "")
    show(proof_words(model))
    say(f"Saved to {result['model']} after {result['seconds']:.2f} s.", style="dim")
