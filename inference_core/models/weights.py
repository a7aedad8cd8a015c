"""Builds a decoder from a checkpoint: packs every projection once, later maps it from the weight cache."""

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from inference_core.linear.linear import ConcatenatedLinear, Linear, PanelLinear, ReferenceLinear
from inference_core.linear.panels import LAYOUT, PanelKind, packing, panel_kind
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.decoder_tensors import layer_norms
from inference_core.loaders.packed_tensor import PackedTensor, bfloat16_to_float32, dequantize, float32_to_bfloat16
from inference_core.loaders.weight_cache import WeightCache
from inference_core.model_config import ModelConfig
from inference_core.model_spec import Compute
from inference_core.models.transformer import Decoder, DecoderLayer, DenseMlp, Experts, StackedExperts
from inference_core.native import cpu
from inference_core.native.control_groups import usable_cpus
from inference_core.native.cpu import Scheme

if TYPE_CHECKING:
    # Only devices have stacks.
    from inference_core.linear.device import ExpertLinear

# Kinds of embedding rows that the native decoder reads.
ROW_KINDS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")
EMBEDDING = "model.embed_tokens.weight"
_ATTENTION = ("q_proj", "k_proj", "v_proj")


@dataclass(slots=True, frozen=True)
class PackedEmbedding:
    """Token embeddings in the file's encoding; rows are decoded, and multiplied by `scale`, at look-up."""

    table: PackedTensor
    round_to_bfloat16: bool
    scale: float = 1.0

    def rows(self, token_ids: list[int]) -> torch.Tensor:
        data = self.table.data[token_ids]
        rows = dequantize(PackedTensor(self.table.kind, (len(token_ids), self.table.shape[1]), data))
        if self.round_to_bfloat16:
            rows = bfloat16_to_float32(float32_to_bfloat16(rows))
        if self.scale != 1.0:
            rows = rows * np.float32(self.scale)
        return torch.from_numpy(np.array(rows, np.float32, copy=rows.base is not None or not rows.flags.writeable))


@dataclass(slots=True, frozen=True)
class Projection:
    """One linear layer of the network: the tensors whose outputs are concatenated, and their biases."""

    name: str
    tensors: tuple[str, ...]
    biases: tuple[str, ...] = ()


def load_decoder(checkpoint: Checkpoint, compute: Compute, cache_dir: Path) -> Decoder:
    """Build the network under `compute` on the native kernels, or in plain torch if they were not built.

    Raises ModelFileError for a bad file. Repacked weights are cached under `cache_dir`, keyed by content and layout.
    """
    linears = load_linears(checkpoint, list(projections(checkpoint)), compute, cache_dir)
    return Decoder(
        config=checkpoint.config,
        embedding=load_embedding(checkpoint, compute),
        layers=load_layers(checkpoint, linears),
        final_norm=vector(checkpoint, "model.norm.weight"),
        head=linears["head"],
    )


def are_packed(checkpoint: Checkpoint, compute: Compute, cache_dir: Path) -> bool:
    """Whether `load_decoder` finds repacked weights; packing them takes long."""
    return WeightCache(cache_dir).holds(checkpoint.fingerprint, _layout(compute))


def load_linears(
    checkpoint: Checkpoint, wanted: list[Projection], compute: Compute, cache_dir: Path
) -> dict[str, Linear]:
    """Load the `wanted` linear layers, by name: on the native kernels, or in plain torch if they were not built."""
    if cpu.AVAILABLE:
        return _native_linears(checkpoint, wanted, compute, cache_dir)
    return _torch_linears(checkpoint, wanted, compute)


def load_embedding(checkpoint: Checkpoint, compute: Compute) -> PackedEmbedding:
    return PackedEmbedding(_embedding_table(checkpoint), compute == "bfloat16", checkpoint.config.embedding_scale)


