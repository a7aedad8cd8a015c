"""Tool calling of one local model: how its template, vocabulary and dialect handle a request's tools."""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from inference_core.errors import InvalidRequestError
from inference_core.tokenization.chat_template import ChatTemplate
from inference_core.tokenization.tokenizer import StopStrings, Tokenizer
from tiers.catalog.tier_spec import CallDialectName
from tiers.conversation import Tool, Tooling, Turn
from tiers.dialects.written.call_dialects import DIALECTS, HERMES, CallDialect, call_dialect_of
from tiers.dialects.written.call_grammar import call_grammar
from tiers.dialects.written.call_parser import Said
from tiers.dialects.written.probe_dialect import UNKNOWN, AnyParser, Probed, parser_of, probed
from tiers.tier import Delta, GenerationRequest, ModelRequest

# For models whose chat template knows nothing of tools; docs/structured-output.md shows it.
INSTRUCTIONS = """\
You may call functions to help with the request. These are the functions, one per line, as JSON:
<tools>
{tools}
</tools>

To call a function, answer with its name and its arguments as JSON between <tool_call> and </tool_call>, and nothing \
else; to call several, write one such pair after the other:
<tool_call>
{{"name": "function-name", "arguments": {{"argument": "value"}}}}
</tool_call>
The results come back between <tool_response> and </tool_response>."""


class ToolCalling:
    """`dialect` None: that of the model's chat template. `thinks`: whether `read` finds thoughts in answers.
    `stop_kind`: where stop strings count in answers that are read."""

    thinks = False
    stop_kind = StopStrings

    def __init__(self, tokenizer: Tokenizer, dialect: CallDialectName | None = None) -> None:
        template = tokenizer.chat_template
        self._knows_tools = template is not None and template.uses_tools
        # For a template without tools our own instructions describe them, in Hermes' dialect.
        probed = _probed(tokenizer, template) if template is not None and self._knows_tools else Probed(HERMES)
        self._written = probed._replace(in_parts=template is not None and _reads_parts_alone(tokenizer))
        # None: its template does not show how the model writes calls.
        self.shown = probed.dialect
        chosen = DIALECTS[dialect] if dialect is not None and self._knows_tools else probed.dialect
        self.dialect = call_dialect_of(None if template is None else template.tool_source) if chosen is None else chosen
        # Some templates refuse a system turn, and some leave it out.
        self._has_system = self._knows_tools or template is None or _shows(tokenizer, self._written, "system", "user")
        self._controls = tokenizer.control_tokens
        # Control tokens around calls are not part of the text, but the parser needs them.
        markers = self.dialect.markers
        self._visible = {
            token: text for text, token in self._controls.items() if any(text in marker for marker in markers)
        }

    def turns(self, messages: Sequence[Turn], tooling: Tooling | None) -> tuple[list[dict[str, Any]], Any]:
        """Return the conversation for the chat template, and the tools for it (None if they are in the
        conversation). Raises `InvalidRequestError` for a conversation with images, audio or files."""
        if any(message.media for message in messages):
            raise InvalidRequestError(
                "messages: this model reads text only; leave out images, audio and files", "messages"
            )
        tools: list[Tool] = [] if tooling is None or tooling.choice == "none" else list(tooling.tools)
        if self._knows_tools:
            return template_turns(messages, self._written), [tool.definition() for tool in tools] or None
        return template_turns(plain_messages(messages, tools, HERMES, in_system=self._has_system), self._written), None

    def prepared(self, request: GenerationRequest) -> GenerationRequest:
        """Return the request with the grammar that its tools need. Raises `TierRequestError`."""
        if request.tooling is None:
            return request
        sampling = request.sampling
        grammar = call_grammar(request.tooling, self.dialect, self._controls, sampling.grammar)
        return msgspec.structs.replace(request, sampling=msgspec.structs.replace(sampling, grammar=grammar))

    def visible_controls(self, request: ModelRequest) -> Mapping[int, str]:
        """Return the control tokens that `read` needs, and the texts by which it knows them."""
        return self._visible if self.reads(request) else {}

    def reads(self, request: ModelRequest) -> bool:
        """Whether the answer has to be read: where it may call tools."""
        return may_call(request)

    async def read(
        self, request: GenerationRequest, deltas: AsyncGenerator[Delta, None]
    ) -> AsyncGenerator[Delta, None]:
        """Yield the deltas of an answer that is read, with the calls in its text taken out of it."""
        assert request.tooling is not None
        tools = {tool.name: tool for _, tool in request.tooling.callable_tools}
        most = None if request.tooling.parallel else 1
        parsers = [parser_of(self.dialect, tools, most) for _ in range(request.n)]
        async with aclosing(deltas):
            async for delta in deltas:
                for read in _read(delta, parsers):
                    yield read


