"""Every kind of data file becomes the same tokens; what cannot be read is named."""

import numpy as np
import pytest

from convexformer._names import split_names
from convexformer.cli._console import InputError
from convexformer.cli._fit import Training, guess_task


def read_samples(path, target, **options):
    return Training(path, target=target, **options).read()


TOKENS = ["head", "body", "tail"]
CHANNELS = ["x", "y"]


def test_npz(npz, arrays):
    samples = read_samples(npz, "y")
    np.testing.assert_array_equal(samples.X, arrays["X"])
    np.testing.assert_array_equal(samples.y, arrays["y"])
    assert samples.names["token_names_"] == TOKENS and samples.names["channel_names_"] == CHANNELS


def test_npz_with_mask_and_weights(arrays, tmp_path):
    X = arrays["X"].copy()
    X[0, 2] = np.nan
    mask = np.ones((80, 3), dtype=bool)
    mask[0, 2] = False
    np.savez(tmp_path / "m.npz", X=X, y=arrays["y"][:, None], mask=mask, sample_weight=np.ones(80))
    samples = read_samples(tmp_path / "m.npz", "y")
    np.testing.assert_array_equal(samples.extra["mask"], mask)
    assert samples.extra["sample_weight"].shape == (80,) and samples.y.shape == (80,)


def test_npy_pair(arrays, tmp_path):
    np.save(tmp_path / "X.npy", arrays["X"].reshape(80, 6))
    np.save(tmp_path / "y.npy", arrays["y"])
    samples = read_samples(tmp_path / "X.npy", str(tmp_path / "y.npy"), n_tokens=3)
    np.testing.assert_array_equal(samples.X, arrays["X"])
    with pytest.raises(InputError, match=r"second \.npy file"):
        read_samples(tmp_path / "X.npy", "y")


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "tsv", "parquet"])
@pytest.mark.parametrize("how", [{"n_tokens": 3}, {"group_by_prefix": "."}])
def test_tables(table, arrays, tmp_path, ending, how):
    file = tmp_path / f"data.{ending}"
    if ending == "parquet":
        table.to_parquet(file)
    else:
        table.to_csv(file, index=False, sep="\t" if ending == "tsv" else ",")
    samples = read_samples(file, "y", drop=["kind"], **how)
    np.testing.assert_allclose(samples.X, arrays["X"], rtol=1e-14)
    assert samples.names["token_names_"] == TOKENS and samples.names["channel_names_"] == CHANNELS


def test_prefixes_gather_columns_from_anywhere(table, arrays, tmp_path):
    table[table.columns[::-1]].to_csv(tmp_path / "r.csv", index=False)
    samples = read_samples(tmp_path / "r.csv", "y", drop=["kind"], group_by_prefix=".")
    assert samples.names["token_names_"] == TOKENS[::-1]
    assert samples.names["channel_names_"] == CHANNELS[::-1]
    np.testing.assert_allclose(samples.X, arrays["X"][:, ::-1, ::-1], rtol=1e-14)


def test_columns_are_tokens_by_default(csv):
    samples = read_samples(csv, "y", drop=["kind"])
    assert samples.X.shape == (80, 6, 1)
    assert samples.names["token_names_"][:2] == ["head.x", "head.y"]
    assert "channel_names_" not in samples.names


def test_split_names():
    assert split_names(["a_x", "a_y", "b_x", "b_y"], 2) == (["a", "b"], ["x", "y"])
    assert split_names(["x0", "x1", "x2", "x3"], 2) == (None, None)
    assert split_names(["a.x", "a.y", "b.y", "b.x"], 2) == (None, None)
    assert split_names(["a", "b"], 2) == (["a", "b"], None)
    assert split_names([], 2) == (None, None)


@pytest.mark.parametrize(
    ("y", "task"),
    [
        (np.array(["a", "b"]), "classification"),
        (np.array([True, False]), "classification"),
        (np.array([0, 1, 2, 1]), "classification"),
        (np.array([0.0, 1.0]), "classification"),
        (np.arange(50), "regression"),
        (np.array([0.5, 1.0]), "regression"),
        (np.array([1.0, np.nan]), "regression"),
        (np.array([[0, 1], [1, 1]]), "classification"),
        (np.array([[0.0, 2.0], [1.0, 1.0]]), "regression"),
    ],
)
def test_task_is_guessed(y, task):
    assert guess_task(y) == task


