"""Scripted servers that refuse what their provider's published rules forbid, in the provider's words. The rules are
written here a second time, from their sources, so that those of `tiers.dialects.rules` are checked against them."""

import json
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from tests.support.upstream import Call

Body = dict[str, Any]
Check = Callable[[Body], str | None]
OPENAI = ("openai", "azure")
LOCAL = ("vllm", "sglang", "ollama", "llama-server")
CHAT = (*OPENAI, "mistral", "deepseek", "openrouter", "groq", *LOCAL)
SERVERS = (*CHAT, "anthropic", "gemini", "bedrock")


class Rule(NamedTuple):
    """What `servers` refuse. `source`: where it is published, or the report of the refusal."""

    servers: tuple[str, ...]
    source: str
    check: Check


def names_of(body: Body) -> Iterator[str]:
    for tool in body.get("tools") or []:
        yield (tool.get("function") or tool)["name"]


def ids_of(body: Body) -> Iterator[str]:
    for turn in body["messages"]:
        yield from (call["id"] for call in turn.get("tool_calls") or [])
        if turn["role"] == "tool":
            yield turn["tool_call_id"]


def bad_name(most: int) -> Check:
    def check(body: Body) -> str | None:
        bad = [name for name in names_of(body) if not re.fullmatch(rf"[a-zA-Z0-9_-]{{1,{most}}}", name)]
        return (
            f"Invalid tools[0].function.name: {bad[0]!r} does not match '^[a-zA-Z0-9_-]{{1,{most}}}$'" if bad else None
        )

    return check


def long_id(body: Body) -> str | None:
    bad = [call_id for call_id in ids_of(body) if len(call_id) > 40]
    return f"Invalid 'messages[1].tool_calls[0].id': string too long. Expected 40, got {len(bad[0])}." if bad else None


def mistrals_id(body: Body) -> str | None:
    bad = [call_id for call_id in ids_of(body) if not re.fullmatch("[a-zA-Z0-9]{9}", call_id)]
    return f"Tool call id was {bad[0]} but must be a-z, A-Z, 0-9, with a length of 9." if bad else None


def unanswered_result(body: Body) -> str | None:
    roles = [turn["role"] for turn in body["messages"]]
    after = ("tool", "user") in pairwise(roles)
    return "Unexpected role 'user' after role 'tool'" if after else None


def many_stops(most: int) -> Check:
    def check(body: Body) -> str | None:
        stops = body.get("stop") or []
        return f"'stop' has {len(stops)} items; at most {most}" if len(stops) > most else None

    return check


def combined_schema(body: Body) -> str | None:
    for tool in body.get("tools") or []:
        schema = (tool.get("function") or tool).get("parameters")
        if schema is None:
            continue
        if schema.get("type") != "object" or {"anyOf", "oneOf", "allOf", "enum", "not"} & schema.keys():
            return "Invalid schema for function 'f': schema must have type 'object' and no 'anyOf' at the top level."
        if not isinstance(schema.get("properties"), dict):
            return "Invalid schema for function 'f': In context=(), object schema missing properties."
    return None


def refused(*names: str, of: str = "") -> Check:
    def check(body: Body) -> str | None:
        refused_name = next((name for name in names if name in body), None)
        here = re.search(of, body.get("model", "")) is not None
        return (
            f"Unsupported parameter: '{refused_name}' is not supported with this model."
            if refused_name and here
            else None
        )

    return check


def late_system(body: Body) -> str | None:
    late = any(turn["role"] == "system" for turn in body["messages"][1:])
    return "System message must be at the beginning." if late else None


def unanswered(body: Body) -> str | None:
    waiting: set[str] = set()
    for turn in body["messages"]:
        if turn["role"] == "tool":
            if turn["tool_call_id"] not in waiting:
                return "messages with role 'tool' must be a response to a preceding message with 'tool_calls'."
            waiting.discard(turn["tool_call_id"])
        elif waiting:
            return f"An assistant message with 'tool_calls' must be followed by tool messages: {waiting}"
        waiting |= {call["id"] for call in turn.get("tool_calls") or []}
    return None


