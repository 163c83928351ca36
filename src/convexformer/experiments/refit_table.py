"""What does `refit` gain, and what does it cost? The table of ``docs/refit.md``.

A cell is one data set and one beta. Every seed has its own training and test samples: of a data set
of the package seed s tests on part s of five and trains on the other four (`predictive.split`);
samples of wide tokens are made anew. Three models are fitted to the same training samples: the
certified fit, its refit with a ridge chosen by cross-validation, and with nearly none.

``results.json`` has every score; the table in the page is made from it.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from convexformer import ConvexAttentionClassifier, ConvexAttentionRegressor
from convexformer.datasets import hla, satimage, splice

from .contestants import CONTESTANTS
from .predictive import METRICS, score, split, tokens_for
from .records import Record, environment_line, replace, stamp, table
from .tables import standard_error

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

TRAIN, TEST, TOKENS, CHANNELS = 1400, 2000, 14, 384  # of wide tokens
READ = {3: 1.0, 7: 0.7, 8: 0.5}  # tokens that their target depends on, and how strongly
READ_CHANNELS = 80  # of these tokens: those of the largest variance
CORRELATION, NOISE = 0.8, 0.6  # between tokens; standard deviation of noise over that of signal

START, END = "<!-- made by make refit-table -->\n", "<!-- end of what is made -->\n"

Samples = tuple[NDArray[Any], NDArray[Any]]


def wide_tokens(seed: int) -> tuple[Samples, Samples]:
    """Training and test samples of tokens with so many channels that a fit without shrinkage fails.

    Examples
    --------
    >>> from convexformer.experiments.refit_table import wide_tokens
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


def metric_of(name: str) -> str:
    """What a score on the data set is."""
    return "R²" if name == WIDE else METRICS.get(name, "accuracy")


def run_cell(name: str, beta: float, seeds: Iterable[int]) -> Record:
    """Fit the three models with every seed; lists are in the order of the seeds."""
    scores: dict[str, list[float]] = {model: [] for model in REFITS}
    seconds: dict[str, list[float]] = {model: [] for model in REFITS}
    tokens, ridges = [], []
    for seed in seeds:
        train, test = samples(name, seed)
        for kind, refit in REFITS.items():
            model: Any = (
                ConvexAttentionRegressor(beta, refit=refit)
                if name == WIDE
                else ConvexAttentionClassifier(beta, penalty="token", refit=refit)
            )
            start = time.process_time()
            model.fit(*train)
            seconds[kind].append(round(time.process_time() - start, 3))
            told = model.score(*test) if name == WIDE else score(model, *test, metric_of(name))
            scores[kind].append(round(float(told), 6))
            if refit is True:
                tokens.append(len(model.tokens_))
                ridges.append(float(model.ridge_.max()))
    return {
        "dataset": name,
        "metric": metric_of(name),
        "beta": beta,
        "seeds": list(seeds),
        "tokens": tokens,
        "ridges": ridges,
        "scores": scores,
        "seconds": seconds,
    }


# The page ---------------------------------------------------------------------------------------


def update(page: str, results: Record) -> str:
    """The page with everything between its two markers made anew."""
    before, rest = page.split(START)
    return before + START + render(results) + END + rest.split(END)[1]


def render(results: Record) -> str:
    """What was found, the table, and how it was measured."""
    cells = results["cells"]
    gains = [cell for cell in cells if _rises(cell, "chosen", "certified")]
    best = {cell["metric"]: cell for cell in sorted(gains, key=_gain)}  # the largest of a metric
    overfitted = [_name(cell) for cell in cells if _rises(cell, "certified", "least")]
    dearest = max(cells, key=lambda cell: _cost(cell, "chosen"))
    worst = min(cells, key=lambda cell: _difference(cell, "least", "chosen"))
    return FOUND.format(
        n=len(cells),
        better=len(gains),
        worse=sum(_rises(cell, "certified", "chosen") for cell in cells),
        gains="\n".join(f"- {_move(cell, 'certified', 'chosen')}" for cell in best.values()),
        least=NO_SHRINKAGE,
        overfitted=", ".join(overfitted) or "no row",
        least_behind=sum(_rises(cell, "chosen", "least") for cell in cells),
        loss=_move(worst, "chosen", "least"),
        cheapest=min(_cost(cell, "chosen") for cell in cells),
        dearest=_cost(dearest, "chosen"),
        dear=f"{_name(dearest)}, whose certified fit takes {_seconds(dearest):.2f} s",
        least_cheapest=min(_cost(cell, "least") for cell in cells),
        least_dearest=max(_cost(cell, "least") for cell in cells),
        table=_table(cells),
        n_seeds=len(cells[0]["seeds"]),
        train=TRAIN,
        test=TEST,
        tokens=TOKENS,
        channels=CHANNELS,
        correlation=CORRELATION,
        environment=environment_line(results["environment"]).removeprefix("- "),
        command=results["command"],
        date=results["date"],
    )


