"""Small models, made once."""

import pytest

pytest.importorskip("transformers")

from tests.small_models import make_bert, make_gpt2, save


@pytest.fixture(scope="session")
def bert():
    return make_bert()


@pytest.fixture(scope="session")
def gpt2():
    return make_gpt2()


@pytest.fixture(scope="session")
def folder(bert, tmp_path_factory):
    """The small BERT as a folder."""
    return save(bert, tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture(scope="session")
def texts():
    return [
        "the cat saw a dog",
        "a big red house",
        "the old dog slept under the trees and the cat saw a house",
        "trees",
        "a zebra slept",
    ]
