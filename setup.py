"""Builds the native CPU kernels and those of a routing decision; everything else is declared in pyproject.toml.

Both extensions are optional: without a C++ compiler the install succeeds, and torch and numpy serve. The kernels are
compiled once per instruction set and chosen at run time.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

NATIVE = "inference_core/native"
DECISION = "classifier/native"
X86, ARM = platform.machine() in ("x86_64", "AMD64"), platform.machine() == "aarch64"
HEADERS = [path.name for path in Path(NATIVE).glob("*.h")]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mprefer-vector-width=512"]
# `make sanitize` builds the same code under a sanitiser, into a folder of its own.
SANITIZE = os.environ.get("AIO_SANITIZE", "")
# The generic vectors on narrow registers gain nothing from -O3 and take minutes to compile with it.
NARROW = ["-O2"]
# Python's own flags ask for debugging symbols, which make the kernels ten times as large and nothing that a user needs.
PLAIN = [] if SANITIZE else ["-g0"]
STRIPPED = [] if SANITIZE or not sys.platform.startswith("linux") else ["-Wl,--strip-all"]
# Sampling repeats NumPy's arithmetic bit for bit: a multiplication and an addition stay two roundings; on ARM, in every
# file: compilers fuse there without a flag, and which sums they fuse may differ from tile to tile.
EXACT = ["-ffp-contract=off"]
FILE_FLAGS = {
    "kernels_portable.cpp": NARROW,
    "kernels_avx2.cpp": [*NARROW, *AVX2],
    "kernels_avx512.cpp": AVX512,
    "kernels_bf16.cpp": AVX512,
    "kernels_amx.cpp": AVX512,
    "kernels_neon.cpp": NARROW,
    "kernels_dotprod.cpp": [*NARROW, "-march=armv8.2-a+dotprod"],
    "kernels_i8mm.cpp": [*NARROW, "-march=armv8.2-a+i8mm"],
    "kernels_bfmmla.cpp": [*NARROW, "-march=armv8.2-a+i8mm+bf16"],
    "row_sampler.cpp": EXACT,
    "sampling_portable.cpp": [*NARROW, *EXACT],
    "sampling_avx2.cpp": [*NARROW, *AVX2, *EXACT],
    "sampling_avx512.cpp": [*AVX512, *EXACT],
}
# A developer who works on one instruction set need not wait for the others: AIO_KERNELS="avx512" builds it alone.
# AMX and AVX512-BF16 need AVX-512, "avx512 amx bf16", and BFMMLA needs I8MM.
SETS = ["avx2", "avx512", "bf16", "amx"] if X86 else ["neon", "dotprod", "i8mm", "bfmmla"] if ARM else []
CHOSEN = os.environ.get("AIO_KERNELS", " ".join(SETS)).split()
CHECKED = [
    "-O1", "-g1", "-fno-omit-frame-pointer", f"-fsanitize={SANITIZE}", "-fno-sanitize-recover=all",
    # Checks of every access as calls, and none for what addresses already show: unrolled kernels compile in minutes.
    "--param=asan-instrumentation-with-call-threshold=0", "-fno-sanitize=null,alignment,object-size,vptr",
]  # fmt: skip
# Kernels first, since they take longest; by name otherwise, since builds are to give the same bytes.
SOURCES = sorted(
    (
        path.name
        for path in Path(NATIVE).glob("*.cpp")
        if not path.stem.endswith(("_avx2", "_avx512", "_bf16", "_amx", "_neon", "_dotprod", "_i8mm", "_bfmmla"))
        or path.stem.rpartition("_")[2] in CHOSEN
    ),
    key=lambda name: (not name.startswith("kernels"), name),
)


# What older compilers do not know: AVX512-BF16 before binutils 2.34, AMX before 2.36, dot products before GCC 8, I8MM
# and ARM's bfloat16 before GCC 10.
YOUNG = {
    "bf16": 'void tried() { asm volatile("vdpbf16ps %zmm0, %zmm0, %zmm0"); }',
    "amx": 'void tried() { asm volatile("tilerelease"); }',
    "dotprod": "#include <arm_neon.h>\nauto tried(int32x4_t v) { return vdotq_s32(v, int8x16_t(v), int8x16_t(v)); }",
    "i8mm": "#include <arm_neon.h>\nauto tried(int32x4_t v) { return vusdotq_s32(v, uint8x16_t(v), int8x16_t(v)); }",
    "bfmmla": "#include <arm_neon.h>\nauto tried(float32x4_t v, bfloat16x8_t x) { return vbfmmlaq_f32(v, x, x); }",
}


def compiles(compiler, name: str) -> bool:
    """Whether the compiler and its assembler know an instruction set of `YOUNG`."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "tried.cpp"
        source.write_text(YOUNG[name] + "\n")
        try:
            compiler.compile([str(source)], output_dir=folder, extra_postargs=FILE_FLAGS[f"kernels_{name}.cpp"])
        except CompileError:
            return False
    return True


