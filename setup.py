"""What pyproject.toml cannot say yet: what is compiled, which is optional.

Where there is no compiler NumPy does the same, slower. One wheel serves all Pythons, but for those
without a global lock, which have no stable interface yet.
"""

import sysconfig
from glob import glob

from setuptools import Extension, setup

stable = not sysconfig.get_config_var("Py_GIL_DISABLED")
folder = "src/convexformer/_core"

setup(
    ext_modules=[
        Extension(
            "convexformer._core._compiled",
            sorted(glob(f"{folder}/*.c")),
            depends=glob(f"{folder}/*.h"),
            # Without traps a choice between two numbers is no branch: loops are vectorised.
            extra_compile_args=["-O3", "-fopenmp-simd", "-fno-trapping-math", "-fno-math-errno"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if stable else [],
            py_limited_api=stable,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if stable else {},
)
