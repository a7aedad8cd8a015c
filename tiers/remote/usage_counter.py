"""What a remote server has said so far of one request, choice by choice, and what that is billed with."""

import math

from tiers.tier import Delta, Usage

BYTES_PER_TOKEN = 4


class Tally:
    """What has been streamed of each choice, for the order of deltas and for billing at any moment of the answer.

    `reported`: the server's own counts, as far as they have come. `prompt_tokens`: an estimate of ours.
    `max_tokens`: what was asked for of each choice. `heard`: all text of a server that speaks of one choice alone; None
    until it has said anything. `sent`: whether the request is on its way to the server.
    """

    def __init__(self, n: int, prompt_tokens: int) -> None:
        self.unfinished = set(range(n))
        self.reported: Usage | None = None
        self.prompt_tokens = prompt_tokens
        self.max_tokens = 0
        self.heard: str | None = None
        self.sent = False
        self._n = n
        # Bytes by choice; of a server that reports counts, those that have come since its last report.
        self._text: dict[int, int] = {}
        self._reasoning: dict[int, int] = {}
        self._covered = False

    @property
    def has_spoken(self) -> bool:
        """Whether the server has said or reported anything: then it has read the prompt."""
        return self.reported is not None or bool(self._text)

    def report(self, usage: Usage) -> None:
        """The server's counts so far, which cover the event that they came with."""
        self.reported, self._covered = usage, True

    def passed(self, deltas: list[Delta]) -> list[Delta]:
        """Of an event's `deltas` those that may pass: nothing follows a choice's finish reason. They are counted."""
        passed = [delta for delta in deltas if self._count(delta)]
        if self._covered:
            self._text.clear()
            self._reasoning.clear()
            self._covered = False
        return passed

    def usage(self) -> Usage:
        """The server's counts as of its last report; what came after it, or without any, at four bytes per token.

        The estimate is never above what was asked for. Nothing is used before the request is sent.
        """
        if not self.sent:
            return Usage()
        known = self.reported or Usage(prompt_tokens=self.prompt_tokens)
        reasoning = _tokens(self._reasoning)
        unreported = reasoning + _tokens(self._text)
        if self.max_tokens:
            unreported = min(unreported, max(0, self._n * self.max_tokens - known.completion_tokens))
        return Usage(
            prompt_tokens=known.prompt_tokens,
            completion_tokens=known.completion_tokens + unreported,
            cached_tokens=known.cached_tokens,
            reasoning_tokens=known.reasoning_tokens + min(reasoning, unreported),
        )

    def _count(self, delta: Delta) -> bool:
        index = delta.index
        if index not in self.unfinished:
            return False
        self._text[index] = self._text.get(index, 0) + len(delta.text.encode())
        self._reasoning[index] = self._reasoning.get(index, 0) + len(delta.reasoning.encode())
        for call in delta.tool_calls:
            self._text[index] += len((call.name + call.arguments).encode())
        if delta.finish_reason is not None:
            self.unfinished.remove(index)
        return True


def _tokens(sizes: dict[int, int]) -> int:
    return sum(math.ceil(size / BYTES_PER_TOKEN) for size in sizes.values())
