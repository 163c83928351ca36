from numpy.typing import NDArray

from .cycle_numpy import cycle as cycle
from .cycle_numpy import prepare as prepare
from .cycle_numpy import transpose as transpose

def wide() -> bool: ...
def minimise_curved(
    shape: tuple[int, ...],
    start: NDArray,
    column: NDArray,
    X: NDArray,
    place: NDArray,
    center: NDArray,
    Y: NDArray,
    weight: NDArray,
    limit: NDArray,
    F: NDArray,
    Z: NDArray,
    b: NDArray,
    intercept: bool,
    goal: float,
    seconds: float,
) -> tuple[int, float]: ...
