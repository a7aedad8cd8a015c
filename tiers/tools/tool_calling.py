"""Tool calling of one local model: how its template, vocabulary and dialect handle a request's tools."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from inference_core.tokenization.tokenizer import Tokenizer
from tiers.tier import ChatMessage, Delta, GenerationRequest
from tiers.tool_types import Tool, Tooling
from tiers.tools.call_grammar import call_grammar
from tiers.tools.call_parser import CallParser, Said
from tiers.tools.dialect import DIALECTS, HERMES, DialectName, dialect_of
from tiers.tools.prompting import plain_messages, template_turns


class ToolCalling:
    """`dialect` None: that of the model's chat template."""

    def __init__(self, tokenizer: Tokenizer, dialect: DialectName | None = None) -> None:
        template = tokenizer.chat_template
        self._knows_tools = template is not None and template.uses_tools
        # For a template without tools our own instructions describe them, in Hermes' dialect.
        source = template.source if template is not None and self._knows_tools else None
        chosen = dialect if self._knows_tools else None
        self.dialect = dialect_of(source) if chosen is None else DIALECTS[chosen]
        self._controls = tokenizer.control_tokens
        # Control tokens around calls are not part of the text, but the parser needs them.
        self._visible = frozenset(self._controls[m] for m in _marker_texts(self.dialect.markers) if m in self._controls)

    def turns(self, messages: Sequence[ChatMessage], tooling: Tooling | None) -> tuple[list[dict[str, Any]], Any]:
        """Return the conversation for the chat template, and the tools for it (None if they are in the
        conversation)."""
        tools: list[Tool] = [] if tooling is None or tooling.choice == "none" else list(tooling.tools)
        if self._knows_tools:
            return template_turns(messages), [tool.definition() for tool in tools] or None
        return template_turns(plain_messages(messages, tools, HERMES)), None

    def prepared(self, request: GenerationRequest) -> GenerationRequest:
        """Return the request with the grammar for its tools. Raises `TierRequestError`."""
        if request.tooling is None:
            return request
        sampling = request.sampling
        grammar = call_grammar(request.tooling, self.dialect, self._controls, sampling.grammar)
        return msgspec.structs.replace(request, sampling=msgspec.structs.replace(sampling, grammar=grammar))

    def visible_controls(self, request: GenerationRequest) -> frozenset[int]:
        """Return the control tokens whose text `read` needs."""
        return self._visible if _may_call(request) else frozenset()

    async def read(
        self, request: GenerationRequest, deltas: AsyncGenerator[Delta, None]
    ) -> AsyncGenerator[Delta, None]:
        """Yield the deltas of an answer, with calls parsed from its text."""
        if request.tooling is None or not _may_call(request):
            async with aclosing(deltas):
                async for delta in deltas:
                    yield delta
            return
        names = {tool.name for _, tool in request.tooling.callable_tools}
        most = None if request.tooling.parallel else 1
        parsers = [CallParser(self.dialect, names, most) for _ in range(request.n)]
        async with aclosing(deltas):
            async for delta in deltas:
                for read in _read(delta, parsers):
                    yield read


def _may_call(request: GenerationRequest) -> bool:
    return request.tooling is not None and bool(request.tooling.callable_tools)


def _read(delta: Delta, parsers: list[CallParser]) -> list[Delta]:
    if delta.usage is not None:
        return [delta]
    parser = parsers[delta.index]
    if delta.finish_reason is not None:
        said = parser.finish()
        last = [Delta(index=delta.index, text=said.text, tool_calls=said.calls)] if said != Said("", []) else []
        if parser.count and delta.finish_reason == "stop":
            delta.finish_reason = "tool_calls"
        return [*last, delta]
    if delta.text:
        said = parser.feed(delta.text)
        delta.text, delta.tool_calls = said.text, said.calls
    return [delta]


def _marker_texts(markers: tuple[str, ...]) -> list[str]:
    return [marker.removesuffix("[") for marker in markers]