def blank_answer(body: Body) -> str | None:
    for turn in body["messages"]:
        if turn["role"] == "assistant" and not turn.get("content") and not turn.get("tool_calls"):
            return "Assistant message must have either content or tool_calls, but not none."
    last = body["messages"][-1]
    if last["role"] == "assistant" and not last.get("prefix"):
        return "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant"
    return None


def known_roles(body: Body) -> str | None:
    roles = {turn["role"] for turn in body["messages"]} - {"system", "user", "assistant", "tool"}
    return f"unknown role {roles}" if roles else None


def media_result(body: Body) -> str | None:
    turns = [turn for turn in body["messages"] if turn["role"] == "tool" and not isinstance(turn["content"], str)]
    bad = any(part["type"] != "text" for turn in turns for part in turn["content"])
    return "Invalid 'messages[2]'. Image URLs are only allowed for messages with role 'user'." if bad else None


def jpg(body: Body) -> str | None:
    return "Invalid image: unsupported type image/jpg" if "image/jpg" in json.dumps(body) else None


def effort_of(*taken: str) -> Check:
    def check(body: Body) -> str | None:
        asked = body.get("reasoning_effort")
        return (
            f"Unsupported value: 'reasoning_effort' does not support {asked!r}. Supported values are: {taken}"
            if (asked not in (None, *taken))
            else None
        )

    return check


def of_anthropic(body: Body) -> str | None:
    """https://platform.claude.com/docs/en/api/messages, and its page on system turns in a conversation."""
    if unsupported := body.keys() & {"temperature", "top_p", "top_k"}:
        return f"`{min(unsupported)}` is deprecated for this model."
    for tool in body.get("tools") or []:
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", tool["name"]):
            return "tools.0.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'"
        if {"anyOf", "oneOf", "allOf"} & tool["input_schema"].keys() or tool["input_schema"].get("type") != "object":
            return "tools.0.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level"
    if any(not stop.strip() for stop in body.get("stop_sequences") or []):
        return "stop_sequences: each stop sequence must contain non-whitespace"
    if any(not block["text"].strip() for block in body.get("system", []) if isinstance(body.get("system"), list)):
        return "system: text content blocks must be non-empty"
    turns = body["messages"]
    if turns[0]["role"] != "user" or turns[-1]["role"] == "assistant":
        return 'messages: first message must use the "user" role, and the conversation must end with a user message'
    seen: set[str] = set()
    waiting: set[str] = set()
    for index, turn in enumerate(turns):
        blocks = [{"type": "text", "text": turn["content"]}] if isinstance(turn["content"], str) else turn["content"]
        if turn["role"] == "system" and turns[index - 1]["role"] != "user":
            return "messages: a system message must follow a user message"
        if not blocks or any(block["type"] == "text" and not block["text"].strip() for block in blocks):
            return "messages: text content blocks must contain non-whitespace text"
        results = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
        if results != waiting:
            return f"messages.{index}: `tool_use` ids were found without `tool_result` blocks: {waiting ^ results}"
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if seen & set(calls) or len(set(calls)) < len(calls):
            return "messages: `tool_use` ids must be unique"
        if any(not re.fullmatch("[a-zA-Z0-9_-]+", call_id) for call_id in calls):
            return "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
        seen |= set(calls)
        waiting = set(calls)
    return None


def of_responses(body: Body) -> str | None:
    """https://platform.openai.com/docs/api-reference/responses/create"""
    if unsupported := body.keys() & {"temperature", "top_p", "stop", "max_tokens"}:
        return f"Unsupported parameter: '{min(unsupported)}' is not supported with this model."
    if any(not re.fullmatch("[a-zA-Z0-9_-]{1,64}", name) for name in names_of(body)):
        return "Invalid 'tools[0].name': string does not match pattern '^[a-zA-Z0-9_-]+$'."
    if (body.get("reasoning") or {}).get("effort") not in (None, "minimal", "low", "medium", "high"):
        return "Unsupported value: 'reasoning.effort'. Supported values are: 'minimal', 'low', 'medium', and 'high'."
    calls = [item["call_id"] for item in body["input"] if item.get("type") == "function_call"]
    if any(len(call_id) > 64 for call_id in calls):
        return "Invalid 'input[1].call_id': string too long."
    return combined_schema(body)


