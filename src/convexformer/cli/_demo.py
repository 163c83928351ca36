"""``convexformer demo``: a real question, answered with a proof."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from . import _options as opt
from ._console import check_folder, emit, friendly, live, out
from ._figures import headless, save

if TYPE_CHECKING:
    from rich.table import Table

    from convexformer.demo import DemoResult

DEFAULT = Path("demo")
FILES = ("tokens.png", "path.png")
WIDTH = 88  # of the panel, at most: longer lines are hard to read
MEANING = (
    "A network trained by gradient descent never knows whether it is done. This one does: however "
    "the equivalent attention network is trained, it cannot end below that bound."
)

Folder = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Folder for the two figures.", show_default="demo"),
]


@friendly
def demo(folder: Folder = None, json: opt.Json = False, force: opt.Force = False) -> None:
    """Answer a real question: which positions decide whether HLA-A*02:01 binds a peptide?"""
    # In its own folder the demo may replace its own figures; elsewhere they may be someone's.
    own = folder is None
    files = check_folder(DEFAULT if folder is None else folder, FILES, force or own)
    with live("solving") as report:
        from convexformer.demo import draw, run_demo

        result = run_demo(report)
    headless()
    for file, figure in zip(files, draw(result).values(), strict=True):
        save(figure, file)
    if json:
        emit(result.to_dict() | {"figures": files})
    else:
        _tell(result, files)


def _tell(result: DemoResult, files: list[Path]) -> None:
    from convexformer.demo import QUESTION

    from ._words import certificate_words, token_table

    data, full, console = result.data, result.full, out()
    body = Group(
        Text(_story(result)),
        "",
        _answer(result),
        Padding(token_table(full.model, data.token_names), (1, 0, 1, 2)),
        Padding(_table(result), (0, 0, 1, 2)),
        certificate_words(full.model.certificate_, full.model.tol),
        "",
        Text(MEANING, "dim"),
        "",
        Text.assemble("Figures: ", (" and ".join(str(file) for file in files), "bold")),
    )
    title, width = Text(QUESTION, "bold"), min(WIDTH, console.width)
    console.print(Panel(body, title=title, border_style="cyan", padding=(1, 2), width=width))
    tried = f"  {result.seconds:.1f} s, {len(result.path.betas)} penalty strengths tried"
    console.print(Text(tried, "dim"))


def _story(result: DemoResult) -> str:
    y, split = result.data.y, result.split
    return (
        f"{len(y):,} peptides of nine amino acids from the Immune Epitope Database; "
        f"{int(y.sum()):,} of them bind (IC50 ≤ 500 nM). A token is a position, P1 to P9. The "
        f"penalty was chosen on {len(split.validation):,} peptides; the AUC is of "
        f"{len(split.test):,} others that no model has seen."
    )


def _answer(result: DemoResult) -> Text:
    """The two largest tokens, and the amino acids that the model likes best there."""
    data, full = result.data, result.full
    text = Text.assemble((f"{full.tokens[0]} and {full.tokens[1]}", "bold cyan"), " decide most: ")
    for i, name in enumerate(full.tokens[:2]):
        best = full.model.coef_[0, data.token_names.index(name)].argsort()[:-3:-1]
        text.append("; " if i else "")
        text.append(f"at {name} binders have {' or '.join(data.channel_names[j] for j in best)}")
    return text.append(". Biologists know these positions as the anchors of the peptide.")


def _table(result: DemoResult) -> Table:
    from ._words import plain_table

    table = plain_table("model", "tokens", "test AUC", "gap", right=("test AUC", "gap"))
    rows = (
        ("convex attention", result.full),
        ("with a stronger penalty", result.sparse),
        ("these alone, a weaker one", result.relaxed),
    )
    for name, fitted in rows:
        every = len(fitted.tokens) == len(result.data.token_names)
        tokens = f"all {len(fitted.tokens)}" if every else " ".join(fitted.tokens)
        gap = f"{fitted.model.certificate_.relative_gap:.1e}"
        table.add_row(name, tokens, Text(f"{fitted.test_auc:.4f}", "bold"), gap)
    table.add_row(
        Text("logistic regression, tuned", "dim"),
        Text(f"all {len(result.data.token_names)}", "dim"),
        f"{result.logistic_auc:.4f}",
        Text("none", "dim"),
    )
    return table
