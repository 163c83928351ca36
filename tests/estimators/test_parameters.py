"""Constructor parameters: every one is documented, has its stated default, and is checked."""

import inspect
import re
import warnings

import numpy as np
import pytest
from sklearn.base import clone

import convexformer
from convexformer.estimators._parameters import (
    CHECKS,
    check_parameters,
    entries,
    estimator,
    sections,
)

KINDS = [
    getattr(convexformer, name)
    for name in convexformer.__all__
    if name.startswith("Convex") or name in ("PooledTokens", "TokenScaler")
]
BY_DATA = {"token_weights", "gates", "random_state", "cv", "n_jobs", "verbose"}
"""Parameters whose validity depends on the data, or that scikit-learn checks."""

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 4, 2))


def parameters_of(kind):
    return inspect.signature(kind).parameters


def documented(kind, section):
    return entries(sections(kind).get(section, ""))


@pytest.mark.parametrize("kind", KINDS)
def test_help_shows_every_parameter_and_no_other(kind):
    assert list(documented(kind, "Parameters")) == list(parameters_of(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_documented_defaults_are_the_defaults(kind):
    for name, entry in documented(kind, "Parameters").items():
        header = entry.split("\n")[0]
        stated = re.search(r"default=(.+)$", header)
        if stated is None:
            assert header.endswith(", optional") and parameters_of(kind)[name].default is None
        else:
            value = eval(stated[1])
            assert value == parameters_of(kind)[name].default
            assert type(value) is type(parameters_of(kind)[name].default)


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_first_parameter_is_positional(kind):
    first, *others = parameters_of(kind).values()
    assert first.name in ("beta", "betas", "epsilon", "per")
    assert first.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert all(other.kind is inspect.Parameter.KEYWORD_ONLY for other in others)
    assert getattr(kind(first.default), first.name) == first.default


@pytest.mark.parametrize("kind", KINDS)
def test_bases_document_no_parameter_that_nobody_has(kind):
    for base in kind.__mro__[1:]:
        if "__dataclass_fields__" in vars(base):
            assert documented(base, "Parameters").keys() <= set(parameters_of(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_is_checked(kind):
    assert set(parameters_of(kind)) - BY_DATA <= CHECKS.keys()
    check_parameters(kind())
    for name in set(parameters_of(kind)) - BY_DATA:
        with pytest.raises(ValueError, match=name):
            check_parameters(kind(**{name: -1.5}))


def test_every_check_belongs_to_a_parameter():
    assert CHECKS.keys() <= {name for kind in KINDS for name in parameters_of(kind)}


@pytest.mark.parametrize("kind", KINDS)
def test_every_fitted_attribute_is_documented(kind):
    model = kind()
    small = {"n_gates": 2, "n_betas": 3, "max_iter": 200, "tol": 1e-2, "random_state": 0}
    model.set_params(**{name: small[name] for name in small if name in parameters_of(kind)})
    y = X[:, 1, 0] + 0.1 * rng.normal(size=60)
    if kind.__name__.startswith("ConvexSequence"):
        y = X[:, ::-1, :1]
    if "Classifier" in kind.__name__:
        y = y[..., 0] > 0 if y.ndim == 3 else y > 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the smallest beta
        model.fit(X, y)
    kept = {name for name in vars(model) if name.endswith("_") and not name.startswith("_")}
    assert kept <= documented(kind, "Attributes").keys()
    for name in documented(kind, "Attributes"):
        absent = ("selection_", "ridge_", "feature_names_in_")
        assert name.startswith(absent) or hasattr(model, name), name


class Derived(convexformer.ConvexAttentionClassifier):
    """An estimator of a user, with one more parameter."""

    def __init__(self, beta=0.1, *, extra="more", tol=1e-3):
        super().__init__(beta, tol=tol)
        self.extra = extra


def test_users_derive_estimators():
    model = clone(Derived(0.2, extra="own"))
    assert model.get_params() == {"beta": 0.2, "extra": "own", "tol": 1e-3}
    assert model.fit(X, X[:, 1, 0] > 0).tokens_.tolist() == [1]
    assert model.penalty == "token-output"


def test_estimators_are_compared_by_identity():
    one, other = convexformer.TokenScaler(), convexformer.TokenScaler()
    assert one != other and len({one, other}) == 2


def test_without_docstrings():
    """As with python -OO: there is nothing to assemble, and nothing fails."""

    @estimator
    class Bare(convexformer.TokenScaler):
        fraction: float = 0.5

    assert Bare(fraction=0.25).get_params()["fraction"] == 0.25
