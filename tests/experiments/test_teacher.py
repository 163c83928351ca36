"""Students of a teacher: moments, certificates, floors, the ledger, and the command."""

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot as plt
from tests.small_models import WORDS, make_bert, save

from convexformer.experiments import teacher, teacher_claims
from convexformer.experiments.teacher_convex import ConvexStudent, fit
from convexformer.experiments.teacher_data import (
    TARGETS,
    Lesson,
    Lessons,
    Part,
    Task,
    Teacher,
    components,
)
from convexformer.experiments.teacher_jobs import (
    CERTIFIED,
    LABELS,
    TRAINED,
    Budget,
    floor,
    known_floor,
    null_objective,
)
from convexformer.experiments.teacher_moments import class_moments, text_moments
from convexformer.experiments.teacher_students import converged, stalled, train
from convexformer.problem.offsets import OffsetDesign, Offsets

LANDMARKS = ("first", "last", "mean", "separators")
HEAD = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"


def make_part(rng, N, target, n=8, d=3):
    X = rng.normal(size=(N, n, d)).astype(np.float32)
    X[:, :, -1] = 1.0
    separators = np.arange(n) == rng.integers(2, n - 2, size=(N, 1))
    return Part(X, np.asarray(target(X), dtype=np.float32), separators)


def make_lesson(target, N=150):
    rng = np.random.default_rng(0)
    parts = [make_part(rng, size, target) for size in (N, 60, 60)]
    return Lesson(Task(), *parts, share=1.0)


def previous(X):
    """Every position shows what stands before it."""
    Y = np.zeros((*X.shape[:2], 2))
    Y[:, 1:] = X[:, :-1, :2]
    return Y


def turning(X):
    """Which neighbour is shown depends on the token itself."""
    left, right = np.zeros_like(X), np.zeros_like(X)
    left[:, 1:], right[:, :-1] = X[:, :-1], X[:, 1:]
    return np.where(X[:, :, :1] > 0, left, right)[:, :, :2]


# Moments and convex students --------------------------------------------------------------------


def test_moments_of_positions_give_those_of_offsets():
    part = make_part(np.random.default_rng(1), 20, previous)
    design = OffsetDesign(part.X, Offsets(-2, 3, LANDMARKS), separators=part.separators)
    Y = part.Y.reshape(-1, 2).astype(np.float64)
    (slow,) = class_moments(design, Y, [np.ones(len(Y), dtype=bool)])
    fast = text_moments(design, Y)
    np.testing.assert_allclose(fast.gram, slow.gram, atol=1e-9)
    np.testing.assert_allclose(fast.total, slow.total, atol=1e-9)
    assert fast.count == slow.count == len(Y)


@pytest.mark.parametrize("penalty", ["token", "token-output", "nuclear"])
def test_an_offset_student_finds_the_token_before_and_proves_it(penalty):
    lesson = make_lesson(previous)
    told = fit(ConvexStudent("", penalty, Offsets(-2, 2, LANDMARKS)), lesson)
    alone = fit(ConvexStudent("", penalty, Offsets(0, 0)), lesson)
    best = min(told.path, key=lambda point: point["validation"])
    assert best["test"] < 0.01 < 0.9 < min(point["test"] for point in alone.path)
    assert told.certificate.relative_gap <= 1e-4 and told.share == best["share"]
    assert told.seconds <= told.seconds_of_all


def test_gates_see_what_no_static_mixing_can():
    lesson = make_lesson(turning, N=300)
    losses = {}
    for gates in (1, 4):
        told = fit(ConvexStudent("", "token", Offsets(-1, 1), gates), lesson)
        assert told.certificate.relative_gap <= 1e-4
        losses[gates] = min(point["test"] for point in told.path)
    assert losses[4] < 0.8 * losses[1]


def test_a_certificate_is_of_the_whole_problem():
    """At zero coefficients the objective is half the sum of squares about the mean."""
    lesson = make_lesson(previous)
    student = ConvexStudent("", "token", Offsets(-1, 1), betas=(1.0,))
    Y = lesson.train.Y.reshape(-1, 2).astype(np.float64)
    told = fit(student, lesson).certificate
    assert told.primal == pytest.approx(0.5 * np.sum((Y - Y.mean(axis=0)) ** 2))
    assert told.beta == pytest.approx(told.beta_max)


