"""What a caller reads in an answer of each API, whole or streamed, in one form."""

import json
from typing import Any

Json = dict[str, Any]
FINISH = {
    "end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls", "max_tokens": "length",
    "refusal": "content_filter", "max_output_tokens": "length", "STOP": "stop", "MAX_TOKENS": "length",
    "SAFETY": "content_filter",
}  # fmt: skip


def read_answer(api: str, streamed: bool, content: bytes) -> Json:
    """Return text, reasoning, refusal, calls (id, name, arguments), finish, cited pages and counts; or the error."""
    if not streamed:
        return _WHOLE[api](json.loads(content))
    if content.lstrip().startswith(b"["):
        return _STREAMED[api](json.loads(content))
    events = []
    for block in content.decode().split("\n\n"):
        events += [json.loads(line[6:]) for line in block.split("\n") if line.startswith("data: {")]
    return _STREAMED[api](events)


def _form(text: Any, reasoning: Any, refusal: Any, calls: list[Any], finish: Any, **more: Any) -> Json:
    form = {"text": text or "", "reasoning": reasoning or "", "refusal": refusal or "", "calls": calls}
    return form | {"finish": FINISH.get(finish, finish)} | more


def _chat(told: Json) -> Json:
    if "error" in told:
        return {"error": told["error"]}
    choice = told["choices"][0]
    said = choice["message"]
    calls = [_called(call) for call in said.get("tool_calls") or ()]
    cited = [annotation["url_citation"]["url"] for annotation in said.get("annotations") or ()]
    reasoning = said.get("reasoning_content")
    return _form(said.get("content"), reasoning, said.get("refusal"), calls, choice["finish_reason"], cited=cited,
                 usage=told.get("usage"), message=said)  # fmt: skip


def _called(call: Json) -> list[str]:
    """A call of a function, or of a custom tool, whose input is a text."""
    called = call.get("function") or call["custom"]
    return [call["id"], called["name"], called["arguments" if "function" in call else "input"]]


def _chat_events(events: list[Json]) -> Json:
    said: Json = {"content": "", "reasoning_content": "", "refusal": "", "tool_calls": [], "annotations": []}
    finish, usage = [], None
    for event in events:
        if "error" in event:
            return {"error": event["error"]}
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            if choice["index"]:
                continue
            delta = choice["delta"]
            for name in ("content", "reasoning_content", "refusal"):
                said[name] += delta.get(name) or ""
            said["annotations"] += delta.get("annotations") or []
            for name, value in delta.items():
                if name not in said:
                    said[name] = value
                elif isinstance(value, list) and name not in ("tool_calls", "annotations"):
                    said[name] = said[name] + value
                elif isinstance(value, dict):
                    joined = {key: said[name][key] + text for key, text in value.items() if key in said[name]}
                    said[name] = said[name] | value | joined
            for call in delta.get("tool_calls") or ():
                kind, text = ("custom", "input") if "custom" in call else ("function", "arguments")
                if call["index"] == len(said["tool_calls"]):
                    said["tool_calls"].append({"id": "", kind: {"name": "", text: ""}})
                have = said["tool_calls"][call["index"]]
                have |= {key: value for key, value in call.items() if key not in ("index", "id", kind)}
                have["id"] += call.get("id") or ""
                for name in ("name", text):
                    have[kind][name] += call[kind].get(name) or ""
            finish += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert len(finish) == 1, f"a stream ends once: {finish}"
    return _chat({"choices": [{"message": said, "finish_reason": finish[0]}], "usage": usage})


def _message(told: Json) -> Json:
    if told["type"] == "error":
        return {"error": told["error"]}
    blocks = told["content"]
    text, thoughts = (
        "".join(block.get(name, "") for block in blocks if block["type"] == name) for name in ("text", "thinking")
    )
    calls = [
        [block["id"], block["name"], block.get("partial_json") or json.dumps(block["input"])]
        for block in blocks
        if block["type"] == "tool_use"
    ]
    cited = [citation["url"] for block in blocks for citation in block.get("citations") or ()]
    return _form(text, thoughts, "", calls, told["stop_reason"], cited=cited, usage=told["usage"],
                 blocks=[_joined(block) for block in blocks])  # fmt: skip


def _joined(block: Json) -> Json:
    """A block of a stream as it is in a whole answer; an input that is cut off stays a text."""
    block = dict(block)
    text = block.pop("partial_json", None)
    if text:
        try:
            block["input"] = json.loads(text)
        except ValueError:
            block["input"] = text
    return block


