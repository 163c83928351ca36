"""HOW it is minimised: one entry point, `solve`, and paths of it."""

from .path import path_betas, solve, solve_path
from .solution import Solution, TracePoint
from .sweeps import COMPILED

__all__ = ["COMPILED", "Solution", "TracePoint", "path_betas", "solve", "solve_path"]
