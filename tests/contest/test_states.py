"""The recipe of real frozen states: what is read, pooled and refused."""

import io
import tarfile
from functools import partial

import numpy as np
import pytest
from benchmarks import ablation, cells, encoder, run, states
from benchmarks.objective import MissingDataError


def _archive(name, text):
    content, file = text.encode("latin-1"), io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as files:
        member = tarfile.TarInfo(f"some/folder/{name}")
        member.size = len(content)
        files.addfile(member, io.BytesIO(content))
    return file.getvalue()


def test_ratings_and_texts_are_read_from_the_archive():
    archive = _archive("tweets_GroundTruth.txt", "1\t2.5\tCafé!\r\n2\t-1\tNo.\textra\r\n\r\n")
    assert states.rated(archive, "tweets") == [(2.5, "Café!"), (-1.0, "No.")]


def test_only_the_published_texts_are_taken(monkeypatch):
    def download(command, check):
        folder = command[command.index("--dest") + 1]
        with tarfile.open(f"{folder}/package.tar.gz", "w:gz") as files:
            member = tarfile.TarInfo(f"package/{states.ARCHIVE}")
            member.size = 5
            files.addfile(member, io.BytesIO(b"other"))

    monkeypatch.setattr(states.subprocess, "run", download)
    with pytest.raises(ValueError, match="not the published file"):
        states.download()
    monkeypatch.setattr(states, "DIGEST", states.hashlib.sha256(b"other").hexdigest())
    assert states.download() == b"other"


def test_pooled_states_are_averages_of_words_alone():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 6, 4)).astype(np.float32)
    mask = np.arange(6) < rng.integers(1, 7, size=30)[:, None]
    found = states.pool(X, mask, 3)
    assert found.shape == (30, 3, 4) and found.dtype == np.float32
    one = mask.sum(axis=1) == 1  # the average of one word is that word
    np.testing.assert_allclose(found[one], np.repeat(X[one, :1], 3, axis=1), rtol=1e-5)
    for i in range(30):
        words = X[i, mask[i]]
        assert (found[i] <= words.max(axis=0) + 1e-5).all()
        assert (found[i] >= words.min(axis=0) - 1e-5).all()
    X[~mask] = np.nan  # what stands at padding is not read
    np.testing.assert_array_equal(states.pool(X, mask, 3), found)


class _Encoder(encoder.Encoder):
    """Its weights are made, and few."""

    def __init__(self):
        words = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "good", "bad", "very", "!"]
        self.index = {word: i for i, word in enumerate(words)}

    def states(self, ids):
        n = max(map(len, ids))
        padded = np.array([one + [0] * (n - len(one)) for one in ids])
        H = np.repeat(padded[:, :, None], encoder.DIM, axis=2).astype(np.float32)
        return [H + k for k in range(self.n_states)], padded > 0


def test_texts_keep_their_order_and_their_ratings():
    rows = [(k / 100, "very " * (k % 5) + "good!") for k in range(100)]
    found = states.layers(rows, _Encoder())
    order = np.random.default_rng(0).permutation(100)
    assert found["X"].shape == (100, 14, encoder.DIM)
    np.testing.assert_allclose(found["ratings"], order / 100)
    CLS, SEP, good, very, mark = 1, 2, 4, 6, 7
    for X, i in zip(found["X"], order, strict=True):
        words = [CLS, *[very] * (i % 5), good, mark, SEP]
        np.testing.assert_allclose(X[0], CLS)
        np.testing.assert_allclose(X[13], np.mean(words) + 6, rtol=1e-6)


def test_long_texts_lose_their_end():
    assert _Encoder().ids("very very bad", 4) == [1, 6, 6, 2]


@pytest.mark.parametrize(
    ("loss", "Y"),
    [
        ("logistic", [[-1], [-1], [1], [1], [1], [1]]),
        ("softmax", np.eye(3)[[0, 0, 1, 1, 2, 2]]),
    ],
)
def test_targets_are_signs_or_thirds_of_ratings(monkeypatch, loss, Y):
    ratings = np.array([-3.0, -2, 1, 2, 3, 4])
    monkeypatch.setattr(states, "load", lambda _: (np.ones((6, 2, 3), np.float32), ratings))
    np.testing.assert_array_equal(cells.frozen("pooled", loss).Y, Y)
    squared = cells.frozen("pooled", "squared").Y
    assert squared.mean() == pytest.approx(0) and squared.std() == pytest.approx(1)


def test_cells_without_their_data_are_skipped_with_a_word(monkeypatch, tmp_path, capsys):
    with pytest.raises(MissingDataError, match=r"pooled.npz is missing; `make states`"):
        states.load("pooled", tmp_path)
    empty = partial(states.load, folder=tmp_path)
    monkeypatch.setattr(states, "load", empty)
    out = ["--out", str(tmp_path / "out.json")]
    ablation.main(["--grid", "states", "--only", "pooled squared", *out])
    assert capsys.readouterr().out.count("skipped: ") == 3
    run.main(["--grid", "states", "--only", "path", "--results", str(tmp_path)])
    assert "path layers logistic" in (words := capsys.readouterr().err)
    assert "`make states` makes it" in words


def test_the_command_makes_what_is_missing(monkeypatch, tmp_path, capsys):
    text = "".join(f"{k}\t{k / 10 - 2}\tvery good!\n" for k in range(40))
    files = {f"{name}_GroundTruth.txt": text for _, name in states.MAKERS.values()}
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as packed:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content.encode()))
    monkeypatch.setattr(states, "download", archive.getvalue)
    monkeypatch.setattr(states, "Encoder", _Encoder)
    monkeypatch.setattr(states, "FOLDER", tmp_path / "states")
    monkeypatch.setattr(states, "QUERIES", 1)
    states.main()
    assert "layers: 40 x 14 x 384" in capsys.readouterr().out
    X, ratings = states.load.__wrapped__("pooled", states.FOLDER)
    n_train = int(states.TRAINING_SHARE * np.count_nonzero(np.abs(np.arange(40) / 10 - 2) >= 1))
    assert X.shape == (n_train, 1, encoder.DIM) and (np.abs(ratings) >= 1).all()
    monkeypatch.setattr(states, "download", lambda: pytest.fail("all is there"))
    states.main()
    assert "remove a file to make it anew" in capsys.readouterr().out
