"""The shipped data are what they claim to be, and biology's known facts are in them."""

import gzip
import hashlib
import time
from dataclasses import FrozenInstanceError
from importlib.resources import files

import numpy as np
import pytest

from convexformer.datasets import (
    TokenDataset,
    hla,
    motion,
    one_hot,
    pendigits,
    satimage,
    splice,
)

LETTERS = [hla, splice]
LOADERS = [hla, splice, satimage, pendigits, motion]
CHECKSUMS = {  # of the text inside, since compressors differ in their bytes
    "hla_a0201_9mers.csv.gz": "fc156c44636319fa01916518e07abc0c4bd5339561f8b07c9534b1cef3baeffe",
    "splice_junctions.csv.gz": "bd0b1ac2d373d6abe71f914225204823ebf7062551b3260dcc3a7f3b27d08d80",
    "satimage.csv.gz": "74ccaad50e2107c5557a8ef105bcf4257b8f371ad97dd51e85010d1da5c9c100",
    "pendigits.csv.gz": "ea1a8e84251b27f1369ce0fcd9fa72cd6c43000b328482b605d74b7f3e3108b5",
    "motion.csv.gz": "a9fb5d60da49a690e5a5c29525e1b58cd467b4e1cbe51740cf0bd0b3a74febd1",
}


def share(data: TokenDataset, label: str, token: str, letters: str) -> float:
    """Return the share of samples of a class with one of the letters at a token."""
    rows = data.X[data.y == data.target_names.index(label), data.token_names.index(token)]
    return float(rows[:, [data.channel_names.index(a) for a in letters]].sum(axis=1).mean())


@pytest.mark.parametrize(("name", "checksum"), CHECKSUMS.items())
def test_shipped_files_are_unchanged(name, checksum):
    packed = files("convexformer.datasets").joinpath("data", name).read_bytes()
    assert hashlib.sha256(gzip.decompress(packed)).hexdigest() == checksum
    assert packed[4:8] == bytes(4), "the gzip header holds a time stamp"


def test_attribution_travels_with_the_data():
    text = files("convexformer.datasets").joinpath("data", "ATTRIBUTION.md").read_text()
    assert all(word in text for word in ["CC BY 4.0", "IEDB", "UCI", *CHECKSUMS])
    # The BSD licence asks for its notice, conditions and disclaimer to be kept.
    assert all(
        word in text
        for word in ["Copyright (c) 2018, David M. Burns", "Redistributions", '"AS IS"']
    )


@pytest.mark.parametrize("load", LOADERS)
def test_every_axis_has_names(load):
    data = load()
    N, n, d = data.X.shape
    assert data.X.dtype == np.float64 and data.X.flags["C_CONTIGUOUS"]
    assert data.y.shape == (N,) and data.y.dtype == np.int64
    assert len(set(data.token_names)) == n and len(set(data.channel_names)) == d
    assert len(set(data.target_names)) == len(data.target_names)
    assert set(data.y) == set(range(len(data.target_names)))
    assert ("CC BY 4.0" in data.description) != ("BSD 3-Clause" in data.description)
    assert max(map(len, data.description.splitlines())) <= 100


@pytest.mark.parametrize("load", LOADERS)
def test_no_sample_occurs_twice(load):
    data = load()
    assert len(np.unique(data.X, axis=0)) == len(data.X)


@pytest.mark.parametrize("load", LETTERS)
def test_letters_are_sequences_whose_rows_sum_to_one(load):
    data = load()
    assert len(data.sequences) == len(data.X)
    assert {len(s) for s in data.sequences} == {data.X.shape[1]}
    np.testing.assert_allclose(data.X.sum(axis=2), 1, rtol=1e-15)
    assert data.groups is None


@pytest.mark.parametrize("load", LOADERS)
def test_order_tells_nothing_about_the_class(load):
    data = load()
    first, second = np.array_split(np.eye(len(data.target_names))[data.y], 2)
    np.testing.assert_allclose(first.mean(axis=0), second.mean(axis=0), atol=2 / len(data.y) ** 0.5)


@pytest.mark.parametrize("load", LETTERS)
def test_one_hot_tokens_spell_the_sequences(load):
    data = load()
    letters = np.array(data.channel_names)[data.X.argmax(axis=2)]
    certain = data.X.max(axis=2) == 1
    spelled = np.array([list(s) for s in data.sequences])
    assert (letters == spelled)[certain].all()
    assert not np.isin(spelled[~certain], data.channel_names).any()


