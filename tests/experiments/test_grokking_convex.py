"""The truly convex layer: certified, and on random embeddings at chance."""

import numpy as np
import pytest
from experiments.grokking import jobs as grokking_convex
from experiments.grokking.division import modular_division
from experiments.grokking.jobs import ConvexJob, convex_jobs, learnt_embedding


@pytest.mark.parametrize("loss", ["squared", "softmax"])
def test_a_program_is_solved_to_its_gap(loss, tmp_path):
    record = ConvexJob("random", loss, gates=2, beta=0.1, modulus=7).run()
    assert record["relative_gap"] <= grokking_convex.LOSSES[loss]
    assert record["coefficients"] == 3 * 4 * 32 * 7
    assert record["train_accuracy"] > record["test_accuracy"]


def test_at_the_certified_optimum_random_embeddings_stay_at_chance(tmp_path):
    record = ConvexJob("random", "squared", gates=0, beta=0.1).run()
    assert record["relative_gap"] <= 1e-6 and record["test_accuracy"] < 0.03


def test_learnt_embeddings_are_fixed_numbers(monkeypatch):
    monkeypatch.setattr(grokking_convex, "LEARNING_STEPS", 25)
    E = learnt_embedding(modular_division(7), 0)
    assert E.shape == (9, 32) and E.dtype == np.float64
    np.testing.assert_array_equal(E, learnt_embedding(modular_division(7), 0))


def test_every_program_is_a_different_job():
    keys = [str(job.key) for job in convex_jobs()]
    assert len(set(keys)) == len(keys) == 14
