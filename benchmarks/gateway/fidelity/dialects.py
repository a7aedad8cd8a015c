"""The wire forms of agents' conversations, reduced to facts that can be compared across them: texts, calls, results,
tools, sealed reasoning."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Body = dict[str, Any]
Facts = dict[str, Any]


# In place of thoughts that are lost, where a server refuses a turn without any.
_NOT_KEPT = " "
# What stands in these is the caller's own.
_OWN_NAMES = ("args", "response", "parameters", "parametersJsonSchema", "parameters_json_schema")


def request_facts(dialect: str, body: Mapping[str, Any]) -> Facts:
    """What a request in the form of `dialect` (`messages`, `responses`, `chat`, `gemini`, `bedrock`) says."""
    read = {"messages": _messages, "responses": _responses, "chat": _chat, "gemini": _gemini, "bedrock": _bedrock}
    return read[dialect](body)


def answer_facts(dialect: str, answer: Mapping[str, Any]) -> Facts:
    """What a whole answer says: texts, thoughts, calls, how it ended and how many tokens it counts."""
    said = {"messages": _message, "responses": _response, "chat": _completion, "gemini": _candidate}[dialect](answer)
    said["text"], said["thoughts"] = "".join(said["text"]), "".join(said["thoughts"])
    return said


def _facts(system: Iterable[str], tools: Iterable[Sequence[Any]], limit: Any, thinks: bool) -> Facts:
    return {
        "system": "\n\n".join(system),
        "tools": sorted([name, description, schema] for name, description, schema in tools),
        "limit": limit,
        "thinks": thinks,
        "texts": [],
        "calls": [],
        "results": [],
        "seals": [],
    }


def _messages(body: Mapping[str, Any]) -> Facts:
    system = body.get("system") or []
    texts = [system] if isinstance(system, str) else [block["text"] for block in system]
    tools = [(tool["name"], tool.get("description"), tool.get("input_schema")) for tool in body.get("tools", ())]
    thinking = (body.get("thinking") or {}).get("type") in ("enabled", "adaptive")
    facts = _facts(texts, tools, body.get("max_tokens"), thinking)
    for turn in body["messages"]:
        content = turn["content"]
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if block["type"] == "text":
                facts["texts"].append([turn["role"], block["text"]])
            elif block["type"] == "tool_use":
                facts["calls"].append([block["id"], block["name"], block["input"]])
            elif block["type"] == "tool_result":
                facts["results"].append([block["tool_use_id"], _text(block.get("content"))])
            elif block["type"] in ("thinking", "redacted_thinking"):
                facts["seals"].append(block.get("signature") or block.get("data"))
    return facts


def _responses(body: Mapping[str, Any]) -> Facts:
    system = [] if body.get("instructions") is None else [body["instructions"]]
    tools = [(tool.get("name"), tool.get("description"), tool.get("parameters")) for tool in body.get("tools", ())]
    effort = (body.get("reasoning") or {}).get("effort")
    facts = _facts(system, tools, body.get("max_output_tokens"), effort not in (None, "none"))
    asked = body["input"]
    for item in [{"type": "message", "role": "user", "content": asked}] if isinstance(asked, str) else asked:
        kind = item.get("type", "message")
        if kind == "message" and item["role"] in ("system", "developer"):
            facts["system"] = "\n\n".join(filter(None, [facts["system"], _text(item["content"])]))
        elif kind == "message":
            facts["texts"].append([item["role"], _text(item["content"])])
        elif kind == "function_call":
            facts["calls"].append([item["call_id"], item["name"], json.loads(item["arguments"])])
        elif kind == "function_call_output":
            facts["results"].append([item["call_id"], _text(item["output"])])
        elif kind == "reasoning" and item.get("encrypted_content"):
            facts["seals"].append(item["encrypted_content"])
    return facts


def _chat(body: Mapping[str, Any]) -> Facts:
    functions = [tool["function"] for tool in body.get("tools", ())]
    tools = [(tool["name"], tool.get("description"), tool.get("parameters")) for tool in functions]
    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    system = [_text(turn["content"]) for turn in body["messages"] if turn["role"] in ("system", "developer")]
    thinks = body.get("reasoning_effort") not in (None, "none") or "thinking_token_budget" in body
    facts = _facts(system, tools, limit, thinks)
    for turn in body["messages"]:
        if turn["role"] == "tool":
            facts["results"].append([turn["tool_call_id"], _text(turn["content"])])
        elif turn["role"] not in ("system", "developer") and turn.get("content"):
            facts["texts"].append([turn["role"], _text(turn["content"])])
        facts["seals"] += _state(turn)
        for call in turn.get("tool_calls") or ():
            facts["calls"].append([call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])])
    return facts


def _state(turn: Mapping[str, Any]) -> list[str]:
    """What a turn of a chat carries of its server's: seals, else thoughts."""
    details = [detail.get("data") or detail.get("signature") for detail in turn.get("reasoning_details") or ()]
    extra = [call.get("extra_content") for call in turn.get("tool_calls") or ()]
    signed = [fields["google"]["thought_signature"] for fields in extra if fields]
    content = turn.get("content")
    parts = [part for part in content if part.get("type") == "thinking"] if isinstance(content, list) else []
    thoughts = (
        turn.get("reasoning_content") or turn.get("reasoning") or "".join(_text(part["thinking"]) for part in parts)
    )
    return (
        [detail for detail in details if detail] or signed or ([thoughts] if thoughts and thoughts != _NOT_KEPT else [])
    )


