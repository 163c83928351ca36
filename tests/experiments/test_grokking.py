"""The grokking studies: what curves tell, who is chosen, and that jobs are done once."""

import json
import math
from dataclasses import replace

import pytest
import torch
from experiments.grokking import experiment as grokking
from experiments.grokking import jobs as grokking_jobs
from experiments.grokking.experiment import CONTESTANTS, SEARCH, TimingJob, gates_within, rows
from experiments.grokking.jobs import Job, Recipe, describe, learnt
from experiments.grokking.models import (
    KINDS,
    MLP,
    Block,
    Grokfast,
    OrthoGrad,
    make_model,
)
from experiments.lab import Ledger, OutOfTime
from torch import nn
from torch.nn.functional import one_hot

TINY = Recipe("mlp", options={"dim": 4, "width": 8})


def curve(*accuracies):
    return [
        {"step": 25 * i, "seconds": 0.1 * i, "test_accuracy": a, "train_accuracy": min(1.0, 2 * a)}
        for i, a in enumerate(accuracies)
    ]


# Networks and optimisers ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_network_scores_every_answer_and_sees_both_numbers(kind):
    torch.manual_seed(0)
    model = make_model(kind, 7)
    tokens = torch.tensor([[1, 7, 2, 8], [1, 7, 3, 8], [4, 7, 2, 8]])
    F = model(one_hot(tokens, 9).float() if kind == "gated-one-hot" else tokens)
    assert F.shape == (3, 7)
    assert not torch.allclose(F[0], F[1]) and not torch.allclose(F[0], F[2])


@pytest.mark.parametrize("block", ["power", "paper"])
def test_the_last_token_alone_is_the_same_as_the_last_of_all(block):
    torch.manual_seed(0)
    X, one = torch.randn(5, 4, 8), Block(8, 2, block)
    torch.testing.assert_close(one(X, last_only=True), one(X)[:, -1:])


def test_blocks_do_not_look_ahead():
    torch.manual_seed(0)
    X, one = torch.randn(5, 4, 8), Block(8, 2, "power")
    changed = X.clone()
    changed[:, 3] += 1
    torch.testing.assert_close(one(X)[:, :3], one(changed)[:, :3])


def test_contestants_of_equal_depth_and_parameters():
    def size(kind, **options):
        return sum(w.numel() for w in make_model(kind, 97, **options).parameters())

    wide = CONTESTANTS["power-wide"].options
    sizes = [size("gated", n_layers=n) for n in (1, 2, 4)] + [size("mlp"), size("power", **wide)]
    assert max(sizes) / min(sizes) < 1.08
    for budget in grokking.BUDGETS:
        for layers in (1, 2):
            shapes = grokking.shapes_within(budget, layers)(Recipe("gated"))
            assert len(shapes) == 3
            for recipe in shapes:
                assert 0.75 * budget < size("gated", **recipe.options) <= budget
    assert gates_within(400_000, 1, 32) == 96


def steps_of(optimizer, W, gradients):
    for g in gradients:
        W.grad = g.clone()
        optimizer.step()
    return W.detach()


def test_grokfast_is_adamw_on_amplified_gradients():
    torch.manual_seed(0)
    W, *gradients = torch.randn(4, 3, 2)
    options = {"lr": 0.1, "weight_decay": 0.5}
    ours = nn.Parameter(W.clone())
    ours = steps_of(Grokfast([ours], alpha=0.9, gain=3.0, **options), ours, gradients)
    slow, amplified = gradients[0], []
    for g in gradients:
        slow = 0.9 * slow + 0.1 * g
        amplified.append(g + 3 * slow)
    plain = nn.Parameter(W.clone())
    torch.testing.assert_close(
        ours, steps_of(torch.optim.AdamW([plain], **options), plain, amplified)
    )


def test_orthograd_turns_gradients_and_keeps_their_length():
    torch.manual_seed(0)
    W, g = torch.randn(2, 3, 2)
    ours, plain = nn.Parameter(W.clone()), nn.Parameter(W.clone())
    turned = g - (W * g).sum() / W.square().sum() * W
    turned = turned * g.norm() / turned.norm()
    steps = steps_of(OrthoGrad([ours], lr=0.1), ours, [g])
    torch.testing.assert_close(steps, steps_of(torch.optim.AdamW([plain], lr=0.1), plain, [turned]))
    assert abs((ours.grad * W).sum()) < 1e-5 and math.isclose(
        ours.grad.norm(), g.norm(), rel_tol=1e-5
    )


# What curves tell -------------------------------------------------------------------------------


