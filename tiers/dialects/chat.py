"""OpenAI's chat and completions, as servers have them, with the differences of vLLM, SGLang, TensorRT-LLM's own server
and others."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tiers.catalog.tier_spec import RemoteSpec
from tiers.conversation import Content, Dialect, Text, Tool, Turn
from tiers.dialects import responses
from tiers.dialects.chat_answer import read_chunk
from tiers.dialects.chat_opaque import DETAILS, EXTRA, PART_TYPES, opaque_of
from tiers.dialects.chat_schemas import (
    FunctionDefinition,
    NamedFunction,
    NamedToolChoice,
    ToolDefinition,
    function_call,
)
from tiers.dialects.dialect import ServerCall, ServerDialect
from tiers.dialects.event_stream import ServerSentEvent
from tiers.dialects.refusals import without, without_extras
from tiers.dialects.rules import (
    ALL_SAMPLING,
    BREAKPOINT,
    BREAKPOINTS,
    BUDGET,
    NEUTRAL,
    SERVICE_FIELDS,
    THOUGHTS,
    VARIABLES,
    ThoughtRules,
    dropped_fields,
    sampling_of,
)
from tiers.dialects.server_error import ErrorObject
from tiers.dialects.usage_counter import Tally
from tiers.errors import TierRequestError
from tiers.tier import Delta, ModelRequest

# Kinds of servers that render the model's own chat template, and take its variables.
TEMPLATED = ("vllm", "sglang", "llama-server")
SEEN = "OK."
"""What an assistant says between a result and the user, where a server wants that."""
# Stands for the media of a result.
MEDIA_FOLLOW = "(The image of this result follows in the next message.)"
MOST_MARKS = 4
"""Marks of a cache in one request."""
# All that text completions have of the fields that mean something to a provider alone.
_OF_COMPLETIONS = ("user",)
_CHAT_FIELDS = frozenset({*ALL_SAMPLING, "reasoning_effort", "parallel_tool_calls", BREAKPOINTS})
_TEXT_FIELDS = frozenset(ALL_SAMPLING)
_CLOSED = ("done", "end", "close", "complete", "finish")
_encode = msgspec.json.Encoder().encode


class ChatServer(ServerDialect):
    """Any OpenAI-compatible server. `bounds_thoughts`: whether it takes vLLM's bound of thinking tokens.
    `service_fields`: which of them it takes."""

    bounds_thoughts = False
    service_fields = frozenset(SERVICE_FIELDS)

    def __init__(self, remote: RemoteSpec) -> None:
        super().__init__(remote)
        # `give_back` writes the thoughts, and returns those that are left out.
        own = {VARIABLES, THOUGHTS} if remote.kind in TEMPLATED else {THOUGHTS}
        own |= {BUDGET} if self.bounds_thoughts else set()
        services = self.service_fields if remote.service_fields else frozenset()
        self._chat_fields = _CHAT_FIELDS | own | services
        self._text_fields = _TEXT_FIELDS | services & {"user"}

    def is_about_model(self, error: ErrorObject) -> bool:
        """See `ServerDialect.is_about_model`: some servers use 400 where OpenAI uses 404."""
        return error.code == "model_not_found"

    def call(self, request: ModelRequest, max_tokens: int | None) -> ServerCall:
        streamed = self.is_streamed(request)
        body = self.extended(request_body(self._remote, request, max_tokens, streamed=streamed), request)
        known_fields = self.known_fields(is_chat=request.messages is not None)
        dropped = dropped_fields(request, known_fields)
        for name in dropped:
            body.pop(name, None)
        if request.messages is not None:
            dropped += give_back(body["messages"], request.messages, self.rules.thinking)
            if self.rules.cache_points:
                mark_parts(body["messages"], request.messages)
            if any(message.media and message.role == "tool" for message in request.messages):
                body["messages"] = with_text_results(body["messages"], answered=self.rules.turns.answers_results)
            if not self.rules.turns.null_content:
                for message in body["messages"]:
                    message["content"] = message["content"] or ""
            if request.tooling is not None and request.tooling.choice == "auto" and not self.rules.parses_calls:
                # The model gets the tools, and its calls are read here.
                body["tool_choice"] = "none"
            if request.tooling is not None and not self.rules.thinking.thoughts_with_tools:
                dropped += ("reasoning_effort",) if body.get("reasoning_effort") not in (None, "none") else ()
                body["reasoning_effort"] = "none"
        unknown: tuple[str, ...] = ()
        if request.extra or self._remote.body:
            body, unknown = self.with_own_fields(body, request)
            if "reasoning" in body:
                # OpenRouter's name for the same, with more in it.
                body.pop("reasoning_effort", None)
        if request.continues:
            body |= self.rules.turns.continue_fields
        marks = self.rules.turns.prefill == "marked"
        if marks and request.messages is not None and request.messages[-1].role == "assistant":
            # As Mistral's API has it: the answer goes on from this turn.
            body["messages"][-1]["prefix"] = True
        path = "completions" if request.messages is None else "chat/completions"
        return ServerCall(path, _encode(body), streamed, dropped + unknown)

    def without_refused(
        self, call: ServerCall, refused: frozenset[str]
    ) -> tuple[bytes, tuple[str, ...], tuple[str, ...]]:
        if call.form == "responses":
            return without_extras(call.body, refused)
        body, changed = without(call.body, refused) if call.path == "chat/completions" else (call.body, ())
        return body, (), changed

    def known_fields(self, *, is_chat: bool) -> frozenset[str]:
        """Return which of the fields that an answer can do without the server gets."""
        return self._chat_fields if is_chat else self._text_fields

    def extended(self, body: dict[str, Any], request: ModelRequest) -> dict[str, Any]:
        """Return the body with this server's own fields."""
        return body

    def read_event(self, event: ServerSentEvent, tally: Tally) -> list[Delta] | None:
        data = event.data
        if data[:1] == b"{":
            return read_chunk(data, tally)
        if event.is_end or event.event in _CLOSED:
            return None
        return read_chunk(data, tally)

    def read_whole(self, body: bytes, tally: Tally) -> list[Delta]:
        return read_chunk(body, tally)