def _difference(cell: Record, kind: str, than: str) -> tuple[float, float]:
    """Mean over seeds of the paired differences, and its standard error."""
    differences = np.subtract(cell["scores"][kind], cell["scores"][than])
    return float(np.mean(differences)), standard_error(list(differences)) or 0.0


def _rises(cell: Record, kind: str, than: str) -> bool:
    """Whether `kind` is better by more than one standard error."""
    mean, error = _difference(cell, kind, than)
    return mean > error


def _gain(cell: Record) -> float:
    return _difference(cell, "chosen", "certified")[0]


def _move(cell: Record, start: str, end: str) -> str:
    scores = [f"{np.mean(cell['scores'][kind]):.3f}" for kind in (start, end)]
    where = f"{_name(cell)}, {_range(cell['tokens'])} tokens"
    return f"{where}: {cell['metric']} {scores[0]} → {scores[1]}"


def _name(cell: Record) -> str:
    return f"{cell['dataset']} at beta {cell['beta']:g}"


def _range(values: list[int]) -> str:
    return f"{min(values)}" if min(values) == max(values) else f"{min(values)}–{max(values)}"


def _cost(cell: Record, kind: str) -> float:
    """Seconds that the refit adds, over those of the certified fit: the median over seeds."""
    certified = np.array(cell["seconds"]["certified"])
    return float(np.median(np.array(cell["seconds"][kind]) / certified - 1))


def _seconds(cell: Record) -> float:
    """Of the certified fit, the median over seeds."""
    return float(np.median(cell["seconds"]["certified"]))


def _table(cells: list[Record]) -> str:
    header = ["data", "beta", "tokens", "certified fit", "`refit=True`", "its ridges"]
    header += [f"`refit={NO_SHRINKAGE:g}`", "fit, s", "`True` / fit", f"`{NO_SHRINKAGE:g}` / fit"]
    return table(header, [_row(cell) for cell in cells])


def _row(cell: Record) -> list[str]:
    best = max(np.mean(values) for values in cell["scores"].values())
    told = {}
    for kind, values in cell["scores"].items():
        number = f"{np.mean(values):.3f} ± {standard_error(values) or 0.0:.3f}"
        told[kind] = f"**{number}**" if np.mean(values) == best else number
    return [
        f"{cell['dataset']}, {cell['metric']}",
        f"{cell['beta']:g}",
        _range(cell["tokens"]),
        told["certified"],
        told["chosen"],
        ", ".join(f"{ridge:g}" for ridge in cell["ridges"]),
        told["least"],
        f"{_seconds(cell):.2f}",
        *(f"{_cost(cell, kind):.1f}" for kind in ("chosen", "least")),
    ]


FOUND = """
In {better} of the {n} rows below `refit=True` predicts better than the certified fit, by more than
one standard error of the paired difference; in {worse} it predicts worse. The largest gains are:

{gains}

Nearly no ridge (`refit={least:g}`) is worse than the certified fit on {overfitted},
and worse than `refit=True` in {least_behind} of {n} rows. The largest loss against `refit=True` is
on {loss}.

Choosing the ridge is slow: it adds {cheapest:.1f} to {dearest:.1f} times the seconds of the
certified fit, most on {dear}. A given ridge
({least:g}) adds {least_cheapest:.1f} to {least_dearest:.1f} times.

{table}

*Mean ± standard error over {n_seeds} seeds; bold: the best mean. Ridges: those chosen, by seed.
Seconds are of processor time, medians over the seeds; the last two columns are the seconds that
the refit adds, over those of the certified fit. Splice, HLA and satimage: seed s tests on part s of
five and trains on the others, with `penalty="token"`. Wide tokens: every seed makes {train:,}
samples of {tokens} tokens with {channels} channels, whose variance decays as 1/j, correlated
{correlation:g} between tokens; R² on {test:,} others.*

*Made by `{command}` from `benchmarks/refit/results.json`, run {date} UTC:
{environment}.*

"""


def main(arguments: list[str] | None = None) -> int:
    """Make the results and the table from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--datasets", nargs="+", choices=BETAS, default=list(BETAS))
    add("--seeds", nargs="+", type=int, default=list(SEEDS))
    add("--out", type=Path, default=Path("benchmarks/refit"), help="folder of results.json")
    add("--page", type=Path, default=Path("docs/refit.md"))
    chosen = parser.parse_args(arguments)
    cells = []
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("error")  # a fit cut short has no place in the table
        for name in chosen.datasets:
            for beta in BETAS[name]:
                cells.append(run_cell(name, beta, chosen.seeds))
                print(" | ".join(_row(cells[-1])), flush=True)
    results = {"command": "make refit-table", **stamp(), "cells": cells}
    replace(chosen.out / "results.json", json.dumps(results, indent=1) + "\n")
    replace(chosen.page, update(chosen.page.read_text(), results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
