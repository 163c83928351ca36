"""Finished jobs in a file: what a full disk or a hand may do to it."""

import pytest

from convexformer.experiments.records import append, read_lines


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
