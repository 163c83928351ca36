"""Models on disk: a safetensors file of arrays with JSON metadata. Never pickle."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes
from sklearn.utils.validation import check_is_fitted

import convexformer

from ..problem import Certificate, Offsets
from ..solvers import TracePoint
from ._refit import REFIT_ATTRIBUTES

FORMAT = "convexformer"
FORMAT_VERSION = 1
LABELS = ("classes_", "feature_names_in_", "token_names_", "channel_names_")  # saved if there


class Persistent:
    """Adds `save` and `load` to an estimator."""

    _certificate: Certificate

    _saved_arrays: ClassVar[tuple[str, ...]] = ("coef_", "intercept_")
    _saved_values: ClassVar[tuple[str, ...]] = (
        "n_iter_",
        "n_tokens_",
        "n_channels_",
        "n_features_in_",
        "_targets",
    )

    @classmethod
    def _saved(cls, kind: str) -> list[str]:
        """Names that this class and its bases each add to what is saved."""
        lists = [vars(base).get(f"_saved_{kind}", ()) for base in reversed(cls.__mro__)]
        return list(dict.fromkeys(name for names in lists for name in names))

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the fitted model to a safetensors file, all of it or nothing.

        Parameters
        ----------
        path : path-like
        overwrite : bool
            Whether an existing file may be replaced.

        Notes
        -----
        Parameters that are no plain data (a splitter, a scoring function, a progress callback) are
        not stored; the loaded model has their defaults. Predictions are the same bit for bit.
        """
        check_is_fitted(self)
        path = Path(path)
        if path.exists() and not overwrite:
            raise FileExistsError(f"{path} exists already. Pass overwrite=True to replace it.")
        if not path.parent.is_dir():
            raise FileNotFoundError(f"The folder {path.parent} of {path.name} does not exist.")
        refitted = [name for name in REFIT_ATTRIBUTES if hasattr(self, name)]
        arrays = {
            name: np.ascontiguousarray(getattr(self, name))
            for name in (*self._saved("arrays"), *refitted)
        }
        header = {
            "format": FORMAT,
            "format_version": str(FORMAT_VERSION),
            "model": json.dumps(self._describe()),
        }
        _write(path, to_bytes(arrays, metadata=header))

    def _describe(self) -> dict[str, Any]:
        """Everything but the arrays, as JSON data."""
        params = {
            name: value
            for name, raw in self.get_params(deep=False).items()  # type: ignore[attr-defined]
            if (value := _plain(raw)) is not _NOT_PLAIN
        }
        described = {
            "library_version": convexformer.__version__,
            "class": type(self).__name__,
            "params": params,
            "certificate": self._certificate.to_dict(),  # of the selection, where refitted
            "trace": [list(point) for point in self.trace_],
            "values": {name: _plain(getattr(self, name)) for name in self._saved("values")},
        }
        for name in LABELS:
            if hasattr(self, name):
                described[name] = _labels_to_json(name, getattr(self, name))
        return described

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that `save` wrote.

        Parameters
        ----------
        path : path-like

        Returns
        -------
        estimator
            Fitted, of the class that was saved.
        """
        described, arrays = _read(Path(path))
        name = described.get("class", "model without a class")
        kind = cls if name == cls.__name__ else getattr(convexformer, name, None)
        if not (isinstance(kind, type) and issubclass(kind, cls)):
            raise ValueError(
                f"{path} holds a {name}, not a {cls.__name__}. Load it with {name}.load, or with "
                "convexformer.load_model."
            )
        try:
            model = kind(**{key: _unplain(value) for key, value in described["params"].items()})
            model._restore(described, arrays)
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is not a whole {name} as convexformer {convexformer.__version__} knows it "
                f"({error}); it was written by {described.get('library_version')}. Save it again."
            ) from error
        return model

    def _restore(self, described: dict[str, Any], arrays: dict[str, NDArray]) -> None:
        for name in self._saved("arrays"):
            setattr(self, name, arrays[name])
        for name in REFIT_ATTRIBUTES:
            if name in arrays:
                setattr(self, name, arrays[name])
        for name in self._saved("values"):
            setattr(self, name, described["values"][name])
        for name in LABELS:
            if name in described:
                stored = described[name]
                setattr(self, name, np.array(stored["values"], dtype=stored["dtype"]))
        figures = described["certificate"]
        self._certificate = Certificate(
            *(figures[name] for name in ("primal", "dual", "beta", "beta_max")),
            negligible=figures.get("negligible", 0.0),  # earlier versions did not write it
        )
        self.beta_, self.beta_max_ = self._certificate.beta, self._certificate.beta_max
        self.trace_ = [TracePoint(*point) for point in described["trace"]]
        self._set_coefficients(arrays["coef_"], arrays["intercept_"])  # type: ignore[attr-defined]


def load_model(path: str | os.PathLike[str]) -> Any:
    """Read any saved model; its class is told by the file.

    Parameters
    ----------
    path : path-like
        A file written by an estimator's ``save``.

    Returns
    -------
    estimator
        Fitted.

    Examples
    --------
    >>> import numpy as np, tempfile, os
    >>> from convexformer import ConvexAttentionRegressor, load_model
    >>> X = np.random.default_rng(0).normal(size=(30, 4, 2))
    >>> model = ConvexAttentionRegressor().fit(X, X[:, 1, 0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(os.path.join(folder, "model.safetensors"))
    ...     again = load_model(os.path.join(folder, "model.safetensors"))
    >>> bool(np.all(again.predict(X) == model.predict(X)))
    True
    """
    return Persistent.load(path)


# Files ----------------------------------------------------------------------------------------


def _write(path: Path, content: bytes) -> None:
    """Write beside `path`, then move into place: a reader never sees half a file."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _read(path: Path) -> tuple[dict[str, Any], dict[str, NDArray]]:
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"{path} cannot be read as a safetensors file ({error}): it is truncated, damaged or "
            "of another kind. Save the model again."
        ) from error
    if header.get("format") != FORMAT:
        raise ValueError(
            f"{path} is a safetensors file but holds no convexformer model. Pass a file written "
            "by an estimator's save method."
        )
    version = header.get("format_version")
    if version != str(FORMAT_VERSION):
        raise ValueError(
            f"{path} has model format version {version}; this convexformer "
            f"{convexformer.__version__} reads version {FORMAT_VERSION}. Use the convexformer that "
            "wrote it, or save the model again."
        )
    try:
        return json.loads(header["model"]), arrays
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"The description of the model in {path} is damaged ({error!r}). Save the model again."
        ) from error


