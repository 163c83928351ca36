"""The gated layer as a drop-in: against a standard transformer of the same size, on real sequences.

A job is one model on one part of one data set, cut into parts as :mod:`.predictive` does: 60 % to
train, 20 % to stop early and to choose among the model's configurations, 20 % to test. All models
have as many parameters as fit within one limit, the same number of configurations to try, and the
same training loop. Seconds are of processor time, on one thread.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from convexformer.datasets import TokenDataset
from convexformer.nn import GatedTransformer, GatedTransformerConfig, ProximalAdam

from ..lab import KeyedJob, Ledger, Record, averaged, grouped, listed, picked
from ..predictive.contestants import Config, Contestant, TransformerClassifier, grid
from ..predictive.experiment import DATASETS, fit_all, paired, score

REFERENCE = {"layers": 1, "width": 40}  # the transformer; no model has more parameters


@dataclass
class GatedClassifier(TransformerClassifier):
    """One gated layer between an embedding and a readout, with as many gates as the limit allows.

    Parameters
    ----------
    dim : int
        Width of the embedding, and of what the layer gives the readout.
    beta : float, optional
        Strength of a group lasso on the layer, in place of `weight_decay` there.
    """

    dim: int = 8
    beta: float | None = None

    def _build(self, shape: tuple[int, ...], n_classes: int) -> nn.Module:
        n, d = shape

        def make(n_gates: int) -> nn.Module:
            config = GatedTransformerConfig(
                n, n_classes, n_features=d, dim=self.dim, n_gates=n_gates, always_open=True
            )
            return GatedTransformer(config)

        return largest(make, limit(shape, n_classes))

    def _optimiser(self) -> torch.optim.Optimizer:
        if self.beta is None:
            return super()._optimiser()
        groups = self.network_.parameter_groups(beta=self.beta, weight_decay=0.0)
        return ProximalAdam(groups, self.learning_rate, weight_decay=self.weight_decay)

    @property
    def zero_share_(self) -> float:
        """Share of the layer's groups that are exactly zero."""
        norms = self.network_.gated_layers[0].group_norms()
        return float((norms == 0).double().mean())


class PerceptronClassifier(TransformerClassifier):
    """A ReLU network on the flattened tokens with one hidden layer, the control."""

    def _build(self, shape: tuple[int, ...], n_classes: int) -> nn.Module:
        inputs = shape[0] * shape[1]

        def make(width: int) -> nn.Module:
            return nn.Sequential(
                nn.Flatten(),
                nn.Linear(inputs, width),
                nn.ReLU(),
                nn.Dropout(self.dropout),
                nn.Linear(width, n_classes),
            )

        return largest(make, limit(shape, n_classes))


def count(network: nn.Module) -> int:
    """Number of parameters."""
    return sum(p.numel() for p in network.parameters())


def limit(shape: tuple[int, ...], n_classes: int) -> int:
    """Parameters of the reference transformer on data of this shape."""
    with torch.device("meta"):
        return count(TransformerClassifier(**REFERENCE)._build(shape, n_classes))


def largest(make: Callable[[int], nn.Module], most: int) -> nn.Module:
    """The largest of the networks ``make(1), make(2), ...`` with at most so many parameters."""
    with torch.device("meta"):  # shapes without numbers
        size = bisect_right(range(1, most), most, key=lambda size: count(make(size)))
    return make(size)


def _builder(kind: type[TransformerClassifier], **fixed: Any) -> Callable[[Config, int], Any]:
    return lambda config, seed: kind(**fixed, **config, random_state=seed)


TRAINING = {"learning_rate": (0.001, 0.003, 0.01), "weight_decay": (0.01, 1.0)}
SPARSE = {"learning_rate": (0.001, 0.003, 0.01), "beta": (0.003, 0.01)}

KINDS = {
    "gated": ("gated layer", TRAINING, _builder(GatedClassifier)),
    "sparse": ("gated layer, group lasso", SPARSE, _builder(GatedClassifier)),
    "standard": ("transformer", TRAINING, _builder(TransformerClassifier, **REFERENCE)),
    "perceptron": ("MLP", TRAINING, _builder(PerceptronClassifier)),
}
MODELS = {
    name: Contestant(label, grid(**choices), build, watches=True)
    for name, (label, choices, build) in KINDS.items()
}


# Jobs ---------------------------------------------------------------------------------------------

NAMES = ("hla", "motion", "splice")
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Job(KeyedJob):
    """One model on one part of one data set."""

    dataset: str
    model: str
    seed: int

    def rules(self) -> Record:
        return {"fingerprint": MODELS[self.model].fingerprint, "reference": REFERENCE}

    def run(self) -> Record:
        """Train and test."""
        return contest(DATASETS[self.dataset](), MODELS[self.model], self.seed)


def contest(data: TokenDataset, model: Contestant, seed: int) -> Record:
    """What a model comes to, at which size and in which time."""
    trial = fit_all(data, model, seed)
    best = trial.models[trial.chosen]
    return trial.told | {
        "accuracy": score(best, *trial.test, "accuracy"),
        "parameters": count(best.network_),
        "steps": best.steps_,
        "seconds": round(best.seconds_, 3),
        "seconds_of_all": round(sum(fit.total_seconds_ for fit in trial.models), 3),
        "zero_share": round(getattr(best, "zero_share_", 0.0), 4),
    }


def run(ledger: Ledger) -> Record:
    """Do what is missing, data set by data set."""
    jobs = ledger.do_each(
        Job(dataset, model, seed) for dataset in NAMES for seed in SEEDS for model in MODELS
    )
    return ledger.header() | summarise(jobs)


def summarise(jobs: list[Record]) -> Record:
    """For each data set and model: scores by part, their mean and error, sizes and costs."""
    cells: dict[str, Record] = {}
    for (dataset, model), mine in grouped(jobs, "dataset", "model").items():
        cells.setdefault(dataset, {})[model] = _cell(mine)
    return {
        "seconds": round(sum(job["seconds_of_all"] for job in jobs), 1),
        "reference": REFERENCE,
        "models": {
            name: {"label": model.label, "grid": model.grid} for name, model in MODELS.items()
        },
        "datasets": cells,
    }


def _cell(jobs: list[Record]) -> Record:
    names = ("seed", "score", "accuracy", "config", "steps", "seconds", "seconds_of_all")
    cell = listed(jobs, names, "s")
    return (
        cell
        | averaged(cell["scores"])
        | picked(jobs[0], ("metric", "parameters"))
        | {"mean_accuracy": float(np.mean(cell["accuracys"]))}
        | {f"median_{name}": float(np.median(cell[f"{name}s"])) for name in ("steps", "seconds")}
        | {"mean_zero_share": float(np.mean([job["zero_share"] for job in jobs]))}
    )


def verdict(a: Record, b: Record) -> str:
    """Whether the first is ahead, by its paired differences on the parts both have."""
    differences = paired(a, b)
    for word, sign in (("ahead", 1), ("behind", -1)):
        if all(sign * difference > 0 for difference in differences):
            return f"{word} on all {len(differences)} parts"
    ahead = sum(difference > 0 for difference in differences)
    return f"ahead on {ahead} of {len(differences)} parts"
