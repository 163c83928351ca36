"""A training loop that may be killed at any moment and goes on, bit for bit, where it was.

Everything that a step depends on is either in the checkpoint (weights, averaged weights, optimiser,
random number generators, step) or a function of the step (learning rate, order of the data). A
checkpoint replaces the one before it whole or not at all. Measurements are lines of JSON; those
written after the last checkpoint are cut off on resuming, and come again.
"""

from __future__ import annotations

import copy
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._files import write_whole
from ._checkpoints import (
    plain,
    random_state,
    read_checkpoint,
    set_random_state,
    write_checkpoint,
)

Point = dict[str, float]  # step, seconds, mean loss since the last point, and what was asked for
Report = Callable[[int, int, Point], None]
Write = Callable[[Point], None]

CHECKPOINT, METRICS = "checkpoint.pt", "metrics.jsonl"


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
    measure_every, save_every : int
        Steps between two measurements, and between two checkpoints.
    seed : int
        Of the order of the data. Weights are drawn by whoever makes the model.
    """

    steps: int
    batch_size: int | None = None
    warmup: int = 0
    clip: float | None = None
    average: float | None = None
    measure_every: int = 25
    save_every: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "clip", "measure_every", "save_every"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value}.")
        if self.warmup < 0:
            raise ValueError(f"warmup must not be negative, got {self.warmup}.")
        if self.average is not None and not 0 <= self.average < 1:
            raise ValueError(f"average must be in [0, 1), got {self.average}.")


class Trainer:
    r"""Train a model by minibatches, with measurements and checkpoints.

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
    folder : path-like, optional
        For ``checkpoint.pt`` and ``metrics.jsonl``. If it holds a checkpoint of the same plan,
        training goes on from there. Nothing is written if omitted.
    tensorboard : bool
        Whether to write measurements to `folder` for TensorBoard, too.

    Attributes
    ----------
    step : int
        Steps done.
    curve : list of dict
        Measurements; ``seconds`` are of processor time, of the steps alone.
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

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Callable[..., Tensor],
        data: Sequence[Tensor],
        plan: Plan,
        *,
        measure: Callable[[nn.Module], Point] | None = None,
        folder: str | os.PathLike[str] | None = None,
        tensorboard: bool = False,
    ) -> None:
        if len({len(part) for part in data}) != 1:
            raise ValueError(
                "data must be tensors with as many samples each, got "
                f"{[len(part) for part in data]} samples."
            )
        if tensorboard and folder is None:
            raise ValueError("TensorBoard reads files; say in which folder to write them.")
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.data, self.plan, self.measure = tuple(data), plan, measure
        self.folder = None if folder is None else Path(folder)
        self.tensorboard = tensorboard
        self.averaged = model if plan.average is None else copy.deepcopy(model)
        self.rates = [group["lr"] for group in optimizer.param_groups]
        self.step, self.seconds, self.curve = 0, 0.0, list[Point]()
        self._losses, self._order = list[float](), (-1, torch.empty(0))

    def run(
        self,
        *,
        stop: Callable[[list[Point]], bool] = lambda curve: False,
        report: Report | None = None,
    ) -> list[Point]:
        """Train, or go on training, to the end of the plan.

        Parameters
        ----------
        stop : callable, optional
            ``stop(curve)`` after every measurement; True ends the training early.
        report : callable, optional
            Called as ``report(step, steps, point)`` after every measurement.

        Returns
        -------
        list of dict
            The curve, including what was measured before an interruption.
        """
        self._resume()
        with self._writers() as writers:
            if not self.curve:
                self._record(writers)
            ended = stop(self.curve)
            while self.step < self.plan.steps and not ended:
                self._step()
                if self.step % self.plan.measure_every == 0:
                    self._record(writers)
                    if report is not None:
                        report(self.step, self.plan.steps, self.curve[-1])
                    ended = stop(self.curve)
                if self.step % self.plan.save_every == 0:
                    self._save()
        self._save()
        return self.curve

    # One step -----------------------------------------------------------------------------------

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
            return self.data
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

    # Measurements -------------------------------------------------------------------------------

    def _record(self, writers: list[Write]) -> None:
        """Add a point to the curve, to the file and to TensorBoard."""
        point: Point = {"step": self.step, "seconds": round(self.seconds, 4)}
        if self._losses:
            point["loss"] = math.fsum(self._losses) / len(self._losses)
            if not math.isfinite(point["loss"]):
                raise self._diverged(f"the loss is {point['loss']}")
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
        for write in writers:
            write(point)

    def _diverged(self, how: str) -> FloatingPointError:
        return FloatingPointError(
            f"{how} after {self.step} steps: training diverged. Lower the learning rate, or clip "
            "the gradient."
        )

    @contextmanager
    def _writers(self) -> Iterator[list[Write]]:
        """Where points go, beside the curve."""
        if self.folder is None:
            yield []
            return
        with (self.folder / METRICS).open("a") as file, ExitStack() as stack:

            def to_file(point: Point) -> None:
                file.write(json.dumps(point) + "\n")
                file.flush()

            writers: list[Write] = [to_file]
            if self.tensorboard:
                writers.append(stack.enter_context(tensorboard(self.folder, self.step)))
            yield writers

    # Checkpoints --------------------------------------------------------------------------------

    def _save(self) -> None:
        if self.folder is None:
            return
        if not all(bool(w.isfinite().all()) for w in self.model.parameters()):
            raise self._diverged("weights are not finite")
        state = {
            "setting": self._setting(),
            "step": self.step,
            "seconds": self.seconds,
            "losses": self._losses,
            "curve": self.curve,
            "model": self.model.state_dict(),
            "averaged": None if self.averaged is self.model else self.averaged.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": random_state(),
        }
        write_checkpoint(self.folder / CHECKPOINT, state)

    def _setting(self) -> dict[str, Any]:
        """What must be the same for a training to go on."""
        plan = {name: value for name, value in asdict(self.plan).items() if name != "steps"}
        groups = zip(self.optimizer.param_groups, self.rates, strict=True)
        options = [group | {"lr": float(rate), "params": ""} for group, rate in groups]
        names = sorted(set().union(*options) - {"params"})
        optimizer = {name: [one.get(name) for one in options] for name in names}
        shapes = [list(part.shape) for part in self.data]
        kind = type(self.optimizer).__name__
        return plain(plan | optimizer | {"optimizer": kind, "shapes of data": shapes})

    def _resume(self) -> None:
        """Take up the checkpoint, if there is one, and forget what was written after it."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        checkpoint = self.folder / CHECKPOINT
        if checkpoint.exists():
            self._load(read_checkpoint(checkpoint))
        lines = "".join(json.dumps(point) + "\n" for point in self.curve)
        write_whole(self.folder / METRICS, lines.encode())

    def _load(self, state: dict[str, Any]) -> None:
        now, then = self._setting(), state["setting"]
        changed = [name for name in now | then if now.get(name) != then.get(name)]
        if changed:
            what = ", ".join(f"{name} {then.get(name)}, not {now.get(name)}" for name in changed)
            raise ValueError(
                f"{self.folder} holds a checkpoint of another training ({what}); "
                "train in another folder, or remove this one."
            )
        self.model.load_state_dict(state["model"])
        if state["averaged"] is not None:
            self.averaged.load_state_dict(state["averaged"])
        self.optimizer.load_state_dict(state["optimizer"])
        set_random_state(state["random"])
        self.step, self.seconds = state["step"], state["seconds"]
        self._losses, self.curve = state["losses"], state["curve"]


@contextmanager
def tensorboard(folder: Path, step: int) -> Iterator[Write]:
    """Write points for TensorBoard, which forgets those written after `step` before."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            'TensorBoard is not installed: pip install "convexformer[tensorboard]"'
        ) from error
    board = SummaryWriter(str(folder), purge_step=step + 1)

    def write(point: Point) -> None:
        for name, value in point.items():
            board.add_scalar(name, value, int(point["step"]))

    try:
        yield write
    finally:
        board.close()
