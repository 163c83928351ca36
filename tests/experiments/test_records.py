"""Finished jobs in a file: what a full disk or a hand may do to it."""

import pytest

from convexformer.experiments.grokking_ledger import _is_of
from convexformer.experiments.records import alike, append, read_lines


def test_a_line_without_an_end_is_passed_over_and_written_over(tmp_path):
    file = tmp_path / "jobs.jsonl"
    append(file, {"job": 1})
    with file.open("a") as more:
        more.write('{"job": 2, "curve": [0.1, 0.')
    assert list(read_lines(file)) == [{"job": 1}]
    append(file, {"job": 3})
    assert list(read_lines(file)) == [{"job": 1}, {"job": 3}]


def test_a_line_that_is_no_record_is_named(tmp_path):
    file = tmp_path / "jobs.jsonl"
    append(file, {"job": 1})
    with file.open("a") as more:
        more.write("not a record\n")
    with pytest.raises(ValueError, match=r"jobs\.jsonl, line 2"):
        list(read_lines(file))


def test_jobs_finished_on_another_machine_are_finished_here():
    """Its logarithms, and grids that are made of them, may differ in the last bit."""
    key = {"job": "fit", "definition": {"betas": [0.3, 0.0002385479950138836], "gates": 8}}
    line = key | {"definition": {"betas": [0.3, 0.00023854799501388363], "gates": 8}, "loss": 0.5}
    assert key != {name: line[name] for name in key} and _is_of(key, line)
    for other in ({"betas": [0.3, 0.00024], "gates": 8}, {"betas": [0.3], "gates": 8}):
        assert not _is_of(key, line | {"definition": other})
    assert not _is_of(key | {"seed": 0}, line)
    assert not alike({"share": None}, {"share": 0.1}) and not alike([1], {"a": 1})
