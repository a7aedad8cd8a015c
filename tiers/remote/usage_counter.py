"""The usage of one request on a remote server, choice by choice, as billed."""

import math
from typing import Any

from tiers.tier import Delta, Usage

BYTES_PER_TOKEN = 4
# No request has more; a server that reports more, or less than none, must not change a bill beyond all measure.
MOST_TOKENS = 2**31 - 1


class Tally:
    """The streamed output of each choice, for the order of deltas and for billing at any moment of the answer.

    `reported`: the server's own counts so far. `prompt_tokens`: our estimate. `max_tokens`: the most output tokens
    of a choice, sent to the server or not. `heard`: all text of a server with a single choice; None before the
    first. `sent`: whether the request is on its way to the server. `notes`: what a wire remembers of the answer between
    its events.
    """

    def __init__(self, n: int, prompt_tokens: int) -> None:
        self.unfinished = set(range(n))
        self.reported: Usage | None = None
        self.prompt_tokens = prompt_tokens
        self.max_tokens = 0
        self.heard: str | None = None
        self.sent = False
        self.notes: dict[Any, Any] = {}
        self._n = n
        # Bytes by choice; with a server that reports counts, those since its last report.
        self._text: dict[int, int] = {}
        self._reasoning: dict[int, int] = {}
        self._covered = False
        self._has_thought = False

    @property
    def has_spoken(self) -> bool:
        """Whether the server has sent output or counts, so that it has read the prompt."""
        return self.reported is not None or bool(self._text)

    def report(self, usage: Usage) -> None:
        """Store the server's counts so far, which include the event that carried them; impossible ones are bounded."""
        self.reported, self._covered = _bounded(usage), True

    def read_prompt(self, tokens: int) -> None:
        """Take the server's count of the prompt in place of our estimate."""
        self.prompt_tokens = _within(tokens, MOST_TOKENS)

    def passed(self, deltas: list[Delta]) -> list[Delta]:
        """Return those of an event's `deltas` that may be passed on, and count them: nothing follows a choice's finish
        reason."""
        passed = []
        for delta in deltas:
            index = delta.index
            if index not in self.unfinished:
                continue
            passed.append(delta)
            self._text[index] = self._text.get(index, 0) + len(delta.text.encode())
            if delta.reasoning:
                self._reasoning[index] = self._reasoning.get(index, 0) + len(delta.reasoning.encode())
                self._has_thought = True
            for call in delta.tool_calls:
                self._text[index] += len((call.name + call.arguments).encode())
            if delta.finish_reason is not None:
                self.unfinished.remove(index)
        if self._covered:
            self._text.clear()
            self._reasoning.clear()
            self._covered = False
        return passed

    def usage(self) -> Usage:
        """Return the server's last reported counts plus an estimate of the output since then, at four bytes per token.

        The estimate is at most the requested limit. Nothing is used before the request is sent.
        """
        if not self.sent:
            return Usage()
        if self.reported is not None and not self._text:
            return self.reported
        known = self.reported or Usage(prompt_tokens=self.prompt_tokens)
        reasoning = _tokens(self._reasoning)
        unreported = reasoning + _tokens(self._text)
        if self.max_tokens:
            unreported = min(unreported, max(0, self._n * self.max_tokens - known.completion_tokens))
        return Usage(
            prompt_tokens=known.prompt_tokens,
            completion_tokens=known.completion_tokens + unreported,
            cached_tokens=known.cached_tokens,
            cache_write_tokens=known.cache_write_tokens,
            reasoning_tokens=known.reasoning_tokens + min(reasoning, unreported),
        )

    def streamed_tokens(self) -> int | None:
        """Return the server's count of the tokens that it streamed, without thoughts that it kept to itself; None if it
        has not counted all of them."""
        if self.reported is None or any(self._text.values()) or any(self._reasoning.values()):
            return None
        hidden = 0 if self._has_thought else self.reported.reasoning_tokens
        return (self.reported.completion_tokens - hidden) or None


def _bounded(usage: Usage) -> Usage:
    """Return counts of which none is negative and no part is more than its whole."""
    prompt, completion = _within(usage.prompt_tokens, MOST_TOKENS), _within(usage.completion_tokens, MOST_TOKENS)
    cached = _within(usage.cached_tokens, prompt)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
        cache_write_tokens=_within(usage.cache_write_tokens, prompt - cached),
        reasoning_tokens=_within(usage.reasoning_tokens, completion),
    )


def _within(count: int, most: int) -> int:
    return 0 if count < 0 else min(count, most)


def _tokens(sizes: dict[int, int]) -> int:
    return sum(math.ceil(size / BYTES_PER_TOKEN) for size in sizes.values())
