r"""Attention maps of static mixing, and how much two maps are alike.

Static mixing has a matrix for every pair of target t and token s, the sum over the places that s
is, seen from t:

.. math:: C_{ts} = \sum_{k:\ s \text{ is place } k \text{ of } t} Z_k\ (+\ Z_{mean} / n)
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import rel_entr

from convexformer.probes._static import Places

Array = NDArray[np.float64]


def pair_coefficients(Z: Array, places: Places, separators: NDArray[np.bool_]) -> Array:
    """``C (n, n, ...)`` of coefficients ``Z (places, ...)``, for a text of n tokens.

    With ``Z = weights`` of places, this is a map of attention; with matrices, one of matrices.
    """
    n = len(separators)
    seen = places.tokens(np.eye(n)[None], np.ones((1, n), dtype=bool), separators[None])
    return np.einsum("tks,k...->ts...", seen.astype(float), Z)  # (targets, places, tokens)


def norm_map(C: Array) -> Array:
    """How large the coefficients of every pair are: ``(n, n)``, the same for every text."""
    return np.asarray(np.linalg.norm(C, axis=(2, 3)))


def contribution_map(C: Array, V: NDArray[np.floating]) -> Array:
    """How much every token adds to what is written at a target: ``|V_s C_ts|``, ``(n, n)``."""
    return np.asarray(np.linalg.norm(np.einsum("se,tsef->tsf", V, C), axis=2))


class Likeness(NamedTuple):
    """How alike two maps are, mean over targets.

    Attributes
    ----------
    cosine, correlation : float
        Of the rows; a row that does not vary has no correlation and counts as 0.
    jensen_shannon : float
        Divergence of the rows, each made to sum to one, in bits: 0 is the same, 1 is disjoint.
    """

    cosine: float
    correlation: float
    jensen_shannon: float


def likeness(A: Array, B: Array, keep: NDArray[np.bool_] | None = None) -> Likeness:
    """Compare the rows of two maps ``(n, n)``, among the tokens to `keep` only."""
    if keep is not None:
        A, B = A[np.ix_(keep, keep)], B[np.ix_(keep, keep)]
    P, Q = _rows(A), _rows(B)
    centred = [rows - rows.mean(axis=1, keepdims=True) for rows in (P, Q)]
    middle = (P + Q) / 2
    nats = (rel_entr(P, middle) + rel_entr(Q, middle)).sum(axis=1) / 2
    return Likeness(_cosine(P, Q), _cosine(*centred), float(np.mean(nats) / np.log(2)))


def _rows(A: Array) -> Array:
    """Rows that sum to one; a row of zeros is uniform."""
    A = np.maximum(np.asarray(A, dtype=np.float64), 0.0)
    total = A.sum(axis=1, keepdims=True)
    return np.where(total > 0, A / np.where(total > 0, total, 1.0), 1.0 / A.shape[1])


def _cosine(P: Array, Q: Array) -> float:
    sizes = np.linalg.norm(P, axis=1) * np.linalg.norm(Q, axis=1)
    tiny = sizes < 1e-15
    return float(np.mean(np.where(tiny, 0.0, np.sum(P * Q, axis=1) / np.where(tiny, 1.0, sizes))))
