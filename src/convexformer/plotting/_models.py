"""What figures have to know of a fitted model, also of one behind a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._names import model_names, split_names

Names = list[str] | None


class Subject:
    """A fitted model, and the steps of a pipeline before it.

    Attributes
    ----------
    model : estimator
        The model itself: the last step of a pipeline, the best of a search.
    before : list of estimator
        The steps of a pipeline before it.
    proof : dict
        ``certificate``, of a refitted model that of its selection, or None; and ``refitted``,
        whether coefficients were refitted, and so are not the certified optimum.
    """

    def __init__(self, estimator: Any) -> None:
        estimator = getattr(estimator, "best_estimator_", estimator)
        *before, self.model = [step for _, step in getattr(estimator, "steps", [("", estimator)])]
        self.before = [step for step in before if hasattr(step, "transform")]
        refitted = hasattr(self.model, "selection_certificate_")
        name = "selection_certificate_" if refitted else "certificate_"
        certificate = getattr(self.model, name, None)
        self.proof: dict[str, Any] = {"certificate": certificate, "refitted": refitted}

    @property
    def coef(self) -> NDArray[np.float64]:
        """Coefficients by output, (gate,) token and channel."""
        name = type(self.model).__name__
        if not hasattr(self.model, "coef_"):
            raise ValueError(f"{name} is not fitted yet; call fit first.")
        if hasattr(self.model, "attention_maps_"):
            advice = "Draw its attention_maps_.aggregate, with matplotlib's imshow."
            raise ValueError(f"{name} has no tokens that all targets share. {advice}")
        return np.atleast_2d(self.model.coef_)

    def outputs(self, given: Sequence[Any] | None, count: int) -> tuple[Sequence[Any] | None, str]:
        """Names of the outputs, where there are any, and what a coefficient means."""
        scaled = any(getattr(step, "with_std", False) for step in self.before)
        per = " per standard deviation" if scaled else ""
        classes = getattr(self.model, "classes_", None)
        if classes is None:
            return given, f"coefficient{per}"
        unit, names = "contribution to the log-odds", classes if given is None else given
        if count == 1 and len(names) == 2:  # a binary classifier speaks for its second class
            return names[1:], f"{unit} of “{names[1]}”{per}"
        return names, unit + per

    def names(self, n_tokens: int) -> tuple[Names, Names]:
        """Names of tokens and channels: the model's own, or those of a table that steps read."""
        tokens, channels = model_names(self.model, n_tokens)
        if tokens is None and self.before and hasattr(self.before[0], "feature_names_in_"):
            features: Any = None
            for step in self.before:
                features = step.get_feature_names_out(features)
            return split_names([str(name) for name in features], n_tokens)
        return tokens, channels
