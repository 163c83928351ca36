"""One training of one network on modular division: what it is, how it is run, what it tells.

A finished job is a record; one that is killed starts again.

The literal convex layer is solved to a certificate instead, on fixed embeddings. Nothing in it is
left to chance, learning rates or patience: what the layer cannot do at its certified optimum, no
training of it can. Embeddings are random, or taken from a trained gated network of the same
training half and then fixed, which tells what is missing.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from convexformer import estimators
from convexformer.nn import ProximalAdam

from ..lab import KeyedJob, Record, columns, picked
from ..training import Point, Trainer
from .division import ModularDivision, modular_division
from .models import MOMENTS, OPTIMIZERS, make_model

LEVEL = 0.99  # accuracy at which a network has learnt the task
AFTER = 500  # steps that it must stay there to be called persistent
SETTLED = 250  # the same where there are many jobs: for hyperparameters, ablations and depth
WATCHED = ("contest", "splits", "quick")  # studies that tell persistence
EVERY = 25  # steps between two measurements
WARMUP = 10


@dataclass(frozen=True)
class Recipe:
    """A network and how it is trained. `beta` is of the group lasso, for the optimiser "prox"."""

    model: str
    optimizer: str = "adamw"
    lr: float = 0.01
    weight_decay: float = 1.0
    beta: float = 0.0
    clip: float | None = 0.25
    average: float | None = 0.95
    batch_size: int | None = 512
    options: dict[str, Any] = field(default_factory=dict)  # of the network
    tweaks: dict[str, float] = field(default_factory=dict)  # of the optimiser

    @property
    def strength(self) -> float:
        """Of the group lasso where there is one, else of the decay."""
        return self.beta or self.weight_decay

    def make_optimizer(self, model: Any) -> torch.optim.Optimizer:
        """Over the weights of `model`.

        "prox" is for gated layers: their Z has the group lasso by exact proximal steps in place of
        decay; all else is decayed.
        """
        options: Any = picked(vars(self), ("lr", "weight_decay")) | {"betas": MOMENTS} | self.tweaks
        if self.optimizer == "prox":
            return ProximalAdam(model.parameter_groups(beta=self.beta, weight_decay=0.0), **options)
        return OPTIMIZERS[self.optimizer](model.parameters(), **options, fused=True)

    def __str__(self) -> str:
        """The hyperparameters in words.

        Examples
        --------
        >>> from experiments.grokking.jobs import Recipe
        >>> str(Recipe("gated", "prox", beta=1e-4, clip=None, average=None))
        'lr 0.01, decay 1, beta 0.0001, no clipping or averaging'
        """
        smooth = [f"clip {self.clip:g}"] if self.clip is not None else []
        smooth += [f"average {self.average:g}"] if self.average is not None else []
        words = [f"lr {self.lr:g}, decay {self.weight_decay:g}"]
        words += [f"beta {self.beta:g}"] if self.beta else []
        words += [f"{name} {value:g}" for name, value in self.tweaks.items()]
        words += smooth or ["no clipping or averaging"]
        words += ["all samples at once"] if self.batch_size is None else []
        return ", ".join(words)


@dataclass(frozen=True)
class Job(KeyedJob):
    """A recipe for at most so many steps.

    `split` says which half of the equations is to train on, `seed` how weights and batches are
    drawn. A study called "tuning" sees the training half alone.
    """

    study: str
    name: str
    recipe: Recipe
    seed: int
    steps: int
    split: int = 0
    modulus: int = 97
    share: float = 0.5

    @property
    def tuning(self) -> bool:
        return self.study == "tuning"

    def rules(self) -> Record:
        rules = {"level": LEVEL, "after": AFTER, "settled": SETTLED, "every": EVERY}
        return {"rules": rules | {"warmup": WARMUP}}

    def __str__(self) -> str:
        recipe = self.recipe
        if self.tuning:
            return f"{self.study} {self.name}: lr {recipe.lr:g}, {recipe.strength:g}"
        return f"{self.study} {self.name}: split {self.split}, seed {self.seed}"

    def run(self) -> Record:
        """Train."""
        trainer = make_trainer(self)
        diverged = False
        try:
            span = AFTER if self.study in WATCHED else SETTLED
            trainer.run(stop=learnt(span, lasting=self.tuning))
        except FloatingPointError:
            diverged = True
        return describe(trainer.curve) | {
            "diverged": diverged,
            "parameters": sum(weights.numel() for weights in trainer.averaged.parameters()),
            "zero_groups": zero_groups(trainer.model),
            "unaveraged": accuracies(trainer.model, self.equations())["test_accuracy"],
            "curve": thinned(trainer.curve),
        }

    def equations(self) -> ModularDivision:
        """What is trained and tested on."""
        whole = modular_division(self.modulus, train=self.share, seed=self.split)
        return whole.validation() if self.tuning else whole


def make_trainer(job: Job) -> Trainer:
    """A network with weights drawn by the job's seed, and all that its training needs."""
    equations, recipe = job.equations(), job.recipe
    tokens, answers = torch.tensor(equations.tokens), torch.tensor(equations.answers)
    train = torch.tensor(equations.train)
    torch.manual_seed(job.seed)
    model = make_model(recipe.model, job.modulus, **recipe.options)
    plan: Any = picked(vars(recipe), ("batch_size", "clip", "average")) | {"seed": job.seed}
    plan |= {
        "warmup": WARMUP,
        "every": EVERY,
        "measure": lambda model: accuracies(model, equations),
    }
    data, loss = (tokens[train], answers[train]), lambda model, x, y: cross_entropy(model(x), y)
    return Trainer(model, recipe.make_optimizer(model), loss, data, job.steps, **plan)


