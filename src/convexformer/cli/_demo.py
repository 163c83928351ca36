"""``convexformer demo``: a real question, answered with a proof."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.text import Text

from ._command import Answer, command
from ._console import live
from ._models import describe, proof_words, token_table
from ._outputs import check_folder, save

ROWS = (  # of the figure: amino acids by the character of their side chains
    *("hydrophobic   A", "V", "L", "I", "M", "P", "aromatic   F", "W", "Y"),
    *("polar   G", "S", "T", "C", "N", "Q", "positive   H", "K", "R", "negative   D", "E"),
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
    figures = ("tokens.png", "path.png")
    files = check_folder(out or Path("demo"), figures, force or out is None)
    start = time.perf_counter()
    import numpy as np
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import GridSearchCV, train_test_split
    from threadpoolctl import threadpool_limits

    from convexformer import ConvexAttentionClassifier, ConvexAttentionClassifierCV, attention_path
    from convexformer.datasets import hla
    from convexformer.plotting import PathDisplay, TokenMapDisplay

    data, letters = hla(), [row[-1] for row in ROWS]
    X = data.X[:, :, [data.channel_names.index(letter) for letter in letters]]
    X, X_test, y, y_test = train_test_split(
        X, data.y, test_size=0.2, stratify=data.y, random_state=0
    )
    flat, flat_test = X.reshape(len(X), -1), X_test.reshape(len(X_test), -1)
    betas = np.geomspace(1.0, 0.005, 40)  # fractions of beta_max
    options: dict[str, Any] = {"cv": 5, "scoring": "roc_auc"}
    # Matrices of 180 columns: more threads would wait for each other longer than they work.
    with live("solving") as report, threadpool_limits(limits=1):
        model = ConvexAttentionClassifierCV(betas=betas, verbose=report, **options).fit(X, y)
        path = attention_path(ConvexAttentionClassifier(verbose=report), X, y, betas=betas)
        logistic = LogisticRegression(max_iter=2000)
        logistic = GridSearchCV(logistic, {"C": np.logspace(-3, 3, 13)}, **options).fit(flat, y)
    auc = roc_auc_score(y_test, model.decision_function(X_test))
    logistic_auc = roc_auc_score(y_test, logistic.decision_function(flat_test))
    seconds = time.perf_counter() - start

    entry = PathDisplay.from_path(
        path,
        tokens=data.token_names,
        scores=model.mean_scores_,
        score_name="AUC (5 folds)",
        marks={"chosen": model.beta_fraction_},
    )
    order = entry.entry_order()
    first = " and ".join(order[:2])
    token_map = TokenMapDisplay.from_estimator(
        model,
        tokens=data.token_names,
        channels=ROWS,
        outputs=data.target_names,
        title=f"HLA-A*02:01 reads {first} most",
    )
    save(token_map.figure_, files[0])
    save(entry.figure_, files[1])
    result: dict[str, Any] = describe(model, list(data.token_names), letters)
    result |= {"entry_order": order, "test_auc": auc, "logistic_auc": logistic_auc}
    result |= {"seconds": seconds, "figures": files}
    return result, [
        Text("Which positions of a peptide decide whether HLA-A*02:01 binds it?\n", "bold cyan"),
        Text(
            f"{len(data.y):,} peptides of nine amino acids from the Immune Epitope Database; "
            f"{data.y.sum():,} of them bind (IC50 ≤ 500 nM). A token is a position, P1 to P9.\n"
        ),
        Text.assemble(
            (first, "bold cyan"),
            " decide most. Biologists know these positions as the anchors of the peptide.\n",
        ),
        token_table(result),
        Text(
            f"\nTokens enter in the order {' '.join(order)}. Test AUC on {len(y_test):,} peptides "
            f"that no model has seen: {auc:.4f}; of a tuned logistic regression: "
            f"{logistic_auc:.4f}\n"
        ),
        proof_words(result),
        f"\nFigures: {' and '.join(map(str, files))}, after {seconds:.1f} s",
    ]