def test_persistence_is_of_the_500_steps_after_the_first_time():
    good = describe(curve(0.1, 0.5, *[0.99] * 21))
    assert (good["steps_to_fit"], good["steps_to_99"], good["seconds_to_99"]) == (25, 50, 0.2)
    assert good["persistent"] is True and good["lowest_after"] == 0.99
    dips = describe(curve(0.1, 0.99, 0.98, *[1.0] * 30))
    assert dips["persistent"] is False and dips["settled"] == 75 and dips["lowest_after"] == 0.98
    short = describe(curve(0.1, 0.99, *[1.0] * 19))
    assert short["persistent"] is None and short["settled"] == 25
    never = describe(curve(0.1, 0.2))
    assert never["steps_to_99"] is never["persistent"] is never["settled"] is None


def test_training_stops_when_all_is_known():
    assert not learnt(50, lasting=False)(curve(0.5, 0.99, 1.0))
    assert learnt(50, lasting=False)(curve(0.5, 0.99, 0.5, 1.0))
    assert not learnt(50, lasting=True)(curve(0.5, 0.99, 0.5, 1.0))
    assert learnt(50, lasting=True)(curve(0.5, 0.99, 0.5, 1.0, 1.0, 1.0))


def test_a_recipe_is_chosen_for_settling_first_and_then_for_height():
    def record(lr, settled, best):
        return {"recipe": {"model": "mlp", "lr": lr}, "settled": settled, "best": best}

    slow, quick, low = record(1, 500, 1.0), record(2, 300, 1.0), record(3, None, 0.4)
    assert grokking.choose([slow, quick, low]).lr == 2
    assert grokking.choose([low, record(4, None, 0.6)]).lr == 4


def test_every_contestant_is_searched_by_the_same_rule():
    searched = [c for c in CONTESTANTS.values() if c.fixed is None]
    assert all(tuple(c.search[:2]) == SEARCH[:2] for c in searched) and len(searched) == 12
    assert [c.label for c in CONTESTANTS.values() if c.fixed] == [
        "standard block, Power et al.'s recipe",
        "the paper's block, Power et al.'s recipe",
        "standard block, no weight decay",
        "standard block, Power et al.'s recipe with Grokfast",
    ]
    assert [len(line(CONTESTANTS["prox"].start)) for line in CONTESTANTS["prox"].lines] == [6, 5, 6]


def test_thinned_curves_keep_their_last_point():
    long = [p | {"test_loss": 1.0} for p in curve(*[0.1] * 250, 0.9)]
    kept = grokking_jobs.thinned(long)
    assert kept["step"][-1] == 6250 and kept["test_accuracy"][-1] == 0.9
    assert 100 < len(kept["step"]) < 140


# Jobs -------------------------------------------------------------------------------------------


def test_a_job_is_told_whole_and_leaves_no_files(tmp_path):
    job = Job("contest", "mlp", TINY, seed=1, steps=60, modulus=7)
    record = job.run()
    assert json.loads(json.dumps(record)) == record
    assert record["curve"]["step"] == [0, 25, 50] and record["last_step"] == 50
    assert record["parameters"] == 9 * 4 + 17 * 8 + 9 * 7 and job.key["seed"] == 1
    assert list(tmp_path.iterdir()) == []
    again = job.run()
    assert again["curve"] == record["curve"]


def test_tuning_never_sees_the_test_half(monkeypatch, tmp_path):
    """Of all jobs that a run does modulo 97, those on other splits aside."""
    jobs = []

    def run(job):
        jobs.append(job)
        return job.key | {"settled": 300, "best": 1.0}

    monkeypatch.setattr(Job, "run", run)
    ledger = Ledger(tmp_path)
    for name in CONTESTANTS:
        recipe = grokking.recipe_for(ledger, name)
        ledger.do_each(grokking.contest_jobs(name, recipe))
    ledger.do_each(grokking.ablation_jobs(recipe))
    grokking.depth(ledger, 2, 60_000)

    def parts(tuning):
        chosen = [job for job in jobs if job.tuning == tuning and job.study != "splits"]
        keys = {(job.split, job.modulus, job.share) for job in chosen}
        first = {(job.split, job.modulus, job.share): job for job in chosen}
        assert len(keys) == 1
        return first.popitem()[1].equations()

    tuned, contest = parts(True), parts(False)
    seen = {*tuned.train, *tuned.test}
    assert seen == set(contest.train) and not seen & set(contest.test)
    assert {job.split for job in jobs if job.study == "splits"} == {1, 2, 3, 4}
    assert not {job.seed for job in jobs if job.tuning} & {
        job.seed for job in jobs if not job.tuning
    }


