"""The grids: which cells `make bench`, `bench-quick`, `bench-large` and so on run.

Made data have five tokens that count. *Isotropic* tokens are independent; *correlated* ones follow
an AR(1) process over positions (0.9) around a mean that differs by token and channel. Real states
of an encoder are those of `states`. Cells that nobody chose are those of `unseen`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .objective import Array, Cell, Task

FRACTIONS = (0.5, 0.1, 0.02)
PATH = tuple(np.geomspace(1.0, 0.02, 30).tolist())
STATES_PATH = tuple(np.geomspace(1.0, 0.05, 10).tolist())

Make = Callable[[], Task]


def made(
    N: int,
    n: int,
    d: int,
    c: int = 1,
    *,
    correlated: bool = False,
    loss: str = "squared",
    penalty: str = "token-output",
    intercept: bool = False,
    dtype: type = np.float64,
) -> Task:
    """Tokens and targets of any size."""
    rng = np.random.default_rng(0)
    X: NDArray = (
        _correlated(rng, N, n, d, dtype) if correlated else rng.standard_normal((N, n, d), dtype)
    )
    F = np.zeros((N, c))
    for k in rng.choice(n, min(5, n), replace=False):
        F += X[:, k] @ rng.normal(size=(d, c))
    return Task(X, targets(rng, F, loss), loss=loss, penalty=penalty, intercept=intercept)


def _correlated(rng: np.random.Generator, N: int, n: int, d: int, dtype: type) -> NDArray:
    X = np.empty((N, n, d), dtype)
    state = rng.standard_normal((N, d), dtype)
    scale = np.geomspace(1.0, 0.01, d)
    for k in range(n):
        X[:, k] = state + (2 * rng.normal(size=d) * scale).astype(dtype)
        state = dtype(0.9) * state + dtype(np.sqrt(1 - 0.81)) * rng.standard_normal((N, d), dtype)
    return X


def targets(rng: np.random.Generator, F: Array, loss: str) -> Array:
    """Noisy targets of scores `F`, which are standardised first."""
    F = (F - F.mean(axis=0)) / F.std(axis=0)
    if loss == "squared":
        return F + 0.5 * rng.normal(size=F.shape)
    if loss == "logistic":
        return np.where(F + 0.5 * rng.logistic(size=F.shape) > 0, 1.0, -1.0)
    labels = np.argmax(2 * F + rng.gumbel(size=F.shape), axis=1)
    return np.eye(F.shape[1])[labels]


def gated(N: int, n: int, d: int, h: int) -> Task:
    """Independent tokens behind the paper's gates ``sign(u' X v)``; five blocks count."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, n, d))
    U = (
        rng.normal(size=(n, 1, h)) * rng.normal(size=(1, d, h))
        if n > 1
        else rng.normal(size=(d, h))
    )
    U = U.reshape(n * d, h)
    gates, F = X.reshape(N, -1) @ U > 0, np.zeros((N, 1))
    for _ in range(5):
        j, k = rng.integers(h), rng.integers(n)
        F += gates[:, [j]] * (X[:, k] @ rng.normal(size=(d, 1)))
    return Task(X, targets(rng, F, "squared"), gates, U)


def real(name: str, loss: str, penalty: str = "token-output", rows: int | None = None) -> Task:
    """A data set of the package, with an intercept."""
    from convexformer import datasets

    data = getattr(datasets, name)()
    order = np.random.default_rng(0).permutation(len(data.y))[:rows]
    y = data.y[order]
    Y = 2.0 * y[:, None] - 1 if loss == "logistic" else np.eye(len(data.target_names))[y]
    X = data.X[order] / data.X.std()  # measurements and letters on one scale
    return Task(X, Y, loss=loss, penalty=penalty, intercept=True)


def encoder(N: int, n: int, c: int, penalty: str) -> Task:
    """What a layer of a real encoder writes at [CLS], from what it reads."""
    from .encoder import activations

    X, Y = activations(N, n)
    return Task(X, Y[:, :c], penalty=penalty, intercept=True)


def frozen(name: str, loss: str, penalty: str = "token-output") -> Task:
    """Ratings of texts, their signs or three classes of them, from states of an encoder."""
    from .states import load

    X, ratings = load(name)
    if loss == "squared":
        Y = ((ratings - ratings.mean()) / ratings.std())[:, None]
    elif loss == "logistic":
        Y = np.where(ratings > 0, 1.0, -1.0)[:, None]
    else:
        Y = np.eye(3)[np.digitize(ratings, np.quantile(ratings, (1 / 3, 2 / 3)))]
    return Task(X, Y, loss=loss, penalty=penalty, intercept=True)


def _sweep(
    name: str, make: Make, fractions: tuple[float, ...] = FRACTIONS, **more: Any
) -> list[Cell]:
    return [Cell(f"{name}/{fraction:g}", make, (fraction,), **more) for fraction in fractions]


SIZES = {"i": (1000, 50, 32), "ii": (2000, 64, 128), "iii": (500, 128, 384)}


def standard() -> list[Cell]:
    """`make bench`."""
    cells: list[Cell] = []
    for name, size in SIZES.items():
        far = name != "i"
        for suffix, loss in (("", "squared"), ("_log", "logistic")):
            make = partial(made, *size, correlated=far, loss=loss)
            cells += _sweep(name + suffix, make, correlated=far)
        if far:
            make = partial(made, *size, correlated=True, intercept=True)
            cells += _sweep(name + "_b", make, (0.1,), correlated=True)
    cells += _sweep("tall", partial(made, 40000, 16, 16))
    cells += _sweep("gated", partial(gated, 1000, 32, 64, 8))
    cells += _sweep("gates", partial(gated, 1000, 1, 64, 32), (0.1,))
    cells += _sweep("scalar", partial(made, 1000, 200, 1, 16, penalty="token", intercept=True))
    for name, size in SIZES.items():
        make = partial(made, *size, correlated=name != "i")
        cells.append(Cell(f"path {name}", make, PATH, correlated=name != "i"))
    cells += _real() + _many_outputs() + _softmax() + _small()
    return cells


