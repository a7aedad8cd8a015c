"""What one tenant's verified prompts do to the decisions about another's: at most one in six changes."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.decision import Decision
from classifier.policy.decide import decide
from gateway.base.inference_request import Caller, InferenceRequest
from gateway.base.settings import Settings
from gateway.inference.classifier_versions import ActiveClassifier
from gateway.inference.router import RoutingService
from gateway.planning.backtests.backtest import dry_routing, follow_labels
from migrations.tables.quality import training_rows
from migrations.tables.tenancy import api_keys, teams
from quality.verification.training_rows import encode_prompt
from tests.gateway.chats import chat
from tests.support.upstream import write_remote_catalog
from tiers.conversation import Turn

HOSTILE = 720
"""Prompts that tier 1 gets wrong and the strongest does not."""
PLACES = ("France", "Peru", "Norway", "Kenya", "Japan", "Chile", "Italy", "Ghana", "Nepal", "Cuba")
ASKED = 480
VICTIM = Caller(key_id="victim")


def prompt(number: int) -> str:
    return f"What is the capital of {PLACES[number % len(PLACES)]}?"


@pytest.fixture
def routing(tmp_path: Path) -> RoutingService:
    catalog = write_remote_catalog(tmp_path / "catalog.toml", "http://127.0.0.1:9", own_models=True)
    return dry_routing(Settings(data_dir=str(tmp_path), catalog=str(catalog)))


async def teach(engine: AsyncEngine, routing: RoutingService, key: str, count: int, *, good: bool = False) -> None:
    """Store `count` verified prompts of `key`, at which tier 1 was as good as the strongest, or not."""
    classifier = routing.classifier
    assert isinstance(classifier, ActiveClassifier)
    rows = []
    for number in range(count):
        encoded = encode_prompt(classifier.model, [{"role": "user", "content": prompt(number)}])
        rows.append({
            "request_id": f"{key}-{number}", "key_id": key, "source": "verification", "created_at": 1000.0 + number,
            "feature_spec": encoded.feature_spec, "embedding": encoded.embedding, "features": encoded.features,
            "classes": encoded.classes, "no_worse": [good, None, None, True], "weights": [1.0, 0.0, 0.0, 0.0],
            "tiers": routing.served.catalog.tier_fingerprints,
        })  # fmt: skip
    async with engine.begin() as connection:
        await connection.execute(insert(training_rows), rows)


async def use_teams(engine: AsyncEngine) -> None:
    """Put one key into a team, and neither of those that teach and ask."""
    async with engine.begin() as connection:
        await connection.execute(insert(teams).values(team_id="t", name="t", created_at=0.0))
        await connection.execute(
            insert(api_keys).values(
                key_id="of t", name="of t", digest="of t", prefix="p", scopes=[], consent=True, priority_ceiling=0,
                created_at=0.0, team_id="t",
            )
        )  # fmt: skip


def asked(number: int, caller: Caller = VICTIM, **fields: Any) -> InferenceRequest:
    return chat(prompt(number), request_id=f"chatcmpl-{number}", caller=caller, **fields)


def decisions(routing: RoutingService, caller: Caller = VICTIM) -> list[Decision]:
    return [routing.route(asked(number, caller)) for number in range(ASKED)]


def changed(before: list[Decision], after: list[Decision]) -> list[Decision]:
    return [now for then, now in zip(before, after, strict=True) if now.tier != then.tier]


@pytest.mark.parametrize(("with_teams", "keys_are_tenants"), [(True, False), (False, True)])
@pytest.mark.parametrize("tenants", [1, 30])
async def test_hostile_prompts_change_at_most_one_decision_in_six_of_another_tenant(
    sqlite_engine: AsyncEngine, routing: RoutingService, with_teams: bool, keys_are_tenants: bool, tenants: int
) -> None:
    if with_teams:
        await use_teams(sqlite_engine)
    before = decisions(routing)
    for number in range(tenants):
        await teach(sqlite_engine, routing, f"hostile {number}", HOSTILE // tenants)
    await follow_labels(routing, sqlite_engine, keys_are_tenants)
    after = decisions(routing)
    moved = changed(before, after)
    assert 0 < len(moved) <= ASKED / 6
    # The record says which they are, and gives the decision again.
    assert all(one.inputs.prediction.from_others for one in moved)
    assert all("other tenants' labels count too" in one.reason for one in moved)
    assert [decide(one.inputs) for one in moved] == moved
    # Its own decisions are all as its labels say.
    assert len(changed(before, decisions(routing, Caller(key_id="hostile 0")))) == ASKED


async def test_without_teams_and_setting_all_keys_are_one_tenant(
    sqlite_engine: AsyncEngine, routing: RoutingService
) -> None:
    before = decisions(routing)
    await teach(sqlite_engine, routing, "hostile", HOSTILE)
    await follow_labels(routing, sqlite_engine, False)
    after = decisions(routing)
    assert len(changed(before, after)) == ASKED
    assert not any(one.inputs.prediction.from_others for one in after)


async def test_no_label_of_another_counts_where_the_key_has_enough_of_its_own(
    sqlite_engine: AsyncEngine, routing: RoutingService
) -> None:
    await teach(sqlite_engine, routing, "victim", 16, good=True)
    await follow_labels(routing, sqlite_engine, True)
    before = decisions(routing)
    await teach(sqlite_engine, routing, "hostile", HOSTILE)
    await follow_labels(routing, sqlite_engine, True)
    assert decisions(routing) == before


async def test_a_conversation_that_goes_on_is_not_drawn_again(
    sqlite_engine: AsyncEngine, routing: RoutingService
) -> None:
    """Each turn would be one more chance to move it to a dearer tier, on which it stays."""
    await teach(sqlite_engine, routing, "hostile", HOSTILE)
    await follow_labels(routing, sqlite_engine, True)
    first = chat(prompt(0), request_id="first", caller=VICTIM)
    assert routing.route(first).tier == 1
    routing.remember(first, 1)
    turns = [
        Turn.of("user", prompt(0)),
        Turn.of("assistant", "Paris."),
        Turn.of("user", prompt(1)),
    ]
    later = [routing.route(asked(number, messages=turns)) for number in range(ASKED)]
    assert {one.inputs.previous_tier for one in later} == {1}
    assert not any(one.inputs.prediction.from_others for one in later)