def _bedrock(body: Mapping[str, Any]) -> Facts:
    system = [block["text"] for block in body.get("system", ()) if "text" in block]
    specs = [tool["toolSpec"] for tool in (body.get("toolConfig") or {}).get("tools", ()) if "toolSpec" in tool]
    tools = [(spec["name"], spec.get("description"), spec["inputSchema"]["json"]) for spec in specs]
    thinking = (body.get("additionalModelRequestFields") or {}).get("thinking") or {}
    limit = (body.get("inferenceConfig") or {}).get("maxTokens")
    facts = _facts(system, tools, limit, thinking.get("type") in ("enabled", "adaptive"))
    for turn in body["messages"]:
        for block in turn["content"]:
            if "text" in block:
                facts["texts"].append([turn["role"], block["text"]])
            elif "toolUse" in block:
                use = block["toolUse"]
                facts["calls"].append([use["toolUseId"], use["name"], use["input"]])
            elif "toolResult" in block:
                facts["results"].append([block["toolResult"]["toolUseId"], _text(block["toolResult"]["content"])])
            elif "reasoningContent" in block:
                said = block["reasoningContent"]
                facts["seals"].append(said.get("redactedContent") or said["reasoningText"].get("signature"))
    return facts


def _camel(value: Any) -> Any:
    """Google's names as its documents write them: its servers read `function_call` as `functionCall`, too."""
    if isinstance(value, list):
        return [_camel(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        re.sub(r"_([a-z])", lambda match: match[1].upper(), name): field if name in _OWN_NAMES else _camel(field)
        for name, field in value.items()
    }


def _gemini(sent: Mapping[str, Any]) -> Facts:
    body = _camel(sent)
    system = [part["text"] for part in (body.get("systemInstruction") or {}).get("parts", ())]
    declared = [declaration for tool in body.get("tools", ()) for declaration in tool.get("functionDeclarations", ())]
    tools = [
        (tool["name"], tool.get("description"), tool.get("parametersJsonSchema", tool.get("parameters")))
        for tool in declared
    ]
    config = body.get("generationConfig", {})
    facts = _facts(system, tools, config.get("maxOutputTokens"), bool(config.get("thinkingConfig")))
    for turn in body["contents"]:
        for part in turn["parts"]:
            if "functionCall" in part:
                args: Any = part["functionCall"]["args"]
                # A text where the server itself gave one.
                args = json.loads(args) if isinstance(args, str) else args
                facts["calls"].append([part["functionCall"].get("id"), part["functionCall"]["name"], args])
            elif "functionResponse" in part:
                result = part["functionResponse"]["response"]
                call_id = part["functionResponse"].get("id")
                facts["results"].append([call_id, result.get("result", result.get("content", result))])
            elif part.get("text") and not part.get("thought"):
                facts["texts"].append(["assistant" if turn["role"] == "model" else turn["role"], part["text"]])
            if "thoughtSignature" in part:
                facts["seals"].append(part["thoughtSignature"])
    return facts


def _said(end: str, prompt: int, cached: int, output: int) -> Facts:
    usage = {"prompt": prompt, "cached": cached, "output": output}
    return {"text": [], "thoughts": [], "calls": [], "end": end, "usage": usage}


def _message(answer: Mapping[str, Any]) -> Facts:
    usage = answer["usage"]
    cached, written = usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
    ends = {"tool_use": "calls", "end_turn": "stop"}
    end = ends.get(answer["stop_reason"], answer["stop_reason"])
    facts = _said(end, usage["input_tokens"] + cached + written, cached, usage["output_tokens"])
    for block in answer["content"]:
        if block["type"] == "text":
            facts["text"].append(block["text"])
        elif block["type"] == "thinking":
            facts["thoughts"].append(block["thinking"])
        elif block["type"] == "tool_use":
            facts["calls"].append([block["id"], block["name"], block["input"]])
    return facts


def _response(answer: Mapping[str, Any]) -> Facts:
    usage = answer["usage"]
    calls = [item for item in answer["output"] if item["type"] == "function_call"]
    cached = usage["input_tokens_details"]["cached_tokens"]
    facts = _said("calls" if calls else "stop", usage["input_tokens"], cached, usage["output_tokens"])
    facts["calls"] = [[item["call_id"], item["name"], json.loads(item["arguments"])] for item in calls]
    for item in answer["output"]:
        if item["type"] == "message":
            facts["text"] += [part["text"] for part in item["content"]]
        elif item["type"] == "reasoning":
            facts["thoughts"] += [part["text"] for part in (item.get("summary") or item.get("content") or ())]
    return facts


def _completion(answer: Mapping[str, Any]) -> Facts:
    usage, choice = answer["usage"], answer["choices"][0]
    message = choice["message"]
    end = {"tool_calls": "calls"}.get(choice["finish_reason"], choice["finish_reason"])
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    facts = _said(end, usage["prompt_tokens"], cached, usage["completion_tokens"])
    facts["text"], facts["thoughts"] = [message.get("content") or ""], [message.get("reasoning_content") or ""]
    for call in message.get("tool_calls") or ():
        facts["calls"].append([call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])])
    return facts


