"""Triton Inference Server: its generate extension, and KServe's `infer`, over the two LLM backends.

Protocol: docs/protocol/extension_generate.md of triton-inference-server/server, and KServe's Open Inference Protocol.
The server receives text, so conversations are formatted here, by the chat template of the model's own tokeniser.
"""

import re
from abc import abstractmethod
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import msgspec

from inference_core.errors import InvalidRequestError, ModelFileError
from inference_core.io.files import JSON_ERRORS
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.protocol import SamplingParams
from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.tokenization.tokenizer import Tokenizer
from tiers.dialects.dialect import ServerCall, ServerDialect
from tiers.dialects.event_stream import ServerSentEvent
from tiers.dialects.rules import dropped_fields
from tiers.dialects.server_error import ErrorObject, ServerSaidError, parse_error
from tiers.dialects.triton_config import NEEDED, OUTPUTS
from tiers.dialects.usage_counter import Tally
from tiers.errors import CatalogError, TierError, TierRequestError
from tiers.tier import Delta, ModelRequest, Usage

_encode = msgspec.json.Encoder().encode
_DEFAULTS = SamplingParams()
# Triton's messages for a model (or part of an ensemble) that is missing, has no version or is not ready.
_UNKNOWN_MODEL = re.compile(r"(in ensemble '[^']*', )?Request for unknown model: ")


class _Tensor(msgspec.Struct):
    """An output of `infer`."""

    name: str
    data: list[Any] = []


class _Event(msgspec.Struct):
    """One event or whole answer of a backend. A tensor of one element is written as that element."""

    text_output: str | list[str] | None = None
    finish_reason: str | list[str] | None = None
    num_input_tokens: int | list[int] | None = None
    num_output_tokens: int | list[int] | None = None
    error: str | None = None
    outputs: list[_Tensor] | None = None

    def flat(self) -> "_Event":
        """Return the outputs of `infer` as fields of the generate extension. Raises TierError."""
        if self.outputs is None:
            return self
        fields = {tensor.name: tensor.data for tensor in self.outputs if tensor.name in _Event.__struct_fields__}
        try:
            return msgspec.convert(fields, _Event)
        except msgspec.ValidationError as error:
            raise TierError(f"the server sent an output of another kind than Triton's ({error})") from error


class _Named(msgspec.Struct):
    """A tensor of a model."""

    name: str


class _Metadata(msgspec.Struct):
    """KServe's metadata of a model."""

    name: str
    inputs: list[_Named] = []
    outputs: list[_Named] = []


