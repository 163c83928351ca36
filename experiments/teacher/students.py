r"""Students that are trained by gradient steps: none of them knows when it is done.

All minimise, in units of the error of predicting the mean,

.. math:: \frac{\sum (F - Y)^2}{\sum Y^2} + \lambda\,\mathrm{decay}

by AdamW (:class:`~experiments.training.Trainer`) with the same batches, averaging and budget. In
the convex problems' units, :math:`\lambda = \beta / \sum Y^2`.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from convexformer import nn as layers

from ..lab import Record, columns, picked
from ..layers import ConvexLayer
from ..training import Point, Trainer
from .data import WATCHED, Lesson, Part

SMALL = 0.3  # of the usual start, for queries and keys
SMOOTH: Any = {"warmup": 20, "clip": 1.0, "average": 0.98}  # of every training
IMPROVES = 1e-3  # a validation loss this much lower, relatively, is progress
HIDDEN = 256  # units of the perceptron, or as many as there are inputs


@dataclass(frozen=True)
class Student:
    """A network and where it starts.

    `decayed` says which weights of softmax attention decay: "all", "values" (all but queries and
    keys) or "none".
    """

    label: str
    kind: str
    heads: int = 1
    head_dim: int | None = None
    scaled: bool = True
    small: bool = True
    decayed: str = "all"
    lrs: tuple[float, ...] = (3e-3, 1e-2)
    decays: tuple[float, ...] = (1e-6, 1e-5, 1e-4)

    @property
    def grid(self) -> list[tuple[float, float]]:
        """Learning rates and decays to choose from."""
        decays = self.decays[:1] if self.decayed == "none" else self.decays
        return [(lr, decay) for lr in self.lrs for decay in decays]


def make(student: Student, part: Part) -> nn.Module:
    """The network of a student for data of this shape, with weights drawn anew."""
    (_, n, d), (_, m, c) = part.X.shape, part.Y.shape
    if student.kind == "softmax":
        options = picked(vars(student), ("head_dim", "scaled"))
        options["readout"] = "first" if m == 1 else "sequence"
        model = layers.SoftmaxAttention(d, c, student.heads, **options)
        if student.small:
            with torch.no_grad():
                model.query.mul_(SMALL)
                model.key.mul_(SMALL)
        return model
    if student.kind == "simplex":
        kind: Any = layers.SimplexAttention if m == 1 else layers.SequenceAttention
        return kind(n, d, c, student.heads, intercept=True)
    if student.kind == "convex":
        return ConvexLayer(n, d, m * c, intercept=True)
    if student.kind == "perceptron":
        hidden = max(d, HIDDEN)
        return nn.Sequential(nn.Linear(d, hidden), nn.ReLU(), nn.Linear(hidden, c))
    raise ValueError(student.kind)


def penalty(student: Student, model: Any) -> Tensor:
    """What decays, as a sum of squares; of a perceptron both matrices."""
    if student.decayed == "none":
        return torch.zeros(())
    if student.decayed == "values":
        return model.value.square().sum() + model.output.square().sum()
    if student.kind == "perceptron":
        return model[0].weight.square().sum() + model[2].weight.square().sum()
    return model.decay()


def predict(model: nn.Module, X: Tensor, m: int) -> Tensor:
    """Scores ``(N, m, c)``, also of a network that knows no positions and has them flat."""
    F: Tensor = model(X)
    return F[:, :m] if F.ndim == 3 else F.unflatten(1, (m, -1))


# Training ---------------------------------------------------------------------------------------


def train(
    student: Student,
    lesson: Lesson,
    lr: float,
    decay: float,
    seed: int,
    steps: int,
    patience: int,
    batch: int,
) -> Record:
    """Train until the validation loss has not improved for `patience` measurements.

    Returns
    -------
    dict
        `losses` are of the weights with the lowest validation loss, on all texts of every part, and
        `objective` is of these weights on all training texts. `curve` is on some texts of every
        part, its objective on training texts. `seconds` are of processor time, those `to_converge`
        until the validation loss was first within 1 % of its lowest.
    """
    parts = {name: getattr(lesson, name) for name in ("train", "validation", "test")}
    tensors = {name: (torch.tensor(part.X), torch.tensor(part.Y)) for name, part in parts.items()}
    torch.manual_seed(seed)
    model = make(student, lesson.train)
    best: dict[str, Any] = {"loss": math.inf}  # weights with the lowest validation loss so far

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        error = (predict(model, x, y.shape[1]) - y).square().mean() / lesson.train.variance
        return error + decay * penalty(student, model)

    def measure(model: nn.Module, most: int | None = WATCHED) -> Point:
        point = {
            name: _error(model, X[:most], Y[:most]) / parts[name].variance
            for name, (X, Y) in tensors.items()
        }
        if most is not None and point["validation"] < best["loss"]:
            best.update(loss=point["validation"], state=copy.deepcopy(model.state_dict()))
        return point | {"objective": point["train"] + decay * penalty(student, model).item()}

    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.0)
    plan = SMOOTH | {"seed": seed, "measure": measure}
    trainer = Trainer(model, optimizer, loss, tensors["train"], steps, batch, **plan)
    curve = trainer.run(stop=lambda curve: stalled(curve, patience))
    trainer.averaged.load_state_dict(best["state"])
    with torch.no_grad():
        final = measure(trainer.averaged, None)
    objective = final.pop("objective")
    return {
        "curve": columns(curve, curve[0], digits=5),
        "losses": final,
        "objective": objective,
        "seconds": round(trainer.seconds, 3),
        "seconds_to_converge": round(converged(curve), 3),
        "parameters": sum(weights.numel() for weights in model.parameters()),
    }


def _error(model: nn.Module, X: Tensor, Y: Tensor) -> float:
    """Mean squared error, in pieces that fit."""
    m, pieces = Y.shape[1], zip(X.split(256), Y.split(256), strict=True)
    return sum((predict(model, x, m) - y).square().sum().item() for x, y in pieces) / Y.numel()


def stalled(curve: list[Point], patience: int) -> bool:
    """Whether the last `patience` measurements have not lowered the validation loss by much."""
    losses = [point["validation"] for point in curve]
    if len(losses) <= patience:
        return False
    return min(losses[-patience:]) > (1 - IMPROVES) * min(losses[:-patience])


def converged(curve: list[Point], within: float = 0.01) -> float:
    """Seconds until the validation loss was first this close to its lowest, relatively."""
    lowest = min(point["validation"] for point in curve)
    return next(p["seconds"] for p in curve if p["validation"] <= (1 + within) * lowest)
