"""Conversations that Hypothesis draws, as a client of each dialect sends them: rounds with thoughts, calls and results,
and further blocks and fields of the table of losses."""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from hypothesis import strategies as st

from benchmarks.gateway.fidelity.losses import KINDS, PNG, Kind

Body = dict[str, Any]
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
NAMES = ("lookup", "note")
TURNS = {"messages", "input", "contents", "system", "instructions", "systemInstruction"}
FURTHER = {kind.name: kind for kind in KINDS if not any(TURNS & set(sent) for sent in kind.sent.values()
                                                      if isinstance(sent, dict))}  # fmt: skip
"""Kinds that can be added to any conversation: parts of a user's turn, and body fields other than the turns."""
# Models that think take no sampling parameters, and no forced call.
APART = ("effort of thinking", {"temperature", "top_k", "a call that must be made"})

# No text that is blank, which some APIs refuse; no halves of characters, which are none; no line ends at either end.
texts = st.text(st.characters(exclude_categories=("Cs", "Cc"), include_characters="\n\t"), min_size=1, max_size=20).map(
    lambda text: f"<{text}>"
)
values = st.one_of(texts, st.integers(-9, 9), st.lists(texts, max_size=2), st.none())
arguments = st.dictionaries(st.sampled_from("abc"), values, max_size=2)


class Call(NamedTuple):
    """A call with what its tool said, whether it failed, and whether it showed an image."""

    name: str
    arguments: Body
    result: str
    has_failed: bool
    has_image: bool


class Round(NamedTuple):
    """What a user says, what the system says then, what the assistant thinks and says, and the calls that it makes."""

    question: str
    aside: str
    thought: str
    answer: str
    calls: list[Call]


class Conversation(NamedTuple):
    """Rounds, and the user's last turn. `kinds`: names of `FURTHER`, whose parts are in the user's turn number `place`
    of as many as there are."""

    system: str
    rounds: list[Round]
    last: str
    kinds: list[str]
    place: int


maybe = st.one_of(st.just(""), texts)
calls = st.builds(Call, st.sampled_from(NAMES), arguments, texts, st.booleans(), st.booleans())
rounds = st.builds(Round, texts, maybe, maybe, texts, st.lists(calls, max_size=2))
kinds = st.lists(st.sampled_from(sorted(FURTHER)), max_size=3, unique=True)
conversations = st.builds(Conversation, maybe, st.lists(rounds, max_size=2), texts, kinds, st.integers(0, 2))


def call_ids(said: Conversation) -> Iterator[list[tuple[str, Call]]]:
    """The calls of each round, each with its id."""
    for number, round_ in enumerate(said.rounds):
        yield [(f"call_{number}_{index}_0123456789", call) for index, call in enumerate(round_.calls)]


def as_chat(said: Conversation) -> Body:
    """The conversation in OpenAI's chats."""
    turns: list[Body] = [{"role": "system", "content": said.system}] if said.system else []
    for round_, named in zip(said.rounds, call_ids(said), strict=True):
        turns.append({"role": "user", "content": [{"type": "text", "text": round_.question}]})
        turns += [{"role": "developer", "content": round_.aside}] if round_.aside else []
        turns.append({"role": "assistant", "content": round_.answer})
        turns[-1] |= {"reasoning_content": round_.thought} if round_.thought else {}
        made = [{"name": call.name, "arguments": json.dumps(call.arguments)} for call in round_.calls]
        if made:
            turns[-1]["tool_calls"] = [
                {"id": name, "type": "function", "function": function}
                for (name, _), function in zip(named, made, strict=True)
            ]
        turns += [{"role": "tool", "tool_call_id": name, "content": call.result} for name, call in named]
    functions = [{"name": name, "description": "d", "parameters": SCHEMA} for name in NAMES]
    tools = [{"type": "function", "function": function} for function in functions]
    last = {"role": "user", "content": [{"type": "text", "text": said.last}]}
    return {"messages": [*turns, last], "tools": tools}


def as_responses(said: Conversation) -> Body:
    """The conversation in OpenAI's Responses."""
    items: list[Body] = []
    for round_, named in zip(said.rounds, call_ids(said), strict=True):
        items.append({"role": "user", "content": [{"type": "input_text", "text": round_.question}]})
        items += [{"role": "developer", "content": round_.aside}] if round_.aside else []
        items.append({"role": "assistant", "content": round_.answer})
        items += [
            {"type": "function_call", "call_id": name, "name": call.name, "arguments": json.dumps(call.arguments)}
            for name, call in named
        ]
        items += [{"type": "function_call_output", "call_id": name, "output": call.result} for name, call in named]
    tools = [{"type": "function", "name": name, "description": "d", "parameters": SCHEMA} for name in NAMES]
    last = {"role": "user", "content": [{"type": "input_text", "text": said.last}]}
    body: Body = {"input": [*items, last], "tools": tools}
    return body | ({"instructions": said.system} if said.system else {})


