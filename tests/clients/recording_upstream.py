"""An OpenAI-compatible server that plays a script of tool calls, and keeps every request as it arrived."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.loop_thread import on_a_thread
from tests.support.upstream import Call, LoopbackServer

FINAL = "The sum is 10."
# What clients ask besides, such as a title of the conversation.
ASIDE = "A title"
_CUT = 7


class ScriptedCall(NamedTuple):
    """A call of a tool."""

    name: str
    arguments: dict[str, Any]


Script = Sequence[Sequence[ScriptedCall] | str]
"""Per step the calls, of which several come interleaved, or the text, which is streamed in pieces."""


class RecordingUpstream:
    """Answers with the step of the script that the conversation has come to: as many as it has answers of the script.

    `requests`: the bodies of those requests, in order. Requests without tools, while the script has any, are asides.
    """

    def __init__(self) -> None:
        self.script: Script = ()
        self.requests: list[dict[str, Any]] = []
        self.base_url = ""
        self.paths: list[str] = []

    def play(self, script: Script) -> None:
        """Begin again, with this script."""
        self.script, self.requests, self.paths = script, [], []

    async def answer(self, call: Call) -> None:
        self.paths.append(call.path)
        has_calls = any(not isinstance(step, str) for step in self.script)
        if has_calls and not call.body.get("tools"):
            await call.say(*_pieces(ASIDE), usage=_USAGE)
            return
        self.requests.append(call.body)
        number = self._answered(call.body["messages"])
        step = self.script[min(number, len(self.script) - 1)]
        if isinstance(step, str):
            await call.say(*_pieces(step), usage=_USAGE)
        else:
            await self._call(call, number, step)

    def _answered(self, messages: list[dict[str, Any]]) -> int:
        texts = [step for step in self.script if isinstance(step, str)]
        said = [turn for turn in messages if turn["role"] == "assistant"]
        return sum(bool(turn.get("tool_calls")) or turn.get("content") in texts for turn in said)

    async def _call(self, call: Call, number: int, calls: Sequence[ScriptedCall]) -> None:
        tool_calls = [
            {
                "id": call_id(number, index),
                "type": "function",
                "function": {"name": scripted.name, "arguments": json.dumps(scripted.arguments)},
            }
            for index, scripted in enumerate(calls)
        ]
        if not call.body.get("stream"):
            await call.whole(None, _USAGE, "tool_calls", tool_calls=tool_calls)
            return
        await call.begin()
        texts = [json.dumps(scripted.arguments) for scripted in calls]
        for index, tool_call in enumerate(tool_calls):
            function = {"name": calls[index].name, "arguments": ""}
            await call.chunk("", tool_calls=[{**tool_call, "index": index, "function": function}])
        for at in range(0, max(map(len, texts)), _CUT):
            for index, text in enumerate(texts):
                if piece := text[at : at + _CUT]:
                    await call.chunk("", tool_calls=[{"index": index, "function": {"arguments": piece}}])
        await call.end(_USAGE, "tool_calls")


_USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}


def call_id(step: int, index: int) -> str:
    """The id of a call of the script."""
    return f"call_{step}_{index}"


def _pieces(text: str) -> list[str]:
    return [text[at : at + _CUT] for at in range(0, len(text), _CUT)]


@contextmanager
def recording_upstream() -> Iterator[RecordingUpstream]:
    """Serve on a free loopback port, from a thread, until the block ends."""
    upstream = RecordingUpstream()
    with on_a_thread(LoopbackServer(upstream.answer)) as (server, _):
        upstream.base_url = server.base_url
        yield upstream