# Trained students -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["softmax-1", "softmax-4", "simplex", "adam", "perceptron"])
@pytest.mark.parametrize("first", [False, True])
def test_every_student_learns_something(name, first):
    def target(X):
        return X[:, :1, :2] if first else X[:, :, :2]

    lesson = make_lesson(target)
    told = train(TRAINED[name], lesson, 1e-2, 1e-6, seed=0, steps=75, patience=50, batch=64)
    assert told.losses["test"] < 0.9 and told.losses.keys() == {"train", "validation", "test"}
    assert told.objective >= told.losses["train"] and told.parameters > 0
    assert told.curve[0]["validation"] > told.curve[-1]["validation"]


@pytest.mark.parametrize("name", ["adam", "simplex"])
@pytest.mark.parametrize("first", [False, True])
def test_no_training_passes_the_floor_of_its_class(name, first):
    lesson = make_lesson(lambda X: previous(X)[:, 1:2] if first else previous(X))
    told = train(TRAINED[name], lesson, 1e-2, 1e-3, seed=0, steps=50, patience=50, batch=64)
    known = floor(name, lesson.train, 1e-3)
    lowest = known.dual / null_objective(lesson.train)
    assert known.relative_gap <= 1e-3
    assert 1e-3 < lowest < told.objective < 1.1  # a bound that says something


def test_decay_may_spare_queries_and_keys():
    lesson = make_lesson(previous)
    objectives = {
        name: train(TRAINED[name], lesson, 1e-2, 0.1, 0, steps=1, patience=5, batch=64)
        for name in ("softmax-1", "softmax-1-values", "softmax-1-none")
    }
    extra = [told.objective - told.losses["train"] for told in objectives.values()]
    assert extra[0] > extra[1] > 0 == extra[2]


def test_when_training_stalls_and_when_it_had_converged():
    curve = [{"validation": v, "seconds": s} for s, v in enumerate([1, 0.5, 0.402, 0.4, 0.4, 0.4])]
    assert converged(curve) == 2 and stalled(curve, 2) and not stalled(curve[:4], 2)


# From an encoder to the page --------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return save(make_bert(), tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def mrpc(tmp_path_factory):
    """Sentences of random words, in MRPC's files."""
    folder, rng = tmp_path_factory.mktemp("mrpc"), np.random.default_rng(0)

    def line(number):
        first, second = (" ".join(rng.choice(WORDS, size=6)) for _ in range(2))
        return f"1\t{number}\t{number}\t{first}\t{second}\n"

    lines = [line(number) for number in range(150)]
    (folder / "msr_paraphrase_train.txt").write_text(HEAD + "".join(lines[:110]))
    (folder / "msr_paraphrase_test.txt").write_text(HEAD + "".join(lines[110:]))
    (folder / "dev_ids.tsv").write_text("".join(f"{k}\t{k}\n" for k in range(30)))
    return folder


@pytest.fixture(scope="module")
def lessons(encoder, mrpc, tmp_path_factory):
    from convexformer.datasets import mrpc as read

    settings = Teacher(str(encoder), layer=1, n_tokens=10)
    return Lessons(settings, read(mrpc), tmp_path_factory.mktemp("activations"))


def test_lessons_hold_what_the_layer_reads_and_writes(lessons):
    assert lessons.sizes == (80, 30, 40)
    shapes = {"attention": (10, 5), "first": (1, 5), "head": (10, 5), "output": (10, 5)}
    for target, shape in shapes.items():
        lesson = lessons.lesson(Task(target, dim=7, outputs=5))
        assert lesson.train.X.shape == (80, 10, 8) and lesson.train.Y.shape == (80, *shape)
        assert lesson.train.variance == pytest.approx(1.0, abs=1e-5) and 0 < lesson.share <= 1
        assert np.all(lesson.test.X[:, :, -1] == 1)
        assert np.all(lesson.train.separators.sum(axis=1) == 1)
    with pytest.raises(ValueError, match="head must be below 4"):
        lessons.lesson(Task("head", head=4))


def test_all_channels_are_rotated_and_none_is_lost():
    X = np.random.default_rng(0).normal(size=(50, 4, 3)).astype(np.float32)
    (rotated,), share = components([X], None)
    assert share == pytest.approx(1.0)
    distances = [np.linalg.norm(A[:, 0] - A[:, 1], axis=1) for A in (X, rotated)]
    np.testing.assert_allclose(distances[0] / distances[1], distances[0][0] / distances[1][0], 1e-4)