class _TritonServer(ServerDialect):
    """The shared part of both backends."""

    # Without one the backends end an answer after 16 tokens, or refuse the request.
    needs_limit = True
    needed: tuple[str, ...]
    """Inputs that every request needs."""
    # The sampling parameters that the backend supports under the same name.
    names: tuple[str, ...]

    def model_problem(self, status: int, body: bytes) -> str | None:
        """See `ServerDialect.model_problem`: the server has the model, and the model has the needed tensors."""
        if status != 200:
            return (
                f"has no model {self._remote.model!r} (it answered {status}: {parse_error(body).message[:200]}); "
                "remote.model is its name in Triton's model repository"
            )
        try:
            told = _decode_metadata(body)
        except JSON_ERRORS as error:
            return f"describes its model {self._remote.model!r} as nothing that KServe's protocol knows: {error}"
        infers = self._remote.whole_path == "infer"
        lacking = {
            "inputs": set(self._asked if infers else self.needed) - {tensor.name for tensor in told.inputs},
            "outputs": set(_INFERRED if infers else _INFERRED[:1]) - {tensor.name for tensor in told.outputs},
        }
        lacks = [f"{kind} {', '.join(sorted(names))}" for kind, names in lacking.items() if names]
        if not lacks:
            return None
        return (
            f"has a model {told.name!r} without the {' and the '.join(lacks)}, which a tier of kind "
            f"'{self._remote.kind}' needs; is it the model to be asked, and of that backend?"
        )

    def is_about_model(self, error: ErrorObject) -> bool:
        """See `ServerDialect.is_about_model`: Triton uses 400 for an unloaded model and for bad input."""
        return _UNKNOWN_MODEL.match(error.words) is not None

    @property
    def _asked(self) -> Iterable[str]:
        """Return the tensors of every `infer` request."""
        plain = ModelRequest(sampling=SamplingParams(temperature=0.5))
        return self.body("", plain, 1, streamed=False)

    def prepare(self) -> None:
        try:
            _ = self._tokenizer
        except (ModelFileError, OSError) as error:
            raise CatalogError(f"remote.tokenizer = {self._remote.tokenizer!r}: {error}") from None

    @abstractmethod
    def body(self, text: str, request: ModelRequest, max_tokens: int, *, streamed: bool) -> dict[str, Any]:
        """Return the fields of a generate request."""

    def call(self, request: ModelRequest, max_tokens: int | None) -> ServerCall:
        assert max_tokens is not None, "the backends need a limit"
        streamed = self.is_streamed(request)
        body = self.body(self._text(request), request, max_tokens, streamed=streamed)
        dropped = dropped_fields(request, frozenset({*self.names, "temperature", "top_p", "top_k"}))
        model = f"v2/models/{self._remote.model}"
        if streamed:
            return ServerCall(f"{model}/generate_stream", _encode(body), True, dropped)
        if self._remote.whole_path == "infer":
            return ServerCall(f"{model}/infer", _encode(_inference(body)), False, dropped)
        return ServerCall(f"{model}/generate", _encode(body), False, dropped)

    def read_event(self, event: ServerSentEvent, tally: Tally) -> list[Delta] | None:
        return self._said(_parsed(event.data), tally)

    def read_whole(self, body: bytes, tally: Tally) -> list[Delta]:
        return self._said(_parsed(body).flat(), tally) + self.read_end(tally)

    def read_end(self, tally: Tally) -> list[Delta]:
        """The stream's end is the answer's unless the backend ended it before; its length gives the finish reason."""
        if tally.heard is None or tally.is_ended:
            return []
        used = 0 if tally.reported is None else tally.reported.completion_tokens
        return [Delta(finish_reason="length" if 0 < tally.max_tokens <= used else "stop")]

    def _said(self, event: _Event, tally: Tally) -> list[Delta]:
        text, before = _first(event.text_output) or "", tally.heard or ""
        if self._remote.cumulative_text:
            if not text.startswith(before):
                raise TierError("the server took back what it had said; is cumulative_text right for its model?")
            text = text[len(before) :]
        tally.heard = before + text if self._remote.cumulative_text else ""
        usage = _usage(event, tally)
        if usage is not None:
            tally.report(usage)
        reason = _first(event.finish_reason)
        deltas = [Delta(text=text)] if text else []
        if reason not in (None, "None", ""):
            deltas.append(Delta(finish_reason="length" if reason == "length" else "stop"))
        return deltas

    def check(self, request: ModelRequest) -> None:
        sampling = request.sampling
        told = {
            "n": request.n != 1,
            "tools": request.tooling is not None,
            "logprobs": sampling.logprobs is not None,
            "logit_bias": bool(sampling.logit_bias),
            "prompt": isinstance(request.prompt, list),
        }
        told |= {
            name: getattr(sampling, name) != getattr(_DEFAULTS, name)
            for name in ("min_p", "min_tokens", "ignore_eos", "stop_token_ids", "repetition_penalty")
            if name not in self.names
        }
        for name, asked in told.items():
            if asked:
                what = "token ids are" if name == "prompt" else "it is"
                raise TierRequestError(
                    f"{name}: {what} not among what a server of kind '{self._remote.kind}' takes; leave it out, or "
                    "name another tier",
                    name,
                )
        if request.messages is not None and self._remote.tokenizer is None:
            raise TierRequestError(
                "messages: this tier's server is sent text, and the catalogue names no remote.tokenizer whose template "
                "would write a conversation; use completions with a prompt",
                "messages",
            )
        if any(message.media for message in request.messages or ()):
            raise TierRequestError("messages: this tier's server is sent text only", "messages", "unsupported_content")

    def _sampling(self, request: ModelRequest) -> dict[str, Any]:
        """Return the parameters that are set."""
        values = {name: getattr(request.sampling, name) for name in self.names}
        return {n: value for n, value in values.items() if value != getattr(_DEFAULTS, n) or n in request.given}

    def _text(self, request: ModelRequest) -> str:
        if request.messages is None:
            return str(request.prompt)
        assert self._tokenizer is not None, "the request has been checked"
        controls = self._tokenizer.control_tokens
        for message in request.messages:
            forged = next((token for token in controls if token and token in message.text), None)
            if forged is not None:
                # The server would read them as the template's own control tokens: a forged turn.
                raise TierRequestError(
                    f"messages: a text contains {forged!r}, which steers this tier's model; leave it out, or name "
                    "another tier",
                    "messages",
                )
        turns = [{"role": message.role, "content": message.text} for message in request.messages]
        try:
            return self._tokenizer.render_chat(turns)
        except InvalidRequestError as error:
            raise TierRequestError(str(error), "messages") from error

    @cached_property
    def _tokenizer(self) -> Tokenizer | None:
        path = self._remote.tokenizer
        return None if path is None else load_tokenizer(resolve_model_path(path))


# Our kinds of grammars by TensorRT-LLM's names.
_GUIDES = {"json_object": "json", "json_schema": "json_schema", "regex": "regex"}


