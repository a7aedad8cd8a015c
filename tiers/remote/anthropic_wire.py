"""Anthropic's Messages API as a remote wire (version 2023-06-01)."""

from typing import Any
from urllib.parse import quote

import msgspec

from tiers.catalog.tier_spec import RemoteSpec
from tiers.errors import TierRequestError
from tiers.native_content import Form
from tiers.remote import anthropic_answer
from tiers.remote.anthropic_request import (
    MARK,
    NAME,
    dropped_sampling,
    dropped_thinking,
    is_marked,
    mark,
    message_turns,
    native_thinking,
    passed_fields,
    same_fields,
    sampling_fields,
    source_of,
    system_of,
    thinking_fields,
    tool_fields,
)
from tiers.remote.openai_format import WireError
from tiers.remote.optional_fields import BUDGET, dropped_fields
from tiers.remote.provider_format import (
    answer_schema,
    check_provider,
    media_parts,
    missing_model,
    published_by,
)
from tiers.remote.sse import ServerSentEvent
from tiers.remote.usage_counter import Tally
from tiers.remote.wire import RemoteWire, WireCall
from tiers.tier import Delta, GenerationRequest

VERSION = b"2023-06-01"
_KNOWN = frozenset({"temperature", "top_p", "top_k", "reasoning_effort", BUDGET, "parallel_tool_calls"})


class AnthropicWire(RemoteWire):
    """Anthropic, or another server with its Messages API."""

    needs_limit = True
    form: Form | None = "anthropic"
    marks_cache = True

    def __init__(self, remote: RemoteSpec) -> None:
        self._remote = remote
        self.health_path = self.model_path = f"models/{quote(remote.model, safe='')}"

    def key_headers(self, key: str) -> list[tuple[bytes, bytes]]:
        """See `RemoteWire.key_headers`."""
        version = [(b"anthropic-version", VERSION)]
        return [*version, (b"x-api-key", key.encode())] if key else version

    def model_problem(self, status: int, body: bytes) -> str | None:
        """See `RemoteWire.model_problem`. Servers other than Anthropic's may not list models."""
        if status == 404 and b"not_found_error" in body:
            return missing_model(self._remote.model, body)
        return None

    def published_output(self, body: bytes) -> int | None:
        """See `RemoteWire.published_output`."""
        return published_by(body, ("max_tokens", "max_output_tokens"))

    def is_about_model(self, error: WireError) -> bool:
        """See `RemoteWire.is_about_model`: an account without credit is refused with 400."""
        return "credit balance" in error.message

    def check(self, request: GenerationRequest) -> None:
        """See `RemoteWire.check`."""
        check_provider(request, NAME)
        if answer_schema(request, NAME) == {}:
            raise TierRequestError(
                f"response_format: {NAME} takes a json_schema, not any JSON object; give a schema, or name another "
                "tier",
                "response_format",
            )
        for part in media_parts(request):
            source_of(part)

    def call(self, request: GenerationRequest, max_tokens: int | None) -> WireCall:
        """See `RemoteWire.call`."""
        assert max_tokens is not None, "the API needs a limit"
        messages, native = request.messages or [], request.native
        streamed = not request.whole or self._remote.stream_whole
        path, head = self._addressed(streamed=streamed)
        body: dict[str, Any] = head | {
            "max_tokens": max_tokens,
            "messages": message_turns(messages),
            "stream": streamed,
        }
        if system := system_of(messages):
            body["system"] = system
        if request.stop:
            body["stop_sequences"] = list(request.stop)
        body |= tool_fields(request) | same_fields(native)
        thinking = self._thinking(request, max_tokens)
        sampling = sampling_fields(request, thinking)
        passed, known = passed_fields(request.passed)
        added: tuple[str, ...] = ()
        if request.cache_reuse and not is_marked(request):
            mark(body)
            added = (MARK,)
        dropped = dropped_fields(request, _KNOWN | known)
        dropped += dropped_sampling(request, sampling) + dropped_thinking(request, thinking)
        headers = ((b"anthropic-beta", native.betas.encode()),) if native is not None and native.betas else ()
        body, unknown = self.with_own_fields(body | thinking | sampling | passed, request, self._remote)
        return WireCall(path, _encode(body), streamed, dropped + unknown, added, headers)

    def _addressed(self, *, streamed: bool) -> tuple[str, dict[str, Any]]:
        """Return the path of a call, and the fields of its body that name model and version."""
        return "messages", {"model": self._remote.model}

    def _thinking(self, request: GenerationRequest, max_tokens: int) -> dict[str, Any]:
        """Return `thinking` and `output_config`: of a caller of the same API as they are, where the model takes them
        so."""
        output = {}
        if (schema := answer_schema(request, NAME)) is not None:
            output["format"] = {"type": "json_schema", "schema": schema}
        same = native_thinking(self._remote.model, request, max_tokens)
        if same is not None:
            return ({"output_config": output} if output else {}) | same
        fields = thinking_fields(self._remote.model, request, max_tokens)
        output |= fields.pop("output_config", {})
        return fields | ({"output_config": output} if output else {})

    def read_event(self, event: ServerSentEvent, tally: Tally) -> list[Delta] | None:
        """See `RemoteWire.read_event`."""
        return anthropic_answer.read_event(event, tally)

    def read_whole(self, body: bytes, tally: Tally) -> list[Delta]:
        """See `RemoteWire.read_whole`."""
        return anthropic_answer.read_whole(body, tally)


_encode = msgspec.json.Encoder().encode
