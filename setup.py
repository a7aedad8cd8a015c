"""Builds the native CPU kernels; everything else is declared in pyproject.toml.

The extension is optional: without a C++ compiler the install succeeds and the torch path serves. The kernels are
compiled once per instruction set and chosen at run time.
"""

import os
import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = "inference_core/native"
X86 = platform.machine() in ("x86_64", "AMD64")
HEADERS = [path.name for path in Path(NATIVE).glob("*.h")]
# The generic vectors on narrow registers gain nothing from -O3 and take minutes to compile with it.
ISA_FLAGS = {
    "kernels_portable.cpp": ["-O2"],
    "kernels_avx2.cpp": ["-O2", "-mavx2", "-mfma", "-mf16c"],
    "kernels_avx512.cpp": [
        "-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni",
        "-mprefer-vector-width=512",
    ],
}  # fmt: skip
# A developer who works on one instruction set need not wait for the others: AIO_KERNELS="avx512" builds it alone.
CHOSEN = os.environ.get("AIO_KERNELS", "avx2 avx512" if X86 else "").split()
SOURCES = sorted(
    path.name
    for path in Path(NATIVE).glob("*.cpp")
    if path.stem not in ("kernels_avx2", "kernels_avx512") or path.stem.removeprefix("kernels_") in CHOSEN
)


class BuildKernels(build_ext):
    """Gives each kernel file the flags of its instruction set."""

    def build_extension(self, ext: Extension) -> None:
        compile_one = self.compiler._compile

        def compile_with_flags(obj, src, suffix, cc_args, extra, pp_opts):
            flags = next((flags for name, flags in ISA_FLAGS.items() if src.endswith(name)), [])
            compile_one(obj, src, suffix, cc_args, [*extra, *flags], pp_opts)

        self.compiler._compile = compile_with_flags
        try:
            super().build_extension(ext)
        finally:
            self.compiler._compile = compile_one


setup(
    cmdclass={"build_ext": BuildKernels},
    ext_modules=[
        Extension(
            "inference_core.native._cpu",
            sources=[f"{NATIVE}/{name}" for name in SOURCES],
            depends=[f"{NATIVE}/{name}" for name in HEADERS],
            define_macros=[(f"AIO_HAS_{name.upper()}", "1") for name in CHOSEN],
            extra_compile_args=["-O3", "-std=c++17", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing",
                                "-pthread", "-Wno-psabi", "-Wno-ignored-attributes", "-Wno-maybe-uninitialized",
                                "-Wno-uninitialized"],
            language="c++",
            optional=True,
        )
    ],
)  # fmt: skip
