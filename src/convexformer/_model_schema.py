"""What a model file must hold, and how its parts must agree with each other.

Every function raises a ValueError that says what is wrong. Sizes are compared with the arrays, and
the arrays with the file, before anything of that size is made.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._model_file import Array, Layout, Tensor
from .problem import PENALTIES, Certificate, Offsets
from .problem.sequence import AttentionParts
from .solvers import STRATEGIES, Status, TracePoint
from .solvers.matrix_targets import MATRIX_STRATEGY

AXES: dict[str, dict[str, str]] = {
    "Persistent": {"coef_": "outputs tokens channels", "intercept_": "outputs"},
    "Gated": {
        "coef_": "outputs gates tokens channels",
        "gate_directions_": "gates tokens channels",
        "gate_thresholds_": "gates",
    },
    "CrossValidated": {
        "betas_": "betas",
        "scores_": "folds betas",
        "mean_scores_": "betas",
        "std_scores_": "betas",
        "standard_errors_": "betas",
    },
    "SequenceModel": {"coef_": "channels outputs tokens tokens"},
}
"""Arrays that a class adds to those of its bases, with names of their axes."""

NOT_FINITE = ("gate_thresholds_", "scores_", "mean_scores_", "std_scores_", "standard_errors_")
"""Arrays that may hold infinity, or NaN where a fold was left out."""

VALUES: dict[str, dict[str, type]] = {
    "Persistent": {
        "n_iter_": int, "n_tokens_": int, "n_channels_": int, "n_features_in_": int, "_targets": str
    },
    "CrossValidated": {"beta_fraction_": float, "best_index_": int, "best_score_": float},
    "SequenceModel": {"n_outputs_": int},
}  # fmt: skip
"""Attributes that a class adds to those of its bases, with their types."""

TARGETS = {
    "Regression": ("one", "several"),
    "Classification": ("binary", "multiclass", "multilabel"),
    "SequenceModel": ("sequence",),
}
"""Kinds of targets that a class knows."""

FORMER_PARAMS = {"gate_weight": 1.0}
"""Parameters that models were fitted with before they could be chosen."""

LABELS = ("classes_", "feature_names_in_", "token_names_", "channel_names_")  # saved if there
DESCRIPTION = {"library_version", "class", "params", "certificate", "trace", "values"}
LABEL_DTYPE = re.compile(r"object|\|b1|[|<>][iu][1248]|[<>]f[248]|[<>]U(?P<width>\d{1,9})")
LABEL_BYTES = 1 << 24  # labels of fixed width may take so much memory, whatever their text takes
MOST_BETAS = 100_000  # of a path; checking the parameters makes an array of so many
ROUNDING = 1e-9  # relative; more than sums of floats differ by between machines
LARGEST = 1e150  # coefficients whose squares are within float64


def of_bases(table: dict[str, dict[str, Any]], kind: type) -> dict[str, Any]:
    """What `table` holds for a class: its own entries over those of its bases."""
    merged: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        merged |= table.get(base.__name__, {})
    return merged


def refit_axes(kind: type) -> dict[str, str]:
    """Arrays that only a refitted model has, with names of their axes."""
    coef = of_bases(AXES, kind)["coef_"]
    return {"selection_coef_": coef, "selection_intercept_": "outputs", "ridge_": "outputs"}


# Before arrays are made -----------------------------------------------------------------------


def check_layout(kind: type, layout: Layout) -> None:
    """Raise unless a file holds what a model of class `kind` has, in sizes that agree."""
    description = layout.description
    expected = DESCRIPTION | ({"status"} if layout.version > 1 else set())
    optional = {*LABELS, "strategy"} if layout.version > 1 else set(LABELS)
    if set(description) - optional != expected:
        raise ValueError(f"it must describe {_listed(expected)}")
    axes = _axes(kind, layout.tensors)
    params = description["params"]
    known = kind._get_param_names()  # type: ignore[attr-defined]
    if not isinstance(params, dict) or not set(params) <= set(known):
        raise ValueError(f"a {kind.__name__} has the parameters {_listed(known)} and no others")
    _check_values(kind, description["values"], axes, params.get("tokens"))
    n_betas = params.get("n_betas")
    if type(n_betas) is int and n_betas > MOST_BETAS:
        raise ValueError(f"n_betas exceeds {MOST_BETAS}")
    _check_labels(kind, description, axes)


def _axes(kind: type, tensors: dict[str, Tensor]) -> dict[str, int]:
    """Length of every axis, the same in all arrays."""
    expected, refitted = of_bases(AXES, kind), refit_axes(kind)
    if set(tensors) != set(expected) and set(tensors) != set(expected | refitted):
        raise ValueError(
            f"it is not a whole {kind.__name__}, which has the arrays {_listed(expected)}"
        )
    lengths: dict[str, int] = {}
    for name, tensor in tensors.items():
        axes = (expected | refitted)[name].split()
        agree = len(axes) == len(tensor.shape) and all(
            length > 0 and lengths.setdefault(axis, length) == length
            for axis, length in zip(axes, tensor.shape, strict=True)
        )
        if not agree:
            raise ValueError(
                f"{name} of shape {tensor.shape} should be ({', '.join(axes)}) and agree with the "
                f"other arrays, where {lengths}"
            )
    return lengths


def _check_values(kind: type, values: Any, axes: dict[str, int], tokens: Any) -> None:
    types = of_bases(VALUES, kind)
    if not isinstance(values, dict) or values.keys() != types.keys():
        raise ValueError(f"its values are not {_listed(types)}")
    for name, value in values.items():
        if type(value) is not types[name] or (types[name] is int and value < 0):
            raise ValueError(f"{name} must be of type {types[name].__name__}")
    n, d = axes["tokens"], axes["channels"]
    columns = values["n_features_in_"]
    by_offset = isinstance(tokens, dict)  # sequences then have a length of their own
    known = {"n_tokens_": n, "n_channels_": d, "n_outputs_": axes["outputs"]}
    agree = all(values.get(name, length) == length for name, length in known.items())
    if not (agree and columns % d == 0 and columns > 0 and (by_offset or columns == n * d)):
        raise ValueError(f"{_listed(known)} or n_features_in_ disagree with coef_")
    targets = [kinds for name, kinds in TARGETS.items() if name in _bases(kind)]
    if values["_targets"] not in targets[0]:
        raise ValueError(f"its targets are none of {_listed(targets[0])}")
    if values["_targets"] in ("one", "binary") and axes["outputs"] != 1:
        raise ValueError(f"coef_ has {axes['outputs']} outputs for one target")


def _check_labels(kind: type, description: dict[str, Any], axes: dict[str, int]) -> None:
    values, targets = description["values"], description["values"]["_targets"]
    two = targets == "binary" or (targets == "sequence" and axes["outputs"] == 1)
    classifier = {"Classification", "ConvexSequenceClassifier"} & set(_bases(kind))
    lengths = {
        "classes_": 2 if two else axes["outputs"],
        "feature_names_in_": values["n_features_in_"],
        "token_names_": axes["tokens"],
        "channel_names_": axes["channels"],
    }
    if ("classes_" in description) != bool(classifier):
        raise ValueError("classes_ belong to classifiers, and to all of them")
    for name, length in lengths.items():
        if name in description:
            labels = labels_of(name, description[name], length)
            if name == "classes_" and labels != sorted(set(labels)):
                raise ValueError("classes_ are not sorted or not distinct")


def labels_of(name: str, stored: Any, length: int) -> list[Any]:
    """The labels of a description, `length` of them, each of what its dtype says."""
    if not isinstance(stored, dict) or stored.keys() != {"dtype", "values"}:
        raise ValueError(f"{name} must have dtype and values")
    dtype, labels = stored["dtype"], stored["values"]
    match = LABEL_DTYPE.fullmatch(dtype) if isinstance(dtype, str) else None
    if match is None or not isinstance(labels, list) or len(labels) != length:
        raise ValueError(f"{name} must be {length} labels of a known dtype")
    text = dtype == "object" or match["width"] is not None
    fits = _fits(dtype, labels) and (text or name == "classes_")
    if match["width"] is not None:
        width = int(match["width"])
        fits = fits and all(len(label) <= width for label in labels)
        if 4 * width * length > LABEL_BYTES + 64 * sum(map(len, map(str, labels))):
            raise ValueError(f"{name} of dtype {dtype} would be far larger than their text")
    if not fits:
        raise ValueError(f"{name} do not fit their dtype {dtype}")
    return labels


def _fits(dtype: str, labels: list[Any]) -> bool:
    """Whether all labels can be held by `dtype` as they are."""
    if dtype == "object" or "U" in dtype:
        return all(isinstance(label, str) for label in labels)
    if dtype == "|b1":
        return all(isinstance(label, bool) for label in labels)
    if "f" in dtype:
        top = float(np.finfo(dtype).max)
        return all(type(label) is float and abs(label) <= top for label in labels)
    range_ = np.iinfo(dtype)
    return all(type(label) is int and range_.min <= label <= range_.max for label in labels)


def _bases(kind: type) -> set[str]:
    return {base.__name__ for base in kind.__mro__}


def _listed(names: Any) -> str:
    """Names from a file or a table, short and printable."""
    return ", ".join(ascii(name)[:40] for name in sorted(map(str, names))[:12])


# After arrays are made ------------------------------------------------------------------------


def read_arrays(layout: Layout, content: bytearray) -> dict[str, Array]:
    """The arrays of a file, with no NaN or infinity where there must be none."""
    arrays = {name: tensor.read(content) for name, tensor in layout.tensors.items()}
    for name, array in arrays.items():
        if name not in NOT_FINITE and not np.all(np.isfinite(array)):
            raise ValueError(f"{name} holds NaN or infinity")
        if name == "gate_thresholds_" and np.any(np.isnan(array)):
            raise ValueError("gate_thresholds_ hold NaN")
        if "coef_" in name and np.max(np.abs(array)) > LARGEST:
            raise ValueError(f"squares of {name} leave the range of float64")
    return arrays


def read_certificate(figures: Any) -> Certificate:
    """A certificate whose figures agree with each other."""
    names = {"primal", "dual", "beta", "beta_max", "negligible", "gap", "relative_gap"}
    if isinstance(figures, dict):
        figures = {"negligible": 0.0} | figures  # the first files of format 1 did not have it
    if not isinstance(figures, dict) or figures.keys() != names:
        raise ValueError(f"its certificate must have {_listed(names)}")
    if not all(type(figure) is float and np.isfinite(figure) for figure in figures.values()):
        raise ValueError("its certificate holds other things than numbers")
    certificate = Certificate(
        *(figures[name] for name in ("primal", "dual", "beta", "beta_max", "negligible"))
    )
    least = min(figures[name] for name in ("primal", "beta", "beta_max", "negligible"))
    if not (certificate.dual <= certificate.primal * (1 + ROUNDING) and least >= 0):
        raise ValueError(f"{certificate} is none: dual exceeds primal, or a figure is negative")
    if certificate.to_dict() != figures:
        raise ValueError("the gap of its certificate is not primal - dual")
    return certificate


def read_trace(trace: Any, n_iter: int) -> list[TracePoint]:
    """Trace points whose iterations and times do not fall."""
    types = [int, float, float, int]
    if not isinstance(trace, list) or not all(
        isinstance(point, list) and list(map(type, point)) == types for point in trace
    ):
        raise ValueError("its trace is damaged")
    points = [TracePoint(*point) for point in trace]
    order = [(0, 0.0), *((point.iteration, point.seconds) for point in points), (n_iter, np.inf)]
    if not all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(order)):
        raise ValueError("iterations or seconds of its trace are in disorder")
    return points


def read_status(name: Any) -> Status | None:
    """The status of that name; None of a model that format 1 kept, which had no status."""
    if name is None:
        return None
    if not isinstance(name, str) or name not in Status.__members__:
        raise ValueError("its status is unknown")
    return Status[name]


def read_strategy(name: Any) -> str:
    """What found the solution; empty where the file does not say."""
    if name is None:
        return ""
    if not isinstance(name, str) or not set(name.split(" + ")) <= {
        *STRATEGIES,
        MATRIX_STRATEGY,
        "",
    }:
        raise ValueError("its strategy is unknown")
    return name


def check_agreement(model: Any) -> None:
    """Raise unless coefficients, certificate, scores and parameters of a model agree."""
    _check_penalty(model)
    status = getattr(model, "status_", None)
    if status is Status.CONVERGED and not model._certificate.relative_gap <= model.tol:
        raise ValueError("its status is CONVERGED, but its gap is above tol")


def _check_penalty(model: Any) -> None:
    """The loss is not negative, so the objective is at least the penalty."""
    coef: Array = getattr(model, "selection_coef_", model.coef_)
    if hasattr(model, "attention"):
        parts = AttentionParts.of(coef, model.attention)
        value = float(np.sum(parts.a + parts.b))
    else:
        Z = coef.reshape(len(coef), -1, coef.shape[-1]).transpose(1, 2, 0)  # (groups, d, c)
        value = PENALTIES[model.penalty](model._penalty_weights()).value(Z)
    certificate = model._certificate
    if not certificate.beta * value <= certificate.primal * (1 + ROUNDING):
        raise ValueError(
            f"the penalty of its coefficients, {certificate.beta * value:g}, exceeds the objective "
            f"of its certificate, {certificate.primal:g}"
        )


# Parameters -----------------------------------------------------------------------------------


def read_params(kind: type, params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a model of class `kind` from their JSON data."""
    known = kind._get_param_names()  # type: ignore[attr-defined]
    former = {name: value for name, value in FORMER_PARAMS.items() if name in known}
    return former | {name: read_param(name, value) for name, value in params.items()}


