"""From a checkpoint to a decoder on a device, one tensor after another."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from inference_core.device.decoder import DeviceDecoder, DeviceLayer
from inference_core.device.linear import DenseLinear, DeviceLinear
from inference_core.device.quantized_linear import EightBitDeviceLinear, Int4DeviceLinear
from inference_core.kv_layout import KVLayout
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.packed_tensor import PackedTensor, dequantize
from inference_core.models.rotary import rotary_table
from inference_core.models.weights import EMBEDDING, Projection, projections
from inference_core.triton_kernels.eight_bit import SCALE_BLOCK, EightBitWeight, quantize_channels
from inference_core.triton_kernels.int4_weight import KINDS as INT4_KINDS
from inference_core.triton_kernels.int4_weight import Int4Weight, pack_int4
from inference_core.triton_kernels.layer_cache import LayerCache

MakeLinear = Callable[[Checkpoint, Projection], DeviceLinear]


def dense_linear(dtype: torch.dtype, device: torch.device) -> MakeLinear:
    """Every projection dequantised to `dtype`, its tensors one above the other."""

    def make(checkpoint: Checkpoint, projection: Projection) -> DeviceLinear:
        tensors = [checkpoint.tensors[name] for name in projection.tensors]
        weight = torch.empty(sum(t.shape[0] for t in tensors), tensors[0].shape[1], dtype=dtype, device=device)
        row = 0
        for tensor in tensors:
            weight[row : row + tensor.shape[0]] = torch.from_numpy(np.array(dequantize(tensor), np.float32))
            row += tensor.shape[0]
        return DenseLinear(weight, _bias(checkpoint, projection, dtype, device))

    return make


def int4_linear(dtype: torch.dtype, device: torch.device) -> MakeLinear:
    """4-bit tensors as they are (W4A16); projections that are of other kinds, in part or whole, dequantised."""
    dense = dense_linear(dtype, device)

    def make(checkpoint: Checkpoint, projection: Projection) -> DeviceLinear:
        tensors = [checkpoint.tensors[name] for name in projection.tensors]
        kinds = {t.kind for t in tensors}
        if len(kinds) > 1 or not kinds <= set(INT4_KINDS):
            return dense(checkpoint, projection)
        shape = (sum(t.shape[0] for t in tensors), tensors[0].shape[1])
        fused = PackedTensor(tensors[0].kind, shape, np.concatenate([t.data for t in tensors]))
        weight = Int4Weight.load(pack_int4(fused), shape[1], device)
        return Int4DeviceLinear(weight, _bias(checkpoint, projection, dtype, device))

    return make


def eight_bit_linear(codes: torch.dtype, dtype: torch.dtype, device: torch.device) -> MakeLinear:
    """Every projection but the vocabulary's as INT8 or E4M3 `codes`: a checkpoint's own where it has them (S8, F8),
    else rounded here, a scale per output."""
    dense = dense_linear(dtype, device)
    own = {torch.int8: "S8", torch.float8_e4m3fn: "F8"}[codes]

    def make(checkpoint: Checkpoint, projection: Projection) -> DeviceLinear:
        if projection.name == "head":
            return dense(checkpoint, projection)
        tensors = [checkpoint.tensors[name] for name in projection.tensors]
        bias = _bias(checkpoint, projection, dtype, device)
        if all(t.kind == own for t in tensors) and (weight := _own_codes(tensors, codes, device)) is not None:
            return EightBitDeviceLinear(weight, bias)
        values = np.concatenate([np.array(dequantize(t), np.float32) for t in tensors])
        return EightBitDeviceLinear(quantize_channels(torch.from_numpy(values).to(device), codes), bias)

    return make


def _own_codes(tensors: list[PackedTensor], codes: torch.dtype, device: torch.device) -> EightBitWeight | None:
    """The codes of a checkpoint, if its scales are those of outputs, or of E4M3 blocks of 128 x 128."""
    blocks = np.concatenate([t.blocks for t in tensors])
    scales = blocks["d"]
    grid = scales[::SCALE_BLOCK, :: SCALE_BLOCK // 32]
    if (scales == scales[:, :1]).all():
        chosen = scales[:, 0]
    elif codes == torch.float8_e4m3fn and (scales == _spread(grid, scales.shape)).all():
        chosen = grid
    else:
        return None
    numbers = torch.from_numpy(np.ascontiguousarray(blocks["codes"].reshape(len(blocks), -1))).to(device)
    return EightBitWeight(numbers.view(codes), torch.from_numpy(np.ascontiguousarray(chosen)).to(device))


def _spread(grid: NDArray[np.float32], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Every entry over 128 outputs and 128 inputs, of which `shape` has one entry per 32."""
    return np.repeat(np.repeat(grid, SCALE_BLOCK, axis=0), SCALE_BLOCK // 32, axis=1)[: shape[0], : shape[1]]


def load_device_decoder(
    checkpoint: Checkpoint,
    make_linear: MakeLinear,
    layout: KVLayout,
    arena: torch.Tensor,
    *,
    dtype: torch.dtype,
    max_context: int,
) -> DeviceDecoder:
    """The network on the arena's device, activations in `dtype`. Raises ModelFileError for a bad file."""
    config, device = checkpoint.config, arena.device
    linears = {p.name: make_linear(checkpoint, p) for p in projections(checkpoint)}

    def vector(name: str) -> torch.Tensor:
        return torch.from_numpy(np.array(dequantize(checkpoint.tensors[name]), np.float32)).to(device)

    def layer(i: int) -> DeviceLayer:
        prefix = f"model.layers.{i}"
        return DeviceLayer(
            attention_norm=vector(f"{prefix}.input_layernorm.weight"),
            qkv=linears[f"layers.{i}.qkv"],
            q_norm=vector(f"{prefix}.self_attn.q_norm.weight") if config.qk_norm else None,
            k_norm=vector(f"{prefix}.self_attn.k_norm.weight") if config.qk_norm else None,
            output=linears[f"layers.{i}.output"],
            mlp_norm=vector(f"{prefix}.post_attention_layernorm.weight"),
            gate_up=linears[f"layers.{i}.gate_up"],
            down=linears[f"layers.{i}.down"],
            cache=LayerCache(arena, layout, i),
        )

    head = linears["head"]
    if config.tie_embeddings and isinstance(head, DenseLinear):
        embedding = head.weight
    else:
        table = np.array(dequantize(checkpoint.tensors[EMBEDDING]), np.float32)
        embedding = torch.from_numpy(table).to(device, dtype)
    return DeviceDecoder(
        config=config,
        num_heads=config.num_heads,
        embedding=embedding,
        layers=[layer(i) for i in range(config.num_layers)],
        final_norm=vector("model.norm.weight"),
        head=head,
        cos_sin=rotary_table(config, max_context).to(device),
    )


def _bias(
    checkpoint: Checkpoint, projection: Projection, dtype: torch.dtype, device: torch.device
) -> torch.Tensor | None:
    if not projection.biases:
        return None
    return torch.from_numpy(np.concatenate([dequantize(checkpoint.tensors[b]) for b in projection.biases])).to(
        device, dtype
    )