@torch.no_grad()
def accuracies(model: nn.Module, equations: ModularDivision) -> Point:
    """Accuracy on both sides of the split, and the mean loss on the test side."""

    def scores(rows: Any) -> tuple[Tensor, Tensor]:
        tokens, answers = torch.tensor(equations.tokens[rows]), equations.answers[rows]
        parts = [model(part) for part in tokens.split(2048)]
        return torch.cat(parts), torch.tensor(answers)  # (N, p), (N,)

    (F, y), (F_test, y_test) = scores(equations.train), scores(equations.test)
    return {
        "train_accuracy": (F.argmax(1) == y).double().mean().item(),
        "test_accuracy": (F_test.argmax(1) == y_test).double().mean().item(),
        "test_loss": cross_entropy(F_test, y_test).item(),
    }


def zero_groups(model: nn.Module) -> float | None:
    """Share of a gated model's groups (gate, token, output position) that are exactly zero."""
    norms = [layer.group_norms().flatten() for layer in getattr(model, "layers", ())]
    return (torch.cat(norms) == 0).double().mean().item() if norms else None


# What a curve tells -----------------------------------------------------------------------------


def first(curve: list[Point], name: str = "test_accuracy") -> Point | None:
    """The first point at which `name` has reached the level."""
    return next((point for point in curve if point[name] >= LEVEL), None)


def stays(curve: list[Point], since: float, span: int) -> bool | None:
    """Whether test accuracy stays at the level for `span` steps; None if the curve ends before."""
    watched = [p for p in curve if since <= p["step"] <= since + span]
    if any(p["test_accuracy"] < LEVEL for p in watched):
        return False
    return True if curve[-1]["step"] >= since + span else None


def settled(curve: list[Point], span: int = SETTLED) -> int | None:
    """The first step from which test accuracy stays at the level for `span` steps.

    Examples
    --------
    >>> from experiments.grokking.jobs import settled
    >>> heights = [0.5, 0.99, 0.7, 0.99, 1.0, 1.0]
    >>> curve = [{"step": 25 * i, "test_accuracy": a} for i, a in enumerate(heights)]
    >>> settled(curve, span=50), settled(curve, span=100)
    (75, None)
    """
    steps = (p["step"] for p in curve if p["test_accuracy"] >= LEVEL)
    return next((int(step) for step in steps if stays(curve, step, span)), None)


def learnt(span: int, lasting: bool) -> Callable[[list[Point]], bool]:
    """When to stop: `span` steps after the level is reached, or once it has lasted so long."""

    def stop(curve: list[Point]) -> bool:
        if lasting:
            return settled(curve, span) is not None
        reached = first(curve)
        return reached is not None and curve[-1]["step"] >= reached["step"] + span

    return stop


def describe(curve: list[Point]) -> Record:
    """When a network learnt its training half, when the other, and whether it stayed there."""
    fitted, reached = first(curve, "train_accuracy"), first(curve)
    since = None if reached is None else reached["step"]
    last = curve[-1]
    return {
        "steps_to_fit": None if fitted is None else fitted["step"],
        "steps_to_99": since,
        "seconds_to_99": None if reached is None else reached["seconds"],
        "persistent": None if since is None else stays(curve, since, AFTER),
        "settled": settled(curve),
        "lowest_after": None
        if since is None
        else min(p["test_accuracy"] for p in curve if p["step"] >= since),
        "best": max(p["test_accuracy"] for p in curve),
        "last_step": last["step"],
        "seconds": last["seconds"],
        "ms_per_step": round(1000 * last["seconds"] / max(1.0, last["step"]), 2),
    }