def test_seeds_are_of_weights_and_splits_of_equations():
    one, two = (Job("contest", "mlp", TINY, seed, 25) for seed in (0, 1))
    other = replace(one, split=1)
    assert list(one.equations().train) == list(two.equations().train)
    assert list(one.equations().train) != list(other.equations().train)


def test_records_of_other_rules_are_not_used(monkeypatch, tmp_path):
    job = Job("contest", "mlp", TINY, seed=1, steps=25, modulus=7)
    Ledger(tmp_path).do(job)
    monkeypatch.setattr(grokking_jobs, "WARMUP", 20)
    with pytest.raises(OutOfTime):
        Ledger(tmp_path, max_minutes=-1).do(job)


def test_what_is_shown_of_a_job_fits_in_a_line():
    names = [*CONTESTANTS, *grokking.ablations(TINY)]
    long = [Job("ablation", name, Recipe("mlp", lr=0.002), 4, 25) for name in names]
    assert max(len(f"- 123 jobs done; {job} 0:00:00") for job in long) <= 80


def test_divergence_is_recorded(tmp_path):
    wild = Recipe("square", lr=1e6, clip=None, average=None, options={"dim": 4, "width": 8})
    record = Job("contest", "square", wild, 0, 200, modulus=7).run()
    assert record["diverged"] and record["steps_to_99"] is None


def test_the_ledger_does_a_job_once_and_keeps_to_its_time(tmp_path):
    told = []
    job = Job("contest", "mlp", TINY, seed=1, steps=25, modulus=7)
    ledger = Ledger(tmp_path, report=lambda done, what: told.append(what))
    first = ledger.do(job)
    again = Ledger(tmp_path, max_minutes=0, report=lambda done, what: told.append(what))
    assert again.do(job) == first and told == [str(job)]
    with pytest.raises(OutOfTime):
        again.do(Job("contest", "mlp", TINY, seed=2, steps=25, modulus=7))


@pytest.fixture
def small(monkeypatch):
    """All studies, on tiny networks and few steps."""
    for module, name, value in [
        (grokking, "RATES", (0.01,)),
        (grokking, "DECAYS", (1.0, 2.0)),
        (grokking, "TUNING_STEPS", 25),
        (grokking, "DEPTH_STEPS", 25),
        (grokking, "ABLATION_STEPS", 25),
        (grokking, "ABLATION_SEEDS", 1),
        (grokking, "BUDGETS", (30_000,)),
        (grokking, "convex_jobs", list),
        (grokking, "run_small", lambda ledger: None),
        (grokking, "TIMED_ROUNDS", 1),
    ]:
        monkeypatch.setattr(module, name, value)
    same = {"train_accuracy": 1.0, "test_accuracy": 0.5, "test_loss": 1.0}
    monkeypatch.setattr(grokking_jobs, "accuracies", lambda *_: dict(same))
    few = {name: replace(CONTESTANTS[name], steps=25, seeds=2) for name in ("mlp", "power-default")}
    monkeypatch.setattr(grokking, "CONTESTANTS", few)


def test_a_run_stops_in_time_and_goes_on(tmp_path, small):
    begun = grokking.run(Ledger(tmp_path, max_minutes=0))
    assert not begun["complete"] and [row["study"] for row in begun["rows"]] == []
    results = grokking.run(Ledger(tmp_path))
    assert results["complete"] and set(results["milliseconds"]) == {"mlp", "power-default"}
    assert [row["study"] for row in results["rows"]] == ["tuning"] * 2 + ["contest"] * 2
    assert [row["seeds"] for row in results["rows"]][-2:] == [2, 2]
    assert results["rows"][-1]["hyperparameters"] == "lr 0.001, decay 1, no clipping or averaging"
    assert grokking.run(Ledger(tmp_path)) == results


def test_who_learns_too_late_to_be_followed_is_counted_apart():
    record = grokking_jobs.describe([p | {"train_accuracy": 1.0, "seconds": 0.0} for p in LATE])
    told = {"study": "contest", "name": "gated", "recipe": {"model": "gated"}, "parameters": 1}
    told |= {"zero_groups": None, "unaveraged": 0.0, "diverged": False}
    (row,) = grokking.rows([record | told, record | told | {"diverged": True}])
    assert (row["reached"], row["persistent"], row["unfollowed"]) == (2, 0, 1)


LATE = [{"step": 25 * i, "test_accuracy": a} for i, a in enumerate([0.5, 0.99, 1.0])]


