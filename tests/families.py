"""Families of small problems, most of them nasty; `tests.generated` draws from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from .raw import Array

CLASSES = ("logistic", "softmax")


class Sketch:
    """A problem in the making: a family edits it before the targets are drawn."""

    def __init__(self, rng: np.random.Generator, loss: str, c: int, shape: Sequence[int]) -> None:
        self.rng, self.loss, self.c = rng, loss, c
        self.X: NDArray[np.floating] = rng.normal(size=shape)
        self.mask: NDArray[np.bool_] | None = None
        self.sample_weight: Array | None = None
        self.penalty_weights: Array | None = None
        self.noise, self.signal = 0.5, 2.0
        self.edit_targets: Callable[[Array], Array] = lambda Y: Y

    def targets(self) -> Array:
        """Draw targets from standardised scores of up to three tokens."""
        _, n, d = self.X.shape
        X = self.X if self.mask is None else np.where(self.mask[:, :, None], self.X, 0.0)
        used = self.rng.permutation(n)[:3]
        S = np.einsum("ikd,kdc->ic", X[:, used], self.rng.normal(size=(len(used), d, self.c)))
        S = S - S.mean(axis=0)
        S = self.signal * S / np.maximum(S.std(axis=0), 1e-300)
        return self.edit_targets(draw(self.rng, S, self.loss, self.noise))


def draw(rng: np.random.Generator, S: Array, loss: str, noise: float) -> Array:
    """Targets of a loss given standardised scores, every class present where N allows."""
    N, c = S.shape
    if loss in ("squared", "huber"):
        return S + noise * rng.normal(size=S.shape)
    if loss == "poisson":
        Y = rng.poisson(np.exp(0.7 * S + 0.5)).astype(float)
        Y[0] = np.maximum(Y[0], 1.0)
        return Y
    if loss == "logistic":
        Y = np.where(S + noise * rng.logistic(size=S.shape) > 0, 1.0, -1.0)
        Y[0] = np.where(np.ptp(Y, axis=0) == 0, -Y[0], Y[0])
        return Y
    label = np.argmax(S + noise * rng.gumbel(size=S.shape), axis=1)
    if c <= N:
        for missing in np.setdiff1d(np.arange(c), label):
            label[np.argmax(np.bincount(label, minlength=c)[label])] = missing
    return np.eye(c)[label]


Edit = Callable[[Sketch], None]
FAMILIES: dict[str, tuple[tuple[int, int, int], Edit]] = {}


def family(N: int = 40, n: int = 6, d: int = 3) -> Callable[[Edit], Edit]:
    """Register a family of problems of this shape under its function's name."""

    def register(edit: Edit) -> Edit:
        FAMILIES[edit.__name__.replace("_", "-")] = ((N, n, d), edit)
        return edit

    return register


def _correlate(s: Sketch, rho: float) -> None:
    """Make all tokens share a factor, so that any two have correlation rho."""
    common = s.rng.normal(size=(len(s.X), 1, s.X.shape[2]))
    s.X = np.sqrt(rho) * common + np.sqrt(1 - rho) * s.X


@family()
def plain(s: Sketch) -> None:
    """Nothing wrong."""


@family(N=200, n=3, d=2)
def tall(s: Sketch) -> None:
    """Many samples."""


@family(N=12, n=30, d=10)
def wide(s: Sketch) -> None:
    """Far more coefficients than samples."""


@family(N=30, n=12, d=8)
def square(s: Sketch) -> None:
    """Three times as many coefficients as samples, correlated."""
    _correlate(s, 0.7)


@family()
def duplicated(s: Sketch) -> None:
    s.X[:, 1] = s.X[:, 0]
    s.X[:, 3] = s.X[:, 2]


@family()
def nearly_duplicated(s: Sketch) -> None:
    s.X[:, 1] = 0.999 * s.X[:, 0] + np.sqrt(1 - 0.999**2) * s.X[:, 1]


@family()
def opposite(s: Sketch) -> None:
    s.X[:, 1] = -s.X[:, 0]


@family()
def zero_tokens(s: Sketch) -> None:
    s.X[:, [1, 4]] = 0.0


