"""Gemini's API: what a tier is given, how answers, streams, counts and errors look, and what goes back to its maker."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.base.settings import Settings
from tests.gateway.running_gateway import RunningGateway, running_gateway
from tests.gateway.served_process import UNCACHED
from tests.gateway.walk import BOUNDED
from tests.tiers.remote.loopback_server import Call, LoopbackServer
from tiers.conversation import ToolCallDelta

pytestmark = pytest.mark.asyncio(loop_scope="module")
SAID = "Hello there, how are you?"
USER = {"role": "user", "parts": [{"text": "Say hello."}]}
ADD = {
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "OBJECT", "properties": {"a": {"type": "INTEGER"}}},
}
CALL = {"functionCall": {"id": "c1", "name": "add", "args": {"a": 1}}}
CALLS = (
    ToolCallDelta(index=0, id="c1", name="add", arguments='{"a"'),
    ToolCallDelta(index=1, id="c2", name="add", arguments='{"a": 2}'),
    ToolCallDelta(index=0, arguments=": 1}"),
)


async def ask(gateway: RunningGateway, method: str = "generateContent", model: str = "tier-1", **fields: Any) -> Any:
    """The answer, or the error, to a body with these fields."""
    path = f"/v1beta/models/{model}:{method}"
    answer = await gateway.http.post(path, json={"contents": [USER]} | fields, headers=UNCACHED)
    return answer.json()


def turns(gateway: RunningGateway) -> list[tuple[Any, ...]]:
    """Roles, texts and calls (id, arguments) of the last request."""
    return [
        (turn.role, turn.text, *[(call.id, call.arguments) for call in turn.calls])
        for turn in gateway.tier(1).requests[-1].messages or ()
    ]


async def test_a_whole_answer_has_googles_form(gateway: RunningGateway) -> None:
    gateway.tier(1).reasoning = ("Hm.",)
    answer = await ask(gateway)
    (candidate,) = answer["candidates"]
    assert candidate["content"] == {"role": "model", "parts": [{"text": SAID}]}
    assert (candidate["finishReason"], answer["modelVersion"], answer["x_aio"]["tier"]) == ("STOP", "smollm2-int4", 1)
    counts = answer["usageMetadata"]
    assert counts["candidatesTokenCount"] == 5
    assert counts["thoughtsTokenCount"] == 1
    assert counts["totalTokenCount"] == counts["promptTokenCount"] + 6
    shown = await ask(gateway, generationConfig={"thinkingConfig": {"includeThoughts": True}})
    assert shown["candidates"][0]["content"]["parts"][0] == {"text": "Hm.", "thought": True}


@pytest.mark.parametrize("prefix", ["/v1beta", "/v1"])
@pytest.mark.parametrize("query", ["?alt=sse", ""])
async def test_a_stream_is_events_or_an_array(gateway: RunningGateway, prefix: str, query: str) -> None:
    path = f"{prefix}/models/tier-1:streamGenerateContent{query}"
    answer = await gateway.http.post(path, json={"contents": [USER]}, headers=UNCACHED)
    if query:
        assert answer.headers["content-type"].startswith("text/event-stream")
        pieces = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line]
    else:
        assert answer.headers["content-type"] == "application/json"
        pieces = answer.json()
    parts = [part for piece in pieces for part in piece["candidates"][0]["content"]["parts"]]
    assert "".join(part["text"] for part in parts) == SAID
    assert [piece["candidates"][0].get("finishReason") for piece in pieces[-2:]] == [None, "STOP"]
    assert pieces[-1]["usageMetadata"]["candidatesTokenCount"] == 5


@pytest.mark.parametrize("query", ["?alt=sse", ""])
async def test_a_stream_that_breaks_ends_with_googles_error(gateway: RunningGateway, query: str) -> None:
    gateway.tier(1).fail_at = 2
    path = f"/v1beta/models/tier-1:streamGenerateContent{query}"
    text = (await gateway.http.post(path, json={"contents": [USER]}, headers=UNCACHED)).text
    last = json.loads(text.strip().rpartition("data: ")[2]) if query else json.loads(text)[-1]
    assert last["error"]["status"] == "INTERNAL"
    assert last["usageMetadata"]["candidatesTokenCount"] == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_are_whole_parts_though_their_pieces_come_mixed(gateway: RunningGateway, stream: bool) -> None:
    gateway.tier(1).words, gateway.tier(1).calls = ("Wait.",), CALLS
    asked: dict[str, Any] = {"tools": [{"functionDeclarations": [ADD]}]}
    if stream:
        pieces = await ask(gateway, "streamGenerateContent", **asked)
    else:
        pieces = [await ask(gateway, **asked)]
    parts = [part for piece in pieces for part in piece["candidates"][0]["content"]["parts"] if part != {"text": ""}]
    other = {"functionCall": {"id": "c2", "name": "add", "args": {"a": 2}}}
    assert parts == [{"text": "Wait."}, CALL, other]
    assert pieces[-1]["candidates"][0]["finishReason"] == "STOP"
    (tool,) = gateway.tier(1).requests[-1].tooling.tools  # type: ignore[union-attr]
    assert tool.parameters == {"type": "object", "properties": {"a": {"type": "integer"}}}


async def test_a_model_turn_in_pieces_is_one_and_results_find_their_calls(gateway: RunningGateway) -> None:
    def result(**fields: Any) -> dict[str, Any]:
        return {"functionResponse": {"name": "add"} | fields}

    unnamed = {"functionCall": {"name": "add", "args": {"a": 2}}}
    contents = [
        USER,
        {"role": "model", "parts": [{"text": "Wait"}]},
        {"role": "model", "parts": [{"text": "."}, CALL, unnamed]},
        {"role": "model", "parts": [{"text": ""}]},
        {"role": "user", "parts": [result(id="c1", response={"result": "1"}), result(response={"sum": 2})]},
        {"role": "user", "parts": [{"text": "Go on."}]},
    ]
    await ask(gateway, contents=contents, system_instruction={"parts": [{"text": "Be brief."}]})
    assert turns(gateway) == [
        ("system", "Be brief."),
        ("user", "Say hello."),
        ("assistant", "Wait.", ("c1", '{"a":1}'), ("call_2_1", '{"a":2}')),
        ("tool", "1"),
        ("tool", '{"sum":2}'),
        ("user", "Go on."),
    ]
    assert [turn.call_id for turn in gateway.tier(1).requests[-1].messages or () if turn.role == "tool"] == [
        "c1",
        "call_2_1",
    ]


CHOICES = [
    ({"mode": "AUTO"}, ("auto", None, ["add", "f"])),
    ({"mode": "NONE"}, ("none", None, ["add", "f"])),
    ({"mode": "ANY"}, ("required", None, ["add", "f"])),
    ({"mode": "ANY", "allowedFunctionNames": ["f"]}, ("named", "f", ["add", "f"])),
    ({"mode": "VALIDATED", "allowedFunctionNames": ["f"]}, ("auto", None, ["f"])),
]


@pytest.mark.parametrize(("calling", "tooling"), CHOICES)
async def test_functions_are_called_as_the_config_says(
    gateway: RunningGateway, calling: dict[str, Any], tooling: tuple[Any, ...]
) -> None:
    await ask(gateway, **declared(ADD, {"name": "f"}, **calling))
    read = gateway.tier(1).requests[-1].tooling
    assert read is not None
    assert (read.choice, read.name, [tool.name for tool in read.tools]) == tooling


async def test_names_may_be_in_snake_case_and_the_callers_own_json_stays(gateway: RunningGateway) -> None:
    config = {"max_output_tokens": 3, "top_k": 3.0, "stop_sequences": ["x"], "thinking_config": {"thinking_budget": -1}}
    schema = {"type": "object", "properties": {"my_name": {"type": "string"}}}
    declared = [{"name": "f", "parameters_json_schema": schema}]
    answer = await ask(gateway, generation_config=config, tools=[{"function_declarations": declared}])
    assert "candidates" in answer, answer
    asked = gateway.tier(1).requests[-1]
    assert (asked.max_tokens, asked.sampling.top_k, asked.stop) == (3, 3, ("x",))
    assert asked.tooling is not None
    assert asked.tooling.tools[0].parameters == schema


FORMS = [
    ({"responseMimeType": "application/json"}, "json_object"),
    ({"responseMimeType": "application/json", "responseSchema": {"type": "STRING", "nullable": True}}, "json_schema"),
    ({"responseJsonSchema": {"type": ["string", "null"]}}, "json_schema"),
    ({"responseMimeType": "text/x.enum", "responseSchema": {"type": "STRING", "enum": ["a", "b"]}}, "choice"),
]


@pytest.mark.parametrize(("config", "kind"), FORMS)
async def test_the_form_of_an_answer_binds_it(gateway: RunningGateway, config: dict[str, Any], kind: str) -> None:
    await ask(gateway, generationConfig=config)
    grammar = gateway.tier(1).requests[-1].sampling.grammar
    assert grammar is not None
    assert grammar.kind == kind
    if kind == "json_schema":
        assert json.loads(grammar.text) == {"type": ["string", "null"]}


def user(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [USER, {"role": "user", "parts": list(parts)}]


def declared(*functions: dict[str, Any], **calling: Any) -> dict[str, Any]:
    config = {"toolConfig": {"functionCallingConfig": calling}} if calling else {}
    return {"tools": [{"functionDeclarations": list(functions)}]} | config


PNG, PART = "image/png", "contents[1].parts[0]"
URL = {"mimeType": "audio/wav", "data": "http://10.0.0.1/a"}
NAMELESS = {"role": "model", "parts": [{"functionCall": {"args": {}}}]}
NO_OBJECT = {"name": "f", "parameters": {"type": "STRING"}}
REFUSED = [
    ({"contents": []}, "contents"),
    ({"contents": user({})}, PART),
    ({"contents": user({"text": "a", "fileData": {"fileUri": "https://a/b"}})}, PART),
    ({"contents": user({"fileData": {"mimeType": PNG, "fileUri": "ftp://a/b"}})}, f"{PART}.fileData.fileUri"),
    ({"contents": user({"inlineData": {"mimeType": PNG}})}, f"{PART}.inlineData.data"),
    ({"contents": user({"inlineData": {"data": "aGk="}})}, f"{PART}.inlineData.mimeType"),
    ({"contents": user({"inlineData": URL})}, f"{PART}.inlineData.data"),
    ({"contents": [NAMELESS]}, "contents[0].parts[0].functionCall.name"),
    ({"contents": [{"role": "robot", "parts": []}]}, "contents[0].role"),
    ({"generationConfig": {"topP": 4}}, "generationConfig.topP"),
    ({"generationConfig": {"responseSchema": {"enum": [2**70]}}}, "generationConfig.responseSchema"),
    ({"cachedContent": "cachedContents/a"}, "cachedContent"),
    (declared(ADD, NO_OBJECT), "tools[0].functionDeclarations[1].parameters"),
    (declared(ADD, ADD | {"description": "Sums."}), "tools[0].functionDeclarations[1].name"),
    (declared(ADD, mode="ANY", allowedFunctionNames=["add", "f"]),
     "toolConfig.functionCallingConfig.allowedFunctionNames[1]"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "field"), REFUSED)
async def test_a_refusal_names_the_field_as_the_caller_wrote_it(
    gateway: RunningGateway, fields: dict[str, Any], field: str
) -> None:
    error = (await ask(gateway, **fields))["error"]
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
    assert error["details"][0]["fieldViolations"][0]["field"] == field


async def test_a_refusal_of_what_was_read_names_googles_field(gateway: RunningGateway) -> None:
    many = {"candidateCount": 8, "responseLogprobs": True, "logprobs": 20}
    error = (await ask(gateway, generationConfig=many))["error"]
    assert error["details"][0]["fieldViolations"][0]["field"] == "generationConfig.logprobs"


async def test_unknown_models_and_methods_are_not_found(gateway: RunningGateway) -> None:
    for model, method in (("none", "generateContent"), ("tier-1", "predict"), ("none", "embedContent")):
        error = (await ask(gateway, method, model, content=USER))["error"]
        assert (error["code"], error["status"]) == (404, "NOT_FOUND")
    for path, headers in (("/v1beta/files", {}), ("/v1/cachedContents", {"x-goog-api-key": "unused"})):
        missing = await gateway.http.get(path, headers=headers)
        assert missing.json()["error"]["status"] == "NOT_FOUND"


async def test_what_google_alone_has_is_named_as_left_out(gateway: RunningGateway) -> None:
    safety = [{"category": "HARM_CATEGORY_HATE_SPEECH", "threshold": "BLOCK_NONE"}]
    body = {"contents": [USER], "safetySettings": safety, "tools": [{"googleSearch": {}}]}
    answer = await gateway.http.post("/v1beta/models/tier-1:generateContent", json=body, headers=UNCACHED)
    assert answer.status_code == 200
    assert answer.headers["x-aio-ignored-fields"] == "tools.googleSearch, safetySettings"


async def test_tokens_are_counted_alone_or_of_a_whole_request(gateway: RunningGateway) -> None:
    alone = await ask(gateway, "countTokens")
    body = {"generateContentRequest": {"model": "models/tier-1", "contents": [USER]}}
    whole = await gateway.http.post("/v1beta/models/tier-1:countTokens", json=body)
    assert alone == whole.json() == {"totalTokens": 6}


async def test_models_have_googles_form_for_its_clients_alone(gateway: RunningGateway) -> None:
    listed = (await gateway.http.get("/v1beta/models", params={"pageSize": 2})).json()
    assert [one["name"] for one in listed["models"]] == ["models/auto", "models/tier-1"]
    more = (await gateway.http.get("/v1beta/models", params={"pageToken": listed["nextPageToken"]})).json()
    assert more["models"][0]["name"] == "models/tier-2"
    assert "nextPageToken" not in more
    named = await gateway.http.get("/v1/models/tier-1", headers={"x-goog-api-key": "unused"})
    assert named.json()["supportedGenerationMethods"][0] == "generateContent"
    assert (await gateway.http.get("/v1/models/tier-1")).json()["object"] == "model"


async def gemini(call: Call) -> None:
    """A server of Google's whose model seals its calls."""
    if call.path.endswith("/embeddings"):
        vectors = [{"index": place, "embedding": [0.6, 0.8]} for place in range(len(call.body["input"]))]
        await call.reply(200, {"data": vectors, "usage": {"prompt_tokens": 2, "total_tokens": 2}})
        return
    call_part = {"functionCall": {"name": "add", "args": {"a": 1}}, "thoughtSignature": "U0VBTA=="}
    is_result = any("functionResponse" in part for part in call.body["contents"][-1]["parts"])
    parts = [{"text": "1"}] if is_result else [{"text": "Hm.", "thought": True}, call_part]
    counts = {"promptTokenCount": 9, "candidatesTokenCount": 2, "totalTokenCount": 11}
    answer = {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]}
    await call.reply(200, answer | {"usageMetadata": counts})


