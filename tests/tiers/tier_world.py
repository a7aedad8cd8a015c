"""Helpers of the tests of tiers: specs, requests, collected answers, and a scripted core."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from inference_core.protocol import (
    AdapterInfo,
    AddRequest,
    CoreStats,
    KnobsSet,
    KnobValue,
    ModelInfo,
    ModelStats,
    SamplingParams,
    SequenceOutput,
    TokenLogprob,
)
from inference_core.tokenization.tokenizer import Tokenizer
from inference_core.transport.client import CoreClient
from tiers.catalog.load import load_catalog
from tiers.catalog.tier_spec import PolicySpec, RemoteSpec, TierSpec
from tiers.conversation import Turn
from tiers.local.local_tier import CoreWatch, LocalTier
from tiers.tier import Delta, GenerationRequest, TextLogprob, Tier, Usage

GREEDY = SamplingParams(temperature=0.0)


def tier_spec(policy: PolicySpec | None = None, **changes: Any) -> TierSpec:
    """Tier 1 of the laptop catalogue, changed."""
    spec = msgspec.structs.replace(load_catalog("laptop").tier(1), **{"model": "m"} | changes)
    return spec if policy is None else msgspec.structs.replace(spec, policy=policy)


def remote_spec(base_url: str = "", **changes: Any) -> TierSpec:
    fields: dict[str, Any] = {
        "model": "upstream",
        "max_context": 4096,
        "read_timeout_seconds": 20.0,
        "total_timeout_seconds": 20.0,
    } | changes
    return tier_spec(model=None, remote=RemoteSpec(base_url=base_url, **fields))


def local_tier(spec: TierSpec, core: CoreClient, tokenizer: Tokenizer) -> LocalTier:
    return LocalTier(spec, core, lambda: tokenizer, CoreWatch(core))


def chat(text: str = "Hello there", **fields: Any) -> GenerationRequest:
    fields = {"request_id": "r1", "sampling": GREEDY, "max_tokens": 12} | fields
    return GenerationRequest(messages=[Turn.of("user", text)], **fields)


@dataclass
class Answer:
    """All that one choice said."""

    text: str = ""
    reasoning: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TextLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_sequence: str | None = None


async def collect(tier: Tier, request: GenerationRequest) -> tuple[list[Answer], Usage]:
    """Drain `tier`, holding it to the order of deltas that `Delta` promises."""
    answers = [Answer() for _ in range(request.n)]
    usage: Usage | None = None
    async for delta in tier.generate(request):
        assert usage is None, "nothing follows the usage"
        if delta.end is not None:
            assert all(a.finish_reason for a in answers), "usage comes after every choice has finished"
            assert not delta.text
            usage = delta.end.usage
            continue
        add(answers[delta.index], delta)
    assert usage is not None
    return answers, usage


def add(answer: Answer, delta: Delta) -> None:
    assert answer.finish_reason is None, "nothing follows a finish reason"
    if delta.finish_reason is not None:
        assert not delta.text
        assert not delta.reasoning
    answer.text += delta.text
    answer.reasoning += delta.reasoning
    answer.token_ids += delta.token_ids
    answer.logprobs += delta.logprobs or []
    answer.finish_reason, answer.stop_sequence = delta.finish_reason, delta.stop_sequence


Script = Callable[[AddRequest], list[str]]


class ScriptedCore(CoreClient):
    """Gives each choice of a request the tokens of a text that `script` chooses, one per output, in turns.

    A text that ends in `…` never ends: its last token is repeated. `hold` stops every request after that many rounds
    until it is closed. `added` are the requests, `live` those that are neither finished nor closed, `aborted` the
    choices that were ended early, `drawn` the tokens that each request was given, in the order of `added`.
    """

    def __init__(self, tokenizer: Tokenizer, script: Script, *, hold: int | None = None) -> None:
        self.added: list[AddRequest] = []
        self.drawn: list[int] = []
        self.live: set[str] = set()
        self.aborted: set[tuple[str, int]] = set()
        self.held = asyncio.Event()
        self._tokenizer, self._script, self._hold = tokenizer, script, hold

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    @property
    def models(self) -> dict[str, ModelInfo]:
        info = ModelInfo(name="m", model_path="", max_context=400, vocab_size=49152, weight_bytes=0, compute="script")
        return {"m": info}

    async def generate(self, request: AddRequest) -> AsyncIterator[SequenceOutput]:
        request_index = len(self.added)
        self.added.append(request)
        self.drawn.append(0)
        self.live.add(request.request_id)
        texts = self._script(request)
        assert len(texts) == request.n
        tokens = [self._tokenizer.encode(t.removesuffix("…")) for t in texts]
        tokens = [t + t[-1:] * 1000 if text.endswith("…") else t for t, text in zip(tokens, texts, strict=True)]
        limit = request.sampling.max_tokens
        try:
            for position in range(limit + 1):
                if position == self._hold:
                    self.held.set()
                    await asyncio.Event().wait()
                for index, ids in enumerate(tokens):
                    if position <= min(len(ids), limit) and (request.request_id, index) not in self.aborted:
                        output = self._output(request, index, ids, position)
                        self.drawn[request_index] += len(output.token_ids)
                        yield output
                        await asyncio.sleep(0)
        finally:
            self.live.discard(request.request_id)

    def _output(self, request: AddRequest, index: int, ids: list[int], position: int) -> SequenceOutput:
        output = SequenceOutput(request_id=request.request_id, index=index, token_ids=[])
        limit = request.sampling.max_tokens
        if position == min(len(ids), limit):
            output.finish_reason = "length" if position == limit else "stop"
            output.completion_tokens = position
            output.cached_tokens = 3
            return output
        output.token_ids = [ids[position]]
        if request.sampling.logprobs is not None:
            output.logprobs = [TokenLogprob(ids[position], -0.5, [(ids[position], -0.5)])]
        return output

    def unread(self, request_id: str) -> list[SequenceOutput]:
        return []

    def abort_choice(self, request_id: str, index: int) -> None:
        self.aborted.add((request_id, index))

    async def stats(self) -> CoreStats:
        model = ModelStats(
            name="m",
            running=len(self.live),
            waiting=0,
            blocks_in_use=0,
            blocks_cached=0,
            blocks_total=0,
            prompt_tokens=0,
            generated_tokens=0,
            prefix_hit_tokens=0,
            prefix_query_tokens=0,
            preemptions=0,
            step_seconds_mean=0.0,
            predicted_wait_seconds=0.0,
        )
        return CoreStats(query_id="", steps=0, arena_bytes=0, slab_bytes=0, slabs_free=0, models=[model])

    async def set_knobs(
        self, changes: Mapping[str, KnobValue], model: str | None = None, *, keep: bool = False
    ) -> KnobsSet:
        return KnobsSet(query_id="", before={}, knobs={})

    async def load_adapter(self, model: str, name: str, path: str) -> list[AdapterInfo]:
        raise AssertionError

    async def unload_adapter(self, model: str, name: str) -> list[AdapterInfo]:
        raise AssertionError