# Where compiled objects are kept, each by the hash of what it is made of; empty: nowhere. The Makefile sets it, so that
# a changed pyproject.toml and the wheel of `make test-wheel` compile nothing again.
OBJECTS = os.environ.get("AIO_OBJECTS", "")


def made_of(compiler, source: str, depends: list[str], options: list[str]) -> str:
    """The hash of a source, the headers that it may read, and the compiler with its version and options.

    Python's own headers, which environments have at places of their own, are those of its version."""
    command = [*compiler.compiler_so_cxx, "--version"]
    try:
        version = subprocess.run(command, capture_output=True, check=False).stdout  # noqa: S603 - the compiler
    except OSError:  # there is none, which the next call says
        version = b""
    options = [option for option in options if not option.startswith("-I")]
    parts = [repr((sys.version, command, source, options)).encode(), version]
    parts += [Path(name).read_bytes() for name in (source, *depends)]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


class BuildKernels(build_ext):
    """Gives each file its own flags, compiles as many at a time as there are processors, and leaves out instruction
    sets that the compiler does not know."""

    def build_extension(self, ext: Extension) -> None:
        for name in YOUNG:
            source = f"{NATIVE}/kernels_{name}.cpp"
            if source in ext.sources and not compiles(self.compiler, name):
                ext.sources.remove(source)
                ext.define_macros.remove((f"AIO_HAS_{name.upper()}", "1"))
        compile_all, compile_one = self.compiler.compile, self.compiler._compile

        def compile_with_flags(obj, src, suffix, cc_args, extra, pp_opts):
            flags = [*FILE_FLAGS.get(Path(src).name, []), *(CHECKED if SANITIZE else [])]
            kept = OBJECTS and Path(OBJECTS) / made_of(self.compiler, src, ext.depends, [*cc_args, *extra, *flags])
            if kept and kept.exists():
                shutil.copyfile(kept, obj)
                return
            compile_one(obj, src, suffix, cc_args, [*extra, *flags], pp_opts)
            if kept:
                kept.parent.mkdir(parents=True, exist_ok=True)
                part = shutil.copyfile(obj, f"{kept}.{os.getpid()}")
                os.replace(part, kept)

        def compile_at_once(*args, **kwargs):
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                jobs = []
                self.compiler._compile = lambda *one: jobs.append(pool.submit(compile_with_flags, *one))
                objects = compile_all(*args, **kwargs)
                for job in jobs:
                    job.result()
            return objects

        self.compiler.compile = compile_at_once
        try:
            super().build_extension(ext)
        finally:
            self.compiler.compile, self.compiler._compile = compile_all, compile_one


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
                                "-Wno-uninitialized", *PLAIN, *(EXACT if ARM else [])],
            extra_link_args=[f"-fsanitize={SANITIZE}"] if SANITIZE else STRIPPED,
            language="c++",
            optional=not SANITIZE,
        ),
        Extension(
            "classifier.native._decision",
            sources=sorted(str(path) for path in Path(DECISION).glob("*.cpp")),
            depends=[str(path) for path in Path(DECISION).glob("*.h")],
            extra_compile_args=["-O3", "-std=c++17", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi", *PLAIN,
                                *(EXACT if ARM else [])],
            extra_link_args=[f"-fsanitize={SANITIZE}"] if SANITIZE else STRIPPED,
            language="c++",
            optional=not SANITIZE,
        ),
    ],
)  # fmt: skip
