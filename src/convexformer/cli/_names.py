"""Names of tokens and channels: kept with a fitted model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ._data import Samples


def remember_names(model: Any, samples: Samples) -> None:
    """Keep names with a fitted model: columns for predict, tokens and channels for people."""
    for attribute, names in (
        ("feature_names_in_", samples.columns),
        ("token_names_", samples.token_names),
        ("channel_names_", samples.channel_names),
    ):
        if names:
            setattr(model, attribute, np.array(names, dtype=object))
