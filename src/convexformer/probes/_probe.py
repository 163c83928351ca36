"""``probe``: for every head of a layer, the share of what it writes that is static mixing."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable

import numpy as np
from joblib import Parallel, cpu_count, delayed
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ..activations import Activations, ArrayActivations, TextActivations
from ..problem.arrays import Array
from ._results import HeadProbe, LayerProbe
from ._static import Part, Places, fit_static, is_causal, mean_attention, mixing, share

Source = Activations | ArrayActivations

NEEDED = ("values", "heads", "maps")
SHARES = (0.6, 0.2, 0.2)  # of texts: to train, to validate, to test
LEAST_TEXTS = 20
MOST_AT_ONCE = 4  # heads, because each holds its tokens in memory
BETAS = np.geomspace(1.0, 1e-3, 16)  # fractions of beta_max
ENOUGH = 4  # targets to train on, for every coefficient of an output
OF_FIT = ("strengths", "weights", "attention", "certificate", "betas", "validation")
ROUNDING = 1e-5  # what varies less than this, relatively, does not vary


def probe(
    activations: Source | str | os.PathLike[str],
    *,
    window: int = 8,
    tol: float = 1e-6,
    max_texts: int = 2000,
    seed: int = 0,
    n_jobs: int | None = None,
    report: Callable[[int, int], None] | None = None,
) -> LayerProbe:
    r"""How much of every head is static mixing of its own values?

    What a head writes at target t is predicted from its values at fixed offsets from t and at
    landmarks (first and last token, mean, separators of pairs), by the convex program

    .. math:: \min_{Z, b}\ \tfrac12 \sum_t \Bigl\|\sum_k V_{t,k} Z_k + b - Y_t\Bigr\|^2
              + \beta \sum_k w_k \|Z_k\|_F

    at its certified optimum. Texts are split in three: one part trains, one chooses beta, and on
    the last the share of explained variance is measured. Values and outputs are taken as the
    output projection writes them into the layer, so that shares do not depend on the head's inner
    coordinates.

    Parameters
    ----------
    activations : Activations, path-like or ArrayActivations
        Of :func:`~convexformer.activations.extract`, with values, heads and maps; or values and
        maps in memory.
    window : int, default=8
        Offsets from -window to window, as far as texts reach; to 0 where attention is causal.
    tol : float, default=1e-6
        Relative duality gap.
    max_texts : int, default=2000
        Most texts to use; of more, so many are drawn.
    seed : int, default=0
        Draws the split.
    n_jobs : int, optional
        Heads to work on at once, each on one core; as many as there are cores, at most four, if
        omitted.
    report : callable, optional
        Receives the heads done and their total.

    Returns
    -------
    LayerProbe

    Examples
    --------
    A head that attends to the token before, and by one third to anything:

    >>> import numpy as np
    >>> from convexformer import probe
    >>> from convexformer.activations import ArrayActivations
    >>> rng = np.random.default_rng(0)
    >>> values = rng.normal(size=(60, 30, 1, 4))  # texts, tokens, heads, channels
    >>> maps = np.eye(30, k=-1) * 2 / 3 + rng.dirichlet(np.ones(30) / 30, size=(60, 1, 30)) / 3
    >>> maps[:, :, 0] = np.eye(30)[0]
    >>> head = probe(ArrayActivations(values, maps), window=3).heads[0]
    >>> head.offset, head.top[0], round(float(head.attention[2]), 1)
    ('-1', '-1', 0.7)
    """
    start = time.perf_counter()
    if isinstance(activations, (str, os.PathLike)):
        activations = Activations.open(activations)
    found = activations
    _check(found, window, max_texts, tol)
    reach = max(1, int(found.lengths.max()) - 1)  # further places are never read
    texts = _Texts(found, min(window, reach), _split(found, max_texts, seed))
    n_targets = tuple(int(found.lengths[part].sum()) for part in texts.parts)
    _warn_if_few(n_targets[0], len(texts.places.names) * found.head_dim, sum(map(len, texts.parts)))
    heads = []
    workers = min(MOST_AT_ONCE, cpu_count()) if n_jobs is None else n_jobs
    jobs = (delayed(_probe_head)(texts, head, tol) for head in range(found.n_heads))
    with threadpool_limits(limits=1):  # heads side by side: their matrices are small
        for head in Parallel(workers, prefer="threads", return_as="generator")(jobs):
            heads.append(head)
            if report is not None:
                report(len(heads), found.n_heads)
    return LayerProbe(
        model=found.model,
        layer=found.layer,
        n_layers=found.n_layers,
        causal=texts.places.causal,
        n_texts=tuple(len(part) for part in texts.parts),
        n_targets=n_targets,
        heads=heads,
        tol=tol,
        seed=seed,
        seconds=time.perf_counter() - start,
    )


def _check(found: Source, window: int, max_texts: int, tol: float) -> None:
    missing = [kind for kind in NEEDED if kind not in found.keep]
    if missing:
        raise ValueError(
            f"{found.folder} has no {' and no '.join(missing)}; extract again with "
            f"{', '.join(NEEDED)} kept."
        )
    for name, value in (("window", window), ("max_texts", max_texts)):
        if value < 1:
            raise ValueError(f"{name} must be a positive whole number, got {value!r}.")
    if not tol > 0:
        raise ValueError(f"tol must be positive, got {tol!r}.")


def _warn_if_few(targets: int, columns: int, texts: int) -> None:
    """Say so where there is little to learn from, and shares of real heads miss some hundredths."""
    if targets < ENOUGH * columns:
        more = math.ceil(texts * ENOUGH * columns / targets)
        warnings.warn(
            f"few texts: {targets} tokens to train on, for {columns} coefficients of every output. "
            f"Shares will come out too low, unless texts resemble each other; {more} such texts "
            "would do.",
            stacklevel=3,
        )


def check_different(count: int) -> None:
    """Whether so many different texts can be split."""
    if count < LEAST_TEXTS:
        raise ValueError(
            f"a probe needs {LEAST_TEXTS} different texts at least, to train, choose and test on "
            f"different ones; got {count}."
        )


def _split(found: Source, max_texts: int, seed: int) -> list[NDArray[np.intp]]:
    """Texts to train, to validate and to test; the same text is never in two of them."""
    first = {tuple(found.tokens(i)): i for i in reversed(range(len(found)))}
    different = np.random.default_rng(seed).permutation(sorted(first.values()))[:max_texts]
    check_different(len(different))
    ends = np.rint(np.cumsum(SHARES)[:-1] * len(different)).astype(int)
    return [np.sort(part) for part in np.split(different, ends)]


class _Texts:
    """What all heads share: the split, the places, the model's own mean attention."""

    def __init__(self, found: Source, window: int, parts: list[NDArray[np.intp]]) -> None:
        self.found, self.parts = found, parts
        train = parts[0].tolist()
        causal = is_causal(np.asarray(found[i].maps) for i in train)
        self.separators = {i: _inner_separators(found[i]) for part in parts for i in part.tolist()}
        inner = any(flags.any() for flags in self.separators.values())
        self.places = Places(window, causal, inner)
        self.attention = mean_attention(found, train, self.places, self.separators)  # by head
        self.arrays = [self._arrays(part) for part in parts]

    def _arrays(self, part: NDArray[np.intp]) -> tuple[NDArray, ...]:
        """Values and outputs of some texts, padded, with masks of tokens and of separators."""
        lengths = self.found.lengths[part]
        n, heads, e = int(lengths.max()), self.found.n_heads, self.found.head_dim
        V = np.zeros((len(part), n, heads, e), dtype=np.float32)
        Y, flags = np.zeros_like(V), np.zeros((len(part), n), dtype=bool)
        for j, i in enumerate(part):
            text = self.found[int(i)]
            V[j, : lengths[j]], Y[j, : lengths[j]] = text.values, text.heads
            flags[j, : lengths[j]] = self.separators[int(i)]
        return V, Y, np.arange(n) < lengths[:, None], flags

    def of_head(self, head: int) -> list[Part]:
        """Tokens and targets of a head, to train, to validate and to test."""
        axes = _axes(self.found.projection[0][head])
        parts = []
        for V, Y, mask, flags in self.arrays:
            tokens = self.places.tokens(V[:, :, head] @ axes, mask, flags)
            starts = np.concatenate([[0], mask.sum(axis=1).cumsum()[:-1]])
            parts.append(Part(tokens, Y[:, :, head][mask] @ axes, starts))
        return parts


