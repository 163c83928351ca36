"""Errata 9 and 10: Table 1 against what is counted in the modules."""

import pytest
from experiments.costs.formulas import costs

SIZES = {"tokens": 32, "dim": 64, "outputs": 8}


def counted(index, heads, **sizes):
    return costs(heads=heads, **SIZES | sizes)[index]


@pytest.mark.parametrize("index", [1, 4])
def test_erratum_9_the_alternative_pays_for_every_head(index):
    """Printed: O(nd + c), whatever h."""
    one, twelve = counted(index, 1), counted(index, 12)
    assert twelve["counted_flops"] == 12 * one["counted_flops"]
    assert counted(1, 1)["counted_flops"] == 2 * (32 * 64 + 8)


def test_erratum_10_projections_cost_more_than_scores():
    """Printed: O(n^2 d h + n d h c), without the n d^2 h of queries, keys and values."""
    cost = counted(0, 12)
    n, d, c, h = 32, 64, 8, 12
    printed = 2 * h * (2 * n * n * d + n * d * c)
    projections = 2 * h * 3 * n * d * d
    assert cost["counted_flops"] == printed + projections
    assert projections / cost["counted_flops"] == pytest.approx(0.73, abs=0.01)


def test_erratum_10_the_standard_block_has_the_weights_of_its_fcn():
    """Printed: h(3 d^2 + d c), the same as without the FCN."""
    cost = counted(3, 12)
    assert cost["counted_parameters"] == 4 * 12 * 64**2 + 256 * (64 + 8) + 2 * 64
    assert cost["counted_parameters"] / counted(0, 12)["counted_parameters"] == pytest.approx(
        1.40, abs=0.01
    )