def may_call(request: ModelRequest) -> bool:
    return request.tooling is not None and bool(request.tooling.callable_tools)


def _probed(tokenizer: Tokenizer, template: ChatTemplate) -> Probed:
    """Return how the template writes calls, found out once for each template."""
    written = _PROBED.get(template)
    if written is None:
        ends = [tokenizer.token_bytes(token).decode(errors="replace") for token in tokenizer.eos_token_ids]

        def render(turns: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
            return tokenizer.render_chat(turns, add_generation_prompt=False, tools=tools)

        written = _PROBED[template] = probed(render, ends)
    return written


def _reads_parts_alone(tokenizer: Tokenizer) -> bool:
    """Whether the template leaves out a content that is a text, and writes one that is a list of parts, as some of
    models do that read images, too."""
    return not _shows(tokenizer, UNKNOWN, "user") and _shows(tokenizer, UNKNOWN._replace(in_parts=True), "user")


def _shows(tokenizer: Tokenizer, written: Probed, *roles: str) -> bool:
    """Whether turns of `roles` reach the model: the template takes them, and writes what the first one says."""
    said = "Words of the caller."
    messages = [Turn.of(role, said if index == 0 else "Hello") for index, role in enumerate(roles)]
    try:
        return said in tokenizer.render_chat(template_turns(messages, written))
    except InvalidRequestError:
        return False


_PROBED: WeakKeyDictionary[ChatTemplate, Probed] = WeakKeyDictionary()


def _read(delta: Delta, parsers: Sequence[AnyParser]) -> list[Delta]:
    if delta.end is not None:
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


def template_turns(messages: Sequence[Turn], written: Probed = UNKNOWN) -> list[dict[str, Any]]:
    """For a template that knows of tools: calls as transformers' templates read them, arguments as data where it does
    not want them as text."""
    return [_turn(message, written) for message in messages]


def _turn(message: Turn, written: Probed) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": message.role, "content": message.text}
    if written.no_content and message.calls and not message.text:
        turn["content"] = None
    elif written.in_parts:
        turn["content"] = [{"type": "text", "text": message.text}]
    if message.thoughts:
        # As in transformers, under both names that templates read.
        turn |= {"reasoning_content": message.thoughts, "thinking": message.thoughts}
    if message.name is not None:
        turn["name"] = message.name
    if message.call_id is not None:
        turn["tool_call_id"] = message.call_id
    if message.calls:
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": call.arguments if written.text_arguments else call.parsed_arguments(),
                },
            }
            for call in message.calls
        ]
    return turn


def plain_messages(
    messages: Sequence[Turn], tools: Sequence[Tool], dialect: CallDialect, *, in_system: bool = True
) -> list[Turn]:
    """For any other template: tools in the system turn (or the first user's), calls as text, results as a user turn."""
    plain: list[Turn] = []
    for message in messages:
        if message.role == "tool":
            result = f"<tool_response>\n{message.text}\n</tool_response>"
            if plain and plain[-1].role == "user" and plain[-1].text.startswith("<tool_response>"):
                before = plain.pop().text
                result = f"{before}\n{result}"
            plain.append(Turn.of("user", result))
        elif message.calls:
            calls = [
                f"{dialect.opener}{dialect.call_text(call.name, call.arguments)}{dialect.closer}"
                for call in message.calls
            ]
            content = "\n".join(filter(None, [message.text, *calls]))
            plain.append(Turn.of(message.role, content))
        else:
            plain.append(message)
    if not tools:
        return plain
    shown = "\n".join(json.dumps(tool.definition(), ensure_ascii=False, check_circular=False) for tool in tools)
    instructions = INSTRUCTIONS.format(tools=shown)
    if not in_system:
        index = next((index for index, message in enumerate(plain) if message.role == "user"), len(plain))
        asked = plain[index].text if index < len(plain) else ""
        told = Turn.of("user", f"{instructions}\n\n{asked}".rstrip())
        return [*plain[:index], told, *plain[index + 1 :]]
    if plain and plain[0].role == "system":
        first = plain[0].with_text(f"{plain[0].text}\n\n{instructions}")
        return [first, *plain[1:]]
    return [Turn.of("system", instructions), *plain]
