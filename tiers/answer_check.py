"""Validates what a tier sends as complete against the caller's schemas: strict answers, and arguments of calls.

In-process models follow grammars, but a grammar with tools is not validated at its end, and servers elsewhere may not
keep to a schema. Answers that were cut off are not complete, so they are not checked.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing

from tiers.deltas import CollectedChoice
from tiers.errors import InvalidAnswerError
from tiers.response_format import is_strict
from tiers.tier import Delta, GenerationRequest, ModelRequest, Tier


class _Schemas:
    """What a request's answers must hold for: `answer` the field of the request and its schema, None if anything does;
    `calls` the same by the names of tools."""

    def __init__(self, request: ModelRequest, *, is_local: bool) -> None:
        grammar, tooling = request.sampling.grammar, request.tooling
        self.calls: dict[str, tuple[str, str]] = {}
        if tooling is not None:
            for index, tool in tooling.callable_tools:
                if tool.strict or (is_local and tooling.is_forced):
                    self.calls[tool.name] = (f"tools[{index}].function.parameters", json.dumps(tool.schema))
        binds = (tooling is not None) if is_local else is_strict(request.response_format)
        is_schema = binds and grammar is not None and grammar.kind == "json_schema" and not request.stop
        self.answer = (grammar.param, grammar.text) if grammar is not None and is_schema else None

    def of(self, choice: CollectedChoice) -> list[tuple[str, str, str]]:
        """The field, the schema and the text of each part of a finished answer that must hold."""
        calls = choice.tool_calls
        checked = [(*self.calls[call.name], call.arguments) for call in calls if call.name in self.calls]
        if self.answer is not None and not calls and not choice.refusal:
            checked.append((*self.answer, choice.text))
        return checked


def checked(tier: Tier, request: GenerationRequest, deltas: AsyncGenerator[Delta, None]) -> AsyncGenerator[Delta, None]:
    """Return `deltas` of `tier`; before the end of a choice they raise `InvalidAnswerError` if the choice is not valid.

    What they need not check they pass on as they are.
    """
    schemas = _Schemas(request, is_local=tier.core_name is not None)
    return _checked(tier, schemas, request.n, deltas) if schemas.answer or schemas.calls else deltas


async def _checked(
    tier: Tier, schemas: _Schemas, n: int, deltas: AsyncGenerator[Delta, None]
) -> AsyncGenerator[Delta, None]:
    # Most requests have nothing to check.
    from inference_core.grammar.remote import own_child

    child = own_child()
    await asyncio.to_thread(child.start)  # it gets ready while the tier answers
    choices = [CollectedChoice() for _ in range(n)]
    async with aclosing(deltas):
        async for delta in deltas:
            if delta.end is None:
                choice = choices[delta.index]
                choice.take(delta)
                if delta.finish_reason in ("stop", "tool_calls") and (parts := schemas.of(choice)):
                    pairs = [(schema, text) for _, schema, text in parts]
                    wrong = await asyncio.to_thread(child.invalid, pairs)
                    if wrong is not None:
                        index, why = wrong
                        raise InvalidAnswerError(
                            f"tier '{tier.name}': {parts[index][0]}: the answer is not valid: {why}"
                        )
            yield delta
