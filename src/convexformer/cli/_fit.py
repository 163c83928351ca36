"""``convexformer fit`` and ``path``: a data file in, certified models out."""

from __future__ import annotations

import time
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import RenderableType
from rich.text import Text

from ._command import Answer, command
from ._console import InputError, live, plain_table
from ._models import describe, model_words
from ._outputs import FIGURES, check_output, save, write

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from convexformer import AttentionPath

    from ._data import Samples

FEW_CLASSES = 10  # whole numbers with at most so many values are taken for classes
UNLIKE_SCALES = 100  # tokens whose scales differ by more are worth a word
MOST_ROWS = 12  # betas of a table, tokens of an order
MOST_LARGEST = 5  # tokens that are named at a beta


@dataclass
class Training:
    """What to fit to, and how; every field is an option."""

    data: Path
    _: KW_ONLY
    target: str
    task: Literal["auto", "regression", "classification"] = "auto"
    n_tokens: int | None = None
    group_by_prefix: str | None = None
    drop: list[str] | None = None
    scale: bool = False
    penalty: Literal["token-output", "token", "nuclear"] = "token-output"
    tol: float = 1e-6
    max_time: float | None = None

    def read(self) -> Samples:
        """The data; from then on `task` is not "auto"."""
        from ._data import read_samples

        samples = read_samples(self)
        if self.task == "auto":
            self.task = guess_task(samples.y)
        return samples

    @property
    def files(self) -> list[Path]:
        """The files that are read."""
        return [self.data, Path(self.target)] if self.data.suffix == ".npy" else [self.data]

    def estimator(self, samples: Samples, **options: Any) -> Any:
        """The estimator that has these options."""
        import convexformer

        family = "Transformer" if "n_gates" in options else "Attention"
        task = "Classifier" if self.task == "classification" else "Regressor"
        kind = getattr(convexformer, f"Convex{family}{task}{'CV' if 'cv' in options else ''}")
        options |= {"penalty": self.penalty, "tol": self.tol, "max_time": self.max_time}
        if samples.X.ndim == 3:  # the model then also reads the table it came from, 2-D as that is
            options["n_tokens"] = self.n_tokens or samples.X.shape[1]
        return kind(token_weights=self._weights(samples), **options)

    def _weights(self, samples: Samples) -> NDArray[Any] | None:
        """Weights that put tokens on one scale, if asked for; else a note where scales differ.

        The scale of a token is its standard deviation over samples, channels pooled. Dividing
        token k by ``s_k`` is the same problem as weighting its penalty by ``s_k``. Of data that
        cannot be fitted the estimator says more.
        """
        import numpy as np

        X, real = samples.X, samples.extra.get("mask", np.ones(samples.X.shape[:2])) != 0
        if X.ndim != 3 or X.dtype.kind not in "biuf" or real.shape != X.shape[:2]:
            return None
        variances = X.var(axis=0, dtype=np.float64, where=real[:, :, None])  # (n, d)
        scales = np.sqrt(variances.mean(axis=1))
        scales = np.where(scales > 0, scales, 1.0)  # of constant tokens, and of padding alone
        low, high = int(scales.argmin()), int(scales.argmax())
        ratio = scales[high] / scales[low]
        if ratio > UNLIKE_SCALES and not self.scale:
            names = samples.names.get("token_names_", range(len(scales)))
            samples.notes.append(
                f"token scales differ {ratio:.2g} times ({names[high]} varies most, {names[low]} "
                "least), and the penalty favours tokens that vary much; use --scale"
            )
        return scales if self.scale else None


@command
def fit(
    training: Training,
    *,
    out: Path,
    beta: float | None = None,
    cv: int | None = None,
    eps: float | None = None,
    refit: bool = False,
    gates: int | None = None,
    seed: int = 0,
    force: bool = False,
) -> Answer:
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
    import numpy as np

    hint = ", guessed, see --task" if training.task == "auto" else ""
    samples = training.read()
    check_output(out, force, training.files)  # after mistakes in the input
    given = {"beta": beta, "cv": cv, "eps": eps, "n_gates": gates}
    options = {name: value for name, value in given.items() if value is not None}
    if gates is not None:
        options["random_state"] = seed
    model = training.estimator(samples, refit=refit, **options)
    start = time.perf_counter()
    with live("fitting") as report:
        model.set_params(verbose=report).fit(samples.X, samples.y, **samples.extra)
    seconds = time.perf_counter() - start
    for attribute, names in samples.names.items():
        setattr(model, attribute, np.array(names, dtype=object))
    model.set_params(verbose=False).save(out, overwrite=force)
    result = {"model": out, "task": training.task, "n_samples": len(samples.X)} | describe(model)
    result |= {"notes": samples.notes, "seconds": seconds}
    size = " x ".join(map(str, samples.X.shape))
    shown: list[RenderableType] = [
        f"{training.task.capitalize()} on {size} (samples x tokens x channels){hint}"
    ]
    if cv is not None:
        folds, tried, score = len(model.scores_), len(model.betas_), model.best_score_
        result["cv"] = {"folds": folds, "n_betas": tried, "score": score}
        shown += [f"beta chosen by {folds}-fold CV among {tried}, score {score:.4g}."]
    return result, [*shown, *model_words(result), f"Saved to {out}"]


