"""Answers that Hypothesis draws, in each dialect: the bytes of a stream say the same however they are cut, the whole
answer says what the stream says, and a caller of the server's dialect gets it as the server gave it."""

import json
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.recordings.server_answers import content_of, pieces
from tiers.catalog.tier_spec import RemoteKind, RemoteSpec
from tiers.deltas import CollectedChoice
from tiers.dialects import gemini, messages
from tiers.dialects.chat_writer import AnswerHead, whole_chat
from tiers.dialects.dialect import ServerDialect, dialect_of
from tiers.dialects.event_stream import ServerSentEvent
from tiers.dialects.responses_answer import ResponseBody, ResponseHead
from tiers.dialects.responses_schemas import ResponsesRequest
from tiers.dialects.usage_counter import AnswerBounds, Tally
from tiers.remote.answer_reader import AnswerReader
from tiers.tier import Usage

Json = dict[str, Any]
KINDS: dict[str, RemoteKind] = {
    "chat": "openai", "messages": "anthropic", "responses": "openai-provider", "gemini": "gemini",
    "bedrock": "bedrock", "triton": "triton-vllm",
}  # fmt: skip
CALLERS = ("chat", "messages", "responses", "gemini")
ENDS = {"chat": "tool_calls", "messages": "tool_use", "bedrock": "tool_use"}
SEAL = "U0VBTA=="
USAGE = Usage(prompt_tokens=1, completion_tokens=1)


class Said(NamedTuple):
    """A whole answer."""

    thoughts: str
    text: str
    calls: list[Json]


texts = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12)
# A name that begins as the arguments did is read as all of them once more, as some servers send them.
objects = st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(-9, 9) | texts | st.none(), max_size=2)
answers = st.builds(Said, st.just("") | texts, texts, st.lists(objects, max_size=2))
cuts = st.none() | st.lists(st.integers(0, 4000), max_size=12)
"""Places; None is between all bytes."""


def named_calls(said: Said) -> list[tuple[str, str, str]]:
    """Id, name and arguments of each call."""
    return [
        (f"call_0123456789{index}", f"f{index}", json.dumps(arguments)) for index, arguments in enumerate(said.calls)
    ]


def says(dialect: str, said: Said) -> Any:
    """The answer as its server has it (see `server_answers`)."""
    calls = named_calls(said)
    if dialect == "chat":
        functions = [{"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
                     for call_id, name, arguments in calls]  # fmt: skip
        thought = {"reasoning_content": said.thoughts} if said.thoughts else {}
        return thought | {"content": said.text} | ({"tool_calls": functions} if functions else {})
    if dialect == "messages":
        thoughts: list[Json] = [{"type": "thinking", "thinking": said.thoughts, "signature": SEAL}]
        text: Json = {"type": "text", "text": said.text}
        made: list[Json] = [{"type": "tool_use", "id": call_id, "name": name, "input": json.loads(arguments)}
                            for call_id, name, arguments in calls]  # fmt: skip
    elif dialect == "responses":
        thoughts = [{"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": said.thoughts}]}]
        part = {"type": "output_text", "text": said.text, "annotations": [], "logprobs": []}
        text = {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [part]}
        made = [{"id": f"fc_{call_id}", "type": "function_call", "status": "completed", "call_id": call_id,
                 "name": name, "arguments": arguments} for call_id, name, arguments in calls]  # fmt: skip
    elif dialect == "gemini":
        thoughts, text = [{"text": said.thoughts, "thought": True}], {"text": said.text}
        made = [
            {"functionCall": {"id": call_id, "name": name, "args": json.loads(arguments)}}
            for call_id, name, arguments in calls
        ]
    else:
        thoughts = [{"reasoningContent": {"reasoningText": {"text": said.thoughts, "signature": SEAL}}}]
        text = {"text": said.text}
        made = [{"toolUse": {"toolUseId": call_id, "name": name, "input": json.loads(arguments)}}
                for call_id, name, arguments in calls]  # fmt: skip
    return [*(thoughts if said.thoughts else []), text, *made]


def item_events(items: list[Json], random: Random) -> list[Json]:
    """The events of the items of a Response."""
    events: list[Json] = []
    for index, item in enumerate(items):
        events.append({"type": "response.output_item.added", "output_index": index, "item": item | {
            "summary": [], "content": [], "arguments": ""
        }})  # fmt: skip
        kind, text = {
            "reasoning": ("reasoning_summary_text", item.get("summary", [{}])[0].get("text")),
            "message": ("output_text", item.get("content", [{}])[0].get("text")),
            "function_call": ("function_call_arguments", item.get("arguments")),
        }[item["type"]]  # fmt: skip
        named = {"item_id": item["id"], "output_index": index}
        events += [{"type": f"response.{kind}.delta", **named, "delta": piece} for piece in pieces(text, random)]
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    return events


def answer_of(dialect: str, said: Said, random: Random, *, streamed: bool) -> bytes:
    """The bytes of the answer."""
    if dialect == "triton":
        counts = {"num_input_tokens": 3, "num_output_tokens": 1}
        texts_said = pieces(said.text, random) if streamed else [said.text]
        bodies = [json.dumps({"text_output": piece, **counts}) for piece in texts_said]
        return "".join(f"data: {body}\n\n" for body in bodies).encode() if streamed else bodies[0].encode()
    answer: Json = {"says": says(dialect, said)}
    answer |= {"ends": ENDS[dialect]} if said.calls and dialect in ENDS else {}
    if dialect == "responses" and streamed:
        answer["deltas"] = item_events(answer["says"], random)
    return content_of(dialect, answer, streamed, random)[1]


