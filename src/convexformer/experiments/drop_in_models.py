"""Networks of equal size for the drop-in experiment, trained by one loop."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..nn import GatedTransformer, GatedTransformerConfig, ProximalAdam
from .contestants import Config, Contestant, grid
from .transformer import TransformerClassifier

REFERENCE = {"layers": 1, "width": 40}  # the transformer; no model has more parameters


class GatedClassifier(TransformerClassifier):
    """One gated layer between an embedding and a readout, with as many gates as the limit allows.

    Parameters
    ----------
    dim : int
        Width of the embedding, and of what the layer gives the readout.
    beta : float, optional
        Strength of a group lasso on the layer, in place of `weight_decay` there.
    **training
        As in :class:`TransformerClassifier`.
    """

    network_: GatedTransformer

    def __init__(self, dim: int = 8, beta: float | None = None, **training: Any) -> None:
        super().__init__(**training)
        self.dim, self.beta = dim, beta

    def _build(self, shape: tuple[int, ...], n_classes: int) -> nn.Module:
        n, d = shape

        def make(n_gates: int) -> nn.Module:
            return GatedTransformer(
                GatedTransformerConfig(
                    n_tokens=n,
                    n_outputs=n_classes,
                    n_features=d,
                    dim=self.dim,
                    n_gates=n_gates,
                    always_open=True,
                )
            )

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


def _standard(config: Config, seed: int) -> TransformerClassifier:
    return TransformerClassifier(**REFERENCE, **config, random_state=seed)


def _gated(config: Config, seed: int) -> GatedClassifier:
    return GatedClassifier(**config, random_state=seed)


def _perceptron(config: Config, seed: int) -> PerceptronClassifier:
    return PerceptronClassifier(**config, random_state=seed)


TRAINING = {"learning_rate": (0.001, 0.003, 0.01), "weight_decay": (0.01, 1.0)}
SPARSE = {"learning_rate": (0.001, 0.003, 0.01), "beta": (0.003, 0.01)}

MODELS = {
    model.name: model
    for model in (
        Contestant("gated", "gated layer", grid(**TRAINING), _gated, watches=True),
        Contestant("sparse", "gated layer, group lasso", grid(**SPARSE), _gated, watches=True),
        Contestant("standard", "transformer", grid(**TRAINING), _standard, watches=True),
        Contestant("perceptron", "MLP", grid(**TRAINING), _perceptron, watches=True),
    )
}
