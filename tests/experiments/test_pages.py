"""Every page of an experiment follows from its results, and so does every number that it quotes."""

import dataclasses
import importlib
import inspect
import json
import math
import re
import tomllib
from pathlib import Path

import pytest
from experiments.lab import Ledger

ROOT = Path(__file__).parents[2]
NAMES = (
    "drop_in",
    "equivalence",
    "gate_weight",
    "grokking",
    "paraphrase",
    "predictive",
    "probes",
    "refit",
    "teacher",
)

# Numbers in prose that no result and no constant holds, and where they come from.
OTHERS = {
    "drop_in": {"16", "60"},  # a width that was tried; tokens of splice
    "equivalence": {"60", "0.05", "0.2", "0.4", "24", "2.4e-4"},  # of trials before the experiment
    "grokking": {"2022", "9,312"},  # a year; 97 x 96 equations
    "paraphrase": {"245"},  # pairs of MRPC, which may not be shipped
    "probes": {"20", "60", "420", "64", "768"},  # shares of texts; megabytes and sizes of mpnet
    "refit": {"1e-16", "21", "35"},  # told by docs/refit.md's own code, and by hand
    "teacher": {"1725", "245"},  # pairs of MRPC, which may not be shipped
}
READING = ("paraphrase", "probes", "teacher")  # texts, for their jobs: see the tests of these


def experiments():
    for name in NAMES:
        command = importlib.import_module(f"experiments.{name}.__main__")
        for made in vars(command).values():
            if type(made).__name__ == "Experiment":
                yield pytest.param(made, id=made.page)


def stored(experiment):
    return json.loads((experiment.home / "results.json").read_text())


@pytest.mark.parametrize("experiment", list(experiments()))
def test_the_committed_page_is_that_of_the_committed_results(experiment):
    page = (ROOT / "docs" / experiment.page).read_text()
    assert page == experiment.text(stored(experiment))
    for figure in re.findall(r"\((figures/[a-z0-9-]+\.png)\)", page):
        assert (ROOT / "docs" / figure).stat().st_size > 1000


@pytest.mark.parametrize("name", [name for name in NAMES if name not in READING])
def test_the_committed_results_follow_from_the_committed_jobs(name):
    """All jobs are found again, so that a definition that has changed would be seen."""
    command = importlib.import_module(f"experiments.{name}.__main__")
    experiment = importlib.import_module(f"experiments.{name}.experiment")
    home = command.EXPERIMENT.home
    ledger = Ledger(home, max_minutes=-1, report=lambda done, what: pytest.fail(what))
    results = experiment.run(ledger)
    assert json.loads(json.dumps(results)) == stored(command.EXPERIMENT)


# Numbers ----------------------------------------------------------------------------------------

NUMBER = r"(?<![\w.#-])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?![\w]|\.\d)"
CURVES = ("records", "curve", "heights", "lowest", "examples")  # would hold any number


NO_PROSE = r"```.*?```|\{\{.*?\}\}|\{%.*?%\}|\]\(.*?\)|`[^`]*`|\$\$?.*?\$\$?"


def quoted(template):
    """Numbers that stand in the prose of a template as they are, less single digits."""
    prose = re.sub(NO_PROSE, " ", template, flags=re.DOTALL)
    found = {text.rstrip(",") for text in re.findall(NUMBER, prose)}
    return {text for text in found if not re.fullmatch(r"\d", text)}


def numbers(value):
    """All numbers in a value, those of its fields and classes too."""
    if isinstance(value, dict):
        value = {k: v for k, v in value.items() if k not in CURVES}
        for part in (*value.keys(), *value.values()):
            yield from numbers(part)
    elif isinstance(value, (list, tuple, set)):
        for part in value:
            yield from numbers(part)
    elif dataclasses.is_dataclass(value):
        yield from numbers(
            {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
        )
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from (value, 100 * value)  # percents


def constants(name):
    """Numbers in the constants of an experiment, and in the defaults of its classes."""
    folder = ROOT / "experiments" / name
    for file in folder.glob("*.py"):
        module = importlib.import_module(f"experiments.{name}.{file.stem}")
        public = [value for key, value in vars(module).items() if key[0] != "_"]
        yield from numbers(public)
        for part in filter(inspect.isclass, public):
            if part.__module__.startswith("experiments.") and not issubclass(part, Exception):
                yield from numbers([p.default for p in inspect.signature(part).parameters.values()])


@pytest.mark.parametrize("name", NAMES)
def test_every_number_in_a_template_is_of_the_results_or_accounted_for(name):
    experiment = importlib.import_module(f"experiments.{name}.__main__").EXPERIMENT
    known = [*numbers(stored(experiment)), *constants(name)]
    left = {
        text
        for text in quoted((experiment.home / "page.md").read_text())
        if not any(math.isclose(float(text.replace(",", "")), n, rel_tol=1e-9) for n in known)
    }
    assert left == OTHERS.get(name, set())


def test_the_package_neither_holds_nor_imports_its_experiments():
    package = ROOT / "src" / "convexformer"
    assert not (package / "experiments").exists()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert settings["packages"] == {"find": {"where": ["src"]}}  # a wheel has nothing else
    for file in package.rglob("*.py"):
        assert not re.search(r"^\s*(from|import) experiments\b", file.read_text(), re.MULTILINE)
