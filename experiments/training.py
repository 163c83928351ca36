"""A training loop: minibatches, warm-up, clipping, averaged weights, and a curve of measurements.

The order of the data is a function of the seed and the step alone.
"""

import copy
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Point = dict[str, float]  # step, seconds, mean loss since the last point, and what was asked for


@dataclass(eq=False)
class Trainer:
    r"""Train a model by minibatches, with measurements.

    A step draws a batch, takes the gradient :math:`g` of its loss, clips it to
    :math:`g \min(1, \mathrm{clip} / \|g\|)`, lets the optimiser step at the learning rate
    :math:`\eta \min(1, (t + 1) / \mathrm{warmup})`, and averages the weights,
    :math:`\bar w \leftarrow \mathrm{average}\,\bar w + (1 - \mathrm{average})\,w`.

    What is left of an epoch after its last full batch is skipped: every epoch is shuffled anew.

    Parameters
    ----------
    model : nn.Module
        Its weights are drawn by whoever makes it.
    optimizer : Optimizer
        Over the parameters of `model`; its learning rates are those after warm-up.
    loss : callable
        ``loss(model, *batch)``, a scalar.
    data : sequence of Tensor
        Samples along the first axis of each; a batch is a tuple of their rows.
    steps : int
        Updates of the weights.
    batch_size : int, optional
        Samples in a step; all of them if omitted.
    warmup : int
        Steps over which the learning rate rises linearly to its value.
    clip : float, optional
        Largest norm of the gradient; longer ones are scaled down to it.
    average : float, optional
        Decay of an exponential moving average of the weights; measurements are of the average.
    every : int
        Steps between two measurements.
    seed : int
        Of the order of the data.
    measure : callable, optional
        ``measure(model)`` gives what else to record; called without gradients.

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
    >>> from experiments.training import Trainer
    >>> _ = torch.manual_seed(0)
    >>> X = torch.randn(100, 3)
    >>> model = nn.Linear(3, 1)
    >>> loss = lambda model, x, y: nn.functional.mse_loss(model(x), y)
    >>> optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    >>> curve = Trainer(model, optimizer, loss, (X, X[:, :1]), steps=100, batch_size=20).run()
    >>> [point["step"] for point in curve], curve[-1]["loss"] < 0.01
    ([0, 25, 50, 75, 100], True)
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[..., Tensor]
    data: Sequence[Tensor]
    steps: int
    batch_size: int | None = None
    warmup: int = 0
    clip: float | None = None
    average: float | None = None
    every: int = 25
    seed: int = 0
    measure: Callable[[nn.Module], Point] = lambda model: {}

    def __post_init__(self) -> None:
        self.averaged = self.model if self.average is None else copy.deepcopy(self.model)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.step, self.seconds, self.curve = 0, 0.0, list[Point]()
        self._losses, self._order = list[float](), (-1, torch.empty(0))

    def run(self, *, stop: Callable[[list[Point]], bool] = lambda curve: False) -> list[Point]:
        """Train, or go on training, for all steps, or until ``stop(curve)`` after a measurement."""
        if not self.curve:
            self._record()
        ended = stop(self.curve)
        while self.step < self.steps and not ended:
            self._step()
            if self.step % self.every == 0:
                self._record()
                ended = stop(self.curve)
        return self.curve

    def _step(self) -> None:
        start, weights = time.process_time(), list(self.model.parameters())
        self.optimizer.zero_grad()
        value = self.loss(self.model, *self._batch())
        value.backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(weights, self.clip)
        rise = min(1.0, (self.step + 1) / max(1, self.warmup))
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * rise
        self.optimizer.step()
        if self.average is not None:
            with torch.no_grad():
                for mean, now in zip(self.averaged.parameters(), weights, strict=True):
                    mean.lerp_(now, 1 - self.average)
        self.step += 1
        self._losses.append(value.item())
        self.seconds += time.process_time() - start

    def _batch(self) -> tuple[Tensor, ...]:
        """The batch of the present step, a function of the seed and the step alone."""
        count, size = len(self.data[0]), self.batch_size
        if size is None or size >= count:
            return tuple(self.data)
        epoch, place = divmod(self.step, count // size)
        if self._order[0] != epoch:
            generator = torch.Generator().manual_seed(1_000_003 * self.seed + epoch)
            self._order = epoch, torch.randperm(count, generator=generator)
        rows = self._order[1][place * size : (place + 1) * size]
        return tuple(part[rows] for part in self.data)

    @torch.no_grad()
    def _record(self) -> None:
        """Add a point to the curve."""
        point: Point = {"step": self.step, "seconds": round(self.seconds, 4)}
        if self._losses:
            point["loss"] = math.fsum(self._losses) / len(self._losses)
            if not math.isfinite(point["loss"]):
                raise FloatingPointError(f"training diverged within {self.step} steps.")
            self._losses.clear()
        told = self.measure(self.averaged)
        self.curve.append(point | {name: float(value) for name, value in told.items()})


def stop_early(
    model: nn.Module, epochs: Iterable[int], loss: Callable[[], Tensor], patience: int
) -> tuple[int, float]:
    """Train until `loss` on other samples has not improved for so many epochs; keep the best.

    `epochs` trains as it is gone through. What it gave in the best epoch is returned, and the
    processor time until then.
    """
    start, losses = time.process_time(), list[float]()
    for steps in epochs:
        model.eval()
        with torch.no_grad():
            losses.append(loss().item())
        since = len(losses) - 1 - losses.index(min(losses))
        if since == 0:
            best, told = copy.deepcopy(model.state_dict()), (steps, time.process_time() - start)
        if since >= patience:
            break
    model.load_state_dict(best)
    return told
