from numpy.typing import NDArray

def follow(
    shape: tuple[int, int, int, int],
    X: NDArray,
    z: NDArray,
    target: NDArray,
    weight: NDArray,
    other: NDArray,
    s: NDArray,
    v: NDArray,
    M: NDArray,
) -> None: ...
def multiply(
    shape: tuple[int, int, int, int, int, int],
    doubles: int,
    X: NDArray,
    group: NDArray,
    center: NDArray,
    root: NDArray,
    beside: NDArray,
    Q: NDArray,
    q: NDArray,
) -> None: ...
