"""PyTorch is an extra: the package works without it, and says what is missing."""

import subprocess
import sys

WITHOUT_TORCH = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_the_package_works_without_torch():
    code = (
        "import numpy as np, convexformer as cf; from convexformer.problem.heads import head_count;"
        "X = np.random.default_rng(0).normal(size=(20, 3, 2));"
        "model = cf.ConvexAttentionRegressor().fit(X, X[:, 0, 0]); print(len(model.tokens_) > 0)"
    )
    result = run(WITHOUT_TORCH + code)
    assert (result.returncode, result.stdout) == (0, "True\n"), result.stderr


def test_the_error_names_the_cure():
    result = run(WITHOUT_TORCH + "import convexformer.nn")
    assert result.returncode == 1
    assert 'pip install "convexformer[nn]"' in result.stderr.splitlines()[-1]


def test_the_command_says_it_in_one_line(tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("A text.\n")
    code = f"from convexformer.cli import app; app(['extract', 'minilm', {str(texts)!r}, "
    result = run(WITHOUT_TORCH + code + f"'--layer', '1', '--out', {str(tmp_path / 'out')!r}])")
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith("error: ") and "PyTorch" in result.stderr


def test_estimators_do_not_load_torch():
    code = "import sys, convexformer.estimators, convexformer.cli; print('torch' in sys.modules)"
    assert run(code).stdout == "False\n"
