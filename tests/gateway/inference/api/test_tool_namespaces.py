"""Tools in namespaces, as Codex gives them: their names and their number."""

import pytest

from tests.support.app import RunningGateway
from tiers.dialects.responses_schemas import ResponseTool
from tiers.dialects.responses_tools import called_tools, flat_name

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEMA = {"type": "object", "properties": {"target": {"type": "string"}}}
CLOSE = {"type": "function", "name": "close", "description": "Close one.", "parameters": SCHEMA, "strict": False}
NOTE = {"type": "custom", "name": "note", "description": "Note it.", "format": {"type": "text"}}
AGENTS = {"type": "namespace", "name": "agents", "description": "Other agents.", "tools": [CLOSE, NOTE]}


async def test_names_are_short_enough_for_functions_and_differ() -> None:
    tools = [ResponseTool(type="function", name=f"{'x' * 62}{n}") for n in range(2)]
    names = [flat_name(tool.name, "mcp__server__") for tool in tools]
    assert len(set(names)) == 2
    assert max(map(len, names)) == 64
    assert flat_name("look", "mcp__server__") == "mcp__server__look"
    space = ResponseTool(type="namespace", name="mcp__server__", tools=list(tools))
    assert [tool.name for tool in called_tools([space]).values()] == [tool.name for tool in tools]


async def test_the_tools_of_namespaces_are_counted(gateway: RunningGateway) -> None:
    tools = [{**AGENTS, "name": f"n{n}", "tools": [CLOSE] * 257} for n in range(2)]
    answer = await gateway.http.post("/v1/responses", json={"model": "tier-1", "input": "x", "tools": tools})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
