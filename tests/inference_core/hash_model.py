"""A model whose next token is a hash of what it reads back from the KV cache, so that any corruption shows.

For tests of everything above the runner: `hash_core` builds a real core over it.
"""

import sys
from collections.abc import Iterable
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np
import numpy.typing as npt

from inference_core.engine.core import Core
from inference_core.engine.live_knobs import LiveKnobs
from inference_core.errors import BadLogitsError
from inference_core.execution.runner import HostBlockBytes, ModelRunner, with_layout
from inference_core.grammar.workers import TokenMask, begin_masks
from inference_core.kv_cache.host_cache import SwapTimes
from inference_core.kv_cache.layout import KVDtype, KVLayout
from inference_core.lora.adapter import Adapter, AdapterBank
from inference_core.model_config import ModelConfig, RotaryEmbedding
from inference_core.protocol import Knobs, ModelInfo, SamplingParams, TokenLogprob
from inference_core.protocol.commands import TokenEvidence
from inference_core.protocol.kv_blocks import KVIdentity
from inference_core.step_plan import (
    Matcher,
    SampledToken,
    SampleSpec,
    ScheduledSequence,
    States,
    StepPlan,
    StepResult,
)
from tests.support.clock import Clock

GREEDY = SamplingParams(temperature=0.0, max_tokens=16)
RECORD_BYTES = 16


