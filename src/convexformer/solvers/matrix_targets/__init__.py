"""Matrix targets: proximal Newton by Douglas-Rachford splitting, and its refit."""

from .newton import MATRIX_STRATEGY, solve_sequence
from .refit import refit_sequence

__all__ = ["MATRIX_STRATEGY", "refit_sequence", "solve_sequence"]
