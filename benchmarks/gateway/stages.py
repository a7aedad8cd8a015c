"""The stages of one answer at a time, by a tier that runs here: scheduling, KV blocks, prompt, tokens (SPEC GW-02)."""

import asyncio
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import httpx
import msgspec
import numpy as np

from benchmarks.report.machine import describe_machine
from benchmarks.running_server import running_server
from benchmarks.sources.report import StageTimes
from gateway.base.configuration import variable_of
from gateway.base.inference_request import InferenceRequest
from gateway.base.settings import Settings
from gateway.cli.options import (
    NEW_FILE,
    echo_answer,
    json_option,
    setting_options,
    settings_from,
    staged_progress,
    table,
)
from gateway.inference.answer import Answer, Stamps
from gateway.inference.class_prior import class_prior
from gateway.inference.classifier_versions import ActiveClassifier
from gateway.inference.router import RoutingService
from gateway.inference.routing_knobs import RoutingKnobFile
from gateway.inference.service import RecordSink, Service
from gateway.planning.backtests.backtest import dry_request
from gateway.planning.load_test.workload import Prompts
from gateway.runtime.cores.engine import running_engine
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.tokenization.tokenizer import Tokenizer
from quality.records.record import Record
from tiers.catalog.load import load_catalog
from tiers.conversation import Turn
from tiers.errors import CatalogError

Progress = Callable[[str, float], None]
WARM_UP = 2


async def bench_stages(
    settings: Settings, *, tier: int, requests: int, prompt_tokens: int, new_tokens: int, progress: Progress
) -> StageTimes:
    """Answer `requests` prompts of exactly `prompt_tokens` tokens, one after the other, by tier number `tier`.

    Medians in milliseconds. Routing and the wire are not timed here: `wire_stages` does that. Raises `CatalogError`
    if the tier does not run in process, or gives an answer of fewer than two tokens.
    """
    answered: list[tuple[Stamps, Record]] = []

    def finished(answer: Answer, record: Record) -> None:
        answered.append((answer.stamps, record))

    async with _own_service(settings, finished) as service:
        asked = service.routing.served.tier(tier)
        if asked.tokenizer is None:
            raise CatalogError(f"catalogue '{settings.catalog}': tier {tier} does not run here")
        texts = prompts_of(asked.tokenizer, prompt_tokens)
        for number in range(-WARM_UP, requests):
            await (await service.start(_request(next(texts), tier, new_tokens))).whole()
            if number < 0:
                answered.clear()
            progress("answering", max(number + 1, 0) / requests)
    return _times(answered, asked.model, prompt_tokens)


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
    request = dry_request([Turn.of("user", text)], max_tokens=new_tokens, stream=True)
    sampling = msgspec.structs.replace(request.generation.sampling, ignore_eos=True)
    request = request.with_generation(sampling=sampling, arrival=time.monotonic())
    return msgspec.structs.replace(request, requested_model=f"tier-{tier}")


def _times(answered: list[tuple[Stamps, Record]], model: str, prompt_tokens: int) -> StageTimes:
    rows = []
    for stamps, record in answered:
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


class WireStages(msgspec.Struct, frozen=True, kw_only=True):
    """Medians in milliseconds: `route_ms` of a decision, `stream_ms` of a streamed answer between the client's sending
    and its end, without routing and without the tier's stages."""

    route_ms: float
    stream_ms: float


async def bench_wire(
    settings: Settings, key: str, *, tier: int, requests: int, prompt_tokens: int, new_tokens: int, progress: Progress
) -> WireStages:
    """Ask a server process of its own one request at a time: `auto` for the decision, then tier number `tier` for a
    streamed answer. Both parts of each answer's time are of the same answer: the client's, and the server's record.

    Raises `CatalogError` if the tier does not run in process.
    """
    texts = _texts(settings, tier, prompt_tokens)
    environment = {variable_of("api_keys"): f"bench={key}", variable_of("monitor"): "false"}
    timings = []
    async with running_server(settings, environment) as server:
        headers = {"authorization": f"Bearer {key}", "x-aio-cache": "off"}
        async with httpx.AsyncClient(base_url=server.url, timeout=120, headers=headers) as client:
            for number in range(-WARM_UP, requests):
                _, decided = await _asked(client, "auto", next(texts), 2)
                seconds, record = await _asked(client, f"tier-{tier}", next(texts), new_tokens)
                if number >= 0:
                    stages = ("route_ms", "queue_ms", "prefill_ms", "decode_ms")
                    timings.append((decided["route_ms"], seconds * 1e3 - sum(record[name] for name in stages)))
                progress("asking a server", max(number + 1, 0) / requests)
    route, stream = (round(float(ms), 4) for ms in np.median(timings, axis=0))
    return WireStages(route_ms=route, stream_ms=stream)


