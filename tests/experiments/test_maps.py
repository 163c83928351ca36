"""Students of heads: what looks at content learns content, and every map is compared."""

from dataclasses import asdict

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch
from tests.small_models import WORDS, make_bert, save

from convexformer.datasets import SentencePairs
from convexformer.experiments import map_students, maps
from convexformer.experiments.maps_figure import draw

SMALL = {"layer": 1, "sentences": 60, "components": 8, "steps": 5, "window": 2, "compared": 5}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    rng = np.random.default_rng(0)
    sentences = [" ".join(rng.choice(WORDS, size=rng.integers(5, 12))) for _ in range(60)]
    pairs = SentencePairs("made up", [(text, text) for text in sentences], [], [])
    model = save(make_bert(), tmp_path_factory.mktemp("models") / "bert")
    folder = tmp_path_factory.mktemp("maps")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maps, "sentence_pairs", lambda: pairs)
        settings = maps.Settings(model=str(model), **SMALL)
        first = maps.run(folder, settings)
        kept = (folder / "softmax.json").stat().st_mtime_ns
        (folder / "simplex.json").unlink()
        again = maps.run(folder, settings)
    assert (folder / "softmax.json").stat().st_mtime_ns == kept
    assert again["shares"] == first["shares"] and again["likeness"] == first["likeness"]
    return again


def test_jobs_of_another_text_are_not_mixed_in():
    """MRPC may be named between two runs: what was learnt from prose is then done again."""
    settings = maps.Settings(**SMALL)
    job = {"settings": asdict(settings), "text": "prose"}
    assert maps._is_of(job, settings, "prose")
    assert not maps._is_of(job, settings, "MRPC")
    assert not maps._is_of(job, maps.Settings(), "prose")


def test_every_map_is_compared(results):
    rows = {row["map"]: row for row in maps.summary(results)}
    assert set(rows) == {*maps.MAPS, "uniform"}
    for row in rows.values():
        assert 0 <= row["jensen_shannon"] <= 1 and -1 <= row["correlation"] <= row["cosine"] <= 1
    assert rows["uniform"]["correlation"] == 0 and rows["uniform"]["share"] is None
    # Hardly trained, softmax attention is uniform attention.
    assert rows["softmax, undertrained"]["cosine"] == pytest.approx(
        rows["uniform"]["cosine"], abs=0.02
    )
    assert results["relative_gap"] <= 1e-6 and results["text"] == "made up"
    assert len(results["likeness"]["simplex"]["words"]["cosine"]) == 4


def test_the_figure_shows_teacher_and_students(results):
    figure = draw(results)
    assert len(figure.axes) == 2 * 7
    example = results["examples"][0]
    shown = np.asarray(figure.axes[0].collections[0].get_array())
    np.testing.assert_allclose(shown, example["maps"]["teacher"], atol=2e-3)
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == example["tokens"]


def _lesson(N=200, n=8, d=4, seed=0):
    """A head that attends to the token whose first channel matches the target's second."""
    rng = np.random.default_rng(seed)
    X = torch.tensor(rng.normal(size=(N, n, d)), dtype=torch.float32)
    V = torch.tensor(rng.normal(size=(N, n, 1, 3)), dtype=torch.float32)
    A = (3 * X[:, :, 1:2] * X[:, None, :, 0]).softmax(dim=2)
    return map_students.Lesson(X, V, torch.einsum("its,ishe->ithe", A, V), torch.ones(N, n) > 0), A


def test_softmax_learns_content_and_simplex_cannot():
    torch.manual_seed(0)
    (lesson, _), (test, A) = _lesson(), _lesson(seed=1)
    training = map_students.Training(rate=3e-2, steps=300)
    means = lesson.Y.mean(dim=(0, 1))
    softmax = map_students.train(map_students.SoftmaxStudent(1, 3, 4, 0.1), lesson, training)
    simplex = map_students.train(map_students.SimplexStudent(1, 3, 8), lesson, training)
    assert map_students.shares(softmax, test, means)[0] > 0.9
    assert map_students.shares(simplex, test, means)[0] < 0.6
    assert (softmax.attention(test)[:, 0] - A).abs().mean() < 0.05
    rows = simplex.attention(test)
    assert torch.equal(rows[0], rows[1]) and torch.allclose(rows.sum(dim=3), torch.ones(1))
