"""Claude Code's billing header, another one in every request, reaches no tier and hides no conversation."""

from typing import Any

import pytest

from tests.gateway.inference.api.test_disconnects import only_record
from tests.support.app import RunningGateway

RULES = "You write code."


def body_of(path: str, number: int) -> dict[str, Any]:
    """Turn `number` of a session, with the header of that turn."""
    header = f"x-anthropic-billing-header: cc_version=2.1.{number}; cch={number:05x};"
    more = [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "Now test it."}] * (number - 1)
    turns = [{"role": "user", "content": f"Mend the loop of {path}."}, *more]
    if path == "/v1/messages":
        system = [{"type": "text", "text": header}, {"type": "text", "text": RULES}]
        return {"model": "auto", "max_tokens": 100, "system": system, "messages": turns}
    return {"model": "auto", "messages": [{"role": "system", "content": f"{header}\n\n{RULES}"}, *turns]}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
async def test_a_session_is_known_again_by_its_messages(gateway: RunningGateway, path: str) -> None:
    for number, previous in ((1, None), (2, 1)):
        answer = await gateway.http.post(path, json=body_of(path, number))
        assert answer.status_code == 200, answer.text
        record = await only_record(gateway, answer.json()["id"])
        assert record.decision.inputs.previous_tier == previous
        asked = gateway.tiers[0].requests[-1].messages
        assert asked is not None
        assert asked[0].text == RULES