def test_too_few_full_texts_are_an_error(encoder, mrpc, tmp_path):
    from convexformer.datasets import mrpc as read

    with pytest.raises(ValueError, match=r"have 20 tokens; use longer texts"):
        Lessons(Teacher(str(encoder), n_tokens=20), read(mrpc), tmp_path)


def test_the_command_says_what_differs_from_the_usual():
    words = "convexformer reproduce teacher"
    assert teacher.command(Teacher(), teacher.STUDIES) == words
    other = Teacher("other", layer=1, n_tokens=16)
    told = teacher.command(other, teacher.FEW_STUDIES)
    assert told == f"{words} --model other --layer 1 --tokens 16 --few"


def test_twelve_softmax_heads_are_asked_for_wherever_convex_could_win():
    asked = {}
    for study in teacher.STUDIES:
        key = (study.task.target, study.task.dim)
        asked.setdefault(key, set()).update(study.students)
    assert {key for key, students in asked.items() if "softmax-12" not in students} == {
        ("head", 64)  # where one softmax head wins
    }


def short_studies():
    budget = Budget(steps=10, tuning_steps=5, seeds=2)
    task, names = Task("attention", 64, 4), ("linear", "offsets", "gated-8", "softmax-1")
    return (
        teacher.Study(task, (*names, "undertrained"), budget),
        teacher.Study(Task("first", 64, 4), ("positions", "adam", "undertrained"), budget),
        teacher.Study(Task("attention", None, 4), ("undertrained",), budget, like=task),
    )


@pytest.fixture(scope="module")
def finished(lessons, tmp_path_factory):
    """A folder with finished jobs, the results, and what was done."""
    done, folder = [], tmp_path_factory.mktemp("teacher")
    report = lambda count, what: done.append(what)
    return folder, teacher.run(lessons, folder, short_studies(), report=report), done


def test_finished_jobs_are_not_done_again(lessons, finished):
    folder, results, done = finished
    whole = 2 + 2 + (6 + 2) + (1 + 1)  # convex, gates of two seeds, a grid and two seeds
    first = 1 + (6 + 2 + 1) + (1 + 1)  # with a floor
    assert len(done) == whole + first + 2  # tuned with the usual budget
    again = teacher.run(lessons, folder, short_studies(), report=lambda *_: pytest.fail("again"))
    assert again == results == json.loads((folder / "results.json").read_text())
    assert results["complete"] and len(results["rows"]) == 9


def test_convex_rows_have_gaps_and_objectives_floors(finished):
    for row in finished[1]["rows"]:
        assert ("relative_gap" in row) == row["convex"]
        assert row.get("relative_gap", 0) <= 1e-4
        assert row.get("floor", 0) <= row["objective"]
    assert sum("floor" in row for row in finished[1]["rows"]) == 5


def test_results_that_ran_out_of_time_say_so(lessons, tmp_path):
    late = teacher.run(lessons, tmp_path, short_studies(), max_minutes=0)
    assert not late["complete"] and late["rows"] == []
    assert late["missing"]["first"] == ["positions", "adam", "undertrained"]


def test_page_and_figures_are_made_of_results_alone(finished):
    from convexformer.experiments.teacher_figures import draw_all
    from convexformer.experiments.teacher_page import render

    results = finished[1]
    figures = draw_all(results)
    assert {"paper", "whole", "bars"} <= figures.keys()
    page = render(results, {name: f"{name}.png" for name in figures})
    assert "UNDERTRAINED" in page and "MRPC" in page and "above the certified floor" in page
    assert all(f"({name}.png)" in page for name in figures)
    prose = render(results | {"text": "prose", "missing": {"head": ["simplex"]}}, {})
    assert "not MRPC" in prose and "Not run yet, one head, whole sequence: simplex" in prose
    plt.close("all")


def row(student, loss, curve=(1.0, 0.5), **more):
    """A summary with what sentences are made of."""
    kept = {"task": Task().key, "student": student, "convex": student in CERTIFIED}
    losses = {f"{part}_loss": loss for part in ("train", "validation", "test")}
    kept |= losses | {"test_error": None, "seconds": 1.0, "seconds_to_converge": 1.0}
    return kept | {"lr": 1e-2, "decay": 1e-6, "curve": {"validation": list(curve)}} | more