@command
def path(
    training: Training,
    *,
    out: Path | None = None,
    n_betas: int = 40,
    eps: float = 1e-3,
    force: bool = False,
) -> Answer:
    """Fit models for many betas and show in which order tokens enter.

    Parameters
    ----------
    out
        csv or figure (png, pdf, svg), by its ending.
    n_betas : at least 1
        Number of betas.
    eps
        Smallest beta as a fraction of beta_max.
    """
    from convexformer import attention_path

    samples = training.read()
    if out is not None:
        check_output(out, force, training.files, (".csv", *FIGURES))
    start = time.perf_counter()
    with live("following the path") as report:
        estimator = training.estimator(samples, verbose=report)
        options: dict[str, Any] = {"n_betas": n_betas, "eps": eps, **samples.extra}
        solved = attention_path(estimator, samples.X, samples.y, **options)
    names = [str(k) for k in range(solved.token_norms.shape[1])]
    result = _result(solved, samples.names.get("token_names_", names), training.tol)
    result |= {"task": training.task, "seconds": time.perf_counter() - start}
    result |= {"notes": samples.notes, "file": out}
    shown = _shown(result)
    if out is not None:
        _write(out, solved, result)
        shown += [f"Wrote {out}"]
    return result, shown


def _result(solved: AttentionPath, names: list[str], tol: float) -> dict[str, Any]:
    from .._names import entry_order

    norms = solved.weighted_norms  # (B, n), as of tokens on one scale
    models = zip(solved.betas, solved.n_tokens_used, solved.certificates, norms, strict=True)
    return {
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


def _write(file: Path, solved: AttentionPath, result: dict[str, Any]) -> None:
    """A table has a row per beta: what is told of its model, and the norm of every token."""
    if file.suffix.lower() == ".csv":
        import pandas as pd

        frame = pd.DataFrame(result["models"])
        norms = pd.DataFrame(frame.pop("token_norms").tolist(), columns=result["tokens"])
        write(file, pd.concat([frame, norms], axis=1).to_csv(index=False))
    else:
        from convexformer.plotting import PathDisplay

        save(PathDisplay.from_path(solved, tokens=result["tokens"]).figure_, file)


def _shown(result: dict[str, Any]) -> list[RenderableType]:
    from .._names import largest_first

    models, tokens, order = result["models"], result["tokens"], result["entry_order"]
    table = plain_table("beta / beta_max", "tokens used", "relative gap", "largest")
    step = max(1, -(-len(models) // MOST_ROWS))
    for model in models[::-step][::-1]:
        used = [tokens[k] for k in largest_first(model["token_norms"])[:MOST_LARGEST]]
        table.add_row(
            f"{model['beta']:.3g}",
            str(model["n_tokens_used"]),
            f"{model['relative_gap']:.1e}",
            Text(" ".join(used), "bold"),
        )
    more = f" and {len(order) - MOST_ROWS} more" if len(order) > MOST_ROWS else ""
    lead = "\nTokens enter in the order " if order else "\nNo token enters."
    reached = sum(model["converged"] for model in models)
    style = "bold green" if reached == len(models) else "bold yellow"
    head = (f"{reached} of {len(models)} models are certified to the tolerance", style)
    return [
        table,
        Text.assemble(lead, (" ".join(order[:MOST_ROWS]), "bold"), more),
        Text.assemble(head, f": relative duality gap at most {result['relative_gap']:.1e}."),
    ]


def guess_task(y: NDArray[Any]) -> Literal["regression", "classification"]:
    """Labels and few whole numbers mean classes, everything else regression."""
    import numpy as np

    if y.dtype.kind not in "iuf":
        return "classification"
    values = np.unique(y)
    whole = np.isfinite(values).all() and (values == np.round(values)).all()
    few = np.isin(values, (0, 1)).all() if y.ndim == 2 else len(values) <= FEW_CLASSES
    return "classification" if whole and few else "regression"
