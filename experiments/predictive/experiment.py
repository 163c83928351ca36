"""How well do convex models predict, beside others with the same budget?

A job is one contestant on one part of one data set. The data are cut into five parts (classes in
equal shares; persons whole, where samples belong to persons). Seed s tests on part s, validates on
part s + 1 and trains on the other three: 60/20/20, and every sample is tested exactly once. Each
contestant fits its configurations on the training part; the one with the best validation score is
tested. Seconds are of processor time, on one thread.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold

from convexformer import TokenScaler, datasets
from convexformer.datasets import TokenDataset

from ..lab import KeyedJob, Ledger, Record, averaged, grouped, listed
from .contestants import BUDGET, CONTESTANTS, MAX_SECONDS, TOL, Contestant

NAMES = ("hla", "splice", "satimage", "pendigits", "motion")
DATASETS: dict[str, Callable[[], TokenDataset]] = {name: getattr(datasets, name) for name in NAMES}
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
    >>> from experiments.predictive.experiment import split
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


@dataclass(frozen=True)
class Job(KeyedJob):
    """One contestant on one part of one data set."""

    dataset: str
    model: str
    seed: int
    warn = "ignore"  # fits that end early are what the budget allows, and gaps are told

    def rules(self) -> Record:
        return {"fingerprint": CONTESTANTS[self.model].fingerprint}

    def run(self) -> Record:
        """Fit and test."""
        return contest(DATASETS[self.dataset](), CONTESTANTS[self.model], self.seed)


@dataclass(frozen=True)
class Trial:
    """A contestant's fits, of all its configurations, and which of them validation chooses."""

    models: list[Any]
    chosen: int  # the first of the best
    test: tuple[NDArray[Any], NDArray[Any]]
    seconds: list[float]  # of every fit
    told: Record


def fit_all(data: TokenDataset, contestant: Contestant, seed: int) -> Trial:
    """Fit all configurations, choose by validation, test the chosen one."""
    rows = split(data, seed)
    X, metric = tokens_for(data, contestant, rows.train), METRICS.get(data.name, "accuracy")
    validation, test = ((X[part], data.y[part]) for part in (rows.validation, rows.test))
    extra = {"validation": validation} if contestant.watches else {}
    models, seconds = [], []
    for config in contestant.grid:
        model, start = contestant.build(config, seed), time.process_time()
        models.append(model.fit(X[rows.train], data.y[rows.train], **extra))
        seconds.append(time.process_time() - start)
    scores = [score(model, *validation, metric) for model in models]
    chosen = int(np.argmax(scores))
    told = {
        "metric": metric,
        "score": score(models[chosen], *test, metric),
        "config": contestant.grid[chosen],
        "validation_scores": [round(value, 6) for value in scores],
    }
    return Trial(models, chosen, test, seconds, told)


