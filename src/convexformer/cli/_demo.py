"""``convexformer demo``: a real question, answered with a proof."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from ._console import check_folder, emit, live, out, say
from ._figures import headless, save
from ._options import command

if TYPE_CHECKING:
    from rich.table import Table

    from convexformer.demo import DemoResult

DEFAULT = Path("demo")
FILES = ("tokens.png", "path.png")
WIDTH = 88  # characters of the panel, at most: longer lines are hard to read
MEANING = (
    "A network trained by gradient descent never knows whether it is done. This one does: however "
    "the equivalent attention network is trained, it cannot end below that bound."
)


@command
def demo(*, out: Path | None = None, json: bool = False, force: bool = False) -> None:
    """Answer a real question: which positions decide whether HLA-A*02:01 binds a peptide?

    Parameters
    ----------
    out : DIR; default demo
        Folder for the two figures.
    """
    # In its own folder the demo may replace its own figures; elsewhere they may be someone's.
    files = check_folder(out or DEFAULT, FILES, force or out is None)
    with live("solving") as report:
        from convexformer.demo import draw, run_demo

        result = run_demo(report)
    headless()
    for file, figure in zip(files, draw(result), strict=True):
        save(figure, file)
    if json:
        emit(result.to_dict() | {"figures": files})
    else:
        _show(result, files)


def _show(result: DemoResult, files: list[Path]) -> None:
    from convexformer.demo import QUESTION

    from ._words import certificate_words, describe, token_table

    data, full = result.data, result.full
    _, validated, tested = map(len, result.rows)
    body = Group(
        f"{len(data.y):,} peptides of nine amino acids from the Immune Epitope Database; "
        f"{data.y.sum():,} of them bind (IC50 ≤ 500 nM). A token is a position, P1 to P9. The "
        f"penalty was chosen on {validated:,} peptides; the AUC is of {tested:,} others that no "
        "model has seen.",
        "",
        _answer(result),
        Padding(token_table(describe(full.model, data.token_names)), (1, 0, 1, 2)),
        Padding(_table(result), (0, 0, 1, 2)),
        certificate_words(full.model.certificate_, full.model.tol),
        "",
        Text(MEANING, "dim"),
        "",
        Text.assemble("Figures: ", (" and ".join(str(file) for file in files), "bold")),
    )
    width = min(WIDTH, out().width)
    title = Text(QUESTION, "bold")
    out().print(Panel(body, title=title, border_style="cyan", padding=(1, 2), width=width))
    tried = len(result.path.betas)
    say(f"  {result.seconds:.1f} s, {tried} penalty strengths tried", style="dim")


def _answer(result: DemoResult) -> Text:
    """The two largest tokens, and the amino acids that the model likes best there."""
    data, full = result.data, result.full
    likes = []
    for name in full.tokens[:2]:
        best = full.model.coef_[0, data.token_names.index(name)].argsort()[:-3:-1]
        likes.append(f"at {name} binders have {' or '.join(data.channel_names[j] for j in best)}")
    return Text.assemble(
        (" and ".join(full.tokens[:2]), "bold cyan"),
        f" decide most: {'; '.join(likes)}. Biologists know these positions as the anchors of the "
        "peptide.",
    )


def _table(result: DemoResult) -> Table:
    from ._words import plain_table

    every = f"all {len(result.data.token_names)}"
    table = plain_table("model", "tokens", "test AUC", "gap", right=("test AUC", "gap"))
    for name, fitted in (
        ("convex attention", result.full),
        ("with a stronger penalty", result.sparse),
        ("these alone, a weaker one", result.relaxed),
    ):
        tokens = (
            every if len(fitted.tokens) == len(result.data.token_names) else " ".join(fitted.tokens)
        )
        gap = f"{fitted.model.certificate_.relative_gap:.1e}"
        table.add_row(name, tokens, Text(f"{fitted.test_auc:.4f}", "bold"), gap)
    cells = "logistic regression, tuned", every, f"{result.logistic_auc:.4f}", "none"
    table.add_row(*cells, style="dim")
    return table
