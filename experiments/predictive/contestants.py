"""Who takes part in the comparison of predictions, and what each may try.

Every contestant has the same budget: `BUDGET` configurations, from which the validation part
chooses. To add one, add an entry to ``contestants.toml`` and to `BUILDERS`.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.svm import SVC
from torch import Tensor, nn

from convexformer import ConvexAttentionClassifier, ConvexTransformerClassifier, PooledTokens

from ..lab import read_config
from ..training import stop_early

BUDGET = 6
TOL = 1e-6  # the relative duality gap asked of convex models
MAX_SECONDS = 60.0  # of one convex fit; what it has not proved by then is in the table

Config = dict[str, Any]


@dataclass(frozen=True)
class Contestant:
    """A kind of model and the configurations it may try.

    Attributes
    ----------
    label : str
        For the table.
    grid : tuple of dict
        `BUDGET` configurations, the simplest first: it wins where validation cannot tell.
    build : callable
        From a configuration and a seed to a classifier of tokens ``(N, n, d)``.
    convex : bool
        Whether the fitted model has `tokens_` and `certificate_`.
    watches : bool
        Whether ``fit`` takes the validation part, for early stopping.
    tokens : callable, optional
        Makes a transformer that appends tokens, before they are scaled.
    """

    label: str
    grid: tuple[Config, ...]
    build: Callable[[Config, int], Any]
    convex: bool = False
    watches: bool = False
    tokens: Callable[[], Any] | None = None

    @property
    def fingerprint(self) -> str:
        """Changes with the grid, so that results of another grid are not mistaken for these."""
        return hashlib.sha256(json.dumps(self.grid, sort_keys=True).encode()).hexdigest()[:12]


def grid(**choices: tuple[Any, ...]) -> tuple[Config, ...]:
    """All combinations, the last name varying fastest.

    Examples
    --------
    >>> from experiments.predictive.contestants import grid
    >>> grid(C=(1, 10), gamma=(0.5,))
    ({'C': 1, 'gamma': 0.5}, {'C': 10, 'gamma': 0.5})
    """
    return tuple(dict(zip(choices, values, strict=True)) for values in product(*choices.values()))


class ScaledSVC(SVC):
    """`SVC` whose gamma is in units of scikit-learn's ``gamma="scale"``."""

    gamma: Any

    def fit(self, X: NDArray[Any], y: NDArray[Any], sample_weight: Any = None) -> Any:
        """Fit with ``gamma / (n_features * X.var())``."""
        units, self.gamma = self.gamma, self.gamma / (X.shape[1] * X.var())
        try:
            return super().fit(X, y, sample_weight)
        finally:
            self.gamma = units


def flat(model: Any) -> Pipeline:
    """A classifier of vectors as one of tokens: they are laid side by side."""
    side_by_side = FunctionTransformer(lambda X: np.ascontiguousarray(X).reshape(len(X), -1))
    return make_pipeline(side_by_side, model)


# The small transformer: what one would write without convexity ------------------------------------


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


@dataclass
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
    >>> from experiments.predictive.contestants import TransformerClassifier
    >>> X = np.random.default_rng(0).normal(size=(400, 3, 2))
    >>> y = np.where(X[:, 0, 0] > 0, "up", "down")
    >>> model = TransformerClassifier(learning_rate=0.01, batch_size=32)
    >>> model = model.fit(X[:200], y[:200], validation=(X[200:300], y[200:300]))
    >>> bool(np.mean(model.predict(X[300:]) == y[300:]) > 0.9)
    True
    """

    layers: int = 2
    learning_rate: float = 3e-3
    width: int = 32
    dropout: float = 0.1
    weight_decay: float = 0.01
    epochs: int = 30
    patience: int = 4
    batch_size: int = 128
    random_state: int = 0

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
            self.network_: Any = self._build(X.shape[1:], len(self.classes_))
            start = time.process_time()
            self.steps_, self.seconds_ = stop_early(
                self.network_,
                self._train(tokens, labels),
                lambda: nn.functional.cross_entropy(self._logits(held_out), held_out_labels),
                self.patience,
            )
            self.total_seconds_ = time.process_time() - start
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


# By name ------------------------------------------------------------------------------------------


def _gated(config: Config, seed: int) -> Any:
    # The published scores were made before blocks behind gates had a weight of their own.
    limits: Any = {"tol": TOL, "max_time": MAX_SECONDS}
    return ConvexTransformerClassifier(**config, gate_weight=1.0, random_state=seed, **limits)


BUILDERS: dict[str, Callable[[Config, int], Any]] = {
    "attention": lambda config, seed: ConvexAttentionClassifier(
        **config, tol=TOL, max_time=MAX_SECONDS
    ),
    "kinds": _gated,
    "gated": _gated,
    "pooled": _gated,
    "logistic": lambda config, seed: flat(LogisticRegression(**config, max_iter=2000)),
    "svc": lambda config, seed: flat(ScaledSVC(**config, cache_size=500)),
    "boosting": lambda config, seed: flat(
        HistGradientBoostingClassifier(
            **config, max_iter=150, early_stopping=False, random_state=seed
        )
    ),
    "mlp": lambda config, seed: flat(MLPClassifier(**config, max_iter=200, random_state=seed)),
    "transformer": lambda config, seed: TransformerClassifier(**config, random_state=seed),
}


def _contestant(name: str, grids: list[dict[str, Any]], **options: Any) -> Contestant:
    configs = tuple(config for choices in grids for config in grid(**choices))
    tokens = PooledTokens if name == "pooled" else None
    return Contestant(grid=configs, build=BUILDERS[name], tokens=tokens, **options)


CONTESTANTS = {
    name: _contestant(name, **options)
    for name, options in read_config(__file__, "contestants.toml").items()
}
