"""`POST /v1/feedback`: users rate their own answers only, and get clear errors."""

from typing import Any

import msgspec
import pytest
from sqlalchemy import select

from gateway.base.settings import Settings
from migrations.tables.quality import verifications
from quality.store.database import open_database
from tests.gateway.inference.api.test_disconnects import only_record
from tests.support.app import RunningGateway, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO = [{"role": "user", "content": "Say hello."}]


async def answered(gateway: RunningGateway, **headers: str) -> str:
    body = {"model": "tier-1", "messages": HELLO}
    answer = await gateway.http.post("/v1/chat/completions", json=body, headers=headers)
    await only_record(gateway, answer.headers["x-aio-decision-id"])
    return str(answer.json()["id"])


async def test_a_thumb_down_is_stored_as_a_verdict_of_the_user(gateway: RunningGateway) -> None:
    request_id = await answered(gateway)

    answer = await gateway.http.post("/v1/feedback", json={"request_id": request_id, "rating": "down"})

    assert answer.status_code == 200
    assert answer.json()["request_id"] == request_id
    assert (answer.json()["tier"], answer.json()["label"]) == (1, "worse")
    engine = open_database(gateway.serving.settings.database)
    async with engine.connect() as connection:
        query = select(verifications.c.judge, verifications.c.label).where(verifications.c.request_id == request_id)
        assert (await connection.execute(query)).all() == [("user", "worse")]
    await engine.dispose()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "rating"),
        ({"comment": "hm"}, "rating"),
        ({"rating": "up", "score": 1.0}, "score"),
        ({"score": 1.5}, "score"),
        ({"rating": "sideways"}, "rating"),
        ({"rating": "up", "stars": 5}, "stars"),
    ],
)
async def test_feedback_that_cannot_be_understood_is_refused_by_parameter(
    gateway: RunningGateway, body: dict[str, Any], param: str
) -> None:
    answer = await gateway.http.post("/v1/feedback", json={"request_id": "chatcmpl-1", **body})

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_an_unknown_request_is_not_found(gateway: RunningGateway) -> None:
    answer = await gateway.http.post("/v1/feedback", json={"request_id": "chatcmpl-unknown", "score": 0.5})

    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "request_not_found"


async def test_callers_cannot_rate_the_answers_of_others(settings: Settings) -> None:
    alice, bob = "test-alice-5d39fd58a07dfb842367e2346d8f7434", "test-bob-884bcff941cbb51fff0185636af3489f"
    keyed = msgspec.structs.replace(settings, api_keys=f"alice={alice},bob={bob}")
    async with running_gateway(keyed) as gateway:
        request_id = await answered(gateway, authorization=f"Bearer {alice}")
        rating = {"request_id": request_id, "rating": "up"}

        foreign = await gateway.http.post("/v1/feedback", json=rating, headers={"authorization": f"Bearer {bob}"})
        own = await gateway.http.post("/v1/feedback", json=rating, headers={"authorization": f"Bearer {alice}"})

    assert (foreign.status_code, own.status_code) == (404, 200)
