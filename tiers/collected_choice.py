"""One choice of an answer: what it has said so far."""

import msgspec

from tiers.tier import Delta, TextLogprob
from tiers.tool_types import ToolCall, ToolCallDelta


class CollectedChoice(msgspec.Struct):
    """What one choice has said so far, in pieces: joining at the end keeps long answers linear.

    `echo`: the prompt that it repeats before its answer; `logprobs` are of both.
    """

    echo: str = ""
    pieces: list[str] = []
    thoughts: list[str] = []
    logprobs: list[TextLogprob] = []
    calls: list[list[ToolCallDelta]] = []
    finish_reason: str | None = None

    def take(self, delta: Delta) -> None:
        """Add what `delta` says."""
        if delta.echo:
            self.echo = delta.text
        elif delta.text:
            self.pieces.append(delta.text)
        if delta.reasoning:
            self.thoughts.append(delta.reasoning)
        if delta.logprobs and not delta.reasoning:
            self.logprobs += delta.logprobs
        for piece in delta.tool_calls:
            while len(self.calls) <= piece.index:
                self.calls.append([])
            self.calls[piece.index].append(piece)
        self.finish_reason = delta.finish_reason or self.finish_reason

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls of tools, each put together from its pieces."""
        return [
            ToolCall(
                id="".join(piece.id for piece in pieces),
                name="".join(piece.name for piece in pieces),
                arguments="".join(piece.arguments for piece in pieces),
            )
            for pieces in self.calls
        ]

    @property
    def text(self) -> str:
        """The answer."""
        return "".join(self.pieces)

    @property
    def reasoning(self) -> str:
        """What was thought before it."""
        return "".join(self.thoughts)
