"""Agents' clients of the four APIs: what they ask, how they read an answer, whole or streamed, and how they go on with
the results of the calls in it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gateway.fidelity.provider import BUSY, DROP, LENIENT, THINK

Body = dict[str, Any]
PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses", "gemini": ""}
_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "array"}},
    "required": ["city"],
}
_TOOLS = (("weather", "The weather.", _SCHEMA), ("clock", "The time.", {"type": "object", "properties": {}}))
_SYSTEM, _QUESTION = "Be brief.\nUse tools.", "Weather and time in San José?"
_QUESTIONS = {"busy": f"{_QUESTION} {BUSY}", "half": f"{_QUESTION} {DROP}"}
_QUESTIONS |= {"thinking": f"{_QUESTION} {THINK}", "moved": f"{_QUESTION} {THINK}"}
_QUESTIONS["lenient"] = f"{_QUESTION} {THINK} {LENIENT}"
THINKING = ("thinking", "moved", "lenient")
_LIMIT = 6000


def asked(api: str, model: str, case: str, *, stream: bool) -> Body:
    """The first request of a session. `case`: one of the matrix's."""
    question = _QUESTIONS.get(case, _QUESTION)
    with_tools, thinks = case == "tools" or case in THINKING, case in THINKING
    made = {"chat": _chat, "messages": _messages, "responses": _responses, "gemini": _gemini}
    body = made[api](question, with_tools, thinks)
    if api == "chat" and stream:
        body["stream_options"] = {"include_usage": True}
    return {"model": model, "stream": stream} | body


def sent(api: str, body: Body) -> tuple[str, Body]:
    """The path and the body that a client of the API sends; Gemini's has model and method in the path."""
    if api != "gemini":
        return PATHS[api], body
    method = "streamGenerateContent?alt=sse" if body["stream"] else "generateContent"
    fields = {name: value for name, value in body.items() if name not in ("model", "stream")}
    return f"/v1beta/models/{body['model']}:{method}", fields


def _chat(question: str, with_tools: bool, thinks: bool) -> Body:
    turns = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": question}]
    body: Body = {"messages": turns, "max_completion_tokens": _LIMIT}
    if with_tools:
        functions = [{"name": name, "description": about, "parameters": schema} for name, about, schema in _TOOLS]
        body["tools"] = [{"type": "function", "function": function} for function in functions]
    return body | ({"reasoning_effort": "low"} if thinks else {})


def _messages(question: str, with_tools: bool, thinks: bool) -> Body:
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    body: Body = {
        "max_tokens": _LIMIT,
        "system": [{"type": "text", "text": _SYSTEM} | mark],
        "messages": [{"role": "user", "content": [{"type": "text", "text": question} | mark]}],
        "metadata": {"user_id": "session_1"},
    }
    if with_tools:
        body["tools"] = [{"name": name, "description": about, "input_schema": schema} for name, about, schema in _TOOLS]
        body["tools"][-1] |= mark
        body["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": False}
    return body | ({"thinking": {"type": "enabled", "budget_tokens": 2000}} if thinks else {})


def _responses(question: str, with_tools: bool, thinks: bool) -> Body:
    body: Body = {
        "instructions": _SYSTEM,
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": question}]}],
        "max_output_tokens": _LIMIT,
        "prompt_cache_key": "session_1",
        "include": ["reasoning.encrypted_content"],
    }
    if with_tools:
        tools = [{"name": name, "description": about, "parameters": schema} for name, about, schema in _TOOLS]
        body["tools"] = [{"type": "function", **tool, "strict": False} for tool in tools]
        body["parallel_tool_calls"] = True
    return body | ({"reasoning": {"effort": "low", "summary": "auto"}} if thinks else {})


def _gemini(question: str, with_tools: bool, thinks: bool) -> Body:
    body: Body = {
        "systemInstruction": {"parts": [{"text": _SYSTEM}]},
        "contents": [{"role": "user", "parts": [{"text": question}]}],
        "generationConfig": {"maxOutputTokens": _LIMIT},
    }
    if with_tools:
        declared = [
            {"name": name, "description": about, "parametersJsonSchema": schema} for name, about, schema in _TOOLS
        ]
        body["tools"] = [{"functionDeclarations": declared}]
        body["toolConfig"] = {"functionCallingConfig": {"mode": "AUTO"}}
    if thinks:
        body["generationConfig"]["thinkingConfig"] = {"includeThoughts": True, "thinkingBudget": 2000}
    return body


