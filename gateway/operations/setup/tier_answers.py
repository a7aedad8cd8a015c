"""Asks every tier of a catalogue one question, as `aio serve` would, and says what to do where none is answered."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from difflib import get_close_matches

import msgspec

from gateway.base.settings import Settings
from gateway.runtime.cores.core_clients import core_clients
from gateway.runtime.cores.next_core import require_machine
from inference_core.errors import CoreError, MemoryPlanError, ModelFileError
from inference_core.protocol import SamplingParams
from inference_core.transport.client import CoreClient
from tiers.build import build_targets, build_tiers
from tiers.catalog.catalog import Catalog, TargetSpec
from tiers.catalog.pricing import request_cost_usd
from tiers.catalog.tier_spec import TierSpec
from tiers.conversation import Turn
from tiers.errors import CatalogError, TierError, TierUnavailableError
from tiers.remote.remote_tier import RemoteTier
from tiers.tier import GenerationRequest, Tier, Usage

QUESTION = "What is the capital of Japan? Answer with one word."
MAX_TOKENS = 32
NOT_ASKED = "not asked: it answers with its callers' own credentials"
PATIENCE_SECONDS = 60.0
MOST_NAMED = 8


class TierAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What one tier made of the question."""

    tier: int
    name: str
    model: str
    usd_per_1000: float
    """Cost of 1,000 requests like the catalogue's reference request, by the tier's price, which may be an estimate."""
    price_estimated: str
    problem: str = ""
    """Why it did not answer and what to do; "" if it did."""
    ttft_seconds: float | None = None
    tokens_per_second: float | None = None
    answer: str = ""
    target: bool = False
    """Whether it is one of the catalogue's targets, which counts as that `tier`."""


async def ask_tiers(catalog: Catalog, settings: Settings) -> list[TierAnswer]:
    """Return every tier's answer, tier 1 first, then the targets'; all are asked at once, once models are loaded."""
    async with _started_cores(catalog, settings) as (cores, problems):
        tiers = [*build_tiers(catalog, cores), *build_targets(catalog)]
        try:
            return list(
                await asyncio.gather(
                    *(
                        _asked(catalog, spec, tier, problems.get(tier.core_name or ""))
                        for spec, tier in zip((*catalog.tiers, *catalog.targets), tiers, strict=True)
                    )
                )
            )
        finally:
            await asyncio.gather(*(tier.close() for tier in tiers))


@asynccontextmanager
async def _started_cores(
    catalog: Catalog, settings: Settings
) -> AsyncIterator[tuple[dict[str, CoreClient], dict[str, str]]]:
    """Load the in-process models, one core after another; yields the cores and, by core, why one is not there."""
    cores, problems = core_clients(catalog, settings), dict[str, str]()
    try:
        for name, core in cores.items():
            try:
                await require_machine(catalog, settings, [name])
                await core.start()
            except (CatalogError, CoreError, ModelFileError, MemoryPlanError) as error:
                problems[name] = str(error)
        yield cores, problems
    finally:
        for core in cores.values():
            await core.close()


async def _asked(catalog: Catalog, spec: TierSpec, tier: Tier, problem: str | None) -> TierAnswer:
    answer = TierAnswer(
        tier=spec.number,
        name=spec.name,
        model=spec.served_name,
        usd_per_1000=1000 * request_cost_usd(spec.price, catalog.reference_prompt_tokens, spec.expected_answer_tokens),
        price_estimated=spec.price.estimated,
        target=tier.is_target,
    )
    if problem is not None:
        return msgspec.structs.replace(answer, problem=f"tier '{spec.name}': {problem}")
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await tier.start()
            if tier.asks_credential or _answers_nothing(catalog, spec):
                said = NOT_ASKED if tier.asks_credential else f"not asked: it serves {', '.join(spec.serves)} alone"
                return msgspec.structs.replace(answer, model=_shown(spec, tier), answer=said)
            return await _answer(spec, tier, msgspec.structs.replace(answer, model=_shown(spec, tier)))
    except TimeoutError:
        problem = (
            f"tier '{spec.name}' ({spec.url}) did not answer within {PATIENCE_SECONDS:g} s: is it overloaded, or still "
            "loading the model?"
        )
    except TierError as error:
        problem = error.for_operators + await _models_there(spec, tier, error)
    return msgspec.structs.replace(answer, problem=problem, model=_shown(spec, tier))


def _answers_nothing(catalog: Catalog, spec: TierSpec) -> bool:
    """Whether it is there for endpoints that are passed through alone."""
    if not (isinstance(spec, TargetSpec) and spec.serves):
        return False
    from tiers.catalog.rule_check import answers_chats

    return not answers_chats(catalog, spec)


def _shown(spec: TierSpec, tier: Tier) -> str:
    """The model that the tier has found, with the adapter that it binds."""
    return spec.served_name if spec.adapter else tier.model


async def _answer(spec: TierSpec, tier: Tier, answer: TierAnswer) -> TierAnswer:
    request = GenerationRequest(
        request_id=f"check-{spec.number}",
        sampling=SamplingParams(**spec.sampling.given()),
        messages=[Turn.of("user", QUESTION)],
        max_tokens=spec.stated_limit(MAX_TOKENS),
    )
    began, first, text, usage = time.perf_counter(), None, "", Usage()
    async with aclosing(tier.generate(request)) as deltas:  # type: ignore[type-var]
        async for delta in deltas:
            if first is None and (delta.text or delta.reasoning):
                first = time.perf_counter()
            text += delta.text
            if delta.end is not None:
                usage = delta.end.usage
    ended = time.perf_counter()
    later = usage.completion_tokens - 1
    return msgspec.structs.replace(
        answer,
        ttft_seconds=(first or ended) - began,
        tokens_per_second=later / (ended - first) if first is not None and later > 0 and ended > first else None,
        answer=text.strip(),
    )


async def _models_there(spec: TierSpec, tier: Tier, error: TierError) -> str:
    """Return the server's models, if it answers but may lack the one that the catalogue names."""
    if spec.remote is None or not spec.remote.model or not isinstance(tier, RemoteTier):
        return ""
    if not isinstance(error, TierUnavailableError):
        return ""
    try:
        listed = await tier.listed_models()
    except TierError:
        return ""
    names = [model.name for model in listed or []]
    if not names or tier.model in names:
        return ""
    return f"; {_listing(tier.model, names)}"


def _listing(wanted: str, names: Sequence[str]) -> str:
    close = get_close_matches(wanted, names, n=1)
    meant = f'did you mean "{close[0]}"? ' if close else ""
    more = ", …" if len(names) > MOST_NAMED else ""
    return f"{meant}its models: {', '.join(names[:MOST_NAMED])}{more}"
