"""Matrix targets: proximal Newton by Douglas-Rachford splitting, and its refit."""

from .newton import solve_sequence
from .refit import refit_sequence

__all__ = ["refit_sequence", "solve_sequence"]
