"""What does `refit` gain, and what does it cost?

A cell is one data set and one beta. Every seed has its own training and test samples: of a data set
of the package seed s tests on part s of five and trains on the other four (`predictive.split`);
samples of wide tokens are made anew. Three models are fitted to the same training samples: the
certified fit, its refit with a ridge chosen by cross-validation, and with nearly none.
"""

import time
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convexformer import ConvexAttentionClassifier, ConvexAttentionRegressor
from convexformer.datasets import hla, satimage, splice

from ..lab import KeyedJob, Ledger, Record, picked, plus_minus, standard_error
from ..predictive.contestants import CONTESTANTS
from ..predictive.experiment import METRICS, score, split, tokens_for

DATASETS = {"splice": splice, "hla": hla, "satimage": satimage}
WIDE = "wide tokens"
BETAS = {  # fractions of beta_max
    "splice": (0.4, 0.2, 0.1, 0.03),
    "hla": (0.3, 0.03),
    "satimage": (0.3, 0.03),
    WIDE: (0.3, 0.1, 0.03),
}
SEEDS = (0, 1, 2)
NO_SHRINKAGE = 0.001  # strength of a ridge that is nearly none
REFITS: dict[str, bool | float] = {"certified": False, "chosen": True, "least": NO_SHRINKAGE}

SIZES = TRAIN, TEST, TOKENS, CHANNELS = 1400, 2000, 14, 384  # of wide tokens
READ = {3: 1.0, 7: 0.7, 8: 0.5}  # tokens that their target depends on, and how strongly
READ_CHANNELS = 80  # of these tokens: those of the largest variance
CORRELATION, NOISE = 0.8, 0.6  # between tokens; standard deviation of noise over that of signal

Samples = tuple[NDArray[Any], NDArray[Any]]


def wide_tokens(seed: int) -> tuple[Samples, Samples]:
    """Training and test samples of tokens with so many channels that a fit without shrinkage fails.

    Examples
    --------
    >>> from experiments.refit.experiment import wide_tokens
    >>> (X, y), (X_test, y_test) = wide_tokens(seed=0)
    >>> X.shape, X_test.shape
    ((1400, 14, 384), (2000, 14, 384))
    """
    random = np.random.default_rng(seed)
    n_samples, deviation = TRAIN + TEST, np.arange(1, CHANNELS + 1) ** -0.5
    shared = random.normal(size=(n_samples, 1, CHANNELS))
    own = random.normal(size=(n_samples, TOKENS, CHANNELS))
    X = (np.sqrt(CORRELATION) * shared + np.sqrt(1 - CORRELATION) * own) * deviation
    signal = np.zeros(n_samples)
    for token, size in READ.items():
        signal += size * X[:, token, :READ_CHANNELS] @ random.normal(size=READ_CHANNELS)
    y = signal / signal.std() + NOISE * random.normal(size=n_samples)
    return (X[:TRAIN], y[:TRAIN]), (X[TRAIN:], y[TRAIN:])


def samples(name: str, seed: int) -> tuple[Samples, Samples]:
    """Training and test samples of a data set."""
    if name == WIDE:
        return wide_tokens(seed)
    data = DATASETS[name]()
    test = split(data, seed).test
    train = np.setdiff1d(np.arange(len(data.y)), test)
    X = tokens_for(data, CONTESTANTS["attention"], train)
    return (X[train], data.y[train]), (X[test], data.y[test])