@pytest.mark.parametrize(
    ("alter", "options", "message"),
    [
        (lambda t: t, {}, r"no finite numbers in kind \(up in row 1\); .*--drop"),
        (lambda t: t.assign(y=t.y.where(t.y > 0)), {"drop": ["kind"]}, "'y' lacks a value in"),
        (
            lambda t: t.assign(**{"body.x": t["body.x"].where(t.y > 0)}),
            {"drop": ["kind"]},
            "no finite numbers in body.x .nan in row",
        ),
        (
            lambda t: t.assign(**{"body.x": np.inf}),
            {"drop": ["kind"]},
            "numbers in body.x .inf in row 1",
        ),
        (lambda t: t, {"drop": ["kind", "kid"]}, "no column 'kid'; its columns are"),
        (
            lambda t: t,
            {"drop": ["kind"], "n_tokens": 4},
            "6 columns cannot be cut into 4 tokens",
        ),
        (lambda t: t, {"group_by_prefix": ".", "n_tokens": 3}, "both say what a token is"),
        (lambda t: t.drop(columns="kind"), {"group_by_prefix": "-"}, "'head.x' has no '-'"),
        (
            lambda t: t.drop(columns=["kind", "tail.y"]),
            {"group_by_prefix": "."},
            "the same channels; there is no tail.y",
        ),
        (lambda t: t[["y"]], {}, "0 columns cannot be cut"),
    ],
)
def test_bad_tables_are_named(table, tmp_path, alter, options, message):
    alter(table).to_csv(tmp_path / "bad.csv", index=False)
    with pytest.raises(InputError, match=message):
        read_samples(tmp_path / "bad.csv", "y", **options)


def test_rows_longer_than_the_header_are_told_not_shifted(tmp_path):
    (tmp_path / "long.csv").write_text("a,y\n1,2,3\n4,5,6\n")
    with pytest.raises(InputError, match="Length of header or names does not match"):
        read_samples(tmp_path / "long.csv", "y")
    (tmp_path / "comma.csv").write_text("a,y\n1,2,\n4,5,\n")  # nothing after the last comma
    assert read_samples(tmp_path / "comma.csv", "y").y.tolist() == [2, 5]


def test_bad_files_are_named(npz, csv, tmp_path):
    with pytest.raises(InputError, match=r"no file .*none\.npz"):
        read_samples(tmp_path / "none.npz", "y")
    (tmp_path / "data.xlsx").write_text("")
    with pytest.raises(InputError, match=r"unknown extension '\.xlsx'; known are \.npz"):
        read_samples(tmp_path / "data.xlsx", "y")
    with pytest.raises(InputError, match="no array 'z'; it holds token_names"):
        read_samples(npz, "z")
    with pytest.raises(InputError, match=r"no column 'z'; its columns are head\.x"):
        read_samples(csv, "z")
    with pytest.raises(InputError, match="need the column names of a table"):
        read_samples(npz, "y", group_by_prefix=".")


@pytest.mark.parametrize("ending", ["npz", "npy", "csv", "parquet"])
def test_truncated_and_foreign_files(npz, tmp_path, ending):
    for content in (b"", b"\x00\x93nonsense", npz.read_bytes()[:-200]):
        file = tmp_path / f"broken.{ending}"
        file.write_bytes(content)
        with pytest.raises(InputError):
            read_samples(file, str(file))


def test_pickles_are_refused(tmp_path):
    np.savez(tmp_path / "p.npz", X=np.array([{}], dtype=object), y=np.zeros(1))
    with pytest.raises(InputError, match="cannot be read"):
        read_samples(tmp_path / "p.npz", "y")


def test_names_must_match_and_differ(arrays, tmp_path):
    for names, message in (
        (["a", "b"], "list of 3 names, got 2"),
        (["a", "b", "a"], "same name twice"),
    ):
        np.savez(tmp_path / "n.npz", token_names=names, **arrays)
        with pytest.raises(InputError, match=message):
            read_samples(tmp_path / "n.npz", "y")


def test_row_numbers_are_left_out_with_a_note(table, arrays, tmp_path):
    table.drop(columns="kind").to_csv(tmp_path / "i.csv")  # with the index
    samples = read_samples(tmp_path / "i.csv", "y", n_tokens=3)
    np.testing.assert_allclose(samples.X, arrays["X"], rtol=1e-14)
    assert samples.notes == ["left out 'Unnamed: 0', a column of row numbers"]
    assert read_samples(tmp_path / "i.csv", "y", drop=["Unnamed: 0"]).notes == []


def test_other_separators_are_seen_in_what_is_said_of_the_columns(table, tmp_path):
    table.to_csv(tmp_path / "s.csv", index=False, sep=";")
    with pytest.raises(InputError, match=r"no column 'y'.* columns are head\.x;head\.y;"):
        read_samples(tmp_path / "s.csv", "y")


def test_missing_columns_name_the_last_ones(tmp_path):
    columns = [f"x{j}" for j in range(30)] + ["label"]
    (tmp_path / "w.csv").write_text(",".join(columns) + "\n" + ",".join("0" * 31) + "\n")
    with pytest.raises(InputError, match=r"x0, x1, x2, .*x28, x29, label\."):
        read_samples(tmp_path / "w.csv", "target")


def test_junk_is_not_an_npz_file(tmp_path):
    (tmp_path / "junk.npz").write_bytes(b"junk that is no archive")
    with pytest.raises(InputError, match="cannot be read"):
        read_samples(tmp_path / "junk.npz", "y")
