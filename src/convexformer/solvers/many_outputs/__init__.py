"""Many outputs of a squared loss that share tokens: one factorisation serves all of them."""

from .newton import minimise

__all__ = ["minimise"]
