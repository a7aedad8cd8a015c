"""What share of prompt tokens a gateway has in its cache when voice bots talk (SPEC KV-05, source 001).

Every call has the same system prompt and sends all that was said before with each turn, as chat clients do. A real
gateway with a model answers over HTTP, so templates, tokens, blocks and evictions are the product's own.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec

from benchmarks.report.measurement import Measurement
from gateway.base.configuration import variable_of
from gateway.base.settings import Settings
from gateway.planning.load_test.workload import Prompts
from gateway.processes.server_process import running_server
from inference_core.quantization.calibration import prose

TIER = 1
ARITHMETIC = ("fast", "exact")


class VoiceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`calls` at a time, each of `turns`; lengths in words, answers of at most `answer_tokens`. The defaults give the
    source's 1,900 to 2,000 tokens in, on average over the turns, and its 200 out."""

    calls: int = 8
    turns: int = 4
    system_words: int = 1250
    user_words: int = 30
    answer_tokens: int = 200
    seed: int = 7


class PrefixHits(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of prompt tokens that were cached under one `prefill_arithmetic`: of all, of first turns, of later ones;
    mean tokens of a request. Where prompts are computed `fast`, what a model said earlier is computed again."""

    arithmetic: str
    requests: int
    prompt_tokens: float
    answer_tokens: float
    share: float
    first_turns: float
    later_turns: float


class PrefixResults(msgspec.Struct, frozen=True, kw_only=True):
    """In the order of `ARITHMETIC`."""

    hits: list[PrefixHits]


class Caller:
    """Sends the next turn of a conversation to the first tier of a gateway, and sets how it computes prompts."""

    def __init__(self, client: httpx.AsyncClient, admin_key: str) -> None:
        self._client = client
        self._admin = {"authorization": f"Bearer {admin_key}"}

    async def compute_prompts(self, arithmetic: str) -> None:
        """Set the knob `prefill_arithmetic`; blocks of the other arithmetic are not hit. Raises `httpx.HTTPError`."""
        change = {"prefill_arithmetic": arithmetic}
        (await self._client.patch("/v1/admin/knobs", json=change, headers=self._admin)).raise_for_status()

    async def next_answer(self, messages: list[dict[str, str]], most_tokens: int) -> tuple[str, dict[str, Any]]:
        """Return the text and the usage of an answer. Raises `httpx.HTTPError`."""
        body = {"model": f"tier-{TIER}", "messages": messages, "max_tokens": most_tokens, "temperature": 0}
        answer = await self._client.post("/v1/chat/completions", json=body)
        answer.raise_for_status()
        found = answer.json()
        return found["choices"][0]["message"]["content"], found["usage"]


@asynccontextmanager
async def talking_gateway(settings: Settings, key: str, admin_key: str) -> AsyncIterator[Caller]:
    """Start a gateway process of its own with the catalogue of `settings`; stop it at the end."""
    environment = {
        variable_of("api_keys"): f"bench={key}",
        variable_of("admin_keys"): f"bench={admin_key}",
        variable_of("monitor"): "false",
    }
    async with running_server(settings, environment) as server:
        headers = {"authorization": f"Bearer {key}", "x-aio-cache": "off"}
        async with httpx.AsyncClient(base_url=server.url, timeout=600, headers=headers) as client:
            yield Caller(client, admin_key)


async def measure_hits(caller: Caller, options: VoiceOptions, measurement: Measurement) -> PrefixResults:
    """Hold all calls at a time under each arithmetic that `measurement` lacks, a row per turn, and finish it.

    Raises `httpx.HTTPError`.
    """
    for arithmetic in ARITHMETIC:
        if measurement.find(arithmetic=arithmetic) is None:
            await caller.compute_prompts(arithmetic)
            calls = await asyncio.gather(*(_held(caller, options, call) for call in range(options.calls)))
            for row in (row for rows in calls for row in rows):
                measurement.add({"arithmetic": arithmetic} | row)
    results = PrefixResults(hits=[_hits(arithmetic, measurement.rows) for arithmetic in ARITHMETIC])
    measurement.finish(msgspec.to_builtins(results))
    return results


async def _held(caller: Caller, options: VoiceOptions, call: int) -> list[dict[str, Any]]:
    """Hold one call; return a row for each of its turns."""
    system = " ".join(prose().split()[: options.system_words])
    said, rows = [{"role": "system", "content": system}], []
    prompts = Prompts(options.seed + call, 0)
    for turn in range(1, options.turns + 1):
        said.append({"role": "user", "content": f"{prompts.draw(options.user_words)}?"})
        text, usage = await caller.next_answer(said, options.answer_tokens)
        said.append({"role": "assistant", "content": text})
        row = {"call": call, "turn": turn, "prompt_tokens": usage["prompt_tokens"]}
        row |= {"cached_tokens": usage["prompt_tokens_details"]["cached_tokens"]}
        rows.append(row | {"answer_tokens": usage["completion_tokens"]})
    return rows


def _hits(arithmetic: str, rows: list[dict[str, Any]]) -> PrefixHits:
    chosen = [row for row in rows if row["arithmetic"] == arithmetic]
    return PrefixHits(
        arithmetic=arithmetic,
        requests=len(chosen),
        prompt_tokens=sum(row["prompt_tokens"] for row in chosen) / len(chosen),
        answer_tokens=sum(row["answer_tokens"] for row in chosen) / len(chosen),
        share=_cached(chosen),
        first_turns=_cached([row for row in chosen if row["turn"] == 1]),
        later_turns=_cached([row for row in chosen if row["turn"] > 1]),
    )


def _cached(rows: list[dict[str, Any]]) -> float:
    cached, prompts = (sum(int(row[name]) for row in rows) for name in ("cached_tokens", "prompt_tokens"))
    return cached / max(1, prompts)
