"""Servers that refuse what OpenAI's API allows, and say how they want it: the request is sent so, streamed and whole,
and the next one at once."""

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import pytest

from inference_core.protocol import Grammar, SamplingParams
from tests.tiers.remote.loopback_server import Call as Received
from tests.tiers.remote.loopback_server import LoopbackServer
from tests.tiers.tier_world import chat, collect, remote_spec
from tiers.conversation import Call, NativeBlock, NativeContent, NativeRequest, Text, Tool, Tooling, Turn
from tiers.errors import TierKeyError, TierRequestError, TierUnavailableError
from tiers.remote.lessons import lessons_in
from tiers.remote.openai_format import parse_error
from tiers.remote.refusals import REFUSAL_ROWS, LearnedRefusals
from tiers.remote.remote_tier import RemoteTier
from tiers.tier import GenerationRequest

Body = dict[str, Any]
CITY: Body = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = Tool(name="get_weather", parameters=CITY)
SCHEMA: Body = {"type": "json_schema", "json_schema": {"name": "a", "schema": CITY}}
USER, SYSTEM = Turn.of("user", "Hi"), Turn.of("system", "Be brief.")
BLOCKS = Turn.of(
    "system",
    "Be brief.",
    native=NativeContent("anthropic", (NativeBlock(json=b'{"type":"text","text":"Be brief."}', type="text"),)),
)
EMPTY = Turn.of("assistant")
TOOLS = {"tooling": Tooling(tools=(WEATHER,))}
FORCED = {"tooling": Tooling(tools=(WEATHER,), choice="required")}
JSON = {"response_format": SCHEMA, "sampling": SamplingParams(grammar=Grammar(kind="json_schema", text="{}"))}


def loop(arguments: str = "{}", call_id: str = "c1", **fields: Any) -> Body:
    """A conversation with a call and its result."""
    call = Call(id=call_id, name="get_weather", arguments=arguments)
    turn = Turn.of("assistant", calls=(call,), **fields)
    result = Turn.of("tool", "3", call_id=call_id)
    return TOOLS | {"messages": [USER, turn, result]}


class Row(NamedTuple):
    """`refuses`: what the server does not take. `words`: what it says, in OpenAI's envelope unless it is an object.
    `asked`: the request's fields."""

    name: str
    words: Any
    refuses: Callable[[Body], Any]
    asked: Body
    kind: str = "openai"
    status: int = 400


def has(*names: str) -> Callable[[Body], Any]:
    return lambda body: body.keys() & {*names}


def limit(body: Body) -> bool:
    return (body.get("max_tokens") or body.get("max_completion_tokens") or 0) > 900


def effort(*taken: str) -> Callable[[Body], Any]:
    return lambda body: body.get("reasoning_effort") not in (None, *taken)


def schema(body: Body) -> bool:
    return bool(body.get("response_format", {}).get("type") == "json_schema")


def thinking(body: Body) -> bool:
    is_off = body.get("thinking") == {"type": "disabled"} or body.get("enable_thinking") is False
    return body.get("tool_choice") not in (None, "auto", "none") and not is_off


def turns(holds: Callable[[Body], Any]) -> Callable[[Body], Any]:
    return lambda body: any(map(holds, body["messages"]))


def calls(holds: Callable[[Body], Any]) -> Callable[[Body], Any]:
    return turns(lambda turn: any(map(holds, turn.get("tool_calls") or ())))


def functions(holds: Callable[[Body], Any]) -> Callable[[Body], Any]:
    return lambda body: any(holds(tool["function"]) for tool in body.get("tools", ()))


def roles(body: Body) -> list[str]:
    return [turn["role"] for turn in body["messages"]]


def ids_of(body: Body) -> list[str]:
    return [call["id"] for turn in body["messages"] for call in turn.get("tool_calls") or ()]


def many_stops(body: Body) -> bool:
    return len(body.get("stop", ())) > 4


def repeats(body: Body) -> bool:
    return any(one == other for one, other in pairwise(roles(body)))


