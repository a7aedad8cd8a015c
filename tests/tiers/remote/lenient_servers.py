"""Answers as servers were reported to send them, with their small liberties, and what each plainly means."""

import json
from dataclasses import dataclass, field
from typing import Any

from tests.tiers.remote.provider_shapes import (
    EVENT_STREAM,
    anthropic_block,
    anthropic_end,
    anthropic_start,
    anthropic_stream,
    anthropic_text,
    bedrock_end,
    bedrock_stream,
    bedrock_text,
    gemini_event,
    gemini_stream,
)

Body = dict[str, Any]
SSE = "text/event-stream; charset=utf-8"
JSON = "application/json"
OSLO, ROME = ("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Rome"})
USAGE = {"prompt_tokens": 20, "completion_tokens": 8, "total_tokens": 28}
DONE = b"data: [DONE]\n\n"


@dataclass
class Case:
    """`stream`, `whole`: the two forms of an answer, None where the liberty is of one form alone. `kind`: of the wire;
    `types`: the content types. The other fields are what it means."""

    name: str
    stream: bytes | None
    whole: Any = None
    kind: str = "openai"
    types: tuple[str, str] = (SSE, JSON)
    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: list[tuple[str, Body]] = field(default_factory=list)
    finish: str = "stop"
    cited: str = ""


def chunks(*deltas: Body, finish: str | None = "stop", end: bytes = DONE) -> bytes:
    """A stream of chat chunks, one with the finish reason if there is one, and the end mark."""
    events: list[Body] = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    if finish is not None:
        events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return raw_chunks(*events, end=end)


def raw_chunks(*events: Body, end: bytes = DONE) -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events) + end


def message(finish: str | None = "stop", usage: Any = USAGE, **fields: Any) -> Body:
    """A whole chat answer."""
    return {
        "choices": [{"index": 0, "message": {"role": "assistant"} | fields, "finish_reason": finish}],
        "usage": usage,
    }


def call(city: str, **fields: Any) -> Body:
    return {"type": "function", "function": {"name": "get_weather", "arguments": json.dumps({"city": city})}} | fields


def in_pieces(text: str, size: int = 3, finish: str = "stop") -> bytes:
    """A stream of a text in small pieces."""
    return chunks(*({"content": text[at : at + size]} for at in range(0, len(text), size)), finish=finish)


def calls_case(name: str, *pieces: Body, finish: str = "tool_calls", whole: Any = None, **means: Any) -> Case:
    """A stream with one piece of a call in each chunk, which are calls for Oslo and Rome."""
    deltas = [{"tool_calls": [piece]} for piece in pieces]
    return Case(
        name, chunks(*deltas, finish=finish), whole, **({"calls": [OSLO, ROME], "finish": "tool_calls"} | means)
    )


def piece(arguments: Any, **fields: Any) -> Body:
    """A piece with its name."""
    return fields | {"function": {"name": "get_weather", "arguments": arguments}}


def more(arguments: str, **fields: Any) -> Body:
    """A further piece, without a name."""
    return fields | {"function": {"arguments": arguments}}


def responses(*items: Body, deltas: tuple[Body, ...] = (), **fields: Any) -> Case:
    """An answer of the Responses API whose items come as `deltas`, or at the end alone."""
    told = {"status": "completed", "output": list(items), "usage": {"input_tokens": 20, "output_tokens": 8}}
    ending = {"type": "response.completed", "response": told}
    stream = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in (*deltas, ending)) + DONE
    return Case(stream=stream, whole=told, kind="responses", **fields)


def said(text: str, **fields: Any) -> Body:
    return {"type": "message", "content": [{"type": "output_text", "text": text} | fields]}


def typed(text: str) -> Body:
    return {"type": "input_json_delta", "partial_json": text}


