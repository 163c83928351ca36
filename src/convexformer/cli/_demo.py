"""``convexformer demo``: a real question, answered with a proof."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from ._command import Answer, command
from ._console import live, plain_table
from ._models import describe, proof_words, token_table
from ._outputs import check_folder, save

if TYPE_CHECKING:
    from convexformer.demo import DemoResult

DEFAULT = Path("demo")
FILES = ("tokens.png", "path.png")
MEANING = (
    "A network trained by gradient descent never knows whether it is done. This one does: however "
    "the equivalent attention network is trained, it cannot end below that bound."
)


@command
def demo(*, out: Path | None = None, force: bool = False) -> Answer:
    """Answer a real question: which positions decide whether HLA-A*02:01 binds a peptide?

    Parameters
    ----------
    out : DIR; default demo
        Folder for the two figures.
    """
    # In its own folder the demo may replace its own figures; elsewhere they may be someone's.
    files = check_folder(out or DEFAULT, FILES, force or out is None)
    with live("solving") as report:
        from convexformer.demo import QUESTION, draw, run_demo

        result = run_demo(report)
    for file, figure in zip(files, draw(result), strict=True):
        save(figure, file)
    data, full = result.data, result.full
    _, validated, tested = map(len, result.rows)
    likes = []
    for name in full.tokens[:2]:
        best = full.model.coef_[0, data.token_names.index(name)].argsort()[:-3:-1]
        likes.append(f"at {name} binders have {' or '.join(data.channel_names[j] for j in best)}")
    return result.to_dict() | {"figures": files}, [
        Text(f"{QUESTION}\n", "bold cyan"),
        Text(
            f"{len(data.y):,} peptides of nine amino acids from the Immune Epitope Database; "
            f"{data.y.sum():,} of them bind (IC50 ≤ 500 nM). A token is a position, P1 to P9. The "
            f"penalty was chosen on {validated:,} peptides; the AUC is of {tested:,} others that "
            "no model has seen.\n"
        ),
        Text.assemble(
            (" and ".join(full.tokens[:2]), "bold cyan"),
            f" decide most: {'; '.join(likes)}. Biologists know these positions as the anchors of "
            "the peptide.\n",
        ),
        token_table(describe(full.model, list(data.token_names), list(data.channel_names))),
        "",
        _table(result),
        "",
        proof_words(full.model),
        Text(MEANING, "dim"),
        f"\nFigures: {' and '.join(map(str, files))}, after {result.seconds:.1f} s",
    ]


def _table(result: DemoResult) -> Table:
    table = plain_table("model", "tokens", "test AUC", "gap", right=("test AUC", "gap"))
    for name, fitted in (
        ("convex attention", result.full),
        ("with a stronger penalty", result.sparse),
        ("these alone, a weaker one", result.relaxed),
    ):
        gap = f"{fitted.model.certificate_.relative_gap:.1e}"
        table.add_row(name, " ".join(fitted.tokens), f"{fitted.test_auc:.4f}", gap)
    table.add_row("logistic regression, tuned", "all", f"{result.logistic_auc:.4f}", "none")
    return table
