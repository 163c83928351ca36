"""Kernels: the innermost loops, compiled where there is a compiler, or else in NumPy.

This is the only place that chooses. Both cores have the same functions with the same arrays
(``_core/README.md`` lists them), and callers write ``_core.block_descent(...)``. The environment
variable ``CONVEXFORMER_CORE=numpy`` asks for NumPy's.
"""

import os

from ._numpy import *  # noqa: F403
from ._numpy import __all__ as KERNELS

COMPILED = os.environ.get("CONVEXFORMER_CORE") != "numpy"
if COMPILED:
    try:
        from ._compiled import *  # noqa: F403
    except ImportError:
        COMPILED = False

__all__ = ["COMPILED", "KERNELS", *KERNELS]
