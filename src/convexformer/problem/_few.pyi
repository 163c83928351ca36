from numpy.typing import NDArray

def multiply(
    shape: tuple[int, ...], transposed: bool, X: NDArray, by: NDArray, out: NDArray
) -> None: ...
