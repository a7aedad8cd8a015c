"""The conformance suite `llm-comply`, as its command line runs it, against the gateway over HTTP."""

import asyncio
import json
import sys
from typing import Any

import pytest

from tests.support.app import RunningGateway
from tiers.conversation import ToolCallDelta

pytest.importorskip("llm_comply")
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.processes]
WEATHER = (ToolCallDelta(index=0, id="call_1", name="get_weather", arguments='{"location": "San Francisco"}'),)
# The models here read text only, and say so.
REFUSED = {"openai-chat": {"chat-image-input"}, "open-responses": {"image-input"}}
TOOLS = {"openai-chat": "chat-tool-calling", "open-responses": "tool-calling"}


async def results(gateway: RunningGateway, form: str, *options: str) -> dict[str, Any]:
    """Return the outcome of each test, by id."""
    command = [sys.executable, "-c", "import sys; from llm_comply.cli import main; sys.exit(main())"]
    target = ["--base-url", f"{gateway.url}/v1", "--api-key", "unused", "--model", "tier-1", "--format", form]
    run = await asyncio.create_subprocess_exec(
        *command, *target, "--json", *options, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await run.communicate()
    report = json.loads(said)
    tests = report["results"] if isinstance(report, dict) else report
    return {test["id"]: test for test in tests}


@pytest.mark.parametrize("form", ["openai-chat", "open-responses"])
async def test_all_passes_but_what_is_refused_for_a_reason(gateway: RunningGateway, form: str) -> None:
    outcomes = await results(gateway, form)
    gateway.tier(1).calls = WEATHER
    outcomes |= await results(gateway, form, "--filter", TOOLS[form])
    failed = {name: test["errors"] for name, test in outcomes.items() if test["status"] == "failed"}
    assert failed.keys() == REFUSED[form], failed
    assert len(outcomes) >= 9
    # Conversations are not compacted here, which the suite reports as advice.
    warned = {name for name, test in outcomes.items() if test.get("warnings")}
    assert warned <= {"compact-response"}
