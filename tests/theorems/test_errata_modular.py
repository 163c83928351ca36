"""Erratum 8: division mod 15, where not every b has an inverse."""

from collections import defaultdict
from math import gcd

import pytest


def prompts(p, divisors):
    """Rows ``(a, b) -> c`` with ``a = b c mod p``, as labels by prompt."""
    labels = defaultdict(list)
    for b in divisors:
        for c in range(p):
            labels[b * c % p, b].append(c)
    return labels


def test_erratum_8_multiplying_back_contradicts_itself():
    labels = prompts(15, range(1, 15))
    rows = sum(map(len, labels.values()))
    assert (rows, len(labels)) == (210, 146)
    assert max(map(len, labels.values())) == 5  # as many answers to one question
    right = sum(max(map(answers.count, answers)) for answers in labels.values())
    assert right / rows == pytest.approx(0.695, abs=1e-3)  # what a perfect memory scores


def test_erratum_8_units_do_not():
    units = [b for b in range(1, 15) if gcd(b, 15) == 1]
    labels = prompts(15, units)
    assert len(units) == 8 and len(labels) == 120
    assert all(len(answers) == 1 for answers in labels.values())


def test_erratum_8_a_prime_has_no_such_trouble():
    labels = prompts(97, range(1, 97))
    assert len(labels) == 9312 and all(len(answers) == 1 for answers in labels.values())
