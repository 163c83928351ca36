"""Division modulo 15: 120 equations, so few that many splits are trained at once.

Fifteen is no prime: only its units can be divided by, and there are 15 x 8 equations. Networks are
small and batches whole, so that all splits and settings of a network are one batched computation; a
replica is one network with its own weights, gates, split and setting, and replicas do not see each
other. A setting is a learning rate, a decay, and a factor on the weights as they are drawn.
"""

import math
import time
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..lab import KeyedJob, Ledger, Record, read_config, rounded
from .division import modular_division
from .models import MOMENTS, make_model

MODULUS = 15
VOCABULARY = MODULUS + 2
SHARES = (0.8, 0.5)
SPLITS = 20
STEPS, TUNING_STEPS, EVERY = 2000, 600, 50
LONGER = [("gated-4", 0.5, 20_000, "longer")]  # which did not learn: might more steps do it?
VALIDATION = 0.2  # of the training part, where hyperparameters are chosen
CLIP, AVERAGE, WARMUP = 0.25, 0.95, 10
RATES, DECAYS = (0.02, 0.005), (0.3, 1.0, 3.0)

Array = NDArray[np.float64]
Setting = tuple[float, float, float]


@dataclass(frozen=True)
class Small:
    """A network for these equations. `squares`: trained by squared errors, with its own penalty."""

    label: str
    kind: str
    options: dict[str, int]
    one_hot: bool = False
    squares: bool = False
    steps: int = STEPS
    scales: tuple[float, ...] = (1.0,)
    tuning_splits: int = 10

    @property
    def grid(self) -> list[Setting]:
        """The settings to choose from."""
        return list(product(RATES, DECAYS, self.scales))


SMALL = {name: Small(**options) for name, options in read_config(__file__, "small.toml").items()}


@dataclass(frozen=True)
class SmallJob(KeyedJob):
    """A network on many splits; without a `setting` the whole grid is tried."""

    name: str
    share: float
    steps: int
    splits: int
    setting: Setting | None = None
    study: str = "small"

    @property
    def settings(self) -> list[Setting]:
        return SMALL[self.name].grid if self.setting is None else [self.setting]

    def rules(self) -> Record:
        rules: Record = {"clip": CLIP, "average": AVERAGE, "warmup": WARMUP, "every": EVERY}
        return {"rules": rules | {"validation": VALIDATION, "settings": self.settings}}

    def run(self) -> Record:
        """Train all replicas side by side."""
        tuning, settings = self.setting is None, self.settings
        splits = [split_masks(self.share, seed, tuning) for seed in range(self.splits)]
        masks = np.array(splits * len(settings))  # (R, 2, N): settings outside, splits inside
        each = np.repeat(np.array(settings), self.splits, axis=0)  # (R, 3)
        batchable = sdpa_kernel(SDPBackend.MATH)  # the one attention that vmap can batch
        start = time.process_time()
        with batchable:
            torch.manual_seed(0)
            curves = train_replicas(SMALL[self.name], masks, each, self.steps)
        told = tell_tuning(curves, settings) if tuning else tell_splits(curves)
        if self.study == "longer":  # no figure shows it
            del told["curve"]
        return {"seconds": round(time.process_time() - start, 2)} | told


def split_masks(share: float, seed: int, tuning: bool) -> NDArray[np.bool_]:
    """Which equations are trained and which are measured, ``(2, N)``."""
    equations = modular_division(MODULUS, train=share, seed=seed)
    parts = equations.validation(VALIDATION) if tuning else equations
    masks = np.zeros((2, len(equations.answers)), dtype=bool)
    masks[0, parts.train] = masks[1, parts.test] = True
    return masks


def choose_setting(record: Record) -> Setting:
    """The setting that ends highest on the validation parts."""
    best = max(record["grid"], key=lambda one: (one["last"], one["best"]))
    return best["lr"], best["decay"], best["scale"]


