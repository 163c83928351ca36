from numpy.typing import NDArray

Shape = tuple[int, int, int, int]

def entries(
    shape: tuple[int, int, int], X: NDArray, end: NDArray, column: NDArray, value: NDArray
) -> int: ...
def gram(
    shape: Shape,
    start: NDArray,
    column: NDArray,
    value: NDArray,
    weight: NDArray,
    place: NDArray,
    Q: NDArray,
    sum: NDArray,
) -> None: ...
def predict(
    shape: Shape, start: NDArray, column: NDArray, value: NDArray, Z: NDArray, F: NDArray
) -> None: ...
def correlate(
    shape: Shape, start: NDArray, column: NDArray, value: NDArray, V: NDArray, M: NDArray
) -> None: ...