class HashAdapterBank(AdapterBank):
    """Adapters for hash models: any path is one, whose content is its name."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.installed: dict[int, Adapter] = {}

    def read(self, folder: Path) -> Adapter:
        return Adapter(folder, blake2b(str(folder).encode(), digest_size=RECORD_BYTES).digest(), [])

    def install(self, slot: int, adapter: Adapter) -> None:
        self.installed[slot] = adapter

    def clear(self, slot: int) -> None:
        del self.installed[slot]

    def bytes_of(self, adapter: Adapter) -> int:
        return 0

    def digest_of(self, slot: int) -> bytes:
        """What lies in `slot`; nothing for -1."""
        return self.installed[slot].digest if slot >= 0 else b""


class HashModelRunner(ModelRunner):
    """Writes and reads real bytes of an arena that several of these may share, as a real model's KV would lie there.

    The "keys and values" of a token are a digest of its predecessor's record, read through the block table,
    the token and its position: like real ones they depend on the whole history. The next token is a digest
    of all records, read back through the block table; with a temperature the seed enters too. A block that is used
    twice, a wrong table or a wrong prefix hit therefore changes tokens, and `expected_tokens` tells what they
    should have been. `width` is the size of a token in 16-byte records, for models of different block sizes.
    An adapter enters every record that is computed with it; `adapter_slots` of them can be installed. So does the
    arithmetic of prompts, with `prompt_arithmetic`.

    Drafts are verified as a real model does it: their records are written before anyone knows whether they are right.
    It has as many layers as records in a token; who exits early leaves the later ones empty.

    With a `window`, its blocks are those of groups of layers (`kv_cache.window_groups`): `window_groups` tables next to
    the one that keeps everything, or that one alone. The next token is then a digest of what a window shows of them.

    The last id of the vocabulary is EOS, drawn with `eos_probability`. A step takes `seconds_per_step` plus
    `seconds_per_token` for each token and `seconds_per_swap` for each block copied to or from a host slot, on `clock`.
    """

    most_drafts = sys.maxsize
    kv_dtypes = ("float32", "bfloat16")
    # Records by their first halves, of all models: blocks may come from another core.
    _whole: ClassVar[dict[bytes, bytes]] = {}

    def __init__(
        self,
        name: str,
        memory: bytearray,
        slab_bytes: int,
        *,
        block_size: int = 16,
        width: int = 1,
        vocab_size: int = 1000,
        max_context: int = 4096,
        eos_probability: float = 0.0,
        clock: Clock | None = None,
        seconds_per_step: float = 0.0,
        seconds_per_token: float = 0.0,
        seconds_per_swap: float = 0.0,
        model_path: str = "",
        adapter_slots: int = 0,
        prompt_arithmetic: bool = False,
        window: int = 0,
        window_groups: int = 0,
    ) -> None:
        self.has_prompt_arithmetic = prompt_arithmetic
        layout = KVLayout(
            num_layers=width,
            num_kv_heads=1,
            head_dim=2,
            block_size=block_size,
            dtype="float32",
            window=window,
            window_groups=window_groups,
        )
        self.info = ModelInfo(
            name=name,
            model_path=model_path,
            max_context=max_context,
            vocab_size=vocab_size,
            weight_bytes=0,
            compute="hash",
            num_layers=width,
            hidden_size=2,
            kv=KVIdentity(weights=name, compute="hash", kernels="hash", layout=layout),
        )
        self.config = ModelConfig(
            architecture="llama",
            vocab_size=vocab_size,
            hidden_size=2,
            intermediate_size=2,
            num_layers=width,
            num_heads=1,
            num_kv_heads=1,
            head_dim=2,
            max_position=max_context,
            rms_eps=1e-6,
            rope=RotaryEmbedding(theta=1e4),
            eos_token_ids=(vocab_size - 1,),
        )
        self.adapters = self._bank = HashAdapterBank(adapter_slots)
        self.tokens_computed = 0
        self._memory = memory
        self._slab_bytes = slab_bytes
        self._width = width
        self._lay_out(layout)
        self._root = blake2b(name.encode(), digest_size=RECORD_BYTES).digest()
        self._eos_below = int(eos_probability * 2**64)
        self._clock = clock
        self._seconds_per_step = seconds_per_step
        self._seconds_per_token = seconds_per_token
        self._seconds_per_swap = seconds_per_swap

    def use_kv_dtype(self, dtype: KVDtype) -> None:
        """In bfloat16 the arena has the first half of each record, which names it; in float32 all of it."""
        self._lay_out(msgspec.structs.replace(self.layout, dtype=dtype))

    def _lay_out(self, layout: KVLayout) -> None:
        self.layout, self.info = layout, with_layout(self.info, layout)
        self._blocks_per_slab = layout.blocks_per_slab(self._slab_bytes)
        self.blocks = HostBlockBytes(np.frombuffer(self._memory, np.uint8), self._offsets, layout.block_bytes)
        self._host = {}

    def run(self, plan: StepPlan) -> StepResult:
        size = self.layout.block_bytes
        swapped = self._swap(plan) if plan.offloads or plan.restores else None
        for source, target in plan.copies:
            start, end = self._block_address(source), self._block_address(target)
            self._memory[end : end + size] = self._memory[start : start + size]
        for sequence in plan.sequences:
            self._write(sequence)
        sampled = self._samples(plan.sequences)
        steps = 1 if plan.decode_steps == 1 else self._decode_on(plan, sampled)
        scores = any(s.score is not None for s in plan.sequences)
        scored = [self._scores(s) for s in plan.sequences] if scores else []
        tells = any(s.state is not None for s in plan.sequences)
        states = [self._states(s) for s in plan.sequences] if tells else []
        self.tokens_computed += plan.num_tokens * steps
        seconds = (self._seconds_per_step + self._seconds_per_token * plan.num_tokens) * steps
        seconds += 0.0 if swapped is None else swapped.seconds
        if self._clock is not None:
            self._clock.advance(seconds)
        return StepResult(sampled, seconds, scored, swapped, states)

    def expected_tokens(
        self,
        prompt: Iterable[int],
        count: int,
        sampling: SamplingParams = GREEDY,
        seed: int = 0,
        adapter: bytes = b"",
        matcher: Matcher | None = None,
        fast_until: int = 0,
    ) -> list[int]:
        """The first `count` tokens after `prompt`, or fewer if a stop token ends them; computed without any cache.

        `adapter`: the digest of the adapter that they go through; `matcher`: of their grammar, before its first token;
        `fast_until`: tokens before it are computed in prompt arithmetic.
        """
        records, record = [], self._root
        for position, token in enumerate(prompt):
            record = self._record(record, token, position, adapter, position < fast_until)
            records.append(record)
        stops = (() if sampling.ignore_eos else self.config.eos_token_ids) + sampling.stop_token_ids
        tokens: list[int] = []
        while len(tokens) < count:
            masked = stops if len(tokens) < sampling.min_tokens else ()
            history = self._history_of(records)
            token = self._draw(history, seed if sampling.temperature > 0 else None, masked)
            if matcher is not None:
                matcher.ask_masks(())
                (mask,) = matcher.masks()
                token = _next_allowed(TokenMask.of_bytes(mask), token, self.info.vocab_size)
            if token in stops:
                break
            if matcher is not None:
                matcher.accept(token)
            tokens.append(token)
            record = self._record(record, token, len(records), adapter)
            records.append(record)
        return tokens

    def expected_scores(self, prompt: list[int], adapter: bytes = b"", fast_until: int = 0) -> list[float]:
        """The log-probabilities of the prompt's tokens after its first; computed without any cache."""
        record, records, scores = self._root, [], []
        for position, (token, following) in enumerate(pairwise(prompt)):
            record = self._record(record, token, position, adapter, position < fast_until)
            records.append(record)
            scores.append(self._score(self._history_of(records), following).logprob)
        return scores

    def expected_states(self, prompt: list[int], layer: int, adapter: bytes = b"") -> States:
        """The hidden states [tokens, 2] of the prompt after `layer` layers; computed without any cache."""
        record, states = self._root, []
        for position, token in enumerate(prompt):
            record = self._record(record, token, position, adapter)
            states.append(_state(record, layer))
        return np.stack(states)

    def expected_evidence(self, history: list[int], adapter: bytes = b"") -> TokenEvidence:
        """Of the token that follows these; computed without any cache."""
        record, records = self._root, []
        for position, token in enumerate(history):
            record = self._record(record, token, position, adapter)
            records.append(record)
        return _token_evidence(self._history_of(records))

    def _first_shown(self, table: int, length: int) -> int:
        """The first of so many tokens that the last of them sees in a table."""
        has_window = self.layout.window and (table or not self.layout.window_groups)
        return max(0, length - self.layout.window) if has_window else 0

    def _history_of(self, records: list[bytes]) -> bytes:
        """What `_history` reads behind tokens with these records."""
        parts = []
        for table in range(1 + self.layout.window_groups):
            shown = records[self._first_shown(table, len(records)) :]
            parts += [_beside(record, table) * self._width for record in shown]
        return b"".join(parts)

    def _swap(self, plan: StepPlan) -> SwapTimes:
        size, memory = self.layout.block_bytes, self._memory
        for block, slot in plan.offloads:
            start = self._block_address(block)
            self._host[slot] = bytes(memory[start : start + size])
        for slot, block in plan.restores:
            start = self._block_address(block)
            memory[start : start + size] = self._host[slot]
        out, back = len(plan.offloads), len(plan.restores)
        return SwapTimes(out, out * self._seconds_per_swap, back, back * self._seconds_per_swap)

    def _write(self, sequence: ScheduledSequence) -> None:
        table, start = sequence.block_table, sequence.start
        layers = self._width if sequence.state is None or not sequence.state.exits else sequence.state.layer
        unwritten = RECORD_BYTES * (self._width - layers)
        adapter = self._bank.digest_of(sequence.adapter)
        record = self._root
        if start:
            record = self._load(self._address(table, start - 1), 1)[:RECORD_BYTES]
        for position, token in enumerate(sequence.token_ids, start):
            record = self._record(record, token, position, adapter, position < sequence.fast_until)
            for number, each in enumerate((table, *sequence.window_tables)):
                address = self._address(each, position)
                content = _beside(record, number) * layers + b"\0" * unwritten
                self._store(address, content)

    def _samples(self, sequences: list[ScheduledSequence]) -> list[list[SampledToken]]:
        drawing = [s for s in sequences if s.sample is not None]
        masks = None
        if any(s.sample is not None and s.sample.matcher is not None for s in drawing):
            masks = begin_masks([s.sample for s in drawing if s.sample is not None], [s.drafts for s in drawing])
        bound = {} if masks is None else masks.wait()
        undrawable = [row for row, mask in bound.items() if mask.only and not len(mask.ids)]
        if undrawable:
            raise BadLogitsError(undrawable, self.info.vocab_size)
        sampled: list[list[SampledToken]] = []
        row = 0
        for sequence in sequences:
            sampled.append([] if sequence.sample is None else self._verify(sequence, sequence.sample, bound, row))
            row += 0 if sequence.sample is None else sequence.num_drafts + 1
        return sampled

    def _decode_on(self, plan: StepPlan, sampled: list[list[SampledToken]]) -> int:
        """Append the tokens of the plan's further decode steps to those of its first; return how many steps it took."""
        shares = plan.sequences
        for steps in range(1, plan.decode_steps):
            stopped = any(t[-1].token_id in s.sample.eos_token_ids for t, s in zip(sampled, shares, strict=True))
            if stopped or self.interruption.is_set:
                return steps
            shares = [_following(share, tokens[-1]) for share, tokens in zip(shares, sampled, strict=True)]
            for share in shares:
                self._write(share)
            for tokens, more in zip(sampled, self._samples(shares), strict=True):
                tokens += more
        return plan.decode_steps

    def _verify(
        self, sequence: ScheduledSequence, spec: SampleSpec, masks: dict[int, TokenMask], row: int
    ) -> list[SampledToken]:
        """Draw on for as long as a drafted token is what is drawn; drafts that are wrong have been written by then."""
        known = sequence.start + len(sequence.token_ids) - sequence.num_drafts
        drawn = [self._sample(sequence, spec, known, masks.get(row))]
        for accepted, draft in enumerate(sequence.drafts, 1):
            if drawn[-1].token_id != draft:
                break
            later = msgspec.structs.replace(spec, position=spec.position + accepted)
            drawn.append(self._sample(sequence, later, known + accepted, masks.get(row + accepted)))
        return drawn

    def _sample(
        self, sequence: ScheduledSequence, spec: SampleSpec, length: int, mask: TokenMask | None
    ) -> SampledToken:
        history = self._history(sequence, length)
        masked = spec.eos_token_ids if spec.position < spec.params.min_tokens else ()
        token = self._draw(history, spec.seed if spec.params.temperature > 0 else None, masked)
        if mask is not None:
            token = _next_allowed(mask, token, self.info.vocab_size)
        evidence = _token_evidence(history) if spec.evidence else None
        if spec.params.logprobs is None:
            return SampledToken(token, None, evidence)
        top = [(token, 0.0)][: spec.params.logprobs]
        return SampledToken(token, TokenLogprob(token, 0.0, top), evidence)

    def _states(self, sequence: ScheduledSequence) -> States:
        """Read back through the block table, like everything that depends on the history."""
        spec, rows = sequence.state, []
        known = len(sequence.token_ids) - sequence.num_drafts
        for position in range(sequence.start + (spec.first if spec else 0), sequence.start + known):
            record = self._load(self._address(sequence.block_table, position), 1)[:RECORD_BYTES]
            rows += [] if spec is None else [_state(record, spec.layer)]
        return np.array(rows, np.float32).reshape(-1, 2)

    def _scores(self, sequence: ScheduledSequence) -> list[TokenLogprob]:
        targets = sequence.score.token_ids if sequence.score is not None else []
        lengths = enumerate(targets, sequence.start + 1)
        return [self._score(self._history(sequence, length), token) for length, token in lengths]

    @staticmethod
    def _score(history: bytes, token: int) -> TokenLogprob:
        """A log-probability from -16 to 0 that is a digest of all records before the token, and of the token."""
        digest = blake2b(history + token.to_bytes(4, "little"), digest_size=2).digest()
        return TokenLogprob(token, -int.from_bytes(digest, "little") / 4096, [])

    def _address(self, table: list[int], position: int) -> int:
        """Byte offset of a token's records in the arena (see `kv_cache.layout`)."""
        offset = position % self.layout.block_size * self.layout.bytes_per_token
        return self._block_address(table[position // self.layout.block_size]) + offset

    def _offsets(self, blocks: list[int]) -> npt.NDArray[np.int64]:
        return np.array([self._block_address(block) for block in blocks], np.int64)

    def _block_address(self, block: int) -> int:
        assert block >= 0, "a block behind the window is read or written"
        slab, index = divmod(block, self._blocks_per_slab)
        return slab * self._slab_bytes + index * self.layout.block_bytes

    def _history(self, sequence: ScheduledSequence, length: int) -> bytes:
        """The records that the last of so many tokens sees, table after table."""
        tables = (sequence.block_table, *sequence.window_tables)
        assert len(tables) == 1 + self.layout.window_groups
        return b"".join(self._read(t, self._first_shown(i, length), length) for i, t in enumerate(tables))

    def _read(self, table: list[int], start: int, length: int) -> bytes:
        size = self.layout.block_size
        firsts = (start, *range(start // size * size + size, length, size))
        return b"".join(self._load(self._address(table, at), min(size - at % size, length - at)) for at in firsts)

    def _store(self, address: int, content: bytes) -> None:
        """Write a token's records."""
        if self.layout.dtype == "bfloat16":
            records = [content[at : at + RECORD_BYTES] for at in range(0, len(content), RECORD_BYTES)]
            self._whole.update({record[: RECORD_BYTES // 2]: record for record in records})
            content = b"".join(record[: RECORD_BYTES // 2] for record in records)
        self._memory[address : address + self.layout.bytes_per_token] = content

    def _load(self, address: int, tokens: int) -> bytes:
        """Read the records of so many tokens of a block."""
        stored = bytes(self._memory[address : address + tokens * self.layout.bytes_per_token])
        if self.layout.dtype == "float32":
            return stored
        halves = [stored[at : at + RECORD_BYTES // 2] for at in range(0, len(stored), RECORD_BYTES // 2)]
        return b"".join(self._whole.get(half, half * 2) for half in halves)

    @staticmethod
    def _record(before: bytes, token: int, position: int, adapter: bytes, fast: bool = False) -> bytes:
        key = token.to_bytes(4, "little") + position.to_bytes(4, "little") + b"fast" * fast
        return blake2b(before + key + adapter, digest_size=RECORD_BYTES).digest()

    def _draw(self, history: bytes, seed: int | None, masked: tuple[int, ...]) -> int:
        """All probability lies on one token, a digest of `history`; masked tokens pass it on to the next id, as do
        those that a grammar forbids."""
        salt = b"" if seed is None else (seed % 2**64).to_bytes(8, "little")
        digest = blake2b(history, digest_size=16, salt=salt).digest()
        eos = self.info.vocab_size - 1
        if int.from_bytes(digest[:8], "little") < self._eos_below and eos not in masked:
            return eos
        token = int.from_bytes(digest[8:], "little") % eos
        while token in masked:
            token = (token + 1) % eos
        return token


def _following(share: ScheduledSequence, token: SampledToken) -> ScheduledSequence:
    """The share of the step that computes a token that was just drawn."""
    sample = msgspec.structs.replace(share.sample, position=share.sample.position + 1)
    return msgspec.structs.replace(share, token_ids=[token.token_id], start=share.start + 1, sample=sample)


def _beside(record: bytes, table: int) -> bytes:
    """What a token with this record has in a table."""
    return record if not table else blake2b(record + bytes((table,)), digest_size=RECORD_BYTES).digest()


def _state(record: bytes, layer: int) -> States:
    """A hidden state [2] that is a digest of everything up to its token."""
    digest = blake2b(record + layer.to_bytes(4, "little"), digest_size=4).digest()
    return np.frombuffer(digest, "<u2").astype(np.float32) / np.float32(4096)


def _token_evidence(history: bytes) -> TokenEvidence:
    """Entropy and margin that are a digest of all records before the token."""
    entropy, margin = np.frombuffer(blake2b(history, digest_size=4, person=b"evidence").digest(), "<u2").tolist()
    return TokenEvidence(0.0, entropy / 4096, margin / 4096)


def _next_allowed(mask: TokenMask, token: int, vocab_size: int) -> int:
    """The first allowed id from `token` on, and around the end of the vocabulary."""
    row = np.zeros(vocab_size, np.float32)
    mask.apply(row)
    ids = np.flatnonzero(row == 0)
    return int(ids[np.searchsorted(ids, token) % len(ids)])


def hash_core(
    *names: str,
    slabs: int = 64,
    slab_bytes: int = 4096,
    knobs: Knobs | LiveKnobs | None = None,
    clock: Clock | None = None,
    seconds_per_step: float = 0.0,
    eos_probability: float = 0.0,
    max_context: int = 4096,
    vocab_size: int = 1000,
    model_path: str = "",
    adapter_slots: int = 0,
    block_size: int = 16,
) -> Core:
    """A core of hash models `names`, 256 tokens of KV per slab by default; without a `clock`, on real time."""
    memory = bytearray(slabs * slab_bytes)
    models = {
        name: HashModelRunner(
            name,
            memory,
            slab_bytes,
            clock=clock,
            seconds_per_step=seconds_per_step,
            eos_probability=eos_probability,
            max_context=max_context,
            vocab_size=vocab_size,
            model_path=model_path,
            adapter_slots=adapter_slots,
            block_size=block_size,
        )
        for name in names
    }
    if clock is None:
        return Core(models, arena_bytes=len(memory), slab_bytes=slab_bytes, knobs=knobs, seed=0)
    return Core(models, arena_bytes=len(memory), slab_bytes=slab_bytes, knobs=knobs, clock=clock, seed=0)
