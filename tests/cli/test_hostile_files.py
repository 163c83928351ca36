"""Files that are damaged, encrypted, giant or made up: one line, exit code 2, nothing written."""

import io
import json
import struct
import sys
import zipfile

import numpy as np
import pytest

HUGE = "9" * 400  # more digits than any float has
LONG = "9" * 5000  # more digits than Python turns into an integer
LOCAL, CENTRAL = b"PK\x03\x04", b"PK\x01\x02"  # signatures of a member's two headers in an archive


def npy(header, body=bytes(240)):
    """A file of numpy.save with this header, whatever it says."""
    text = header.encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def described(shape, kind="<f8"):
    return f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}"


HEADERS = {
    "giant": (described("(1000000000000,)"), "Unable to allocate"),
    "digits": (described(f"({HUGE},)"), "cannot be read"),
    "more digits": (described(f"({LONG},)"), "cannot be read"),
    "negative": (described("(-4,)"), "cannot be read"),
    "truth": (described("(True,)"), "cannot be read"),
    "cut": (described("(3,)")[:30], "cannot be read"),
    "brackets": ("(((((((", "cannot be read"),
    "zeros": ("\x00\x00", "cannot be read"),
    "empty text": (described("(1000000000000,)", "|U0"), "Unable to allocate"),
    "objects": (described("(3,)", "|O"), "Object arrays cannot be loaded"),
    "records": ("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (3,), }", "records"),
}


def flagged(archive, signature, offset, value):
    """`archive` with the byte at `offset` of every header with this signature set to `value`."""
    changed, at = bytearray(archive), archive.find(signature)
    while at >= 0:
        changed[at + offset] = value
        at = archive.find(signature, at + 1)
    return bytes(changed)


def refused(run, tmp_path, *arguments):
    """The one line with which a command leaves."""
    before = sorted(tmp_path.iterdir())
    result = run(*arguments, code=2)
    assert result.stdout == "" and result.stderr.count("\n") == 1, result.output
    assert result.stderr.startswith("error: ") and len(result.stderr) < 1000
    assert sorted(tmp_path.iterdir()) == before
    return result.stderr


@pytest.mark.parametrize("name", HEADERS)
def test_headers_that_promise_what_is_not_there(run, arrays, tmp_path, name):
    header, words = HEADERS[name]
    target = io.BytesIO()
    np.save(target, arrays["y"])
    with zipfile.ZipFile(tmp_path / "made.npz", "w") as archive:
        archive.writestr("X.npy", npy(header))
        archive.writestr("y.npy", target.getvalue())
    (tmp_path / "made.npy").write_bytes(npy(header))
    (tmp_path / "y.npy").write_bytes(target.getvalue())
    out = ("--out", tmp_path / "m.st")
    line = refused(run, tmp_path, "fit", tmp_path / "made.npz", "--target", "y", *out)
    assert words in line
    line = refused(
        run, tmp_path, "fit", tmp_path / "made.npy", "--target", tmp_path / "y.npy", *out
    )
    assert words in line


@pytest.mark.parametrize("command", ["fit", "path"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: flagged(flagged(a, LOCAL, 6, 1), CENTRAL, 8, 1), "is encrypted"),
        (lambda a: flagged(flagged(a, LOCAL, 8, 77), CENTRAL, 10, 77), "cannot be read"),
        (lambda a: a[:200] + bytes(100) + a[300:], "Bad CRC-32"),
        (lambda a: a[:-40], "cannot be read"),
        (lambda a: a[: len(a) // 2] + a[len(a) // 2 + 100 :], ".npz "),
    ],
)
def test_damaged_archives(run, arrays, tmp_path, command, change, words):
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    (tmp_path / "a.npz").write_bytes(change((tmp_path / "a.npz").read_bytes()))
    arguments = (command, tmp_path / "a.npz", "--target", "y", "--out", tmp_path / "m.csv")
    assert words in refused(run, tmp_path, *arguments)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"token_names": "abc"}, "token_names must be a list of 3 names, got 1"),
        ({"channel_names": 5}, "channel_names must be a list of 2 names"),
        ({"y": 1.0}, "only one class"),
    ],
)
def test_values_that_should_be_lists(run, arrays, tmp_path, extra, words):
    np.savez(tmp_path / "a.npz", **(arrays | extra))
    arguments = ("fit", tmp_path / "a.npz", "--target", "y", "--out", tmp_path / "m.st")
    assert words in refused(run, tmp_path, *arguments)