def _message_events(events: list[Json]) -> Json:
    blocks: list[Json] = []
    told: Json = {"type": "message", "content": blocks}
    stopped = 0
    for event in events:
        kind = event["type"]
        if kind == "error":
            return {"error": event["error"]}
        if kind == "message_start":
            told["usage"] = event["message"]["usage"]
        elif kind == "content_block_start":
            assert event["index"] == len(blocks) == stopped, "blocks follow one another"
            blocks.append(dict(event["content_block"]))
        elif kind == "content_block_stop":
            stopped += 1
        elif kind == "content_block_delta":
            delta, block = event["delta"], blocks[event["index"]]
            for name in ("text", "thinking", "signature", "partial_json"):
                if name in delta:
                    block[name] = block.get(name, "") + delta[name]
            if "citation" in delta:
                block["citations"] = [*(block.get("citations") or []), delta["citation"]]
        elif kind == "message_delta":
            told |= {"stop_reason": event["delta"]["stop_reason"], "usage": told["usage"] | event["usage"]}
    assert events[-1]["type"] == "message_stop"
    assert stopped == len(blocks), "each block is ended"
    return _message(told)


def _response(told: Json) -> Json:
    if told.get("error"):
        return {"error": told["error"]}
    parts = [part for item in told["output"] if item["type"] == "message" for part in item["content"]]
    text, refusal = ("".join(part.get(name, "") for part in parts) for name in ("text", "refusal"))
    thoughts = [
        part["text"]
        for item in told["output"]
        if item["type"] == "reasoning"
        for part in item.get("content") or item.get("summary") or ()
    ]
    calls = [[c["call_id"], c["name"], c["arguments"]] for c in told["output"] if c["type"] == "function_call"]
    cited = [annotation["url"] for part in parts for annotation in part.get("annotations", ())]
    finish = (told.get("incomplete_details") or {"reason": "tool_calls" if calls else "stop"})["reason"]
    return _form(text, "".join(thoughts), refusal, calls, finish, cited=cited, usage=told.get("usage"),
                 items=told["output"], id=told["id"])  # fmt: skip


def _response_events(events: list[Json]) -> Json:
    for event in events:
        if event["type"] == "error":
            return {"error": event}
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    response = _response(events[-1]["response"])
    kinds = [event["type"].removeprefix("response.") for event in events]
    response["events"] = [kind for index, kind in enumerate(kinds) if kinds[index - 1 : index] != [kind]]
    if "error" not in response:
        for name, kind in (("text", "output_text"), ("refusal", "refusal")):
            deltas = "".join(event["delta"] for event in events if event["type"] == f"response.{kind}.delta")
            assert deltas == response[name], "the deltas are the text of the end"
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert done == response["items"], "the items of the end are those that were done"
    return response


def _completion(told: Json) -> Json:
    if "error" in told:
        return {"error": told["error"]}
    choice = told["choices"][0]
    return _form(choice["text"], "", "", [], choice["finish_reason"], cited=[], usage=told.get("usage"))


def _completion_events(events: list[Json]) -> Json:
    choices = [choice for event in events for choice in event.get("choices", [{"error": event}])]
    if failed := [choice["error"] for choice in choices if "error" in choice]:
        return failed[0]
    finish = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    text = "".join(choice["text"] for choice in choices)
    return _completion({"choices": [{"text": text, "finish_reason": finish[0]}], "usage": events[-1].get("usage")})


def _gemini(told: Json) -> Json:
    if "error" in told:
        return {"error": told["error"]}
    (candidate,) = told["candidates"]
    parts = candidate["content"]["parts"]
    text, thoughts = (
        "".join(part.get("text", "") for part in parts if bool(part.get("thought")) is thought)
        for thought in (False, True)
    )
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    called = [[call.get("id"), call["name"], json.dumps(call.get("args", {}))] for call in calls]
    finish = "tool_calls" if calls and candidate["finishReason"] == "STOP" else candidate["finishReason"]
    usage = told.get("usageMetadata")
    return _form(text, thoughts, "", called, finish, cited=[], usage=usage, parts=parts)


def _gemini_pieces(pieces: list[Json]) -> Json:
    candidates = []
    for piece in pieces:
        if "error" in piece:
            return {"error": piece["error"]}
        candidates += piece["candidates"]
    parts = [part for candidate in candidates for part in candidate["content"]["parts"] if part != {"text": ""}]
    (finish,) = [candidate["finishReason"] for candidate in candidates if "finishReason" in candidate]
    said = {"content": {"parts": parts}, "finishReason": finish}
    return _gemini({"candidates": [said], "usageMetadata": pieces[-1]["usageMetadata"]})


_WHOLE = {
    "chat": _chat, "messages": _message, "responses": _response, "completions": _completion, "gemini": _gemini,
}  # fmt: skip
_STREAMED = {
    "chat": _chat_events, "messages": _message_events, "responses": _response_events, "completions": _completion_events,
    "gemini": _gemini_pieces,
}  # fmt: skip
