"""The README and the pages of docs are true: their Python prints what its comments say."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib
import pytest

README = Path(__file__).parents[1] / "README.md"
PAGES = [README, *sorted((README.parent / "docs").glob("*.md"))]
WITH_PYTHON = [page for page in PAGES if "```python" in page.read_text()]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
def test_python_prints_what_it_says(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matplotlib.use("Agg")
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    code = "\n".join(blocks)
    expected = re.findall(r"^print\(.*?\)\s+# (.*?)(?:: .*)?$", code, flags=re.MULTILINE)
    exec(compile(code, str(page), "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert len(expected) >= 4
    assert printed == expected


def test_files_that_pages_name_exist() -> None:
    found = [
        (page.name, link)
        for page in PAGES
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text())
        if not (page.parent / link).exists()
    ]
    assert found == []
