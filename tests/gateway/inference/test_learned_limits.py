"""How long answers of tiers are, and the limit that follows."""

from typing import Any

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.inference_request import InferenceRequest
from gateway.inference.answer_limits import IGNORED_SECONDS, AnswerLengths
from gateway.inference.routing_knobs import RoutingKnobs
from gateway.inference.served_catalogue import ServedCatalogue
from quality.records.record import Attempt, Record
from quality.store.queries import insert_records
from tests.gateway.chats import chat
from tests.quality.store.records import make_record
from tests.support.clock import Clock
from tests.support.scripted_tier import ScriptedTier
from tiers.catalog.catalog import Catalog
from tiers.catalog.load import load_catalog
from tiers.catalog.tier_spec import RemoteSpec
from tiers.tier import Usage

KNOBS = RoutingKnobs()


def served(**first: Any) -> ServedCatalogue:
    """Two servers elsewhere; `first`: fields of the first."""
    specs = [
        msgspec.structs.replace(
            spec, name=name, model=None, remote=RemoteSpec(base_url="http://127.0.0.1:9/v1", model=model),
            max_tokens=0, default_max_tokens=None, effort=None,
        )
        for spec, name, model in zip(
            load_catalog("laptop").tiers, ("plain", "thinker"), ("gpt-4o", "openai/gpt-5-mini"), strict=False
        )
    ]  # fmt: skip
    catalog: Catalog = msgspec.structs.replace(
        load_catalog("laptop"), tiers=[msgspec.structs.replace(specs[0], **first), specs[1]], targets=[]
    )
    return ServedCatalogue(catalog, {1: ScriptedTier(1), 2: ScriptedTier(2)})


def answered(tokens: int, finish: str = "stop", tier: int = 1, **fields: Any) -> Record:
    attempt = {"tier": tier, "model": "m", "status": "ok", "cost_usd": 0.0, "completion_tokens": tokens}
    known = {name: fields.pop(name) for name in Attempt.__struct_fields__ if name in fields and name != "model"}
    return make_record(attempts=[Attempt(**attempt | known)], finish_reason=finish, tier=tier, **fields)


def limits(lengths: AnswerLengths, here: ServedCatalogue, request: InferenceRequest | None = None) -> dict[str, int]:
    found = lengths.limits(request or chat(), here, KNOBS)
    assert found is not None
    return dict(found.tokens)


def learned(here: ServedCatalogue, *tokens: int, request: InferenceRequest | None = None) -> AnswerLengths:
    lengths = AnswerLengths()
    for one in tokens:
        lengths.observe(request or chat(), answered(one), here)
    return lengths


def test_before_there_are_answers_a_thinking_model_starts_with_four_times_the_limit() -> None:
    assert limits(AnswerLengths(), served()) == {"plain": 4096, "thinker": 16_384}
    assert limits(AnswerLengths(), served(), chat(reasoning_effort="high"))["plain"] == 16_384
    assert limits(AnswerLengths(), served(), chat(reasoning_effort="none"))["thinker"] == 4096


@pytest.mark.parametrize(
    ("tokens", "limit"),
    [
        ([10] * 99, 4096),
        ([10] * 100, 1024),
        ([10] * 98 + [8000], 10_048),
        ([2000] * 99 + [90_000], 2560),
        ([2000] * 98 + [90_000] * 2, 112_512),
        ([90_000] * 10 + [2000] * 1000, 2560),
    ],
)
def test_a_limit_is_a_quarter_above_what_99_in_100_answers_do_not_exceed(tokens: list[int], limit: int) -> None:
    here = served()
    assert limits(learned(here, *tokens), here)["plain"] == limit


def test_each_effort_has_a_limit_of_its_own() -> None:
    here = served()
    lengths = learned(here, *[50_000] * 100, request=chat(reasoning_effort="high"))
    assert limits(lengths, here)["plain"] == 4096
    assert limits(lengths, here, chat(reasoning_effort="high"))["plain"] == 62_528


def test_what_the_answers_of_several_choices_have_is_divided_among_them() -> None:
    here = served()
    lengths = learned(here, *[12_000] * 100, request=chat(n=2, best_of=4))
    assert limits(lengths, here)["plain"] == 3776


@pytest.mark.parametrize(
    ("request_", "record", "counts"),
    [
        (chat(), answered(9000, "length"), True),
        (chat(max_tokens=9000), answered(9000, "length"), False),
        (chat(max_tokens=20_000), answered(18_000), True),
        (chat(), answered(18_000, cache="hit"), False),
        (chat(), answered(18_000, status="error"), False),
        (chat(), answered(18_000, continued_at=5), False),
    ],
)
def test_an_answer_that_our_limit_has_cut_counts_as_twice_as_long(
    request_: InferenceRequest, record: Record, counts: bool
) -> None:
    here, lengths = served(), AnswerLengths()
    lengths.observe(request_, record, here)
    assert limits(lengths, here)["plain"] == (22_528 if counts else 4096)


def test_a_limit_leaves_room_beyond_the_thoughts_that_are_asked_for() -> None:
    assert limits(AnswerLengths(), served(), chat(reasoning_budget=10_000))["plain"] == 11_024


def test_the_catalogues_usual_limit_and_the_callers_own_come_first() -> None:
    here = served(default_max_tokens=300)
    assert "plain" not in limits(AnswerLengths(), here)
    assert limits(AnswerLengths(), here, chat(max_tokens=5)) == {}
    assert AnswerLengths().limits(chat(), here, RoutingKnobs(budget_limit="whole")) is None


@pytest.mark.parametrize(("claimed", "ignores"), [(1132, False), (1133, True)])
def test_a_server_that_answers_beyond_its_limit_is_not_limited_for_an_hour(claimed: int, ignores: bool) -> None:
    here, clock = served(), Clock()
    lengths = AnswerLengths(clock)
    lengths.observe(
        chat(max_tokens=1000), answered(1000, max_tokens=1000, claimed=Usage(completion_tokens=claimed)), here
    )
    found = lengths.limits(chat(), here, KNOBS)
    assert found is not None
    assert (found.unlimited, "plain" in found.tokens) == ({"plain"} if ignores else set(), not ignores)
    clock.now += IGNORED_SECONDS
    assert "plain" in limits(lengths, here)


async def test_stored_answers_are_known_after_a_restart(any_engine: AsyncEngine) -> None:
    here = served()
    stored = [
        make_record(
            request_id=f"r{n}", tier=1, model=model, completion_tokens=tokens, finish_reason=finish, cache=cache
        )
        for n, (model, tokens, finish, cache) in enumerate(
            [("gpt-4o", 8000, "stop", None)] * 99
            + [("gpt-4o", 4000, "tool_calls", "miss")]
            + [("gpt-4o", 50_000, "length", None), ("gpt-4o", 50_000, "stop", "hit"), ("gone", 50_000, "stop", None)]
        )
    ]
    async with any_engine.begin() as connection:
        await insert_records(connection, stored)
    lengths = learned(here, 12_000)
    await lengths.restore(any_engine, here)
    assert limits(lengths, here)["plain"] == 10_048
    known = learned(here, *[2000] * 101)
    await known.restore(any_engine, here)
    assert limits(known, here)["plain"] == 2560, "more is known here"
