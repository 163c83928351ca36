"""``convexformer extract``: files, words and errors."""

import pytest

pytest.importorskip("transformers")

from tests.small_models import make_bert, save

from convexformer.activations import Activations


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save(make_bert(), tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture
def texts(tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("the cat saw a dog\ntrees\na big red house\n")
    return file


def test_activations_are_written_and_described(run, run_json, bert, texts, tmp_path):
    out = tmp_path / "out"
    options = ("--layer", 1, "--out", out, "--keep", "heads", "--keep", "inputs")
    told = run_json("extract", bert, texts, *options, "--dtype", "float16", "--batch-size", 2)
    assert told["n_texts"] == 3 and told["n_tokens"] == 16 and told["keep"] == ["inputs", "heads"]
    assert told["bytes"] == sum(file.stat().st_size for file in out.iterdir())
    found = Activations.open(out)
    assert found.layer == 1 and found[1].tokens == ["[CLS]", "trees", "[SEP]"]
    again = run("extract", bert, texts, *options, "--force", "--batch-size", 2)
    assert "Layer 1 of 3" in again.stdout and "3 texts, 16 tokens, 4 heads" in again.stdout
    assert f"In {out}" in again.stdout


def test_errors_are_one_line(run, bert, texts, tmp_path):
    def error(*arguments, where=tmp_path / "out"):
        told = run("extract", *arguments, "--out", where, code=2).stderr
        assert told.startswith("error: ") and told.count("\n") == 1
        return told

    assert "no layer 7: the model has 3" in error(bert, texts, "--layer", 7)
    assert "no layer -1: the model has 3" in error(bert, texts, "--layer", -1)
    assert "the hub has no such model" in error(tmp_path / "none", texts, "--layer", 0)
    assert "could not be loaded as a model" in error(tmp_path, texts, "--layer", 0)
    long = tmp_path / "long.txt"
    long.write_text("trees\n" + "cat " * 30 + "\n")
    assert "has 32 tokens, more than 20: 'cat cat" in error(bert, long, "--layer", 0)
    run("extract", bert, long, "--layer", 0, "--out", tmp_path / "cut", "--truncate")
    assert "holds an extraction already" in error(bert, texts, "--layer", 0, where=tmp_path / "cut")
    run("extract", bert, texts, "--layer", 0, "--out", tmp_path / "cut", "--force")
    assert "long.txt is a file; give the name of a folder" in error(
        bert, texts, "--layer", 0, where=long
    )
    empty = tmp_path / "empty.txt"
    empty.touch()
    assert "is empty" in error(bert, empty, "--layer", 0)
    assert "no file" in error(bert, tmp_path / "missing.txt", "--layer", 0)
    assert "does not exist" in error(bert, texts, "--layer", 0, where=tmp_path / "a" / "b")
