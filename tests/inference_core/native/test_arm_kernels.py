"""The extensions compile for 64-bit ARM, and its kernels compute what the portable ones do, on emulated processors.

Needs the cross compiler and QEMU's user emulation: `apt-get install g++-aarch64-linux-gnu qemu-user`.
"""

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NATIVE = ROOT / "inference_core" / "native"
COMPILER, EMULATOR, DISASSEMBLER = "aarch64-linux-gnu-g++", "qemu-aarch64", "aarch64-linux-gnu-objdump"
MISSING = [program for program in (COMPILER, EMULATOR) if shutil.which(program) is None]
pytestmark = [
    pytest.mark.kernels,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        bool(MISSING), reason=f"no {' and no '.join(MISSING)}: apt-get install g++-aarch64-linux-gnu qemu-user"
    ),
]
OTHER_PROCESSORS = ("_avx2", "_avx512", "_bf16", "_amx")
EM_AARCH64 = 183
# setup.py as on such a machine. The headers are those of the Python at hand, which differ in nothing that kernels read.
BUILD = """
import platform
platform.machine = lambda: "aarch64"
exec(compile(open("setup.py").read(), "setup.py", "exec"))
"""
# The same, which prints what would be compiled.
PLAN = """
from setuptools.command.build_ext import build_ext
build_ext.build_extension = lambda self, ext: print(*ext.sources, *(name for name, _ in ext.define_macros))
"""


def processor_of(path: Path) -> int:
    """The machine that an ELF file is for."""
    [machine] = struct.unpack_from("<H", path.read_bytes(), 18)
    return int(machine)


def run_setup(script: str, folder: Path, compiler: str = COMPILER) -> str:
    """Run `script`, which holds setup.py, with the cross compiler; what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIO_")}
    environment |= {
        "CC": compiler,
        "CXX": compiler,
        "LDSHARED": f"{compiler} -shared",
        "LDCXXSHARED": f"{compiler} -shared",
    }
    arguments = [f"--build-temp={folder / 'objects'}", f"--build-lib={folder / 'libraries'}"]
    command = [sys.executable, "-c", script, "-q", "build_ext", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("unknown", "without"), [("dotprod", {"dotprod"}), ("i8mm", {"i8mm", "bfmmla"}), ("bf16", {"bfmmla"})]
)
def test_a_compiler_that_does_not_know_an_instruction_set_builds_the_others(
    tmp_path: Path, unknown: str, without: set[str]
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *+{unknown}*) exit 1;; esac\nexec {COMPILER} "$@"\n')
    compiler.chmod(0o755)
    names = {"neon", "dotprod", "i8mm", "bfmmla"}
    planned = run_setup(PLAN + BUILD, tmp_path, str(compiler)).split()
    assert {name for name in names if f"inference_core/native/kernels_{name}.cpp" in planned} == names - without
    assert {name for name in names if f"AIO_HAS_{name.upper()}" in planned} == names - without


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `objects` and `libraries`, compiled by setup.py."""
    folder = tmp_path_factory.mktemp("aarch64")
    run_setup(BUILD, folder)
    return folder


def test_every_source_for_the_processor_is_compiled_and_linked(built: Path) -> None:
    sources = [*NATIVE.glob("*.cpp"), *(ROOT / "classifier" / "native").glob("*.cpp")]
    wanted = {path.stem for path in sources if not path.stem.endswith(OTHER_PROCESSORS)}
    objects = list((built / "objects").rglob("*.o"))
    libraries = list((built / "libraries").rglob("*.so"))
    assert {path.stem for path in objects} == wanted
    assert {path.name.partition(".")[0] for path in libraries} == {"_cpu", "_decision"}
    assert {processor_of(path) for path in [*objects, *libraries]} == {EM_AARCH64}


@pytest.fixture(scope="module")
def tables(built: Path) -> Path:
    """A program that compares the tables of the processor it runs on."""
    program = built / "arm_kernel_tables"
    kernels = ["kernels_portable", "kernels_neon", "kernels_dotprod", "kernels_i8mm", "kernels_bfmmla"]
    compiled = {path.stem: path for path in (built / "objects").rglob("*.o")}
    source = Path(__file__).with_name("arm_kernel_tables.cpp")
    parts = [compiled[name] for name in ["runtime", "thread_choice", "thread_pool", "amx_support", *kernels]]
    flags = ["-std=c++17", "-O1", "-pthread", "-static", "-Wno-psabi", f"-I{NATIVE}"]
    subprocess.run([COMPILER, *flags, source, *parts, "-o", program], check=True)
    return program


@pytest.mark.parametrize(
    ("kernels", "function", "product"),
    [
        ("i8mm", "span_tile<3, 1>", "smmla"),
        ("bfmmla", "score_matrix<3>", "bfmmla"),
        ("bfmmla", "mix_matrix<3>", "bfmmla"),
    ],
)
def test_the_inner_loops_of_prompts_hold_their_sums_in_registers(
    built: Path, kernels: str, function: str, product: str
) -> None:
    """48 products of six rows by 16 columns need 22 loads and six operations that pair rows, and no memory for sums."""
    [compiled] = (built / "objects").rglob(f"kernels_{kernels}.o")
    listing = subprocess.run([DISASSEMBLER, "-dC", compiled], check=True, capture_output=True, text=True).stdout
    [body] = [part for part in listing.split("\n\n") if f"::{function}(" in part.partition("\n")[0]]
    lines = [line.split("\t") for line in body.splitlines() if line.count("\t") > 1]
    names = [line[2].split()[0] for line in lines]
    first, last = names.index(product), len(names) - 1 - names[::-1].index(product)
    assert names.count(product) == 48
    assert sum(name.startswith("ld") for name in names[first:last]) <= 22
    assert not [name for name in names[first:last] if name.startswith("st")]
    assert not [line for line in lines[first:last] if "[sp" in line[-1]]


@pytest.mark.parametrize(
    ("processor", "available", "prompts"),
    [
        ("cortex-a57", "neon portable", []),
        ("neoverse-n1", "dotprod neon portable", []),
        (
            "max",
            "i8mm-bf16 i8mm dotprod neon portable",
            ["i8mm-bf16: 105 attentions of prompts", "i8mm: 84 products and 30 rows in spans"],
        ),
    ],
)
def test_each_processor_gets_the_kernels_that_it_can_run_and_they_agree(
    tables: Path, processor: str, available: str, prompts: list[str]
) -> None:
    done = subprocess.run([EMULATOR, "-cpu", processor, tables], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == available.split()
    assert lines[1:] == [*prompts, "230 results, 0 failures"]
