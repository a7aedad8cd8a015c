"""Load a decoder, and keep the few inputs apart that would spoil the scale of their neighbours in INT8.

A handful of channels of a language model's hidden states are many times as large as the others (Dettmers et al. 2022).
Rounded with one scale per group, the 31 inputs next to such a channel lose most of their bits. Where that is so, INT8
layers multiply these channels in float32 (docs/reference/quantisation.md, outliers).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from inference_core.attention import BlockAddresses, CpuAttention
from inference_core.kv_cache.layout import KVLayout
from inference_core.linear.linear import ConcatenatedLinear, Linear, Outliers, PanelLinear
from inference_core.linear.panels import pack_columns
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.packed_tensor import GROUP
from inference_core.loaders.weight_cache import WeightCache
from inference_core.model_spec import Compute
from inference_core.models import weights
from inference_core.models.transformer import Decoder, DecoderLayer, DenseMlp, rotary_table
from inference_core.models.weights import parts_of, projections, read_only_tensor
from inference_core.native import cpu
from inference_core.native.cpu import Scheme
from inference_core.step_plan import ScheduledSequence

LAYOUT = "cpu-outliers-1"
TOKENS = 64
MOST = 4
# Share of a projection's rounding error that a channel must cause to be kept apart.
WORTH = 0.1
_INTEGER: tuple[Scheme, ...] = ("int4-int8", "int4-centred-int8", "int8-int8")


def load_decoder(checkpoint: Checkpoint, compute: Compute, cache_dir: Path) -> Decoder:
    """Do what `models.weights.load_decoder` does, and choose the outliers of INT8 layers.

    They are chosen once per file, by a step of 64 tokens spread over the vocabulary, and cached. Raises ModelFileError.
    """
    decoder = weights.load_decoder(checkpoint, compute, cache_dir)
    if compute != "int4-int8" or not cpu.AVAILABLE:
        return decoder
    cache = WeightCache(cache_dir)
    arrays = cache.load_or_build(checkpoint.fingerprint, LAYOUT, lambda: _chosen(checkpoint, decoder))
    return _with_linears(decoder, lambda name, linear: _parted(name, linear, arrays))


def _chosen(checkpoint: Checkpoint, decoder: Decoder) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the outliers of every projection that has some, and their weights by part."""
    # A file must have an entry.
    yield "tokens", np.array([TOKENS], np.int32)
    errors = _rounding_errors(decoder)
    for projection in projections(checkpoint):
        channels = choose(*errors[projection.name]) if projection.name in errors else []
        if not channels:
            continue
        yield _channels(projection.name), np.array(channels, np.int32)
        for part in parts_of(checkpoint, projection, "int4-int8"):
            yield part.name, pack_columns(part.tensors, channels)


def _channels(projection: str) -> str:
    return f"{projection}.channels"


def choose(gains: torch.Tensor, error: float) -> list[int]:
    """Return the channels that cause at least `WORTH` of the `error` each, at most `MOST`, in order.

    `gains` float32 [K]: how much smaller the error would be without the channel.
    """
    best = gains.topk(min(MOST, len(gains)))
    return sorted(best.indices[best.values >= WORTH * error].tolist())


def _rounding_errors(decoder: Decoder) -> dict[str, tuple[torch.Tensor, float]]:
    """Compute a step, and return by projection what `choose` takes. The error of a group is in proportion to the square
    of its greatest number; without that number, to the square of the next."""
    observed: dict[str, _Observed] = {}

    def observe(name: str, linear: Linear) -> Linear:
        parts = linear.parts if isinstance(linear, ConcatenatedLinear) else [linear]
        if not any(isinstance(part, PanelLinear) and part.scheme in _INTEGER for part in parts):
            return linear
        observed[name] = _Observed(linear)
        return observed[name]

    config = decoder.config
    layout = KVLayout(
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_size=TOKENS,
        dtype="float32",
    )
    positions = min(TOKENS, config.max_position)
    arena = torch.zeros(layout.block_bytes, dtype=torch.uint8)
    attention = CpuAttention(config, layout, arena, rotary_table(config, positions))
    ids = (np.arange(positions, dtype=np.int64) * config.vocab_size // positions).tolist()
    addresses = BlockAddresses(TOKENS, layout.block_bytes, layout.block_bytes)
    batch = addresses.batch([ScheduledSequence("", ids, 0, [0], None)])
    with torch.inference_mode():
        _with_linears(decoder, observe).forward(ids, batch, attention, list(range(len(ids))))
    return {name: (seen.gains, seen.error) for name, seen in observed.items()}


class _Observed(Linear):
    """A layer that adds up what its inputs' rounding to INT8 loses."""

    def __init__(self, linear: Linear) -> None:
        self._linear = linear
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.batch_invariant = linear.batch_invariant
        self.gains = torch.zeros(linear.in_features)
        self.error = 0.0

    def apply(self, x: torch.Tensor, out: torch.Tensor, *, accumulate: bool = False) -> None:
        squares, places = x.reshape(len(x), -1, GROUP).square().topk(2, dim=-1)
        gain = torch.zeros(len(x), x.shape[1] // GROUP, GROUP)
        gain.scatter_(-1, places[..., :1], squares[..., :1] - squares[..., 1:])
        self.gains += gain.reshape(x.shape).sum(0)
        self.error += float(squares[..., 0].sum())
        self._linear.apply(x, out, accumulate=accumulate)


def _with_linears(decoder: Decoder, changed: Callable[[str, Linear], Linear]) -> Decoder:
    """Return `decoder` with `changed(name, linear)` for each layer behind a norm."""

    def of(i: int, layer: DecoderLayer) -> DecoderLayer:
        if layer.attention_norm is not None:
            layer = replace(layer, qkv=changed(f"layers.{i}.qkv", layer.qkv))
        if layer.mlp_norm is not None and isinstance(layer.mlp, DenseMlp):
            layer = replace(layer, mlp=replace(layer.mlp, gate_up=changed(f"layers.{i}.gate_up", layer.mlp.gate_up)))
        return layer

    layers = [of(i, layer) for i, layer in enumerate(decoder.layers)]
    return replace(decoder, layers=layers, head=changed("head", decoder.head))


def _parted(name: str, linear: Linear, arrays: dict[str, NDArray[Any]]) -> Linear:
    """Return `linear` with the chosen outliers of its integer parts, if there are any."""
    if _channels(name) not in arrays:
        return linear
    channels = torch.from_numpy(arrays[_channels(name)].copy())
    parts = [
        part.with_outliers(Outliers(channels, read_only_tensor(arrays[f"{name}.{index}"])))
        if isinstance(part, PanelLinear) and part.scheme in _INTEGER
        else part
        for index, part in enumerate(linear.parts if isinstance(linear, ConcatenatedLinear) else [linear])
    ]
    return parts[0] if len(parts) == 1 else ConcatenatedLinear(parts)
