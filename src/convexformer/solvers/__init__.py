"""HOW it is minimised: one entry point, `solve`, and paths of it."""

from .choose import COMPILED, STRATEGIES, forecasts
from .solution import Solution, Status, TracePoint
from .solve import path_betas, solve, solve_path

__all__ = [
    "COMPILED",
    "STRATEGIES",
    "Solution",
    "Status",
    "TracePoint",
    "forecasts",
    "path_betas",
    "solve",
    "solve_path",
]
