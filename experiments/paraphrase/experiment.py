"""Is it a paraphrase? Probes of frozen states of an encoder, on MRPC.

A convex attention classifier on aligned slots stands beside logistic regression on [CLS], on
mean-pooled states and on scores of matches, and a probe that learns to pool states by attention.
Every probe has one hyperparameter of as many values, chosen by accuracy on validation pairs; test
pairs are looked at once.

Positions of free text mean nothing from one pair to the next. Slots do: every token is matched to
the nearest one of the other sentence, and slot k is the k-th worst of these matches, as the
absolute difference of both states. Whether one sentence says more than the other shows in the
worst.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn import functional

from convexformer.activations import Activations
from convexformer.estimators import ConvexAttentionClassifier, TokenScaler

from ..lab import KeyedJob, Ledger, Record, picked, rounded
from ..sentences import Labels, SentencePairs, read_states
from ..training import stop_early

Floats = NDArray[np.float32]

SLOTS = 8  # worst matches of either sentence
SCORES = 16  # worst distances of either sentence

TOKENS = (
    *(f"{which}, match {k + 1}" for which in ("first", "second") for k in range(SLOTS)),
    "[CLS]",
    "difference of means",
    "product of means",
)


@dataclass(frozen=True)
class PairFeatures:
    """What probes read of N pairs.

    Attributes
    ----------
    slots : ndarray of shape (N, len(TOKENS), d)
        Aligned differences, worst matches first, and three tokens of the whole pair.
    first : ndarray of shape (N, d)
        The state of [CLS].
    pooled : ndarray of shape (N, 2 d)
        Absolute difference and product of both sentences' mean states.
    scores : ndarray of shape (N, 2 SCORES + 4)
        Distances of the worst matches, their means, and the lengths.
    states : ndarray of shape (N, n, d), mask : ndarray of bool of shape (N, n)
        All states, for attention pooling.
    """

    slots: Floats
    first: Floats
    pooled: Floats
    scores: Floats
    states: Floats
    mask: NDArray[np.bool_]


def pair_features(found: Activations, rows: NDArray[np.intp], length: int) -> PairFeatures:
    """Features of some texts of an extraction of pairs, with its kind "output"."""
    each = [_one(found, int(i)) for i in rows]
    slots, first, pooled, scores = (np.stack(part) for part in zip(*each, strict=True))
    states = np.zeros((len(rows), length, found.dim), np.float32)
    mask = np.zeros((len(rows), length), dtype=bool)
    for r, i in enumerate(rows):
        n = min(length, int(found.lengths[i]))
        states[r, :n], mask[r, :n] = np.asarray(found[int(i)].output)[:n], True
    return PairFeatures(slots, first, pooled, scores, states, mask)


def _one(found: Activations, i: int) -> tuple[Floats, Floats, Floats, Floats]:
    text = found[i]
    H = np.asarray(text.output, dtype=np.float32)
    A, B = H[text.segments == 0], H[text.segments == 1]  # tokens of either sentence
    first, second = matches(A, B), matches(B, A)
    a, b = A.mean(axis=0), B.mean(axis=0)
    whole = np.stack([H[0], np.abs(a - b), a * b])
    slots = np.concatenate([padded(first[0], SLOTS), padded(second[0], SLOTS), whole])
    lengths = np.log([len(A), len(B)])
    means = np.array([first[1].mean(), second[1].mean()])
    scores = np.concatenate(
        [padded(first[1], SCORES), padded(second[1], SCORES), means, lengths]
    ).astype(np.float32)
    return slots, H[0], np.concatenate([np.abs(a - b), a * b]), scores


def matches(A: Floats, B: Floats) -> tuple[Floats, Floats]:
    """Differences ``|a - b|`` of tokens of A to their nearest of B, and distances, worst first.

    Nearest is by the cosine; the distance is one minus it.

    Examples
    --------
    >>> import numpy as np
    >>> from experiments.paraphrase.experiment import matches
    >>> A = np.array([[1.0, 0.0], [0.0, 2.0]], dtype=np.float32)
    >>> B = np.array([[3.0, 0.0]], dtype=np.float32)
    >>> matches(A, B)[1].tolist()  # the second token of A has no like in B
    [1.0, 0.0]
    """
    unit = [V / np.linalg.norm(V, axis=1, keepdims=True) for V in (A, B)]
    cosine = unit[0] @ unit[1].T  # (A, B)
    nearest, distance = np.argmax(cosine, axis=1), 1 - np.max(cosine, axis=1)
    order = np.argsort(-distance, kind="stable")
    return np.abs(A - B[nearest])[order], distance[order]


def padded(values: Floats, count: int) -> Floats:
    """The first `count` rows, with zeros where there are fewer."""
    missing = [(0, max(0, count - len(values)))] + [(0, 0)] * (values.ndim - 1)
    return np.pad(values[:count], missing)


# Probes -------------------------------------------------------------------------------------------

LENGTH = 96  # tokens that attention pooling sees
SEEDS = 3
EPOCHS, PATIENCE = 30, 4

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
        return self.read(pooled[:, 0])[:, 0]


def pooling(decay: float, seed: int, X: PairFeatures, y: Labels) -> tuple[Predict, Record]:
    """Attention pooling by AdamW; a tenth of the training pairs says when to stop."""
    generator = torch.Generator().manual_seed(seed)
    H, mask = torch.from_numpy(X.states), torch.from_numpy(X.mask)
    labels = torch.from_numpy(y.astype(np.float32))
    order = torch.randperm(len(y), generator=generator)
    held, learnt = order[: len(y) // 10], order[len(y) // 10 :]
    model = AttentionPooling(H.shape[2])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=decay)

    def loss(rows: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(model(H[rows], mask[rows]), labels[rows])

    def epochs() -> Iterator[int]:
        for epoch in range(EPOCHS):
            for rows in learnt[torch.randperm(len(learnt), generator=generator)].split(128):
                optimizer.zero_grad()
                loss(rows).backward()
                optimizer.step()
            yield epoch

    stop_early(model, epochs(), lambda: loss(held), PATIENCE)

    def predict(X: PairFeatures) -> Labels:
        with torch.no_grad():
            logits = model(torch.from_numpy(X.states), torch.from_numpy(X.mask))
        return (logits > 0).numpy().astype(np.int64)

    return predict, {}


STRENGTHS = tuple(rounded(np.geomspace(1e-4, 1e-1, 7)))  # C of logistic regression; weight decay
BETAS = tuple(rounded(np.geomspace(0.5, 0.02, 7)))  # fractions of beta_max
PROBES = {
    "convex": Probe("convex attention on aligned slots", BETAS, convex),
    "first": Probe("logistic regression, [CLS]", STRENGTHS, logistic("first")),
    "pooled": Probe("logistic regression, mean-pooled states", STRENGTHS, logistic("pooled")),
    "scores": Probe("logistic regression, scores of matches", STRENGTHS, logistic("scores")),
    "pooling": Probe("attention pooling, learned", STRENGTHS, pooling, seeds=SEEDS),
}


class Frozen:
    """Frozen states of pairs of sentences, extracted when a job needs them."""

    def __init__(self, pairs: SentencePairs, folder: Path, model: str, layer: int) -> None:
        if pairs.labels is None:
            words = "name MRPC's folder with --mrpc or CONVEXFORMER_MRPC"
            raise ValueError(f"the sentences of this project have no labels; {words}.")
        self.pairs, self.labels, self.folder = pairs, pairs.labels, folder
        self.model, self.layer = model, layer
        sizes = [len(part) for part in pairs.parts]
        self.source: Record = {"model": model, "layer": layer, "text": pairs.name, "sizes": sizes}

    @cached_property
    def parts(self) -> list[PairFeatures]:
        """Features of the pairs to train, to choose and to test."""
        texts = [pair for part in self.pairs.parts for pair in part]
        found = read_states(self.model, texts, self.layer, self.folder, ["output"])
        ends = np.cumsum(self.source["sizes"])
        places = np.split(np.arange(ends[-1]), ends[:-1])
        length = min(LENGTH, int(found.lengths.max()))
        return [pair_features(found, rows, length) for rows in places]


@dataclass(frozen=True)
class Job(KeyedJob):
    """A probe: chosen on validation pairs, and tested."""

    frozen: Frozen = field(repr=False)
    probe: str

    def rules(self) -> Record:
        return picked(vars(PROBES[self.probe]), ("seeds", "values")) | self.frozen.source

    def __str__(self) -> str:
        return PROBES[self.probe].label

    def run(self) -> Record:
        """Fit with every value of the hyperparameter, and test the best."""
        parts = self.frozen.parts
        return {"label": str(self)} | fit_probe(PROBES[self.probe], parts, self.frozen.labels)


def run(ledger: Ledger, frozen: Frozen) -> Record:
    """Do what is missing."""
    rows = ledger.do_each(Job(frozen, name) for name in PROBES)
    dropped = ("values", "environment", "date", *frozen.source)
    return (
        ledger.header()
        | frozen.source
        | {
            "majority": float(np.mean(frozen.labels[2])),
            "rows": [{k: v for k, v in row.items() if k not in dropped} for row in rows],
        }
    )


def facts(results: Record) -> Record:
    """What the template has beside the results."""
    ends = {name: (probe.values[0], probe.values[-1]) for name, probe in PROBES.items()}
    at_ends = [row["label"] for row in results["rows"] if row["value"] in ends[row["probe"]]]
    return {"slots": len(TOKENS), "at_ends": at_ends}  # beyond which a better value may lie


def fit_probe(probe: Probe, parts: list[PairFeatures], labels: tuple[Labels, ...]) -> Record:
    """What a probe comes to, with the value of its hyperparameter that validation chooses."""
    start = time.process_time()
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
        "value": value,
        **told,
        "seconds_of_all": round(time.process_time() - start, 2),
        **fits[0][1],
    }
