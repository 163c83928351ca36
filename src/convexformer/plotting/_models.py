"""What figures have to know of a fitted model, also of one behind a pipeline."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._names import model_names, split_names

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Subject:
    """A fitted model, and what stands around it.

    Attributes
    ----------
    model : estimator
        The model itself: the last step of a pipeline, the best of a search.
    before : estimator or None
        The steps of a pipeline before it.
    """

    model: Any
    before: Any = None

    @classmethod
    def of(cls, estimator: Any) -> Subject:
        """Unwrap searches and pipelines."""
        estimator = getattr(estimator, "best_estimator_", estimator)
        if hasattr(estimator, "steps"):
            return cls(estimator.steps[-1][1], estimator[:-1])
        return cls(estimator)

    @property
    def coef(self) -> Array:
        """Coefficients by output, (gate,) token and channel."""
        name = type(self.model).__name__
        if not hasattr(self.model, "coef_"):
            raise ValueError(f"{name} is not fitted yet; call fit first.")
        if hasattr(self.model, "attention_maps_"):
            raise ValueError(
                f"{name} has no tokens that all targets share, and so no token map. Draw its "
                "attention_maps_.aggregate, for example with matplotlib's imshow."
            )
        return np.asarray(self.model.coef_)

    @property
    def refitted(self) -> bool:
        """Whether coefficients were refitted, and so are not the certified optimum."""
        return hasattr(self.model, "selection_certificate_")

    @property
    def certificate(self) -> Any:
        """The certificate, of a refitted model that of its selection; None if there is none."""
        name = "selection_certificate_" if self.refitted else "certificate_"
        return getattr(self.model, name, None)

    @property
    def token_weights(self) -> Array | None:
        """Penalty weights of the tokens, where the model has any."""
        weights = getattr(self.model, "token_weights", None)
        return None if weights is None else np.asarray(weights, dtype=np.float64)

    def outputs(self, given: Sequence[Any] | None, count: int) -> tuple[list[Any] | None, str]:
        """Names of the outputs, where there are any, and what a coefficient means."""
        per = " per standard deviation" if self._is_scaled else ""
        classes = getattr(self.model, "classes_", None)
        if classes is None:
            return None if given is None else list(given), f"coefficient{per}"
        unit, names = "contribution to the log-odds", list(classes if given is None else given)
        if count == 1 and len(names) == 2:  # a binary classifier speaks for its second class
            return names[1:], f"{unit} of “{names[1]}”{per}"
        return names if len(names) == count or given is not None else None, unit + per

    @property
    def _is_scaled(self) -> bool:
        steps = [] if self.before is None else [step for _, step in self.before.steps]
        return any(getattr(step, "with_std", False) for step in steps)

    def names(
        self, n_tokens: int, given: Sequence[Any] | None = None
    ) -> tuple[list[str] | None, list[str] | None]:
        """Names of tokens and channels: those given, the model's own, or what steps before tell.

        Where a step adds tokens (PooledTokens), names may be `given` for those that it reads.
        """
        tokens, channels = model_names(self.model, n_tokens)
        at, step = self._adding
        if tokens is None and step is None:
            tokens, channels = self._names_before(None, n_tokens)
        elif tokens is None:
            read, channels = self._names_before(at, step.n_tokens_)
            if given is not None and len(given) == step.n_tokens_:
                read, given = [str(name) for name in given], None
            tokens = step.token_names_out(read or [str(k) for k in range(step.n_tokens_)])
        return tokens if given is None else list(given), channels

    @property
    def _adding(self) -> tuple[int, Any]:
        """The last step that adds tokens, and where it stands."""
        steps = [] if self.before is None else [step for _, step in self.before.steps]
        adding = [at for at, step in enumerate(steps) if hasattr(step, "token_names_out")]
        return (adding[-1], steps[adding[-1]]) if adding else (0, None)

    def _names_before(
        self, at: int | None, n_tokens: int
    ) -> tuple[list[str] | None, list[str] | None]:
        """Names of tokens and channels as step `at` reads them, of tables."""
        if not hasattr(self.before, "feature_names_in_"):
            return None, None
        features = self.before.feature_names_in_
        if at != 0:
            features = self.before[:at].get_feature_names_out(features)
        return split_names([str(name) for name in features], n_tokens)


def check_index(output: Any, count: int) -> None:
    """Raise unless `output` is the index of one of `count` outputs."""
    whole = isinstance(output, numbers.Integral) and not isinstance(output, bool)
    if not whole or not -count <= int(output) < count:
        raise ValueError(
            f"output must be the index of one of the model's outputs, 0 to {count - 1}; got "
            f"{output!r}."
        )