TOOL = {"type": "tool_use", "id": "a", "name": "get_weather", "input": {}}
THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
CITED = {"type": "url_citation", "url": "https://a.b/c", "title": "C", "start_index": 0, "end_index": 2}
HALVES = (
    b'data: {"choices":[{"delta":{"content":"a\\ud83d"}}]}\n\ndata: {"choices":[{"delta":{"content":"\\ude00b"}}]}\n\n'
)
TWICE = json.dumps(json.dumps({"city": "Oslo"}))
ONE_BREAK = chunks({"content": "He"}, {"content": "llo"}).replace(b"\n\n", b"\n")
WEATHER = {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city": "Oslo"}'}
RAIN = "Oslo is rainy today."
AGAIN = [{"reasoning": "Hm."}, {"content": "Oslo is "}, {"content": "rainy today."}]
AROUND = ("functions.get_weather", "functions.get_weather:0", "default_api.get_weather", " get_weather\n",
          "get_weather<|channel|>commentary")  # fmt: skip
LETTERS = [{"content": piece} for piece in ("今", "天", "奥", "斯", "陆", "下", "雨", "。")]
TWO_TOOLS = [{"type": "tool_use", "name": "get_weather", "input": {"city": city}} for city in ("Oslo", "Rome")]

SNAKE = {
    "candidates": [{"content": {"parts": [{"text": 'Say "finish_reason": now'}]}, "finish_reason": "MAX_TOKENS"}],
    "usage_metadata": {"prompt_token_count": 20, "candidates_token_count": 8},
}
CASES = [
    # Texts.
    Case(
        "lines of JSON instead of events",
        chunks({"content": "Hi "}, {"content": "there"}, end=b"").replace(b"data: ", b"").replace(b"\n\n", b"\n"),
        text="Hi there",
        types=("application/x-ndjson", JSON),
    ),
    Case(
        "names in snake case",
        gemini_stream([SNAKE]),
        SNAKE,
        "gemini",
        text='Say "finish_reason": now',
        finish="length",
    ),
    Case(
        "parts of Mistral's",
        chunks({"content": [THOUGHT]}, {"content": "Hi "}, {"content": [{"type": "text", "text": "there"}]}),
        message(content=[THOUGHT, {"type": "text", "text": "Hi there"}]),
        text="Hi there",
        reasoning="Hm.",
    ),
    Case(
        "one part alone, and thoughts as an object's text",
        chunks({"reasoning": [{"text": "Hm."}]}, {"content": {"type": "text", "text": "Hi"}}),
        message(content={"type": "text", "text": "Hi"}, thinking="Hm."),
        text="Hi",
        reasoning="Hm.",
    ),
    Case(
        "a refusal", chunks({"content": None, "refusal": ""}, {"refusal": "No."}), message(refusal="No."), refusal="No."
    ),
    Case("a refusal as a part", None, message(content=[{"type": "refusal", "refusal": "No."}]), refusal="No."),
    Case(
        "what is cited",
        chunks({"content": "Hi"}, {"annotations": [{"type": "url_citation", "url_citation": CITED}]}),
        message(content="Hi", annotations=[CITED]),
        text="Hi",
        cited="https://a.b/c",
    ),
    Case(
        "halves of a character in two chunks",
        HALVES + chunks(),
        b'{"choices":[{"message":{"content":"a\\ud83d\\ude00b"},"finish_reason":"stop"}]}',
        text="a😀b",
    ),
    Case(
        "half a character and control characters",
        b'data: {"choices":[{"delta":{"content":"a\\ud83d"}}]}\n\ndata: {"choices":[{"delta":{"content":"b\x01"}}]}\n\n'
        + chunks(),
        text="a\ufffdb\x01",
    ),
    Case("a mark of byte order", b"\xef\xbb\xbf" + chunks({"content": "Hi"}), text="Hi"),
    Case(
        "odd types everywhere",
        raw_chunks(
            {"id": 7, "choices": [{"index": "0", "delta": {"content": "Hi", "tool_calls": {}, "refusal": []}}]},
            {"choices": [{"index": 0.0, "delta": [], "finish_reason": 5, "logprobs": 3}], "usage": 5},
        ),
        {"choices": {"index": None, "message": {"content": "Hi", "tool_calls": "x"}, "finish_reason": ["stop"]}},
        text="Hi",
    ),
    Case(
        "an answer once more without a reason",
        raw_chunks(
            *({"choices": [{"delta": {"content": piece}}]} for piece in ("Oslo is ", "rainy ", "today.")),
            {"choices": [{"message": {"content": RAIN}}]},
        ),
        text=RAIN,
    ),
    # Types of the content.
    Case("a whole answer to a stream", json.dumps(message(content="Hi")).encode(), types=(JSON, JSON), text="Hi"),
    Case("a stream as JSON", chunks({"content": "Hi"}), types=(JSON, JSON), text="Hi"),
    Case("a stream as text", chunks({"content": "Hi"}), types=("text/plain", JSON), text="Hi"),
    Case("a stream for a whole answer", None, chunks({"content": "Hi"}), types=(SSE, SSE), text="Hi"),
    # Ends.
    Case(
        "reasons that come early",
        raw_chunks(
            {"choices": [{"delta": {"content": "Hi "}, "finish_reason": "stop"}]},
            {"choices": [{"delta": {"content": "there"}, "finish_reason": "null"}]},
        ),
        text="Hi there",
    ),
    Case("no reason", chunks({"content": "Hi"}, finish=None), message(None, content="Hi"), text="Hi"),
    *(
        Case(
            f"the reason {given}",
            chunks({"content": "Hi"}, finish=given),
            message(given, content="Hi"),
            text="Hi",
            finish=means,
        )
        for given, means in (
            ("sensitive", "content_filter"),
            ("PROHIBITED_CONTENT", "content_filter"),
            ("refusal", "content_filter"),
            ("model_context_window_exceeded", "length"),
            ("insufficient_system_resource", "error"),
            ("function_call_filter: MALFORMED_FUNCTION_CALL", "error"),
            ("stop_sequence", "stop"),
            ("maxTokens", "length"),
            ("incomplete", "length"),
            ("content_moderation", "content_filter"),
            ("rate_limit", "error"),
        )
    ),
    *(
        Case(
            f"Anthropic's API with the reason {given}",
            None,
            {"content": [{"type": "text", "text": "Hi"}], "stop_reason": given},
            "anthropic",
            text="Hi",
            finish=means,
        )
        for given, means in (("length", "length"), ("content_filter", "content_filter"))
    ),
    Case("an unknown reason", chunks({"content": "Hi"}, finish="eos"), message("eos", content="Hi"), text="Hi"),
    # Calls.
    calls_case(
        "no index", call("Oslo", id="a"), call("Rome", id="b"), whole=message(tool_calls=[call("Oslo"), call("Rome")])
    ),
    calls_case("the same index", call("Oslo", id="a", index=0), call("Rome", id="b", index=0)),
    calls_case("the same index and no ids", call("Oslo", index=0), call("Rome", index=0)),
    calls_case("index null and empty ids", call("Oslo", id="", index=None), call("Rome", id="", index=None)),
    calls_case(
        "the same id",
        call("Oslo", id="a", index=0),
        call("Rome", id="a", index=1),
        whole=message("stop", tool_calls=[call("Oslo", id="a"), call("Rome", id="a")]),
    ),
    calls_case(
        "name and id again in every piece",
        *(piece(part, id="a", index=0) for part in ('{"city"', ': "Oslo"}')),
        *(piece(part, id="b", index=1) for part in ("", '{"city": ', '"Rome"}')),
    ),
    calls_case(
        "name again in every piece, and one call sent twice",
        *(piece(part, index=0) for part in ('{"city"', ': "Oslo"}')),
        call("Rome", id="b", index=1),
        call("Rome", id="b", index=1),
    ),
    calls_case(
        "all arguments once more, without name and id",
        *(piece("", id="a", index=0), more('{"city"', index=0), more(': "Oslo"}', index=0)),
        more('{"city": "Oslo"}', index=0),
        more("\n", index=0),
        *(piece("", id="b", index=1), *[more('{"city": "Rome"}', index=1)] * 2),
    ),
    calls_case(
        "another id in every piece", piece('{"city"', id="a", index=0), more(':"Oslo"}', id="b", index=0), calls=[OSLO]
    ),
    calls_case(
        "the index begins at one, the arguments are objects",
        piece({"city": "Oslo"}, id="a", index=1),
        piece({"city": "Rome"}, id="b", index=2),
        whole=message(tool_calls=[piece({"city": "Oslo"}, id=""), piece({"city": "Rome"}, id=None)]),
    ),
    calls_case(
        "a name in pieces",
        *({"id": "a", "index": 0, "function": {"name": name}} for name in ("get_", "wea")),
        {"index": 0, "function": {"name": "ther", "arguments": '{"city": "Oslo"}'}},
        {"index": 1, "id": "b", "function": {"name": "get_"}},
        {"index": 1, "function": {"name": "get_weather", "arguments": ""}},
        more('{"city": "Rome"}', index=1),
    ),
    calls_case(
        "the id before the name",
        {"index": 0, "id": "a", "type": "function"},
        piece('{"city": "Oslo"}', index=0),
        calls=[OSLO],
    ),
    calls_case("the beginning of a name alone", {"index": 0, "function": {"name": "get_"}}, calls=[("get_", {})]),
    calls_case(
        "no arguments, and then some",
        piece("{}", id="a", index=0),
        *(more(part, index=0) for part in ('{"city"', ': "Oslo"}')),
        piece("{}", id="b", index=1),
        more('{"city": "Rome"}', index=1),
    ),
    *(
        calls_case(
            f"{given!r} for no arguments",
            piece(given, id="a", index=0),
            whole=message("tool_calls", tool_calls=[piece(given, id="a")]),
            calls=[("get_weather", {})],
        )
        for given in ("[]", "null", [])
    ),
    *(
        calls_case(
            f"the arguments {given!r}",
            piece(given, id="a", index=0),
            whole=message("tool_calls", tool_calls=[piece(given, id="a")]),
            calls=[OSLO] if "Oslo" in given else [("get_weather", {})],
        )
        for given in (
            '{"city": "Oslo"}{"city": "Oslo"}',
            '{}{"city": "Oslo"}',
            '{"city": "Oslo"}</tool_call>',
            '```json\n{"city": "Oslo"}\n```',
            " ",
            "None",
        )
    ),
    calls_case(
        "a line break in an argument",
        piece('{"city": "Os\nlo"}', id="a", index=0),
        whole=message("tool_calls", tool_calls=[piece('{"city": "Os\nlo"}', id="a")]),
        calls=[("get_weather", {"city": "Os\nlo"})],
    ),
    calls_case(
        "all arguments once more, in pieces",
        piece("", id="a", index=0),
        *(more(part, index=0) for part in ('{"city"', ': "Oslo"}', '{"city"', ': "Oslo"}')),
        calls=[OSLO],
    ),
    *(
        Case(
            f"{name} as the input of a block",
            anthropic_stream([anthropic_start(), *said, *anthropic_end("tool_use")]),
            kind="anthropic",
            calls=[OSLO],
            finish="tool_calls",
        )
        for name, said in {
            "an empty object and then one": anthropic_block(0, TOOL, *map(typed, ("{}", '{"city": "Oslo"}'))),
            "an object twice": anthropic_block(0, TOOL, *map(typed, ('{"city"', ': "Oslo"}', '{"city": "Oslo"}'))),
            "all so far": anthropic_block(0, TOOL, *map(typed, ('{"ci', '{"city": "Os', '{"city": "Oslo"}'))),
        }.items()
    ),
    calls_case(
        "arguments in an entry of their own",
        piece("", id="a", index=0),
        more('{"city": "Oslo"}', index=0),
        whole=message("tool_calls", tool_calls=[piece("", id="a"), more('{"city": "Oslo"}', index=0)]),
        calls=[OSLO],
    ),
    Case("calls as the reason, and none", chunks({"content": "Hi"}, finish="tool_calls"), text="Hi"),
    # All of an answer again at its end.
    *(
        Case(
            f"the whole text again, {name}",
            raw_chunks(*({"choices": [{"delta": delta}]} for delta in AGAIN), *ends, end=DONE),
            text="Oslo is rainy today.",
            reasoning="Hm.",
        )
        for name, ends in {
            "as a message": [{"choices": [{"message": {"content": RAIN} | AGAIN[0], "finish_reason": "stop"}]}],
            "as a piece": [{"choices": [{"delta": {"content": RAIN}, "finish_reason": "stop"}]}],
            "after the reason": [
                {"choices": [{"delta": {}, "finish_reason": "stop"}]},
                {"object": "chat.completion", "choices": [{"message": {"content": RAIN}}]},
            ],
        }.items()
    ),
    Case(
        "the whole call again",
        raw_chunks(
            {"choices": [{"delta": {"tool_calls": [call("Oslo", id="a", index=0)]}}]},
            {"choices": [{"message": {"tool_calls": [call("Oslo", id="a")]}, "finish_reason": "tool_calls"}]},
        ),
        calls=[OSLO],
        finish="tool_calls",
    ),
    *(
        Case(
            f"a last piece that is all before it again: {''.join(said)!r}",
            raw_chunks(
                *({"choices": [{"delta": {"content": piece}}]} for piece in said),
                {"choices": [{"delta": {"content": "".join(said)}, "finish_reason": "stop"}]},
            ),
            text="".join(said) * times,
        )
        for said, times in (
            (("Hello", " there"), 1),
            (tuple(piece["content"] for piece in LETTERS), 1),
            (("aaaaaaaa",) * 2, 2),
            (("hello ", "world\n"), 2),
            (("Oslo is rainy today.",), 2),
        )
    ),
    Case(
        "a refrain",
        raw_chunks(*[{"choices": [{"delta": {"content": "ha "}, "finish_reason": end}]} for end in (None, "stop")]),
        text="ha ha ",
    ),
    calls_case(
        "stop after a call without arguments",
        piece(None, id="a", index=0),
        finish="stop",
        whole=message("stop", tool_calls=[piece(None, id="a")]),
        calls=[("get_weather", {})],
    ),
    Case(
        "the function of the first years",
        chunks(
            {"function_call": {"name": "get_weather", "arguments": '{"city"'}},
            {"function_call": {"arguments": ': "Oslo"}'}},
            finish="function_call",
        ),
        message("function_call", function_call={"name": "get_weather", "arguments": '{"city": "Oslo"}'}),
        calls=[OSLO],
        finish="tool_calls",
    ),
    *(
        calls_case(
            f"the name {name!r}",
            call("Oslo", id="a", index=0) | {"function": {"name": name, "arguments": '{"city": "Oslo"}'}},
            whole=message(tool_calls=[{"function": {"name": name, "arguments": {"city": "Oslo"}}}]),
            calls=[OSLO],
        )
        for name in AROUND
    ),
    *(
        Case(
            f"thoughts in details alone, as {field}",
            chunks({"reasoning_details": [{field: "H"}]}, {"reasoning_details": [{field: "m."}]}, {"content": "Hi"}),
            message(content="Hi", reasoning_details=[{field: "Hm."}, {"data": "sealed"}]),
            text="Hi",
            reasoning="Hm.",
        )
        for field in ("text", "summary")
    ),
    Case(
        "thoughts in details, too",
        chunks(
            {"reasoning": "Hm.", "reasoning_details": [{"text": "Hm."}]},
            {"reasoning_details": [{"text": "Hm.", "signature": "s"}], "content": "Hi"},
        ),
        text="Hi",
        reasoning="Hm.",
    ),
    # Ends, and events that were made events twice.
    *(
        Case(f"{mark} as the end", chunks({"content": "Hi"}, end=b"data: %b\n\n" % mark.encode()), text="Hi")
        for mark in ('"[DONE]"', "[done]", "DONE")
    ),
    *(
        Case(
            f"[DONE] as the end of {kind}",
            stream + DONE,
            kind=kind,
            text="Hi",
        )
        for kind, stream in {
            "anthropic": anthropic_stream([anthropic_start(), *anthropic_text(0, "Hi"), anthropic_end()[0]]),
            "gemini": gemini_stream([gemini_event({"text": "Hi"}, finish="STOP")]),
        }.items()
    ),
    Case("data in data", chunks({"content": "Hi"}).replace(b"data: ", b"data: data: "), text="Hi"),
    Case("an answer as a page", chunks({"content": "Hi"}), message(content="Hi"), types=("text/html",) * 2, text="Hi"),
    Case(
        "a reason of Gemini's in small letters",
        None,
        gemini_event({"text": "Hi"}, finish="max_tokens"),
        "gemini",
        text="Hi",
        finish="length",
    ),
    # Anthropic's API.
    Case(
        "a stream of Messages without ids, with the same block and the input at once",
        anthropic_stream(
            [anthropic_start(), *(event for tool in TWO_TOOLS for event in anthropic_block(0, tool)), *anthropic_end()]
        ),
        {"content": TWO_TOOLS, "stop_reason": "end_turn", "usage": {"input_tokens": "10", "output_tokens": None}},
        "anthropic",
        calls=[OSLO, ROME],
        finish="tool_calls",
    ),
    Case(
        "blocks of Messages that are not ended",
        anthropic_stream(
            [
                anthropic_start(),
                *(event for tool in TWO_TOOLS for event in anthropic_block(0, tool) if "stop" not in event["type"]),
                *anthropic_end("tool_use"),
            ]
        ),
        None,
        "anthropic",
        calls=[OSLO, ROME],
        finish="tool_calls",
    ),
    Case(
        "a Message without a type of its text, with odd counts and no reason",
        b'event: content_block_delta\ndata: {"index": "0", "delta": {"text": "Hi"}}\n\n'
        b'event: message_delta\ndata: {"delta": {}, "usage": {"output_tokens": 3.0, "input_tokens": null}}\n\n'
        b'data: {"type": "message_stop"}\n\n',
        {"content": "Hi", "usage": None},
        "anthropic",
        text="Hi",
    ),
    # Gemini's.
    Case(
        "a prompt that Gemini blocks",
        gemini_stream([{"promptFeedback": {"blockReason": "OTHER"}, "usageMetadata": {"promptTokenCount": 20}}]),
        {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 20.0}},
        "gemini",
        finish="content_filter",
    ),
    Case(
        "a reason on each of Gemini's events",
        gemini_stream([gemini_event({"text": "Hi "}, finish="STOP"), gemini_event({"text": "there"}, finish="STOP")]),
        [gemini_event({"text": "Hi "}), gemini_event({"text": "there", "thought": None}, finish="STOP")],
        "gemini",
        text="Hi there",
    ),
    Case(
        "Gemini's calls with arguments as text, and counts as null",
        gemini_stream(
            [
                gemini_event({"functionCall": {"name": "get_weather", "args": '{"city": "Oslo"}'}}),
                gemini_event({"functionCall": {"name": "get_weather", "args": {"city": "Rome"}}}, finish="STOP"),
            ]
        ),
        gemini_event({"functionCall": {"name": "get_weather", "args": '{"city": "Oslo"}'}}, finish="STOP")
        | {"usageMetadata": {"promptTokenCount": None, "candidatesTokenCount": "7"}},
        "gemini",
        calls=[OSLO, ROME],
        finish="tool_calls",
    ),
    # Bedrock's.
    Case(
        "a guardrail of Bedrock's",
        bedrock_stream([*bedrock_text("No."), *bedrock_end("guardrail_intervened")]),
        {
            "output": {"message": {"content": {"text": "No."}}},
            "stopReason": "content_filtered",
            "usage": {"inputTokens": None},
        },
        "bedrock",
        (EVENT_STREAM, JSON),
        text="No.",
        finish="content_filter",
    ),
    Case(
        "Bedrock's calls without ids, with objects as input",
        bedrock_stream(
            [
                ("contentBlockStart", {"start": {"toolUse": {"name": "get_weather"}}}),
                ("contentBlockDelta", {"delta": {"toolUse": {"input": {"city": "Oslo"}}}}),
                ("contentBlockStop", {}),
                *bedrock_end("end_turn"),
            ]
        ),
        {
            "output": {"message": {"content": [{"toolUse": {"name": "get_weather", "input": '{"city": "Oslo"}'}}]}},
            "stopReason": "end_turn",
        },
        "bedrock",
        (EVENT_STREAM, JSON),
        calls=[OSLO],
        finish="tool_calls",
    ),
    # The Responses API.
    responses(
        said("Hi", annotations=[CITED]),
        name="a response whose items come at the end alone",
        text="Hi",
        cited="https://a.b/c",
    ),
    responses(
        said("Hi"),
        deltas=({"type": "response.output_text.delta", "delta": "Hi"},),
        name="a text of a response without the events of its item",
        text="Hi",
    ),
    responses(
        WEATHER,
        deltas=(
            {"type": "response.output_item.added", "output_index": 0, "item": WEATHER | {"arguments": ""}},
            {"type": "response.function_call_arguments.done", "output_index": 0, "arguments": '{"city": "Oslo"}'},
        ),
        name="arguments of a response at their end alone",
        calls=[OSLO],
        finish="tool_calls",
    ),
    responses(
        WEATHER,
        deltas=({"type": "response.output_item.done", "output_index": 0, "item": WEATHER},),
        name="the end of a response's item alone",
        calls=[OSLO],
        finish="tool_calls",
    ),
    responses(
        {"type": "message", "content": [{"type": "refusal", "refusal": "No."}]},
        deltas=({"type": "response.refusal.delta", "delta": "No.", "output_index": None},),
        name="a refusal of the Responses API",
        refusal="No.",
    ),
    responses(
        *({"type": "function_call", "name": "get_weather", "arguments": {"city": city}} for city in ("Oslo", "Rome")),
        name="calls of a response without ids, with objects as arguments",
        calls=[OSLO, ROME],
        finish="tool_calls",
    ),
    *(
        responses(
            WEATHER | {"id": "fc_1"},
            deltas=(
                {"type": "response.output_item.added", "output_index": 0, "item": WEATHER | {"id": "fc_1", "name": ""}},
                {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": '{"city": "Oslo"}'},
                *end,
            ),
            name=f"a call of a response that is named at the end of {of} alone",
            calls=[OSLO],
            finish="tool_calls",
        )
        for of, end in {
            "its item": ({"type": "response.output_item.done", "output_index": 0, "item": WEATHER | {"id": "fc_1"}},),
            "the response": (),
        }.items()
    ),
    responses(
        said("Hi"),
        WEATHER,
        WEATHER | {"call_id": "c2", "arguments": '{"city": "Rome"}'},
        deltas=(
            {"type": "response.output_text.delta", "output_index": 0, "delta": "Hi"},
            {"type": "response.output_item.added", "output_index": 1, "item": WEATHER | {"arguments": ""}},
        ),
        name="a call of a response at its end alone, after others",
        text="Hi",
        calls=[OSLO, ROME],
        finish="tool_calls",
    ),
    responses(
        said("Hi"),
        WEATHER,
        deltas=({"type": "response.output_item.done", "output_index": 1, "item": WEATHER},),
        name="a text of a response at its end alone, after a call",
        text="Hi",
        calls=[OSLO],
        finish="tool_calls",
    ),
    responses(
        said("Hi"),
        deltas=(
            {"type": "response.output_text.delta", "output_index": 0, "item_id": "m", "delta": "Hi"},
            {"type": "response.output_item.done", "output_index": 1, "item": said("Hi") | {"id": "m"}},
        ),
        name="an item of a response with another place at its end",
        text="Hi",
    ),
    # More of the same kinds, on other wires.
    Case("parts that are texts", chunks({"content": ["He", "llo"]}), message(content=["He", "llo"]), text="Hello"),
    Case("a part that is none", chunks({"content": [None, "Hi"]}), message(content=[None, {"text": "Hi"}]), text="Hi"),
    Case(
        "a text in an object",
        chunks({"content": [{"type": "text", "text": {"value": "Hello"}}]}),
        message(content=[{"type": "text", "text": {"value": "Hello"}}]),
        text="Hello",
    ),
    Case("events without blank lines between them", ONE_BREAK, text="Hello"),
    Case(
        "events that are null, and comments as data",
        b"data: null\n\ndata: \n\ndata: : PROCESSING\n\ndata: []\n\nevent: ping\ndata: ping\n\n"
        + chunks({"content": "Hello"}),
        text="Hello",
    ),
    Case(
        "a reason in capitals",
        chunks({"content": "Hello"}, finish="MAX_TOKENS"),
        message("MAX_TOKENS", content="Hello"),
        text="Hello",
        finish="length",
    ),
    calls_case(
        "arguments that are JSON twice",
        piece(TWICE, index=0, id="c1"),
        whole=message("tool_calls", tool_calls=[piece(TWICE, id="c1")]),
        calls=[OSLO],
    ),
    Case(
        "calls of Gemini with one id",
        gemini_stream(
            [
                gemini_event({"functionCall": {"id": "x", "name": name, "args": arguments}}, finish=finish)
                for (name, arguments), finish in ((OSLO, None), (ROME, "STOP"))
            ]
        ),
        kind="gemini",
        calls=[OSLO, ROME],
        finish="tool_calls",
    ),
    # Answers in a wrapping.
    *(
        Case(
            f"all in {name}",
            chunks({"content": "Hello"})
            .replace(b"data: {", b'data: {"code": 0, "msg": "ok", "%b": {' % name.encode())
            .replace(b"}\n\n", b"}}\n\n"),
            {"code": 200, "success": True, "errors": [], "message": "success", name: message(content="Hello")},
            text="Hello",
        )
        for name in ("data", "result", "response")
    ),
    Case(
        "an error that is none", None, message(content="Hi") | {"error": {}, "base_resp": {"status_code": 0}}, text="Hi"
    ),
    # Filters.
    Case(
        "an answer that MiniMax's filter has stopped",
        raw_chunks(
            {"choices": [{"delta": {"content": "Hi"}}], "output_sensitive": False},
            {"choices": [{"delta": {}, "finish_reason": "stop"}], "output_sensitive": True, "output_sensitive_type": 5},
        ),
        message(content="Hi") | {"output_sensitive": True},
        text="Hi",
        finish="content_filter",
    ),
    *(
        Case(f"a prompt that a filter refuses: {name}", raw_chunks(said), said, finish="content_filter")
        for name, said in {
            "MiniMax's": {
                "choices": None,
                "input_sensitive": True,
                "base_resp": {"status_code": 1026, "status_msg": "x"},
            },
            "Zhipu's": {"error": {"code": "1301", "message": "系统检测到输入内容可能包含不安全或敏感内容"}},
            "DashScope's": {"error": {"code": "data_inspection_failed", "message": "Input data may be inappropriate."}},
            "Azure's": {"error": {"code": "content_filter", "message": "The response was filtered", "status": 400}},
        }.items()
    ),
    *(
        Case(
            f"the reason {given}",
            chunks({"content": "Hi "}, finish=given, end=b"") + chunks({"content": "you"}),
            text="Hi you",
        )
        for given in ("not_finished", "IN_PROGRESS", "")
    ),
    # Thoughts in the text.
    *(
        Case(
            f"thoughts between {opening} and {closing}",
            chunks(
                *(
                    {"content": piece}
                    for piece in (opening[:3], opening[3:] + "\nHm", ".", closing[:2], closing[2:], "\n\n", "Hi")
                )
            ),
            message(content=f"{opening}\nHm.{closing}\n\nHi"),
            text="Hi",
            reasoning="Hm.",
        )
        for opening, closing in (
            ("<think>", "</think>"),
            ("<thinking>", "</thinking>"),
            ("<seed:think>", "</seed:think>"),
            ("[THINK]", "[/THINK]"),
            ("<thought>", "</thought>"),
            ("<reasoning>", "</reasoning>"),
            ("<|START_THINKING|>", "<|END_THINKING|>"),
            ("<|channel>thought", "<channel|>"),
            ("<|begin_of_thought|>", "<|end_of_thought|>"),
            ("<mm:think>", "</mm:think>"),
            ("<longcat_think>", "</longcat_think>"),
            ("<think:opensource>", "</think:opensource>"),
            ("<|inner_prefix|>", "<|inner_suffix|>"),
        )
    ),
    *(
        Case(
            f"a thought and an answer in {opening}",
            in_pieces(f"<think>Hm.</think>\n{opening}\nHi{closing}"),
            message(content=f"<think>Hm.</think>\n{opening}\nHi{closing}"),
            text="Hi",
            reasoning="Hm.",
        )
        for opening, closing in (
            ("<answer>", "\n</answer>"),
            ("<response>", "</response>\n"),
            ("<|begin_of_box|>", "<|end_of_box|>"),
            ("<|START_RESPONSE|>", "<|END_RESPONSE|><|END_OF_TURN_TOKEN|>"),
        )
    ),
    Case(
        "a box within an answer",
        in_pieces("It is <|begin_of_box|>42<|end_of_box|>."),
        message(content="It is <|begin_of_box|>42<|end_of_box|>."),
        text="It is 42.",
    ),
    *(
        Case(
            f"an answer before {end}",
            in_pieces(f"Hi{end}"),
            message(content=f"Hi{end}"),
            text="Hi",
        )
        for end in ("<|im_end|>", "</s>", "<|eot_id|>", "<|end|>", "\n<|im_end|>\n<|endoftext|>\n", "<end_of_turn>")
    ),
    *(
        Case(
            f"a thought in its field as {given}",
            chunks(*({"reasoning_content": one} for one in given), *({"content": one} for one in after)),
            message(content=after, reasoning_content=given),
            text="Hi",
            reasoning="Hm.",
        )
        for given, after in (
            ("<think>\nHm.", "Hi"),
            ("<think>Hm.</think>", "Hi"),
            ("Hm.</think>", "Hi"),
            ("<think>Hm.</think>\n\nHi", ""),
            ("<mm:think>Hm.</mm:think>", "Hi"),
        )
    ),
    *(
        Case(
            f"a thought that speaks of tags: {given}",
            chunks(*({"reasoning_content": one} for one in given), {"content": "Hi"}),
            message(content="Hi", reasoning_content=given),
            text="Hi",
            reasoning=given,
        )
        for given in ("Hm, <think> is a tag.", "A call is <tool_call>{}</tool_call> here.", "<", "So <|im_end|> it is")
    ),
    Case(
        "thoughts that are never ended",
        chunks({"content": "<think>"}, {"content": "Hm, 1 <"}, {"content": " 2 </th"}, finish="length"),
        message("length", content="<think>Hm, 1 < 2 </th"),
        reasoning="Hm, 1 < 2 </th",
        finish="length",
    ),
    Case(
        "no thoughts between tags",
        chunks({"content": "<think>\n\n</think>\n\nHi"}),
        message(content="<think></think>Hi"),
        text="Hi",
    ),
    Case(
        "the end of thoughts alone after them",
        chunks({"reasoning_content": "Hm."}, {"content": "</think>"}, {"content": "\n\nHi"}),
        message(content="Hm.\n</think>\n\nHi"),
        text="Hi",
        reasoning="Hm.",
    ),
    *(
        Case(f"no thoughts: {text}", chunks(*({"content": one} for one in text)), message(content=text), text=text)
        for text in (
            "<b>Hi</b>",
            " <thin air",
            "<s>Hi</s>",
            "A turn ends with <|im_end|>",
            "Its end is `<|im_end|>`.",
            "<answer>Hi</answer>",
            "<|im_end|>",
            "The marks <|im_end|> and </s> are two.",
            "Hi <think>x</think>",
            "End it with `</think>`.",
            "<",
        )
    ),
    *(
        Case(
            f"thoughts as {name}",
            chunks({name: "Hm."}, {"content": "Hi"}),
            message(content="Hi", **{name: "Hm."}),
            text="Hi",
            reasoning="Hm.",
        )
        for name in ("reasoning", "reasoning_text", "thinking", "thinking_content", "thought")
    ),
    # Calls.
    calls_case(
        "all arguments so far in each piece",
        piece('{"ci', id="a", index=0),
        *(more(part, index=0) for part in ('{"city": "Os', '{"city": "Oslo"}', '{"city": "Oslo"}')),
        calls=[OSLO],
    ),
    calls_case(
        "arguments as parameters",
        {"index": 0, "id": "a", "function": {"name": "get_weather", "parameters": {"city": "Oslo"}}},
        whole=message(tool_calls=[{"function": {"name": "get_weather", "parameters": '{"city": "Oslo"}'}}]),
        calls=[OSLO],
    ),
    calls_case(
        "the name in place of the function",
        {"index": 0, "id": 7, "function": "get_weather", "arguments": {"city": "Oslo"}},
        whole=message(tool_calls=[{"id": 7, "function": "get_weather", "arguments": '{"city": "Oslo"}'}]),
        calls=[OSLO],
    ),
    Case(
        "a text in place of the message",
        raw_chunks({"choices": [{"delta": "Hel"}]}, {"choices": [{"delta": "lo", "finish_reason": "stop"}]}),
        {"choices": [{"message": "Hello", "finish_reason": "stop"}]},
        text="Hello",
    ),
    # Events.
    *(
        Case(
            f"{mark} as the end", chunks({"content": "Hi"}, finish=None, end=b"data: %b\n\n" % mark.encode()), text="Hi"
        )
        for mark in ("[END]", "<EOS>", "EOF", "[STOP]")
    ),
    Case(
        "an event that is the end", chunks({"content": "Hi"}, finish=None, end=b"event: done\ndata: bye\n\n"), text="Hi"
    ),
    *(
        Case(
            f"heartbeats as data of {kind}",
            b"data: ping\n\nevent: keep-alive\ndata: \n\n" + stream,
            kind=kind,
            text="Hi",
        )
        for kind, stream in {
            "anthropic": anthropic_stream([anthropic_start(), *anthropic_text(0, "Hi"), *anthropic_end()]),
            "gemini": gemini_stream([gemini_event({"text": "Hi"}, finish="STOP")]),
        }.items()
    ),
    Case(
        "heartbeats as data",
        b'data: ping\n\ndata: [HEARTBEAT]\n\ndata: "keep-alive"\n\n' + chunks({"content": "Hi"}),
        text="Hi",
    ),
    Case(
        "JSON over several lines",
        chunks({"content": "Hello"}).replace(b'{"choices": [', b'{\n  "choices": [\n  ').replace(b"}\n\n", b"\n}\n\n"),
        text="Hello",
    ),
    Case("JSON after a comment", b": PROCESSING\n\n" + json.dumps(message(content="Hi")).encode(), text="Hi"),
    Case(
        "blanks before a whole answer",
        b"   \n\n \n" + json.dumps(message(content="Hi")).encode(),
        message(content="Hi"),
        text="Hi",
    ),
]
AS_PARTS = [
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm.", "signature": "s"}]},
    {"type": "text", "text": "Hi"},
    {"type": "reference", "reference_ids": [1]},
    {"type": "tool_use", "id": "a", "name": "get_weather", "input": {"city": "Oslo"}},
]
HARMONY = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi"
HERMES = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "%s"}}\n</tool_call>'
INVOKED = '<invoke name="get_weather">\n<parameter name="city">Oslo</parameter>\n</invoke>'
GLM = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>"
SEVERAL = json.dumps(
    {"tool_uses": [{"recipient_name": f"functions.{name}", "parameters": said} for name, said in (OSLO, ROME)]}
)
# Calls as models write them: name, text before them, all of the answer, calls.
WRITTEN: list[tuple[str, str, str, list[tuple[str, Body]]]] = [
    ("Hermes", "Let me look.", "Let me look.\n\n" + HERMES % "Oslo" + "\n" + HERMES % "Rome", [OSLO, ROME]),
    ("Llama 4 twice", "", '[get_weather(city="Oslo"), get_weather(city="Rome")]', [OSLO, ROME]),
    (
        "functools twice",
        "",
        "functools" + json.dumps([{"name": "get_weather", "arguments": {"city": city}} for city in ("Oslo", "Rome")]),
        [OSLO, ROME],
    ),
    (
        "a section twice",
        "So.",
        f"So.\n<function_calls>\n{INVOKED}\n{INVOKED.replace('Oslo', 'Rome')}\n</function_calls>",
        [OSLO, ROME],
    ),
    *(
        (name, "", text, [OSLO])
        for name, text in {
            "Hermes that are not ended": (HERMES % "Oslo").removesuffix("\n</tool_call>"),
            "Qwen3-Coder": "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n"
            "</tool_call>",
            "Qwen3-Coder that are not begun": "<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n"
            "</function>\n</tool_call>",
            "GLM": "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>",
            "MiniMax": '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Oslo</parameter>\n'
            "</invoke>\n</minimax:tool_call>",
            "DeepSeek 3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
            '{"city": "Oslo"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
            "DeepSeek 3.1": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
            '{"city": "Oslo"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
            "DeepSeek 3.2": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
            '<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
            "</｜DSML｜function_calls>",
            "Kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
            '<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|><|tool_calls_section_end|>',
            "Mistral": '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo"}}]',
            "later models of Mistral": '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}',
            "Mistral with ids": '[TOOL_CALLS]get_weather[CALL_ID]abc123def[ARGS]{"city": "Oslo"}',
            "Granite": '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Oslo"}}]',
            "Gemma": '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>}<tool_call|>',
            "LFM2": '<|tool_call_start|>[get_weather(city="Oslo")]<|tool_call_end|>',
            "Llama": '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Oslo"}}',
            "Llama, in JSON": '{"type": "function", "name": "get_weather", "parameters": {"city": "Oslo"}}',
            "a list": '[{"name": "get_weather", "arguments": {"city": "Oslo"}}]',
            "a block of code": '```json\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n```',
            **{
                f"a section {section}": f"<{section}>\n{INVOKED}\n</{section}>"
                for section in ("function_calls", "tool_calls")
            },
            "an invoke alone": INVOKED,
            "DeepSeek 4": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n'
            '<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
            "</｜DSML｜tool_calls>",
            **{
                f"JSON between {opening} and {closing}": f"{opening}{json_call}{closing}"
                for opening, closing in (
                    ("<tools>\n", "\n</tools>"),
                    ("<tool_calls>[", "]</tool_calls>"),
                    ("<tool_calls>\n", "\n</tool_calls>"),
                    ("<TOOLCALL>[", "]</TOOLCALL>"),
                    ("functools[", "]"),
                    ("<longcat_tool_call>", "</longcat_tool_call>"),
                    ("<function_call> ", ""),
                    ("<|action_start|><|plugin|>\n", "<|action_end|>"),
                )
                for json_call in ('{"name": "get_weather", "arguments": {"city": "Oslo"}}',)
            },
            "Command": '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", '
            '"parameters": {"city": "Oslo"}}\n]<|END_ACTION|>',
            "Llama 3.1 with a name in its tag": '<function=get_weather>{"city": "Oslo"}</function>',
            "Seed": "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Oslo</parameter>\n</function>\n"
            "</seed:tool_call>",
            "Step": "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜>"
            '<steptml:invoke name="get_weather">'
            '<steptml:parameter name="city">Oslo</steptml:parameter></steptml:invoke><｜tool_call_end｜>\n'
            "<｜tool_calls_end｜>",
            "MiniCPM": '<function name="get_weather"><param name="city">Oslo</param></function>',
            "Hunyuan": '<tool_calls>\n<tool_call>get_weather\n```json\n{"city": "Oslo"}\n```</tool_call>\n'
            "</tool_calls>",
            "OLMo": "<function_calls>\nget_weather(city='Oslo')\n</function_calls>",
            "Llama 4": '[get_weather(city="Oslo")]',
            "Llama 4 with marks": '<|python_start|>[get_weather(city="Oslo")]<|python_end|>',
            "Gemma 3": '```tool_code\nget_weather(city="Oslo")\n```',
            "Kimi without a section": "<|tool_call_begin|>functions.get_weather:0"
            '<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|>',
            "Hermes before the end's token": HERMES % "Oslo" + "<|im_end|>",
            "gpt-oss": "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
            '{"city": "Oslo"}<|call|>',
        }.items()
    ),
]
GROUNDED = {
    "candidates": [
        {
            "content": {"parts": [{"text": "Hi"}]},
            "finishReason": "STOP",
            "groundingMetadata": {"groundingChunks": [{"web": {"uri": "https://a.b/c", "title": "C"}}, {}]},
        },
        {"index": 1, "content": {"parts": [{"text": "Ho"}]}, "finishReason": "STOP"},
    ]
}
SAYS = {"type": "response.output_text.delta", "delta": "Hi"}