class VllmServer(ChatServer):
    """vLLM, whose names are used for fields that OpenAI's API lacks."""

    bounds_thoughts = True


class SglangServer(ChatServer):
    """SGLang."""

    bounds_thoughts = True

    def check(self, request: ModelRequest) -> None:
        grammar = request.sampling.grammar
        if request.response_format is None and grammar is not None and grammar.kind == "lark":
            raise TierRequestError(
                "structured_outputs: a Lark grammar is not among what SGLang takes; name another tier",
                "structured_outputs",
            )

    def extended(self, body: dict[str, Any], request: ModelRequest) -> dict[str, Any]:
        """Use SGLang's own fields for grammars."""
        outputs = body.pop("structured_outputs", None)
        if outputs is None:
            return body
        ((name, value),) = outputs.items()
        if name == "json_object":
            return body | {"response_format": {"type": "json_object"}}
        if name == "json":
            schema = {"name": "answer", "schema": msgspec.json.decode(value)}
            return body | {"response_format": {"type": "json_schema", "json_schema": schema}}
        if name == "regex":
            return body | {"regex": value}
        if name == "choice":
            return body | {"regex": "|".join(re.escape(choice) for choice in value)}
        return body


class TensorRtLlmServer(ChatServer):
    """`trtllm-serve`, which refuses fields that it does not know."""

    service_fields = frozenset({"user"})
    program = "trtllm-serve"

    def check(self, request: ModelRequest) -> None:
        require_form(request, self.program)


class TgiServer(TensorRtLlmServer):
    """Hugging Face's Text Generation Inference, which like `trtllm-serve` takes OpenAI's fields alone."""

    program = "Text Generation Inference"
    service_fields = frozenset(SERVICE_FIELDS)


class ProviderServer(ChatServer):
    """A provider with OpenAI's API on the internet: OpenAI itself, OpenRouter, Groq and others."""

    def __init__(self, remote: RemoteSpec) -> None:
        super().__init__(remote)
        self.form: Dialect | None = None if remote.responses == "never" else "responses"

    def call(self, request: ModelRequest, max_tokens: int | None) -> ServerCall:
        """See `ServerDialect.call`: by the Responses API where the catalogue allows it, and the request needs it."""
        rules = self.rules
        thinks = request.tooling is not None and request.reasoning_effort != "none"
        needed = not rules.chats or (thinks and not rules.thinking.thoughts_with_tools) or responses.is_needed(request)
        is_probe = request.opaque is None and (max_tokens or responses.LEAST_LIMIT) < responses.LEAST_LIMIT
        wanted = self.form is not None and (needed or (self._remote.responses == "always" and not is_probe))
        if not wanted or not (request.server_tools or responses.is_expressible(request)):
            call = super().call(request, max_tokens)
            return msgspec.structs.replace(call, form="chat") if self.form is not None else call
        streamed = self.is_streamed(request)
        body = responses.request_body(self._remote, request, max_tokens, streamed=streamed)
        dropped = dropped_fields(request, self.known_fields(is_chat=True) - {"store", THOUGHTS} | {BUDGET})
        body, unknown = self.with_own_fields(self.extended(body, request), request)
        return ServerCall("responses", _encode(body), streamed, dropped + unknown, form="responses")

    def read_event(self, event: ServerSentEvent, tally: Tally) -> list[Delta] | None:
        if tally.form == "responses":
            return responses.read_event(event, tally)
        return super().read_event(event, tally)

    def read_whole(self, body: bytes, tally: Tally) -> list[Delta]:
        return responses.read_whole(body, tally) if tally.form == "responses" else super().read_whole(body, tally)

    def is_about_model(self, error: ErrorObject) -> bool:
        return error.code in ("model_not_found", "DeploymentNotFound", "invalid_api_key")

    def check(self, request: ModelRequest) -> None:
        require_form(request, "this tier's provider")