def read_param(name: str, value: Any) -> Any:
    """A parameter from its JSON data."""
    if isinstance(value, list) and _is_plain(value, depth=4):
        return value
    if name == "tokens" and isinstance(value, dict):
        return _offsets(value)
    if name == "class_weight" and isinstance(value, dict):
        return _class_weight(value)
    if _is_plain(value, depth=0):
        return value
    raise ValueError(f"its parameter {name} is damaged")


def _class_weight(value: dict[str, Any]) -> dict[Any, Any]:
    pairs = value.get("pairs")
    if value.keys() != {"pairs"} or not isinstance(pairs, list):
        raise ValueError("its parameter class_weight is damaged")
    if not all(isinstance(p, list) and len(p) == 2 and _is_plain(p, depth=1) for p in pairs):
        raise ValueError("its parameter class_weight is damaged")
    return dict(map(tuple, pairs))


def _offsets(value: dict[str, Any]) -> Offsets:
    offsets = value.get("offsets")
    if value.keys() != {"offsets"} or not isinstance(offsets, list) or len(offsets) != 3:
        raise ValueError("its parameter tokens is damaged")
    low, high, landmarks = offsets
    if not (_is_plain(landmarks, depth=1) and isinstance(landmarks, list)):
        raise ValueError("its parameter tokens is damaged")
    return Offsets(low, high, tuple(landmarks))


