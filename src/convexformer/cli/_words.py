"""Results as words and tables for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from ._terminal import visible

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import RenderableType

BAR_WIDTH = 24


def certificate_words(certificate: Any, tol: float | None = None) -> Text:
    """What a certificate proves, in a sentence; `tol` tells whether it is what was asked for."""
    reached = tol is None or certificate.relative_gap <= tol
    head = ("Certified optimum", "bold green") if reached else ("Not yet optimal", "bold yellow")
    return Text.assemble(
        head,
        f". The objective is {certificate.primal:.6g}, and the dual bound proves that no model of "
        "this class can lower it by more than a fraction of ",
        (f"{certificate.relative_gap:.1e}", "bold"),
        " (the relative duality gap).",
    )


def proof_words(model: Any) -> Text:
    """What was proved about a fitted model; of a refitted one, about its selection."""
    if not hasattr(model, "selection_certificate_"):
        return certificate_words(model.certificate_, model.tol)
    certificate = model.selection_certificate_
    reached = certificate.relative_gap <= model.tol
    return Text.assemble(
        ("Refitted, not the certified optimum", "bold yellow"),
        ". Tokens were selected by a ",
        ("certified optimum" if reached else "fit that is not yet optimal", "bold"),
        f" (objective {certificate.primal:.6g}, relative duality gap ",
        (f"{certificate.relative_gap:.1e}", "bold"),
        "); coefficients were then fitted with a ridge in place of the penalty.",
    )


def bar(value: float, largest: float, width: int = BAR_WIDTH) -> Text:
    """A bar of eighths of a character, as long as `value` is to `largest`."""
    eighths = round(8 * width * value / largest) if largest > 0 else 0
    if value > 0:
        eighths = max(1, eighths)
    return Text("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip(), "cyan")


def plain_table(*columns: str, right: Sequence[str] = ()) -> Table:
    """A table without a frame; the columns in `right` are numbers, those without a name bars.

    Where there is little room only words are wrapped: no number is lost.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in columns:
        number = name in right
        table.add_column(name, justify="right" if number else "left", no_wrap=number or not name)
    return table


def plural(count: int, noun: str) -> str:
    """``"1 token"``, ``"2 tokens"``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def describe(model: Any, tokens: Sequence[str] | None) -> dict[str, Any]:
    """What a fitted model is and proves, for JSON."""
    import numpy as np

    def ranked(norms: NDArray[np.float64]) -> list[int]:
        """Those in use, largest norm first."""
        return [int(k) for k in np.argsort(-norms, kind="stable") if norms[k] > 0]

    names = list(tokens) if tokens is not None else [str(k) for k in range(model.n_tokens_)]
    norms = np.linalg.norm(model.coef_, axis=-1)  # (c, n), or (c, h, n)
    norms = norms.sum(axis=(0, 1)) if norms.ndim == 3 else np.linalg.norm(norms, axis=0)
    if model.token_weights is not None:  # (--scale): only weighted norms can be compared
        norms = norms * np.asarray(model.token_weights)
    order = ranked(norms)
    refitted = hasattr(model, "selection_certificate_")
    certificate = model.selection_certificate_ if refitted else model.certificate_
    described = {
        "estimator": type(model).__name__,
        "n_tokens": model.n_tokens_,
        "n_channels": model.n_channels_,
        "n_outputs": len(model.coef_),
        "tokens": [names[k] for k in order],
        "n_tokens_used": len(order),
        "token_norms": {names[k]: norms[k] for k in order},
        "refit": refitted,
        "converged": certificate.relative_gap <= model.tol,
        "beta": certificate.beta / certificate.beta_max if certificate.beta_max > 0 else None,
    }
    if refitted:  # nothing was proved of its coefficients
        described["selection_certificate"] = certificate.to_dict()
        described["ridge"] = model.ridge_
    else:
        described["certificate"] = certificate.to_dict()
        described["relative_gap"] = certificate.relative_gap
    if model.coef_.ndim == 4:
        described["n_gates"] = model.coef_.shape[1]
        described["gates"] = ranked(model.gate_norms_)
        described["always_open"] = np.flatnonzero(model.gate_thresholds_ == -np.inf).tolist()
    if hasattr(model, "classes_"):
        described["classes"] = model.classes_
    return described


def usage(described: dict[str, Any]) -> str:
    """How many tokens, and gates, a model that was described uses."""
    words = f"{described['n_tokens_used']} of {described['n_tokens']} tokens"
    if "gates" not in described:
        return words
    words += f" and {len(described['gates'])} of {described['n_gates']} gates"
    only_open = described["gates"] == described["always_open"] == [0]
    return words + (" (the one that is always open)" if only_open else "")


def token_table(
    described: dict[str, Any],
    most: int = 12,
    more: str | None = None,
    tell: Callable[[str], RenderableType] = Text,
) -> Table:
    """Tokens in use by norm, with bars; what is beyond `most` rows is counted.

    With a column `more`, `tell` says what stands there beside a token.
    """
    norms, others = described["token_norms"], [] if more is None else [more]
    table = plain_table("token", "norm", "", *others, right=("norm",))
    for token in described["tokens"][:most]:
        length = bar(norms[token], max(norms.values()), 10 if others else BAR_WIDTH)
        beside = [tell(token) for _ in others]
        table.add_row(Text(visible(token), "bold"), f"{norms[token]:#.3g}", length, *beside)
    if len(norms) > most:
        table.add_row(Text(f"and {len(norms) - most} more", "dim"))
    return table
