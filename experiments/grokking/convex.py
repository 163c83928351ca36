"""The literal convex layer on modular division: fixed embeddings, solved to a certificate.

Here everything is convex, and nothing is left to chance, learning rates or patience: what the layer
cannot do at its certified optimum, no training of it can. Embeddings are random, or taken from a
trained gated network of the same training half and then fixed, which tells what is missing.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from convexformer import estimators
from convexformer.datasets import ModularDivision, modular_division

from ..lab import Fields, Record, one_thread
from .jobs import Job, Recipe, make_trainer

DIM = 32
LOSSES = {"squared": 1e-6, "softmax": 1e-3}  # relative gaps to solve to
MODELS: dict[tuple[str, bool], Any] = {  # by loss, with gates or without
    ("squared", False): estimators.ConvexAttentionRegressor,
    ("squared", True): estimators.ConvexTransformerRegressor,
    ("softmax", False): estimators.ConvexAttentionClassifier,
    ("softmax", True): estimators.ConvexTransformerClassifier,
}
EMBEDDINGS = ("random", "learnt")
GATES = (0, 16)
BETAS = (0.1, 0.01)  # fractions of the strength at which all is zero
MANY_GATES = 96  # as the trained layer has
MAX_SECONDS = 120.0
EMBEDDING = Recipe("gated", lr=0.01, weight_decay=2.0)  # of the network that convex layers read
LEARNING_STEPS = 500  # of the network whose embeddings are taken


@dataclass(frozen=True)
class ConvexJob(Fields):
    """One convex program: its embedding, loss, number of gates and strength of the penalty."""

    embedding: str
    loss: str
    gates: int
    beta: float
    seed: int = 0
    modulus: int = 97
    study: str = "convex"

    def rules(self) -> Record:
        rules: Record = {"dim": DIM, "tolerance": LOSSES[self.loss], "max_seconds": MAX_SECONDS}
        if self.embedding == "learnt":
            rules |= {"recipe": asdict(EMBEDDING), "steps": LEARNING_STEPS}
        return {"rules": rules}

    def __str__(self) -> str:
        return f"convex: {self.loss} loss, {self.embedding} tokens, {self.gates} gates"

    def run(self, folder: Path) -> Record:
        """Solve, certify, and say how well the optimum tells the answers."""
        equations = modular_division(self.modulus, seed=self.seed)
        E = EMBED[self.embedding](equations, self.seed)  # (p + 2, d)
        X, y, train = E[equations.tokens], equations.answers, equations.train  # (N, 4, d), (N,)
        start = time.process_time()  # the embedding is not counted
        with warnings.catch_warnings(), one_thread():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the gap is told
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
    with one_thread():
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
        for embedding in EMBEDDINGS
        for loss, gates, beta in shapes
    ]
