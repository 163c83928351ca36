"""What solvers take a machine to be like, where they choose between ways by what these cost.

Rough and fixed, so that the same problem is solved the same way everywhere; but for what is
compiled, and for registers so wide that it is reading tokens that takes the time.
"""

import numpy as np

try:
    from ._sweeps import wide

    COMPILED, WIDE = True, wide()
except ImportError:  # what is there for it in NumPy takes its place
    COMPILED, WIDE = False, False

CACHE = 16e6  # bytes that are quick to read again and again
CACHE_SPEED, MEMORY_SPEED = 40e9, 16e9  # bytes a second, from there and from beyond
SPEED, SPEED32 = 50e9, 80e9  # multiply-adds a second of large products, in float64 and float32

# Linux's allocator takes every array beyond 128 KB from the system, page by page, until the first
# such array is freed; arrays up to its size are then kept for the next ones, as solvers want it.
_FREED = np.empty(16 << 20, dtype=np.uint8)
del _FREED
