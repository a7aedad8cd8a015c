"""Two models side by side on the same text and prompts: logits and hidden states, and what they say greedily.

A card's arithmetic on the CPU: the device's own 8-bit weights and rounding of activations, and its FP8 cache, in plain
torch, so that a comparison shows what INT8 and FP8 lose without a card (SPEC KV-07, QZ-04, QZ-06, QZ-09)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from inference_core.attention import AttentionBackend, AttentionBatch, CpuAttention, ReferenceAttention
from inference_core.device.weights import stored_linears
from inference_core.engine.core import Core
from inference_core.errors import ModelFileError
from inference_core.execution.block_memory import allocate_arena
from inference_core.execution.logits_runner import DecoderRunner, LogitsRunner
from inference_core.kv_cache.layout import MeasuredKVDtype
from inference_core.linear.linear import ConcatenatedLinear, Linear, PanelLinear, ReferenceLinear
from inference_core.linear.panels import pack
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loaders.packed_tensor import PackedTensor
from inference_core.loading.load_core import check_kernels, info_of, layout_of, load_core, rotary_within, runner_over
from inference_core.loading.outliers import load_decoder
from inference_core.model_spec import CoreSpec, DeviceScheme, MeasuredCompute, ModelSpec
from inference_core.models.transformer import Decoder
from inference_core.models.weights import load_embedding, load_layers, vector
from inference_core.native import cpu
from inference_core.native.control_groups import usable_cpus
from inference_core.protocol import AddRequest, SamplingParams
from inference_core.quantization.calibration import Agreement, AgreementTally, Logits, normalised_dot
from inference_core.step_plan import ScheduledSequence
from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.tokenization.tokenizer import Tokenizer
from inference_core.triton_kernels.reference import rounded_to_fp8


class Fp8Attention(AttentionBackend):
    """`inner` over a float32 cache, whose keys and values are rounded as the cards' kernels store them: to E4M3 with a
    scale per token and head. Products are those of `inner`."""

    def __init__(self, inner: AttentionBackend) -> None:
        if inner.layout.dtype != "float32":
            raise ValueError(f"the cache is of {inner.layout.dtype}; only float32 holds every number of FP8")
        super().__init__(inner.config, inner.layout, inner.arena, inner.cos_sin)
        self._inner = inner

    def rope_and_write(
        self,
        qkv: torch.Tensor,
        layer: int,
        batch: AttentionBatch,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
    ) -> None:
        """See `AttentionBackend.rope_and_write`."""
        self._inner.rope_and_write(qkv, layer, batch, q_norm, k_norm)
        numbers = self.arena[: self.arena.numel() // 4 * 4].view(torch.float32)
        for places in self._written(layer, batch):
            numbers[places] = rounded_to_fp8(numbers[places])

    def attend(
        self, qkv: torch.Tensor, layer: int, batch: AttentionBatch, out: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> None:
        self._inner.attend(qkv, layer, batch, out, sinks)

    def _written(self, layer: int, batch: AttentionBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Places of the keys and the values [tokens, kv_heads, head_dim] of a step in the arena's float32 numbers."""
        layout = self.layout
        heads = torch.arange(layout.num_kv_heads) * (layout.head_bytes // 4)
        first = ((batch.slots + layer * layout.layer_bytes) // 4)[:, None, None] + heads[None, :, None]
        at = (batch.positions.long() % layout.block_size)[:, None, None]
        dims = torch.arange(layout.head_dim)
        keys = first + dims * layout.block_size + at
        values = first + layout.head_dim * layout.block_size + at * layout.head_dim + dims
        return keys, values


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
    torch.set_num_threads(usable_cpus())
    info, layout = info_of(spec, checkpoint, decoder.config), layout_of(spec, decoder.config)
    backend = CpuAttention if cpu.AVAILABLE else ReferenceAttention
    attention: AttentionBackend = backend(decoder.config, layout, arena, rotary_within(spec, decoder.config, core))
    if fp8_cache:
        attention = Fp8Attention(attention)
    return DecoderRunner(info, decoder, layout, attention, core.slab_bytes)


Hidden = NDArray[np.float32]
Progress = Callable[[float], None]
_TOGETHER = 8


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of computing a model: its arithmetic and the encoding of its KV cache."""

    compute: MeasuredCompute
    kv_dtype: MeasuredKVDtype


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: a model file and how it is computed."""

    path: str
    variant: Variant

    def spec(self) -> ModelSpec:
        """As the core loads it, with one table per text; what `card_scheme` does not compute is float32 there."""
        compute = self.variant.compute
        if compute == "int8" or compute == "fp8":
            compute = "float32"
        dtype = "float32" if self.has_fp8_cache else self.variant.kv_dtype
        return ModelSpec(name="model", path=self.path, compute=compute, kv_dtype=dtype, window_groups=False)

    @property
    def card_scheme(self) -> Literal["int8", "fp8"] | None:
        """The card's arithmetic that is computed on the CPU; None for the CPU's own."""
        compute = self.variant.compute
        return compute if compute == "int8" or compute == "fp8" else None

    @property
    def has_fp8_cache(self) -> bool:
        """Whether keys and values are rounded as a card's FP8 cache does."""
        return self.variant.kv_dtype == "fp8"

    @property
    def is_of_a_card(self) -> bool:
        """Whether anything is computed as a card does, so that the CPU's own runner cannot compute it."""
        return self.card_scheme is not None or self.has_fp8_cache

    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(resolve_model_path(self.path))


def same_ids(reference: Side, candidate: Side, text: str) -> list[int]:
    """Token ids of `text`. Raises ModelFileError if the two models cut it differently."""
    ids, others = reference.tokenizer().encode(text), candidate.tokenizer().encode(text)
    if ids != others:
        raise ModelFileError(
            f"{reference.path} and {candidate.path} have different vocabularies ({len(ids)} and {len(others)} tokens "
            "for the same text); only models of one vocabulary can be compared token by token"
        )
    return ids


def compare_on_text(
    reference: Side, candidate: Side, cache_dir: Path, windows: list[list[int]], progress: Progress = lambda share: None
) -> tuple[Agreement, NDArray[np.float64]]:
    """The candidate against the reference over `windows`, each from an empty context, and the cosine of their hidden
    states behind the last norm [positions]. Raises ModelFileError.
    """
    tally = AgreementTally()
    cosines: list[NDArray[np.float64]] = []
    pairs = zip(
        windows,
        window_outputs(reference, cache_dir, windows),
        window_outputs(candidate, cache_dir, windows),
        strict=True,
    )
    for done, (tokens, (exact_hidden, exact), (hidden, logits)) in enumerate(pairs, 1):
        if exact.shape != logits.shape or exact_hidden.shape != hidden.shape:
            raise ModelFileError(
                f"{reference.path} gives {exact_hidden.shape[1]} hidden numbers and {exact.shape[1]} logits, "
                f"{candidate.path} {hidden.shape[1]} and {logits.shape[1]}; only models of one shape can be compared"
            )
        tally.add(tokens, exact, logits)
        cosines.append(normalised_dot(exact_hidden, hidden))
        progress(done / len(windows))
    return tally.agreement(), np.concatenate(cosines)


def window_outputs(side: Side, cache_dir: Path, windows: list[list[int]]) -> Iterator[tuple[Hidden, Logits]]:
    """Normed last hidden states [tokens, hidden] and logits [tokens, vocabulary] of each window, paged."""
    spec = side.spec()
    checkpoint = open_checkpoint(resolve_model_path(side.path), cache_dir)
    check_kernels(spec, checkpoint.config)
    layout = layout_of(spec, checkpoint.config)
    blocks = max(-(-len(part) // spec.block_size) for part in windows)
    core = CoreSpec(models=[spec])
    slabs = -(-blocks // layout.blocks_per_slab(core.slab_bytes))
    core = msgspec.structs.replace(core, arena_bytes=slabs * core.slab_bytes)
    runner = _runner(side, checkpoint, with_hidden_states(_decoder(side, checkpoint, cache_dir)), core)
    hidden = checkpoint.config.hidden_size
    for part in windows:
        outputs = teacher_forced_logits(runner, part)
        yield outputs[:, :hidden], outputs[:, hidden:]


def _decoder(side: Side, checkpoint: Checkpoint, cache_dir: Path) -> Decoder:
    if side.card_scheme is not None:
        return card_decoder(checkpoint, side.card_scheme, cache_dir)
    return load_decoder(checkpoint, side.spec().compute, cache_dir)


def _runner(side: Side, checkpoint: Checkpoint, decoder: Decoder, core: CoreSpec) -> LogitsRunner:
    spec, arena = side.spec(), allocate_arena(core.arena_bytes)
    if side.is_of_a_card:
        return card_runner(spec, checkpoint, decoder, core, arena, fp8_cache=side.has_fp8_cache)
    return runner_over(spec, checkpoint, decoder, core, arena)


def teacher_forced_logits(runner: LogitsRunner, token_ids: list[int]) -> Logits:
    """Logits [tokens, vocabulary] after each token of one sequence that fills the arena's first blocks, computed as
    generated tokens are."""
    table = list(range(-(-len(token_ids) // runner.layout.block_size)))
    sequence = ScheduledSequence("text", token_ids, 0, table, None)
    logits: Logits = runner.logits([sequence], list(range(len(token_ids)))).numpy().copy()
    return logits


def with_hidden_states(decoder: Decoder) -> Decoder:
    """A decoder whose "logits" are the last norm's outputs, and then the logits: its head begins with the identity."""
    size = decoder.config.hidden_size
    eye = np.eye(size, dtype=np.float32)
    identity: Linear
    if cpu.AVAILABLE:
        panels = torch.from_numpy(pack(PackedTensor("F32", eye.shape, eye), "float32"))
        identity = PanelLinear("float32", panels, size, size, None)
    else:
        identity = ReferenceLinear(torch.from_numpy(eye), None, quantize=False)
    parts = decoder.head.parts if isinstance(decoder.head, ConcatenatedLinear) else [decoder.head]
    config = msgspec.structs.replace(decoder.config, vocab_size=size + decoder.config.vocab_size)
    return replace(decoder, config=config, head=ConcatenatedLinear([identity, *parts]))


def greedy_continuations(
    side: Side,
    cache_dir: Path,
    prompts: list[list[int]],
    max_tokens: int,
    progress: Progress = lambda share: None,
    *,
    prefill_arithmetic: Literal["fast", "exact"] = "fast",
) -> list[list[int]]:
    """The most likely tokens after each prompt, up to an end token. Raises CoreError for prompts that do not fit."""
    spec = side.spec()
    checkpoint = open_checkpoint(resolve_model_path(side.path), cache_dir)
    layout = layout_of(spec, checkpoint.config)
    longest = max(map(len, prompts), default=0) + max_tokens
    needed = _TOGETHER * -(-longest // spec.block_size) * layout.block_bytes
    whole = CoreSpec(models=[spec])
    slabs = -(-needed // whole.slab_bytes) + 1
    whole = msgspec.structs.replace(whole, arena_bytes=slabs * whole.slab_bytes)
    if not side.is_of_a_card:
        core = load_core(whole, cache_dir)
    else:
        runner = _runner(side, checkpoint, _decoder(side, checkpoint, cache_dir), whole)
        core = Core({spec.name: runner}, arena_bytes=whole.arena_bytes, slab_bytes=whole.slab_bytes)
    core.set_knobs({"prefill_arithmetic": prefill_arithmetic})
    ends = side.tokenizer().eos_token_ids
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, stop_token_ids=ends)
    said: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
    waiting, going = list(said)[::-1], 0
    while waiting or going:
        while waiting and going < _TOGETHER:
            name = waiting.pop()
            core.add(
                AddRequest(request_id=name, model=spec.name, prompt_token_ids=prompts[int(name)], sampling=sampling)
            )
            going += 1
        for output in core.step():
            said[output.request_id] += output.token_ids
            if output.finish_reason == "error":
                raise ModelFileError(f"{side.path} cannot answer a prompt: {output.error}")
            going -= output.finish_reason is not None
        progress((len(prompts) - len(waiting) - going) / max(len(prompts), 1))
    return list(said.values())
