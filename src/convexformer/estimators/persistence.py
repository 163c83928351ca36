"""Models on disk: a safetensors file of arrays with JSON metadata. Never pickle."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

import convexformer

from .. import _model_schema as schema
from .._files import write_whole
from .._model_file import Layout, OtherFileError, pack, read_content, unpack
from ..problem import Certificate
from ..solvers import Status


class ModelFileError(ValueError):
    """A file that cannot be loaded as a model.

    Attributes
    ----------
    path : Path
    reason : str
        What is wrong with the file, and what to do.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path} cannot be loaded as a model: {self.reason}"


class Persistent:
    """Adds `save` and `load` to an estimator."""

    _certificate: Certificate
    status_: Status
    strategy_: str
    trace_: list[Any]

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the fitted model to a safetensors file, all of it or nothing.

        Parameters
        ----------
        path : path-like
            An existing file keeps its mode; of a symlink, the target is replaced.
        overwrite : bool
            Whether an existing file may be replaced.

        Notes
        -----
        Parameters that are no plain data (a splitter, a scoring function, a progress callback) are
        not stored; the loaded model has their defaults. Predictions are the same bit for bit.

        The file carries a checksum of all its bytes, and is checked as `load` checks it before it
        is written. It is on the disk when `save` returns. What a killed `save` left beside the
        file (``.name.*.part``) is removed by the next one.
        """
        check_is_fitted(self)
        path = Path(path)
        if path.exists() and not overwrite:
            raise FileExistsError(f"{path} exists already. Pass overwrite=True to replace it.")
        if not path.parent.is_dir():
            raise FileNotFoundError(f"The folder {path.parent} of {path.name} does not exist.")
        content = pack(self._describe(), self._arrays())
        try:
            _model_of(type(self), unpack(content), content)
        except ValueError as error:
            raise ValueError(
                f"This {type(self).__name__} cannot be saved: {_clause(error)}. If parameters or "
                "attributes were changed after the fit, fit again."
            ) from error
        write_whole(path, content)

    def _arrays(self) -> dict[str, NDArray]:
        names = [*schema.of_bases(schema.AXES, type(self))]
        names += [name for name in schema.refit_axes(type(self)) if hasattr(self, name)]
        return {name: getattr(self, name) for name in names}

    def _describe(self) -> dict[str, Any]:
        """Everything but the arrays, as JSON data."""
        params = {
            name: value
            for name, raw in self.get_params(deep=False).items()  # type: ignore[attr-defined]
            if (value := schema.plain(raw)) is not schema.NOT_PLAIN
        }
        values = schema.of_bases(schema.VALUES, type(self))
        described = {
            "library_version": convexformer.__version__,
            "class": type(self).__name__,
            "params": params,
            "certificate": self._certificate.to_dict(),  # of the selection, where refitted
            "status": self.status_.name if hasattr(self, "status_") else None,
            "strategy": self.strategy_,
            "trace": [[schema.plain(entry) for entry in point] for point in self.trace_],
            "values": {name: kind(getattr(self, name)) for name, kind in values.items()},
        }
        for name in schema.LABELS:
            if hasattr(self, name):
                described[name] = schema.describe_labels(name, getattr(self, name))
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

        Raises
        ------
        ModelFileError
            If the file is damaged, of another kind, or of a later format. It is a ValueError.

        Notes
        -----
        Before an array is made, the checksum is compared, and that all sizes agree with each other
        and with the file. Then arrays must be finite, the certificate's figures must agree with
        each other and with the coefficients, and parameters must be valid. A checksum finds
        damage, not malice: whoever can write the file can write another checksum.

        Files of format 1, which the first versions of the library wrote, have no checksum: all
        else is checked, and a warning says that damage may go unnoticed. Save such a model again.
        """
        path = Path(path)
        try:
            content = read_content(path)
            layout = unpack(content)
            model = _model_of(_class_of(cls, layout), layout, content)
        except OtherFileError as error:
            raise ModelFileError(path, str(error)) from error
        except ValueError as error:
            raise ModelFileError(
                path, f"{_clause(error)}. Save the model again, or fetch the file again."
            ) from error
        if layout.version == 1:
            warnings.warn(
                f"{path} has no checksum (format 1), so damage to its numbers may go unnoticed. "
                "Save the model again to add one.",
                UserWarning,
                stacklevel=3 if cls is Persistent else 2,
            )
        return model

    def _restore(self, layout: Layout, content: bytearray) -> None:
        """Set fitted attributes from a file whose layout was checked."""
        described = layout.description
        arrays = schema.read_arrays(layout, content)
        for name, value in (arrays | described["values"]).items():
            setattr(self, name, value)
        for name in schema.LABELS:
            if name in described:
                setattr(self, name, schema.labels_array(described[name]))
        self._certificate = schema.read_certificate(described["certificate"])
        self.beta_, self.beta_max_ = self._certificate.beta, self._certificate.beta_max
        self.trace_ = schema.read_trace(described["trace"], described["values"]["n_iter_"])
        self.strategy_ = schema.read_strategy(described.get("strategy"))
        if (status := schema.read_status(described.get("status"))) is not None:
            self.status_ = status
        elif self._certificate.relative_gap <= self.tol:  # type: ignore[attr-defined]
            self.status_ = Status.CONVERGED  # format 1 does not say why others stopped
        self._set_coefficients(arrays["coef_"], arrays["intercept_"])  # type: ignore[attr-defined]
        with np.errstate(all="ignore"):
            self._check_agreement()

    def _check_agreement(self) -> None:
        """Raise a ValueError unless attributes agree with each other and with the parameters."""
        schema.check_agreement(self)


def _class_of(asked: type[Persistent], layout: Layout) -> type[Any]:
    """The class that a file names, if `asked` may be it."""
    name = layout.description.get("class")
    if name == asked.__name__ and asked is not Persistent:  # also classes that users derive
        return asked
    if not (isinstance(name, str) and name.startswith("Convex") and name in convexformer.__all__):
        raise OtherFileError(
            "it holds a model of a class that convexformer does not have. Load a model of your own "
            "class with the load method of that class."
        )
    kind: type[Any] = getattr(convexformer, name)
    if not issubclass(kind, asked):
        raise OtherFileError(
            f"it holds a {name}, not a {asked.__name__}. Load it with {name}.load or "
            "convexformer.load_model."
        )
    return kind


def _model_of(kind: type[Any], layout: Layout, content: bytearray) -> Any:
    """The model of a file; a ValueError says what is wrong with the file."""
    schema.check_layout(kind, layout)
    model = kind(**schema.read_params(kind, layout.description["params"]))
    schema.check_tokens_parameters(model, layout.description["values"]["n_tokens_"])
    model._check_parameters()
    model._restore(layout, content)
    return model


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

    Raises
    ------
    ModelFileError
        If the file is damaged, of another kind, or of a later format; see
        :meth:`ConvexAttentionRegressor.load` for what is checked. It is a ValueError.

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


def _clause(error: ValueError) -> str:
    """What an error says, to be continued."""
    return str(error).rstrip(".")
