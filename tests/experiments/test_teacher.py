"""Students of a teacher: moments, certificates, floors, the ledger, and the command."""

import json
from dataclasses import replace

import numpy as np
import pytest
from experiments.lab import Ledger, render
from experiments.teacher import experiment as teacher
from experiments.teacher.__main__ import EXPERIMENT, MPNET
from experiments.teacher.convex import ConvexStudent, fit, small_problems
from experiments.teacher.data import (
    TARGETS,
    Lesson,
    Lessons,
    Part,
    Task,
    Teacher,
    components,
)
from experiments.teacher.experiment import (
    CERTIFIED,
    LABELS,
    TRAINED,
    Budget,
    floor,
    known_floor,
    null_objective,
)
from experiments.teacher.students import converged, stalled, train
from tests.small_models import WORDS, make_bert, save

from convexformer.problem import OffsetDesign, Offsets, Problem, Squared, Token
from convexformer.solvers import solve_path

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
    return Lesson(Task(), *parts)


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


def test_small_problems_have_the_objective_of_all_samples():
    rng = np.random.default_rng(1)
    part = make_part(rng, 20, previous)
    design = OffsetDesign(part.X, Offsets(-2, 3, LANDMARKS), separators=part.separators)
    Y, penalty = part.Y.reshape(-1, 2).astype(np.float64), Token()
    classes = [belongs := rng.random(len(Y)) < 0.3, ~belongs]
    for belongs, one in zip(classes, small_problems(design, Y, classes, penalty), strict=True):
        whole = Problem(design, Squared(), penalty, Y, belongs.astype(float))
        Z = rng.normal(size=(design.n_groups, design.dim, 2))
        (small,) = solve_path(one.problem, [1.0], tol=1e-9)
        intercept = one.intercept(replace(small, Z=Z))
        np.testing.assert_allclose(
            one.problem.certificate(Z, np.zeros(2), 1.0).primal,
            whole.certificate(Z, intercept, 1.0).primal,
        )
        assert len(one.problem.design.X) <= design.n_groups * design.dim + 2


@pytest.mark.parametrize("penalty", ["token", "token-output", "nuclear"])
def test_an_offset_student_finds_the_token_before_and_proves_it(penalty):
    lesson = make_lesson(previous)
    certificate, told = fit(ConvexStudent("", penalty, Offsets(-2, 2, LANDMARKS)), lesson)
    curve, alone = told["curve"], fit(ConvexStudent("", penalty, Offsets(0, 0)), lesson)[1]["curve"]
    best = np.argmin(curve["validation"])
    assert curve["test"][best] < 0.01 < 0.9 < min(alone["test"])
    assert certificate.relative_gap <= 1e-4
    assert told["chosen"] == pytest.approx(curve["share"][best], rel=1e-4)
    assert told["seconds"] <= told["seconds_of_all"]


def test_gates_see_what_no_static_mixing_can():
    lesson = make_lesson(turning, N=300)
    losses = {}
    for gates in (1, 4):
        certificate, told = fit(ConvexStudent("", "token", Offsets(-1, 1), gates), lesson)
        assert certificate.relative_gap <= 1e-4
        losses[gates] = min(told["curve"]["test"])
    assert losses[4] < 0.8 * losses[1]


def test_a_certificate_is_of_the_whole_problem():
    """At zero coefficients the objective is half the sum of squares about the mean."""
    lesson = make_lesson(previous)
    student = ConvexStudent("", "token", Offsets(-1, 1), betas=(1.0,))
    Y = lesson.train.Y.reshape(-1, 2).astype(np.float64)
    told, _ = fit(student, lesson)
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
    losses, curve = told["losses"], told["curve"]["validation"]
    assert losses["test"] < 0.9 and losses.keys() == {"train", "validation", "test"}
    assert told["objective"] >= losses["train"] and told["parameters"] > 0
    assert curve[0] > curve[-1]


