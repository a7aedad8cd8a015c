"""OpenAI's API as a remote wire, with the differences of vLLM, llama-server, SGLang and TensorRT-LLM's own server."""

import re
from typing import Any

import msgspec

from tiers.catalog.tier_spec import RemoteSpec
from tiers.conversation import Dialect
from tiers.dialects.chat import TEMPLATED, request_body, with_text_results
from tiers.dialects.dialect import WireCall
from tiers.dialects.event_stream import ServerSentEvent
from tiers.dialects.rules import ALL_SAMPLING, BREAKPOINTS, BUDGET, SERVICE_FIELDS, THOUGHTS, VARIABLES, dropped_fields
from tiers.dialects.server_error import WireError
from tiers.dialects.usage_counter import Tally
from tiers.errors import TierRequestError
from tiers.remote import responses_format
from tiers.remote.openai_answer import read_chunk
from tiers.remote.provider_state import give_back, mark_parts
from tiers.remote.wire import QueueMetric, RemoteWire
from tiers.tier import Delta, GenerationRequest

_CHAT_FIELDS = frozenset({*ALL_SAMPLING, "reasoning_effort", "parallel_tool_calls", BREAKPOINTS})
_TEXT_FIELDS = frozenset(ALL_SAMPLING)
_CLOSED = ("done", "end", "close", "complete", "finish")
_encode = msgspec.json.Encoder().encode


class OpenAIWire(RemoteWire):
    """Any OpenAI-compatible server. `bounds_thoughts`: whether it takes vLLM's bound of thinking tokens.
    `service_fields`: which of them it takes."""

    health_path = "models"
    models_path = "models"
    bounds_thoughts = False
    service_fields = frozenset(SERVICE_FIELDS)

    def __init__(self, remote: RemoteSpec) -> None:
        self._remote = remote
        # `give_back` writes the thoughts, and returns those that are left out.
        own = {VARIABLES, THOUGHTS} if remote.kind in TEMPLATED else {THOUGHTS}
        own |= {BUDGET} if self.bounds_thoughts else set()
        services = self.service_fields if remote.service_fields else frozenset()
        self._chat_fields = _CHAT_FIELDS | own | services
        self._text_fields = _TEXT_FIELDS | services & {"user"}

    def is_about_model(self, error: WireError) -> bool:
        """See `RemoteWire.is_about_model`: some servers use 400 where OpenAI uses 404."""
        return error.code == "model_not_found"

    def call(self, request: GenerationRequest, max_tokens: int | None) -> WireCall:
        streamed = not request.whole or self._remote.stream_whole
        body = self.extended(request_body(self._remote, request, max_tokens, streamed=streamed), request)
        known = self.known_fields(is_chat=request.messages is not None)
        dropped = dropped_fields(request, known)
        for name in dropped:
            body.pop(name, None)
        if request.messages is not None:
            dropped += give_back(body["messages"], request.messages, self.rules)
            if self.rules.cache_points:
                mark_parts(body["messages"], request.messages)
            if any(message.media and message.role == "tool" for message in request.messages):
                body["messages"] = with_text_results(body["messages"], answered=self.rules.answers_results)
            if not self.rules.null_content:
                for message in body["messages"]:
                    message["content"] = message["content"] or ""
            if request.tooling is not None and request.tooling.choice == "auto" and not self.rules.parses_calls:
                # The model gets the tools, and its calls are read here.
                body["tool_choice"] = "none"
            if request.tooling is not None and not self.rules.thoughts_with_tools:
                dropped += ("reasoning_effort",) if body.get("reasoning_effort") not in (None, "none") else ()
                body["reasoning_effort"] = "none"
        unknown: tuple[str, ...] = ()
        if request.extra or self._remote.body:
            body, unknown = self.with_own_fields(body, request, self._remote)
            if "reasoning" in body:
                # OpenRouter's name for the same, with more in it.
                body.pop("reasoning_effort", None)
        if request.continues:
            body |= self.rules.continue_fields
        if self.rules.prefill == "marked" and request.messages is not None and request.messages[-1].role == "assistant":
            # As Mistral's API has it: the answer goes on from this turn.
            body["messages"][-1]["prefix"] = True
        path = "completions" if request.messages is None else "chat/completions"
        return WireCall(path, _encode(body), streamed, dropped + unknown)

    def known_fields(self, *, is_chat: bool) -> frozenset[str]:
        """Return which of the fields that an answer can do without the server gets."""
        return self._chat_fields if is_chat else self._text_fields

    def extended(self, body: dict[str, Any], request: GenerationRequest) -> dict[str, Any]:
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


