"""What a model file holds of every class, as JSON data and arrays, and what must agree in it.

What a file says may be anything: its parts are converted to the types that they must have, and
compared with each other. A ValueError, TypeError, LookupError, AttributeError or ArithmeticError
says that the file is damaged. Nothing that is made here is much larger than the file.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_classifier

import convexformer

from ._model_file import Array
from .problem import PENALTIES, Certificate, Offsets
from .problem.sequence import AttentionParts
from .solvers import Status, TracePoint

AXES: dict[str, dict[str, str]] = {
    "Persistent": {"coef_": "outputs tokens channels", "intercept_": "outputs"},
    "Gated": {
        "coef_": "outputs gates tokens channels",
        "gate_directions_": "gates tokens channels",
        "gate_thresholds_": "gates",
    },
    "CrossValidated": {"betas_": "betas", "scores_": "folds betas"},
    "SequenceModel": {"coef_": "channels outputs tokens tokens"},
}
"""Arrays that a class adds to those of its bases, with names of their axes."""

NOT_FINITE = ("gate_thresholds_", "scores_")  # may hold infinity, or NaN where a fold was left out

LABELS = ("classes_", "feature_names_in_", "token_names_", "channel_names_")
PLAIN = (bool, int, float, str)
LABEL_BYTES = 1 << 24  # labels of fixed width may take so much memory, however short they are
ROUNDING = 1e-9  # relative; more than sums of floats differ by between machines


def axes_of(kind: type, refitted: bool) -> dict[str, str]:
    """Names of the arrays of a model, and of their axes."""
    axes: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        axes |= AXES.get(base.__name__, {})
    if refitted:
        axes |= {"selection_coef_": axes["coef_"], "selection_intercept_": "outputs"}
        axes["ridge_"] = "outputs"
    return axes


# From a model to a file -----------------------------------------------------------------------


def describe(model: Any) -> tuple[dict[str, Any], dict[str, Array]]:
    """A model as JSON data and arrays."""
    params: dict[str, Any] = {}
    for name, value in model.get_params(deep=False).items():
        with suppress(TypeError):  # no plain data: not stored
            params[name] = _plain(value)
    names = ("n_iter_", "n_features_in_", "_targets")
    described = {
        "library_version": convexformer.__version__,
        "class": type(model).__name__,
        "params": params,
        "certificate": model._certificate.to_dict(),  # of the selection, where refitted
        "status": model.status_.name if hasattr(model, "status_") else None,
        "strategy": model.strategy_,
        "trace": [_plain(list(point)) for point in model.trace_],
        "values": {name: _plain(getattr(model, name)) for name in names},
    }
    for name in LABELS:
        if hasattr(model, name):
            described[name] = _describe_labels(name, getattr(model, name))
    arrays = axes_of(type(model), hasattr(model, "ridge_"))
    return described, {name: getattr(model, name) for name in arrays}


def _plain(value: Any) -> Any:
    """`value` as JSON data; a TypeError where it is none."""
    if hasattr(value, "tolist"):  # arrays and scalars of NumPy, tensors, columns of tables
        value = value.tolist()
    if isinstance(value, Offsets):
        return {"offsets": [value.low, value.high, list(value.landmarks)]}
    if isinstance(value, dict):  # class weights, whose keys need not be strings
        return {"pairs": [[_plain(key), _plain(item)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, PLAIN):
        return value
    raise TypeError(f"{type(value).__name__} is no plain data")


def _describe_labels(name: str, labels: NDArray) -> dict[str, Any]:
    text = labels.dtype == object and all(isinstance(label, str) for label in labels)
    if not (text or labels.dtype.kind in "biufU"):
        raise ValueError(
            f"{name} of dtype {labels.dtype} cannot be saved: only booleans, numbers and strings "
            "can. Fit with labels of such a type."
        )
    return {"dtype": "object" if text else labels.dtype.str, "values": labels.tolist()}


# From a file to a model -----------------------------------------------------------------------


def model_of(kind: Any, described: dict[str, Any], arrays: dict[str, Array]) -> Any:
    """The model of class `kind` that a file holds."""
    axes = axes_of(kind, refitted="ridge_" in arrays)
    lengths = _lengths(kind, axes, arrays)
    former = {"gate_weight": 1.0} if hasattr(kind, "gate_weight") else {}  # could not be chosen
    params = {name: _read_param(value) for name, value in described["params"].items()}
    model = kind(**former | params)
    model._check_parameters()
    vars(model).update({name: arrays[name] for name in axes})
    _restore_sizes(model, described["values"], lengths)
    _restore_labels(model, described, lengths)
    _restore_proof(model, described)
    with np.errstate(all="ignore"):
        model._set_coefficients(model.coef_, model.intercept_)
        _check_penalty(model)
        if "scores_" in axes:
            model._choose()
    return model


def _lengths(kind: type, axes: dict[str, str], arrays: dict[str, Array]) -> dict[str, int]:
    """Length of every axis, the same in all arrays."""
    if not set(axes) <= set(arrays):
        raise ValueError(f"it is no whole {kind.__name__}, which has {', '.join(axes)}")
    lengths: dict[str, int] = {}
    for name, words in axes.items():
        array, of_array = arrays[name], words.split()
        lengths = dict(zip(of_array, array.shape, strict=False)) | lengths
        if array.shape != tuple(lengths.get(axis) for axis in of_array) or array.size == 0:
            raise ValueError(
                f"{name} of shape {array.shape} should be ({', '.join(of_array)}) and agree with "
                f"the other arrays, where {lengths}"
            )
        if name not in NOT_FINITE and not np.all(np.isfinite(array)):
            raise ValueError(f"{name} holds NaN or infinity")
    return lengths


def _read_param(value: Any) -> Any:
    """A parameter from its JSON data."""
    if not isinstance(value, dict):
        return value
    if "pairs" in value:
        return {key: item for key, item in value["pairs"]}
    low, high, landmarks = value["offsets"]
    return Offsets(low, high, tuple(landmarks))


def _restore_sizes(model: Any, values: dict[str, Any], lengths: dict[str, int]) -> None:
    """Sizes, those of arrays, with which the parameters must agree."""
    n, d, outputs = lengths["tokens"], lengths["channels"], lengths["outputs"]
    model.n_tokens_, model.n_channels_, model.n_iter_ = n, d, int(values["n_iter_"])
    model._targets = str(values["_targets"])
    if model._targets == "sequence":
        model.n_outputs_ = outputs
    if outputs > 1 and model._targets in ("one", "binary"):
        raise ValueError(f"coef_ has {outputs} outputs for one target")
    model.n_features_in_, asked = n * d, getattr(model, "n_tokens", None)
    if isinstance(getattr(model, "tokens", None), Offsets):
        model.n_features_in_ = int(values["n_features_in_"])  # of sequences of another length
        asked = len(model.tokens)
    if asked not in (None, n):
        raise ValueError(f"its parameters ask for {asked} tokens, and coef_ has {n}")


def _restore_labels(model: Any, described: dict[str, Any], lengths: dict[str, int]) -> None:
    outputs, targets = lengths["outputs"], model._targets
    counts = {"token_names_": lengths["tokens"], "channel_names_": lengths["channels"]}
    counts["feature_names_in_"] = model.n_features_in_
    counts = {name: count for name, count in counts.items() if name in described}
    if is_classifier(model):
        counts["classes_"] = 2 if outputs == 1 and targets in ("binary", "sequence") else outputs
    for name, count in counts.items():
        setattr(model, name, _read_labels(name, described[name], count))
    if is_classifier(model) and model.classes_.tolist() != sorted(set(model.classes_)):
        raise ValueError("classes_ are not sorted or not distinct")


def _read_labels(name: str, stored: dict[str, Any], count: int) -> NDArray:
    dtype, values = np.dtype(stored["dtype"]), stored["values"]
    plain = dtype.kind in "biufUO" and all(isinstance(value, PLAIN) for value in values)
    small = dtype.itemsize * len(values) <= LABEL_BYTES + 64 * len(str(values))
    labels = np.array(values, dtype=dtype) if plain and small else np.empty(0)
    if labels.tolist() != values or labels.shape != (count,):
        raise ValueError(f"{name} must be {count} labels that fit dtype {dtype}")
    return labels


def _restore_proof(model: Any, described: dict[str, Any]) -> None:
    """Certificate, trace, strategy and status."""
    figures = {"negligible": 0.0, **described["certificate"]}  # format 1 began without it
    names = ("primal", "dual", "beta", "beta_max", "negligible")
    certificate = Certificate(*(float(figures[name]) for name in names))
    if certificate.to_dict() != figures or not all(map(np.isfinite, figures.values())):
        raise ValueError("the gap of its certificate is not primal - dual")
    if certificate.gap < -ROUNDING * certificate.primal or certificate.beta < 0:
        raise ValueError(f"{certificate} is none: dual exceeds primal, or beta is negative")
    model._certificate = certificate
    model.beta_, model.beta_max_ = certificate.beta, certificate.beta_max
    model.trace_ = [
        TracePoint(int(iteration), float(seconds), float(gap), int(active))
        for iteration, seconds, gap, active in described["trace"]
    ]
    model.strategy_ = str(described.get("strategy") or "")
    converged = certificate.relative_gap <= model.tol
    # Format 1 has no status: it does not say why others stopped.
    status = described.get("status") or ("CONVERGED" if converged else None)
    if status is not None:
        model.status_ = Status[status]
    if status == "CONVERGED" and not converged:
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
    penalty, objective = model.beta_ * value, model._certificate.primal
    if not penalty <= objective * (1 + ROUNDING):
        raise ValueError(
            f"the penalty of its coefficients, {penalty:g}, exceeds the objective of its "
            f"certificate, {objective:g}"
        )
