"""``convexformer predict``: a saved model and a data file in, a table of predictions out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from . import _options as opt
from ._console import InputError, check_output, emit, friendly, out, write

Model = Annotated[Path, typer.Argument(help="A model saved by fit.", metavar="MODEL")]
Data = Annotated[
    Path,
    typer.Argument(help="npz (array X, and mask if there), npy, csv, tsv or parquet."),
]
Out = Annotated[Path, typer.Option(help="csv to write the predictions to, a row per sample.")]


@friendly
def predict(
    model: Model, data: Data, out: Out, force: opt.Force = False, json: opt.Json = False
) -> None:
    """Predict with a saved model."""
    import pandas as pd

    from ._data import read_inputs
    from ._files import read_model

    if out.suffix.lower() != ".csv":
        raise InputError(f"predictions are a table of commas; name it .csv, not {out.name}.")
    fitted = read_model(model)
    by_offset = getattr(fitted, "tokens", "absolute") != "absolute"
    if by_offset or hasattr(fitted, "attention_maps_"):
        what = "tokens=Offsets" if by_offset else type(fitted).__name__
        raise InputError(
            f"this model ({what}) predicts every position of a sequence, which is no table. "
            "Load it in Python with convexformer.load_model and call its predict."
        )
    X, mask = read_inputs(data, getattr(fitted, "feature_names_in_", None))
    check_output(out, force, [model, data])
    columns = _named("prediction", fitted.predict(X, mask=mask), None)
    if hasattr(fitted, "predict_proba"):
        probabilities = fitted.predict_proba(X, mask=mask)
        columns |= _named("probability", probabilities, fitted.classes_)
    write(out, pd.DataFrame(columns).to_csv(index=False))
    if json:
        emit({"model": model, "n_samples": len(X), "columns": list(columns), "file": out})
    else:
        _show(len(X), out)


def _named(what: str, values: Any, names: Any) -> dict[str, Any]:
    """Columns of a table: one, or one per output."""
    if values.ndim == 1:
        return {what: values}
    names = range(values.shape[1]) if names is None else names
    return {f"{what} {name}": column for name, column in zip(names, values.T, strict=True)}


def _show(count: int, file: Path) -> None:
    from ._words import plural

    out().print(Text(f"{plural(count, 'prediction')} written to {file}"))