def thinned(curve: list[Point], most: int = 120) -> Record:
    """The curve by columns, thinned to about `most` points, the last among them."""
    stride = max(1, len(curve) // most)
    kept = ("step", "train_accuracy", "test_accuracy", "test_loss")
    return columns(curve[::-stride][::-1], kept)


# The literal convex layer -------------------------------------------------------------------------

DIM = 32
LOSSES = {"squared": 1e-6, "softmax": 1e-3}  # relative gaps to solve to
MODELS: dict[tuple[str, bool], Any] = {  # by loss, with gates or without
    ("squared", False): estimators.ConvexAttentionRegressor,
    ("squared", True): estimators.ConvexTransformerRegressor,
    ("softmax", False): estimators.ConvexAttentionClassifier,
    ("softmax", True): estimators.ConvexTransformerClassifier,
}
GATES = (0, 16)
BETAS = (0.1, 0.01)  # fractions of the strength at which all is zero
MANY_GATES = 96  # as the trained layer has
MAX_SECONDS = 120.0
EMBEDDING = Recipe("gated", lr=0.01, weight_decay=2.0)  # of the network that convex layers read
LEARNING_STEPS = 500  # of the network whose embeddings are taken


@dataclass(frozen=True)
class ConvexJob(KeyedJob):
    """One convex program: its embedding, loss, number of gates and strength of the penalty."""

    embedding: str
    loss: str
    gates: int
    beta: float
    seed: int = 0
    modulus: int = 97
    study: str = "convex"
    warn = "ignore"  # the gap is told

    def rules(self) -> Record:
        rules: Record = {"dim": DIM, "tolerance": LOSSES[self.loss], "max_seconds": MAX_SECONDS}
        if self.embedding == "learnt":
            rules |= {"recipe": asdict(EMBEDDING), "steps": LEARNING_STEPS}
        return {"rules": rules}

    def run(self) -> Record:
        """Solve, certify, and say how well the optimum tells the answers."""
        equations = modular_division(self.modulus, seed=self.seed)
        E = EMBED[self.embedding](equations, self.seed)  # (p + 2, d)
        X, y, train = E[equations.tokens], equations.answers, equations.train  # (N, 4, d), (N,)
        start = time.process_time()  # the embedding is not counted
        model = self._fit(X[train], y[train])
        certificate = model.certificate_
        return {
            "seconds": round(time.process_time() - start, 2),
            "relative_gap": certificate.relative_gap,
            "train_accuracy": self._accuracy(model, X[train], y[train]),
            "test_accuracy": self._accuracy(model, X[equations.test], y[equations.test]),
            "coefficients": int(np.size(model.coef_)),
        }

    def _fit(self, X: NDArray[np.float64], y: NDArray[np.int64]) -> Any:
        options: dict[str, Any] = {"penalty": "token", "tol": LOSSES[self.loss]}
        if self.gates:
            options |= {"n_gates": self.gates, "gates": "gaussian", "random_state": self.seed}
            options["gate_weight"] = 1.0  # the paper's penalty, which knows no open gate
        model = MODELS[self.loss, self.gates > 0](self.beta, max_time=MAX_SECONDS, **options)
        return model.fit(X, np.eye(self.modulus)[y] if self.loss == "squared" else y)

    def _accuracy(self, model: Any, X: NDArray[np.float64], y: NDArray[np.int64]) -> float:
        told = model.predict(X)
        return float(np.mean((told.argmax(1) if self.loss == "squared" else told) == y))


def random_embedding(equations: ModularDivision, seed: int) -> NDArray[np.float64]:
    """Gaussian rows of about unit length, ``(p + 2, d)``."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(equations.vocabulary, DIM)) / DIM**0.5


def learnt_embedding(equations: ModularDivision, seed: int) -> NDArray[np.float64]:
    """Rows that a gated network has learnt from the training half, ``(p + 2, d)``."""
    job = Job("convex", "gated", EMBEDDING, seed, LEARNING_STEPS, seed, equations.modulus)
    trainer = make_trainer(job)
    trainer.run()
    E: torch.Tensor = trainer.averaged.get_parameter("embedding.weight").detach()
    return E.numpy().astype(np.float64)


EMBED = {"random": random_embedding, "learnt": learnt_embedding}


def convex_jobs() -> list[ConvexJob]:
    """Every program to solve."""
    shapes = [("squared", gates, beta) for gates in GATES for beta in BETAS]
    shapes += [("squared", MANY_GATES, BETAS[0]), ("softmax", 0, 0.1), ("softmax", 16, 0.5)]
    return [
        ConvexJob(embedding, loss, gates, beta)
        for embedding in EMBED
        for loss, gates, beta in shapes
    ]
