"""With a knob, a chat that no tier can read loses its oldest turns instead of being refused (SPEC TI-16)."""

from typing import Any

import pytest

from tests.support.app import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
# A turn takes 55 tokens of the scripted tiers, which read 256.
LONG = [
    {"role": "system", "content": "Be kind."},
    *({"role": "user", "content": f"{n} " + "word " * 50} for n in range(8)),
]


@pytest.fixture
def truncating(gateway: RunningGateway) -> Any:
    gateway.serving.routing.knobs.change({"truncate_chats": True})
    yield gateway
    gateway.serving.routing.knobs.change({"truncate_chats": False})


async def asked(gateway: RunningGateway, path: str, **body: Any) -> Any:
    return await gateway.http.post(path, json={"model": "tier-1", "max_tokens": 8} | body)


async def test_the_newest_turns_are_answered_and_the_reply_says_how_many_were_left_out(
    truncating: RunningGateway,
) -> None:
    answer = await asked(truncating, "/v1/chat/completions", messages=LONG)

    assert answer.status_code == 200, answer.text
    kept = [message.text.split()[0] for message in truncating.tier(1).requests[-1].messages or ()]
    assert kept == ["Be", "4", "5", "6", "7"]
    assert answer.json()["x_aio"]["dropped_turns"] == 4


async def test_what_a_tier_can_read_is_left_as_it_is(truncating: RunningGateway) -> None:
    answer = await asked(truncating, "/v1/chat/completions", messages=LONG[:3])

    assert len(truncating.tier(1).requests[-1].messages or ()) == 3
    assert "dropped_turns" not in answer.json()["x_aio"]


async def test_without_the_knob_it_is_refused(gateway: RunningGateway) -> None:
    answer = await asked(gateway, "/v1/chat/completions", messages=LONG)

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