class VllmWire(OpenAIWire):
    """vLLM; `openai_format` uses its names for fields that OpenAI's API lacks."""

    health_path = "../health"
    bounds_thoughts = True
    queue = QueueMetric(
        "../metrics", "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:request_success_total"
    )


class LlamaServerWire(OpenAIWire):
    """llama.cpp's `llama-server`. Its queue metrics need `--metrics`."""

    health_path = "../health"
    queue = QueueMetric("../metrics", "llamacpp:requests_processing", "llamacpp:requests_deferred")


class SglangWire(OpenAIWire):
    """SGLang. Its queue metrics need `--enable-metrics`."""

    health_path = "../health"
    bounds_thoughts = True
    queue = QueueMetric("../metrics", "sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:num_requests_total")

    def check(self, request: GenerationRequest) -> None:
        grammar = request.sampling.grammar
        if request.response_format is None and grammar is not None and grammar.kind == "lark":
            raise TierRequestError(
                "structured_outputs: a Lark grammar is not among what SGLang takes; name another tier",
                "structured_outputs",
            )

    def extended(self, body: dict[str, Any], request: GenerationRequest) -> dict[str, Any]:
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


class TensorRtLlmWire(OpenAIWire):
    """`trtllm-serve`, which refuses fields that it does not know."""

    health_path = "../health"
    service_fields = frozenset({"user"})
    program = "trtllm-serve"

    def check(self, request: GenerationRequest) -> None:
        require_form(request, self.program)


class TgiWire(TensorRtLlmWire):
    """Hugging Face's Text Generation Inference, which like `trtllm-serve` takes OpenAI's fields alone."""

    program = "Text Generation Inference"
    service_fields = frozenset(SERVICE_FIELDS)
    queue = QueueMetric("../metrics", "tgi_batch_current_size", "tgi_queue_size", "tgi_request_success")


class OpenAIProviderWire(OpenAIWire):
    """A provider with OpenAI's API on the internet: OpenAI itself, OpenRouter, Groq and others."""

    def __init__(self, remote: RemoteSpec) -> None:
        super().__init__(remote)
        self.form: Dialect | None = None if remote.responses == "never" else "responses"

    def call(self, request: GenerationRequest, max_tokens: int | None) -> WireCall:
        """See `RemoteWire.call`: by the Responses API where the catalogue allows it, and the request needs it."""
        rules = self.rules
        thinks = request.tooling is not None and request.reasoning_effort != "none"
        needed = not rules.chats or (thinks and not rules.thoughts_with_tools) or responses_format.is_needed(request)
        is_probe = (
            request.native is None and (max_tokens or responses_format.LEAST_LIMIT) < responses_format.LEAST_LIMIT
        )
        wanted = self.form is not None and (needed or (self._remote.responses == "always" and not is_probe))
        own = request.native is not None and bool(request.native.server_tools)
        if not wanted or not (own or responses_format.is_expressible(request)):
            call = super().call(request, max_tokens)
            return msgspec.structs.replace(call, form="chat") if self.form is not None else call
        streamed = not request.whole or self._remote.stream_whole
        body = responses_format.request_body(self._remote, request, max_tokens, streamed=streamed)
        dropped = dropped_fields(request, self.known_fields(is_chat=True) - {"store", THOUGHTS} | {BUDGET})
        body, unknown = self.with_own_fields(self.extended(body, request), request, self._remote)
        return WireCall("responses", _encode(body), streamed, dropped + unknown, form="responses")

    def read_event(self, event: ServerSentEvent, tally: Tally) -> list[Delta] | None:
        if tally.form == "responses":
            return responses_format.read_event(event, tally)
        return super().read_event(event, tally)

    def read_whole(self, body: bytes, tally: Tally) -> list[Delta]:
        return (
            responses_format.read_whole(body, tally) if tally.form == "responses" else super().read_whole(body, tally)
        )

    def is_about_model(self, error: WireError) -> bool:
        return error.code in ("model_not_found", "DeploymentNotFound", "invalid_api_key")

    def check(self, request: GenerationRequest) -> None:
        require_form(request, "this tier's provider")


class AzureWire(OpenAIProviderWire):
    """Azure OpenAI's API of version 1, below `/openai/v1` of a resource; `model` is the name of a deployment."""

    def key_headers(self, key: str) -> list[tuple[bytes, bytes]]:
        return [(b"api-key", key.encode())] if key else []


def require_form(request: GenerationRequest, server: str) -> None:
    """Raise TierRequestError for a grammar of vLLM's own."""
    if request.response_format is None and request.sampling.grammar is not None:
        raise TierRequestError(
            f"structured_outputs: {server} takes response_format alone; leave it out or name another tier",
            "structured_outputs",
        )