def whole_answer(api: str, text: str, *, stream: bool) -> Body | None:
    """The answer in a body; None if it is not whole."""
    try:
        if not stream:
            answer: Body = json.loads(text)
            return None if answer.get("error") else answer
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    except ValueError:
        return None
    if any(event.get("error") or event.get("type") == "error" for event in events):
        return None
    joined = {
        "chat": _joined_chat, "messages": _joined_message, "responses": _last_response, "gemini": _joined_contents,
    }  # fmt: skip
    return joined[api](events, text)


def _joined_chat(events: Sequence[Body], text: str) -> Body | None:
    if "data: [DONE]" not in text:
        return None
    message: Body = {"role": "assistant", "content": "", "reasoning_content": ""}
    calls: list[Body] = []
    answer: Body = {}
    for event in events:
        answer |= {"usage": event["usage"]} if event.get("usage") else {}
        for choice in event["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for piece in delta.get("tool_calls") or ():
                if piece["index"] == len(calls):
                    calls.append({"id": piece["id"], "type": "function", "function": {"name": "", "arguments": ""}})
                function = calls[piece["index"]]["function"]
                function["name"] += piece["function"].get("name") or ""
                function["arguments"] += piece["function"].get("arguments") or ""
            answer["finish"] = choice.get("finish_reason") or answer.get("finish")
    message |= {"tool_calls": calls} if calls else {}
    return answer | {"choices": [{"message": message, "finish_reason": answer.get("finish")}]}


def _joined_message(events: Sequence[Body], text: str) -> Body | None:
    message: Body | None = None
    blocks: list[Body] = []
    for event in events:
        kind = event["type"]
        if kind == "message_start":
            message = event["message"]
        elif kind == "content_block_start":
            blocks.append(dict(event["content_block"]))
        elif kind == "content_block_delta":
            _grow(blocks[-1], event["delta"])
        elif kind == "content_block_stop" and "json" in blocks[-1]:
            blocks[-1]["input"] = json.loads(blocks[-1].pop("json") or "{}")
        elif kind == "message_delta" and message is not None:
            message |= event["delta"] | {"usage": message["usage"] | event["usage"]}
    if message is None or not any(event["type"] == "message_stop" for event in events):
        return None
    return message | {"content": blocks}


def _grow(block: Body, delta: Mapping[str, Any]) -> None:
    for name, into in (
        ("text", "text"),
        ("thinking", "thinking"),
        ("signature", "signature"),
        ("partial_json", "json"),
    ):
        if name in delta:
            block[into] = block.get(into, "") + delta[name]


def _last_response(events: Sequence[Body], text: str) -> Body | None:
    last = events[-1] if events else {}
    return last["response"] if last.get("type") == "response.completed" else None


def _joined_contents(events: Sequence[Body], text: str) -> Body | None:
    parts = [part for event in events for candidate in event["candidates"] for part in candidate["content"]["parts"]]
    last: Body = events[-1] if events else {}
    if not last or "finishReason" not in last["candidates"][0]:
        return None
    content = {"role": "model", "parts": [part for part in parts if part != {"text": ""}]}
    return last | {"candidates": [last["candidates"][0] | {"content": content}]}


def next_step(api: str, body: Body, answer: Mapping[str, Any], model: str) -> Body:
    """The request after the calls of `answer` were made."""
    if api == "chat":
        said = {name: value for name, value in answer["choices"][0]["message"].items() if name in _CHAT_TURN and value}
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": _result(n)}
            for n, call in enumerate(said["tool_calls"])
        ]
        return body | {"model": model, "messages": [*body["messages"], said, *results]}
    if api == "messages":
        calls = [block["id"] for block in answer["content"] if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call, "content": _result(n)} for n, call in enumerate(calls)]
        turns = [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": results}]
        return body | {"model": model, "messages": [*body["messages"], *turns]}
    if api == "gemini":
        said = answer["candidates"][0]["content"]
        calls = [part["functionCall"] for part in said["parts"] if "functionCall" in part]
        results = [
            {"functionResponse": {name: call[name] for name in ("id", "name") if name in call} | _response(n)}
            for n, call in enumerate(calls)
        ]
        return body | {"model": model, "contents": [*body["contents"], said, {"role": "user", "parts": results}]}
    calls = [item["call_id"] for item in answer["output"] if item["type"] == "function_call"]
    results = [{"type": "function_call_output", "call_id": call, "output": _result(n)} for n, call in enumerate(calls)]
    return body | {"model": model, "input": [*body["input"], *answer["output"], *results]}


_CHAT_TURN = ("role", "content", "tool_calls", "reasoning_content")


def _result(number: int) -> str:
    return f'{{"number": {number}, "said": "größe 🙂"}}'


def _response(number: int) -> Body:
    return {"response": {"result": _result(number)}}
