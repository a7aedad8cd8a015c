"""Fixtures of the loop's tests: records as the gateway writes them, a tier that answers from a table, prices."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.decision import Decision, PolicyInputs, Prediction
from inference_core.protocol import StepTimes
from quality.records.record import Attempt, Record, Timings
from quality.store.queries import insert_records
from tiers.catalog.tier_spec import Capability
from tiers.errors import TierUnavailableError
from tiers.tier import AnswerEnd, Delta, GenerationRequest, Tier, TierLoad, Usage

PROMPT = "What is 3 + 4? Answer with the number only."


def price(tier: int, usage: Usage) -> float:
    """A dollar per thousand tokens times the tier's number, in any direction."""
    return tier * (usage.prompt_tokens + usage.completion_tokens) / 1000


@dataclass
class ScriptedTerms:
    """Terms of scripted tiers."""

    price: Callable[[int, Usage], float] = price
    fingerprints: Sequence[str] = ()
    can: bool = True

    def price_usd(self, tier: int, usage: Usage) -> float:
        return self.price(tier, usage)

    def samples(self, tier: int) -> int:
        return 1

    def supports(self, tier: int, needs: frozenset[Capability]) -> bool:
        return self.can or not needs


def record(request_id: str, *, tier: int = 1, prompt: str = PROMPT, answer: str = "7", **changes: Any) -> Record:
    prediction = Prediction(p_ok=[0.7, 0.8, 0.9, 1.0], kind="measured", novelty=0.1, classifier_version="v1")
    inputs = PolicyInputs(prediction=prediction, costs=[1.0, 2.0, 3.0, 4.0], quality_target=0.9, tau=0.9)
    made = Record(
        request_id=request_id,
        created_at=1000.0,
        api="chat",
        requested_model="auto",
        key_id="alice",
        stream=False,
        status="ok",
        http_status=200,
        error=None,
        decision=Decision(tier=tier, reason="cheapest", scores=[0.3, 0.4, 0.5, 0.6], inputs=inputs),
        tier=tier,
        model=f"model-{tier}",
        attempts=[Attempt(tier=tier, model=f"model-{tier}", status="ok", cost_usd=1.0)],
        messages=[{"role": "user", "content": prompt}],
        answer=answer,
        reasoning=None,
        finish_reason="stop",
        prompt_tokens=10,
        completion_tokens=2,
        cached_tokens=0,
        reasoning_tokens=0,
        cost_usd=1.0,
        baseline_cost_usd=2.0,
        timings=Timings(route_ms=0.5, ttft_ms=10.0, e2e_ms=20.0, overhead_ms=1.0),
    )
    return msgspec.structs.replace(made, **changes)


async def store_request(engine: AsyncEngine, stored: Record) -> None:
    """Store a request as the ledger does."""
    async with engine.begin() as connection:
        await insert_records(connection, [stored])


async def rows(engine: AsyncEngine, table: Any) -> list[dict[str, Any]]:
    async with engine.connect() as connection:
        return [dict(row) for row in (await connection.execute(select(table))).mappings()]


class ScriptedTier(Tier):
    """Answers with `reply(request)`; first raises the errors in `faults`, one per call."""

    def __init__(
        self,
        number: int = 4,
        reply: Callable[[GenerationRequest], str] = lambda request: "7",
        faults: Sequence[Exception | None] = (),
        finish_reason: str = "stop",
    ) -> None:
        self.name = f"tier-{number}"
        self.number = number
        self.model = f"model-{number}"
        self.max_context = 2048
        self.waiting, self.waited = 0, 0.0
        self.seen: list[GenerationRequest] = []
        self.entered = asyncio.Event()
        self.hold: asyncio.Event | None = None
        self._reply = reply
        self._faults = list(faults)
        self._finish_reason: Any = finish_reason

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        self.seen.append(request)
        self.entered.set()
        if self.hold is not None:
            await self.hold.wait()
        fault = self._faults.pop(0) if self._faults else None
        if fault is not None:
            raise fault
        text = self._reply(request)
        yield Delta(text=text)
        yield Delta(finish_reason=self._finish_reason)
        usage = Usage(prompt_tokens=self.count_prompt_tokens(request), completion_tokens=5)
        yield Delta(end=AnswerEnd(usage=usage, times=StepTimes(queue_seconds=self.waited)))

    def count_prompt_tokens(self, request: GenerationRequest) -> int:
        return sum(len(message.text.split()) for message in request.messages or [])

    def load(self) -> TierLoad:
        return TierLoad(waiting=self.waiting)


def unavailable() -> Exception:
    return TierUnavailableError("the core is gone")


def ladder(strongest: ScriptedTier) -> list[Tier]:
    return [ScriptedTier(1), ScriptedTier(2), ScriptedTier(3), strongest]
