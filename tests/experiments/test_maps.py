"""Students of heads: what looks at content learns content, and every map is compared."""

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch
from experiments.lab import Ledger, is_of, read_lines
from experiments.maps import experiment as maps
from experiments.maps import students as map_students
from experiments.maps.__main__ import EXPERIMENT
from experiments.maps.experiment import draw
from experiments.sentences import SentencePairs
from tests.small_models import WORDS, make_bert, save

SMALL = {"layer": 1, "sentences": 60, "components": 8, "steps": 5, "window": 2, "compared": 5}
SHOWN = " ".join(WORDS[:6])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with two trainings of every trained student, and the results."""
    rng = np.random.default_rng(0)
    sentences = [" ".join(rng.choice(WORDS, size=rng.integers(5, 12))) for _ in range(60)]
    pairs = SentencePairs("made up", [(text, text) for text in sentences], [], [])
    model = save(make_bert(), tmp_path_factory.mktemp("models") / "bert")
    folder = tmp_path_factory.mktemp("maps")
    settings = maps.Settings(model=str(model), example=SHOWN, seeds=1, **SMALL)

    def run(settings):
        lecture = maps.Lecture(folder / "activations", settings, pairs)
        return maps.run(Ledger(folder), lecture)

    one = run(settings)
    first = (folder / "jobs.jsonl").read_text()
    two = run(replace(settings, seeds=2))  # the first trainings are there
    whole = (folder / "jobs.jsonl").read_text()
    assert whole.startswith(first) and (first.count("\n"), whole.count("\n")) == (4, 7)
    (folder / "jobs.jsonl").write_text("\n".join(whole.splitlines()[:-1]) + "\n")
    again = run(replace(settings, seeds=2))
    assert again["shares"] == two["shares"] and again["likeness"] == two["likeness"]
    for student in ("softmax", "undertrained", "simplex"):
        assert two["shares"][student][:1] == one["shares"][student]
    return folder, again


@pytest.fixture(scope="module")
def results(finished):
    return finished[1]


def test_jobs_of_another_text_are_not_mixed_in(tmp_path):
    """MRPC may be named between two runs: what was learnt from prose is then done again."""

    def key(text="prose", heads=(1, 0), **changed):
        settings = maps.Settings(**SMALL | changed)
        lecture = maps.Lecture(tmp_path, settings, SentencePairs(text, [], [], []))
        return maps.Job(lecture, "simplex", 0, heads).key

    done = json.loads(json.dumps(key()))
    assert is_of(key(), done) and is_of(key(seeds=7), done)
    for other in (key("MRPC"), key(heads=(2, 0)), key(layer=0)):
        assert not is_of(other, done)


def test_trainings_differ_and_convex_is_fitted_once(finished):
    folder, results = finished
    for student in ("softmax", "undertrained", "simplex"):
        first, second = results["shares"][student]
        assert first != second and first == pytest.approx(second, abs=0.2)
    assert len(results["shares"]["convex"]) == 1 and results["settings"]["seeds"] == 2
    assert len(list(read_lines(folder / "jobs.jsonl"))) == 1 + 3 * 2


def test_only_first_trainings_keep_maps_and_only_of_the_heads_shown(finished):
    folder, results = finished
    heads = [example["head"] for example in results["examples"]]
    explained = results["shares"]["convex"][0]
    assert heads == [np.argmax(explained), np.argmin(explained)]
    for job in read_lines(folder / "jobs.jsonl"):
        assert job["heads"] == heads and (job["example"] is None) == (job["training"] == 1)
        for shown in (job["example"] or {"maps": {}})["maps"].values():
            assert len(shown) == 2


def test_the_sentence_shown_is_not_one_to_learn_from(results):
    shown = [token for token in results["examples"][0]["tokens"] if not token.startswith("[")]
    assert shown == SHOWN.split()


def test_means_and_standard_errors_are_over_trainings(results):
    rows = {row["map"]: row for row in maps.summary(results)}
    first, second = np.mean(results["shares"]["simplex"], axis=1)
    assert rows["simplex"]["share"] == pytest.approx((first + second) / 2)
    assert rows["simplex"]["errors"]["share"] == pytest.approx(abs(first - second) / 2)
    cosines = [np.mean(one["words"]["cosine"]) for one in results["likeness"]["softmax"]]
    error = abs(cosines[0] - cosines[1]) / 2
    assert rows["softmax"]["errors"]["words_cosine"] == pytest.approx(error)
    assert rows["softmax"]["trainings"] == 2 and rows["convex, norms"]["trainings"] == 1
    assert set(rows["convex, norms"]["errors"].values()) == {None}


def test_sentences_follow_the_numbers(results):
    likeness, shares = results["likeness"], results["shares"]
    flat = {"uniform": results["uniform"]}
    trained = [{"all": {"cosine": [0.95]}, "words": {}}] * 2
    poor = [{"all": {"cosine": [0.4]}, "words": {}}] * 2
    flat["uniform"] = {"all": {"cosine": [0.39]}, "words": {}}
    told = results | flat | {"likeness": likeness | {"softmax": trained}}
    told["likeness"]["softmax, undertrained"] = poor
    told["shares"] = shares | {"convex": [[0.6, 0.5]], "simplex": [[0.5, 0.1], [0.5, 0.3]]}
    told["shares"] |= {"softmax": [[0.8, 0.4], [0.9, 0.5]]}
    words = {"words": {"cosine": [0.7]}}
    for name, cosine in {"static attention": 0.6, "norms": 0.75, "contributions": 0.8}.items():
        told["likeness"][f"convex, {name}"] = [{"all": {"cosine": [cosine]}} | words]
    told["likeness"]["simplex"] = [{"all": {"cosine": [0.78]}} | words] * 2
    told = maps.facts(told)
    assert told["readings"][:2] == ["convex, contributions", "convex, norms"]
    assert told["passed"] == "2" and told["shown"]["softmax"][1] == "0.950 ± 0.0000"
    assert told["beside"]["simplex"] == "more, in 2 of 2 heads,"
    assert told["beside"]["softmax"] == "less, in 1 of 2 heads,"
    assert told["shown"]["simplex"][0].startswith("0.350 ± 0.05")


def test_what_the_page_says_of_training_is_so():
    """That a map that looks uniform tells of training: the undertrained is nearer to uniform."""
    rows = maps.facts(json.loads((EXPERIMENT.home / "results.json").read_text()))["rows"]
    names = ("softmax", "softmax, undertrained", "uniform")
    good, poor, flat = (rows[name]["cosine"] for name in names)
    assert flat < poor < good and poor - flat < good - poor


def test_every_map_has_a_row(results):
    shown = maps.facts(results)["shown"]
    assert {*maps.MAPS, "uniform"} == shown.keys()
    assert sum("±" in cell for cell in shown["simplex"]) == 7
    assert not any("±" in cell for cell in shown["convex, contributions"])


def test_the_committed_results_follow_from_the_committed_jobs():
    stored = json.loads((EXPERIMENT.home / "results.json").read_text())
    pairs = SentencePairs(stored["text"], [], [], [])
    lecture = maps.Lecture(EXPERIMENT.home, maps.Settings(), pairs)
    ledger = Ledger(EXPERIMENT.home, report=lambda done, what: pytest.fail(what))
    assert json.loads(json.dumps(maps.run(ledger, lecture))) == stored


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
    assert len(results["likeness"]["simplex"][1]["words"]["cosine"]) == 4


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
    plan = {"rate": 3e-2, "steps": 300}
    means = lesson.Y.mean(dim=(0, 1))
    softmax = map_students.train(map_students.SoftmaxStudent(1, 3, 4, 0.1), lesson, **plan)
    simplex = map_students.train(map_students.SimplexStudent(1, 3, 8), lesson, **plan)
    assert map_students.shares(softmax, test, means)[0] > 0.9
    assert map_students.shares(simplex, test, means)[0] < 0.6
    assert (softmax.attention(test.X, test.mask)[:, 0] - A).abs().mean() < 0.05
    rows = simplex.attention(test.X, test.mask)
    assert torch.equal(rows[0], rows[1]) and torch.allclose(rows.sum(dim=3), torch.ones(1))
