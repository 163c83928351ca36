from numpy.typing import NDArray

Shape = tuple[int, ...]

def best(shape: Shape, S: NDArray, Y: NDArray, weight: NDArray, b: NDArray) -> bool: ...
def point(
    shape: tuple[int, int],
    rounds: int,
    S: NDArray,
    Y: NDArray,
    weight: NDArray,
    b: NDArray,
    F: NDArray,
    V: NDArray,
    /,
) -> tuple[bool, float, bool]: ...
def balanced(
    shape: Shape,
    rounds: int,
    V: NDArray,
    P: NDArray,
    weight: NDArray,
    out: NDArray,
    step: NDArray,
) -> bool: ...
def confined(shape: Shape, V: NDArray, Y: NDArray, weight: NDArray, out: NDArray) -> bool: ...
