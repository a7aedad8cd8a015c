"""A provider with a prompt cache, as a server on loopback: it bills by kind of cache what a session's steps read."""

from typing import Any

from tests.support.upstream import Call, LoopbackServer

# Characters of a prompt that count as one token here.
CHARS = 4


class CachingProvider:
    """Answers chats: with the call that `plan` has next for a turn of a tool loop, or with words. It caches each prompt
    that it has read, and reads a later one's longest cached beginning. `bills`: prompt, cached and answer tokens."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.bills: list[tuple[int, int, int]] = []
        self.server = LoopbackServer(self._answer)

    async def _answer(self, call: Call) -> None:
        prompt = _text_of(call.body["messages"])
        cached = max((len(old) for old in self.prompts if prompt.startswith(old)), default=0) // CHARS
        self.prompts.append(prompt)
        tokens = len(prompt) // CHARS
        self.bills.append((tokens, cached, 10))
        usage = {"prompt_tokens": tokens, "completion_tokens": 10, "total_tokens": tokens + 10}
        usage |= {"prompt_tokens_details": {"cached_tokens": cached}}
        await call.say("Done.", usage=usage)


def _text_of(messages: list[dict[str, Any]]) -> str:
    return "".join(f"<{m['role']}>{m.get('content') or ''}{m.get('tool_calls') or ''}" for m in messages)
