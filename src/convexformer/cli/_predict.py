"""``convexformer predict``: a saved model and a data file in, a table of predictions out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ._console import InputError, check_output, emit, say, write
from ._options import command


@command
def predict(model: Path, data: Path, *, out: Path, force: bool = False, json: bool = False) -> None:
    """Predict with a saved model.

    Parameters
    ----------
    model
        A model saved by fit.
    data
        npz (array X, and mask if there), npy, csv, tsv or parquet.
    out
        csv to write the predictions to, a row per sample.
    """
    import pandas as pd

    from ._data import read_inputs
    from ._files import read_model
    from ._words import plural

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
        say(f"{plural(len(X), 'prediction')} written to {out}")


def _named(what: str, values: Any, names: Any) -> dict[str, Any]:
    """Columns of a table: one, or one per output."""
    if values.ndim == 1:
        return {what: values}
    names = range(values.shape[1]) if names is None else names
    return {f"{what} {name}": column for name, column in zip(names, values.T, strict=True)}
