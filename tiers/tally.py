"""What a remote server has said so far of one request, choice by choice, and what it bills."""

import math

from tiers.tier import Delta, Usage

BYTES_PER_TOKEN = 4


class Tally:
    """What has been streamed of each choice, for the order of deltas and for billing without reported usage.

    `reported`: the server's own counts, as far as they have come. `prompt_tokens`: an estimate of ours.
    `max_tokens`: what was asked for of each choice. `heard`: all text of a server that speaks of one choice alone; None
    until it has said anything.
    """

    def __init__(self, n: int, prompt_tokens: int) -> None:
        self.unfinished = set(range(n))
        self.reported: Usage | None = None
        self.prompt_tokens = prompt_tokens
        self.max_tokens = 0
        self.heard: str | None = None
        self._text: dict[int, int] = {}
        self._reasoning: dict[int, int] = {}

    def count(self, delta: Delta) -> bool:
        """Whether `delta` may pass: nothing follows a choice's finish reason."""
        if delta.index not in self.unfinished:
            return False
        self._text[delta.index] = self._text.get(delta.index, 0) + len(delta.text.encode())
        self._reasoning[delta.index] = self._reasoning.get(delta.index, 0) + len(delta.reasoning.encode())
        for call in delta.tool_calls:
            self._text[delta.index] += len((call.name + call.arguments).encode())
        if delta.finish_reason is not None:
            self.unfinished.remove(delta.index)
        return True

    def usage(self) -> Usage:
        """The server's counts; where it sent none, an estimate of four bytes per token."""
        if self.reported is not None:
            return self.reported
        reasoning = sum(math.ceil(size / BYTES_PER_TOKEN) for size in self._reasoning.values())
        text = sum(math.ceil(size / BYTES_PER_TOKEN) for size in self._text.values())
        return Usage(prompt_tokens=self.prompt_tokens, completion_tokens=text + reasoning, reasoning_tokens=reasoning)
