"""Summaries of conversations for Codex, by its older endpoint and by stored responses."""

from typing import Any

import pytest

from tests.support.app import RunningGateway
from tests.support.served import UNCACHED

pytestmark = pytest.mark.asyncio(loop_scope="module")
SAID = "Hello there, how are you?"
ASKED = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Mend the parser."}]}
DONE = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is mended."}]}
CALL = [
    {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "ok"},
]


async def ask(gateway: RunningGateway, items: list[Any], path: str = "/v1/responses", **fields: Any) -> Any:
    body = {"model": "tier-1", "input": items, "store": False} | fields
    return await gateway.http.post(path, json=body, headers=UNCACHED)


def turns(gateway: RunningGateway) -> list[tuple[str, str]]:
    return [(turn.role, turn.text) for turn in gateway.tier(1).requests[-1].messages or ()]


async def test_the_older_endpoint_gives_the_users_words_and_the_summary(gateway: RunningGateway) -> None:
    answer = (await ask(gateway, [ASKED, *CALL, DONE], "/v1/responses/compact", instructions="Be brief.")).json()
    assert answer["object"] == "response.compaction"
    user, summary = answer["output"]
    assert (user["role"], user["content"][0]["text"]) == ("user", "Mend the parser.")
    assert summary["type"] == "compaction"
    assert (await ask(gateway, [*answer["output"], ASKED])).status_code == 200
    assert turns(gateway)[1][1].endswith(SAID)


async def test_a_stored_compaction_is_gone_on_from(gateway: RunningGateway) -> None:
    first = (await ask(gateway, [ASKED, {"type": "compaction_trigger"}], store=True)).json()
    answer = await ask(gateway, [ASKED], previous_response_id=first["id"], store=True)
    assert answer.status_code == 200, answer.text
    assert any(text.endswith(SAID) for _, text in turns(gateway))


async def test_a_compaction_with_a_wrong_field_is_a_400(gateway: RunningGateway) -> None:
    assert (await ask(gateway, [{"type": "compaction_trigger"}], max_output_tokens="many")).status_code == 400
