"""Is it a paraphrase? Probes of frozen states of an encoder, on MRPC.

A convex attention classifier on aligned slots stands beside logistic regression on [CLS], on
mean-pooled states and on scores of matches, and a probe that learns to pool states by attention.
Every probe has one hyperparameter of as many values, chosen by accuracy on validation pairs; test
pairs are looked at once.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn import functional

from ..activations import Activations, extract
from ..activations._extract import Report
from ..datasets import SentencePairs
from ..estimators import ConvexAttentionClassifier, TokenScaler
from .paraphrase_data import TOKENS, PairFeatures, pair_features
from .records import Record, replace, stamp
from .threads import one_thread

STRENGTHS = np.geomspace(1e-4, 1e-1, 7)  # C of logistic regression
BETAS = np.geomspace(0.5, 0.02, 7)  # fractions of beta_max
DECAYS = np.geomspace(1e-4, 1e-1, 7)
LENGTH = 96  # tokens that attention pooling sees
SEEDS = 3
EPOCHS, PATIENCE = 30, 4
USUAL = ("minilm", 5)  # model and layer

Labels = NDArray[np.int64]
Predict = Callable[[PairFeatures], Labels]


@dataclass(frozen=True)
class Probe:
    """A way to predict: one fit per value of its hyperparameter, and per seed if it is random."""

    label: str
    values: tuple[float, ...]
    fit: Callable[[float, int, PairFeatures, Labels], tuple[Predict, Record]]
    seeds: int = 1


def logistic(kind: str) -> Callable[[float, int, PairFeatures, Labels], tuple[Predict, Record]]:
    """Logistic regression on one kind of features."""

    def fit(C: float, seed: int, X: PairFeatures, y: Labels) -> tuple[Predict, Record]:
        model = make_pipeline(StandardScaler(), LogisticRegression(C=C, max_iter=2000))
        model.fit(getattr(X, kind), y)
        return lambda X: model.predict(getattr(X, kind)), {}

    return fit


def convex(beta: float, seed: int, X: PairFeatures, y: Labels) -> tuple[Predict, Record]:
    """Convex attention over slots, certified."""
    scaler = TokenScaler(per="token-channel").fit(X.slots)
    model = ConvexAttentionClassifier(beta=beta, tol=1e-5).fit(scaler.transform(X.slots), y)
    order = np.argsort(-model.token_norms_.ravel(), kind="stable")
    used = [TOKENS[k] for k in order if k in set(model.tokens_.tolist())]
    proof = {"relative_gap": float(model.certificate_.relative_gap), "tokens": used}
    return lambda X: model.predict(scaler.transform(X.slots)), proof


class AttentionPooling(nn.Module):
    """One learned query pools the states; a linear layer reads the pooled one."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(dim))
        self.read = nn.Linear(dim, 1)

    def forward(self, H: Tensor, mask: Tensor) -> Tensor:
        """Logits ``(N,)`` of states ``(N, n, d)``."""
        scores = (H @ self.query).masked_fill(~mask, torch.finfo(H.dtype).min)  # (N, n)
        pooled = torch.softmax(scores, 1)[:, None] @ H  # (N, 1, d)
        logits: Tensor = self.read(pooled[:, 0])[:, 0]
        return logits


