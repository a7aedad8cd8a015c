"""Norm and activation of the decoder: native kernels if built, else plain torch."""

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from inference_core.model_config import ModelConfig
from inference_core.native import cpu


def reference_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None:
    """out[T, D] = x / sqrt(mean(x^2) + eps) * weight."""
    torch.mul(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps), weight, out=out)


def reference_silu_mul(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """out[T, I] = silu(gate) * up for gate_up [T, 2 I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    torch.mul(functional.silu(gate), up, out=out)


def reference_gelu_mul(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """out[T, I] = gelu(gate) * up for gate_up [T, 2 I], with gelu's approximation by tanh."""
    gate, up = gate_up.chunk(2, dim=-1)
    torch.mul(functional.gelu(gate, approximate="tanh"), up, out=out)


def reference_clamped_swiglu(gate_up: torch.Tensor, out: torch.Tensor, alpha: float, limit: float) -> None:
    """out[T, I] = gate * sigmoid(alpha * gate) * (up + 1) for gate_up [T, 2 I], clamped at `limit` first (gpt-oss)."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate = gate.clamp(max=limit)
    torch.mul(gate * torch.sigmoid(alpha * gate), up.clamp(-limit, limit) + 1, out=out)


def reference_cap_values(x: torch.Tensor, cap: float) -> None:
    """x = cap * tanh(x / cap) in place."""
    x.div_(cap).tanh_().mul_(cap)


rms_norm = cpu.rms_norm if cpu.AVAILABLE else reference_rms_norm
silu_mul = cpu.silu_mul if cpu.AVAILABLE else reference_silu_mul
gelu_mul = cpu.gelu_mul if cpu.AVAILABLE else reference_gelu_mul
clamped_swiglu = cpu.clamped_swiglu if cpu.AVAILABLE else reference_clamped_swiglu
cap_values = cpu.cap_values if cpu.AVAILABLE else reference_cap_values


def gated_activation(config: ModelConfig) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """What makes out[T, I] of gate_up [T, 2 I] in a network behind attention."""
    if config.activation == "clamped-swiglu":
        return partial(clamped_swiglu, alpha=config.swiglu_alpha, limit=config.swiglu_limit)
    return silu_mul if config.activation == "silu" else gelu_mul
