"""HOW it is minimised: one entry point, `solve`, and paths of it."""

from .machine import COMPILED
from .path import path_betas, solve, solve_path
from .solution import Solution, Status, TracePoint

__all__ = ["COMPILED", "Solution", "Status", "TracePoint", "path_betas", "solve", "solve_path"]