def of_gemini(body: Body) -> str | None:
    """https://ai.google.dev/api/generate-content"""
    for tool in body.get("tools") or []:
        for function in tool["functionDeclarations"]:
            if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}", function["name"]):
                return "Invalid function name. Must start with a letter or an underscore."
    if len(body["generationConfig"].get("stopSequences", [])) > 5:
        return "the number of stop sequences must be at most 5"
    turns = body["contents"]
    if turns[0]["role"] != "user" or any(turn["role"] not in ("user", "model") for turn in turns):
        return "Please use a valid role: user, model."
    return None if all(turn["parts"] for turn in turns) else "contents.parts must not be empty."


def of_bedrock(body: Body) -> str | None:
    """https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html"""
    turns = body["messages"]
    if turns[0]["role"] != "user":
        return "A conversation must start with a user message."
    if any(turn["role"] == following["role"] for turn, following in pairwise(turns)):
        return "A conversation must alternate between user and assistant roles."
    blocks = [block for turn in turns for block in turn["content"]]
    uses = [block["toolUse"]["toolUseId"] for block in blocks if "toolUse" in block]
    results = [block["toolResult"]["toolUseId"] for block in blocks if "toolResult" in block]
    if any(not re.fullmatch("[a-zA-Z0-9_-]{1,64}", call_id) for call_id in uses + results) or len(set(uses)) < len(
        uses
    ):
        return "Value at 'messages.toolUse.toolUseId' failed to satisfy constraint: [a-zA-Z0-9_-]+"
    if set(uses) != set(results):
        return "Expected toolResult blocks for the following ids"
    tools = body.get("toolConfig", {}).get("tools", [])
    if any(not re.fullmatch("[a-zA-Z0-9_-]{1,64}", tool["toolSpec"]["name"]) for tool in tools if "toolSpec" in tool):
        return "Value at 'toolConfig.tools.toolSpec.name' failed to satisfy constraint: [a-zA-Z0-9_-]+"
    if uses and not tools:
        return "The toolConfig field must be defined when using toolUse and toolResult content blocks."
    if any(not block["text"].strip() for block in blocks if "text" in block):
        return "The text field in the ContentBlock object is blank."
    return None


RULES = [
    Rule((*OPENAI, "mistral", "groq", "deepseek"), "https://platform.openai.com/docs/api-reference/chat", bad_name(64)),
    Rule(OPENAI, "https://github.com/cline/cline/issues (ids of at most 40 characters)", long_id),
    Rule(("mistral",), "https://github.com/mistralai/mistral-common (validator.py)", mistrals_id),
    Rule(("mistral",), "https://github.com/mistralai/mistral-common (validator.py)", blank_answer),
    Rule(("mistral",), "https://github.com/mistralai/mistral-common (validator.py)", unanswered_result),
    Rule(("groq",), "https://console.groq.com/docs/api-reference", many_stops(4)),
    Rule(("deepseek",), "https://api-docs.deepseek.com/api/create-chat-completion", many_stops(16)),
    Rule(OPENAI, "https://platform.openai.com/docs/guides/function-calling", combined_schema),
    Rule(
        OPENAI,
        "https://platform.openai.com/docs/guides/reasoning",
        refused(
            "temperature", "top_p", "presence_penalty", "frequency_penalty", "max_tokens", "logit_bias", "stop",
            of="gpt-5",
        ),
    ),
    Rule(OPENAI, "https://platform.openai.com/docs/guides/reasoning", effort_of("minimal", "low", "medium", "high")),
    Rule(("groq",), "https://console.groq.com/docs/reasoning", effort_of("low", "medium", "high")),
    Rule(OPENAI, "https://platform.openai.com/docs/guides/images-vision", jpg),
    Rule((*OPENAI, "groq"), "https://platform.openai.com/docs/api-reference/chat/create", media_result),
    Rule((*OPENAI, "deepseek", "groq"), "https://platform.openai.com/docs/guides/function-calling", unanswered),
    Rule(("mistral", *LOCAL), "https://huggingface.co/Qwen/Qwen3.5-9B (chat template)", late_system),
    Rule(("mistral", "deepseek", *LOCAL), "https://docs.mistral.ai/api", known_roles),
    Rule(("anthropic",), str(of_anthropic.__doc__), of_anthropic),
    Rule(("gemini",), str(of_gemini.__doc__), of_gemini),
    Rule(("bedrock",), str(of_bedrock.__doc__), of_bedrock),
]  # fmt: skip