def _candidate(answer: Mapping[str, Any]) -> Facts:
    usage, parts = answer["usageMetadata"], answer["candidates"][0]["content"]["parts"]
    calls = [
        [part["functionCall"].get("id"), part["functionCall"]["name"], part["functionCall"]["args"]]
        for part in parts
        if "functionCall" in part
    ]
    output = usage["candidatesTokenCount"] + usage.get("thoughtsTokenCount", 0)
    end = "calls" if calls else "stop"
    facts = _said(end, usage["promptTokenCount"], usage.get("cachedContentTokenCount", 0), output)
    facts["text"] = [part["text"] for part in parts if "text" in part and not part.get("thought")]
    facts["thoughts"] = [part["text"] for part in parts if part.get("thought")]
    facts["calls"] = calls
    return facts


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.get("text") or "" for part in content)


def differences(expected: Any, actual: Any, path: str = "") -> list[str]:
    """The paths at which two JSON values differ."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        names = [*expected, *(name for name in actual if name not in expected)]
        return [
            difference
            for name in names
            for difference in differences(expected.get(name), actual.get(name), f"{path}.{name}" if path else name)
        ]
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        pairs = enumerate(zip(expected, actual, strict=True))
        return [difference for index, (a, b) in pairs for difference in differences(a, b, f"{path}[{index}]")]
    return [] if expected == actual else [path]
