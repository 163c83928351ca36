"""Heads whose answer is known: made by hand, and written as if they had been extracted."""

import numpy as np
from scipy.special import softmax

from convexformer.activations import Activations, TextActivations, _store

E = 6  # channels of a head


def at_offset(offset):
    """Attends to the token at `offset`, to itself where there is none."""

    def attention(n, rng):
        source = np.arange(n) + offset
        source = np.where((source >= 0) & (source < n), source, np.arange(n))
        return np.eye(n)[source]

    return attention


def first(n, rng):
    return np.eye(n)[np.zeros(n, dtype=int)]


def last(n, rng):
    return np.eye(n)[np.full(n, n - 1)]


def uniform(n, rng):
    return np.full((n, n), 1 / n)


def uniform_so_far(n, rng):
    return np.tri(n) / np.arange(1, n + 1)[:, None]


def content(n, rng):
    """Attends to what a query matches, which has nothing to do with where it stands."""
    return softmax(8 * rng.normal(size=(n, 4)) @ rng.normal(size=(4, n)), axis=1)


def content_so_far(n, rng):
    scores = 8 * rng.normal(size=(n, 4)) @ rng.normal(size=(4, n))
    return softmax(np.where(np.tri(n, dtype=bool), scores, -np.inf), axis=1)


def mixed(*parts):
    """A convex combination: ``mixed((0.6, first), (0.4, uniform))``."""
    return lambda n, rng: sum(weight * attention(n, rng) for weight, attention in parts)


def write(folder, kinds, n_texts=150, seed=0, inner_separator=False, turn=None, constant=None):
    """Activations of a layer with these heads; neighbouring values are alike, as in text.

    `turn (E, E)` writes values in other coordinates, which the output projection undoes. Head
    number `constant` writes the same everywhere, but for rounding.
    """
    rng = np.random.default_rng(seed)
    H = len(kinds)
    lengths = rng.integers(16, 40, size=n_texts)
    projection = rng.normal(size=(H, E, 2 * E)).astype(np.float32)
    recipe = {
        "format": _store.FORMAT, "model": "made by hand", "n_texts": n_texts, "layer": 0,
        "n_layers": 1, "n_heads": H, "head_dim": E, "dim": 2 * E, "dtype": "float32",
        "keep": ["values", "heads", "maps"], "batch_size": n_texts,
    }  # fmt: skip
    _store.prepare(folder, overwrite=False)
    texts = []
    for i, n in enumerate(lengths):
        V = rng.normal(size=(n, H, E))
        for t in range(1, n):
            V[t] = 0.6 * V[t - 1] + 0.8 * V[t]
        A = np.stack([attention(n, rng) for attention in kinds])  # (H, n, n)
        outputs = np.einsum("hts,she->the", A, V)
        segments = np.where(np.isin(np.arange(n), [0, n - 1]), -1, 0).astype(np.int8)
        if inner_separator:
            segments[n // 2] = -1
        if turn is not None:
            V, outputs = V @ turn, outputs @ turn
        if constant is not None:
            outputs[:, constant] = 1 + 1e-7 * rng.normal(size=(n, E))
        V, outputs, A = (part.astype(np.float32) for part in (V, outputs, A))
        tokens, offsets = [f"{i}.{t}" for t in range(n)], np.zeros((n, 2), dtype=np.int32)
        read = TextActivations(tokens, offsets, segments, values=V, heads=outputs, maps=A)
        texts.append(read)
    if turn is not None:
        projection = (np.linalg.inv(turn) @ projection).astype(np.float32)
    _store.write_shard(folder / _store.SHARD.format(0), texts)
    bias = np.zeros(2 * E, dtype=np.float32)
    _store.write_tensors(folder / _store.PROJECTION, {"weight": projection, "bias": bias})
    _store.write_recipe(folder, recipe)
    return Activations.open(folder)