def _inner_separators(text: TextActivations) -> NDArray[np.bool_]:
    """Special tokens of a text other than its first and last."""
    special = text.segments == -1
    special[[0, -1]] = False
    return np.asarray(special)


def _axes(projection: NDArray[np.floating]) -> NDArray[np.float32]:
    """``L (e, e)`` with ``|h L| = |h W|`` for all h: lengths as the projection W makes them."""
    U, s, _ = np.linalg.svd(projection.astype(np.float64), full_matrices=False)
    return np.asarray(U * s, dtype=np.float32)


def _is_constant(part: Part) -> bool:
    """Whether the head writes the same at all targets: then there is nothing to explain."""
    return bool(np.ptp(part.Y, axis=0).max() <= ROUNDING * np.abs(part.Y).max())


def _probe_head(texts: _Texts, head: int, tol: float) -> HeadProbe:
    train, validation, test = texts.of_head(head)
    names, own = texts.places.names, texts.attention[head]
    if any(map(_is_constant, (train, validation, test))):
        return HeadProbe.of_constant(head, names, own)
    fit = fit_static(train, validation, BETAS, tol)
    e = train.Y.shape[1]
    baseline = test.errors(train.Y.mean(axis=0, dtype=np.float64))

    def explained(Z: Array) -> tuple[float, float]:
        b = (train.Y - train.predict(Z, np.zeros(e))).mean(axis=0)
        return share(test.errors(test.predict(Z, b)), baseline)

    found, error = explained(fit.Z)
    return HeadProbe(
        head=head,
        share=found,
        share_error=error,
        attention_share=explained(mixing(fit.attention, e))[0],
        model_attention_share=explained(mixing(own, e))[0],
        names=names,
        model_attention=own,
        **{name: getattr(fit, name) for name in OF_FIT},
    )
