"""What pyproject.toml cannot say yet: what is compiled, which is optional.

Where there is no compiler NumPy does the same, slower. One wheel serves all Pythons, but for those
without a global lock, which have no stable interface yet.
"""

import sysconfig

from setuptools import Extension, setup

stable = not sysconfig.get_config_var("Py_GIL_DISABLED")


def compiled(module: str) -> Extension:
    """An extension of one file."""
    return Extension(
        f"convexformer.{module}",
        [f"src/convexformer/{module.replace('.', '/')}.c"],
        depends=["src/convexformer/_compiled.h", "src/convexformer/problem/_panels.h"],
        extra_compile_args=["-O3", "-fopenmp-simd"],
        define_macros=[("Py_LIMITED_API", "0x030B0000")] if stable else [],
        py_limited_api=stable,
        optional=True,
    )


setup(
    ext_modules=[compiled("solvers._sweeps"), compiled("problem._rows")],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if stable else {},
)
