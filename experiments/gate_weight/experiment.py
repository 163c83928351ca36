"""How much more should blocks behind gates cost? The default of `gate_weight`, by validation.

A job is one data set, one number of training rows, one seed, and a beta or none. As in the
comparison of predictions (`predictive`), seed s tests on part s of five; the training rows are
drawn from the other four. Without a given beta, the layer without gates and gated layers with every
weight choose theirs by three-fold cross-validation on the training rows, whose loss compares the
weights; with one, rows neither trained nor tested on do. The test part is only reported.
"""

import csv
import os
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.metrics import log_loss
from sklearn.model_selection import GroupKFold, StratifiedKFold, train_test_split

from convexformer import estimators
from convexformer.datasets import TokenDataset, hla, one_hot

from ..lab import KeyedJob, Ledger, OutOfTime, Record, averaged, grouped, picked
from ..predictive.contestants import CONTESTANTS
from ..predictive.experiment import DATASETS, METRICS, Rows, score, split, tokens_for

TOL = 1e-4  # relative duality gap that every fit is asked for
ALLELES = "held-out alleles, test"
WEIGHTS = (1.0, 1.5, 2.0, 3.0, 5.0)
SETTINGS = ((300, None), (300, 0.03), (1000, None))  # training rows at most; beta, None: chosen
SEEDS = (0, 1, 2, 3, 4)
BETAS = (0.3, 0.14, 0.065, 0.03, 0.014, 0.0065, 0.003)
FOLDS = 3
VALIDATION_ROWS = 1000  # at most, where beta is given
MAX_SECONDS = 30.0  # of a path

HELD_OUT = ("HLA-B*44:03", "HLA-B*53:01", "HLA-A*30:02", "HLA-A*29:02")
VARIABLE = "CONVEXFORMER_ALLELES"  # mhcnuggets' curated_training_data.csv, where it is


@dataclass(frozen=True)
class Job(KeyedJob):
    """One data set, one number of training rows, one split, and a beta or none."""

    dataset: str
    rows: int
    beta: float | None
    seed: int
    warn = "ignore"  # a beta at the edge, or a fit cut short, is in the table all the same

    def run(self) -> Record:
        """Fit all weights; alleles that are not there are left for later."""
        data = load(self.dataset)
        return compare(data, self.rows, self.beta, self.seed)


def run(ledger: Ledger) -> Record:
    """Do what is missing."""
    jobs = ledger.do_each(
        Job(name, rows, beta, seed)
        for rows, beta in SETTINGS
        for name in (*DATASETS, *HELD_OUT)
        for seed in SEEDS
    )
    return ledger.header() | summarise(jobs)


def compare(data: TokenDataset, n_rows: int, beta: float | None, seed: int) -> Record:
    """Fit the plain layer, and gated ones with every weight, on `n_rows` rows of a split."""
    rows, test = training_rows(data, n_rows, seed), split(data, seed).test
    rest = np.setdiff1d(np.arange(len(data.y)), np.concatenate([rows, test]))
    validation = np.random.default_rng(seed).permutation(rest)[:VALIDATION_ROWS]
    X = tokens_for(data, CONTESTANTS["attention"], rows)
    metric = METRICS.get(data.name, "AUC" if data.name in HELD_OUT else "accuracy")
    results = {}
    for name, model in _models(beta, seed).items():
        start = time.process_time()
        if beta is None:
            model.set_params(cv=_folds(data, rows))
        model.fit(X[rows], data.y[rows])
        chosen = beta is None
        results[name] = {
            "test": score(model, X[test], data.y[test], metric),
            "validation": model.best_score_
            if chosen
            else -log_loss(data.y[validation], model.predict_proba(X[validation])),
            "beta": model.beta_fraction_ if chosen else beta,
            "relative_gap": float(model.certificate_.relative_gap),
            "seconds": round(time.process_time() - start, 2),
        }
    return {"rows_used": len(rows), "metric": metric, "models": results}


def training_rows(data: TokenDataset, n_rows: int, seed: int) -> Rows:
    """At most `n_rows` of the rows that `split` does not test on, classes in equal shares.

    Examples
    --------
    >>> from convexformer.datasets import splice
    >>> from experiments.gate_weight.experiment import training_rows
    >>> len(training_rows(splice(), 300, seed=0))
    300
    """
    rest = np.setdiff1d(np.arange(len(data.y)), split(data, seed).test)
    if len(rest) <= n_rows:
        return rest
    chosen, _ = train_test_split(rest, train_size=n_rows, stratify=data.y[rest], random_state=seed)
    return np.sort(chosen)


def _folds(data: TokenDataset, rows: Rows) -> list[tuple[Rows, Rows]]:
    """Folds of the training rows; persons, where known, are on one side only."""
    y = data.y[rows]
    if data.groups is not None:
        return list(GroupKFold(FOLDS).split(y, y, data.groups[rows]))
    return list(StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(y, y))


def _models(beta: float | None, seed: int) -> dict[str, Any]:
    """The layer without gates, and gated ones with every weight."""
    limits: Any = {"tol": TOL, "max_time": MAX_SECONDS}
    if beta is None:
        plain: Any = estimators.ConvexAttentionClassifierCV(BETAS, **limits)
        gated: Any = estimators.ConvexTransformerClassifierCV(BETAS, random_state=seed, **limits)
    else:
        plain = estimators.ConvexAttentionClassifier(beta, **limits)
        gated = estimators.ConvexTransformerClassifier(beta, random_state=seed, **limits)
    every = {f"{weight:g}": clone(gated).set_params(gate_weight=weight) for weight in WEIGHTS}
    return {"plain": plain} | every


