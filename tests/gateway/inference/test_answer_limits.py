"""A limit of the answer that is larger than a context is cut to it: it rules out no tier; budgets hold what is sent."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.polling import eventually
from tests.support.administrator import ADMIN_HEADERS
from tests.support.app import RunningGateway, gateway_of
from tests.support.upstream import Call
from tiers.prompt_bounds import TEMPLATE_TOKENS

CHAT = "/v1/chat/completions"
# Micro-dollars per output token of the first tier.
MICRO = 100
CATALOG = """
name = "limits"

[[tiers]]
name = "small"
url = "{url}"
model = "small"
max_context = 4096
price = {{ input_usd_per_million = 0.0, output_usd_per_million = 100.0 }}

[[tiers]]
name = "large"
url = "{url}"
model = "large"
max_context = 200000
price = {{ input_usd_per_million = 0.0, output_usd_per_million = 1000.0 }}
"""
TITLE = [{"role": "user", "content": "Write a title for: hello"}]
# Of a title's 24 bytes and its message, as they are estimated of a server without a tokeniser.
ROOM = 4096 - 10
# Without what the model's template may add, which a limit that does not fit is lowered by.
LEFT = ROOM - TEMPLATE_TOKENS


class Thinking:
    """Answers with as many tokens as the limit allows, all but one of them hidden thoughts."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    async def answer(self, call: Call) -> None:
        self.bodies.append(call.body)
        used = call.body.get("max_tokens", 3)
        usage = {"prompt_tokens": 10, "completion_tokens": used, "total_tokens": 10 + used}
        usage["completion_tokens_details"] = {"reasoning_tokens": used - 1}  # type: ignore[assignment]
        await call.whole("A", usage)


@pytest.fixture
def thinking() -> Thinking:
    return Thinking()


@pytest_asyncio.fixture
async def gateway(tmp_path: Path, thinking: Thinking) -> AsyncIterator[RunningGateway]:
    async with gateway_of(tmp_path, CATALOG, thinking.answer, protocol="httptools") as running:
        yield running


async def key_with_budget(gateway: RunningGateway, name: str, usd: float) -> dict[str, str]:
    key = await gateway.key(name)
    await gateway.budget(name, usd)
    return {"authorization": f"Bearer {key}", "x-aio-cache": "off"}


async def asked(
    gateway: RunningGateway, path: str = CHAT, key: dict[str, str] | None = None, **fields: Any
) -> httpx.Response:
    return await gateway.http.post(path, json=fields, headers=key or ADMIN_HEADERS)


async def test_a_limit_beyond_the_cheap_tiers_context_is_cut_and_does_not_choose_the_dear_one(
    gateway: RunningGateway, thinking: Thinking
) -> None:
    without = await asked(gateway, model="auto", messages=TITLE)
    for path, fields in (
        (CHAT, {"messages": TITLE, "max_tokens": 32_000}),
        (CHAT, {"messages": TITLE, "max_completion_tokens": 4096}),
        ("/v1/responses", {"input": TITLE[0]["content"], "max_output_tokens": 32_000}),
        ("/v1/messages", {"messages": TITLE, "max_tokens": 32_000}),
    ):
        answer = await asked(gateway, path, model="auto", **fields)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-aio-tier"] == without.headers["x-aio-tier"]
        pinned = await asked(gateway, path, model="tier-1", **fields)
        assert pinned.status_code == 200, pinned.text
        assert (thinking.bodies[-1]["model"], thinking.bodies[-1]["max_tokens"]) == ("small", LEFT)


async def test_a_prompt_that_does_not_fit_rules_the_tier_out(gateway: RunningGateway, thinking: Thinking) -> None:
    long = [{"role": "user", "content": "word " * 5000}]
    assert (await asked(gateway, model="auto", messages=long)).headers["x-aio-tier"] == "2"
    refused = await asked(gateway, model="tier-1", messages=long, max_tokens=8)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_a_budget_holds_the_very_limit_that_is_sent_and_bears_hidden_thoughts(
    gateway: RunningGateway, thinking: Thinking
) -> None:
    exact = await key_with_budget(gateway, "exact", ROOM * MICRO / 1e6)
    short = await key_with_budget(gateway, "short", (ROOM * MICRO - 1) / 1e6)
    body = {"model": "tier-1", "messages": TITLE}

    lowered = await asked(gateway, key=short, max_tokens=ROOM, **body)
    assert lowered.status_code == 200, lowered.text
    assert thinking.bodies.pop()["max_tokens"] == int(lowered.headers["x-aio-max-tokens"]) == ROOM - 1

    answer = await asked(gateway, key=exact, **body)
    assert answer.status_code == 200, answer.text
    assert thinking.bodies[0]["max_tokens"] == int(answer.headers["x-aio-max-tokens"]) == ROOM
    assert float(answer.headers["x-aio-cost-usd"]) == pytest.approx(ROOM * MICRO / 1e6)
    record = await eventually(lambda: found(gateway, answer.headers["x-aio-decision-id"], exact))
    assert record["attempts"][0]["max_tokens"] == ROOM
    assert (await asked(gateway, key=exact, **body)).status_code == 429

    own = await key_with_budget(gateway, "own", 7 * MICRO / 1e6)
    assert (await asked(gateway, key=own, max_tokens=7, **body)).status_code == 200
    assert thinking.bodies[-1]["max_tokens"] == 7


async def test_without_a_budget_no_limit_is_sent_and_costs_are_predicted_for_a_usual_answer(
    gateway: RunningGateway, thinking: Thinking
) -> None:
    answer = await asked(gateway, model="tier-1", messages=TITLE)
    assert "max_tokens" not in thinking.bodies[0]
    assert "x-aio-max-tokens" not in answer.headers
    record = await eventually(lambda: found(gateway, answer.headers["x-aio-decision-id"], None))
    assert record["decision"]["inputs"]["costs"][0] == pytest.approx(200 * MICRO / 1e6)


async def found(gateway: RunningGateway, name: str, key: dict[str, str] | None) -> Any:
    answer = await gateway.http.get(f"/v1/requests/{name}", headers=key or ADMIN_HEADERS)
    return answer.json() if answer.status_code == 200 else None
