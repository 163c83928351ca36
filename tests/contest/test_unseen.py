"""Cells that are drawn: always the same, within their bounds, of every kind."""

import numpy as np
import pytest
from benchmarks import unseen


def test_draws_follow_from_the_commit():
    assert unseen.draws() == unseen.draws() != unseen.draws("0" * 39 + "1")
    assert unseen.draws(count=5) == unseen.draws()[:5]
    first = unseen.draws()[0]  # a change here changes what was measured before
    assert first.words == "5847x36x17 0.00 squared/0.128" and first.seed == 1676929865


def test_draws_are_within_their_bounds():
    for draw in unseen.draws(count=500):
        least, most = unseen.SAMPLES
        assert least <= draw.N <= most and draw.N * draw.n * draw.d <= 1.01 * unseen.ENTRIES[1]
        assert unseen.TOKENS[0] <= draw.n <= unseen.TOKENS[1] and 1 <= draw.relevant <= draw.n
        assert unseen.FRACTIONS[0] <= draw.fractions[-1] <= unseen.FRACTIONS[1]
        assert 0 <= draw.correlation <= 1
    drawn = unseen.draws()
    for name in ("loss", "penalty", "intercept", "letters", "dtype"):
        kinds = {getattr(draw, name) for draw in unseen.draws(count=500)}
        assert {getattr(draw, name) for draw in drawn} == kinds


@pytest.mark.parametrize("letters", [False, True])
def test_data_of_a_draw_are_always_the_same(letters):
    draw = next(one for one in unseen.draws() if one.letters is letters and one.c > 1)
    task, again = unseen.make(draw), unseen.make(draw)
    assert task.X.shape == (draw.N, draw.n, draw.d) and task.X.dtype == draw.dtype
    assert task.Y.shape == (draw.N, draw.c) and task.loss == draw.loss
    np.testing.assert_array_equal(task.X, again.X)
    np.testing.assert_array_equal(task.Y, again.Y)
    if letters:
        assert set(np.unique(task.X)) == {0, 1} and (task.X.sum(axis=2) == 1).all()
    alike = np.mean([np.corrcoef(task.X[:, k, 0], task.X[:, k + 1, 0])[0, 1] for k in range(4)])
    assert letters or alike == pytest.approx(draw.correlation, abs=0.1)