def is_cut(call: Body) -> bool:
    try:
        return not isinstance(json.loads(call["function"]["arguments"]), dict)
    except ValueError:
        return True


def extra(*loc: Any) -> Body:
    return {"detail": [{"type": "extra_forbidden", "loc": ["body", *loc], "msg": "Extra inputs are not permitted"}]}


FIVE = {"stop": tuple("abcde")}
LONG = {"max_tokens": 2000}
LIMITS = (
    "Invalid max_tokens value, the valid range of max_tokens is [1, 900]",
    "<400> InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, 900]",
    "`max_tokens` must be less than or equal to `900`, the maximum value for `max_tokens` is less than the context",
    "max_tokens value of 2000 but the supported range is from 1 (inclusive) to 901 (exclusive).",
    "invalid request: max tokens must be less than or equal to 900",
    "max_tokens (2000) is too large. The maximum allowed value for this model is 900.",
    "max_tokens: Input should be less than or equal to 900",
    "max_tokens参数非法。取值范围为[1,900]",
    "max_tokens (2000) exceeds the maximum output tokens of 900 for model fw",
    "max_tokens cannot exceed 900",
    "max_tokens must be less than 901, got 2000",
    "max_completion_tokens: maximum completion tokens is 900, requested 2000",
)
FORMATS = (
    "This response_format type is unavailable now",
    "Failed to deserialize the JSON body: response_format.type `json_schema` is unavailable now at line 1 column 12440",
    "This model does not support response format `json_schema`. See supported models",
    "Invalid input: response_format",
    "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.",
    "The provided JSON schema contains features not supported by xgrammar.",
    "failed to parse grammar",
)
SERVICES: Body = {"user": "u", "metadata": {"a": "b"}, "prompt_cache_key": "k", "verbosity": "low"}
SERVICES |= {"service_tier": "flex", "prompt_cache_retention": "24h", "prompt_cache_options": {"mode": "explicit"}}
MARKED = Turn.of("user", [Text("Hi", breakpoint={"mode": "explicit"})])
NAMED = {"messages": [Turn.of("user", "Hi", name="Ada")]}
THOUGHTS = loop(thoughts="Hm.")
TWO_CALLS = TOOLS | {"messages": [USER, Turn.of("assistant", calls=tuple(
    Call(id=one, name="get_weather", arguments="{}") for one in "ab")), *(
    Turn.of("tool", "3", call_id=one) for one in "ba"), USER]}  # fmt: skip
