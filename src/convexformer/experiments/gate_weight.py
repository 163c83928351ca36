"""How much more should blocks behind gates cost? The default of `gate_weight`, by validation.

A job is one data set, one number of training rows, one seed, and a beta or none. As in the
comparison of predictions (`predictive`), seed s tests on part s of five; the training rows are
drawn from the other four. Without a given beta, the layer without gates and gated layers with every
weight choose theirs by three-fold cross-validation on the training rows, whose loss compares the
weights; with one, rows neither trained nor tested on do. The test part is only reported.

Every finished job is a line in ``jobs.jsonl``; running again does only what is missing. From the
lines, ``results.json`` and ``docs/gate-weight.md`` are made.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import log_loss
from sklearn.model_selection import GroupKFold, StratifiedKFold, train_test_split
from threadpoolctl import threadpool_limits

from convexformer import (
    ConvexAttentionClassifier,
    ConvexAttentionClassifierCV,
    ConvexTransformerClassifier,
    ConvexTransformerClassifierCV,
)
from convexformer.datasets import TokenDataset, hla, one_hot

from .contestants import CONTESTANTS
from .gate_weight_page import TOL, render, summarise
from .predictive import DATASETS, METRICS, Rows, score, split, tokens_for
from .records import Record, append, read_lines, replace, stamp

WEIGHTS = (1.0, 1.5, 2.0, 3.0, 5.0)
SETTINGS = ((300, None), (300, 0.03), (1000, None))  # training rows at most; beta, None: chosen
SEEDS = (0, 1, 2, 3, 4)
BETAS = (0.3, 0.14, 0.065, 0.03, 0.014, 0.0065, 0.003)
FOLDS = 3
VALIDATION_ROWS = 1000  # at most, where beta is given
MAX_SECONDS = 30.0  # of a path

HELD_OUT = ("HLA-B*44:03", "HLA-B*53:01", "HLA-A*30:02", "HLA-A*29:02")
VARIABLE = "CONVEXFORMER_ALLELES"  # mhcnuggets' curated_training_data.csv, where it is

Key = tuple[str, int, float | None, int]


def run_job(data: TokenDataset, n_rows: int, beta: float | None, seed: int) -> Record:
    """Fit the plain layer, and gated ones with every weight, on `n_rows` rows of a split."""
    rows, test = training_rows(data, n_rows, seed), split(data, seed).test
    rest = np.setdiff1d(np.arange(len(data.y)), np.concatenate([rows, test]))
    validation = np.random.default_rng(seed).permutation(rest)[:VALIDATION_ROWS]
    X = tokens_for(data, CONTESTANTS["attention"], rows)
    metric = METRICS.get(data.name, "AUC" if data.name in HELD_OUT else "accuracy")
    models = {"plain": _plain(beta)}
    models |= {f"{weight:g}": _gated(weight, beta, seed) for weight in WEIGHTS}
    results = {}
    for name, model in models.items():
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
    return {
        "dataset": data.name,
        "rows": n_rows,
        "beta": beta,
        "seed": seed,
        "rows_used": len(rows),
        "metric": metric,
        "models": results,
    }


def training_rows(data: TokenDataset, n_rows: int, seed: int) -> Rows:
    """At most `n_rows` of the rows that `split` does not test on, classes in equal shares.

    Examples
    --------
    >>> from convexformer.datasets import splice
    >>> from convexformer.experiments.gate_weight import training_rows
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


def _plain(beta: float | None) -> Any:
    if beta is None:
        return ConvexAttentionClassifierCV(BETAS, tol=TOL, max_time=MAX_SECONDS)
    return ConvexAttentionClassifier(beta, tol=TOL, max_time=MAX_SECONDS)


def _gated(weight: float, beta: float | None, seed: int) -> Any:
    settings: Any = {"gate_weight": weight, "random_state": seed}
    settings |= {"tol": TOL, "max_time": MAX_SECONDS}
    if beta is None:
        return ConvexTransformerClassifierCV(BETAS, **settings)
    return ConvexTransformerClassifier(beta, **settings)


