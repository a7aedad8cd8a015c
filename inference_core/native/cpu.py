"""The native kernels as functions on tensors: checks shapes, keeps buffers alive, passes addresses.

Every tensor is float32 on the CPU with a contiguous last dimension unless stated otherwise. `AVAILABLE` is False if the
extension was not built or is switched off by `AIO_NATIVE=off` in the environment. `AIO_INSTRUCTION_SET=NAME` there
chooses other kernels than this processor's best, `amx-emulated` among them; importing this module fails only where it
has none of that name. Results do not depend on how many rows are computed at once.
"""

import os
from types import ModuleType
from typing import Literal, get_args

import torch

from inference_core.model_config import Activation
from inference_core.native.control_groups import usable_cpus

_cpu: ModuleType | None
try:
    from inference_core.native import _cpu  # type: ignore[attr-defined, no-redef, unused-ignore]
except ImportError:
    _cpu = None

if os.environ.get("AIO_NATIVE") == "off":
    _cpu = None

AVAILABLE = _cpu is not None
if _cpu is not None and "AIO_INSTRUCTION_SET" in os.environ:
    _cpu.use_instruction_set(os.environ["AIO_INSTRUCTION_SET"])
Scheme = Literal["int4-int8", "int4-centred-int8", "int8-int8", "int4-float", "bfloat16", "float32"]
SCHEMES: dict[str, int] = {scheme: number for number, scheme in enumerate(get_args(Scheme))}
ACTIVATIONS: dict[str, int] = {activation: number for number, activation in enumerate(get_args(Activation))}
KV_DTYPES: dict[str, int] = {"float32": 0, "bfloat16": 1, "int8": 2}


def extension() -> ModuleType:
    """The extension module. Raises RuntimeError if it was not built."""
    if _cpu is None:
        raise RuntimeError("the native CPU kernels were not built: install a C++ compiler and reinstall")
    return _cpu


def set_threads(threads: int | None) -> int:
    """Use `threads` threads (None or 0: one per CPU that this process may use). Returns the number.

    Unless a number is given, a decoder's steps use fewer while other processes take these CPUs.
    """
    count = threads or usable_cpus()
    extension().set_threads(count, not threads)
    return count


def threads_in_use() -> int:
    """The threads of the next step; 0 without the extension."""
    return 0 if _cpu is None else int(_cpu.threads_in_use())


def linear(
    scheme: Scheme,
    panels: torch.Tensor,
    x: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    accumulate: bool = False,
    prompt: bool = False,
    outliers: torch.Tensor | None = None,
    outlier_panels: torch.Tensor | None = None,
) -> None:
    """out[T, N] (+)= x[T, K] W^T + bias for panels uint8 [ceil(N / 16), panel bytes] of `linear.panels`.

    `outliers` int32 [n]: inputs that integer schemes multiply in float32, by weights of their own, float16
    [ceil(N / 16), n, 16]. `prompt`: in prompt arithmetic, which needs none in tiles. Raises ValueError if the
    chosen kernels have no prompt arithmetic.
    """
    extension().linear(
        SCHEMES[scheme],
        panels.data_ptr(),
        panels.stride(0),
        x.shape[0],
        x.shape[1],
        out.shape[1],
        x.data_ptr(),
        x.stride(0),
        0 if bias is None else bias.data_ptr(),
        out.data_ptr(),
        out.stride(0),
        accumulate,
        prompt,
        0 if outliers is None else outliers.data_ptr(),
        0 if outliers is None else len(outliers),
        0 if outlier_panels is None else outlier_panels.data_ptr(),
    )


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None:
    """out[T, D] = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019)."""
    extension().rms_norm(
        x.data_ptr(), x.stride(0), weight.data_ptr(), out.data_ptr(), out.stride(0), x.shape[1], eps, x.shape[0]
    )


def silu_mul(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """out[T, I] = silu(gate) * up for contiguous gate_up [T, 2 I] (SwiGLU, Shazeer 2020)."""
    _gated_mul(gate_up, out, "silu")


def gelu_mul(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """out[T, I] = gelu(gate) * up for contiguous gate_up [T, 2 I], with gelu's approximation by tanh."""
    _gated_mul(gate_up, out, "gelu-tanh")


def clamped_swiglu(gate_up: torch.Tensor, out: torch.Tensor, alpha: float, limit: float) -> None:
    """out[T, I] = gate * sigmoid(alpha * gate) * (up + 1) for contiguous gate_up [T, 2 I], with gate clamped from above
    and up from both sides at `limit` first (gpt-oss)."""
    _gated_mul(gate_up, out, "clamped-swiglu", alpha, limit)


def _gated_mul(
    gate_up: torch.Tensor, out: torch.Tensor, activation: Activation, alpha: float = 0.0, limit: float = 0.0
) -> None:
    columns, rows = out.shape[1], out.shape[0]
    extension().gated_mul(gate_up.data_ptr(), out.data_ptr(), columns, rows, ACTIVATIONS[activation], alpha, limit)


def cap_values(x: torch.Tensor, cap: float) -> None:
    """x = cap * tanh(x / cap) in place, for contiguous x."""
    extension().cap_values(x.data_ptr(), x.numel(), cap)