@pytest.mark.parametrize("load", LOADERS)
def test_loading_is_quick_and_each_call_gives_its_own_arrays(load):
    seconds = []
    for _ in range(4):  # a busy machine may interrupt one of them
        start = time.process_time()
        data = load()
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.2
    data.X[:] = 0
    assert load().X.any()


def test_hla_counts_and_threshold():
    data = hla()
    assert data.X.shape == (8544, 9, 20)
    assert data.token_names == ("P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9")
    assert "".join(data.channel_names) == "ACDEFGHIKLMNPQRSTVWY"
    assert data.target_names == ("non-binder", "binder")
    assert np.bincount(data.y).tolist() == [5338, 3206]
    assert data.target_values is not None
    np.testing.assert_array_equal(data.y, data.target_values <= 500)
    assert np.isfinite(data.target_values).all() and data.target_values.min() > 0
    assert np.isin(data.X, [0, 1]).all()


def test_hla_anchors_are_p2_and_p9():
    data = hla()
    assert share(data, "binder", "P2", "LM") > 0.65
    assert share(data, "binder", "P9", "VL") > 0.65
    gains = {
        token: np.abs(np.subtract(*(data.X[data.y == c, k].mean(axis=0) for c in (0, 1)))).sum()
        for k, token in enumerate(data.token_names)
    }
    assert sorted(sorted(gains, key=gains.__getitem__)[-2:]) == ["P2", "P9"]


def test_hla_knows_a_famous_epitope():
    data = hla()
    flu = data.sequences.index("GILGFVFTL")  # influenza matrix protein 58-66
    assert data.y[flu] == 1 and data.target_values[flu] < 50


def test_splice_counts_and_names():
    data = splice()
    assert data.X.shape == (3005, 60, 4)
    assert data.token_names[:2] + data.token_names[29:31] == ("-30", "-29", "-1", "+1")
    assert data.token_names[-1] == "+30" and "+0" not in data.token_names
    assert data.target_names == ("EI", "IE", "N") and data.channel_names == tuple("ACGT")
    assert np.bincount(data.y).tolist() == [679, 673, 1653]
    assert data.target_values is None


def test_splice_introns_begin_with_gt_and_end_with_ag():
    data = splice()
    assert share(data, "EI", "+1", "G") > 0.98 and share(data, "EI", "+2", "T") > 0.98
    assert share(data, "IE", "-2", "A") > 0.98 and share(data, "IE", "-1", "G") > 0.98
    assert share(data, "IE", "-10", "CT") > 0.7  # the polypyrimidine tract
    assert share(data, "N", "+1", "G") < 0.35 and share(data, "N", "-1", "G") < 0.35


def test_splice_ambiguous_bases_are_fractions():
    data = splice()
    letters = np.array([list(s) for s in data.sequences])
    ambiguous = ~np.isin(letters, list("ACGT"))
    assert (ambiguous.sum(), ambiguous.any(axis=1).sum()) == (60, 15)
    expected = {"N": [1 / 4] * 4, "D": [1 / 3, 0, 1 / 3, 1 / 3], "R": [0.5, 0, 0.5, 0]}
    for letter, row in (expected | {"S": [0, 0.5, 0.5, 0]}).items():
        rows = data.X[letters == letter]
        assert len(rows) > 0
        np.testing.assert_array_equal(rows, np.broadcast_to(row, rows.shape))


def test_splice_keeps_the_twice_labelled_sequence_as_ie():
    data = splice()
    i = data.sequences.index("CTGAAATTTGTCCCATTCATATCTTGGCAGAGAAGCTCCATGAAGAAATTGACAGGGTGA")
    assert data.target_names[data.y[i]] == "IE"


def test_dataset_is_frozen_and_its_repr_is_short():
    data = hla()
    with pytest.raises(FrozenInstanceError):
        data.X = np.zeros(1)
    assert len(repr(data)) < 120


@pytest.mark.parametrize("sequences", [[], [""], ["ACG", "AC"]])
def test_one_hot_refuses_sequences_it_cannot_stack(sequences):
    with pytest.raises(ValueError, match="one length, got lengths"):
        one_hot(sequences, "ACGT")


def test_one_hot_names_unknown_letters():
    with pytest.raises(ValueError, match="letters 'XZ' outside the alphabet 'ACGT'"):
        one_hot(["ACX", "ZZA"], "ACGT")
