from numpy.typing import NDArray

def squared(
    shape: tuple[int, ...],
    intercept: bool,
    S: NDArray,
    Y: NDArray,
    weight: NDArray,
    F: NDArray,
    V: NDArray,
    sums: NDArray,
) -> None: ...
def norms(shape: tuple[int, int, int], Z: NDArray, out: NDArray) -> float: ...
