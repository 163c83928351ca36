"""Cells that nobody chose, so that nobody can tune to them: the grid "drawn".

Who changes a solver looks at the same cells again and again, and sooner or later tunes to them. The
cells here are drawn: sizes, correlations, loss, penalty, outputs, fraction of beta_max and seed of
each come from a generator whose seed is the hash of a frozen commit of this project. The commit was
there before this file, so no draw was picked for being kind. `COMMIT` stays, so that figures can be
compared over time; once a solver was tuned to these cells nevertheless, replace the hash by that of
the then latest commit, and measure what you compare with anew.

Sizes are bounded, so that a cell takes no more than some seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from .cells import targets
from .objective import Cell, Task

COMMIT = "c6b573e8b449fe25aa04c8ab49caf9000b55baba"
COUNT = 20
PATH_LENGTH = 8
ENTRIES = (3e5, 1.5e7)  # of X
CHANNELS, TOKENS, SAMPLES = (1, 128), (4, 100), (100, 20_000)
FRACTIONS = (0.02, 0.5)  # of beta_max
LOSSES = {"squared": 0.4, "logistic": 0.35, "softmax": 0.25}  # and how often
OUTPUTS = {"squared": (1, 32), "logistic": (1, 4), "softmax": (2, 6)}
SHARES = {"one output": 0.5, "path": 0.15, "letters": 0.15, "float32": 0.3}
LETTERS = (4, 20)  # of an alphabet


@dataclass(frozen=True)
class Draw:
    """What was drawn for one cell."""

    N: int
    n: int
    d: int
    c: int
    loss: str
    penalty: str
    intercept: bool
    fractions: tuple[float, ...]
    correlation: float  # of a token with the next one
    decay: float  # of the last channel's size to that of the first
    offset: float  # of tokens' means, in spreads
    relevant: int  # tokens that count
    letters: bool  # whether a token is one of d letters, hence X mostly zero
    dtype: str
    seed: int

    @property
    def words(self) -> str:
        """A name for it."""
        kind = "letters" if self.letters else f"{self.correlation:.2f}"
        c = f" c={self.c} {self.penalty}" if self.c > 1 else ""
        at = "path" if len(self.fractions) > 1 else f"{self.fractions[0]:.3f}"
        return f"{self.N}x{self.n}x{self.d} {kind} {self.loss}{c}/{at}"


def draws(commit: str = COMMIT, count: int = COUNT) -> list[Draw]:
    """All draws of a commit's hash, always the same."""
    rng = np.random.default_rng(int(commit, 16))
    return [_draw(rng) for _ in range(count)]


def _draw(rng: np.random.Generator) -> Draw:
    letters = bool(rng.random() < SHARES["letters"])
    loss = str(rng.choice(list(LOSSES), p=list(LOSSES.values())))
    c = _between(rng, *OUTPUTS[loss])
    if loss != "softmax" and rng.random() < SHARES["one output"]:
        c = 1
    d, n = _between(rng, *(LETTERS if letters else CHANNELS)), _between(rng, *TOKENS)
    entries = _between(rng, *ENTRIES)
    least = int(np.log10(c) * 2) + 1  # the more outputs, the smaller X
    N = int(np.clip(entries / (n * d * least), *SAMPLES))
    first, is_path = _uniform(rng, *FRACTIONS), rng.random() < SHARES["path"]
    fractions = tuple(np.geomspace(1.0, first, PATH_LENGTH).tolist()) if is_path else (first,)
    return Draw(
        N=N,
        n=n,
        d=d,
        c=c,
        loss=loss,
        penalty=str(rng.choice(["token-output", "token"])),
        intercept=bool(rng.random() < 0.5),
        fractions=fractions,
        correlation=float(rng.choice([0.0, rng.random(), 1 - 0.1 * rng.random()])),
        decay=_uniform(rng, 0.01, 1.0),
        offset=float(rng.choice([0.0, 2 * rng.random()])),
        relevant=_between(rng, 1, n),
        letters=letters,
        dtype="float32" if rng.random() < SHARES["float32"] else "float64",
        seed=int(rng.integers(2**32)),
    )


def _uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """A number whose logarithm is uniform."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _between(rng: np.random.Generator, low: float, high: float) -> int:
    """A whole number of about such a distribution, both ends included."""
    return int(np.clip(round(_uniform(rng, low, high)), low, high))


def make(draw: Draw) -> Task:
    """Data of a draw."""
    rng = np.random.default_rng(draw.seed)
    X = _letters(rng, draw) if draw.letters else _tokens(rng, draw)
    F = np.zeros((draw.N, draw.c))
    for k in rng.choice(draw.n, draw.relevant, replace=False):
        F += X[:, k] @ rng.normal(size=(draw.d, draw.c))
    Y = targets(rng, F, draw.loss)
    return Task(
        X.astype(draw.dtype), Y, loss=draw.loss, penalty=draw.penalty, intercept=draw.intercept
    )


def _tokens(rng: np.random.Generator, draw: Draw) -> NDArray[np.float64]:
    """An AR(1) process over positions, around means, with channels of different sizes."""
    X = np.empty((draw.N, draw.n, draw.d))
    scale = np.geomspace(1.0, draw.decay, draw.d)
    state = rng.normal(size=(draw.N, draw.d))
    for k in range(draw.n):
        X[:, k] = (state + draw.offset * rng.normal(size=draw.d)) * scale
        fresh = rng.normal(size=state.shape)
        state = draw.correlation * state + np.sqrt(1 - draw.correlation**2) * fresh
    return X


def _letters(rng: np.random.Generator, draw: Draw) -> NDArray[np.float64]:
    """One of d letters at every position, the same as before with a chance: the correlation."""
    chances = rng.dirichlet(np.ones(draw.d), size=draw.n)
    letters = np.empty((draw.N, draw.n), dtype=int)
    for k in range(draw.n):
        letters[:, k] = rng.choice(draw.d, size=draw.N, p=chances[k])
        if k:
            again = rng.random(draw.N) < draw.correlation
            letters[again, k] = letters[again, k - 1]
    return np.eye(draw.d)[letters]


def cells() -> list[Cell]:
    """The grid; names begin with the number of the draw."""
    return [
        Cell(
            f"{number:02d} {draw.words}",
            partial(make, draw),
            draw.fractions,
            correlated=draw.correlation > 0.5 and not draw.letters,
        )
        for number, draw in enumerate(draws(), start=1)
    ]