# Values ---------------------------------------------------------------------------------------

_NOT_PLAIN = object()


def _plain(value: Any) -> Any:
    """`value` as JSON data, or `_NOT_PLAIN`."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Offsets):
        return {"offsets": [value.low, value.high, list(value.landmarks)]}
    if isinstance(value, dict):  # class weights, whose keys need not be strings
        pairs = [[_plain(key), _plain(item)] for key, item in value.items()]
        return {"pairs": pairs}
    if isinstance(value, (list, tuple)):
        items = [_plain(item) for item in value]
        return _NOT_PLAIN if any(item is _NOT_PLAIN for item in items) else items
    return value if value is None or isinstance(value, (bool, int, float, str)) else _NOT_PLAIN


def _unplain(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return Offsets(*value["offsets"]) if "offsets" in value else dict(map(tuple, value["pairs"]))


def _labels_to_json(name: str, labels: NDArray) -> dict[str, Any]:
    plain = labels.dtype.kind in "biufU"
    text = labels.dtype == object and all(isinstance(label, str) for label in labels)
    if not (plain or text):
        raise ValueError(
            f"{name} of dtype {labels.dtype} cannot be saved: only booleans, numbers and strings "
            "can. Fit with labels of such a type."
        )
    return {"dtype": labels.dtype.str if plain else "object", "values": labels.tolist()}
