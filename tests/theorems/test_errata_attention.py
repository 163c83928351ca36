"""Erratum 7: simplex attention, one matrix for all samples, beside softmax attention."""

import numpy as np
import pytest
import torch

from convexformer.nn import SoftmaxAttention


def test_erratum_7_one_matrix_is_not_the_attention_of_many_samples():
    rng = np.random.default_rng(0)
    X = torch.tensor(rng.normal(size=(20, 4, 3)))
    network = SoftmaxAttention(3, 3, dtype=torch.float64)
    network.query.data, network.key.data = torch.tensor(rng.normal(size=(2, 1, 3, 3)))
    A = network.attention(X)[:, 0].detach()  # (N, n, n)
    target = A @ X
    # Each sample has its W on the simplex: its own attention.
    assert torch.all(A >= 0) and torch.allclose(A.sum(2), torch.ones(20, 4, dtype=torch.float64))
    # All samples together have none: not even a W without constraints, fitted by least squares.
    rows = X.transpose(1, 2).reshape(-1, 4).numpy()  # (N d, n)
    wanted = target.transpose(1, 2).reshape(-1, 4).numpy()
    W = np.linalg.lstsq(rows, wanted, rcond=None)[0].T
    missed = np.sum((rows @ W.T - wanted) ** 2) / np.sum(wanted**2)
    assert missed == pytest.approx(0.493, abs=1e-3)