def _real() -> list[Cell]:
    cells = _sweep("hla", partial(real, "hla", "logistic"))
    cells += _sweep("splice", partial(real, "splice", "softmax", "token"))
    cells += _sweep("splice_to", partial(real, "splice", "softmax"), (0.1,))
    for penalty in ("token", "token-output"):
        make = partial(encoder, 1000, 32, 16, penalty)
        cells += _sweep(f"encoder {penalty}", make, (0.3, 0.1), correlated=True)
    return cells


def _many_outputs() -> list[Cell]:
    cells: list[Cell] = []
    for penalty in ("token", "token-output"):
        for c in (4, 64, 384):
            shape = (2000, 32, 64, c)
            make = partial(made, *shape, correlated=True, penalty=penalty, intercept=True)
            cells += _sweep(f"c={c} {penalty}", make, (0.1,), correlated=True)
    return cells


def _softmax() -> list[Cell]:
    sizes = {"peptides c=2": ("hla", 8000), "junctions c=3": ("splice", 2000)}
    sizes["digits c=10"] = ("pendigits", 8000)
    cells: list[Cell] = []
    for name, (data, rows) in sizes.items():
        cells += _sweep(f"softmax {name}", partial(real, data, "softmax", "token", rows))
    make = partial(
        made, 500, 128, 384, 4, correlated=True, loss="softmax", penalty="token", intercept=True
    )
    return cells + _sweep("softmax iii c=4", make, correlated=True, goal=2.0)


def _small(fractions: tuple[float, ...] = (0.1,)) -> list[Cell]:
    """Small enough for an interior-point method."""
    cells: list[Cell] = []
    for loss in ("squared", "logistic"):
        make = partial(made, 200, 12, 8, correlated=True, loss=loss, intercept=True)
        cells += _sweep(f"small {loss}", make, fractions, correlated=True)
    return cells


def quick() -> list[Cell]:
    """`make bench-quick`: the same kinds, most of them smaller."""
    return [
        *_sweep("i", partial(made, 1000, 50, 32), (0.5, 0.1)),
        *_sweep("i_log", partial(made, 1000, 50, 32, loss="logistic"), (0.1,)),
        *_sweep("ii small", partial(made, 500, 32, 32, correlated=True), (0.1,), correlated=True),
        *_sweep("tall small", partial(made, 8000, 8, 16), (0.1,)),
        *_sweep("gated small", partial(gated, 400, 8, 16, 4), (0.1,)),
        Cell("path i small", partial(made, 400, 20, 8), PATH[::3]),
        *_sweep("hla", partial(real, "hla", "logistic"), (0.1,)),
        *_sweep("softmax junctions c=3", partial(real, "splice", "softmax", "token", 1000), (0.1,)),
        *_small(),
    ]


def large() -> list[Cell]:
    """`make bench-large`: on two threads, hours for peers, so ours alone unless named."""
    bert: dict[str, Any] = {"correlated": True, "intercept": True, "dtype": np.float32}
    one = partial(made, 3668, 128, 768, **bert)
    all_outputs = partial(made, 3668, 128, 768, 768, penalty="token", **bert)
    wide = partial(made, 2000, 32, 64, 512, correlated=True, intercept=True)
    two: dict[str, Any] = {"correlated": True, "threads": 2}
    cells = [Cell("bert c=1/0.3", one, (0.3,), **two)]
    cells += [Cell("bert c=1/0.1", one, (0.1,), goal=20.0, **two)]
    for fraction, goal in ((0.3, 60.0), (0.1, 150.0)):
        name = f"bert c=768 token/{fraction}"
        cells.append(Cell(name, all_outputs, (fraction,), gap=1e-4, goal=goal, **two))
    for fraction, goal in ((0.3, 8.0), (0.1, 13.0), (0.03, 22.0)):
        make = partial(encoder, 3667, 64, 384, "token")
        cells.append(Cell(f"encoder c=384 token/{fraction}", make, (fraction,), goal=goal, **two))
    cells.append(Cell("c=512 token-output/0.1", wide, (0.1,), goal=8.0, **two))
    make = partial(encoder, 3667, 32, 384, "token-output")
    name = "encoder c=384 token-output/0.1"
    return [*cells, Cell(name, make, (0.1,), gap=1e-4, goal=300.0, **two)]


def states() -> list[Cell]:
    """`make bench-states`: states that `make states` makes."""
    cells: list[Cell] = []
    for name, fractions in (("pooled", (0.3, 0.1, 0.03)), ("layers", (0.3, 0.1))):
        for loss in ("logistic", "squared"):
            make = partial(frozen, name, loss)
            cells += _sweep(f"{name} {loss}", make, fractions, correlated=True)
        for penalty in ("token-output", "token"):  # which are the same for one output
            make = partial(frozen, name, "softmax", penalty)
            cells += _sweep(f"{name} c=3 {penalty}", make, (0.3, 0.1), correlated=True)
    make = partial(frozen, "layers", "logistic")
    return [*cells, Cell("path layers logistic", make, STATES_PATH, correlated=True)]


def drawn() -> list[Cell]:
    """`make bench-drawn`: cells that nobody chose."""
    from .unseen import cells  # which builds on this file

    return cells()


GRIDS: dict[str, Callable[[], list[Cell]]] = {
    "quick": quick,
    "standard": standard,
    "large": large,
    "states": states,
    "drawn": drawn,
}