@dataclass(frozen=True)
class Job(KeyedJob):
    """A cell: one data set and one beta, with every seed."""

    dataset: str
    beta: float
    seeds: tuple[int, ...] = SEEDS
    warn = "error"  # a fit that is cut short has no place in the table

    def run(self) -> Record:
        """Fit and test the three models with every seed."""
        wide, data = self.dataset == WIDE, [samples(self.dataset, seed) for seed in self.seeds]
        metric = "R²" if wide else METRICS.get(self.dataset, "accuracy")
        told: Record = {name: {kind: [] for kind in REFITS} for name in ("scores", "seconds")}
        told |= {"metric": metric, "tokens": [], "ridges": []}  # lists in the order of the seeds
        for (train, test), (kind, refit) in product(data, REFITS.items()):
            model: Any = (
                ConvexAttentionRegressor(self.beta, refit=refit)
                if wide
                else ConvexAttentionClassifier(self.beta, penalty="token", refit=refit)
            )
            start = time.process_time()
            model.fit(*train)
            told["seconds"][kind].append(round(time.process_time() - start, 3))
            reached = model.score(*test) if wide else score(model, *test, metric)
            told["scores"][kind].append(round(float(reached), 6))
            if refit is True:
                told["tokens"].append(len(model.tokens_))
                told["ridges"].append(float(model.ridge_.max()))
        return told


def run(ledger: Ledger) -> Record:
    """Do what is missing."""
    cells = ledger.do_each(Job(name, beta) for name, betas in BETAS.items() for beta in betas)
    kept = ("dataset", "metric", "beta", "seeds", "tokens", "ridges", "scores", "seconds")
    return ledger.header() | {"cells": [picked(cell, kept) for cell in cells]}


# What the page says of gains and costs ----------------------------------------------------------


def facts(results: Record) -> Record:
    """The names of the template."""
    cells = [_described(cell) for cell in results["cells"]]
    gains = [cell for cell in cells if rises(cell, "chosen", "certified")]
    by_gain = sorted(gains, key=lambda cell: _difference(cell, "chosen", "certified")[0])
    return {
        "cells": cells,
        "gains": len(gains),
        "losses": sum(rises(cell, "certified", "chosen") for cell in cells),
        "largest_gains": {cell["metric"]: cell for cell in by_gain}.values(),
        "overfitted": [cell["name"] for cell in cells if rises(cell, "certified", "least")],
        "least_behind": sum(rises(cell, "chosen", "least") for cell in cells),
        "worst": min(cells, key=lambda cell: _difference(cell, "least", "chosen")[0]),
        "dearest": max(cells, key=lambda cell: cell["chosen_cost"]),
        "least": NO_SHRINKAGE,
        "correlation": CORRELATION,
        **dict(zip(("train", "test", "tokens", "channels"), SIZES, strict=True)),
    }


def _described(cell: Record) -> Record:
    """A cell with means over its seeds, and words for them."""
    means = {kind: float(np.mean(values)) for kind, values in cell["scores"].items()}
    shown = {}
    for kind, values in cell["scores"].items():
        number = plus_minus(means[kind], standard_error(values))
        shown[kind] = f"**{number}**" if means[kind] == max(means.values()) else number
    low, high = min(cell["tokens"]), max(cell["tokens"])
    return cell | {
        "name": f"{cell['dataset']} at beta {cell['beta']:g}",
        "range": f"{low}" if low == high else f"{low}–{high}",
        "means": means,
        "shown": shown,
        "certified_seconds": float(np.median(cell["seconds"]["certified"])),
        "chosen_cost": _cost(cell, "chosen"),
        "least_cost": _cost(cell, "least"),
    }


def _difference(cell: Record, kind: str, than: str) -> tuple[float, float]:
    """Mean over seeds of the paired differences, and its standard error."""
    differences = np.subtract(cell["scores"][kind], cell["scores"][than])
    return float(np.mean(differences)), standard_error(list(differences)) or 0.0


def rises(cell: Record, kind: str, than: str) -> bool:
    """Whether `kind` is better by more than one standard error."""
    mean, error = _difference(cell, kind, than)
    return mean > error


def _cost(cell: Record, kind: str) -> float:
    """Seconds that the refit adds, over those of the certified fit: the median over seeds."""
    certified = np.array(cell["seconds"]["certified"])
    return float(np.median(np.array(cell["seconds"][kind]) / certified - 1))