@pytest.mark.parametrize("name", ["adam", "simplex"])
@pytest.mark.parametrize("first", [False, True])
def test_no_training_passes_the_floor_of_its_class(name, first):
    lesson = make_lesson(lambda X: previous(X)[:, 1:2] if first else previous(X))
    told = train(TRAINED[name], lesson, 1e-2, 1e-3, seed=0, steps=50, patience=50, batch=64)
    known = floor(name, lesson.train, 1e-3)
    lowest = known.dual / null_objective(lesson.train)
    assert known.relative_gap <= 1e-3
    assert 1e-3 < lowest < told["objective"] < 1.1  # a bound that says something


def test_decay_may_spare_queries_and_keys():
    lesson = make_lesson(previous)
    objectives = {
        name: train(TRAINED[name], lesson, 1e-2, 0.1, 0, steps=1, patience=5, batch=64)
        for name in ("softmax-1", "softmax-1-values", "softmax-1-none")
    }
    extra = [told["objective"] - told["losses"]["train"] for told in objectives.values()]
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
    from experiments.sentences import mrpc as read

    settings = Teacher(str(encoder), layer=1, n_tokens=10)
    return Lessons(settings, read(mrpc), tmp_path_factory.mktemp("activations"))


def test_lessons_hold_what_the_layer_reads_and_writes(lessons):
    assert lessons.sizes == (80, 30, 40)
    shapes = {"attention": (10, 5), "first": (1, 5), "head": (10, 5), "output": (10, 5)}
    for target, shape in shapes.items():
        lesson = lessons.lesson(Task(target, dim=7, outputs=5))
        assert lesson.train.X.shape == (80, 10, 8) and lesson.train.Y.shape == (80, *shape)
        assert lesson.train.variance == pytest.approx(1.0, abs=1e-5)
        assert np.all(lesson.test.X[:, :, -1] == 1)
        assert np.all(lesson.train.separators.sum(axis=1) == 1)


def test_all_channels_are_rotated_and_none_is_lost():
    X = np.random.default_rng(0).normal(size=(50, 4, 3)).astype(np.float32)
    (rotated,) = components([X], None)
    distances = [np.linalg.norm(A[:, 0] - A[:, 1], axis=1) for A in (X, rotated)]
    np.testing.assert_allclose(distances[0] / distances[1], distances[0][0] / distances[1][0], 1e-4)


def test_too_few_full_texts_are_an_error(encoder, mrpc, tmp_path):
    from experiments.sentences import mrpc as read

    with pytest.raises(ValueError, match=r"have 20 tokens; use longer texts"):
        Lessons(Teacher(str(encoder), n_tokens=20), read(mrpc), tmp_path)


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
    ledger = Ledger(folder, report=lambda count, what: done.append(what))
    return folder, teacher.run(ledger, lessons, short_studies()), done


def test_finished_jobs_are_not_done_again(lessons, finished):
    folder, results, done = finished
    whole = 2 + 2 + (6 + 2) + (1 + 1)  # convex, gates of two seeds, a grid and two seeds
    first = 1 + (6 + 2 + 1) + (1 + 1)  # with a floor
    assert len(done) == whole + first + 2  # tuned with the usual budget
    ledger = Ledger(folder, report=lambda *_: pytest.fail("again"))
    assert teacher.run(ledger, lessons, short_studies()) == results
    assert results["complete"] and len(results["rows"]) == 9


def test_convex_rows_have_gaps_and_objectives_floors(finished):
    for row in finished[1]["rows"]:
        assert ("relative_gap" in row) == row["convex"]
        assert row.get("relative_gap", 0) <= 1e-4
        assert row.get("floor", 0) <= row["objective"]
    assert sum("floor" in row for row in finished[1]["rows"]) == 5


