"""Models on disk: a safetensors file of arrays with JSON metadata. Never pickle."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

from sklearn.utils.validation import check_is_fitted

import convexformer

from .. import _model_schema as schema
from .._files import write_whole
from .._model_file import OtherFileError, pack, unpack
from ._reading import warn

DAMAGE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
"""What is raised where a file holds other things than a model has."""


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
        try:
            content = pack(*schema.describe(self))
            schema.model_of(type(self), *unpack(content)[1:])
        except DAMAGE as error:
            raise ValueError(
                f"This {type(self).__name__} cannot be saved: {_clause(error)}. If parameters or "
                "attributes were changed after the fit, fit again."
            ) from error
        write_whole(path, content)

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
        The checksum is compared before anything else is read. All sizes must agree with each other
        and with the file, arrays must be finite, the certificate's figures must agree with each
        other and with the coefficients, and parameters must be valid. A checksum finds damage, not
        malice: whoever can write the file can write another checksum.

        Files of format 1, which the first versions of the library wrote, have no checksum: all
        else is checked, and a warning says that damage may go unnoticed. Save such a model again.
        """
        path = Path(path)
        try:
            if path.exists() and not path.is_file():  # a pipe may never end
                raise OtherFileError("it is no regular file. Pass a file that save wrote.")
            version, description, arrays = unpack(path.read_bytes())
            model = schema.model_of(_class_of(cls, description), description, arrays)
        except OtherFileError as error:
            raise ModelFileError(path, str(error)) from error
        except DAMAGE as error:
            raise ModelFileError(
                path, f"{_clause(error)}. Save the model again, or fetch the file again."
            ) from error
        if version == 1:
            warn(
                f"{path} has no checksum (format 1), so damage to its numbers may go unnoticed. "
                "Save the model again to add one."
            )
        return model


def _class_of(asked: type[Persistent], description: dict[str, Any]) -> type[Any]:
    """The class that a file names, if `asked` may be it."""
    name = description.get("class")
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


def _clause(error: Exception) -> str:
    """What an error says, to be continued."""
    said = str(error).rstrip(".")
    return said if isinstance(error, ValueError) else f"it is damaged ({error!r})"