def pooling(decay: float, seed: int, X: PairFeatures, y: Labels) -> tuple[Predict, Record]:
    """Attention pooling by AdamW; a tenth of the training pairs says when to stop."""
    generator = torch.Generator().manual_seed(seed)
    H, mask = torch.from_numpy(X.states), torch.from_numpy(X.mask)
    labels = torch.from_numpy(y.astype(np.float32))
    order = torch.randperm(len(y), generator=generator)
    held, learnt = order[: len(y) // 10], order[len(y) // 10 :]
    model = AttentionPooling(H.shape[2])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=decay)
    best, since, state = float("inf"), 0, model.state_dict()
    for _ in range(EPOCHS):
        for rows in learnt[torch.randperm(len(learnt), generator=generator)].split(128):
            optimizer.zero_grad()
            logits = model(H[rows], mask[rows])
            functional.binary_cross_entropy_with_logits(logits, labels[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            logits = model(H[held], mask[held])
            loss = functional.binary_cross_entropy_with_logits(logits, labels[held]).item()
        since = 0 if loss < best else since + 1
        if loss < best:
            best, state = loss, {k: v.clone() for k, v in model.state_dict().items()}
        if since == PATIENCE:
            break
    model.load_state_dict(state)

    def predict(X: PairFeatures) -> Labels:
        with torch.no_grad():
            logits = model(torch.from_numpy(X.states), torch.from_numpy(X.mask))
        return (logits > 0).numpy().astype(np.int64)

    return predict, {}


def values(numbers: Any) -> tuple[float, ...]:
    return tuple(float(f"{number:.4g}") for number in numbers)


C = values(STRENGTHS)
PROBES = {
    "convex": Probe("convex attention on aligned slots", values(BETAS), convex),
    "first": Probe("logistic regression, [CLS]", C, logistic("first")),
    "pooled": Probe("logistic regression, mean-pooled states", C, logistic("pooled")),
    "scores": Probe("logistic regression, scores of matches", C, logistic("scores")),
    "pooling": Probe("attention pooling, learned", values(DECAYS), pooling, seeds=SEEDS),
}


def run(
    pairs: SentencePairs,
    folder: Path,
    *,
    model: Any = USUAL[0],
    layer: int = USUAL[1],
    report: Report | None = None,
) -> Record:
    """Extract the layer's output for all pairs, fit every probe, write and return results."""
    if pairs.labels is None:
        raise ValueError(
            "the sentences of the package have no labels; name MRPC's folder with --mrpc or "
            "CONVEXFORMER_MRPC."
        )
    texts = [pair for part in pairs.parts for pair in part]
    options: dict[str, Any] = {"keep": ("output",), "truncate": True}
    name = os.fspath(model) if isinstance(model, (str, os.PathLike)) else "model"
    options["overwrite"] = True  # of another model or layer: the folder is this experiment's own
    found = extract(model, texts, layer, folder / "activations", report=report, **options)
    rows = probe_all(found, pairs)
    results = stamp() | {
        "command": command(name, layer),
        "model": name,
        "layer": layer,
        "text": pairs.name,
        "sizes": [len(part) for part in pairs.parts],
        "majority": float(np.mean(pairs.labels[2])),
        "rows": rows,
    }
    replace(folder / "results.json", json.dumps(results, indent=1) + "\n")
    return results


def command(model: str, layer: int) -> str:
    """What to type for these results."""
    words = "convexformer reproduce paraphrase"
    return words if (model, layer) == USUAL else f"{words} --model {model} --layer {layer}"


def probe_all(found: Activations, pairs: SentencePairs) -> list[Record]:
    """Every probe, chosen on validation pairs and tested."""
    assert pairs.labels is not None
    ends = np.cumsum([len(part) for part in pairs.parts])
    places = np.split(np.arange(ends[-1]), ends[:-1])
    length = min(LENGTH, int(found.lengths.max()))
    parts = [pair_features(found, rows, length) for rows in places]
    with one_thread():
        return [_probe(name, parts, pairs.labels) for name in PROBES]


def _probe(name: str, parts: list[PairFeatures], labels: tuple[Labels, ...]) -> Record:
    probe, start = PROBES[name], time.process_time()
    (train, validation, test), (y, y_validation, y_test) = parts, labels
    tried = []
    for value in probe.values:
        fits = []
        for seed in range(probe.seeds):
            torch.manual_seed(seed)
            fits.append(probe.fit(value, seed, train, y))
        scores = [accuracy_score(y_validation, predict(validation)) for predict, _ in fits]
        tried.append((float(np.mean(scores)), value, fits))
    _, value, fits = max(tried, key=lambda one: one[0])  # the first of the best
    told = {
        part: {
            "accuracy": float(np.mean([accuracy_score(truth, p(X)) for p, _ in fits])),
            "f1": float(np.mean([f1_score(truth, p(X)) for p, _ in fits])),
        }
        for part, X, truth in (("validation", validation, y_validation), ("test", test, y_test))
    }
    return {
        "probe": name,
        "label": probe.label,
        "value": value,
        "seeds": probe.seeds,
        **told,
        "seconds_of_all": round(time.process_time() - start, 2),
        **fits[0][1],
    }