def require_form(request: ModelRequest, server: str) -> None:
    """Raise TierRequestError for a grammar of vLLM's own."""
    if request.response_format is None and request.sampling.grammar is not None:
        raise TierRequestError(
            f"structured_outputs: {server} takes response_format alone; leave it out or name another tier",
            "structured_outputs",
        )


def request_body(
    remote: RemoteSpec, request: ModelRequest, max_tokens: int | None, *, streamed: bool = True
) -> dict[str, Any]:
    """Return the JSON body of a call: what caller or catalogue set, the model, and what reading the answer needs."""
    sampling, given_fields = request.sampling, request.given
    is_chat = request.messages is not None
    body: dict[str, Any] = {"model": remote.model, "stream": streamed}
    if max_tokens is not None:
        body[remote.max_tokens_field if is_chat else "max_tokens"] = max_tokens
    if request.messages is not None:
        templated = remote.kind in TEMPLATED
        body["messages"] = [_message(message) for message in request.messages]
        if templated and request.template_variables:
            body["chat_template_kwargs"] = request.template_variables
    else:
        body["prompt"] = request.prompt
    if streamed and remote.stream_usage:
        body["stream_options"] = {"include_usage": True}
    if given_fields or sampling_of(sampling) != NEUTRAL:
        triples = zip(ALL_SAMPLING, sampling_of(sampling), NEUTRAL, strict=True)
        body |= {name: value for name, value, neutral in triples if value != neutral or name in given_fields}
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if request.stop:
        body["stop"] = list(request.stop)
    if request.include_stop:
        body["include_stop_str_in_output"] = True
    if request.n != 1 or "n" in given_fields:
        body["n"] = request.n
    if is_chat and request.reasoning_effort is not None:
        body["reasoning_effort"] = request.reasoning_effort
    if is_chat and request.reasoning_budget is not None:
        body["thinking_token_budget"] = request.reasoning_budget
    body |= _constraints(request)
    if sampling.logprobs is not None:
        body["logprobs"] = is_chat or sampling.logprobs
        if is_chat and (sampling.logprobs or "top_logprobs" in given_fields):
            body["top_logprobs"] = sampling.logprobs
    if request.passed:
        for name in SERVICE_FIELDS if is_chat else _OF_COMPLETIONS:
            if name in request.passed:
                body[name] = request.passed[name]
    return body


def part_of(block: Content) -> dict[str, Any]:
    """Return a part of a message."""
    kind = "text" if isinstance(block, Text) else PART_TYPES[block.kind]
    part = {"type": kind, kind: block.text if isinstance(block, Text) else block.data}
    return part if block.breakpoint is None else part | {BREAKPOINT: block.breakpoint}


def _message(message: Turn) -> dict[str, Any]:
    body: dict[str, Any] = {"role": message.role, "content": message.text}
    if parts := message.parts:
        body["content"] = [part_of(block) for block in parts]
    if message.name is not None:
        body["name"] = message.name
    if message.call_id is not None:
        body["tool_call_id"] = message.call_id
    if message.calls:
        body["content"] = body["content"] or None
        body["tool_calls"] = list(map(function_call, message.calls))
    return body


def with_text_results(messages: list[dict[str, Any]], *, answered: bool) -> list[dict[str, Any]]:
    """Return the conversation with results of tools as texts, which is all that the API has of them; their media are
    with what the user says next, and after a word of the assistant where results are to be `answered`."""
    conversation: list[dict[str, Any]] = []
    shown: list[Any] = []
    for message in [*messages, None]:
        if shown and (message is None or message["role"] != "tool"):
            said = message["content"] if message is not None and message["role"] == "user" else []
            shown += [{"type": "text", "text": said}] if isinstance(said, str) else said
            if answered and conversation[-1]["role"] == "tool":
                conversation.append({"role": "assistant", "content": SEEN})
            conversation.append({"role": "user", "content": shown})
            shown = []
            if said:
                continue
        if message is not None and message["role"] == "tool" and isinstance(message["content"], list):
            texts = [part["text"] for part in message["content"] if part["type"] == "text"]
            media = [part for part in message["content"] if part["type"] != "text"]
            if media:
                shown += media
                texts.append(MEDIA_FOLLOW)
            message = message | {"content": "\n\n".join(texts)}
        if message is not None:
            conversation.append(message)
    return conversation


