"""Builds the native CPU kernels; everything else is declared in pyproject.toml.

The extension is optional: without a C++ compiler the install succeeds and the torch path serves.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "inference_core.native._cpu",
            sources=["inference_core/native/cpu.cpp"],
            language="c++",
            extra_compile_args=["-O3", "-std=c++17", "-fno-math-errno", "-pthread", "-Wall"],
            optional=True,
        )
    ]
)
