"""Erratum 8: division mod 15, where not every b has an inverse."""

from collections import defaultdict
from math import comb, gcd

import numpy as np
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


def cap(labels, size):
    """Best test accuracy of any function of the prompt, averaged over all test parts of a size.

    Answers to a prompt differ, so that one of those in the test part can be right: what counts is
    how many prompts the part has, of all ``comb(rows, size)`` parts.
    """
    rows = sum(map(len, labels.values()))
    missed = [comb(rows - len(answers), size) / comb(rows, size) for answers in labels.values()]
    return sum(1 - share for share in missed) / size


def test_erratum_8_caps_of_test_accuracy():
    labels = prompts(15, range(1, 15))
    assert all(len(set(answers)) == len(answers) for answers in labels.values())
    assert cap(labels, 210) == pytest.approx(0.695, abs=1e-3)  # the whole table
    assert cap(labels, 105) == pytest.approx(0.794, abs=1e-3)  # half of it to test
    assert cap(labels, 42) == pytest.approx(0.901, abs=1e-3)  # a fifth


def test_erratum_8_a_sampled_split_agrees_with_the_average():
    """The same by drawing test parts; of 2,000 halves none lets 99 % be reached."""
    labels = prompts(15, range(1, 15))
    rows = [prompt for prompt, answers in labels.items() for _ in answers]
    rng = np.random.default_rng(0)
    highest = {}
    for size, average in ((105, 0.794), (42, 0.901)):
        drawn = (rng.permutation(len(rows))[:size] for _ in range(2000))
        caps = [len({rows[k] for k in test}) / size for test in drawn]
        assert np.mean(caps) == pytest.approx(average, abs=5e-3)
        highest[size] = max(caps)
    assert highest[105] < 0.99


def test_erratum_8_units_do_not():
    units = [b for b in range(1, 15) if gcd(b, 15) == 1]
    labels = prompts(15, units)
    assert len(units) == 8 and len(labels) == 120
    assert all(len(answers) == 1 for answers in labels.values())


def test_erratum_8_a_prime_has_no_such_trouble():
    labels = prompts(97, range(1, 97))
    assert len(labels) == 9312 and all(len(answers) == 1 for answers in labels.values())