def _constraints(request: ModelRequest) -> dict[str, Any]:
    """Return the fields for tools and grammars; vLLM's fields where OpenAI's API has none."""
    body: dict[str, Any] = {}
    grammar, tooling = request.sampling.grammar, request.tooling
    if request.response_format is not None:
        body["response_format"] = request.response_format
    elif grammar is not None:
        text = grammar.text
        value = {"json_object": True, "json_schema": text, "regex": text, "lark": text}.get(grammar.kind)
        name = {"json_schema": "json", "lark": "grammar"}.get(grammar.kind, grammar.kind)
        body["structured_outputs"] = {name: msgspec.json.decode(text) if grammar.kind == "choice" else value}
    if tooling is not None:
        body["tools"] = [_tool(tool) for tool in tooling.tools]
        if tooling.choice == "named":
            body["tool_choice"] = NamedToolChoice(type="function", function=NamedFunction(name=tooling.name or ""))
        elif tooling.choice != "auto" or "tool_choice" in request.given:
            body["tool_choice"] = tooling.choice
        if "parallel_tool_calls" in request.given or not (tooling.parallel or tooling.choice == "named"):
            body["parallel_tool_calls"] = tooling.parallel
    return body


def _tool(tool: Tool) -> ToolDefinition:
    function = FunctionDefinition(
        name=tool.name,
        description=tool.description,
        parameters=tool.parameters,
        strict=tool.strict or None,
    )
    return ToolDefinition(type="function", function=function)


def mark_parts(bodies: Sequence[dict[str, Any]], messages: Sequence[Turn]) -> None:
    """Put marks of a cache onto the last parts of the last turns that have one, as OpenRouter takes them for Claude."""
    marked = [body for body, message in zip(bodies, messages, strict=True) if message.cache_mark and body["content"]]
    for body in marked[-MOST_MARKS:]:
        said = body["content"]
        *before, last = [{"type": "text", "text": said}] if isinstance(said, str) else said
        body["content"] = [*before, last | {"cache_control": {"type": "ephemeral"}}]


_NOT_KEPT = " "
"""Instead of thoughts that are not there any more, where a server refuses a turn without any: Moonshot's takes an empty
text for none."""
_UNSIGNED = msgspec.Raw(b'{"google":{"thought_signature":"skip_thought_signature_validator"}}')
"""Google's own words for a call that another model made (https://ai.google.dev/gemini-api/docs/thought-signatures)."""


def give_back(bodies: Sequence[dict[str, Any]], messages: Sequence[Turn], rules: ThoughtRules) -> tuple[str, ...]:
    """Add to each of `bodies` what the turn of `messages` has for the server of `rules`. Return the names of what it
    does not get: thoughts where it takes none, and those that it needs and that are lost."""
    if "assistant" not in [message.role for message in messages]:
        return ()
    left_out: dict[str, None] = {}
    for body, message, in_loop in zip(bodies, messages, _in_loops(messages), strict=True):
        if message.role != "assistant":
            continue
        wanted = rules.thoughts and (in_loop or rules.thoughts_of == "all")
        if not wanted:
            left_out |= {THOUGHTS: None} if message.thoughts else {}
        elif message.thoughts:
            _add_thoughts(body, message, rules.thoughts)
        elif in_loop and rules.needs_thoughts:
            body[rules.thoughts[0]] = _NOT_KEPT
            # Of a turn whose model is known, there were none.
            left_out |= {} if message.answered_by else {THOUGHTS: None}
        for block in opaque_of(message):
            body[block.type] = msgspec.Raw(block.json)
        for index, call in enumerate(message.calls):
            if call.source is not None:
                body["tool_calls"][index] = function_call(call, msgspec.Raw(call.source.json))
            elif rules.signs_calls and not index:
                # Of calls made together the first is signed.
                body["tool_calls"][index] = function_call(call, _UNSIGNED)
                left_out[f"messages.tool_calls.{EXTRA}"] = None
    return tuple(left_out)


def _add_thoughts(body: dict[str, Any], message: Turn, names: Sequence[str]) -> None:
    if names == ("content",):
        said = body["content"]
        parts = [{"type": "text", "text": said}] if isinstance(said, str) and said else said or []
        thought = {"type": "text", "text": message.thoughts}
        body["content"] = [{"type": "thinking", "thinking": [thought]}, *parts]
    elif not any(block.type == DETAILS for block in opaque_of(message)):
        # Details are the same thoughts, and more.
        body |= dict.fromkeys(names, message.thoughts)


def _in_loops(messages: Sequence[Turn]) -> Iterator[bool]:
    """For each turn whether tools are called between the user's turn before it and the next one."""
    first, calls = 0, False
    for index, message in enumerate(messages):
        if message.role == "user":
            yield from [calls] * (index - first)
            first, calls = index, False
        calls = calls or bool(message.calls)
    yield from [calls] * (len(messages) - first)
