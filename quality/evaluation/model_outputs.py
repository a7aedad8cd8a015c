"""Two models side by side on the same text and prompts: logits and hidden states, and what they say greedily."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from inference_core.core import Core
from inference_core.errors import ModelFileError
from inference_core.execution.block_memory import allocate_arena
from inference_core.execution.logits_runner import LogitsRunner
from inference_core.kv_cache.layout import MeasuredKVDtype
from inference_core.linear.linear import ConcatenatedLinear, Linear, PanelLinear, ReferenceLinear
from inference_core.linear.panels import pack
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.model_path import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loaders.packed_tensor import PackedTensor
from inference_core.loading.load_core import check_kernels, layout_of, load_core, runner_over
from inference_core.loading.outliers import load_decoder
from inference_core.model_spec import CoreSpec, MeasuredCompute, ModelSpec
from inference_core.models.transformer import Decoder
from inference_core.native import cpu
from inference_core.protocol import AddRequest, SamplingParams
from inference_core.quantization.calibration import Agreement, AgreementTally, Logits, normalised_dot
from inference_core.step_plan import ScheduledSequence
from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.tokenization.tokenizer import Tokenizer
from quality.evaluation.card_arithmetic import card_decoder, card_runner

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
        """The tokeniser that comes with the model."""
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
    """Normed last hidden states [tokens, hidden] and logits [tokens, vocabulary] of each window, through the paged
    path.
    """
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


def teacher_forced_logits(runner: LogitsRunner, token_ids: list[int], *, as_prompt: bool = False) -> Logits:
    """Logits [tokens, vocabulary] after each token of one sequence that fills the arena's first blocks.

    Computed as generated tokens are, or `as_prompt`, where the runner has an arithmetic for prompts.
    """
    table = list(range(-(-len(token_ids) // runner.layout.block_size)))
    fast_until = len(token_ids) if as_prompt and runner.has_prompt_arithmetic else 0
    sequence = ScheduledSequence("text", token_ids, 0, table, None, fast_until=fast_until)
    logits: Logits = runner.logits([sequence], list(range(len(token_ids)))).numpy().copy()
    return logits


def with_hidden_states(decoder: Decoder) -> Decoder:
    """A decoder whose "logits" are the hidden states behind the last norm, and then the logits: its head has the
    identity in front.
    """
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