@family()
def constant_channels(s: Sketch) -> None:
    s.X[:, 0, 0] = 5.0
    s.X[:, 2] = -1.0
    s.X[:, :, 2] = 1.0


@family()
def correlated(s: Sketch) -> None:
    _correlate(s, 0.999)


@family()
def mean_30(s: Sketch) -> None:
    s.X += 30.0


@family()
def mean_30_correlated(s: Sketch) -> None:
    _correlate(s, 0.999)
    s.X += 30.0


@family()
def hardest(s: Sketch) -> None:
    """A duplicate among tokens of correlation 0.999 and mean 30."""
    _correlate(s, 0.999)
    s.X += 30.0
    s.X[:, 1] = s.X[:, 0]


@family(N=60, n=10, d=5)
def hardest_larger(s: Sketch) -> None:
    hardest(s)


@family()
def mean_1e4(s: Sketch) -> None:
    """Means that leave eight digits of the variation."""
    s.X += 1e4 * s.rng.normal(size=(1, *s.X.shape[1:]))


@family()
def low_rank(s: Sketch) -> None:
    """Every token is a linear image of the same two numbers."""
    N, n, d = s.X.shape
    s.X = np.einsum("ir,rkd->ikd", s.rng.normal(size=(N, 2)), s.rng.normal(size=(2, n, d)))


@family()
def one_hot(s: Sketch) -> None:
    """Channels sum to one: collinear with the intercept."""
    s.X = np.eye(s.X.shape[2])[s.rng.integers(s.X.shape[2], size=s.X.shape[:2])]


@family()
def all_tiny(s: Sketch) -> None:
    s.X *= 1e-6


@family()
def all_huge(s: Sketch) -> None:
    s.X *= 1e6


@family()
def mixed_scales(s: Sketch) -> None:
    s.X[:, 0] *= 1e6
    s.X[:, 1] *= 1e-6
    s.X[:, 2, 0] *= 1e3


@family()
def outlying_sample(s: Sketch) -> None:
    s.X[0] *= 1e4


@family()
def heavy_tailed_tokens(s: Sketch) -> None:
    s.X = s.rng.standard_t(1.5, size=s.X.shape)


@family(N=1)
def one_sample(s: Sketch) -> None:
    """With an intercept nothing is left to fit."""


@family(N=2)
def two_samples(s: Sketch) -> None:
    """The least from which anything can be learnt."""


@family(n=1)
def one_token(s: Sketch) -> None:
    """Ridge without the square."""


@family(n=12, d=1)
def one_channel(s: Sketch) -> None:
    """The lasso."""


@family(n=1, d=1)
def one_coefficient(s: Sketch) -> None:
    """One number per output."""


@family()
def separable(s: Sketch) -> None:
    """Scores decide classes; other targets have no noise."""
    s.noise = 0.0


@family(N=20, n=8, d=5)
def separable_wide(s: Sketch) -> None:
    s.noise, s.signal = 0.0, 5.0


@family()
def imbalanced(s: Sketch) -> None:
    """One positive, one sample of each further class, one target that is not zero."""

    def edit(Y: Array) -> Array:
        N, c = Y.shape
        if s.loss == "softmax":
            return np.eye(c)[np.r_[np.arange(1, c), np.zeros(N - c + 1, int)]]
        rest = -1.0 if s.loss == "logistic" else 0.0
        return np.where(np.arange(N)[:, None] == 3, 1.0, np.full_like(Y, rest))

    s.edit_targets = edit


@family()
def constant_targets(s: Sketch) -> None:
    """One class, one number, or no counts at all: an error with an intercept for some."""

    def edit(Y: Array) -> Array:
        if s.loss in CLASSES:
            return np.broadcast_to(Y[:1], Y.shape).copy()
        return np.full_like(Y, 0.0 if s.loss == "poisson" and s.c > 1 else 3.0)

    s.edit_targets = edit


