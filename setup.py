"""What pyproject.toml cannot say yet: the compiled sweeps, which are optional.

Where there is no compiler NumPy does the same, slower. One wheel serves all Pythons.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "convexformer.solvers._sweeps",
            ["src/convexformer/solvers/_sweeps.c"],
            depends=["src/convexformer/solvers/_sweeps_of.h"],
            extra_compile_args=["-O3", "-fopenmp-simd"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