# With a property that is named as a keyword is.
PATTERN: Body = {"type": "string", "pattern": "a"}
KEYWORDS: Body = {"n": {"type": "integer", "exclusiveMinimum": 0}, "c": {"type": "string", "const": "x"}}
KEYWORDS |= {"t": {"type": ["null", "string"]}, "exclusiveMinimum": {"type": "string"}, "pattern": PATTERN}
WITH_KEYWORDS = {"tooling": Tooling(tools=(Tool(name="f", parameters={"type": "object", "properties": KEYWORDS}),))}
TAKEN = {"type": "object", "properties": KEYWORDS | {"n": {"type": "integer"}, "t": {"type": "string"}}}
TAKEN["properties"] |= {"c": {"type": "string", "enum": ["x"]}}
ROWS = [
    *(Row(f"limit {place}", words, limit, LONG) for place, words in enumerate(LIMITS)),
    *(Row(f"format {place}", words, schema, JSON) for place, words in enumerate(FORMATS)),
    Row("no format", "response_format is not supported by this model", has("response_format"), JSON),
    Row("nor any JSON", "response_format is not supported", has("response_format"),
        {"response_format": {"type": "json_object"}}),
    Row("openrouter", "No endpoints found that can handle the requested parameters.", schema, JSON, status=404),
    Row("JSON with tools", "json mode cannot be combined with tool/function calling",
        lambda body: {"tools", "response_format"} <= body.keys(), JSON | TOOLS),
    Row("the word", "'messages' must contain the word 'json' in some form, to use 'response_format'",
        lambda body: "json" not in json.dumps(body["messages"]).lower(), {"response_format": {"type": "json_object"}}),
    Row("forced, deepseek", "Thinking mode does not support this tool_choice", thinking, FORCED),
    Row("forced, qwen", "The tool_choice parameter does not support being set to required or object in thinking mode",
        thinking, FORCED),
    Row("forced, kimi", "tool_choice 'specified' is incompatible with thinking enabled", thinking,
        {"tooling": Tooling(tools=(WEATHER,), choice="named", name="get_weather")}),
    Row("streams alone", "This model only support stream mode, please enable the stream parameter",
        lambda body: not body["stream"], {}),
    Row("streams while thinking", "parameter.enable_thinking must be set to false for non-streaming calls",
        lambda body: not body["stream"], {}),
    Row("streams in detail", {"detail": "Stream must be set to true"}, lambda body: not body["stream"], {}),
    Row("stop", "Unsupported parameter: 'stop' is not supported with this model.", has("stop"), {"stop": ("END",)}),
    Row("stops", "len(stop) > 4 is not supported", many_stops, FIVE),
    Row("stops, Gemini", "it has a stopSequences value of 7 but the supported range is from 1 to 6 (exclusive).",
        many_stops, FIVE),
    Row("stops, OpenAI", "Invalid 'stop': array too long. Expected an array with maximum length 4.", many_stops, FIVE),
    Row("n", "Invalid n value (currently only n = 1 is supported)", lambda body: body.get("n", 1) > 1, {"n": 2}),
    Row("n, number", "'n' : number must be at most 1", lambda body: body.get("n", 1) > 1, {"n": 2}),
    Row("n, range", "Range of n should be [1, 1]", lambda body: body.get("n", 1) > 1, {"n": 2}),
    Row("effort", "Unsupported value: 'reasoning_effort' does not support 'max' with this model. Supported values are: "
        "'low', 'medium', and 'high'.", effort("low", "medium", "high"), {"reasoning_effort": "max"}),
    Row("effort, level", 'level "max" not supported, valid levels: low, medium, high, xhigh', effort("xhigh"),
        {"reasoning_effort": "max"}),
    Row("effort or none", "`reasoning_effort` must be one of `none` or `default`", effort("none", "default"),
        {"reasoning_effort": "high"}),
    Row("effort, pydantic", {"detail": [{"type": "enum", "loc": ["body", "reasoning_effort"],
                                         "msg": "Input should be 'none' or 'high'"}]},
        effort("none", "high"), {"reasoning_effort": "medium"}, status=422),
    Row("effort, one", {"error": {"message": "Unsupported value: 'low' is not supported with the 'm' model. Supported "
                                  "values are: 'high'.", "param": "reasoning_effort"}},
        effort("high"), {"reasoning_effort": "low"}),
    Row("no effort at all", "\"m\" does not support thinking", has("reasoning_effort"), {"reasoning_effort": "high"}),
    Row("not none", "Invalid value: 'none' is not supported for reasoning_effort. Supported values: low, medium, high",
        effort("low", "medium", "high"), {"reasoning_effort": "none"}),
    Row("tools in chats", "Function tools with reasoning_effort are not supported for gpt-5.6 in /v1/chat/completions. "
        "To use function tools, use /v1/responses or set reasoning_effort to 'none'.",
        lambda body: body.get("tools") and body.get("reasoning_effort") != "none", TOOLS),
    Row("tools and effort", "Function tools with reasoning_effort are not supported for gpt-5.4 in "
        "/v1/chat/completions. Please use /v1/responses instead.", has("reasoning_effort"),
        TOOLS | {"reasoning_effort": "high"}),
    Row("a verbosity", {"error": {"message": "Unsupported value: 'low' is not supported. Supported are: 'medium'.",
                                  "param": "verbosity", "code": "unsupported_value"}},
        has("verbosity"), {"passed": {"verbosity": "low"}}),
    Row("no streams", "Your organization must be verified to stream this model. Please go to: https://a.b/c",
        lambda body: body["stream"], {}),
    *(Row(f"field {name}", extra(name), has(name), {"passed": {name: value}}, status=422)
      for name, value in SERVICES.items()),
    Row("thoughts field", extra("enable_thinking"), has("enable_thinking"), {"extra": {"enable_thinking": False}}),
    Row("unknown fields", "Unrecognized request arguments supplied: min_p, top_a", has("min_p", "top_a"),
        {"extra": {"top_a": 0.4}, "sampling": SamplingParams(min_p=0.1)}),
    Row("variables", "Extra inputs are not permitted, field: 'chat_template_kwargs'", has("chat_template_kwargs"),
        {"template_variables": {"enable_thinking": False}}, "vllm"),
    Row("thoughts, Groq", "'messages.1' : for 'role:assistant' the following must be satisfied[('messages.1' : "
        "property 'reasoning_content' is unsupported)]", turns(has("reasoning_content")), THOUGHTS),
    Row("thoughts, Fireworks", "Extra inputs are not permitted, field: 'messages[1].reasoning_content', value: 'Hm.'",
        turns(has("reasoning_content")), THOUGHTS),
    Row("thoughts, pydantic", extra("messages", 1, "assistant", "reasoning_content"), turns(has("reasoning_content")),
        THOUGHTS, status=422),
    Row("names", extra("messages", 0, "user", "name"), turns(has("name")), NAMED, status=422),
    Row("names, OpenAI", "Invalid 'messages[0].name': string does not match pattern.", turns(has("name")), NAMED),
    Row("no user", "No user query found in messages.", lambda body: "user" not in roles(body), {"messages": [SYSTEM]}),
    Row("no user, Z.ai", {"error": {"code": "1214", "message": "messages 参数非法。请检查文档。"}},
        lambda body: "user" not in roles(body), {"messages": [SYSTEM]}),
    Row("alternate", "Conversation roles must alternate user/assistant/user/assistant/...",
        repeats, {"messages": [USER, USER]}),
    Row("alternate, Perplexity", "After the (optional) system message(s), user or tool message(s) should alternate "
        "with assistant message(s).", repeats,
        {"messages": [USER, Turn.of("assistant", "a"), USER, USER]}),
    Row("cut off arguments", "Failed to parse tool call arguments as JSON: parse error at line 1, column 10",
        calls(is_cut), loop('{"city": "Os'), "openai-provider", 500),
    Row("cut off arguments, Python", "Unterminated string starting at: line 1 column 10 (char 9)", calls(is_cut),
        loop('{"city": "Os'), "openai-provider"),
    Row("no content", "messages[1].content: Input should be a valid string",
        turns(lambda turn: turn["content"] is None), loop()),
    Row("empty answers", "Assistant message must have either content or tool_calls, but not none.",
        turns(lambda turn: not turn["content"]), {"messages": [USER, EMPTY, USER]}),
    Row("user after tool", "Unexpected role 'user' after role 'tool'",
        lambda body: ("tool", "user") in pairwise(roles(body)), loop() | {"messages": [*loop()["messages"], USER]}),
    Row("ids of nine", "Tool call id was c1 but must be a-z, A-Z, 0-9, with a length of 9.",
        calls(lambda call: len(call["id"]) != 9), loop()),
    Row("long ids", "Invalid 'messages[1].tool_calls[0].id': string too long. Expected 40, got 60.",
        calls(lambda call: len(call["id"]) > 40), loop(call_id="c" * 60)),
    Row("results", "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
        "'tool_call_id'.", lambda body: ("assistant", "user") in pairwise(roles(body)),
        loop() | {"messages": [*loop()["messages"][:2], USER]}),
    Row("names of tools", "Invalid 'tools[0].function.name': string does not match pattern '^[a-zA-Z0-9_-]+$'.",
        functions(lambda one: "." in one["name"]), {"tooling": Tooling(tools=(Tool(name="a.b"),))}),
    Row("parameters", "tools.0.function.parameters: Field required", functions(lambda one: "parameters" not in one),
        {"tooling": Tooling(tools=(Tool(name="f"),))}),
    Row("descriptions", "tools.0.function.description: Field required", functions(lambda one: "description" not in one),
        TOOLS),
    Row("alternatives", "input_schema does not support oneOf, allOf, or anyOf at the top level",
        functions(lambda one: "anyOf" in one["parameters"]),
        {"tooling": Tooling(tools=(Tool(name="f", parameters={"type": "object", "anyOf": [CITY]}),))}),
    Row("strict", "Unknown parameter: 'tools[0].function.strict'.", functions(has("strict")),
        {"tooling": Tooling(tools=(msgspec.structs.replace(WEATHER, strict=True),))}),
    Row("no parser", '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        lambda body: body.get("tools") and body.get("tool_choice") != "none", TOOLS),
    *(Row(f"a tool by its name {place}", words, lambda body: isinstance(body.get("tool_choice"), dict),
          {"tooling": Tooling(tools=(Tool(name="f"), WEATHER), choice="named", name="get_weather")})
      for place, words in enumerate((
          "Invalid tool_choice type: 'object'. Supported string values: none, auto, required",
          "tool_choice: Input should be 'none', 'auto' or 'required'"))),
    *(Row(f"a call that must be {place}", words, lambda body: body.get("tool_choice") not in (None, "auto"), FORCED)
      for place, words in enumerate((
          "This model doesn't support the toolConfig.toolChoice.any field. Remove it and try again.",
          "tool_choice: 'required' is not supported. Only 'auto' and 'none' are.",
          "tool_choice=required is not supported by this model"))),
    Row("forced, reasoner", "deepseek-reasoner does not support this tool_choice", thinking, FORCED),
    *(Row(f"tools of earlier calls {place}", words, lambda body: not body.get("tools"),
          {"messages": loop()["messages"]})
      for place, words in enumerate((
          "Requests which have `tool_use` or `tool_result` blocks in messages must define tools.",
          "The toolConfig field must be defined when using toolUse and toolResult content blocks.",
          "litellm.UnsupportedParamsError: Bedrock doesn't support tool calling without `tools=` param specified."))),
    Row("names of results", "* GenerateContentRequest.contents[2].parts[0].function_response.name: empty.",
        turns(lambda turn: turn["role"] == "tool" and turn.get("name") != "get_weather"), loop()),
    Row("no names of results", "messages.2.name: Extra inputs are not permitted",
        turns(has("name")), loop() | {"messages": [*loop()["messages"][:2],
        msgspec.structs.replace(loop()["messages"][2], name="get_weather")]}),
    Row("keywords, Google", {"error": {"message": "Provider returned error", "metadata": {"raw": json.dumps({
        "message": "Invalid JSON payload received. Unknown name \"exclusiveMinimum\" at 'tools[0].function_declarations"
        "[0].parameters.properties[0].value': Cannot find field.\nUnknown name \"const\" at 'tools[0].function_"
        "declarations[0].parameters.properties[1].value': Cannot find field.\nInvalid value at 'tools[0].function_"
        "declarations[0].parameters.properties[2].value.type' (type), Proto field is not repeating, cannot start list."
        })}}}, functions(lambda one: one["parameters"] != TAKEN), WITH_KEYWORDS),
    Row("keywords, Cerebras", "Unsupported JSON schema fields: {'exclusiveMinimum'}",
        functions(lambda one: "exclusiveMinimum" in one["parameters"]["properties"]["n"]), WITH_KEYWORDS),
    Row("keywords, strict", "Invalid schema for function 'f': In context=('properties', 'n'), 'exclusiveMinimum' is "
        "not permitted.", functions(lambda one: "exclusiveMinimum" in one["parameters"]["properties"]["n"]),
        WITH_KEYWORDS),
    *(Row(f"no grammar {place}", words, functions(lambda one: "pattern" in one["parameters"]["properties"]["pattern"]),
          WITH_KEYWORDS, status=400 + 100 * place)
      for place, words in enumerate((
          "JSON schema conversion failed:\nPattern must start with '^' and end with '$'",
          "Failed to initialize samplers: failed to parse grammar"))),
    Row("no properties", "* GenerateContentRequest.tools[0].function_declarations[0].parameters.properties: should be "
        "non-empty for OBJECT type", functions(lambda one: one.get("parameters", CITY)["properties"] == {}),
        {"tooling": Tooling(tools=(Tool(name="f", parameters={"type": "object", "properties": {}}),))}),
    Row("a digit first", "function name is invalid, must start with a letter and can contain letters, numbers",
        functions(lambda one: one["name"][0].isdigit()), {"tooling": Tooling(tools=(Tool(name="1c_find"),))}),
    Row("a long description", "Invalid 'tools[0].function.description': string too long. Expected a string with "
        "maximum length 1024, but got a string with length 3000.",
        functions(lambda one: len(one["description"]) > 1024),
        {"tooling": Tooling(tools=(Tool(name="f", description="d" * 3000),))}),
    Row("single calls", "This model only supports single tool-calls at once!",
        lambda body: roles(body) != ["user", *["assistant", "tool"] * 2, "user"], TWO_CALLS),
    Row("ids that are unique", "messages.3.content.0: `tool_use` ids must be unique",
        lambda body: len({*ids_of(body)}) < len(ids_of(body)),
        TOOLS | {"messages": [*loop()["messages"], *loop()["messages"][1:]]}),
    Row("as many results", "Not the same number of function calls and responses",
        lambda body: roles(body).count("tool") < len(ids_of(body)),
        TWO_CALLS | {"messages": [*TWO_CALLS["messages"][:3], USER]}),
    Row("two roles", "Only user and assistant roles are supported!", lambda body: "system" in roles(body),
        {"messages": [SYSTEM, USER]}),
    Row("warm thoughts", "`temperature` may only be set to 1 when thinking is enabled.", has("temperature"),
        {"sampling": SamplingParams(temperature=0.2)}),
    Row("no choices", "property 'n' is unsupported", has("n"), {"given": ("n",)}),
    Row("usage", "Unknown parameter: 'stream_options.include_usage'.", has("stream_options"), {}),
    Row("cold", "`temperature` must be strictly positive, got 0", lambda body: body.get("temperature", 1) <= 0,
        {"sampling": SamplingParams(temperature=0)}),
    Row("cold, Z.ai", "temperature 参数非法。取值范围为(0,1)", lambda body: body.get("temperature", 1) <= 0,
        {"sampling": SamplingParams(temperature=0)}),
    Row("hot", "temperature: range: 0..1", lambda body: body.get("temperature", 1) > 1,
        {"sampling": SamplingParams(temperature=1.7)}),
    Row("top_p", "top_p must be less than 1", lambda body: body.get("top_p", 0) >= 1, {"given": ("top_p",)}),
    Row("system", "System message must be at the beginning.", lambda body: "system" in roles(body)[1:],
        {"messages": [USER, SYSTEM, USER]}, "openai-provider"),
    Row("no system", "System role not supported", lambda body: "system" in roles(body), {"messages": [SYSTEM, USER]}),
    Row("prefill", "This model does not support assistant message prefill.",
        lambda body: roles(body)[-1] == "assistant", {"messages": [USER, Turn.of("assistant", "So")]}),
    Row("thoughts that are missing", "The reasoning_content in the thinking mode must be passed back to the API.",
        turns(lambda turn: turn.get("tool_calls") and "reasoning_content" not in turn), loop()),
    Row("budgets alone", "thinking.type: Input should be 'enabled' or 'disabled'",
        lambda body: body.get("thinking", {}).get("type") == "adaptive",
        {"max_tokens": 5000, "reasoning_effort": "low"}, "anthropic"),
    Row("a text of the system", "system: Input should be a valid string",
        lambda body: isinstance(body.get("system"), list), {"messages": [BLOCKS, USER]}, "anthropic"),
    Row("breakpoints", {"error": {"message": "Unknown parameter: 'messages[0].content[0].prompt_cache_breakpoint'.",
                                  "param": "messages[0].content[0].prompt_cache_breakpoint",
                                  "code": "unknown_parameter"}},
        turns(lambda turn: turn["content"] != "Hi"), {"messages": [MARKED]}),
    Row("signatures", "Function call is missing a thought_signature in functionCall parts.",
        calls(lambda call: "extra_content" not in call), loop()),
]  # fmt: skip


def request_of(row: Row, *, whole: bool) -> GenerationRequest:
    asked = {"sampling": SamplingParams(temperature=1.0)} | row.asked
    request = chat(whole=whole, **{name: value for name, value in asked.items() if name != "messages"})
    return msgspec.structs.replace(request, messages=asked.get("messages", request.messages))


async def play(row: Row, call: Received) -> None:
    if row.refuses(call.body):
        error = {"error": {"message": row.words, "type": "invalid_request_error"}}
        await call.reply(row.status, row.words if isinstance(row.words, dict) else error)
        return
    if row.kind == "anthropic":
        said = {"content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn"}
        await call.reply(200, {"type": "message", "usage": {"input_tokens": 9, "output_tokens": 1}} | said)
        return
    await call.say("Hi")


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in ROWS])
async def test_a_request_is_sent_as_a_refusal_says_and_the_next_one_at_once(row: Row) -> None:
    learned = LearnedRefusals()
    async with LoopbackServer(lambda call: play(row, call)) as server:
        spec = remote_spec(server.base_url, kind=row.kind, model="m", max_context=9000)
        tier = RemoteTier(spec, refusals=learned, environ={})
        for whole in (True, False):
            request = request_of(row, whole=whole)
            answers, _ = await collect(tier, request)
            assert {answer.text for answer in answers} == {"Hi"}
            refused = sum(bool(row.refuses(call.body)) for call in server.calls)
            if not whole:
                assert refused <= 2, "the second request is not refused again"
        await tier.close()
    assert refused