def as_messages(said: Conversation) -> Body:
    """The conversation in Anthropic's Messages."""
    turns: list[Body] = []
    results: list[Body] = []
    for round_, named in zip(said.rounds, call_ids(said), strict=True):
        turns.append({"role": "user", "content": [*results, {"type": "text", "text": round_.question}]})
        turns += [{"role": "system", "content": round_.aside}] if round_.aside else []
        used = [{"type": "tool_use", "id": name, "name": call.name, "input": call.arguments} for name, call in named]
        turns.append({"role": "assistant", "content": [{"type": "text", "text": round_.answer}, *used]})
        results = [_message_result(name, call) for name, call in named]
    turns.append({"role": "user", "content": [*results, {"type": "text", "text": said.last}]})
    tools = [{"name": name, "description": "d", "input_schema": SCHEMA} for name in NAMES]
    body: Body = {"messages": turns, "tools": tools, "max_tokens": 5000}
    return body | ({"system": said.system} if said.system else {})


def _message_result(name: str, call: Call) -> Body:
    content: Any = call.result
    if call.has_image:
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
        content = [{"type": "text", "text": call.result}, image]
    result = {"type": "tool_result", "tool_use_id": name, "content": content}
    return result | ({"is_error": True} if call.has_failed else {})


def as_gemini(said: Conversation) -> Body:
    """The conversation in Gemini's API."""
    contents: list[Body] = []
    results: list[Body] = []
    for round_, named in zip(said.rounds, call_ids(said), strict=True):
        contents.append({"role": "user", "parts": [*results, {"text": round_.question}]})
        made = [{"functionCall": {"id": name, "name": call.name, "args": call.arguments}} for name, call in named]
        thought = [{"text": round_.thought, "thought": True}] if round_.thought else []
        contents.append({"role": "model", "parts": [*thought, {"text": round_.answer}, *made]})
        results = [
            {"functionResponse": {"id": name, "name": call.name, "response": {"result": call.result}}}
            for name, call in named
        ]
    contents.append({"role": "user", "parts": [*results, {"text": said.last}]})
    declared = [{"name": name, "description": "d", "parametersJsonSchema": SCHEMA} for name in NAMES]
    body: Body = {"contents": contents, "tools": [{"functionDeclarations": declared}]}
    return body | ({"systemInstruction": {"parts": [{"text": said.system}]}} if said.system else {})


WRITERS: dict[str, Callable[[Conversation], Body]] = {
    "chat": as_chat, "responses": as_responses, "messages": as_messages, "gemini": as_gemini
}  # fmt: skip
_TURNS = {"chat": "messages", "responses": "input", "messages": "messages", "gemini": "contents"}


def as_sent(said: Conversation, client: str) -> tuple[Body, list[Kind]]:
    """The request of a client, and the further kinds that are in it: those that it has, and that do not set what
    another of them sets."""
    body = WRITERS[client](said) | ({} if client == "gemini" else {"model": "m"})
    users = [turn for turn in body[_TURNS[client]] if turn.get("role") == "user"]
    turn = users[said.place % len(users)]
    content = turn["parts" if client == "gemini" else "content"]
    further: list[Kind] = []
    for name in said.kinds:
        added = FURTHER[name].sent.get(client)
        has_tools = any("tools" in kind.sent[client] for kind in further)
        if added is None or _is_apart(name, said, further):
            continue
        if isinstance(added, list):
            content += added
        elif (has_tools and "tools" in added) or not _is_free(body, added):
            continue
        else:
            _merge(body, added | {"tools": body["tools"] + added.get("tools", [])})
        further.append(FURTHER[name])
    return body, further


def _is_apart(name: str, said: Conversation, further: list[Kind]) -> bool:
    thinking, others = APART
    if name == thinking:
        # A loop of calls goes on without thoughts where those before its calls are not there.
        return any(kind.name in others for kind in further) or any(round_.calls for round_ in said.rounds[-1:])
    return name in others and any(kind.name == thinking for kind in further)


def _is_free(body: Body, fields: Body) -> bool:
    """Whether none of the given fields is set. Tools come after those that are there."""
    both = [name for name in fields if name in body and name not in ("tools", "max_tokens")]
    return all(isinstance(fields[name], dict) and _is_free(body[name], fields[name]) for name in both)


def _merge(body: Body, fields: Body) -> None:
    for name, value in fields.items():
        if isinstance(value, dict) and isinstance(body.get(name), dict):
            body[name] = dict(body[name])
            _merge(body[name], value)
        else:
            body[name] = value