class TritonTensorRtLlmServer(_TritonServer):
    """The models `ensemble` and `tensorrt_llm_bls` of the TensorRT-LLM backend."""

    needed = NEEDED
    names = ("seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens")

    def check(self, request: ModelRequest) -> None:
        super().check(request)
        if request.include_stop:
            raise TierRequestError("include_stop_str_in_output: the TensorRT-LLM backend drops stop strings", "stop")
        grammar = request.sampling.grammar
        if grammar is not None and grammar.kind not in _GUIDES:
            raise TierRequestError(
                f"structured_outputs: a grammar of kind {grammar.kind!r} is not among what this tier's server takes",
                "structured_outputs",
            )

    def body(self, text: str, request: ModelRequest, max_tokens: int, *, streamed: bool) -> dict[str, Any]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "text_input": text,
            "max_tokens": max_tokens,
            # Older versions of the backend's models need both.
            "bad_words": "",
            "stop_words": list(request.stop) or "",
            "stream": streamed,
            "exclude_input_in_output": True,
            "return_num_input_tokens": True,
            "return_num_output_tokens": True,
        }
        if sampling.temperature == 0:
            body["top_k"] = 1
        else:
            body |= {"top_k": sampling.top_k} if sampling.top_k else {}
            for name in ("temperature", "top_p"):
                if getattr(sampling, name) != 1.0 or name in request.given:
                    body[name] = getattr(sampling, name)
        return body | self._sampling(request) | self._guide(request)

    def _guide(self, request: ModelRequest) -> dict[str, Any]:
        grammar = request.sampling.grammar
        if grammar is None:
            return {}
        kind = _GUIDES[grammar.kind]
        told = {"guided_decoding_guide_type": kind}
        return told if kind == "json" else told | {"guided_decoding_guide": grammar.text}


class TritonVllmServer(_TritonServer):
    """The vLLM backend, which takes vLLM's own parameters as JSON in one string."""

    needed = ("text_input", "sampling_parameters")
    names = (
        "temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "top_k",
        "min_p", "min_tokens", "ignore_eos", "stop_token_ids",
    )  # fmt: skip

    def check(self, request: ModelRequest) -> None:
        super().check(request)
        if request.sampling.grammar is not None:
            raise TierRequestError(
                "response_format: Triton's vLLM backend has no grammars; leave it out, or name another tier",
                "response_format",
            )

    def body(self, text: str, request: ModelRequest, max_tokens: int, *, streamed: bool) -> dict[str, Any]:
        sampling = self._sampling(request) | {"max_tokens": max_tokens}
        if request.stop:
            sampling["stop"] = list(request.stop)
        if request.include_stop:
            sampling["include_stop_str_in_output"] = True
        return {
            "text_input": text,
            "stream": streamed,
            "sampling_parameters": _encode(sampling).decode(),
            "exclude_input_in_output": True,
            "return_finish_reason": True,
            "return_num_input_tokens": True,
            "return_num_output_tokens": True,
        }


def _inference(body: dict[str, Any]) -> dict[str, Any]:
    """Convert a generate request to KServe's `infer`: each field is a tensor with one row."""
    tensors = []
    for name, value in body.items():
        data = value if isinstance(value, list) else [value]
        kind = "UINT64" if name == "seed" else _DATATYPES[type(data[0])]
        tensors.append({"name": name, "shape": [1, len(data)], "datatype": kind, "data": data})
    return {"inputs": tensors, "outputs": [{"name": name} for name in _INFERRED]}


_DATATYPES = {bool: "BOOL", int: "INT32", float: "FP32", str: "BYTES"}
_INFERRED = tuple(OUTPUTS)


def _usage(event: _Event, tally: Tally) -> Usage | None:
    """Return the backend's counts so far, if the event has any; an event's counts include its own tokens."""
    output = _first(event.num_output_tokens)
    if output is None:
        return None
    before = 0 if tally.reported is None else tally.reported.completion_tokens
    prompt = _first(event.num_input_tokens) or (0 if tally.reported is None else tally.reported.prompt_tokens)
    return Usage(prompt_tokens=prompt or tally.prompt_tokens, completion_tokens=before + output)


def _first(value: Any) -> Any:
    return (value[0] if value else None) if isinstance(value, list) else value


def _parsed(data: bytes) -> _Event:
    try:
        event = _decode(data)
    except JSON_ERRORS as error:
        shown = data[:200].decode(errors="replace")
        raise TierError(f"the server sent what is not an answer of Triton ({error}): {shown!r}") from error
    if event.error is not None:
        raise ServerSaidError(parse_error(data))
    return event


_decode = msgspec.json.Decoder(_Event).decode
_decode_metadata = msgspec.json.Decoder(_Metadata).decode
