"""The training loop: what a step does, and that being killed changes nothing."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch import nn

from convexformer.nn import Plan, Trainer
from convexformer.nn.training import CHECKPOINT, METRICS

# A small training with everything that has a state: dropout, Adam's moments, averaged weights, a
# last batch that is skipped, and saves that do not fall on measurements.
PROGRAM = """
import random, sys
import numpy as np
import torch
from torch import nn
from convexformer.nn import Plan, Trainer

torch.set_num_threads(1)
for seed in (torch.manual_seed, random.seed, np.random.seed):
    seed(0)
X = torch.randn(70, 6)
model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
plan = Plan(steps={steps}, batch_size=16, warmup=10, clip=1.0, average=0.9, measure_every=7,
            save_every=10)

def loss(model, x):
    return (model(x)[:, 0] - x.prod(1)).square().mean()

trainer = Trainer(model, optimizer, loss, [X], plan, folder=sys.argv[1],
                  measure=lambda model: {{"all": loss(model, X).item()}})
trainer.run(report=lambda *_: print(trainer.step, flush=True))
"""


def curve(folder):
    """All that was measured but the clock, to the last bit."""
    lines = (folder / METRICS).read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def weights(folder):
    return torch.load(folder / CHECKPOINT, weights_only=True)


def start(program, folder):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", program, str(folder)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, env=environment, text=True)


def kill_and_finish(program, folder, kills):
    """Kill the program at random moments, starting it again each time; then let it end."""
    chance = random.Random(kills)
    for _ in range(kills):
        process = start(program, folder)
        for _ in range(chance.randint(2, 8)):  # measurements: 14 to 56 steps of new work
            assert process.stdout.readline()
        time.sleep(chance.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    assert start(program, folder).wait() == 0


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize(
    "kills", [3, pytest.param(20, marks=pytest.mark.skipif("not os.environ.get('KILLS')"))]
)
def test_killed_at_random_moments_the_curve_is_the_same(tmp_path, kills):
    program = PROGRAM.format(steps=100 * kills)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert start(program, whole).wait() == 0
    kill_and_finish(program, broken, kills)
    assert curve(whole) == curve(broken)
    first, second = weights(whole), weights(broken)
    for state in (first, second):
        del state["seconds"], state["curve"]  # the clock, and the points compared above
    assert same(first, second)


def make(folder=None, steps=30, **changes):
    torch.manual_seed(0)
    X = torch.randn(64, 3)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"batch_size": 16, "measure_every": 10, "save_every": 10} | changes

    def loss(model, x):
        return (model(x) - x[:, :1]).square().mean()

    return Trainer(model, optimizer, loss, [X], Plan(steps=steps, **options), folder=folder)


def test_lines_after_the_checkpoint_are_cut_off_and_come_again(tmp_path):
    make(tmp_path).run()
    file = tmp_path / METRICS
    with file.open("a") as more:
        more.write('{"step": 40, "loss": 1.0}\n{"step": 5')  # written, half written, then killed
    assert [p["step"] for p in make(tmp_path, steps=50).run()] == [0, 10, 20, 30, 40, 50]
    assert [p["step"] for p in curve(tmp_path)] == [0, 10, 20, 30, 40, 50]
    whole = make(tmp_path / "whole", steps=50).run()
    assert curve(tmp_path / "whole") == curve(tmp_path) and len(whole) == 6


def test_a_half_written_checkpoint_is_never_read(tmp_path):
    make(tmp_path, steps=20).run()
    (tmp_path / f".{CHECKPOINT}.0a1b2c3d.part").write_bytes(b"half")
    assert [p["step"] for p in make(tmp_path, steps=30).run()] == [0, 10, 20, 30]


@pytest.mark.parametrize("left", [b"", b"text", None])
def test_a_damaged_checkpoint_is_told(tmp_path, left):
    make(tmp_path, steps=20).run()
    file = tmp_path / CHECKPOINT
    file.write_bytes(file.read_bytes()[:500] if left is None else left)
    with pytest.raises(ValueError, match=r"no checkpoint, or a damaged one\. Remove it"):
        make(tmp_path, steps=30).run()


def test_another_plan_is_refused(tmp_path):
    make(tmp_path).run()
    with pytest.raises(
        ValueError, match=r"another training \(batch_size 16, not 8, clip None, not 1"
    ):
        make(tmp_path, batch_size=8, clip=1.0).run()


def test_a_changed_optimiser_or_data_is_refused(tmp_path):
    make(tmp_path).run()
    other = make(tmp_path)
    other.optimizer.param_groups[0]["weight_decay"] = 0.5
    with pytest.raises(ValueError, match=r"weight_decay \[0\], not \[0.5\]"):
        other.run()
    other = make(tmp_path)
    other.data = (other.data[0][:32],)
    with pytest.raises(ValueError, match="shapes of data"):
        other.run()
    other = make(tmp_path)
    other.optimizer = torch.optim.Adam(other.model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="optimizer SGD, not Adam"):
        other.run()


def test_a_lost_file_of_measurements_is_written_again(tmp_path):
    make(tmp_path).run()
    (tmp_path / METRICS).unlink()
    make(tmp_path, steps=50).run()
    assert [p["step"] for p in curve(tmp_path)] == [0, 10, 20, 30, 40, 50]


def test_numbers_of_numpy_and_torch_do_not_spoil_files(tmp_path):
    trainer = make(tmp_path, clip=np.float64(1.0))
    trainer.optimizer.param_groups[0]["momentum"] = np.float32(0)
    trainer.measure = lambda model: {"one": np.float32(1), "two": torch.tensor(2.0)}
    trainer.run()
    assert (curve(tmp_path)[-1]["one"], curve(tmp_path)[-1]["two"]) == (1.0, 2.0)
    assert make(tmp_path, steps=50, clip=1.0).run()[-1]["step"] == 50


def test_measuring_leaves_the_mode_of_every_part(tmp_path):
    trainer = make(tmp_path)
    trainer.measure = lambda model: {"training": float(model.training)}
    trainer.model.eval()
    assert {p["training"] for p in trainer.run()} == {0.0}
    assert not trainer.model.training


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    trainer = make(tmp_path, measure_every=100)
    trainer.run(stop=lambda curve: False)
    before = (tmp_path / CHECKPOINT).read_bytes()
    worse = make(tmp_path, steps=60, measure_every=100)
    worse.loss = lambda model, x: model(x).sum() * (float("nan") if worse.step > 35 else 1.0)
    with pytest.raises(FloatingPointError, match="not finite"):
        worse.run()
    assert (tmp_path / CHECKPOINT).read_bytes() == before


def test_warmup_clipping_and_averaging_are_what_they_say():
    trainer = make(steps=3, warmup=4, clip=0.05, average=0.5, batch_size=None, measure_every=1)
    w = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    mean, X = w.clone(), trainer.data[0]
    trainer.run()
    A = torch.cat([X, torch.ones(64, 1)], 1)
    for t in range(3):
        g = 2 * A.T @ (A @ w - X[:, 0]) / 64
        assert g.norm() > 0.05
        w = w - 0.1 * (t + 1) / 4 * g * (0.05 / (g.norm() + 1e-6))
        mean = 0.5 * mean + 0.5 * w
    reached = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    averaged = torch.cat([p.detach().flatten() for p in trainer.averaged.parameters()])
    torch.testing.assert_close(reached, w)
    torch.testing.assert_close(averaged, mean)


def test_every_epoch_shows_every_sample_once_in_another_order():
    trainer = make(batch_size=16)
    trainer.data = (torch.arange(64),)
    epochs = []
    for epoch in range(2):
        rows = []
        for place in range(4):
            trainer.step = 4 * epoch + place
            rows += trainer._batch()[0].tolist()
        epochs.append(rows)
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(64)) and epochs[0] != epochs[1]


def test_stop_ends_early_and_stays_ended(tmp_path):
    def reached(points):
        return points[-1]["step"] >= 20

    assert make(tmp_path).run(stop=reached)[-1]["step"] == 20
    assert make(tmp_path).run(stop=reached)[-1]["step"] == 20


def test_divergence_is_told():
    trainer = make(steps=2000, measure_every=1000)
    trainer.rates = [100.0]
    with pytest.raises(FloatingPointError, match="training diverged"):
        trainer.run()


def test_all_generators_go_on_where_they_were(tmp_path):
    trainer = make(tmp_path, steps=10)
    trainer.run()
    drawn = random.random(), np.random.rand(), torch.rand(1).item()  # noqa: NPY002
    make(tmp_path, steps=10).run()
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == drawn  # noqa: NPY002


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be positive, got 0"),
        ({"steps": 5, "batch_size": -1}, "batch_size must be positive"),
        ({"steps": 5, "average": 1.0}, r"average must be in \[0, 1\), got 1.0"),
        ({"steps": 5, "warmup": -1}, "warmup must not be negative"),
    ],
)
def test_plans_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Plan(**options)


def test_data_must_agree_and_tensorboard_needs_a_folder():
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    uneven = [torch.zeros(3, 1), torch.zeros(4, 1)]
    with pytest.raises(ValueError, match=r"as many samples each, got \[3, 4\]"):
        Trainer(model, optimizer, print, uneven, Plan(1))
    with pytest.raises(ValueError, match="in which folder"):
        Trainer(model, optimizer, print, uneven[:1], Plan(1), tensorboard=True)


def test_tensorboard_gets_every_point_and_is_named_where_it_is_missing(tmp_path, monkeypatch):
    told = []

    class Writer:
        def __init__(self, folder, purge_step):
            told.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            told.append((name, step))

        def close(self):
            told.append("closed")

    class Module:
        SummaryWriter = Writer

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", Module)
    trainer = make(tmp_path, steps=10)
    trainer.tensorboard = True
    trainer.run()
    names = [("step", 0), ("seconds", 0), ("step", 10), ("seconds", 10), ("loss", 10)]
    assert told == [(str(tmp_path), 1), *names, "closed"]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"pip install .convexformer\[tensorboard\]"):
        trainer.run()
