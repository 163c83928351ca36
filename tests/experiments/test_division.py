"""Modular division: every equation is true, and splits are splits."""

import numpy as np
import pytest
from experiments.grokking.division import modular_division


@pytest.mark.parametrize(("p", "count"), [(97, 9312), (15, 120), (7, 42)])
def test_every_equation_is_there_once_and_true(p, count):
    equations = modular_division(p)
    a, sign, b, equality = equations.tokens.T
    assert len(np.unique(equations.tokens, axis=0)) == len(a) == count
    assert set(sign) == {p} and set(equality) == {p + 1} and equations.vocabulary == p + 2
    np.testing.assert_array_equal(equations.answers * b % p, a)
    assert equations.answers.min() == 0 and equations.answers.max() == p - 1


def test_a_split_is_random_by_seed_and_loses_nothing():
    first, again, other = (modular_division(97, seed=seed) for seed in (0, 0, 1))
    assert len(first.train) == 4656
    np.testing.assert_array_equal(first.train, again.train)
    assert set(first.train) != set(other.train)
    assert sorted([*first.train, *first.test]) == list(range(9312))


def test_validation_takes_from_the_training_half_alone():
    equations = modular_division(97, train=0.5, seed=3)
    inner = equations.validation(0.1)
    assert len(inner.test) == 466
    assert sorted([*inner.train, *inner.test]) == sorted(equations.train)
