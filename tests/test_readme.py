"""The README is true: its Python runs and prints what its comments say."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib
import pytest

README = Path(__file__).parents[1] / "README.md"


def test_python_of_the_readme_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    matplotlib.use("Agg")
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    code = "\n".join(blocks)
    expected = re.findall(r"^print\(.*?\)\s+# (.*?)(?:: .*)?$", code, flags=re.MULTILINE)
    exec(compile(code, str(README), "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert len(expected) >= 4
    assert printed == expected


def test_files_the_readme_names_exist() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README.read_text())
    assert links
    assert [link for link in links if not (README.parent / link).exists()] == []