def anthropic_call(place: int, arguments: Any) -> list[Body]:
    """A call at this place, whose arguments come as one piece of the first block."""
    tool = {"type": "tool_use", "id": "a", "name": "get_weather", "input": {}}
    delta = {"type": "input_json_delta", "partial_json": arguments}
    return [
        {"type": "content_block_start", "index": place, "content_block": tool},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": place},
    ]


# One event as some proxies cut it, and several in one.
TOLD = json.dumps({"choices": [{"index": 0, "delta": {"content": "Hello there"}}]}).encode()
PIECES = [json.dumps({"choices": [{"index": 0, "delta": {"content": one}}]}).encode() for one in ("Hello", " there")]


def events(*data: bytes) -> bytes:
    """A stream of events with these data, and its usual end."""
    return b"".join(b"data: %b\n\n" % one for one in data) + chunks()


CASES += [
    *(
        Case(f"events of {name}", events(*data), text="Hello there")
        for name, data in {
            "two parts of an object": (TOLD[:50], TOLD[50:]),
            "three parts of an object": (TOLD[:9], TOLD[9:55], TOLD[55:]),
            "an object and a part of the next": (PIECES[0] + PIECES[1][:9], PIECES[1][9:]),
            "a list of chunks": (b"[%b, %b]" % (*PIECES,),),
            "two objects": (b"".join(PIECES),),
            "JSON that is JSON twice": (json.dumps(TOLD.decode()).encode(),),
            "an object and zero bytes": (TOLD + b"\0\0",),
        }.items()
    ),
    *(
        Case(f"a whole answer {name}", None, body, text="Hi")
        for name, body in {
            "as JSON twice": json.dumps(json.dumps(message(content="Hi"))).encode(),
            "in a list": [message(content="Hi")],
            "before the mark of an end": json.dumps(message(content="Hi")).encode() + b"\ndata: [DONE]\n\n",
            "that no script may read": b")]}'\n" + json.dumps(message(content="Hi")).encode(),
        }.items()
    ),
    Case(
        "lines of JSON, and the mark of an end",
        b"\n".join((*PIECES, json.dumps({"choices": [{"delta": {}, "finish_reason": "stop"}]}).encode(), b"[DONE]\n")),
        text="Hello there",
    ),
    # Answers of other forms.
    Case(
        "a content beside the message",
        raw_chunks(
            *({"choices": [{"content": one, "finish_reason": end}]} for one, end in (("H", None), ("i", "stop")))
        ),
        {"choices": [{"content": "Hi", "finish_reason": "stop"}]},
        text="Hi",
    ),
    Case("a text in the message", chunks({"text": "H"}, {"text": "i"}), message(text="Hi"), text="Hi"),
    *(
        Case(
            f"a {name} of Ollama's own",
            b"".join(
                json.dumps({"message": {"role": "assistant", "content": ""} | one, "done": end} | ending).encode()
                + b"\n"
                for one, end, ending in ((said, False, {}), ({}, True, {"done_reason": "stop", "eval_count": 8}))
            ),
            {"message": {"role": "assistant", "content": ""} | said, "done": True, "prompt_eval_count": 20},
            types=("application/x-ndjson", JSON),
            **means,
        )
        for name, said, means in (
            ("text", {"content": "Hi", "thinking": "Hm."}, {"text": "Hi", "reasoning": "Hm."}),
            (
                "call",
                {"tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}]},
                {"calls": [OSLO], "finish": "tool_calls"},
            ),
        )
    ),
    Case(
        "a text of Cloudflare's own",
        raw_chunks({"response": "H"}, {"response": "i"}, {"response": "", "usage": USAGE}),
        {"result": {"response": "Hi", "usage": USAGE}, "success": True, "errors": [], "messages": []},
        text="Hi",
    ),
    Case("a delta without choices", raw_chunks({"delta": {"content": "Hi"}}), text="Hi"),
    *(
        Case(
            f"the only choice has the index {index}",
            raw_chunks({"choices": [{"index": index, "delta": {"content": "Hi"}, "finish_reason": "stop"}]}),
            {"choices": [{"index": index, "message": {"content": "Hi"}, "finish_reason": "stop"}]},
            text="Hi",
        )
        for index in (1, -1)
    ),
    Case(
        "calls in a second choice",
        None,
        {
            "choices": [
                {"index": place, "message": said, "finish_reason": "tool_calls"}
                for place, said in enumerate(({"content": "Hi"}, {"tool_calls": [call("Oslo", id="a")]}))
            ]
        },
        text="Hi",
        calls=[OSLO],
        finish="tool_calls",
    ),
    *(
        Case(f"an answer to a schema that is {text}", None, message(content=json.loads(text)), text=text)
        for text in ('{"city":"Oslo"}', "true", "42", '[{"city":"Oslo"}]')
    ),
    Case(
        "thoughts and calls as parts",
        chunks(*({"content": [one]} for one in AS_PARTS), finish="tool_calls"),
        message("tool_calls", content=AS_PARTS),
        text="Hi",
        reasoning="Hm.",
        calls=[OSLO],
        finish="tool_calls",
    ),
    *(
        Case(
            f"{name} beside the choices",
            raw_chunks(
                {"choices": [{"delta": {"content": "Hi"}}], name: cited},
                {"choices": [{"delta": {}, "finish_reason": "stop"}], name: cited},
            ),
            message(content="Hi") | {name: cited},
            text="Hi",
            cited="https://a.b/c",
        )
        for name, cited in (
            ("citations", ["https://a.b/c"]),
            ("search_results", [{"url": "https://a.b/c", "title": "C", "date": None}]),
        )
    ),
    *(
        calls_case(
            f"arguments as {name}",
            {"index": 0, "id": "a", "function": {"name": "get_weather", name: {"city": "Oslo"}}},
            whole=message(tool_calls=[{"id": "a", "name": "get_weather", name: {"city": "Oslo"}}]),
            calls=[OSLO],
        )
        for name in ("input", "args")
    ),
    # Thoughts in the text.
    Case(
        "two thoughts",
        chunks({"content": "<think>Hm.</think>\n"}, {"content": "<think>So.</think>\nHi"}),
        message(content="<think>Hm.</think>\n<think>So.</think>\nHi"),
        text="Hi",
        reasoning="Hm.So.",
    ),
    Case(
        "channels as text",
        chunks(*({"content": HARMONY[at : at + 5]} for at in range(0, len(HARMONY), 5))),
        message(content=HARMONY),
        text="Hi",
        reasoning="Hm.",
    ),
    Case(
        "thoughts in a text of Bedrock's",
        bedrock_stream([*bedrock_text("<thinking>Hm.</thinking>Hi"), *bedrock_end("end_turn")]),
        {"output": {"message": {"content": [{"text": "<thinking>Hm.</thinking>Hi"}]}}, "stopReason": "end_turn"},
        "bedrock",
        (EVENT_STREAM, JSON),
        text="Hi",
        reasoning="Hm.",
    ),
    # Calls in the text.
    *(
        Case(
            f"calls of {name} as text",
            chunks(*({"content": text[at : at + 5]} for at in range(0, len(text), 5))),
            message(content=text),
            text=before,
            calls=calls,
            finish="tool_calls",
        )
        for name, before, text, calls in WRITTEN
    ),
    *(
        Case(
            f"a call in thoughts alone, {name}",
            chunks(*given),
            message(**{key: "".join(one.get(key, "") for one in given) for key in given[0]}),
            reasoning="Hm.",
            calls=[OSLO],
            finish="tool_calls",
        )
        for name, given in {
            "of GLM's": [{"reasoning_content": one} for one in "Hm.\n" + GLM],
            "between tags": [{"content": one} for one in f"<think>Hm.\n{GLM}</think>\n"],
            "of Qwen's": [{"reasoning": one} for one in ("Hm.", "\n<tool_call>", (HERMES % "Oslo")[11:])],
        }.items()
    ),
    *(
        Case(
            f"a thought with a call, and {name}",
            chunks({"reasoning_content": f"Hm. {GLM}"}, *given, finish=finish),
            message(finish, reasoning_content=f"Hm. {GLM}", **given[0]) if given else None,
            reasoning=f"Hm. {GLM}{'' if given or finish == 'length' else ' no'}",
            finish=finish,
            **means,
        )
        for name, given, finish, means in (
            ("a text", [{"content": "Hi"}], "stop", {"text": "Hi"}),
            ("another", [{"tool_calls": [call("Rome", id="a", index=0)]}], "tool_calls", {"calls": [ROME]}),
            ("no room for more", [], "length", {}),
        )
    ),
    *(
        calls_case(
            f"a call of others, named {name}",
            *({"index": 0, "id": "a", "function": {"name": name, "arguments": one}} for one in SEVERAL[:1]),
            *(more(one, index=0) for one in SEVERAL[1:]),
            whole=message("tool_calls", tool_calls=[{"id": "a", "function": {"name": name, "arguments": SEVERAL}}]),
        )
        for name in ("multi_tool_use.parallel", "multi_tool_use_parallel:2", "parallel")
    ),
    calls_case(
        "a call of others that are not known",
        piece('{"tool_uses": [{"recipient_name": "functions.get_rain", "parameters": {}}]}', index=0, id="a")
        | {"function": {"name": "parallel", "arguments": '{"tool_uses": []}'}},
        calls=[("parallel", {"tool_uses": []})],
    ),
    *(
        Case(
            f"no calls: {text}",
            chunks(*({"content": text[at : at + 3]} for at in range(0, len(text), 3))),
            message(content=text),
            text=text,
        )
        for text in (
            '{"name": "Ann", "age": 3}',
            '{"name": "get_rain", "arguments": {}}',
            "Use <tool_call> to call.",
            "<tool_call>oops</tool_call>",
            "[1, 2]",
            "if a <",
            "[TOOL_CALLS] is a mark",
            "```json\n{}\n```",
            # What is spoken of.
            f"Write this:\n```xml\n{HERMES % 'Oslo'}\n```\nThat is all.",
            f"Write this:\n\n```\n<function_calls>\n{INVOKED}\n</function_calls>\n```",
            "Write `<tools>` and `</tools>`.",
            f"A call begins with `{HERMES % 'Oslo'}`.",
            '<tools>{"name": "get_weather", "arguments": {"city": "Os',
            '<tools>{"name": "get_rain", "arguments": {"city": "Oslo"}}</tools>',
            '<function=get_rain>{"city": "Oslo"}</function>',
            '<function_calls>\n<invoke name="get_weather">\n<parameter name=',
            '[get_rain(city="Oslo")]',
            '[get_weather(city="Oslo")] is a call.',
            '[get_weather(city="Os',
            "[get_weather] is a name.",
            "functools[0] is a member",
            "```tool_code\nprint(1)\n```",
        )
    ),
    # Other wires.
    *(
        Case(
            f"{name} of Anthropic's API",
            anthropic_stream([anthropic_start(), *said, *anthropic_end(finish)]),
            kind="anthropic",
            **means,
        )
        for name, said, finish, means in (
            (
                "an object as a piece of arguments",
                anthropic_call(0, {"city": "Oslo"}),
                "tool_use",
                {"calls": [OSLO], "finish": "tool_calls"},
            ),
            (
                "arguments at another place",
                anthropic_call(1, '{"city": "Oslo"}'),
                "tool_use",
                {"calls": [OSLO], "finish": "tool_calls"},
            ),
            (
                "thoughts as a text",
                [
                    {"type": "content_block_delta", "index": 0, "delta": {"type": f"{kind}_delta", "text": text}}
                    for kind, text in (("thinking", "Hm."), ("text", "Hi"))
                ],
                "end_turn",
                {"text": "Hi", "reasoning": "Hm."},
            ),
        )
    ),
    Case(
        "a second candidate, and pages of a search",
        gemini_stream([GROUNDED]),
        GROUNDED,
        "gemini",
        text="Hi",
        cited="https://a.b/c",
    ),
    *(
        Case(
            f"a response {name}",
            raw_chunks(*told, end=b""),
            whole,
            "responses",
            text="Hi",
        )
        for name, told, whole in (
            ("that only says its end", (SAYS, {"type": "response.completed"}), None),
            ("that is done", (SAYS, {"type": "response.done", "response": {"output": [said("Hi")]}}), None),
            (
                "whose text comes at its end alone",
                ({"type": "response.output_text.done", "text": "Hi"}, {"type": "response.completed"}),
                {"status": "completed", "output": [], "output_text": "Hi"},
            ),
            *(
                (
                    f"whose item is {item}",
                    ({"type": "response.completed", "response": {"status": "completed", "output": [item]}},),
                    {"status": "completed", "output": [item]},
                )
                for item in ({"type": "message", "content": "Hi"}, {"content": [{"type": "output_text", "text": "Hi"}]})
            ),
        )
    ),
]
PAGE = {"url": "https://a.b/c", "title": "C"}
HI = {"choices": [{"delta": {"content": "Hi"}}]}
END = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
QUOTE = PAGE | {"type": "web_search_result_location", "cited_text": "Hm."}
NOTE = {"title": "C", "location": {"web": {"url": "https://a.b/c"}}}
SUMMARY = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Hm."}]}


def gemini_cited(**metadata: Any) -> Body:
    return {"candidates": [{"content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP"} | metadata]}


CASES += [
    Case(
        "citations with the counts",
        raw_chunks(HI, END, {"choices": [], "usage": USAGE, "citations": ["https://a.b/c"]}),
        text="Hi",
        cited="https://a.b/c",
    ),
    *(
        Case(
            f"{name} next to the choices",
            raw_chunks(HI | {name: pages}, END),
            message(content="Hi") | {name: pages},
            text="Hi",
            cited="https://a.b/c",
        )
        for name, pages in (
            ("web_search", [{"link": "https://a.b/c", "title": "C"}]),
            ("references", [PAGE]),
            ("search_info", {"search_results": [PAGE | {"index": 1}]}),
        )
    ),
    Case(
        "citations of Anthropic's",
        anthropic_stream(
            [
                anthropic_start(),
                *anthropic_block(
                    0,
                    {"type": "text", "text": ""},
                    {"type": "citations_delta", "citation": QUOTE},
                    {"type": "text_delta", "text": "Hi"},
                ),
                *anthropic_end(),
            ]
        ),
        {"content": [{"type": "text", "text": "Hi", "citations": [QUOTE]}], "stop_reason": "end_turn"},
        "anthropic",
        text="Hi",
        cited="https://a.b/c",
    ),
    Case(
        "citations of Bedrock's",
        bedrock_stream([*bedrock_text("Hi"), ("contentBlockDelta", {"delta": {"citation": NOTE}}), *bedrock_end()]),
        {
            "output": {
                "message": {"content": [{"citationsContent": {"content": [{"text": "Hi"}], "citations": [NOTE]}}]}
            },
            "stopReason": "end_turn",
        },
        "bedrock",
        (EVENT_STREAM, JSON),
        text="Hi",
        cited="https://a.b/c",
    ),
    *(
        Case(f"{name} of Gemini's", gemini_stream([event]), event, "gemini", text="Hi", cited="https://a.b/c")
        for name, event in {
            "citations": gemini_cited(citationMetadata={"citationSources": [{"uri": "https://a.b/c"}]}),
            "pages that were retrieved": gemini_cited(
                groundingMetadata={"groundingChunks": [{"retrievedContext": {"uri": "https://a.b/c", "title": "C"}}]}
            ),
        }.items()
    ),
    responses(
        SUMMARY,
        said("Hi"),
        deltas=({"type": "response.output_item.done", "output_index": 0, "item": SUMMARY},),
        name="thoughts of a response with their item alone",
        text="Hi",
        reasoning="Hm.",
    ),
    *(
        Case(
            f"the reason as {fields}",
            raw_chunks({"choices": [HI["choices"][0] | fields]}),
            {"choices": [{"message": {"content": "Hi"}} | fields]},
            text="Hi",
            finish=means,
        )
        for fields, means in (
            ({"finish_reason": None, "finishReason": "length"}, "length"),
            ({"finish_reason": "stop", "native_finish_reason": "network_error"}, "error"),
            ({"finish_reason": "stop", "native_finish_reason": "completed"}, "stop"),
        )
    ),
    *(
        Case(f"DashScope's own form with a {name}", raw_chunks(told, end=b""), told, text="Hi")
        for name, told in {
            "text": {
                "output": {"text": "Hi", "finish_reason": "stop"},
                "usage": {"input_tokens": 3, "output_tokens": 1},
            },
            "message": {"output": message(content="Hi"), "usage": {"input_tokens": 3, "output_tokens": 1}},
        }.items()
    ),
    *(
        Case(
            f"thoughts named {name}",
            chunks({name: given}, {"content": "Hi"}),
            message(content="Hi", **{name: given}),
            text="Hi",
            reasoning="Hm.",
        )
        for name, given in {
            "thoughts": "Hm.",
            "cot_summary": "Hm.",
            "thinking_blocks": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}],
        }.items()
    ),
]
BY_NAME = {case.name: case for case in CASES}
