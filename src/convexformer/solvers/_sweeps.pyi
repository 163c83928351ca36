from numpy.typing import NDArray

from .cycle_numpy import cycle as cycle
from .cycle_numpy import transpose as transpose

def minimise_logistic(
    shape: tuple[int, ...],
    start: NDArray,
    column: NDArray,
    X: NDArray,
    place: NDArray,
    y: NDArray,
    weight: NDArray,
    limit: NDArray,
    F: NDArray,
    Z: NDArray,
    intercept: bool,
    goal: float,
) -> tuple[int, float, float]: ...