def _texts(settings: Settings, tier: int, tokens: int) -> Iterator[str]:
    catalog = load_catalog(settings.catalog)
    name = next((candidate.model for candidate in catalog.tiers if candidate.number == tier), None)
    path = next((spec.path for spec in catalog.core.models if spec.name == name), None)
    if path is None:
        raise CatalogError(f"catalogue '{settings.catalog}': tier {tier} does not run here")
    return prompts_of(load_tokenizer(resolve_model_path(path)), tokens)


async def _asked(client: httpx.AsyncClient, model: str, text: str, tokens: int) -> tuple[float, dict[str, Any]]:
    """Return the seconds of a streamed answer, and the timings of its record. Raises `httpx.HTTPError`."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }
    began = time.perf_counter()
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for _ in answer.aiter_bytes():
            pass
    seconds = time.perf_counter() - began
    record = await client.get(f"/v1/requests/{answer.headers['x-aio-decision-id']}")
    record.raise_for_status()
    return seconds, record.json()["timings"]


@click.command()
@click.option("--tier", type=click.IntRange(min=1), default=1, help="Number of the tier.")
@click.option("--requests", type=click.IntRange(min=1), default=30, help="Answers to time.")
@click.option("--prompt-tokens", type=click.IntRange(2, 4096), default=128)
@click.option("--new-tokens", type=click.IntRange(2, 4096), default=100, help="Length of an answer.")
@click.option("--out", type=NEW_FILE, help="File to write, as `sources` reads it.")
@setting_options("catalog", "data_dir", "cache_dir")
@json_option
def stages(
    tier: int, requests: int, prompt_tokens: int, new_tokens: int, out: Path | None, as_json: bool, **arguments: Any
) -> None:
    """Time the stages of answers that a tier of the catalogue gives one after the other, here and through a server.

    Example: python -m benchmarks stages --out docs/measurements/stages.json
    """

    started = datetime.now(UTC).isoformat(timespec="seconds")
    settings = settings_from(**arguments, monitor=False)
    asked = {"tier": tier, "requests": requests, "prompt_tokens": prompt_tokens, "new_tokens": new_tokens}
    with staged_progress("loading") as show, tempfile.TemporaryDirectory(prefix="aio-bench-") as folder:
        times = asyncio.run(bench_stages(settings, **asked, progress=show))
        alone = msgspec.structs.replace(settings, data_dir=folder)
        wire = asyncio.run(bench_wire(alone, secrets.token_urlsafe(24), **asked, progress=show))
    times = msgspec.structs.replace(
        times, route_ms=wire.route_ms, stream_ms=wire.stream_ms, started=started, machine=describe_machine()
    )
    if out is not None:
        out.write_bytes(msgspec.json.format(msgspec.json.encode(times), indent=1) + b"\n")
    echo_answer(as_json, times, _text(times))


def _text(times: "StageTimes") -> str:
    rows = [
        ["queue", f"{times.queue_ms:.3f}"],
        ["planning", f"{times.planning_ms:.3f}"],
        ["prompt", f"{times.prefill_ms:.3f}"],
        ["of which KV blocks", f"{times.kv_ms:.3f}"],
        ["each further token", f"{times.token_ms:.3f}"],
        ["routing", f"{times.route_ms:.3f}"],
        ["stream", f"{times.stream_ms:.3f}"],
    ]
    of = f"{times.requests} answers of {times.model} to {times.prompt_tokens} tokens, one at a time"
    return f"{of}\n\n{table(['stage', 'p50 (ms)'], rows)}"
