"""Two servers that play one script of steps, each with thoughts of its own: a chat server that thinks in
`reasoning_content` (DeepSeek's rules) and one of Anthropic's API with signed thinking. Each refuses, in its own words,
a history that is not whole, or has anything that the other one thought."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

from tests.clients.recording_upstream import ASIDE, Script
from tests.loop_thread import on_a_thread
from tests.support.upstream import Call, LoopbackServer
from tests.tiers.remote.strict_servers import of_anthropic

Body = dict[str, Any]
CHAT, MESSAGES = "chat", "messages"
THOUGHT = {CHAT: "a-chat-thought", MESSAGES: "a-messages-thought"}
TOO_LONG = {
    CHAT: "This model's maximum context length is 131072 tokens. However, you requested 140000 tokens.",
    MESSAGES: "prompt is too long: 210000 tokens > 200000 maximum",
}
SIGNATURE = "a-messages-thought-sealed"


class Turn(NamedTuple):
    """An answer of a history: its text, thoughts, and calls, with their results by id, which come in any order."""

    text: str
    thoughts: str
    calls: list[tuple[str, str, Any]]
    results: dict[str, str]


class Step(NamedTuple):
    """An answer that was given: to the step of this number, by this server. `refused`: what it said instead."""

    number: int
    maker: str
    refused: str | None = None


def own_id(maker: str, step: int, index: int) -> str:
    """The id of a call, which the other server refuses or has never seen."""
    return f"functions.step:{step}.{index}" if maker == CHAT else f"toolu_{step}_{index}"


def chat_turns(body: Body) -> list[Turn]:
    """The answers of a chat, whose results must follow their calls."""
    turns: list[Turn] = []
    for before, turn in pairwise([{"role": "user"}, *body["messages"]]):
        if turn["role"] == "assistant":
            calls = [
                (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
                for call in turn.get("tool_calls") or ()
            ]
            turns.append(Turn(turn.get("content") or "", turn.get("reasoning_content", "").strip(), calls, {}))
        elif turn["role"] == "tool":
            assert before["role"] in ("assistant", "tool"), "a result follows no call"
            turns[-1].results[turn["tool_call_id"]] = turn["content"]
    return turns


def messages_turns(body: Body) -> list[Turn]:
    """The answers of Anthropic's messages."""
    turns: list[Turn] = []
    for turn in body["messages"]:
        blocks = [{"type": "text", "text": turn["content"]}] if isinstance(turn["content"], str) else turn["content"]
        texts = "".join(block["text"] for block in blocks if block["type"] == "text")
        if turn["role"] == "assistant":
            thoughts = [block for block in blocks if block["type"] == "thinking"]
            assert all(thought["signature"] == SIGNATURE + thought["thinking"][-1] for thought in thoughts), (
                "a seal is broken"
            )
            calls = [(block["id"], block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
            turns.append(Turn(texts, "".join(thought["thinking"] for thought in thoughts), calls, {}))
            continue
        for block in blocks:
            if block["type"] == "tool_result":
                turns[-1].results[block["tool_use_id"]] = json.dumps(block["content"])
    return turns


class TwoMakers:
    """The servers. `too_long`: the step that each finds too long. `steps`: what was said."""

    def __init__(self) -> None:
        self.script: Script = ()
        self.results: Sequence[Sequence[str]] = ()
        self.too_long: dict[str, int] = {}
        self.steps: list[Step] = []
        self.urls: dict[str, str] = {}

    def play(self, script: Script, results: Sequence[Sequence[str]], too_long: dict[str, int]) -> None:
        """Begin again. `results`: for each step a text in the result of each call."""
        self.script, self.results, self.too_long, self.steps = script, results, too_long, []

    @property
    def answered(self) -> list[str]:
        """Who answered each step, in order."""
        return [step.maker for step in self.steps if step.refused is None]

    @property
    def refusals(self) -> list[str]:
        """What was refused for another reason than the length."""
        return [step.refused for step in self.steps if step.refused not in (None, *TOO_LONG.values())]

    async def chat(self, call: Call) -> None:
        number = self._step(call, CHAT)
        if number is None:
            await _say_in_chat(call, ASIDE)
        elif (refused := self._refused(number, CHAT, call)) is not None:
            await call.reply(400, {"error": {"message": refused, "type": "invalid_request_error"}})
        elif isinstance(said := self.script[number], str):
            await _say_in_chat(call, said, f"{THOUGHT[CHAT]} {number}")
        else:
            calls = [
                {
                    "index": index,
                    "id": own_id(CHAT, number, index),
                    "type": "function",
                    "function": {"name": scripted.name, "arguments": json.dumps(scripted.arguments)},
                }
                for index, scripted in enumerate(said)
            ]
            await _say_in_chat(call, "", f"{THOUGHT[CHAT]} {number}", calls)

    async def messages(self, call: Call) -> None:
        number = self._step(call, MESSAGES)
        if number is None:
            await _say_in_messages(call, [{"type": "text", "text": ASIDE}])
        elif (refused := self._refused(number, MESSAGES, call)) is not None:
            error = {"type": "invalid_request_error", "message": refused}
            await call.reply(400, {"type": "error", "error": error})
        else:
            said, thought = self.script[number], f"{THOUGHT[MESSAGES]} {number}"
            blocks: list[Body] = []
            if call.body.get("thinking", {}).get("type") in ("enabled", "adaptive"):
                blocks.append({"type": "thinking", "thinking": thought, "signature": SIGNATURE + thought[-1]})
            if isinstance(said, str):
                blocks.append({"type": "text", "text": said})
            else:
                blocks += [
                    {
                        "type": "tool_use",
                        "id": own_id(MESSAGES, number, index),
                        "name": scripted.name,
                        "input": scripted.arguments,
                    }
                    for index, scripted in enumerate(said)
                ]
            await _say_in_messages(call, blocks)

    @property
    def _has_calls(self) -> bool:
        return any(not isinstance(step, str) for step in self.script)

    def _step(self, call: Call, maker: str) -> int | None:
        """Which step of the script the history has come to; None for a request besides. Edits follow each other,
        whatever their client keeps of the history."""
        if self._has_calls and not call.body.get("tools"):
            return None
        number = len(self._turns(call, maker)) if self._has_calls else len(self.answered)
        return min(number, len(self.script) - 1)

    def _turns(self, call: Call, maker: str) -> list[Turn]:
        """The answers of a script with calls in the history."""
        turns = chat_turns(call.body) if maker == CHAT else messages_turns(call.body)
        return [turn for turn in turns if self._has_calls and (turn.calls or turn.text.strip() in self.script)]

    def _refused(self, number: int, maker: str, call: Call) -> str | None:
        refused = TOO_LONG[maker] if number == self.too_long.get(maker) else self._broken_rule(maker, call)
        self.steps.append(Step(number, maker, refused))
        return refused

    def _broken_rule(self, maker: str, call: Call) -> str | None:
        """What is wrong with the history of a step; None for nothing."""
        raw = json.dumps(call.body)
        if THOUGHT[MESSAGES if maker == CHAT else CHAT] in raw:
            return "thoughts of another server"
        if maker == MESSAGES and (broken := of_anthropic({k: v for k, v in call.body.items() if k != "temperature"})):
            return broken
        turns = self._turns(call, maker)
        made = {step.number: step.maker for step in self.steps if step.refused is None}
        for number, turn in enumerate(turns):
            said = self.script[number]
            wanted_calls = [] if isinstance(said, str) else [(wanted.name, wanted.arguments) for wanted in said]
            if [(name, arguments) for _, name, arguments in turn.calls] != wanted_calls:
                return f"step {number}: other calls than were made: {turn.calls}"
            results = [turn.results.get(turn_call[0], "") for turn_call in turn.calls]
            if not all(text in result for text, result in zip(self.results[number], results, strict=True)):
                return f"step {number}: other results: {turn.results}"
            is_own = made[number] == maker
            if is_own and [turn_call[0] for turn_call in turn.calls] != [
                own_id(maker, number, n) for n in range(len(wanted_calls))
            ]:
                return f"step {number}: other ids than were given: {turn.calls}"
            if maker == MESSAGES and not all(re.fullmatch("[a-zA-Z0-9_-]+", turn_call[0]) for turn_call in turn.calls):
                return f"step {number}: ids that are refused here: {turn.calls}"
            wants = f"{THOUGHT[maker]} {number}" if is_own and wanted_calls else ""
            if turn.thoughts != wants:
                return f"step {number}: thoughts {turn.thoughts!r} instead of {wants!r}"
        answers = [turn for turn in call.body["messages"] if turn["role"] == "assistant" and turn.get("tool_calls")]
        if maker == CHAT and not all(turn.get("reasoning_content") for turn in answers):
            # https://api-docs.deepseek.com/guides/thinking_mode
            return "The `reasoning_content` in the thinking mode must be passed back to the API."
        return None


async def _say_in_chat(call: Call, text: str, thought: str = "", calls: Sequence[Body] = ()) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    finish = "tool_calls" if calls else "stop"
    if not call.body.get("stream"):
        await call.whole(text, usage, finish, reasoning_content=thought, tool_calls=list(calls))
        return
    await call.begin()
    if thought:
        await call.chunk("", reasoning_content=thought)
    if text:
        await call.chunk(text)
    for tool_call in calls:
        await call.chunk("", tool_calls=[tool_call])
    await call.end(usage, finish)


async def _say_in_messages(call: Call, blocks: Sequence[Body]) -> None:
    stop = "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"
    message = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": list(blocks),
        "stop_reason": stop, "stop_sequence": None, "usage": {"input_tokens": 100, "output_tokens": 10},
    }  # fmt: skip
    if not call.body.get("stream"):
        await call.reply(200, message)
        return
    await call.begin()
    await call.event({"type": "message_start", "message": message | {"content": [], "stop_reason": None}})
    for index, block in enumerate(blocks):
        at = {"index": index}
        empty = {name: value for name, value in block.items() if name not in ("text", "thinking", "signature", "input")}
        empty |= {"text": ""} if "text" in block else {"input": {}} if "input" in block else {"thinking": ""}
        await call.event({"type": "content_block_start", **at, "content_block": empty})
        for name, delta in _deltas_of(block):
            await call.event({"type": "content_block_delta", **at, "delta": {"type": name, **delta}})
        await call.event({"type": "content_block_stop", **at})
    await call.event({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 10}})
    await call.event({"type": "message_stop"})


def _deltas_of(block: Body) -> Iterator[tuple[str, Body]]:
    if "text" in block:
        yield "text_delta", {"text": block["text"]}
    elif "input" in block:
        yield "input_json_delta", {"partial_json": json.dumps(block["input"])}
    else:
        yield "thinking_delta", {"thinking": block["thinking"]}
        yield "signature_delta", {"signature": block["signature"]}


@contextmanager
def two_makers() -> Iterator[TwoMakers]:
    """Serve on free loopback ports, from a thread, until the block ends."""
    makers = TwoMakers()
    with (
        on_a_thread(LoopbackServer(makers.chat)) as (chat, _),
        on_a_thread(LoopbackServer(makers.messages)) as (own, _),
    ):
        makers.urls = {CHAT: chat.base_url, MESSAGES: own.base_url}
        yield makers
