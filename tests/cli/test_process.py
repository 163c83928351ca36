"""The installed command as others call it: another process, pipes, exit codes."""

import json
import subprocess
import sys
from pathlib import Path

COMMAND = Path(sys.executable).with_name("convexformer")


def call(*arguments, **options):
    words = [str(COMMAND), *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False, **options)


def test_stdout_is_one_json_object_and_nothing_else(npz, tmp_path):
    result = call("fit", npz, "--target", "y", "--out", tmp_path / "m.st", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["relative_gap"] <= 1e-6
    assert result.stdout.count("\n") == 1 and result.stderr == ""


def test_errors_go_to_stderr_with_exit_code_2(tmp_path):
    result = call("explain", "none.st", "--json", cwd=tmp_path)
    assert result.returncode == 2
    assert json.loads(result.stdout) == {"error": "there is no file none.st."}
    assert result.stderr == "error: there is no file none.st.\n"


def test_wrong_options_exit_with_2(tmp_path):
    result = call("fit", "data.npz", "--out", "m.st", cwd=tmp_path)
    assert result.returncode == 2 and "--target" in result.stderr and result.stdout == ""


def test_the_command_line_loads_nothing_heavy():
    code = (
        "import sys, convexformer; before = set(sys.modules); import convexformer.cli; "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(new & {'matplotlib', 'pandas', 'pyarrow', 'sklearn', 'scipy'}))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n"


def test_the_package_runs_as_a_module():
    words = [sys.executable, "-m", "convexformer", "--version"]
    out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert out.startswith("convexformer ")
