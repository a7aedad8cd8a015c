"""The stages of an answer that need a server: the routing decision, and the stream's way to the client (SPEC TB-04)."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec
import numpy as np

from benchmarks.gateway.stages import prompts_of
from gateway.base.configuration import variable_of
from gateway.base.settings import Settings
from gateway.processes.server_process import running_server
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.tokenization.load_tokenizer import load_tokenizer
from tiers.catalog.load import load_catalog
from tiers.errors import CatalogError

Progress = Callable[[str, float], None]
WARM_UP = 2


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
    found = []
    async with running_server(settings, environment) as server:
        headers = {"authorization": f"Bearer {key}", "x-aio-cache": "off"}
        async with httpx.AsyncClient(base_url=server.url, timeout=120, headers=headers) as client:
            for number in range(-WARM_UP, requests):
                _, decided = await _asked(client, "auto", next(texts), 2)
                seconds, record = await _asked(client, f"tier-{tier}", next(texts), new_tokens)
                if number >= 0:
                    stages = ("route_ms", "queue_ms", "prefill_ms", "decode_ms")
                    found.append((decided["route_ms"], seconds * 1e3 - sum(record[name] for name in stages)))
                progress("asking a server", max(number + 1, 0) / requests)
    route, stream = (round(float(ms), 4) for ms in np.median(found, axis=0))
    return WireStages(route_ms=route, stream_ms=stream)


def _texts(settings: Settings, tier: int, tokens: int) -> Iterator[str]:
    catalog = load_catalog(settings.catalog)
    name = next((one.model for one in catalog.tiers if one.number == tier), None)
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