async def test_forms_that_are_not_taken_are_asked_for_in_the_prompt_and_named() -> None:
    row = next(row for row in ROWS if row.name == "no format")
    async with LoopbackServer(lambda call: play(row, call)) as server:
        tier = RemoteTier(remote_spec(server.base_url, kind="openai"), refusals=LearnedRefusals())
        request = request_of(row, whole=True)
        await collect(tier, request)
        await tier.close()
    asked = [call.body.get("response_format", {}).get("type") for call in server.calls]
    assert asked == ["json_schema", "json_object", None]
    first, *_ = server.calls[-1].body["messages"]
    assert first["role"] == "system"
    assert json.dumps(CITY, separators=(",", ":")) in first["content"]
    assert request.sent.changed == ("response_format",)


@pytest.mark.parametrize(
    ("status", "kind"), [(400, TierRequestError), (404, TierUnavailableError), (500, TierUnavailableError)]
)
async def test_a_refusal_that_nothing_can_be_done_about_is_what_its_status_says(status: int, kind: type) -> None:
    words = {"error": {"message": "Failed to parse tool call arguments as JSON: parse error at line 1"}}
    async with LoopbackServer(lambda call: call.reply(status, words)) as server:
        learned = LearnedRefusals()
        tier = RemoteTier(remote_spec(server.base_url), refusals=learned)
        with pytest.raises(kind, match=r"arguments as JSON"):
            await collect(tier, chat(whole=True))
        await tier.close()
    assert len(server.calls) == 1
    assert learned.listed() == []


