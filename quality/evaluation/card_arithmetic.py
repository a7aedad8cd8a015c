"""A card's 8-bit arithmetic on the CPU: the device's own weights and rounding of activations, in plain torch, so that a
comparison shows what INT8 and FP8 lose without a card (SPEC QZ-04, QZ-06, QZ-09)."""

import os
from pathlib import Path

import torch

from inference_core.attention import AttentionBackend, CpuAttention, ReferenceAttention
from inference_core.device.weights import stored_linears
from inference_core.execution.logits_runner import DecoderRunner, LogitsRunner
from inference_core.linear.linear import Linear
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loading.load_core import check_kernels, info_of, layout_of, rotary_within
from inference_core.model_spec import CoreSpec, DeviceScheme, ModelSpec
from inference_core.models.transformer import Decoder
from inference_core.models.weights import load_embedding, load_layers, vector
from inference_core.native import cpu
from quality.evaluation.fp8_cache import Fp8Attention


class ContiguousLinear(Linear):
    """A device's layer for callers whose `x` and `out` are parts of wider tensors."""

    batch_invariant = False

    def __init__(self, linear: Linear) -> None:
        self._linear = linear
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def apply(self, x: torch.Tensor, out: torch.Tensor, *, accumulate: bool = False) -> None:
        product = torch.empty(len(x), self.out_features)
        self._linear.apply(x.contiguous(), product)
        out.copy_(out + product if accumulate else product)


def card_decoder(checkpoint: Checkpoint, scheme: DeviceScheme, cache_dir: Path) -> Decoder:
    """Build the network with `scheme`'s layers as a card has them; everything else is float32.

    Repacked weights are cached under `cache_dir`. Raises ModelFileError for weights that cannot be repacked.
    """
    stored = stored_linears(checkpoint, scheme, torch.float32, torch.device("cpu"), cache_dir)
    linears = {name: ContiguousLinear(linear) for name, linear in stored.items()}
    return Decoder(
        config=checkpoint.config,
        embedding=load_embedding(checkpoint, "float32"),
        layers=load_layers(checkpoint, linears),
        final_norm=vector(checkpoint, "model.norm.weight"),
        head=linears["head"],
    )


def card_runner(
    spec: ModelSpec, checkpoint: Checkpoint, decoder: Decoder, core: CoreSpec, arena: torch.Tensor, *, fp8_cache: bool
) -> LogitsRunner:
    """Build the runner of a network over `arena` uint8 [bytes]; `spec` gives its name and its cache, which is float32
    where `fp8_cache` has its numbers rounded as cards do.

    Raises ModelFileError for shapes and caches that the CPU kernels cannot compute.
    """
    check_kernels(spec, checkpoint.config)
    # The layers are torch's, which otherwise has one thread next to the native kernels.
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    info, layout = info_of(spec, checkpoint, decoder.config), layout_of(spec, decoder.config)
    backend = CpuAttention if cpu.AVAILABLE else ReferenceAttention
    attention: AttentionBackend = backend(decoder.config, layout, arena, rotary_within(spec, decoder.config, core))
    if fp8_cache:
        attention = Fp8Attention(attention)
    return DecoderRunner(info, decoder, layout, attention, core.slab_bytes)
