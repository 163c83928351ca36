"""A training loop: minibatches, warm-up, clipping, averaged weights, and a curve of measurements.

The order of the data is a function of the seed and the step alone.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Point = dict[str, float]  # step, seconds, mean loss since the last point, and what was asked for


@dataclass(frozen=True)
class Plan:
    """How to train.

    Parameters
    ----------
    steps : int
        Updates of the weights.
    batch_size : int, optional
        Samples in a step; all of them if omitted. What is left of an epoch after its last full
        batch is skipped: every epoch is shuffled anew.
    warmup : int
        Steps over which the learning rate rises linearly to its value.
    clip : float, optional
        Largest norm of the gradient; longer ones are scaled down to it.
    average : float, optional
        Decay of an exponential moving average of the weights; measurements are of the average.
    measure_every : int
        Steps between two measurements.
    seed : int
        Of the order of the data. Weights are drawn by whoever makes the model.
    """

    steps: int
    batch_size: int | None = None
    warmup: int = 0
    clip: float | None = None
    average: float | None = None
    measure_every: int = 25
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "clip", "measure_every"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value}.")
        if self.average is not None and not 0 <= self.average < 1:
            raise ValueError(f"average must be in [0, 1), got {self.average}.")


@dataclass(eq=False)
class Trainer:
    r"""Train a model by minibatches, with measurements.

    A step draws a batch, takes the gradient :math:`g` of its loss, clips it to
    :math:`g \min(1, \mathrm{clip} / \|g\|)`, lets the optimiser step at the learning rate
    :math:`\eta \min(1, (t + 1) / \mathrm{warmup})`, and averages the weights,
    :math:`\bar w \leftarrow \mathrm{average}\,\bar w + (1 - \mathrm{average})\,w`.

    Parameters
    ----------
    model : nn.Module
    optimizer : Optimizer
        Over the parameters of `model`; its learning rates are those after warm-up.
    loss : callable
        ``loss(model, *batch)``, a scalar.
    data : sequence of Tensor
        Samples along the first axis of each; a batch is a tuple of their rows.
    plan : Plan
    measure : callable, optional
        ``measure(model)`` gives what else to record; called without gradients, in evaluation mode.

    Attributes
    ----------
    step : int
        Steps done.
    seconds : float
        Processor time of these steps, measurements left out.
    curve : list of dict
        Measurements: `step`, `seconds`, the mean `loss` since the last one, and those of `measure`.
    averaged : nn.Module
        The model with averaged weights; `model` itself if there is no averaging.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from convexformer.nn import Plan, Trainer
    >>> _ = torch.manual_seed(0)
    >>> X = torch.randn(100, 3)
    >>> model = nn.Linear(3, 1)
    >>> loss = lambda model, x, y: nn.functional.mse_loss(model(x), y)
    >>> optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    >>> trainer = Trainer(model, optimizer, loss, (X, X[:, :1]), Plan(steps=100, batch_size=20))
    >>> curve = trainer.run()
    >>> [point["step"] for point in curve], curve[-1]["loss"] < 0.01
    ([0, 25, 50, 75, 100], True)
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[..., Tensor]
    data: Sequence[Tensor]
    plan: Plan
    measure: Callable[[nn.Module], Point] | None = None

    def __post_init__(self) -> None:
        sizes = [len(part) for part in self.data]
        if len(set(sizes)) != 1:
            raise ValueError(f"data must be tensors with as many samples each, got {sizes}.")
        self.averaged = self.model if self.plan.average is None else copy.deepcopy(self.model)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.step, self.seconds, self.curve = 0, 0.0, list[Point]()
        self._losses, self._order = list[float](), (-1, torch.empty(0))

    def run(self, *, stop: Callable[[list[Point]], bool] = lambda curve: False) -> list[Point]:
        """Train, or go on training, to the end of the plan.

        Parameters
        ----------
        stop : callable, optional
            ``stop(curve)`` after every measurement; True ends the training early.

        Returns
        -------
        list of dict
            The curve.
        """
        if not self.curve:
            self._record()
        ended = stop(self.curve)
        while self.step < self.plan.steps and not ended:
            self._step()
            if self.step % self.plan.measure_every == 0:
                self._record()
                ended = stop(self.curve)
        return self.curve

    def _step(self) -> None:
        start = time.process_time()
        batch = self._batch()
        self.optimizer.zero_grad()
        value = self.loss(self.model, *batch)
        value.backward()
        if self.plan.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.plan.clip)
        rise = min(1.0, (self.step + 1) / max(1, self.plan.warmup))
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * rise
        self.optimizer.step()
        if self.plan.average is not None:
            self._average(1 - self.plan.average)
        self.step += 1
        self._losses.append(value.item())
        self.seconds += time.process_time() - start

    def _batch(self) -> tuple[Tensor, ...]:
        """The batch of the present step, a function of the seed and the step alone."""
        count, size = len(self.data[0]), self.plan.batch_size
        if size is None or size >= count:
            return tuple(self.data)
        epoch, place = divmod(self.step, count // size)
        if self._order[0] != epoch:
            generator = torch.Generator().manual_seed(1_000_003 * self.plan.seed + epoch)
            self._order = epoch, torch.randperm(count, generator=generator)
        rows = self._order[1][place * size : (place + 1) * size].to(self.data[0].device)
        return tuple(part[rows] for part in self.data)

    @torch.no_grad()
    def _average(self, weight: float) -> None:
        for mean, now in zip(self.averaged.parameters(), self.model.parameters(), strict=True):
            mean.lerp_(now, weight)
        for copied, buffer in zip(self.averaged.buffers(), self.model.buffers(), strict=True):
            copied.copy_(buffer)

    def _record(self) -> None:
        """Add a point to the curve."""
        point: Point = {"step": self.step, "seconds": round(self.seconds, 4)}
        if self._losses:
            point["loss"] = math.fsum(self._losses) / len(self._losses)
            if not math.isfinite(point["loss"]):
                raise FloatingPointError(
                    f"the loss is {point['loss']} after {self.step} steps: training diverged. "
                    "Lower the learning rate, or clip the gradient."
                )
            self._losses.clear()
        if self.measure is not None:
            modes = {part: part.training for part in self.averaged.modules()}
            self.averaged.eval()
            with torch.no_grad():
                told = self.measure(self.averaged)
            point |= {name: float(value) for name, value in told.items()}
            for part, training in modes.items():
                part.training = training
        self.curve.append(point)