def test_a_quick_look_has_every_student_once(lessons, tmp_path, monkeypatch):
    monkeypatch.setattr(teacher, "QUICK_BUDGET", Budget(steps=5, patience=4, seeds=1, batch=64))
    results = teacher.run_quick(Ledger(tmp_path), lessons)
    assert [row["student"] for row in results["rows"]] == list(teacher.QUICK_STUDENTS)
    page = render(EXPERIMENT.home / "quick.md", **results)
    assert "80, 30, 40 to train" in page and "| linear, the token alone | 0." in page


def test_results_that_ran_out_of_time_say_so(lessons, tmp_path):
    late = teacher.run(Ledger(tmp_path, max_minutes=0), lessons, short_studies())
    assert not late["complete"] and late["rows"] == []


class Published:
    """What the committed results were learnt from, without the texts."""

    def __init__(self, results):
        self.source, self.sizes = results["text"], tuple(results["sizes"])
        self.teacher = Teacher(**results["teacher"])


@pytest.mark.parametrize("experiment", [EXPERIMENT, MPNET], ids=lambda one: one.page)
def test_the_committed_jobs_are_those_of_the_committed_results(experiment):
    """All of them are found again, so that a definition that has changed would be seen."""
    results = json.loads((experiment.home / "results.json").read_text())
    ledger = Ledger(experiment.home, report=lambda done, what: pytest.fail(what))
    studies = teacher.FEW_STUDIES if experiment is MPNET else teacher.STUDIES
    again = teacher.run(ledger, Published(results), studies, results["command"])
    assert json.loads(json.dumps(again)) == results
    assert all(row.get("relative_gap", 0) <= 1e-4 for row in results["rows"])


def row(student, loss, curve=(1.0, 0.5), **more):
    """A summary with what sentences are made of."""
    kept = {"task": Task().key, "student": student, "convex": student in CERTIFIED}
    kept |= {"relative_gap": 0.0} if student in CERTIFIED else {}
    losses = {f"{part}_loss": loss for part in ("train", "validation", "test")}
    kept |= losses | {"test_error": None, "seconds": 1.0, "seconds_to_converge": 1.0}
    return kept | {"lr": 1e-2, "decay": 1e-6, "curve": {"validation": list(curve)}} | more


def told(*rows):
    """The page of some rows of one task."""
    header = {"few": False, "text": "prose", "command": "c", "date": "d", "environments": []}
    header |= {"labels": LABELS, "targets": TARGETS, "seconds": 1.0, "sizes": [3, 2, 1]}
    counts = {"seeds": 1, "objective": 1.0, "parameters": 1, "seconds_of_all": 1.0}
    complete = [counts | row for row in rows]
    page = EXPERIMENT.text(header | {"teacher": Teacher().__dict__, "rows": complete})
    return page.split("## How it was measured")[0], complete


def test_sentences_follow_the_numbers():
    poor, convex = row("undertrained", 0.7), row("offsets", 0.4, relative_gap=1e-6)
    words, _ = told(poor, convex, row("softmax-1", 0.5))
    assert "67% of its distance to the best convex student" in words
    assert "not of models" not in words and "All 1 convex students are certified" in words
    assert "not of models" in told(poor, convex, row("softmax-1", 0.3))[0]
    loose = row("offsets", 0.4, relative_gap=0.1)
    assert "0 of 1 convex students are certified" in told(loose, row("softmax-1", 0.3))[0]


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
    convex = row("offsets", 0.4, relative_gap=0.0)
    assert "ends 25.0% above the certified floor" in told(known, convex)[0]
    loose = known | {"floor": 0.003, "floor_gap": 0.99}
    words, _ = told(loose, convex)
    assert "certified floor" not in words and "No floor, because" in words
    assert known_floor(known) == 0.4 and known_floor(loose) is None


def test_the_best_is_chosen_on_validation():
    lucky = row("linear", 0.4, test_loss=0.1)  # would win if tests chose
    words, _ = told(lucky, row("offsets", 0.3), row("softmax-1", 0.2))
    assert f"the best convex student is {LABELS['offsets']}" in words and "Convex loses" in words
