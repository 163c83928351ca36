"""What reaches the terminal: names cannot command it; no encoding, no closed pipe is an error."""

import io
import json
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import convexformer as cf
from convexformer.cli import _console
from convexformer.cli._console import UNSAFE, Terminal, visible

CLEAR = "\x1b[2J"  # clears the screen
TITLE = "\x9d0;title\x9c"  # sets the title of the window, in 8-bit controls
TURNED = "\u202eltr"  # turns the direction of writing
HOSTILE = [f"a{CLEAR}", f"b{TITLE}", f"c{TURNED}[red]:smile:"]
ASCII = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "TERM": "dumb"}


def call(*arguments, **environment):
    """The command in a process of its own; its output as bytes."""
    words = [sys.executable, "-m", "convexformer", *map(str, arguments)]
    known = {name: value for name, value in os.environ.items() if name != "PYTHONIOENCODING"}
    return subprocess.run(words, capture_output=True, check=False, env=known | environment)


@pytest.fixture
def hostile(arrays, tmp_path):
    """A data file whose tokens, channels and classes have hostile names, and a model of it."""
    kind = np.where(arrays["y"] > 0, f"up{CLEAR}", f"down{TITLE}")
    names = {"token_names": HOSTILE, "channel_names": [f"x{TURNED}", "y"]}
    np.savez(tmp_path / "h.npz", X=arrays["X"], y=arrays["y"], kind=kind, **names)
    model = cf.ConvexAttentionClassifier(0.1).fit(arrays["X"], kind)
    model.token_names_ = np.array(HOSTILE, dtype=object)
    model.channel_names_ = np.array(names["channel_names"], dtype=object)
    model.save(tmp_path / "h.st")
    return tmp_path


def test_every_unsafe_character_has_a_sign():
    everything = "".join(map(chr, range(0x110000)))
    shown = visible(everything)
    assert not UNSAFE.search(shown) and len(shown) == len(everything)
    kept = {a for a, b in zip(everything, shown, strict=True) if a == b}
    assert {" ", "\n", "é", "β", "─", "中", "א"} <= kept
    assert visible(CLEAR) == "�[2J"


@pytest.mark.parametrize("wrap", [Text, str, Panel])
def test_nothing_that_is_printed_commands_the_terminal(wrap):
    screen = io.StringIO()
    console = Terminal(file=screen, force_terminal=True, width=60)
    table = Table()
    for name in HOSTILE:
        table.add_column(name)
        console.print(wrap(name))
    console.print(table)
    styles = screen.getvalue()
    assert CLEAR not in styles and "\x9d" not in styles and "\u202e" not in styles
    assert "�[2J" in styles and "[red]:smile:" in styles


def test_signs_in_names_cut_no_number_off(run, run_json, hostile):
    shown = run("explain", hostile / "h.st").stdout
    reads = run_json("explain", hostile / "h.st")["reads"]
    for term in (term for terms in reads.values() for term in terms):
        assert f" {term['coefficient']:+#.2g}" in shown


def test_live_lines_and_warnings_show_names_safely(monkeypatch):
    screen = io.StringIO()
    console = Terminal(file=screen, force_terminal=True, width=100)
    monkeypatch.setattr(_console, "err", console)
    with _console.warned(), _console.live("fitting") as report:
        report.step(f"fold of {TITLE}")
        warnings.warn(f"token {TITLE}", stacklevel=1)
    assert "\x9d" not in screen.getvalue() and screen.getvalue().count("�0;tit") >= 2


@pytest.mark.parametrize(
    "words",
    [
        "explain h.st",
        "explain h.st --json",
        "fit h.npz --target kind --out m.st",
        "fit h.npz --target kind --out m.st --json",
        "path h.npz --target y --n-betas 4",
        "predict h.st h.npz --out p.csv",
        "fit h.npz --target none --out m.st",
        f"explain h.st --tokens {CLEAR},b",
        f"explain no{CLEAR}file",
    ],
)
def test_commands_write_no_control_characters(hostile, monkeypatch, words):
    monkeypatch.chdir(hostile)
    result = call(*words.split())
    shown = result.stdout.decode() + result.stderr.decode()
    assert shown.strip() and not UNSAFE.search(shown), shown
    assert "Traceback" not in shown
    if words.endswith("--json"):
        assert HOSTILE[1] in json.loads(result.stdout)["tokens"]


@pytest.mark.parametrize("words", ["explain", "demo", "fit --help"])
def test_ascii_terminals(arrays, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    names = {"token_names": ["中", "β-sheet", "größe"], "channel_names": ["x", "y"]}
    np.savez("g.npz", X=arrays["X"], y=arrays["y"], **names)
    fit = ["fit", "g.npz", "--target", "y", "--out", "m.st", "--force"]
    arguments = {
        "explain": ["explain", "m.st"],
    }.get(words, words.split())
    if words == "explain":
        assert call(*fit).returncode == 0
    result = call(*arguments, **ASCII)
    assert result.returncode == 0, result.stderr
    shown = result.stdout.decode("ascii")
    assert "Traceback" not in result.stderr.decode("ascii")
    if words == "explain":
        assert "?-sheet" in shown and "gr??e" in shown and "????" in shown


def test_json_on_an_ascii_terminal_is_whole(hostile):
    result = call("explain", hostile / "h.st", "--json", **ASCII)
    assert HOSTILE[1] in json.loads(result.stdout)["tokens"]


def ended_by_reader(*arguments):
    """Exit code and stderr of a command whose reader goes away before it writes."""
    read, write = os.pipe()
    words = [sys.executable, "-m", "convexformer", *map(str, arguments)]
    process = subprocess.Popen(words, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    os.close(read)
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_closed_pipe_is_no_error(model, options):
    assert ended_by_reader("explain", model, *options) == (1, b"")


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_head_ends_a_command_in_silence(model):
    words = f"set -o pipefail; {sys.executable} -m convexformer explain {model} | head -1"
    result = subprocess.run(["bash", "-c", words], capture_output=True, check=False)
    assert result.returncode in (0, 1) and result.stderr == b""
    assert result.stdout.count(b"\n") == 1


@pytest.mark.skipif(os.name != "posix", reason="descriptors of POSIX")
def test_closed_streams_are_no_error(model):
    words = f"{sys.executable} -m convexformer explain {model} >&- 2>&-"
    assert subprocess.run(["bash", "-c", words], check=False).returncode == 0