def test_medians_count_those_that_never_got_there():
    one = {"study": "contest", "name": "mlp", "recipe": {"model": "mlp"}, "parameters": 1}
    one |= {"best": 1.0, "ms_per_step": 1.0, "last_step": 9, "zero_groups": None, "unaveraged": 1}
    times = [(100, True), (None, None), (300, False)]
    keys = ("steps_to_99", "seconds_to_99", "settled", "steps_to_fit")
    (row,) = rows([one | dict.fromkeys(keys, t) | {"persistent": p} for t, p in times])
    assert row["steps_to_99"] == 300 and row["reached"] == 2 and row["persistent"] == 1


def test_a_part_without_time_does_not_hide_the_next(tmp_path):
    done, missing = (Job("contest", "mlp", TINY, seed, 25, modulus=7) for seed in (1, 2))
    Ledger(tmp_path).do(done)
    ledger = Ledger(tmp_path, max_minutes=0)
    for job in (missing, done):
        with ledger.part():
            ledger.do(job)
    assert ledger.reasons and [record["seed"] for record in ledger.records] == [1]


def searched(monkeypatch, tmp_path, settles, start, search):
    """The recipe found where a job settles at `settles(recipe, seed)`, and jobs by tuning seed."""
    asked = []

    def run(job):
        asked.append(job)
        return job.key | {"settled": settles(job.recipe, job.seed), "best": 1.0}

    monkeypatch.setattr(Job, "run", run)
    best = grokking.tune(Ledger(tmp_path), "mlp", start, search, 1500)
    return best, *([job for job in asked if job.seed == seed] for seed in (1000, 1001))


def test_a_recipe_is_given_up_when_it_can_no_longer_be_first(monkeypatch, tmp_path):
    settled = {0.01: 400, 0.02: None, 0.005: 300}
    start, line = Recipe("mlp"), (grokking.rates,)
    best, asked, again = searched(
        monkeypatch, tmp_path, lambda recipe, seed: settled.get(recipe.lr), start, line
    )
    assert best.lr == 0.005 and [job.steps for job in asked] == [1500, 650, 650, 550, 550, 550]
    assert [(job.recipe.lr, job.steps) for job in again] == [(0.005, 1500), (0.01, 550)]


def test_what_is_quick_under_one_seed_alone_is_not_chosen(monkeypatch, tmp_path):
    settled = {(0.04, 1000): 200, (0.02, 1000): 250, (0.01, 1000): 400}
    settled |= {(0.02, 1001): 300, (0.01, 1001): 275}
    best, _, again = searched(
        monkeypatch,
        tmp_path,
        lambda recipe, seed: settled.get((recipe.lr, seed)),
        Recipe("mlp"),
        (grokking.rates,),
    )
    assert best.lr == 0.02 and [job.recipe.lr for job in again] == [0.04, 0.02, 0.01]


def test_the_search_goes_through_the_best_and_tries_nothing_twice(monkeypatch, tmp_path):
    def settles(recipe, seed):  # a valley along which both hyperparameters must move
        return 100 + round(1000 * abs(recipe.lr - 0.04) + 100 * abs(recipe.weight_decay - 4))

    best, asked, _ = searched(
        monkeypatch, tmp_path, settles, Recipe("mlp"), CONTESTANTS["mlp"].lines
    )
    assert (best.lr, best.weight_decay) == (0.04, 4.0)
    recipes = [(job.recipe.lr, job.recipe.weight_decay) for job in asked]
    assert len(recipes) == len(set(recipes)) == 15
    assert {decay for lr, decay in recipes[6:10]} == {2.0, 0.5, 4.0, 0.25}


def test_grokfast_tries_another_filter_at_its_best_recipe(monkeypatch, tmp_path):
    grokfast = CONTESTANTS["grokfast"]
    better = {"alpha": 0.9, "gain": 1.0}
    best, asked, _ = searched(
        monkeypatch,
        tmp_path,
        lambda recipe, seed: 200 if recipe.tweaks == better else 300,
        grokfast.start,
        grokfast.lines,
    )
    assert best.tweaks == better and sum(job.recipe.tweaks == better for job in asked) == 1
    optimizer = best.make_optimizer(MLP(9, 7))
    assert (optimizer.alpha, optimizer.gain) == (0.9, 1.0)


def test_steps_are_timed_for_all_in_turns(tmp_path, monkeypatch):
    monkeypatch.setattr(grokking, "TIMED_ROUNDS", 2)
    job = TimingJob({"tiny": TINY, "wide": replace(TINY, options={"dim": 32, "width": 4000})})
    record = job.run()
    assert json.loads(json.dumps(record)) == record
    assert 0 < record["milliseconds"]["tiny"] < record["milliseconds"]["wide"]
