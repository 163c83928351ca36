"""The small torch transformer of the comparisons: what one would write without convexity."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


class _Block(nn.Module):
    """Pre-norm self-attention and feed-forward (twice as wide), each with a skip connection."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.project = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, X: Tensor) -> Tensor:  # (N, n, width) -> (N, n, width)
        N, n, width = X.shape
        parts = self.project(self.norms[0](X)).view(N, n, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)  # each (N, heads, n, width / heads)
        # Written out, since for so few tokens this is twice as fast on a CPU as torch's own.
        attention = (q @ k.mT / k.shape[-1] ** 0.5).softmax(dim=-1)  # (N, heads, n, n)
        heads = (attention @ v).transpose(1, 2).reshape(N, n, width)
        X = X + self.dropout(self.mix(heads))
        return X + self.dropout(self.feed(self.norms[1](X)))


class _Encoder(nn.Module):
    """Linear embedding, learned positions, blocks, mean over tokens, linear readout."""

    def __init__(
        self, shape: tuple[int, ...], n_classes: int, width: int, layers: int, dropout: float
    ) -> None:
        super().__init__()
        n, d = shape
        self.embed = nn.Linear(d, width)
        self.positions = nn.Parameter(0.02 * torch.randn(n, width))
        self.blocks = nn.Sequential(*(_Block(width, 4, dropout) for _ in range(layers)))
        self.readout = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, n_classes))

    def forward(self, X: Tensor) -> Tensor:  # (N, n, d) -> (N, classes)
        tokens = self.embed(X) + self.positions  # (N, n, width)
        return self.readout(self.blocks(tokens).mean(dim=1))


class TransformerClassifier:
    """A transformer encoder of 4 heads, trained with AdamW until validation stops improving.

    After every epoch the loss on the validation part is taken. When it has not improved for
    `patience` epochs, training ends, and the weights of the best epoch are kept.

    Parameters
    ----------
    layers : int
    learning_rate : float
    width : int
        Width of the embedding, a multiple of 4; the feed-forward layers are twice as wide.
    dropout, weight_decay : float
    epochs, patience, batch_size : int
    random_state : int

    Attributes
    ----------
    network_ : torch.nn.Module
    steps_ : int
        Steps until the best epoch ended.
    seconds_ : float
        Processor time until then, looks at the validation part included.
    total_seconds_ : float
        Until training ended.

    Examples
    --------
    >>> import numpy as np
    >>> from convexformer.experiments.transformer import TransformerClassifier
    >>> X = np.random.default_rng(0).normal(size=(400, 3, 2))
    >>> y = np.where(X[:, 0, 0] > 0, "up", "down")
    >>> model = TransformerClassifier(learning_rate=0.01, batch_size=32)
    >>> model = model.fit(X[:200], y[:200], validation=(X[200:300], y[200:300]))
    >>> bool(np.mean(model.predict(X[300:]) == y[300:]) > 0.9)
    True
    """

    def __init__(
        self,
        layers: int = 2,
        learning_rate: float = 3e-3,
        width: int = 32,
        dropout: float = 0.1,
        weight_decay: float = 0.01,
        epochs: int = 30,
        patience: int = 4,
        batch_size: int = 128,
        random_state: int = 0,
    ) -> None:
        self.width, self.layers, self.dropout = width, layers, dropout
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.epochs, self.patience, self.batch_size = epochs, patience, batch_size
        self.random_state = random_state

    def fit(
        self, X: NDArray[Any], y: NDArray[Any], validation: tuple[NDArray[Any], NDArray[Any]]
    ) -> Self:
        """Train on ``X (N, n, d)``, ``y (N,)``; keep the epoch with the best `validation` loss."""
        self.classes_, codes = np.unique(y, return_inverse=True)
        tokens, labels = _tokens(X), torch.as_tensor(codes)
        held_out = _tokens(validation[0])
        held_out_labels = torch.as_tensor(np.searchsorted(self.classes_, validation[1]))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random_state)
            self.network_ = self._build(X.shape[1:], len(self.classes_))
            losses: list[float] = []
            best: dict[str, Tensor] = {}
            start = time.process_time()
            for steps in self._train(tokens, labels):
                loss = nn.functional.cross_entropy(self._logits(held_out), held_out_labels).item()
                if loss < min(losses, default=np.inf):
                    best = copy.deepcopy(self.network_.state_dict())
                    self.steps_, self.seconds_ = steps, time.process_time() - start
                losses.append(loss)
                if len(losses) - 1 - int(np.argmin(losses)) >= self.patience:
                    break
            self.total_seconds_ = time.process_time() - start
        self.network_.load_state_dict(best)
        return self

    def _build(self, shape: tuple[int, ...], n_classes: int) -> nn.Module:
        return _Encoder(shape, n_classes, self.width, self.layers, self.dropout)

    def _optimiser(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            self.network_.parameters(), self.learning_rate, weight_decay=self.weight_decay
        )

    def _train(self, tokens: Tensor, labels: Tensor) -> Iterator[int]:
        """Train, giving way after every epoch with the number of steps so far."""
        optimiser, steps = self._optimiser(), 0
        for _ in range(self.epochs):
            self.network_.train()
            for batch in torch.randperm(len(tokens)).split(self.batch_size):
                optimiser.zero_grad()
                nn.functional.cross_entropy(self.network_(tokens[batch]), labels[batch]).backward()
                nn.utils.clip_grad_norm_(self.network_.parameters(), 1.0)
                optimiser.step()
                steps += 1
            yield steps

    def _logits(self, tokens: Tensor) -> Tensor:
        self.network_.eval()
        with torch.no_grad():
            return torch.cat([self.network_(part) for part in tokens.split(1024)])

    def predict_proba(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Class probabilities ``(N, classes)``."""
        return self._logits(_tokens(X)).double().softmax(dim=1).numpy()

    def predict(self, X: NDArray[Any]) -> NDArray[Any]:
        """Classes ``(N,)``."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


def _tokens(X: NDArray[Any]) -> Tensor:
    return torch.as_tensor(np.ascontiguousarray(X), dtype=torch.float32)
