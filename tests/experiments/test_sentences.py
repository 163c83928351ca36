"""Sentence pairs: MRPC from its raw files in GLUE's splits, else the shipped prose."""

import numpy as np
import pytest
from experiments.sentences import mrpc, prose, sentence_pairs

HEAD = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"


@pytest.fixture
def folder(tmp_path):
    lines = ['1\t7\t8\tOne " two.\tThree.\n', "0\t5\t6\tFour.\tFive.\n"]
    (tmp_path / "msr_paraphrase_train.txt").write_text(HEAD + "".join(lines))
    (tmp_path / "msr_paraphrase_test.txt").write_text(HEAD + "1\t1\t2\tSix.\tSeven.\n")
    (tmp_path / "dev_ids.tsv").write_text("5\t6\n")
    return tmp_path


def test_mrpc_is_split_by_the_listed_ids(folder):
    pairs = mrpc(folder)
    assert pairs.parts == ([('One " two.', "Three.")], [("Four.", "Five.")], [("Six.", "Seven.")])
    assert [labels.tolist() for labels in pairs.labels] == [[1], [0], [1]]


def test_the_environment_names_mrpc_and_prose_is_used_without_it(folder, monkeypatch):
    monkeypatch.setenv("CONVEXFORMER_MRPC", str(folder))
    assert sentence_pairs().name == "MRPC"
    monkeypatch.delenv("CONVEXFORMER_MRPC")
    assert sentence_pairs().name == "prose" and sentence_pairs(folder).name == "MRPC"


def test_parts_of_prose_share_no_sentence_as_they_stand():
    lines = [[line for pair in part for line in pair] for part in prose().parts]
    ends = np.cumsum([len(part) + 1 for part in prose().parts])
    assert ends[-1] == len({id(line) for part in lines for line in part})


def test_what_is_missing_or_broken_is_named(folder):
    (folder / "msr_paraphrase_test.txt").write_text(HEAD + "yes\t1\t2\tSix.\tSeven.\n")
    with pytest.raises(ValueError, match=r"line 2 of .*test.txt is not a pair"):
        mrpc(folder)
    (folder / "dev_ids.tsv").unlink()
    with pytest.raises(ValueError, match=r"has no dev_ids\.tsv"):
        mrpc(folder)
