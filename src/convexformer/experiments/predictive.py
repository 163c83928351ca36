"""How well do convex models predict, beside others with the same budget?

A job is one contestant on one part of one data set. The data are cut into five parts (classes in
equal shares; persons whole, where samples belong to persons). Seed s tests on part s, validates on
part s + 1 and trains on the other three: 60/20/20, and every sample is tested exactly once. Each
contestant fits its configurations on the training part; the one with the best validation score is
tested. Seconds are of processor time, on one thread.

Every finished job is a line in ``jobs.jsonl``; running again does only what is missing. From the
lines, ``results.json`` and the table in ``docs/predictive.md`` are made.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from threadpoolctl import threadpool_limits

from convexformer import TokenScaler, datasets
from convexformer.datasets import TokenDataset

from .contestants import CONTESTANTS, Contestant
from .records import Record, append, read_lines, replace, stamp
from .tables import render, summarise

DATASETS = {
    "hla": datasets.hla,
    "splice": datasets.splice,
    "satimage": datasets.satimage,
    "pendigits": datasets.pendigits,
    "motion": datasets.motion,
}
SEEDS = (0, 1, 2, 3, 4)
METRICS = {"hla": "AUC"}  # accuracy elsewhere

Rows = NDArray[np.intp]


@dataclass(frozen=True)
class Split:
    """Rows of the three parts."""

    train: Rows
    validation: Rows
    test: Rows


def split(data: TokenDataset, seed: int) -> Split:
    """60/20/20 of the samples; persons, where known, are on one side only.

    Examples
    --------
    >>> from convexformer.datasets import motion
    >>> from convexformer.experiments.predictive import split
    >>> windows = motion()
    >>> rows = split(windows, seed=0)
    >>> sorted(set(windows.groups[rows.test].tolist()))  # two of ten persons
    [5, 7]
    """
    parts = list(_five_parts(data))
    test, validation = parts[seed % 5], parts[(seed + 1) % 5]
    train = np.setdiff1d(np.arange(len(data.y)), np.concatenate([test, validation]))
    return Split(train, validation, test)


def _five_parts(data: TokenDataset) -> Iterator[Rows]:
    if data.groups is None:
        folds = StratifiedKFold(5, shuffle=True, random_state=0)
        yield from (rows for _, rows in folds.split(data.y, data.y))
    else:
        persons = np.random.default_rng(0).permutation(np.unique(data.groups))
        for some in np.array_split(persons, 5):
            yield np.flatnonzero(np.isin(data.groups, some))


def run_job(data: TokenDataset, contestant: Contestant, seed: int) -> Record:
    """Fit all configurations, choose by validation, test the chosen one."""
    rows = split(data, seed)
    X, metric = tokens_for(data, contestant, rows.train), METRICS.get(data.name, "accuracy")
    validation = X[rows.validation], data.y[rows.validation]
    extra = {"validation": validation} if contestant.watches else {}
    start, scores, seconds, gaps = time.process_time(), [], [], []
    best: Any = None
    for config in contestant.grid:
        model, fit_start = contestant.build(config, seed), time.process_time()
        model.fit(X[rows.train], data.y[rows.train], **extra)
        seconds.append(time.process_time() - fit_start)
        gaps += [model.certificate_.relative_gap] if contestant.convex else []
        scores.append(score(model, *validation, metric))
        if scores[-1] > max(scores[:-1], default=-np.inf):
            best = model
    chosen = int(np.argmax(scores))  # the first of the best
    return {
        "dataset": data.name,
        "seed": seed,
        "model": contestant.name,
        "fingerprint": contestant.fingerprint,
        "metric": metric,
        "score": score(best, X[rows.test], data.y[rows.test], metric),
        "config": contestant.grid[chosen],
        "validation_scores": [round(value, 6) for value in scores],
        "seconds": round(time.process_time() - start, 3),
        "fit_seconds": round(seconds[chosen], 3),
        "n_tokens": X.shape[1],
        "tokens_used": len(best.tokens_) if contestant.convex else None,
        "relative_gap": gaps[chosen] if gaps else None,
        "worst_gap": max(gaps, default=None),
    }


def tokens_for(data: TokenDataset, contestant: Contestant, train: Rows) -> NDArray[Any]:
    """The tokens a contestant sees: letters as they are, all else scaled on the training part."""
    X = data.X
    if contestant.tokens is not None:
        X = contestant.tokens().fit(X[train]).transform(X)
    letters = 0 if data.sequences is None else data.X.shape[1]
    if letters == X.shape[1]:
        return X
    scaler = TokenScaler(per="token-channel").fit(X[train, letters:])
    return np.concatenate([X[:, :letters], scaler.transform(X[:, letters:])], axis=1)


def score(model: Any, X: NDArray[Any], y: NDArray[Any], metric: str) -> float:
    """Accuracy, or area under the ROC curve of two classes."""
    if metric == "accuracy":
        return float(np.mean(model.predict(X) == y))
    if hasattr(model, "decision_function"):
        return float(roc_auc_score(y, model.decision_function(X)))
    return float(roc_auc_score(y, model.predict_proba(X)[:, 1]))


def read_jobs(file: Path) -> dict[tuple[str, int, str], Record]:
    """Finished jobs by (dataset, seed, model), the last line counting, other grids left out."""
    jobs = {}
    for record in read_lines(file):
        contestant = CONTESTANTS.get(record["model"])
        if contestant is not None and record["fingerprint"] == contestant.fingerprint:
            jobs[record["dataset"], record["seed"], record["model"]] = record
    return jobs


def run(
    file: Path,
    names: Iterable[str],
    models: Iterable[str],
    seeds: Iterable[int],
    max_minutes: float,
) -> bool:
    """Do what is missing in `file`; return whether all was done within the limit."""
    start, models, seeds = time.monotonic(), list(models), list(seeds)
    for name in names:
        data = DATASETS[name]()
        for model in models:
            for seed in seeds:
                if (name, seed, model) in read_jobs(file):
                    continue
                if time.monotonic() - start > 60 * max_minutes:
                    return False
                with threadpool_limits(1), warnings.catch_warnings():
                    # Fits that end early are what the budget allows; gaps are in the table.
                    warnings.simplefilter("ignore")
                    record = run_job(data, CONTESTANTS[model], seed)
                append(file, record | stamp())
                print(
                    f"{name:10s} seed {seed}  {model:14s} {record['score']:.4f}"
                    f"  {record['seconds']:7.1f} s",
                    flush=True,
                )
    return True


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison from the command line; exit with 1 if the time limit cut it short."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--datasets", nargs="+", choices=DATASETS, default=list(DATASETS))
    add("--models", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    add("--seeds", nargs="+", type=int, choices=SEEDS, default=list(SEEDS))
    add("--max-minutes", type=float, default=120, help="start no job after this (default 120)")
    add("--out", type=Path, default=Path("benchmarks/predictive"), help="jobs and results")
    add("--table", type=Path, default=Path("docs/predictive.md"))
    add("--fresh", action="store_true", help="forget finished jobs")
    chosen = parser.parse_args(arguments)
    jobs = chosen.out / "jobs.jsonl"
    if chosen.fresh:
        jobs.unlink(missing_ok=True)
    done = run(jobs, chosen.datasets, chosen.models, chosen.seeds, chosen.max_minutes)
    results = {
        "command": "make predictive",
        **summarise(list(read_jobs(jobs).values()), CONTESTANTS, list(DATASETS)),
    }
    replace(chosen.out / "results.json", json.dumps(results, indent=1) + "\n")
    replace(chosen.table, render(json.loads((chosen.out / "results.json").read_text())))
    if not done:
        print(f"Stopped after {chosen.max_minutes:g} minutes; run again to go on.")
    return 0 if done else 1


if __name__ == "__main__":
    raise SystemExit(main())