def text(*cells):
    """A csv whose rows end in these cells."""
    return "a,b,y\n" + "".join(f"{i},{','.join(cells).format(i=i)}\n" for i in range(30))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,y,b,y\n" + "1,2,3,4\n5,6,7,8\n" * 9, "several columns named y; names must differ"),
        ('a,"b",y,b\n' + "1,2,3,4\n5,6,7,8\n" * 9, "several columns named b"),
        (text(HUGE, "{i}.5"), "int too large"),
        (text("1", HUGE), "only one class"),
        (text(LONG, "{i}.5"), "no finite numbers in b (9999"),
        (text("\x00", "{i}"), "no finite numbers in b"),
    ],
)
def test_tables(run, tmp_path, content, words):
    (tmp_path / "t.csv").write_text(content)
    arguments = ("fit", tmp_path / "t.csv", "--target", "y", "--out", tmp_path / "m.st")
    assert words in refused(run, tmp_path, *arguments)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("latin.csv", "größe,y\n1,2\n".encode("latin-1")),
        ("bytes.csv", bytes(range(256)) * 4),
        ("cut.csv.gz", b"\x1f\x8b123"),
        ("junk.parquet", b"PAR1" + bytes(40) + b"PAR1"),
    ],
)
def test_tables_that_are_no_tables(run, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    arguments = ("fit", tmp_path / name, "--target", "y", "--out", tmp_path / "m.st")
    assert f"{name} cannot be read: " in refused(run, tmp_path, *arguments)


def test_equal_names_in_parquet(run, tmp_path):
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], names=["a", "y", "y"])
    parquet.write_table(table, tmp_path / "t.parquet")
    arguments = ("fit", tmp_path / "t.parquet", "--target", "y", "--out", tmp_path / "m.st")
    assert "t.parquet" in refused(run, tmp_path, *arguments)


def test_predict_gives_no_advice_on_options_it_lacks(run, csv, table, tmp_path):
    model = tmp_path / "m.st"
    run("fit", csv, "--target", "y", "--drop", "kind", "--out", model)
    table.assign(**{"head.x": "word"}).to_csv(tmp_path / "w.csv", index=False)
    line = refused(run, tmp_path, "predict", model, tmp_path / "w.csv", "--out", tmp_path / "p.csv")
    assert "encode or impute such columns, as they were for the fit" in line


@pytest.mark.parametrize(
    "content",
    ['{"layer": ' + LONG + "}", "[1]", "[" * 10 * sys.getrecursionlimit(), '"\udcff"', "{"],
)
def test_probe_results_that_are_none(run, tmp_path, content):
    file = tmp_path / "p.json"
    file.write_bytes(content.encode(errors="surrogateescape"))
    line = refused(run, tmp_path, "probe", file)
    assert "p.json cannot be read: " in line and "It is no result of probe --json" in line


def test_models_with_impossible_numbers(run, model, tmp_path):
    content = model.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    described = json.loads(header["__metadata__"]["model"])
    described["certificate"]["primal"] = "NUMBER"
    header["__metadata__"]["model"] = json.dumps(described).replace('"NUMBER"', HUGE)
    changed = json.dumps(header).encode()
    model.write_bytes(len(changed).to_bytes(8, "little") + changed + content[8 + length :])
    refused(run, tmp_path, "explain", model)


def test_numbers_of_400_digits_as_options(run, arrays, tmp_path):
    np.savez(tmp_path / "a.npz", **arrays)
    fit = ("fit", tmp_path / "a.npz", "--target", "y", "--out", tmp_path / "m.st")
    for option in ("--n-tokens", "--cv", "--gates", "--beta", "--tol", "--max-time"):
        refused(run, tmp_path, *fit, option, HUGE)
    refused(run, tmp_path, "path", tmp_path / "a.npz", "--target", "y", "--n-betas", HUGE)
