"""Callers who make the quality loop spend the operator's money: what verification of their answers costs, and whether
honest callers still get labels."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_core.protocol import StepTimes
from quality.judges.calibration import Calibration
from quality.judges.pairwise import PairwiseJudge
from quality.judges.panel import Panel
from quality.judges.rules import ExactJudge
from quality.monitor.answer_monitor import AnswerMonitor
from quality.monitor.worker import MonitorSettings
from quality.records.record import Record
from quality.store.database import migrate, open_database
from quality.verification.sampling import sampling_of
from tests.attacks.targets import Target
from tests.hostile.target import Outcome, attack_class
from tests.quality.loop_world import ScriptedTerms, ScriptedTier, record
from tiers.deltas import Delta
from tiers.tier import AnswerEnd, GenerationRequest, Usage

# US dollars per million tokens, read and written, of four tiers.
PRICES = ((0.1, 0.3), (0.3, 0.9), (1.0, 3.0), (5.0, 25.0))
BUDGET_SHARE, SAVING_SHARE, COLD_START_USD, MOST_USD = 0.05, 0.2, 1.0, 20.0
# What AIO_COLD_START_USD of a dollar leaves to the start of a team or a key.
START_USD = 0.25
_DAY, _SECONDS = 86_400.0, 30.0
# Of a hostile tenant, over three days. Of fewer the small key may have no label by chance.
_LEAST_REQUESTS = 126
_NUMBER = "How many are {} + {}? Answer with the number only."


def usd(tier: int, usage: Usage) -> float:
    """What a tier bills."""
    read, written = PRICES[tier - 1]
    return (read * usage.prompt_tokens + written * usage.completion_tokens) / 1e6


class Traffic(NamedTuple):
    """What a tenant asks: the form of its prompts, the words in front of them, how many tokens the served answer and
    the strongest tier's have, what the strongest tier answers, and the tokens that servers count of a word."""

    name: str
    prompt: str
    words: int = 0
    served_tokens: int = 3
    reference_tokens: int = 3
    reference: str = "7"
    tokens_of_word: int = 1


HONEST = Traffic("honest", _NUMBER)
HOSTILE = (
    Traffic("long cheap prompts with tiny answers", _NUMBER, words=6000),
    Traffic("prompts over which the strongest tier thinks long", _NUMBER, reference_tokens=1000),
    Traffic("long prompts over which the strongest tier thinks too long", _NUMBER, words=3000, reference_tokens=9999),
    Traffic("numbers that the strongest tier does not give", _NUMBER, reference="It is hard to say."),
    Traffic("questions about which the judge says nothing", "Tell me of {} and {}.", reference="It is hard to say."),
    Traffic("prompts of more tokens than are expected", _NUMBER, words=1000, tokens_of_word=4),
    Traffic("answers that differ, so that others are asked again", _NUMBER, reference="8"),
)