def broken_rule(server: str, body: Body) -> str | None:
    """Return what the server says of the first rule that a request breaks."""
    return next((said for rule in RULES if server in rule.servers and (said := rule.check(body))), None)


async def strict(server: str, call: Call) -> None:
    """Answer with a call of the request's first tool where the last turn is the user's and has tools, else with a text;
    refuse what breaks a rule."""
    items = call.path.endswith("/responses")
    if (said := of_responses(call.body) if items else broken_rule(server, call.body)) is not None:
        error = {"message": said, "type": "invalid_request_error", "param": None, "code": None}
        await call.reply(400, {"type": "error", "error": error, "message": said})
        return
    await call.reply(200, responses_answer(call.body) if items else _ANSWERS.get(server, chat_answer)(call.body))


def chat_answer(body: Body) -> Body:
    message: Body = {"role": "assistant", "content": "ok"}
    if body.get("tools") and body["messages"][-1]["role"] == "user":
        function = {"name": next(names_of(body)), "arguments": "{}"}
        message = {"role": "assistant", "content": None}
        # Some servers repeat the same ids in each answer.
        message["tool_calls"] = [{"id": "functions.f:0", "type": "function", "function": function}]
    finish = "tool_calls" if "tool_calls" in message else "stop"
    choice = {"index": 0, "message": message, "finish_reason": finish}
    usage = {"prompt_tokens": 20, "completion_tokens": 3, "total_tokens": 23}
    return {"object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}


def responses_answer(body: Body) -> Body:
    calls = body.get("tools") and body["input"][-1].get("role") == "user"
    item: Body = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}]}
    if calls:
        item = {"type": "function_call", "call_id": "call_0", "name": body["tools"][0]["name"], "arguments": "{}"}
    usage = {"input_tokens": 20, "output_tokens": 3, "total_tokens": 23}
    return {"id": "resp_1", "object": "response", "status": "completed", "output": [item], "usage": usage}


def anthropic_answer(body: Body) -> Body:
    last = body["messages"][-1]["content"]
    calls = body.get("tools") and last[-1]["type"] != "tool_result"
    use = {"type": "tool_use", "id": "toolu_01", "input": {}}
    content = [use | {"name": body["tools"][0]["name"]}] if calls else [{"type": "text", "text": "ok"}]
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": content,
        "stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": 20, "output_tokens": 3},
    }  # fmt: skip


def gemini_answer(body: Body) -> Body:
    part: Body = {"text": "ok"}
    if body.get("tools") and "functionResponse" not in body["contents"][-1]["parts"][-1]:
        part = {"functionCall": {"name": body["tools"][0]["functionDeclarations"][0]["name"], "args": {}}}
    candidate = {"content": {"parts": [part], "role": "model"}, "finishReason": "STOP", "index": 0}
    return {"candidates": [candidate], "usageMetadata": {"promptTokenCount": 20, "candidatesTokenCount": 3}}


def bedrock_answer(body: Body) -> Body:
    last = body["messages"][-1]["content"]
    calls = "toolConfig" in body and "toolResult" not in last[-1]
    name = body["toolConfig"]["tools"][0]["toolSpec"]["name"] if calls else ""
    block: Body = {"toolUse": {"toolUseId": "tooluse_1", "name": name, "input": {}}} if calls else {"text": "ok"}
    return {
        "output": {"message": {"role": "assistant", "content": [block]}},
        "stopReason": "tool_use" if calls else "end_turn",
        "usage": {"inputTokens": 20, "outputTokens": 3, "totalTokens": 23},
    }


_ANSWERS: dict[str, Callable[[Body], Body]] = {
    "anthropic": anthropic_answer,
    "gemini": gemini_answer,
    "bedrock": bedrock_answer,
}