@family()
def missing_class(s: Sketch) -> None:
    """The last class, or the last output's counts, only among samples of weight zero."""
    s.sample_weight = np.ones(len(s.X))

    def edit(Y: Array) -> Array:
        present = Y[:, -1] > 0 if s.loss in ("logistic", "softmax", "poisson") else Y[:, -1] > 1
        s.sample_weight[present] = 0.0
        if not np.any(s.sample_weight):
            s.sample_weight[0] = 1.0
        return Y

    s.edit_targets = edit


@family()
def tiny_targets(s: Sketch) -> None:
    """Numbers of size 1e-6, rare counts; classes without relation to the tokens."""
    s.noise = 50.0 if s.loss in CLASSES else 0.5
    if s.loss == "poisson":
        s.edit_targets = lambda Y: np.minimum(Y, 1.0) * (np.arange(len(Y)) % 8 == 0)[:, None]
    elif s.loss not in CLASSES:
        s.edit_targets = lambda Y: 1e-6 * Y


@family()
def huge_targets(s: Sketch) -> None:
    """Numbers of size 1e6 (every residual in Huber's tail), counts of a million."""
    s.signal = 3.0
    if s.loss not in CLASSES:
        s.edit_targets = lambda Y: np.round(1e6 * Y)


@family()
def far_targets(s: Sketch) -> None:
    """Numbers far from zero; large counts beside zeros."""
    if s.loss == "poisson":
        s.edit_targets = lambda Y: np.where(np.arange(len(Y))[:, None] % 5 == 0, 0.0, 1e3 * Y)
    elif s.loss not in CLASSES:
        s.edit_targets = lambda Y: Y + 1e4


@family()
def heavy_tailed_targets(s: Sketch) -> None:
    if s.loss == "poisson":
        s.edit_targets = lambda Y: np.round(Y * np.exp(2 * np.abs(s.rng.normal(size=Y.shape))))
    elif s.loss in CLASSES:
        s.noise = 5.0
    else:
        s.edit_targets = lambda Y: Y + s.rng.standard_cauchy(size=Y.shape)


@family(n=8)
def masked(s: Sketch) -> None:
    """Sequences of different length, NaN at padding."""
    length = s.rng.integers(1, 9, size=len(s.X))
    s.mask = np.arange(8) < length[:, None]
    s.X[~s.mask] = np.nan


@family()
def masked_samples(s: Sketch) -> None:
    """Samples without any token: only the intercept speaks for them."""
    s.mask = s.rng.random(s.X.shape[:2]) < 0.8
    s.mask[::4] = False
    s.X[~s.mask] = np.nan


@family()
def masked_tokens(s: Sketch) -> None:
    """Tokens that no sample has, and one that a single sample has."""
    s.mask = s.rng.random(s.X.shape[:2]) < 0.8
    s.mask[:, [1, 4]] = False
    s.mask[1:, 2] = False
    s.X[~s.mask] = np.inf


@family()
def weighted_samples(s: Sketch) -> None:
    """Sample weights, a third of them zero."""
    s.sample_weight = s.rng.exponential(size=len(s.X)) * (s.rng.random(len(s.X)) > 0.33)


@family()
def extreme_sample_weights(s: Sketch) -> None:
    s.sample_weight = 10.0 ** s.rng.uniform(-6, 3, size=len(s.X))


@family()
def weighted_tokens(s: Sketch) -> None:
    s.penalty_weights = 10.0 ** s.rng.uniform(-2, 2, size=s.X.shape[1])


@family()
def single_precision(s: Sketch) -> None:
    s.X = s.X.astype(np.float32)


@family()
def everything(s: Sketch) -> None:
    """Single precision, mask, both kinds of weights, a duplicate, a mean, in reversed strides."""
    _correlate(s, 0.9)
    s.X += 5.0
    s.X[:, 1] = s.X[:, 0]
    s.mask = s.rng.random(s.X.shape[:2]) < 0.8
    s.X[~s.mask] = np.nan
    s.X = np.asfortranarray(s.X.astype(np.float32))[::-1, :, ::-1]
    s.mask = s.mask[::-1]
    s.sample_weight = s.rng.integers(0, 3, size=len(s.X)).astype(float)
    s.penalty_weights = s.rng.uniform(0.5, 2.0, size=s.X.shape[1])