# Alleles that are not in the package ---------------------------------------------------------


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
    return TokenDataset(
        name=name,
        X=one_hot(peptides, known.channel_names),
        y=(ic50 <= 500.0).astype(np.int64),
        target_names=known.target_names,
        token_names=known.token_names,
        channel_names=known.channel_names,
        sequences=peptides,
        description=f"IEDB, curated by MHCflurry, as in mhcnuggets 2.4.1: {name}. CC BY 4.0.",
        target_values=ic50,
    )


def _log_median(values: list[float]) -> float:
    return float(np.sqrt(statistics.median_low(values) * statistics.median_high(values)))


# Jobs ------------------------------------------------------------------------------------------


def read_jobs(file: Path) -> dict[Key, Record]:
    """Finished jobs by (dataset, rows, beta, seed)."""
    return {
        (job["dataset"], job["rows"], job["beta"], job["seed"]): job for job in read_lines(file)
    }


def run(
    file: Path,
    loaders: dict[str, Callable[[], TokenDataset]],
    settings: Iterable[tuple[int, float | None]],
    seeds: Iterable[int],
    max_minutes: float,
) -> bool:
    """Do what is missing in `file`; return whether all was done within the limit."""
    start = time.monotonic()
    for n_rows, beta in settings:
        for name, load in loaders.items():
            data = load()
            for seed in seeds:
                if (name, n_rows, beta, seed) in read_jobs(file):
                    continue
                if time.monotonic() - start > 60 * max_minutes:
                    return False
                with threadpool_limits(1), warnings.catch_warnings():
                    # A beta at the edge, or a fit cut short, is in the table all the same.
                    warnings.simplefilter("ignore")
                    record = run_job(data, n_rows, beta, seed)
                append(file, record | stamp())
                print(_line(record), flush=True)
    return True


def _line(record: Record) -> str:
    tests = "  ".join(f"{name} {model['test']:.3f}" for name, model in record["models"].items())
    beta = "chosen" if record["beta"] is None else f"{record['beta']:g}"
    where = f"{record['dataset']:12s} {record['rows']:5d} rows  beta {beta:6s}"
    return f"{where}  seed {record['seed']}  {tests}"


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison from the command line; exit with 1 if the time limit cut it short."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--datasets", nargs="+", choices=DATASETS, default=list(DATASETS))
    add("--seeds", nargs="+", type=int, choices=SEEDS, default=list(SEEDS))
    add("--max-minutes", type=float, default=60, help="start no job after this (default 60)")
    add("--out", type=Path, default=Path("benchmarks/gate_weight"), help="jobs and results")
    add("--page", type=Path, default=Path("docs/gate-weight.md"))
    chosen = parser.parse_args(arguments)
    loaders: dict[str, Callable[[], TokenDataset]] = {n: DATASETS[n] for n in chosen.datasets}
    if VARIABLE in os.environ:
        alleles = read_alleles(Path(os.environ[VARIABLE]))
        loaders |= {name: partial(alleles.__getitem__, name) for name in HELD_OUT}
    else:
        print(f"{VARIABLE} is not set: the alleles that are not in the package are left out.")
    jobs = chosen.out / "jobs.jsonl"
    done = run(jobs, loaders, SETTINGS, chosen.seeds, chosen.max_minutes)
    results = {"command": "make gate-weight", **summarise(list(read_jobs(jobs).values()))}
    replace(chosen.out / "results.json", json.dumps(results, indent=1) + "\n")
    replace(chosen.page, render(json.loads((chosen.out / "results.json").read_text())))
    if not done:
        print(f"Stopped after {chosen.max_minutes:g} minutes; run again to go on.")
    return 0 if done else 1


if __name__ == "__main__":
    raise SystemExit(main())