def server_of(dialect: str) -> ServerDialect:
    return dialect_of(RemoteSpec(base_url="http://127.0.0.1:1/v1", kind=KINDS[dialect], model="m"))


def tally_of(dialect: str, *, opaque: bool = False) -> Tally:
    made = Tally(1, 7)
    made.form = dialect if dialect == "responses" else None
    made.opaque = made.sent = opaque
    return made


Read = tuple[list[ServerSentEvent], Json]


def read(dialect: str, chunks: list[bytes], *, is_whole: bool = False) -> Read:
    """The events of a stream in these chunks, and what they say."""
    server, tally, choice = server_of(dialect), tally_of(dialect), CollectedChoice()
    reader = AnswerReader(server, tally, AnswerBounds(*[2**40] * len(AnswerBounds._fields)), lambda deltas: None)
    parser, events, deltas = server.parser(), list[ServerSentEvent](), list(reader.whole(chunks[0]) if is_whole else [])
    for chunk in [] if is_whole else chunks:
        events += (fed := parser.feed(chunk))
        deltas += reader.events(fed)
    if not is_whole:
        events += (fed := parser.flush())
        deltas += reader.last_events(fed)
    for delta in deltas:
        choice.take(delta)
    calls = [(call.id, call.name, json.loads(call.arguments or "{}")) for call in choice.tool_calls]
    told = {"thoughts": choice.reasoning, "text": choice.text, "calls": calls, "reason": choice.finish_reason}
    return events, told | {"usage": tally.usage()}


@pytest.mark.parametrize("dialect", KINDS)
@settings(max_examples=examples(150))
@given(answers, cuts, st.sampled_from(["\n", "\r\n", "\r"]), st.booleans(), st.integers(0, 99))
def test_a_stream_says_the_same_however_it_is_cut(
    dialect: str, said: Said, cuts: list[int] | None, newline: str, pings: bool, seed: int
) -> None:
    stream = answer_of(dialect, said, Random(seed), streamed=True)
    if dialect != "bedrock":
        stream = stream.replace(b"\r\n", b"\n").replace(b"\n\n", b"\n\n: ping\n\n" if pings else b"\n\n")
        stream = stream.replace(b"\n", newline.encode())
    positions = range(len(stream)) if cuts is None else sorted(min(cut, len(stream)) for cut in cuts)
    edges = [0, *positions, len(stream)]
    whole = read(dialect, [stream])
    assert read(dialect, [stream[start:end] for start, end in pairwise(edges)]) == whole

    given_calls = [(call_id, name, json.loads(arguments)) for call_id, name, arguments in named_calls(said)]
    is_text = dialect == "triton"
    reason = "tool_calls" if said.calls and not is_text else "stop"
    told = {"thoughts": "" if is_text else said.thoughts, "text": said.text, "calls": [] if is_text else given_calls}
    assert whole[1] == told | {"reason": reason, "usage": whole[1]["usage"]}
    _, answered = read(dialect, [answer_of(dialect, said, Random(seed), streamed=False)], is_whole=True)
    assert answered | {"usage": None} == whole[1] | {"usage": None}


def answered(dialect: str, choice: CollectedChoice) -> Any:
    """What a caller of the dialect gets of the answer, without ids of items, which are the gateway's own."""
    if dialect == "chat":
        head: Any = AnswerHead(id="c", created=1, model="m", fingerprint="f")
        message = json.loads(msgspec.json.encode(whole_chat(head, [choice], USAGE, None)))["choices"][0]["message"]
        return {name: message[name] for name in ("reasoning_content", "content", "tool_calls") if message.get(name)}
    if dialect == "messages":
        head = messages.MessageHead(id="msg_1", model="m", service_tier="standard", stop=(), is_remote=True)
        shown = messages.ThinkingShown(blocks=True, texts=True)
        return json.loads(msgspec.json.encode(messages.whole_message(head, choice, USAGE, shown)))["content"]
    if dialect == "responses":
        body = ResponseBody(
            ResponseHead(id="resp_1", created_at=1, model="m", service_tier="default"),
            ResponsesRequest(model="m", input="Hi"),
        )
        body.take(choice, "")
        return [item | {"id": ""} for item in body.output]
    head = gemini.AnswerHead(id="g", model="m", shows_thoughts=True, shows_logprobs=False)
    shown_body = json.loads(msgspec.json.encode(gemini.whole_response(head, [choice], USAGE, None)))
    return shown_body["candidates"][0]["content"]["parts"]


@pytest.mark.parametrize("dialect", CALLERS)
@settings(max_examples=examples(200))
@given(answers)
def test_a_caller_of_the_servers_dialect_gets_its_answer(dialect: str, said: Said) -> None:
    server, tally, choice = server_of(dialect), tally_of(dialect, opaque=dialect != "chat"), CollectedChoice()
    for delta in server.read_whole(answer_of(dialect, said, Random(1), streamed=False), tally):
        choice.take(delta)
    wanted = says(dialect, said)
    if dialect == "responses":
        wanted = [item | {"id": ""} for item in wanted]
    assert answered(dialect, choice) == wanted
