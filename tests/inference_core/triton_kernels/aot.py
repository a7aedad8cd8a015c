"""Compiles launches ahead of time for devices that are not there, and says what each kernel needs of them.

A test module lists its launches in `CASES`; each calls a launcher with tensors on the "meta" device. What the launcher
would have started is caught and compiled with the types, constants, divisibilities and options of that very launch:

    python -m tests.inference_core.triton_kernels.aot MODULE

prints {case: {capability: [usage of each kernel]}} as JSON. `check_usage` is the gate.

Equal launches are compiled once, and for 8.0 in place of 8.9 where no type is FP8: an 8.9 runs that very binary, and
the compiler takes the same path for both. Each still chooses its own tiles, and has its own bound of shared memory.
"""

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

CAPABILITIES = (80, 89, 90, 100)
E4M3 = 89  # the first capability that converts FP8 E4M3
# Shared memory that one program may have (CUDA programming guide, "Technical Specifications per Compute Capability").
SHARED_BYTES = {80: 163 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10}
_TYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "i1",
}
_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "enable_fp_fusion")
Usage = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AotCase:
    """`launch` starts kernels on meta tensors. `least`: the first capability that they are for.

    `wide_loads`: its kernels must read global memory 16 bytes at a time; `narrowest_load`: and never less than so many.
    """

    launch: Callable[[], object]
    least: int = 80
    wide_loads: bool = False
    narrowest_load: int = 1


@dataclass(frozen=True, slots=True)
class _Launch:
    kernel: Any
    arguments: dict[str, Any]
    options: dict[str, int]

    def specialised(self) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], list[list[Any]]]]:
        """Types, constants and divisibilities as on a device, whose tensors all begin at multiples of 16 bytes."""
        signature: dict[str, str] = {}
        constants: dict[str, Any] = {}
        divisible: dict[tuple[int], list[list[Any]]] = {}
        for index, parameter in enumerate(self.kernel.params):
            value = self.arguments[parameter.name]
            signature[parameter.name] = _type(value)
            specialised = not parameter.do_not_specialize
            if parameter.is_constexpr or value is None or (specialised and type(value) is int and value == 1):
                signature[parameter.name], constants[parameter.name] = "constexpr", value
            elif specialised and (isinstance(value, torch.Tensor) or (type(value) is int and value % 16 == 0)):
                divisible[(index,)] = [["tt.divisibility", 16]]
        return signature, constants, divisible

    def build(self, capability: int) -> str:
        """What has the same usage: the same kernel for the same architecture."""
        signature, *rest = self.specialised()
        architecture = 80 if capability == 89 and "*fp8e4nv" not in signature.values() else capability
        return repr((self.kernel.__name__, signature, *rest, sorted(self.options.items()), architecture))


def grid(cases: dict[str, AotCase]) -> list[tuple[str, int]]:
    """(case, capability) of all that is to be compiled."""
    return [
        (name, capability) for name, case in cases.items() for capability in CAPABILITIES if capability >= case.least
    ]


def check_usage(case: AotCase, usages: list[Usage], capability: int) -> None:
    """The gate: no register spilled, no stack in local memory, no more shared memory than a program may have."""
    assert usages
    for usage in usages:
        assert usage["stack_bytes"] == 0, f"{usage} spills registers: make the tile smaller or add warps"
        assert usage["local_bytes"] == 0, f"{usage} keeps arrays in local memory: index them by constants only"
        assert usage["shared_bytes"] <= SHARED_BYTES[capability], f"{usage}: too much shared memory"
        if case.wide_loads:
            assert usage["widest_load_bytes"] == 16, f"{usage}: alignment was lost"
        assert usage["narrowest_load_bytes"] >= case.narrowest_load, f"{usage}: alignment was lost"
        # SPEC TI-15. Draws use float64, and sums of INT8 codes are integers.
        assert set(usage["sums"]) <= {"f32", "f64", "i32"}, f"{usage}: sums, exponentials and divisions are float32"


@contextmanager
def _caught() -> Iterator[list[_Launch]]:
    """Launches made within, instead of being started."""
    from triton.runtime.jit import JITFunction

    caught: list[_Launch] = []

    def record(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        options = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
        caught.append(_Launch(kernel, dict(kernel.signature.bind(*args, **kwargs).arguments), options))

    started = JITFunction.run
    JITFunction.run = record
    try:
        yield caught
    finally:
        JITFunction.run = started


def _compile(launch: _Launch, capability: int) -> Usage:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, constants, divisible = launch.specialised()
    source = ASTSource(launch.kernel, signature, constants, divisible)
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=launch.options)
    usage = {"kernel": launch.kernel.__name__, "shared_bytes": built.metadata.shared, **_assembled(built.asm["cubin"])}
    widths = list(_load_widths(built.asm["ptx"]))
    usage |= {"narrowest_load_bytes": min(widths, default=0), "widest_load_bytes": max(widths, default=0)}
    return usage | {"sums": sorted(set(_sum_types(built.asm["ttir"])))}


def _type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "*" + _TYPES[value.dtype]
    if isinstance(value, float):
        return "fp32"
    if isinstance(value, int) and not isinstance(value, bool):
        return "i32" if -(1 << 31) <= value < 1 << 31 else "i64"
    return "constexpr"


def _assembled(cubin: bytes) -> Usage:
    """What the assembled kernel takes; registers that were spilled lie on its stack."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (resources,) = re.findall(r"REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)", said)
    registers, stack, local = map(int, resources)
    return {"registers": registers, "stack_bytes": stack, "local_bytes": local}


def _load_widths(ptx: str) -> Iterator[int]:
    """Bytes that each load from global memory takes, by cp.async or to registers."""
    for width in re.findall(r"cp\.async\.\w+\.shared\.global\S* +\[[^\]]*\], \[[^\]]*\], (?:0x)?(\w+)", ptx):
        yield int(width, 16)
    for vector, bits in re.findall(r"ld\.global\S*?(?:\.v(\d))?\.b(\d+)", ptx):
        yield int(vector or 1) * int(bits) // 8


def _sum_types(ttir: str) -> Iterator[str]:
    """Types of the results of additions, products of matrices, divisions, and functions such as exponentials."""
    for operation in re.findall(r"= (?:arith\.(?:addf|divf)|math\.\w+|tt\.dot) [^\n]*", ttir):
        _, _, types = re.sub(r" loc\(.*", "", operation).rpartition(" : ")
        yield re.findall(r"bf16|f16|f32|f64|i32", types)[-1]


def _launches(module: str, name: str, capability: int) -> list[_Launch]:
    card = patch.object(torch.cuda, "get_device_capability", lambda *_: divmod(capability, 10))
    with _caught() as launches, card:
        importlib.import_module(module).CASES[name].launch()
    return launches


def _usage(module: str, place: tuple[str, int, int]) -> Usage:
    name, capability, index = place
    return _compile(_launches(module, name, capability)[index], capability)


def main(module: str) -> None:
    pairs = grid(importlib.import_module(module).CASES)
    builds = {pair: [launch.build(pair[1]) for launch in _launches(module, *pair)] for pair in pairs}
    places: dict[str, tuple[str, int, int]] = {}
    for pair, needed in builds.items():
        for index, build in enumerate(needed):
            places.setdefault(build, (*pair, index))
    with ProcessPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        usages = dict(zip(places, pool.map(partial(_usage, module), places.values()), strict=True))
    results: dict[str, dict[str, list[Usage]]] = {name: {} for name, _ in pairs}
    for (name, capability), needed in builds.items():
        results[name][str(capability)] = [usages[build] for build in needed]
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
