"""The demo: which positions of a peptide decide whether HLA-A*02:01 binds it?

Everything here uses the public face only, so it also serves as an example of a whole analysis:
split, choose beta along a certified path, refit, compare, and reduce to a few tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, PredefinedSplit, train_test_split
from threadpoolctl import threadpool_limits

from . import ConvexAttentionClassifier, attention_path
from .datasets import TokenDataset, hla

if TYPE_CHECKING:
    from .estimators import AttentionPath

QUESTION = "Which positions of a peptide decide whether HLA-A*02:01 binds it?"
SEED = 0
BETAS = np.geomspace(1.0, 0.005, 40)  # fractions of beta_max
FEW_TOKENS = 5
LOGISTIC_C = np.logspace(-3, 3, 13)
TOL = 1e-6  # relative duality gap

# Amino acids by the character of their side chains, for the rows of the figure.
SIDE_CHAINS = {"hydrophobic": "AVLIMP", "aromatic": "FWY", "polar": "GSTCNQ"}
SIDE_CHAINS |= {"positive": "HKR", "negative": "DE"}


@dataclass(frozen=True)
class Fitted:
    """A certified model and how well it ranks the test peptides."""

    model: ConvexAttentionClassifier
    beta: float  # fraction of beta_max
    tokens: list[str]  # in use, largest norm first
    test_auc: float

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        certificate = self.model.certificate_
        return {
            "tokens": self.tokens,
            "n_tokens_used": len(self.tokens),
            "beta": self.beta,
            "test_auc": self.test_auc,
            "relative_gap": certificate.relative_gap,
            "certificate": certificate.to_dict(),
        }


@dataclass(frozen=True)
class DemoResult:
    """What the demo found."""

    data: TokenDataset
    rows: tuple[NDArray[np.intp], ...]  # to train on, to choose on, and to test on once
    path: AttentionPath
    validation_aucs: NDArray[np.float64]  # one per beta of the path
    full: Fitted
    sparse: Fitted
    relaxed: Fitted  # the tokens of `sparse` alone, with a weaker penalty
    logistic_auc: float
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "question": QUESTION,
            "top_tokens": self.full.tokens,
            **self.full.to_dict(),
            "logistic_auc": self.logistic_auc,
            "sparse": self.sparse.to_dict(),
            "relaxed": self.relaxed.to_dict(),
            "seconds": self.seconds,
        }


# Matrices of 180 columns: more threads would wait for each other longer than they work.
@threadpool_limits.wrap(limits=1)
def run_demo(report: Callable[[Any], None] | None = None) -> DemoResult:
    """Run the whole analysis.

    Parameters
    ----------
    report : callable, optional
        Receives every trace point, for a progress line.
    """
    start, data = time.perf_counter(), hla()
    X, y, every = data.X, data.y, np.arange(len(data.token_names))
    known, test = train_test_split(np.arange(len(y)), test_size=0.2, stratify=y, random_state=SEED)
    train, validation = train_test_split(
        known, test_size=0.25, stratify=y[known], random_state=SEED
    )

    def follow(tokens: NDArray[np.intp]) -> tuple[AttentionPath, NDArray[np.float64]]:
        """Models of all betas from the training rows, and how each ranks the validation rows."""
        model = ConvexAttentionClassifier(tol=TOL, verbose=report or False)
        path = attention_path(model, X[train][:, tokens], y[train], betas=BETAS)
        scores = np.tensordot(path.coefs[:, 0], X[validation][:, tokens], axes=((1, 2), (1, 2)))
        return path, np.array([roc_auc_score(y[validation], score) for score in scores])

    def fit(beta: float, tokens: NDArray[np.intp]) -> Fitted:
        """Fit on everything but the test peptides, reading `tokens`."""
        model = ConvexAttentionClassifier(beta, tol=TOL, verbose=report or False)
        model.fit(X[known][:, tokens], y[known])
        order = np.argsort(-model.token_norms_, kind="stable")
        used = [data.token_names[tokens[k]] for k in order if model.token_norms_[k] > 0]
        auc = roc_auc_score(y[test], model.decision_function(X[test][:, tokens]))
        return Fitted(model, float(beta), used, float(auc))

    path, aucs = follow(every)
    # The best of the path that uses few tokens. With more data a beta may let one more token in;
    # then the next stronger beta is taken.
    few = np.flatnonzero(np.asarray(path.n_tokens_used) <= FEW_TOKENS)
    stronger = BETAS[int(few[np.argmax(aucs[few])]) :: -1]
    candidates = (fit(beta, every) for beta in stronger)
    sparse = next(fitted for fitted in candidates if len(fitted.tokens) <= FEW_TOKENS)
    chosen = np.sort([data.token_names.index(name) for name in sparse.tokens])
    relaxed = fit(BETAS[int(np.argmax(follow(chosen)[1]))], chosen)
    flat = X.reshape(len(X), -1)
    logistic = GridSearchCV(
        LogisticRegression(max_iter=2000),
        {"C": LOGISTIC_C},
        scoring="roc_auc",
        cv=PredefinedSplit(np.where(np.isin(known, train), -1, 0)),  # chosen on the same rows
    ).fit(flat[known], y[known])
    return DemoResult(
        data=data,
        rows=(train, validation, test),
        path=path,
        validation_aucs=aucs,
        full=fit(BETAS[int(np.argmax(aucs))], every),
        sparse=sparse,
        relaxed=relaxed,
        logistic_auc=float(roc_auc_score(y[test], logistic.decision_function(flat[test]))),
        seconds=time.perf_counter() - start,
    )


def draw(result: DemoResult) -> tuple[Any, Any]:
    """The two figures of the demo: the token map, and the path."""
    from .plotting import PathDisplay, TokenMapDisplay

    data, full, sparse = result.data, result.full, result.sparse
    token_map = TokenMapDisplay.from_estimator(
        full.model,
        tokens=data.token_names,
        channels=data.channel_names,
        outputs=data.target_names,
        channel_groups=SIDE_CHAINS,
        title=f"HLA-A*02:01 reads {full.tokens[0]} and {full.tokens[1]} most",
    )
    path = PathDisplay.from_path(
        result.path,
        tokens=data.token_names,
        scores=result.validation_aucs,
        score_name="validation AUC",
        marks={f"{len(sparse.tokens)} tokens": sparse.beta, "best": full.beta},
    )
    return token_map.figure_, path.figure_
