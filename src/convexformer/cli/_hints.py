"""Advice of the library, which names parameters, as advice that names options of the commands."""

from __future__ import annotations

import re

SCALE = "put tokens on one scale with --scale"

HINTS = (
    (
        r"Raise max_iter or max_time, scale X \(TokenScaler\),(?: raise beta,)? or accept the gap "
        r"with a larger tol\.",
        f"Raise --max-time if you set it, {SCALE}, or accept the gap with a larger --tol.",
    ),
    (
        r"Raise max_iter or max_time, or scale X \(TokenScaler\)\.",
        f"Raise --max-time if you set it, or {SCALE}.",
    ),
    (r"Extend betas, or pass a smaller eps\.", "Pass a smaller --eps."),
    (r"Use fewer folds, or a stratified splitter\.", "Use fewer folds with --cv."),
    (
        r"Use a stronger ridge than refit=\S+, or scale X \(TokenScaler\)\.",
        f"To mend that, {SCALE}.",
    ),
    (
        r"put tokens on one scale \(TokenScaler, or token_weights\)",
        SCALE,
    ),
    (
        r"For class labels, use a classifier, such as ConvexAttentionClassifier; for "
        r"attention_path, set task='classification'\.",
        "For class labels, use --task classification.",
    ),
)
"""What the library says, as a pattern, and what a command that has the options says instead."""


def in_options(message: str) -> str:
    """`message` with advice on parameters of the library turned into advice on options.

    Examples
    --------
    >>> from convexformer.cli._hints import in_options
    >>> in_options("A smaller one may be better. Extend betas, or pass a smaller eps.")
    'A smaller one may be better. Pass a smaller --eps.'
    """
    for pattern, words in HINTS:
        message = re.sub(pattern, words, message)
    return message
