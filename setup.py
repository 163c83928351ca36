"""What pyproject.toml cannot say yet: what is compiled, which is optional.

Where there is no compiler NumPy does the same, slower. One wheel serves all Pythons, but for those
without a global lock, which have no stable interface yet.
"""

import sysconfig
from glob import glob

from setuptools import Extension, setup

stable = not sysconfig.get_config_var("Py_GIL_DISABLED")


def compiled(package: str, name: str, *others: str) -> Extension:
    """An extension of a file, and of others beside it."""
    folder = f"src/convexformer/{package}"
    return Extension(
        f"convexformer.{package}.{name}",
        [f"{folder}/{file}.c" for file in (name, *others)],
        depends=[*glob("src/convexformer/*.h"), *glob(f"{folder}/*.h")],
        # A choice between two numbers is no branch where neither may trap: loops are vectorised.
        extra_compile_args=["-O3", "-fopenmp-simd", "-fno-trapping-math", "-fno-math-errno"],
        define_macros=[("Py_LIMITED_API", "0x030B0000")] if stable else [],
        py_limited_api=stable,
        optional=True,
    )


setup(
    ext_modules=[
        compiled("problem", "_entries"),
        compiled("problem", "_few"),
        compiled("problem", "_intercepts"),
        compiled("problem", "_losses"),
        compiled("problem", "_points"),
        compiled("problem", "_rows"),
        compiled("solvers", "_sweeps", "_curved", "_prepare"),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if stable else {},
)
