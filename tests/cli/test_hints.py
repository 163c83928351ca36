"""No message names an option, a parameter or a class that is not there."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest
import typer

import convexformer
from convexformer.cli import app
from convexformer.cli._console import in_options
from convexformer.solvers import Status
from convexformer.solvers.solution import advice

CLI = Path(convexformer.__file__).parent / "cli"
ESTIMATORS = CLI.parent / "estimators"
SOLVERS = CLI.parent / "solvers"
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
PARAMETER = re.compile(r"(?<![\w.])([a-z]\w*)=(?!=)")
CLASS = re.compile(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)+(?:CV)?(?![\w*])")
LIBRARIES = {"NumPy", "PyTorch"}  # are written like classes


def commands(group, *words):
    """Every command by its words: the function that runs it, and its options."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *words, name)
        else:
            options = {option for parameter in command.params for option in parameter.opts}
            yield (*words, name), inspect.unwrap(command.callback), options | {"--help"}


COMMANDS = list(commands(typer.main.get_command(app)))


class Module:
    """Definitions of a module of the command line, and where the names in it come from."""

    def __init__(self, file):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        self.imported = {
            alias.asname or alias.name: (node.module, alias.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module
            for alias in node.names
        }
        self.defined = {node.name: node for node in tree.body if hasattr(node, "name")}
        for node in tree.body:
            for target in getattr(node, "targets", ()):
                declared = isinstance(node.value, ast.Subscript)  # Annotated: an option itself
                if isinstance(target, ast.Name) and not declared:
                    self.defined[target.id] = node


MODULES = {file.stem: Module(file) for file in CLI.glob("_*.py")}


def reached(module, name):
    """Every definition that a function may call, however far below it."""
    found, waiting = {}, [(module, name)]
    while waiting:
        place = module, name = waiting.pop()
        if place in found or module not in MODULES or name not in MODULES[module].defined:
            continue
        found[place] = MODULES[module].defined[name]
        for node in ast.walk(found[place]):
            if isinstance(node, ast.Name):
                waiting.append(MODULES[module].imported.get(node.id, (module, node.id)))
    return found


def texts(node):
    """Strings in a definition; what is filled into them is left out."""
    return [
        item.value
        for item in ast.walk(node)
        if isinstance(item, ast.Constant) and isinstance(item.value, str)
    ]


@pytest.mark.parametrize(
    ("words", "function", "options"), COMMANDS, ids=[" ".join(words) for words, *_ in COMMANDS]
)
def test_options_in_messages_are_options_of_the_command(words, function, options):
    module = function.__module__.rpartition(".")[2]
    definitions = reached(module, function.__name__)
    assert ("_console", "remark") in definitions  # through the decorator: the search goes deep
    named = {
        (place, option)
        for place, node in definitions.items()
        if place[1] != "in_options"  # whose docstring has an example
        for text in texts(node)
        for option in OPTION.findall(text)
    }
    missing = sorted((place, option) for place, option in named if option not in options)
    assert not missing


def test_the_search_finds_what_is_deep():
    assert ("_data", "_grouped") in reached("_fit", "fit")
    assert ("_data", "_numbers") in reached("_models", "predict")
    assert ("_data", "_grouped") not in reached("_models", "predict")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("tol must be positive; see eps.", "--tol must be positive; see --eps."),
        ("cv=9 needs 9 samples", "--cv=9 needs 9 samples"),
        ("scale X (TokenScaler)", "scale X (--scale)"),
        ("no file /data/cv.npz or tol.npz", "no file /data/cv.npz or tol.npz"),
    ],
)
def test_parameters_become_options(said, shown):
    assert in_options(said) == shown


@pytest.mark.parametrize(
    ("status", "named"),
    [
        (Status.TIME, {"--max-time", "--tol"}),
        (Status.ITERATIONS, {"--tol"}),
        (Status.PRECISION, {"--scale", "--tol"}),
        (Status.INTERRUPTED, set()),
    ],
)
def test_commands_advise_what_helps_against_the_reason_of_a_stop(status, named):
    said = in_options(f"On some folds the path stopped. {advice([status, Status.CONVERGED])}")
    assert not re.search("max_time|TokenScaler|raise tol", said)
    assert set(OPTION.findall(said)) == named


def test_messages_of_estimators_name_parameters_and_classes_that_exist():
    public = [getattr(convexformer, name) for name in convexformer.__all__]
    parameters = {
        name
        for thing in public
        if callable(thing)
        for function in (thing, *(method for _, method in _methods(thing)))
        for name in inspect.signature(function).parameters
    }
    words = [
        word
        for file in sorted(ESTIMATORS.glob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Raise, ast.Call)) and _complains(node)
        for word in texts(node)
    ]
    assert len(words) > 100
    for text in words:
        assert set(PARAMETER.findall(text)) <= parameters, text
        for name in set(CLASS.findall(text)) - LIBRARIES:
            assert hasattr(convexformer, name) or _elsewhere(name), text


def _methods(thing):
    return inspect.getmembers(thing, inspect.isfunction) if inspect.isclass(thing) else ()


def _complains(node):
    """Whether a statement raises an error or warns."""
    function = getattr(node, "func", None)
    return isinstance(node, ast.Raise) or getattr(function, "attr", "") == "warn"


def _elsewhere(name):
    """Whether scikit-learn has a class of this name."""
    modules = ("preprocessing", "multioutput", "pipeline", "model_selection")
    return any(hasattr(importlib.import_module(f"sklearn.{module}"), name) for module in modules)
