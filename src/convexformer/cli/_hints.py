"""Advice of the library, which names parameters, as advice that names options of the commands."""

from __future__ import annotations

import re

SCALE = "put tokens on one scale with --scale"
CURE = (
    f"{SCALE.capitalize()}, raise --beta (or --eps, where several betas are tried), or accept the "
    "gap with a larger --tol."
)

TIME = r"Raise max_time if you set it, or pass a number as refit \(.*?\)\."

HINTS = (
    (r"max_time ran out", "--max-time ran out"),
    (r"Raise max_time or tol\.", "Raise --max-time or --tol."),
    (r"max_iter ran out", "The most iterations were spent"),
    (r"Raise max_iter or tol\.", CURE),
    (r"Centre or scale X \(TokenScaler\), raise beta, or raise tol\.", CURE),
    (r"Extend betas, or pass a smaller eps\.", "Pass a smaller --eps."),
    (r"Use fewer folds, or a stratified splitter\.", "Use fewer folds with --cv."),
    (TIME, "Raise --max-time if you set it."),
    (
        r"Use a stronger ridge, refit=\.\.\., or scale X \(TokenScaler\)\.",
        f"To mend that, {SCALE}.",
    ),
    (r"put tokens on one scale \(TokenScaler, or token_weights\)", SCALE),
    (
        r"For class labels, use a classifier, such as ConvexAttentionClassifier\.",
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
