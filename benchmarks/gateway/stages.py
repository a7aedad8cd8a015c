"""The stages of one answer at a time, by a tier that runs here: scheduling, KV blocks, prompt, tokens (SPEC GW-02)."""

import time
from collections.abc import Callable

import msgspec
import numpy as np

from benchmarks.gateway.edge import own_service, prompts_of
from benchmarks.sources.stages import StageTimes
from gateway.base.requests.inference_request import InferenceRequest
from gateway.base.settings import Settings
from gateway.inference.answering.answer import Answer, Stamps
from gateway.inference.routing.knobs import RoutingKnobFile
from gateway.planning.backtests.backtest import dry_request
from quality.records.record import Record
from tiers.errors import CatalogError
from tiers.tier import ChatMessage

Progress = Callable[[str, float], None]
WARM_UP = 2


async def bench_stages(
    settings: Settings, *, tier: int, requests: int, prompt_tokens: int, new_tokens: int, progress: Progress
) -> StageTimes:
    """Answer `requests` prompts of exactly `prompt_tokens` tokens, one after the other, by tier number `tier`.

    Medians in milliseconds. Routing and the wire are not timed here: `wire_stages` does that. Raises `CatalogError`
    if the tier does not run in process, or gives an answer of fewer than two tokens.
    """
    found: list[tuple[Stamps, Record]] = []

    def finished(answer: Answer, record: Record) -> None:
        found.append((answer.stamps, record))

    async with own_service(settings, RoutingKnobFile(), finished) as service:
        asked = service.routing.served.tier(tier)
        if asked.tokenizer is None:
            raise CatalogError(f"catalogue '{settings.catalog}': tier {tier} does not run here")
        texts = prompts_of(asked.tokenizer, prompt_tokens)
        for number in range(-WARM_UP, requests):
            await (await service.start(_request(next(texts), tier, new_tokens))).whole()
            if number < 0:
                found.clear()
            progress("answering", max(number + 1, 0) / requests)
    return _times(found, asked.model, prompt_tokens)


def _request(text: str, tier: int, new_tokens: int) -> InferenceRequest:
    request = dry_request([ChatMessage(role="user", content=text)], max_tokens=new_tokens, stream=True)
    sampling = msgspec.structs.replace(request.generation.sampling, ignore_eos=True)
    request = request.with_generation(sampling=sampling, arrival=time.monotonic())
    return msgspec.structs.replace(request, requested_model=f"tier-{tier}")


def _times(found: list[tuple[Stamps, Record]], model: str, prompt_tokens: int) -> StageTimes:
    rows = []
    for stamps, record in found:
        prefill, decode = stamps.prefill_seconds, stamps.decode_seconds
        if prefill is None or decode is None or record.completion_tokens < 2:
            raise CatalogError(
                f"{model} gave an answer of {record.completion_tokens} tokens; two are needed to time it"
            )
        token = decode / (record.completion_tokens - 1)
        times = stamps.times
        rows.append((times.queue_seconds, times.planning_seconds, times.kv_seconds, prefill, token))
    queue, planning, kv, prefill, token = (round(float(ms), 4) for ms in np.median(rows, axis=0) * 1e3)
    return StageTimes(
        model=model,
        requests=len(rows),
        prompt_tokens=prompt_tokens,
        queue_ms=queue,
        planning_ms=planning,
        kv_ms=kv,
        prefill_ms=prefill,
        token_ms=token,
    )