def check_tokens_parameters(model: Any, n_tokens: int) -> None:
    """Raise unless parameters that say how many tokens there are say `n_tokens`."""
    tokens, count = getattr(model, "tokens", None), getattr(model, "n_tokens", None)
    if isinstance(tokens, Offsets):
        count = tokens.high - tokens.low + 1 + len(tokens.landmarks)  # len() of more overflows
    if count is not None and count != n_tokens:
        raise ValueError(f"its parameters ask for {count} tokens, and coef_ has {n_tokens}")


def _is_plain(value: Any, depth: int) -> bool:
    """Whether `value` is a number, text, None, or a list of such, `depth` lists deep."""
    if isinstance(value, list):
        return depth > 0 and all(_is_plain(item, depth - 1) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))


def labels_array(stored: dict[str, Any]) -> NDArray:
    """An array of labels that were checked."""
    return np.array(stored["values"], dtype=stored["dtype"])


# From a model to its description -------------------------------------------------------------

NOT_PLAIN = object()


def plain(value: Any) -> Any:
    """`value` as JSON data, or `NOT_PLAIN`."""
    if hasattr(value, "tolist"):  # arrays and scalars of NumPy, tensors, columns of tables
        value = value.tolist()
    if isinstance(value, Offsets):
        return {"offsets": [value.low, value.high, list(value.landmarks)]}
    if isinstance(value, dict):  # class weights, whose keys need not be strings
        pairs = [[plain(key), plain(item)] for key, item in value.items()]
        return {"pairs": pairs}
    if isinstance(value, (list, tuple)):
        items = [plain(item) for item in value]
        return NOT_PLAIN if any(item is NOT_PLAIN for item in items) else items
    return value if value is None or isinstance(value, (bool, int, float, str)) else NOT_PLAIN


def describe_labels(name: str, labels: NDArray) -> dict[str, Any]:
    """Labels as JSON data."""
    fixed = labels.dtype.kind in "biufU"
    text = labels.dtype == object and all(isinstance(label, str) for label in labels)
    if not (fixed or text):
        raise ValueError(
            f"{name} of dtype {labels.dtype} cannot be saved: only booleans, numbers and strings "
            "can. Fit with labels of such a type."
        )
    return {"dtype": labels.dtype.str if fixed else "object", "values": labels.tolist()}