def vector(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    """A tensor of the file as float32, such as a norm's weights."""
    return torch.from_numpy(np.array(dequantize(checkpoint.tensors[name]), np.float32))


def load_layers(
    checkpoint: Checkpoint,
    linears: Mapping[str, Linear],
    device: torch.device | str = "cpu",
    stacks: "Mapping[str, ExpertLinear] | None" = None,
) -> list[DecoderLayer]:
    """Build every layer from its `linears`, which are on `device` already, and the checkpoint's norms. `stacks`: the
    projections of experts, where the linears lack these (`projections`)."""
    config = checkpoint.config

    def norm(name: str) -> torch.Tensor:
        return vector(checkpoint, name).to(device)

    def layer(i: int) -> DecoderLayer:
        prefix = f"model.layers.{i}"
        return DecoderLayer(
            qkv=linears[f"layers.{i}.qkv"],
            q_norm=norm(f"{prefix}.self_attn.q_norm.weight") if config.attention.qk_norm else None,
            k_norm=norm(f"{prefix}.self_attn.k_norm.weight") if config.attention.qk_norm else None,
            output=linears[f"layers.{i}.output"],
            mlp=_mlp(config, linears, f"layers.{i}", stacks),
            sinks=norm(f"{prefix}.self_attn.sinks") if config.attention.sinks else None,
            **{"attention_norm": None, "mlp_norm": None}
            | {field: norm(f"{prefix}.{name}.weight") for field, name in layer_norms(config).items()},
        )

    return [layer(i) for i in range(config.num_layers)]


def _mlp(
    config: ModelConfig, linears: Mapping[str, Linear], layer: str, stacks: "Mapping[str, ExpertLinear] | None"
) -> DenseMlp | Experts | StackedExperts:
    if not config.num_experts:
        return DenseMlp(linears[f"{layer}.gate_up"], linears[f"{layer}.down"])
    if stacks is not None:
        experts = (stacks[f"{layer}.experts.{part}"] for part in ("gate_up", "down"))
        return StackedExperts(linears[f"{layer}.router"], *experts)
    names = [f"{layer}.experts.{e}" for e in range(config.num_experts)]
    return Experts(
        linears[f"{layer}.router"], [DenseMlp(linears[f"{name}.gate_up"], linears[f"{name}.down"]) for name in names]
    )


def _embedding_table(checkpoint: Checkpoint) -> PackedTensor:
    """The embedding in the file's encoding if its rows can be decoded natively, else dequantised."""
    table = checkpoint.tensors[EMBEDDING]
    return table if table.kind in ROW_KINDS else PackedTensor("F32", table.shape, dequantize(table))


def projections(checkpoint: Checkpoint) -> Iterator[Projection]:
    """Every linear layer of the network, in order of use."""
    config = checkpoint.config
    for i in range(config.num_layers):
        attention, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
        yield _projection(f"layers.{i}.qkv", [f"{attention}.{p}" for p in _ATTENTION], config.attention.qkv_bias)
        yield _projection(f"layers.{i}.output", [f"{attention}.o_proj"], config.attention.output_bias)
        experts, biased = config.experts, config.experts is not None and config.experts.has_bias
        if experts is not None:
            yield _projection(f"layers.{i}.router", [f"{mlp}.gate"], biased)
        for at in [""] if experts is None else [f".experts.{e}" for e in range(experts.count)]:
            gate_up = [f"{mlp}{at}.gate_proj", f"{mlp}{at}.up_proj"]
            yield _projection(f"layers.{i}{at}.gate_up", gate_up, biased)
            yield _projection(f"layers.{i}{at}.down", [f"{mlp}{at}.down_proj"], biased)
    yield Projection("head", (EMBEDDING if config.tie_embeddings else "lm_head.weight",))


def _projection(name: str, layers: list[str], biased: bool) -> Projection:
    biases = tuple(f"{layer}.bias" for layer in layers) if biased else ()
    return Projection(name, tuple(f"{layer}.weight" for layer in layers), biases)


def fused_bias(checkpoint: Checkpoint, projection: Projection) -> torch.Tensor | None:
    """The concatenated biases of the projection's tensors, float32 [outputs]; None if it has none."""
    if not projection.biases:
        return None
    return torch.from_numpy(np.concatenate([dequantize(checkpoint.tensors[b]) for b in projection.biases]))


@dataclass(slots=True, frozen=True)
class Part:
    """Tensors of one projection that share an encoding and therefore one set of panels."""

    name: str
    kind: PanelKind
    tensors: list[PackedTensor]

    @property
    def rows(self) -> int:
        return sum(t.shape[0] for t in self.tensors)


def parts_of(checkpoint: Checkpoint, projection: Projection, compute: Compute) -> list[Part]:
    """The parts of a projection, in order of their outputs."""
    tensors = [checkpoint.tensors[name] for name in projection.tensors]
    grouped = groupby(tensors, key=lambda t: (panel_kind(t, compute), t.kind))
    return [Part(f"{projection.name}.{i}", key[0], list(group)) for i, (key, group) in enumerate(grouped)]


def _native_linears(
    checkpoint: Checkpoint, wanted: list[Projection], compute: Compute, cache_dir: Path
) -> dict[str, Linear]:
    split = {p: parts_of(checkpoint, p, compute) for p in wanted}

    def build() -> Iterator[tuple[str, NDArray[np.uint8]]]:
        # The threads pack the next part while one is written.
        ahead: deque[tuple[str, Callable[[], NDArray[np.uint8]]]] = deque()
        with ThreadPoolExecutor(usable_cpus(), "pack") as pool:
            for part in chain.from_iterable(split.values()):
                shape = (part.rows, part.tensors[0].shape[1])
                datas = [t.data for t in part.tensors]
                data = np.concatenate(datas) if len(datas) > 1 else datas[0]
                ahead.append((part.name, packing(PackedTensor(part.tensors[0].kind, shape, data), part.kind, pool)))
                if len(ahead) > 1:
                    name, packed = ahead.popleft()
                    yield name, packed()
            for name, packed in ahead:
                yield name, packed()

    arrays = WeightCache(cache_dir).load_or_build(checkpoint.fingerprint, _layout(compute), build)
    return {p.name: _native_linear(checkpoint, p, parts, arrays, compute) for p, parts in split.items()}


def _layout(compute: Compute) -> str:
    return f"{LAYOUT}-{compute}"


def _native_linear(
    checkpoint: Checkpoint,
    projection: Projection,
    parts: list[Part],
    arrays: dict[str, NDArray[np.uint8]],
    compute: Compute,
) -> Linear:
    bias = fused_bias(checkpoint, projection)
    linears: list[Linear] = []
    row = 0
    for part in parts:
        own_bias = None if bias is None else bias[row : row + part.rows].contiguous()
        panels = read_only_tensor(arrays[part.name])
        scheme = _scheme(part.kind, compute)
        linears.append(PanelLinear(scheme, panels, part.tensors[0].shape[1], part.rows, own_bias))
        row += part.rows
    return linears[0] if len(linears) == 1 else ConcatenatedLinear(linears)


def _scheme(kind: PanelKind, compute: Compute) -> Scheme:
    if kind == "int4":
        return "int4-int8" if compute == "int4-int8" else "int4-float"
    if kind == "int4-centred":
        return "int4-centred-int8"
    return "int8-int8" if kind == "int8" else kind


def read_only_tensor(array: NDArray[np.uint8]) -> torch.Tensor:
    """A tensor over a mapped, read-only array. Weights are never written, so torch's warning is silenced."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _torch_linears(checkpoint: Checkpoint, wanted: list[Projection], compute: Compute) -> dict[str, Linear]:
    linears: dict[str, Linear] = {}
    for projection in wanted:
        tensors = [checkpoint.tensors[name] for name in projection.tensors]
        weight = np.concatenate([dequantize(t) for t in tensors])
        kinds = {panel_kind(t, compute) for t in tensors}
        if kinds == {"bfloat16"}:
            weight = bfloat16_to_float32(float32_to_bfloat16(weight))
        quantize = compute == "int4-int8" and kinds <= {"int4", "int4-centred", "int8"}
        linears[projection.name] = ReferenceLinear(
            torch.from_numpy(weight), fused_bias(checkpoint, projection), quantize=quantize
        )
    return linears
