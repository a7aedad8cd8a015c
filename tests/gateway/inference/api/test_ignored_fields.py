"""Fields that have no meaning here are ignored, named in a header and counted; a strict key or server refuses them."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

from gateway.base.settings import Settings
from gateway.inference.api.completions import CHAT
from gateway.inference.api.sending import MOST_CHARS, shown_names
from tests.support.administrator import bearer
from tests.support.app import RunningGateway, StartApp, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO = [{"role": "user", "content": "Say hello."}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

ENDPOINTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"model": "tier-1", "messages": HELLO}),
    ("/v1/completions", {"model": "tier-1", "prompt": "Once"}),
    ("/v1/responses", {"model": "tier-1", "input": "Hello."}),
]
# Fields of a chat, and the names that the header gives them.
NESTED: list[tuple[dict[str, Any], str]] = [
    ({"messages": [{"role": "user", "content": "x", "colour": "red"}]}, "messages[].colour"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "colour": 1}]}]},
        "messages[].content[].colour",
    ),
    ({"stream": True, "stream_options": {"colour": 1}}, "stream_options.colour"),
    ({"tools": [TOOL | {"colour": 1}]}, "tools[].colour"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}, "colour": 1}},
        "tool_choice.colour",
    ),
    ({"use_beam_search": True, "echo": False}, "use_beam_search, echo"),
    ({"prediction": {"type": "content", "content": "x"}, "verbosity": "low"}, "prediction, verbosity"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(module_app: StartApp) -> RunningGateway:
    return await module_app()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keyed(module_app: StartApp) -> RunningGateway:
    """A gateway that knows keys, and so asks for one."""
    return await module_app()


@pytest.fixture
def aio(running: RunningGateway) -> RunningGateway:
    running.reset()
    return running


async def count_of(aio: RunningGateway, endpoint: str) -> float:
    page = (await aio.http.get("/metrics")).text
    found = re.search(rf'^aio_ignored_fields_total{{endpoint="{endpoint}"}} (\S+)$', page, re.MULTILINE)
    return float(found[1]) if found else 0.0


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
async def test_an_unknown_field_is_ignored_named_and_counted(
    aio: RunningGateway, path: str, body: dict[str, Any]
) -> None:
    before = await count_of(aio, path)

    answer = await aio.http.post(path, json=body | {"temprature": 1, "safe_prompt": {"deep": [1]}})
    plain = await aio.http.post(path, json=body)

    assert (answer.status_code, plain.status_code) == (200, 200), answer.text
    assert answer.headers["x-aio-ignored-fields"] == "temprature, safe_prompt"
    assert "x-aio-ignored-fields" not in plain.headers
    assert await count_of(aio, path) == before + 1


@pytest.mark.parametrize(("fields", "names"), NESTED, ids=[names for _, names in NESTED])
async def test_nested_fields_and_those_without_effect_are_ignored_too(
    aio: RunningGateway, fields: dict[str, Any], names: str
) -> None:
    answer = await aio.http.post("/v1/chat/completions", json={"model": "tier-1", "messages": HELLO} | fields)

    assert answer.status_code == 200, answer.text
    assert answer.headers["x-aio-ignored-fields"] == names


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
async def test_a_strict_key_is_refused_unknown_fields_by_name(
    keyed: RunningGateway, path: str, body: dict[str, Any]
) -> None:
    strict = bearer(await keyed.key(f"strict {len(path)}", strict=True))

    refused = await keyed.http.post(path, json=body | {"temprature": 1}, headers=strict)
    answered = await keyed.http.post(path, json=body, headers=strict)

    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["code"]) == (400, "temprature", "unknown_parameter")
    assert answered.status_code == 200


async def test_a_strict_key_is_refused_fields_without_effect_and_can_be_made_lenient(
    keyed: RunningGateway,
) -> None:
    strict = bearer(await keyed.key("changing", strict=True))
    body = {"model": "tier-1", "messages": HELLO, "prediction": {"type": "content", "content": "x"}}

    refused = await keyed.http.post("/v1/chat/completions", json=body, headers=strict)
    changed = await keyed.http.patch("/admin/api/keys/changing", json={"terms": {"strict": False}})
    answered = await keyed.http.post("/v1/chat/completions", json=body, headers=strict)

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prediction")
    assert changed.status_code == 200, changed.text
    assert answered.headers["x-aio-ignored-fields"] == "prediction"


async def test_a_strict_server_refuses_unknown_fields_of_every_caller(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path), monitor=False, strict_fields=True)
    async with running_gateway(settings) as gateway:
        for path, body in ENDPOINTS:
            refused = await gateway.http.post(path, json=body | {"colour": 1})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "colour")


async def test_a_wrong_value_is_still_refused_after_an_unknown_field(aio: RunningGateway) -> None:
    body = {"model": "tier-1", "colour": 1, "messages": HELLO, "temperature": 9}

    refused = await aio.http.post("/v1/chat/completions", json=body)

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "temperature")


@pytest.mark.parametrize("rest", [b'"x": "\xff"}', b'"x": ', b'"x": ' + b"[" * 100_000])
async def test_what_is_no_json_after_an_unknown_field_is_refused(aio: RunningGateway, rest: bytes) -> None:
    head = b'{"model": "tier-1", "messages": [{"role": "user", "content": "x"}], "colour": 1, '

    refused = await aio.http.post(
        "/v1/chat/completions", content=head + rest, headers={"content-type": "application/json"}
    )

    assert (refused.status_code, refused.json()["error"]["code"]) in [(400, "invalid_json"), (400, "invalid_utf8")]


async def test_a_names_unsafe_characters_and_length_do_not_reach_the_header(aio: RunningGateway) -> None:
    hostile = {"a\r\nset-cookie: x": 1, "ü" * 3: 2, "long" * 100: 3} | {f"name-{n}": n for n in range(200)}

    answer = await aio.http.post("/v1/chat/completions", json={"model": "tier-1", "messages": HELLO} | hostile)

    assert answer.status_code == 200, answer.text
    header = answer.headers["x-aio-ignored-fields"]
    assert re.fullmatch(r"[A-Za-z0-9_.\[\]?, -]+", header)
    assert header.startswith("a??set-cookie??x, ???, longlong")
    assert header.endswith(", ...")
    assert len(header) <= MOST_CHARS + 5
    assert "set-cookie" not in answer.headers


async def test_the_last_frame_of_a_chat_on_a_socket_names_them(aio: RunningGateway) -> None:
    async with connect(f"ws://127.0.0.1:{aio.port}/v1/chat/completions/ws", proxy=None) as socket:
        await socket.send(json.dumps({"model": "tier-1", "messages": HELLO, "colour": 1}))
        frames = [json.loads(await socket.recv())]
        while "choices" in frames[-1]:
            frames.append(json.loads(await socket.recv()))

    assert frames[-1]["ignored_fields"] == "colour"


async def test_the_known_part_of_a_body_is_what_the_body_says_without_the_rest() -> None:
    body = {
        "model": "auto",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "user", "content": "b"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"x-mine": {"any": 1}}}}],
        "metadata": {"any": "name"},
        "temperature": 1,
        "logit_bias": {"5": 1},
    }
    extended = msgspec.json.decode(msgspec.json.encode(body))
    extended["messages"][0]["content"][0]["more"] = 1
    extended["tools"][0]["function"]["more"] = 1
    extended["more"] = {"any": [1]}

    known, names, _ = CHAT.known_part(msgspec.json.encode(extended))

    assert known == CHAT.decode(msgspec.json.encode(body))
    assert sorted(names) == ["messages[].content[].more", "more", "tools[].function.more"]


async def test_few_names_are_shown_as_they_are() -> None:
    assert shown_names(["a", "b.c"]) == "a, b.c"