def contest(data: TokenDataset, contestant: Contestant, seed: int) -> Record:
    """What a contestant comes to, in which time, and what is proved of it."""
    start = time.process_time()
    trial = fit_all(data, contestant, seed)
    gaps = [model.certificate_.relative_gap for model in trial.models if contestant.convex]
    return trial.told | {
        "seconds": round(time.process_time() - start, 3),
        "fit_seconds": round(trial.seconds[trial.chosen], 3),
        "n_tokens": trial.test[0].shape[1],
        "tokens_used": len(trial.models[trial.chosen].tokens_) if contestant.convex else None,
        "relative_gap": gaps[trial.chosen] if gaps else None,
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


def run(ledger: Ledger) -> Record:
    """Do what is missing, data set by data set."""
    jobs = ledger.do_each(
        Job(dataset, model, seed) for dataset in DATASETS for model in CONTESTANTS for seed in SEEDS
    )
    return ledger.header() | summarise(jobs, CONTESTANTS, list(DATASETS))


def summarise(
    jobs: list[Record], contestants: Mapping[str, Contestant], datasets: list[str]
) -> Record:
    """Mean and standard error over seeds for each data set and model, and their differences."""
    groups = grouped(sorted(jobs, key=lambda job: job["seed"]), "dataset", "model")
    cells = {
        dataset: {
            name: _cell(groups[dataset, name]) for name in contestants if (dataset, name) in groups
        }
        for dataset in datasets
    }
    cells = {dataset: own for dataset, own in cells.items() if own}
    convex = [name for name, contestant in contestants.items() if contestant.convex]
    return {
        "protocol": {
            "budget": BUDGET,
            "tol": TOL,
            "max_seconds_per_convex_fit": MAX_SECONDS,
            "grids": {name: contestant.grid for name, contestant in contestants.items()},
            "labels": {name: contestant.label for name, contestant in contestants.items()},
            "convex": convex,
        },
        "datasets": cells,
        "comparisons": {dataset: compare(own, convex) for dataset, own in cells.items()},
    }


def _cell(records: list[Record]) -> Record:
    cell = listed(records, ("seed", "score", "config"), "s")
    cell |= listed(records, ("validation_scores",))
    cell |= {"metric": records[0]["metric"]} | averaged(cell["scores"])
    for name in ("seconds", "fit_seconds"):
        cell[name] = float(np.mean([record[name] for record in records]))
    if records[0]["relative_gap"] is not None:
        cell |= listed(records, ("relative_gap",), "s") | listed(records, ("tokens_used",))
        cell |= {"n_tokens": records[0]["n_tokens"]}
        cell |= {"worst_gap_of_any_fit": max(record["worst_gap"] for record in records)}
    return cell


def compare(cells: Mapping[str, Record], convex: list[str]) -> list[Record]:
    """Paired differences: between convex models, and of the best of them to the best peer."""
    present = [name for name in convex if name in cells]
    peers = [name for name in cells if name not in convex]
    pairs = [(name, present[0]) for name in present[1:]]
    if present and peers:
        one, other = (max(some, key=lambda name: cells[name]["mean"]) for some in (present, peers))
        pairs.append((one, other))
    return [
        {"model": one, "than": other} | averaged(paired(cells[one], cells[other]))
        for one, other in pairs
    ]


def paired(one: Record, other: Record) -> list[float]:
    """Differences of scores on the parts of the data that both were tested on."""
    theirs = dict(zip(other["seeds"], other["scores"], strict=True))
    ours = zip(one["seeds"], one["scores"], strict=True)
    return [score - theirs[seed] for seed, score in ours if seed in theirs]


# What the page says of convex models beside others ---------------------------------------------


def facts(results: Record) -> Record:
    """The names of the template."""
    labels, cells = results["protocol"]["labels"], results["datasets"]
    gaps = {
        f"{labels[model]} on {name}": max(cell["relative_gaps"])
        for name, own in cells.items()
        for model, cell in own.items()
        if "relative_gaps" in cell
    }
    return {
        "places": _beside_peers(results),
        "gaps": gaps,
        "worst": max(gaps, key=lambda name: gaps[name]),
        "proved": sum(gap <= results["protocol"]["tol"] for gap in gaps.values()),
        "level": _level,
        "mean": np.mean,
        "kinds": kind_scores(results),
    }


def _beside_peers(results: Record) -> dict[str, Record]:
    """Where the best convex model stands beside the best other one, in standard errors."""
    convex = results["protocol"]["convex"]
    places: dict[str, Record] = {"ahead of": {}, "level with": {}, "behind": {}}
    for name, pairs in results["comparisons"].items():
        for pair in (p for p in pairs if p["than"] not in convex):
            error = pair["standard_error"] or 0.0
            side = "ahead of" if pair["mean"] > error else "behind"
            place = "level with" if abs(pair["mean"]) <= error else side
            places[place][name] = pair
    return places


def _level(cell: Record, cells: dict[str, Record]) -> bool:
    """Whether a mean is within one standard error of the best."""
    best = max(cells.values(), key=lambda cell: cell["mean"])
    return bool(cell["mean"] >= best["mean"] - (best["standard_error"] or 0))


def kind_scores(results: Record) -> dict[str, dict[str, float]]:
    """Validation score of every kind of gates on every data set."""
    configs = results["protocol"]["grids"]["kinds"]
    scores: dict[str, dict[str, float]] = {}
    for dataset, cells in results["datasets"].items():
        by_seed = np.array(cells["kinds"]["validation_scores"])  # (seeds, configurations)
        for kind in dict.fromkeys(config["gates"] for config in configs):
            own = [j for j, config in enumerate(configs) if config["gates"] == kind]
            best = float(by_seed[:, own].max(axis=1).mean())
            scores.setdefault(kind, {})[dataset] = best
    return scores