async def test_a_model_that_responses_alone_have_is_asked_there() -> None:
    async def only_there(call: Received) -> None:
        if call.path.endswith("/chat/completions"):
            await call.reply(404, {"error": {"message": "This model is only supported in v1/responses."}})
            return
        said = {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}
        await call.reply(200, {"status": "completed", "output": [said]})

    async with LoopbackServer(only_there) as server:
        spec = remote_spec(server.base_url, kind="openai-provider", model="gpt-5.3-codex", responses="needed")
        tier = RemoteTier(spec, refusals=LearnedRefusals())
        for _ in range(2):
            (answer,), _ = await collect(tier, chat(whole=True, sampling=SamplingParams(temperature=1.0)))
            assert answer.text == "Hi"
        await tier.close()
    assert [call.path.rpartition("/v1/")[2] for call in server.calls] == ["chat/completions", *["responses"] * 2]


def test_every_lesson_is_taught_by_some_row() -> None:
    said = [parse_error(json.dumps(row.words).encode()).message for row in ROWS]
    found = {name for words in said for name in lessons_in(words, None, None)}
    # The first is what a second refusal of a format teaches; the others are tested apart.
    apart = {"response_format.type", "chat/completions", "include", "reasoning.summary"}
    assert {lesson.name for lesson in REFUSAL_ROWS.lessons} - found == apart