class HostileTier(ScriptedTier):
    """A tier that answers and bills as the traffic in its prompt says."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.max_context = 32_768

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        self.seen.append(request)
        asked = next(one for one in (*HOSTILE, HONEST) if f"<{one.name}>" in str(request.messages))
        is_judge = request.request_id.startswith("judge-")
        strongest = self.number == len(PRICES)
        yield Delta(text="no verdict" if is_judge else asked.reference if strongest else "7")
        tokens, most = asked.reference_tokens if strongest else asked.served_tokens, request.max_tokens or 1
        yield Delta(finish_reason="stop" if tokens < most else "length")
        prompt_tokens = self.count_prompt_tokens(request) * asked.tokens_of_word
        usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=min(tokens, most))
        yield Delta(end=AnswerEnd(usage=usage, times=StepTimes()))


@attack_class("money of verification", 900, "open")
def money(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Keys and teams whose traffic is made dear to verify, next to a rich and a small honest key, over three days,
    two replicas and a restart a day: no tenant's verification costs more than its own shares and one start, all cost no
    more than the settings say, and the honest keys get labels."""
    worlds = min(len(HOSTILE), max(count // _LEAST_REQUESTS, 1))
    for world in range(worlds):
        requests = max(count // worlds, _LEAST_REQUESTS)
        yield from asyncio.run(_play(Random(f"{draw.random()} {world}"), requests, world))


async def _play(draw: Random, count: int, world: int) -> list[Outcome]:
    from migrations.tables.tenancy import api_keys, teams

    found, now = list[Outcome](), 0.0
    traffic = HOSTILE[world % len(HOSTILE)]
    # Alternately a lone key, and the ten keys of a team.
    keys = ["mallory"] if draw.random() < 0.5 else [f"mallory-{number}" for number in range(10)]
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'aio.sqlite3'}"
        await migrate(url)
        engine = open_database(url)
        async with engine.begin() as connection:
            await connection.execute(insert(teams).values(team_id="gang", name="gang", created_at=0.0))
            for key_id in keys if len(keys) > 1 else ():
                await connection.execute(
                    insert(api_keys).values(
                        key_id=key_id, name=key_id, team_id="gang", prefix=key_id, digest=key_id, scopes=["inference"],
                        consent=True, priority_ceiling=0, created_at=0.0,
                    )
                )  # fmt: skip
        tenants = {"the hostile tenant": keys, "rich": ["rich"], "small": ["small"]}
        overspent = dict.fromkeys(tenants, 0.0)

        def clock() -> float:
            return now

        for day in range(3):
            monitors = [_monitor(engine, clock) for _ in range(2)]
            for monitor in monitors:
                await monitor.start()
            for number in range(count // 3):
                now = day * 2 * _DAY + number * _SECONDS
                name = f"{world}-{day}-{number}"
                asked = _asked(draw, traffic, draw.choice(keys), f"{name}-m", now)
                # What the rich key saves is a hundred times what anybody else does.
                rich = _asked(draw, HONEST, "rich", f"{name}-r", now, times=100.0)
                await _served(engine, draw.choice(monitors), asked, rich)
                if number % 2 == 0:
                    await _served(engine, draw.choice(monitors), _asked(draw, HONEST, "small", f"{name}-s", now, 20.0))
                if number % 10 == 9:
                    for monitor in monitors:
                        await monitor.drain()
                found.append(Outcome(f"{traffic.name} #{name}", 200))
            for monitor in monitors:
                await monitor.drain()
                await monitor.close()
            for tenant, theirs in tenants.items():
                spent, own = await _account(engine, day, theirs)
                overspent[tenant] += max(spent - own, 0.0)
                if overspent[tenant] > START_USD + 1e-9:
                    bypass = (
                        f"{tenant} of ${own:.3f} a day cost ${spent:.3f} on day {day}, ${overspent[tenant]:.3f} over"
                    )
                    found.append(Outcome(f"{traffic.name}, money of {tenant}", 200, bypass=bypass))
            spent, own = await _account(engine, day, None)
            if spent > min(own + COLD_START_USD, MOST_USD) + 1e-9:
                found.append(Outcome(f"{traffic.name}, all money", 200, bypass=f"${spent:.3f} of ${own:.3f}"))
        for tenant in ("rich", "small"):
            if not (labels := await _labels(engine, tenant)):
                found.append(Outcome(f"{traffic.name}, labels of {tenant}", 200, bypass=f"{labels} labels"))
        await engine.dispose()
    return found


def _monitor(engine: AsyncEngine, clock: Any) -> AnswerMonitor:
    tiers = [HostileTier(number) for number in range(1, len(PRICES) + 1)]
    sampling = sampling_of(len(PRICES), 0.05, BUDGET_SHARE, COLD_START_USD, MOST_USD)
    trusted = {
        name: Calibration(judge=name, pairs="generated", true_no_worse=100, false_worse=0, true_worse=100,
                          false_no_worse=0, abstained=0)
        for name in ("exact", "pairwise")
    }  # fmt: skip
    panel = Panel([ExactJudge(), PairwiseJudge(tiers[-1])], trusted)
    return AnswerMonitor(
        engine,
        tiers,
        MonitorSettings(sampling=sampling, retry_seconds=0.0),
        terms=ScriptedTerms(usd),
        panel=panel,
        clock=clock,
    )


def _asked(draw: Random, of: Traffic, key_id: str, request_id: str, now: float, times: float = 1.0) -> Record:
    """A request as it is recorded, answered by the cheapest tier; it costs and saves so many `times` its prices."""
    prompt = f"<{of.name}> " + "word " * of.words + of.prompt.format(draw.randrange(100), draw.randrange(100))
    usage = Usage(prompt_tokens=len(prompt.split()) * of.tokens_of_word, completion_tokens=of.served_tokens)
    return record(
        request_id, tier=1, prompt=prompt, answer="7", key_id=key_id, created_at=now, cost_usd=times * usd(1, usage),
        baseline_cost_usd=times * usd(len(PRICES), usage), prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
    )  # fmt: skip


async def _served(engine: AsyncEngine, monitor: AnswerMonitor, *asked: Record) -> None:
    from tests.quality.loop_world import store_request

    for one in asked:
        await store_request(engine, one)
        monitor.offer(one)


async def _account(engine: AsyncEngine, day: int, keys: Sequence[str] | None) -> tuple[float, float]:
    """What verification of a day's requests cost, and what its shares of cost and saving come to."""
    from migrations.tables.quality import verifications
    from migrations.tables.requests import requests

    def mine(row: Any) -> bool:
        return int(row.created_at // (2 * _DAY)) == day and (keys is None or row.key_id in keys)

    paid = select(verifications.c.key_id, verifications.c.created_at, verifications.c.cost_usd)
    asked = select(requests.c.key_id, requests.c.created_at, requests.c.cost_usd, requests.c.baseline_cost_usd)
    async with engine.connect() as connection:
        spent = sum(row.cost_usd for row in await connection.execute(paid) if mine(row))
        served = [row for row in await connection.execute(asked) if mine(row)]
    cost = sum(row.cost_usd for row in served)
    saved = sum(row.baseline_cost_usd - row.cost_usd for row in served)
    return spent, max(BUDGET_SHARE * cost, SAVING_SHARE * saved)


async def _labels(engine: AsyncEngine, key_id: str) -> int:
    from migrations.tables.quality import verifications

    of = select(verifications.c.verification_id).where(
        verifications.c.key_id == key_id, verifications.c.label.is_not(None)
    )
    async with engine.connect() as connection:
        return len((await connection.execute(of)).all())
