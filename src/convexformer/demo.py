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
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

from . import ConvexAttentionClassifier, attention_path
from .datasets import TokenDataset, hla

if TYPE_CHECKING:
    from .estimators import AttentionPath

Rows = NDArray[np.intp]
Report = Callable[[Any], None] | None

QUESTION = "Which positions of a peptide decide whether HLA-A*02:01 binds it?"
SEED = 0
BETAS = np.geomspace(1.0, 0.005, 40)  # fractions of beta_max
FEW_TOKENS = 5
LOGISTIC_C = np.logspace(-3, 3, 13)
TOL = 1e-6

# Amino acids by the character of their side chains, for the rows of the figure.
SIDE_CHAINS = {
    "hydrophobic": "AVLIMP",
    "aromatic": "FWY",
    "polar": "GSTCNQ",
    "positive": "HKR",
    "negative": "DE",
}


@dataclass(frozen=True)
class Split:
    """Rows to train on, to choose on, and to test on once."""

    train: Rows
    validation: Rows
    test: Rows

    @property
    def known(self) -> Rows:
        """What the final models may see."""
        return np.concatenate([self.train, self.validation])


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
    split: Split
    path: AttentionPath
    validation_aucs: NDArray[np.float64]  # one per beta of the path
    full: Fitted
    sparse: Fitted
    relaxed: Fitted  # the tokens of `sparse` alone, with a weaker penalty
    logistic_auc: float
    logistic_C: float
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        full = self.full.to_dict()
        return {
            "question": QUESTION,
            "relative_gap": full["relative_gap"],
            "top_tokens": full["tokens"],
            "n_tokens_used": full["n_tokens_used"],
            "test_auc": full["test_auc"],
            "logistic_auc": self.logistic_auc,
            "logistic_C": self.logistic_C,
            "beta": full["beta"],
            "certificate": full["certificate"],
            "sparse": self.sparse.to_dict(),
            "relaxed": self.relaxed.to_dict(),
            "n_samples": {
                "train": len(self.split.train),
                "validation": len(self.split.validation),
                "test": len(self.split.test),
            },
            "seconds": self.seconds,
        }


def run_demo(report: Report = None) -> DemoResult:
    """Run the whole analysis.

    Parameters
    ----------
    report : callable, optional
        Receives every trace point, for a progress line.
    """
    # Matrices of 180 columns: more threads would wait for each other longer than they work.
    with threadpool_limits(1):
        return _analyse(hla(), report)


def _analyse(data: TokenDataset, report: Report) -> DemoResult:
    start = time.perf_counter()
    split = _split(data.y)
    path, aucs = _path(data.X, data.y, split, report)
    sparse = _fit_sparse(data, split, path, aucs, report)
    logistic_auc, C = _logistic(data, split)
    return DemoResult(
        data=data,
        split=split,
        path=path,
        validation_aucs=aucs,
        full=_fit(data, split, BETAS[int(np.argmax(aucs))], report),
        sparse=sparse,
        relaxed=_fit_relaxed(data, split, sparse, report),
        logistic_auc=logistic_auc,
        logistic_C=C,
        seconds=time.perf_counter() - start,
    )


def _split(y: NDArray[np.int64]) -> Split:
    """60 / 20 / 20, stratified, always the same."""
    known, test = train_test_split(np.arange(len(y)), test_size=0.2, stratify=y, random_state=SEED)
    train, validation = train_test_split(
        known, test_size=0.25, stratify=y[known], random_state=SEED
    )
    return Split(train, validation, test)


def _path(
    X: NDArray, y: NDArray, split: Split, report: Report
) -> tuple[AttentionPath, NDArray[np.float64]]:
    """Models of all betas from the training rows, and how well each ranks the validation rows."""
    train, validation = split.train, split.validation
    path = attention_path(
        X[train], y[train], task="classification", betas=BETAS, tol=TOL, verbose=report or False
    )
    scores = np.einsum("ikd,bkd->bi", X[validation], path.coefs[:, 0], optimize=True)  # (B, N)
    return path, np.array([roc_auc_score(y[validation], score) for score in scores])


def _fit(
    data: TokenDataset,
    split: Split,
    beta: float,
    report: Report,
    tokens: NDArray[np.intp] | None = None,
) -> Fitted:
    """Fit on everything but the test peptides, reading all tokens or only `tokens`."""
    kept = np.arange(data.X.shape[1]) if tokens is None else tokens
    X, known, test = data.X[:, kept], split.known, split.test
    model = ConvexAttentionClassifier(beta, tol=TOL, verbose=report or False).fit(
        X[known], data.y[known]
    )
    order = np.argsort(-model.token_norms_, kind="stable")
    return Fitted(
        model=model,
        beta=float(beta),
        tokens=[data.token_names[kept[k]] for k in order if model.token_norms_[k] > 0],
        test_auc=float(roc_auc_score(data.y[test], model.decision_function(X[test]))),
    )


def _fit_sparse(
    data: TokenDataset,
    split: Split,
    path: AttentionPath,
    aucs: NDArray[np.float64],
    report: Report,
) -> Fitted:
    """The best of the path that uses few tokens, refitted.

    With more data a beta may let one more token in; then the next stronger beta is taken.
    """
    few = np.flatnonzero(np.asarray(path.n_tokens_used) <= FEW_TOKENS)
    best = int(few[np.argmax(aucs[few])])
    for beta in BETAS[best::-1]:
        fitted = _fit(data, split, beta, report)
        if len(fitted.tokens) <= FEW_TOKENS:
            break
    return fitted


def _fit_relaxed(data: TokenDataset, split: Split, sparse: Fitted, report: Report) -> Fitted:
    """The tokens that the sparse model chose, without the shrinkage that chose them."""
    tokens = np.sort([data.token_names.index(name) for name in sparse.tokens])
    X, y = data.X[:, tokens], data.y
    _, aucs = _path(X, y, split, report)
    return _fit(data, split, BETAS[int(np.argmax(aucs))], report, tokens)


def _logistic(data: TokenDataset, split: Split) -> tuple[float, float]:
    """scikit-learn's logistic regression, tuned and refitted on the same rows; its AUC and C."""
    X, y = data.X.reshape(len(data.X), -1), data.y

    def auc(C: float, rows: Rows, held_out: Rows) -> float:
        model = LogisticRegression(C=C, max_iter=2000).fit(X[rows], y[rows])
        return float(roc_auc_score(y[held_out], model.decision_function(X[held_out])))

    best = max(LOGISTIC_C, key=lambda C: auc(C, split.train, split.validation))
    return auc(best, split.known, split.test), float(best)


def draw(result: DemoResult) -> dict[str, Any]:
    """The two figures of the demo, by the name of the file they are for."""
    from .plotting import PathDisplay, TokenMapDisplay

    data, top = result.data, result.full.tokens
    token_map = TokenMapDisplay.from_estimator(
        result.full.model,
        tokens=data.token_names,
        channels=data.channel_names,
        outputs=data.target_names,
        channel_groups=SIDE_CHAINS,
        title=f"HLA-A*02:01 reads {top[0]} and {top[1]} most",
    )
    path = PathDisplay.from_path(
        result.path,
        tokens=data.token_names,
        scores=result.validation_aucs,
        score_name="validation AUC",
        marks={
            f"{len(result.sparse.tokens)} tokens": result.sparse.beta,
            "best": result.full.beta,
        },
    )
    return {"tokens.png": token_map.figure_, "path.png": path.figure_}