CATALOGUE = """
[[tiers]]
name = "g"
provider = "gemini"
model = "gemini-3-pro-preview"
url = "{url}"

[[tiers]]
name = "other"
url = "{url}"
price = {{ input_usd_per_million = 90, output_usd_per_million = 90 }}

[[embeddings]]
name = "e"
url = "{url}"
model = "e"
input_usd_per_million = 1
"""


async def test_a_tier_of_gemini_gets_its_parts_back_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "unused")
    config = {"thinkingConfig": {"includeThoughts": True}}
    tools: list[Any] = [{"functionDeclarations": [ADD]}, {"googleSearch": {}}]
    async with LoopbackServer(gemini) as server:
        (tmp_path / "catalog.toml").write_text(CATALOGUE.format(url=server.base_url))
        settings = Settings(data_dir=str(tmp_path / "data"), catalog=str(tmp_path / "catalog.toml"), monitor=False)
        async with running_gateway(settings, scripted=False, protocol=BOUNDED) as gateway:
            answer = await ask(gateway, model="g", tools=tools, generationConfig=config)
            said = answer["candidates"][0]["content"]
            result = {"functionResponse": {"name": "add", "response": {"result": 1}}}
            contents = [USER, said, {"role": "user", "parts": [result]}]
            again = await ask(gateway, model="g", contents=contents, tools=tools, generationConfig=config)
    assert said["parts"][1]["thoughtSignature"] == "U0VBTA=="
    assert again["candidates"][0]["content"]["parts"] == [{"text": "1"}]
    sent = server.calls[-1].body
    assert (sent["contents"], sent["tools"], sent["generationConfig"]) == (contents, tools, config)


async def test_texts_are_embedded_alone_or_together(tmp_path: Path) -> None:
    one = {"content": {"parts": [{"text": "a"}]}, "taskType": "RETRIEVAL_QUERY"}
    async with LoopbackServer(gemini) as server:
        (tmp_path / "catalog.toml").write_text(CATALOGUE.format(url=server.base_url))
        settings = Settings(data_dir=str(tmp_path / "data"), catalog=str(tmp_path / "catalog.toml"), monitor=False)
        async with running_gateway(settings, scripted=False, protocol=BOUNDED) as gateway:
            alone = await gateway.http.post("/v1beta/models/e:embedContent", json=one)
            both = await ask(gateway, "batchEmbedContents", "e", requests=[one, one])
            other = one | {"outputDimensionality": 4}
            mixed = await ask(gateway, "batchEmbedContents", "e", requests=[one, other])
    assert alone.json() == {"embedding": {"values": [0.6, 0.8]}}
    assert alone.headers["x-aio-ignored-fields"] == "taskType"
    assert both == {"embeddings": [{"values": [0.6, 0.8]}] * 2}
    assert mixed["error"]["details"][0]["fieldViolations"][0]["field"] == "requests"
