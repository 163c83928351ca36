"""Maps of static mixing are its coefficients, and likeness is what its formulas say."""

import numpy as np
import pytest
from experiments.maps.likeness import contribution_map, likeness, norm_map, pair_coefficients
from scipy.spatial.distance import jensenshannon

from convexformer.probes._static import Places


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("separated", [False, True])
def test_pairs_predict_what_places_predict(causal, separated):
    rng = np.random.default_rng(0)
    n, e = 9, 3
    places = Places(2, causal, separated)
    V = rng.normal(size=(n, e)).astype(np.float32)
    flags = np.isin(np.arange(n), [4]) & separated
    Z = rng.normal(size=(len(places.names), e, e))
    tokens = places.tokens(V[None], np.ones((1, n), dtype=bool), flags[None])  # (n, places, e)
    C = pair_coefficients(Z, places, flags)
    predicted = np.einsum("tke,kef->tf", tokens, Z)
    np.testing.assert_allclose(np.einsum("se,tsef->tf", V, C), predicted, atol=1e-5)
    added = contribution_map(C, V)
    assert added[3, 1] == pytest.approx(np.linalg.norm(V[1] @ C[3, 1]))
    assert norm_map(C)[3, 1] == pytest.approx(np.linalg.norm(C[3, 1]))


def test_weights_of_places_make_a_map():
    places = Places(1, causal=False, separators=False)  # -1, 0, +1, first, last, mean
    A = pair_coefficients(np.array([0.5, 0, 0, 0.3, 0, 0.2]), places, np.zeros(4, dtype=bool))
    np.testing.assert_allclose(A[2], [0.3 + 0.05, 0.5 + 0.05, 0.05, 0.05])
    np.testing.assert_allclose(A[1:].sum(axis=1), 1.0)


def test_likeness():
    rng = np.random.default_rng(0)
    A, B = rng.dirichlet(np.ones(6), size=(2, 6))
    found = likeness(A, B)
    rows = list(zip(A, B, strict=True))
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in rows]
    assert found.cosine == pytest.approx(np.mean(cosines))
    assert found.correlation == pytest.approx(np.mean([np.corrcoef(a, b)[0, 1] for a, b in rows]))
    distances = [jensenshannon(a, b, base=2) ** 2 for a, b in rows]
    assert found.jensen_shannon == pytest.approx(np.mean(distances))
    same = likeness(A, 3 * A)  # rows are made to sum to one
    assert (same.cosine, same.correlation) == pytest.approx((1, 1))
    assert same.jensen_shannon == pytest.approx(0, abs=1e-12)
    assert likeness(np.eye(4), np.eye(4)[::-1]).jensen_shannon == pytest.approx(1)
    assert likeness(A, np.ones((6, 6))).correlation == 0


def test_special_tokens_are_left_out():
    A, B = np.full((4, 4), 0.1), np.full((4, 4), 0.1)
    A[:, 0], B[:, 3] = 0.7, 0.7
    keep = np.array([False, True, True, False])
    assert likeness(A, B).cosine < 0.5
    assert likeness(A, B, keep).cosine == pytest.approx(1)