def run_small(ledger: Ledger) -> None:
    """For every share choose a setting, and train on all splits; some for more steps, too."""
    plans = [
        (name, share, small.steps, "small")
        for share, (name, small) in product(SHARES, SMALL.items())
    ]
    for name, share, steps, study in plans + LONGER:
        with ledger.part():
            tuned = ledger.do(SmallJob(name, share, TUNING_STEPS, SMALL[name].tuning_splits))
            ledger.do(SmallJob(name, share, steps, SPLITS, choose_setting(tuned), study))


# Training ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curves:
    """Accuracies of replicas at `steps`, ``(records, R)`` each."""

    steps: list[int]
    train: Array
    test: Array
    test_loss: Array


def train_replicas(small: Small, masks: NDArray[np.bool_], settings: Array, steps: int) -> Curves:
    """Train a network for each of R splits and settings, in one batched computation.

    Parameters
    ----------
    small : Small
    masks : ndarray of bool of shape (R, 2, N)
        Which equations each replica trains on, and which it is measured on.
    settings : ndarray of shape (R, 3)
        Learning rates, decays, and factors on the first weights.
    steps : int
    """
    count = len(masks)
    equations = modular_division(MODULUS)
    tokens, answers = torch.tensor(equations.tokens), torch.tensor(equations.answers)
    inputs = functional.one_hot(tokens, VOCABULARY).float() if small.one_hot else tokens
    rows = torch.tensor(np.array([np.flatnonzero(mask) for mask in masks[:, 0]]))  # (R, n)
    networks = [make_model(small.kind, MODULUS, **small.options) for _ in range(count)]
    parameters, buffers = stack_module_state(networks)
    rates, decays, scales = torch.tensor(settings, dtype=torch.float32).unbind(1)
    with torch.no_grad():
        for W in parameters.values():
            W.mul_(scales.view(-1, *[1] * (W.ndim - 1)))
    average = {name: W.detach().clone() for name, W in parameters.items()}
    optimizer = Replicas(parameters, rates, decays, small.squares)
    train, test = torch.tensor(masks).float().unbind(1)  # (R, N) each

    def scores(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        one = lambda w, b, x: functional_call(networks[0], (w, b), (x,))  # noqa: E731
        return vmap(one)(weights, buffers, x)  # (R, N, c)

    taken, points = [], []
    for step in range(1, steps + 1):
        F = scores(parameters, inputs[rows])  # (R, n, c)
        value = losses(F, answers[rows], small.squares).mean(1)  # (R,)
        if small.squares:
            value = value + optimizer.decay * cube_penalty(parameters)
        gradients = torch.autograd.grad(value.sum(), list(parameters.values()))
        optimizer.step(gradients, min(1.0, step / WARMUP))
        with torch.no_grad():
            for name, W in parameters.items():
                average[name].lerp_(W, 1 - AVERAGE)
            if step % EVERY == 0:
                taken.append(step)
                F = scores(average, inputs.expand(count, *inputs.shape))  # (R, N, c)
                points.append(measure(F, answers, train, test, small.squares))
    train_accuracy, test_accuracy, test_loss = np.array(points).transpose(1, 0, 2)
    return Curves(taken, train_accuracy, test_accuracy, test_loss)


class Replicas:
    """AdamW for stacked weights: every replica its own learning rate, decay and clipping."""

    def __init__(
        self, parameters: dict[str, Tensor], rates: Tensor, decay: Tensor, penalised: bool
    ) -> None:
        self.weights = list(parameters.values())
        self.rates, self.decay = rates, decay
        self.shrink = torch.zeros_like(decay) if penalised else decay
        self.moments = [(torch.zeros_like(W), torch.zeros_like(W)) for W in self.weights]
        self.taken = 0

    @torch.no_grad()
    def step(self, gradients: tuple[Tensor, ...], rise: float) -> None:
        """One step; `rise` is the share of the learning rate during warm-up."""
        self.taken += 1
        sizes = torch.stack([g.flatten(1).norm(dim=1) for g in gradients]).norm(dim=0)  # (R,)
        scale = (CLIP / (sizes + 1e-6)).clamp(max=1.0)
        first, second = (1 - beta**self.taken for beta in MOMENTS)
        for W, g, (m, v) in zip(self.weights, gradients, self.moments, strict=True):
            shape = (-1, *[1] * (W.ndim - 1))
            g, lr = g * scale.view(shape), (rise * self.rates).view(shape)
            m.lerp_(g, 1 - MOMENTS[0])
            v.mul_(MOMENTS[1]).addcmul_(g, g, value=1 - MOMENTS[1])
            W.mul_(1 - lr * self.shrink.view(shape))
            W.sub_(lr * (m / first) / ((v / second).sqrt() + 1e-8))


def losses(F: Tensor, answers: Tensor, squares: bool) -> Tensor:
    """Of every replica and equation, ``(R, N)``, for scores ``(R, N, c)``."""
    answers = answers.expand(F.shape[:2])
    if squares:
        return (F - functional.one_hot(answers, F.shape[2])).square().sum(2)
    return functional.cross_entropy(F.transpose(1, 2), answers, reduction="none")


def cube_penalty(parameters: dict[str, Tensor]) -> Tensor:
    r"""HyperCube's penalty of every replica, ``(R,)``: squares of products, not of factors.

    .. math:: \tfrac1{n} \sum \|A_a B_b\|^2 + \|B_b C_c\|^2 + \|C_c A_a\|^2

    A scale of 0.001 brings it into the range of the decays of the grid.
    """
    A, B, C = (parameters[name] for name in ("first", "second", "third"))  # (R, v, n, n)
    total = torch.zeros(len(A))
    for left, right in ((A, B), (B, C), (C, A)):
        inner = (left.transpose(2, 3) @ left).sum(1)  # (R, n, n): sum of left' left
        outer = (right @ right.transpose(2, 3)).sum(1)  # (R, n, n): sum of right right'
        total = total + (inner * outer).sum((1, 2))
    return 1e-3 * total / A.shape[-1] / MODULUS


def measure(F: Tensor, answers: Tensor, train: Tensor, test: Tensor, squares: bool) -> Array:
    """Accuracies on both sides and the loss on the test side, ``(3, R)``."""
    right = (F.argmax(2) == answers).float()  # (R, N)
    each = losses(F, answers, squares)
    rows = [(right, train), (right, test), (each, test)]
    return torch.stack([(x * m).sum(1) / m.sum(1) for x, m in rows]).double().numpy()


# What curves tell -------------------------------------------------------------------------------

LAST = 5  # measurements that count as the end


def tell_tuning(curves: Curves, settings: list[Setting]) -> Record:
    """Of every setting, the mean over splits of where accuracy ends, and of its height."""
    by_setting = curves.test.reshape(len(curves.steps), len(settings), -1)
    last = by_setting[-LAST:].mean(axis=(0, 2))
    best = by_setting.max(axis=0).mean(axis=1)
    heights = np.stack([last, best], axis=1).round(4)  # (settings, 2)
    keys = ("lr", "decay", "scale", "last", "best")
    rows = np.concatenate([settings, heights], axis=1).tolist()
    return {"grid": [dict(zip(keys, row, strict=True)) for row in rows]}


def tell_splits(curves: Curves) -> Record:
    """Every split's best and last test accuracy and first step at 99 %, and bands over splits."""
    reached = curves.test >= 0.99
    steps = np.array(curves.steps, dtype=float)
    first = np.where(reached.any(0), steps[reached.argmax(0)], math.inf)
    return {
        "best": rounded(curves.test.max(axis=0)),
        "last": rounded(curves.test[-LAST:].mean(axis=0)),
        "first_99": [None if math.isinf(step) else int(step) for step in first],
        "curve": {"step": curves.steps}
        | {name: bands(getattr(curves, name)) for name in ("train", "test", "test_loss")},
    }


def bands(values: Array) -> dict[str, list[float]]:
    """Quartiles over splits at every step."""
    low, middle, high = np.nanquantile(values, [0.25, 0.5, 0.75], axis=1)
    return {"low": rounded(low), "median": rounded(middle), "high": rounded(high)}
