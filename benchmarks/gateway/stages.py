"""The stages of one answer at a time, by a tier that runs here: scheduling, KV blocks, prompt, tokens (SPEC GW-02)."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import msgspec
import numpy as np

from benchmarks.sources.stages import StageTimes
from gateway.base.requests.inference_request import InferenceRequest
from gateway.base.settings import Settings
from gateway.inference.answering.answer import Answer, Stamps
from gateway.inference.catalogue.class_prior import class_prior
from gateway.inference.routing.classifier_versions import ActiveClassifier
from gateway.inference.routing.knobs import RoutingKnobFile
from gateway.inference.routing.router import RoutingService
from gateway.inference.service import RecordSink, Service
from gateway.planning.backtests.backtest import dry_request
from gateway.planning.load_test.workload import Prompts
from gateway.runtime.cores.engine import running_engine
from inference_core.tokenization.tokenizer import Tokenizer
from quality.records.record import Record
from tiers.catalog.load import load_catalog
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

    async with _own_service(settings, finished) as service:
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


@asynccontextmanager
async def _own_service(settings: Settings, finished: RecordSink) -> AsyncIterator[Service]:
    """The gateway without HTTP, over the catalogue's own tiers; `finished` is called with every answer."""
    catalog = load_catalog(settings.catalog)
    classifier = ActiveClassifier(
        settings.registry_path, catalog.fingerprint, prior=class_prior(catalog, settings.data_path)
    )
    await asyncio.to_thread(classifier.load)
    async with running_engine(settings, catalog) as engine:
        routing = RoutingService(catalog, engine.tiers, classifier, settings.quality_target, RoutingKnobFile())
        yield Service(routing, [finished])


def prompts_of(tokenizer: Tokenizer, tokens: int) -> Iterator[str]:
    """Endless prompts of so many tokens, no two alike."""
    words = Prompts(seed=11, shared_prefix=0)
    while True:
        text = words.draw(tokens)
        while len(tokenizer.encode(text)) > tokens:
            text = text.rpartition(" ")[0]
        if len(tokenizer.encode(text)) == tokens:
            yield text


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