# Alleles that are not in the package ---------------------------------------------------------


def load(name: str) -> TokenDataset:
    """A data set of the package, or an allele of the file that the environment names."""
    if name in DATASETS:
        return DATASETS[name]()
    if VARIABLE not in os.environ:
        raise OutOfTime(f"{VARIABLE} is not set.")
    return read_alleles(Path(os.environ[VARIABLE]))[name]


@cache
def read_alleles(file: Path) -> dict[str, TokenDataset]:
    """The 9-mers measured against each of `HELD_OUT`, prepared as those of the package are.

    Only quantitative measurements count; a peptide measured several times has the median on the
    log scale, and binds where that is at most 500 nM.
    """
    measured: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with file.open(newline="") as lines:
        for row in csv.DictReader(lines):
            if row["measurement_type"] == "quantitative" and len(row["peptide"]) == 9:
                measured[row["mhc"]][row["peptide"]].append(float(row["IC50(nM)"]))
    return {name: _allele(name, measured[name]) for name in HELD_OUT}


def _allele(name: str, measured: dict[str, list[float]]) -> TokenDataset:
    known = hla()
    peptides = tuple(sorted(measured))
    ic50 = np.array([_log_median(measured[peptide]) for peptide in peptides])
    return replace(
        known,
        name=name,
        X=one_hot(peptides, known.channel_names),
        y=(ic50 <= 500.0).astype(np.int64),
        sequences=peptides,
        description=f"IEDB, curated by MHCflurry, as in mhcnuggets 2.4.1: {name}. CC BY 4.0.",
        target_values=ic50,
    )


def _log_median(values: list[float]) -> float:
    return float(np.sqrt(statistics.median_low(values) * statistics.median_high(values)))


# Summary -----------------------------------------------------------------------------------------


def summarise(jobs: list[Record]) -> Record:
    """For each data set and number of rows: scores without gates, and what each weight adds."""
    cells = grouped(sorted(jobs, key=lambda job: job["seed"]), "rows", "beta", "dataset")
    order = sorted(cells, key=lambda cell: (cell[0], cell[1] or 0.0, cell[2]))
    return {"cells": [_cell(cells[cell]) for cell in order]}


def _cell(jobs: list[Record]) -> Record:
    names = [name for name in jobs[0]["models"] if name != "plain"]

    def values(name: str, what: str) -> list[float]:
        return [job["models"][name][what] for job in jobs]

    def compared(what: str) -> Record:
        plain = values("plain", what)
        return {name: averaged(np.subtract(values(name, what), plain).tolist()) for name in names}

    kept = ("dataset", "rows", "beta", "rows_used", "metric")
    return picked(jobs[0], kept) | {
        "seeds": [job["seed"] for job in jobs],
        "plain": float(np.mean(values("plain", "test"))),
        "validation": compared("validation"),
        "test": compared("test"),
        "worst_gap": max(max(values(name, "relative_gap")) for name in ("plain", *names)),
    }


# What the page says of every weight ------------------------------------------------------------


def below(difference: Record) -> bool:
    """Whether a mean difference is negative by more than one standard error.

    Examples
    --------
    >>> from experiments.gate_weight.experiment import below
    >>> below({"mean": -0.02, "standard_error": 0.01})
    True
    >>> below({"mean": -0.02, "standard_error": 0.03})
    False
    """
    return bool(difference["mean"] < -(difference["standard_error"] or 0.0))


@dataclass(frozen=True)
class Part:
    """Cells, and what is compared in them: "validation" or "test"."""

    cells: list[Record]
    what: str

    def lost(self, weight: str) -> int:
        """In how many cells the layer with gates is below the one without."""
        return sum(below(cell[self.what][weight]) for cell in self.cells)

    def mean(self, weight: str) -> float:
        """Of the differences of all cells."""
        return float(np.mean([cell[self.what][weight]["mean"] for cell in self.cells]))


def preferred(results: Record) -> str:
    """The weight of the best mean validation among those that are nowhere below."""
    validation = Part(_package(results), "validation")
    allowed = [w for w in validation.cells[0]["validation"] if not validation.lost(w)]
    return max(allowed, key=validation.mean, default="none")


def _package(results: Record) -> list[Record]:
    """Cells of the package's own data sets; names of alleles have a colon."""
    return [cell for cell in results["cells"] if ":" not in cell["dataset"]]


def facts(results: Record) -> Record:
    """The names of the template."""
    package = _package(results)
    alleles = [cell for cell in results["cells"] if cell not in package]
    sizes = {
        name: sorted({cell["rows"] for cell in cells})
        for (name,), cells in grouped(package, "dataset").items()
    }
    parts = {"validation": Part(package, "validation"), "test": Part(package, "test")}
    return {
        "default": preferred(results),
        "parts": parts | ({ALLELES: Part(alleles, "test")} if alleles else {}),
        "alleles": ALLELES,
        "sizes": sizes,
        "everywhere": sorted({rows for own in sizes.values() for rows in own}),
        "tol": TOL,
        "below": below,
    }