@pytest.mark.parametrize(
    ("words", "holds"),
    [
        ("Encrypted content is not supported with this model.", lambda body: body.get("include")),
        ("Unknown parameter: 'include'.", lambda body: "include" in body),
        (
            "Your organization must be verified to generate reasoning summaries.",
            lambda body: body["reasoning"].get("summary"),
        ),
        ("Unsupported parameter: 'reasoning.summary' is not supported.", lambda body: body["reasoning"].get("summary")),
        ("Unsupported parameter: 'text.verbosity' is not supported.", lambda body: body["text"].get("verbosity")),
    ],
)
async def test_what_a_server_of_responses_does_not_know_is_left_out(words: str, holds: Callable[[Body], Any]) -> None:
    async def refuse(call: Received) -> None:
        if holds(call.body):
            await call.reply(400, {"error": {"message": words}})
            return
        said = {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}
        await call.reply(200, {"status": "completed", "output": [said]})

    fields = {"reasoning": b'{"effort":"low","summary":"auto"}', "text": b'{"verbosity":"low"}'}
    async with LoopbackServer(refuse) as server:
        spec = remote_spec(server.base_url, kind="openai-provider", model="m", responses="always")
        tier = RemoteTier(spec, refusals=LearnedRefusals())
        for _ in range(2):
            asked = chat(
                whole=True, sampling=SamplingParams(temperature=1.0), native=NativeRequest("responses", fields)
            )
            (answer,), _ = await collect(tier, asked)
            assert answer.text == "Hi"
        await tier.close()
    assert len(server.calls) == 3
    assert asked.sent.dropped


