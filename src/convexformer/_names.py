"""Names of the tokens and channels of a model: its own, or read from its feature names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SEPARATORS = ".:_|/-"


def split_names(
    features: Sequence[str], n_tokens: int
) -> tuple[list[str] | None, list[str] | None]:
    """Token and channel names of features ordered token by token, where these tell them.

    With one feature per token they are the tokens. Else each must be a token's name, a separator
    and a channel's name, the channels being the same for every token; if not, there are no names.
    """
    if not features or len(features) % n_tokens:
        return None, None
    d = len(features) // n_tokens
    if d == 1:
        return list(features), None
    for separator in SEPARATORS:
        parts = [name.rpartition(separator) for name in features]
        tokens = [parts[k * d][0] for k in range(n_tokens)]
        channels = [part[2] for part in parts[:d]]
        expected = [(token, separator, channel) for token in tokens for channel in channels]
        if parts == expected and all(tokens) and len(set(tokens)) == n_tokens:
            return tokens, channels
    return None, None


def model_names(model: Any, n_tokens: int) -> tuple[list[str] | None, list[str] | None]:
    """Names of the tokens and channels of a model, where it has any."""
    features = [str(name) for name in getattr(model, "feature_names_in_", ())]
    tokens, channels = split_names(features, n_tokens)
    return (
        [str(name) for name in getattr(model, "token_names_", ())] or tokens,
        [str(name) for name in getattr(model, "channel_names_", ())] or channels,
    )
