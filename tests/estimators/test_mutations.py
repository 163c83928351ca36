"""Altered model files: never loaded where there is a checksum, never anything but ModelFileError.

Each of three tests tries ``MUTATIONS`` files: 450 in a usual run, 20,000 with ``make fuzz``.
"""

import math
import os
import time
import tracemalloc
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.estimators.mutations import mutate

from convexformer import ModelFileError, load_model
from convexformer._model_file import CHECKSUM, checksum

MODELS = sorted(Path(__file__).with_name("models").glob("*.safetensors"))  # of format 1
TRIED = math.ceil(int(os.environ.get("MUTATIONS", "450")) / len(MODELS))  # of each model
SECONDS = 1.0  # of the processor, for one file
MEMORY = 4_000_000  # bytes besides 2 copies of the file


@pytest.fixture(params=MODELS, ids=lambda path: path.stem)
def formats(request, tmp_path):
    """A model file of each format: without a checksum, and with one."""
    path = tmp_path / "model.safetensors"
    with pytest.warns(UserWarning, match="no checksum"):
        model = load_model(request.param)
    model.save(path)
    load_model(path)  # what is imported at first use is no memory of a mutation
    return {1: request.param.read_bytes(), 2: path.read_bytes()}


def outcome(path, content):
    """The model that altered `content` loads as, or the reason why it does not."""
    path.write_bytes(content)
    tracemalloc.start()
    start = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of files without a checksum
            result = load_model(path)
    except ModelFileError as error:
        result = error.reason
    seconds, (_, peak) = time.process_time() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < SECONDS
    assert peak < MEMORY + 2 * len(content)
    return result


def altered(content, seed):
    for k in range(TRIED):
        rng = np.random.default_rng([seed, k])
        other = mutate(rng, content)
        if other != content:
            yield other


def check_usable(model):
    """What passes all checks must at least be whole: finite, and able to predict."""
    assert np.all(np.isfinite(model.coef_))
    assert model._certificate.relative_gap >= -1e-9  # rounding
    X = np.zeros((2, model.n_tokens_, model.n_channels_))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert len(model.predict(X)) == 2


def test_no_altered_file_loads(formats, tmp_path):
    loaded = [
        content
        for content in altered(formats[2], seed=0)
        if not isinstance(outcome(tmp_path / "altered", content), str)
    ]
    assert not loaded


def test_schema_holds_where_the_checksum_was_forged(formats, tmp_path):
    for content in altered(formats[2], seed=1):
        if len(content) < CHECKSUM.stop:
            continue
        signed = bytearray(content)
        signed[CHECKSUM] = checksum(signed)
        result = outcome(tmp_path / "forged", signed)
        if not isinstance(result, str):
            check_usable(result)


def test_files_without_a_checksum_load_whole_or_not(formats, tmp_path):
    counts = Counter()
    for content in altered(formats[1], seed=2):
        result = outcome(tmp_path / "old", content)
        counts[isinstance(result, str)] += 1
        if not isinstance(result, str):
            check_usable(result)
    assert counts[True] > counts[False]  # most damage is found all the same