@pytest.mark.parametrize(
    "words",
    [
        "Invalid schema for response_format 'a': In context=(), 'additionalProperties' is required",
        "Invalid value for 'temperature': expected a number",
        "The image could not be read.",
        "messages: array too long",
    ],
)
def test_a_refusal_of_what_is_wrong_teaches_nothing(words: str) -> None:
    assert list(lessons_in(words, None, None)) == []


async def test_a_key_that_is_wrong_is_no_lesson() -> None:
    async with LoopbackServer(lambda call: call.reply(500, {"error": {"code": "invalid_api_key"}})) as server:
        tier = RemoteTier(remote_spec(server.base_url), refusals=LearnedRefusals())
        with pytest.raises(TierKeyError):
            await collect(tier, chat(whole=True))
        await tier.close()


async def test_a_client_that_leaves_choices_asked_one_by_one_frees_their_connections_at_once() -> None:
    async def endless(call: Received) -> None:
        if call.body.get("n", 1) > 1:
            await call.reply(400, {"error": {"message": "Invalid n value (currently only n = 1 is supported)"}})
            return
        await call.begin()
        await call.chunk("Hi")
        await server.disconnected.wait()

    async with LoopbackServer(endless) as server:
        tier = RemoteTier(remote_spec(server.base_url, kind="openai"), refusals=LearnedRefusals())
        answers = tier.generate(chat(n=2))
        async for delta in answers:
            if delta.text:
                break
        await answers.aclose()
        assert tier.load().running == 0
        await server.disconnected.wait()
        await tier.close()