def told(*rows):
    results = {"rows": list(rows), "labels": LABELS, "targets": TARGETS, "text": "prose"}
    sentences = [*teacher_claims.summary(results), *teacher_claims.findings(results)]
    return " ".join(sentences), results


def test_sentences_follow_the_numbers():
    poor, convex = row("undertrained", 0.7), row("offsets", 0.4, relative_gap=1e-6)
    words, _ = told(poor, convex, row("softmax-1", 0.5))
    assert "67% of its distance to the best convex student" in words
    assert "not of models" not in words and "All 1 convex students are certified" in words
    assert "not of models" in told(poor, convex, row("softmax-1", 0.3))[0]
    assert "0 of 1 convex students are certified" in told(row("offsets", 0.4, relative_gap=0.1))[0]


def test_a_loss_that_still_falls_is_told():
    convex, falling = row("offsets", 0.4), row("softmax-1", 0.5, np.geomspace(1, 0.5, 20))
    words, _ = told(convex, falling)
    assert "still falling when its steps were used up" in words and "Not converged" in words
    steady = row("softmax-1", 0.5, [*np.geomspace(1, 0.5, 20), 0.5, 0.5, 0.5, 0.5])
    words, _ = told(convex, steady)
    assert "falling" not in words and "Not converged" not in words


def test_who_chose_the_largest_learning_rate_is_said_to_be_able_to_do_better():
    convex, head = row("offsets", 0.4), row("softmax-1", 0.5)
    words, _ = told(convex, head)
    assert "Of 1 tuned trained students 1 chose the largest learning rate" in words
    assert "The head chose the largest learning rate of its grid and might do better." in words
    assert "The other chose the largest" in words and "beaten" not in words
    inside, _ = told(convex, head | {"lr": 3e-3})
    assert "trained students 0 chose the largest" in inside and "might do better." not in inside
    assert (
        "no convex student has a lower loss than a single" in told(convex, row("softmax-1", 0.3))[0]
    )


def test_convex_wins_only_over_students_that_were_run_to_their_end():
    convex, perceptron = row("offsets", 0.2), row("perceptron", 0.3)
    assert "ahead of what was run" in told(convex, perceptron)[0]
    done = row("softmax-12", 0.4)
    assert "Convex is ahead of what was run." in told(convex, perceptron, done)[0]
    assert "Convex is ahead of what was run." in told(convex, row("perceptron", 0.5), done)[0]
    falling = row("softmax-12", 0.4, np.geomspace(1, 0.4, 20))
    words, _ = told(convex, perceptron, falling)
    assert (
        "ahead of what was run, but" in words
        and "last step: softmax attention, 12 heads (0.400)." in words
    )
    assert "Convex loses." in told(row("offsets", 0.35), perceptron, falling)[0]


def test_a_bound_that_is_far_from_its_optimum_is_no_floor():
    known = row("simplex", 0.5, objective=0.5, floor=0.4, floor_gap=1e-3)
    assert "ends 25.0% above the certified floor" in told(known)[0]
    loose = known | {"floor": 0.003, "floor_gap": 0.99}
    words, _ = told(loose)
    assert "certified floor" not in words and "No floor, because" in words
    assert known_floor(known) == 0.4 and known_floor(loose) is None


def test_the_best_is_chosen_on_validation():
    lucky = row("linear", 0.4, test_loss=0.1)  # would win if tests chose
    words, _ = told(lucky, row("offsets", 0.3), row("softmax-1", 0.2))
    assert f"the best convex student is {LABELS['offsets']}" in words and "Convex loses" in words


@pytest.mark.parametrize("name", ["teacher", "teacher-mpnet"])
def test_the_committed_page_is_that_of_the_committed_results(name):
    from convexformer.experiments.teacher_page import CAPTIONS, render

    root = Path(__file__).parents[2]
    results = json.loads((root / "benchmarks" / name / "results.json").read_text())
    links = {part: f"figures/{name}-{part}.png" for part in CAPTIONS}
    drawn = {part: link for part, link in links.items() if (root / "docs" / link).exists()}
    assert (root / "docs" / f"{name}.md").read_text() == render(results, drawn)
    assert all(row.get("relative_gap", 0) <= 1e-4 for row in results["rows"])
