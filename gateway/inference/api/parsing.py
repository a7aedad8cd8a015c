"""From bytes to a checked request: every refusal is a 400 that names the parameter, the value and what is allowed."""

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import cache, partial
from operator import attrgetter
from typing import Any, TypeVar, cast

import msgspec

from gateway.base.errors import ApiError, bad_request
from gateway.base.inference_request import (
    CALLER,
    SERVICE_TIERS,
    TIER_DEFAULTS,
    Caller,
    Prompt,
    SloName,
    slo_class,
)
from gateway.edge.asgi import HttpRequest
from gateway.edge.client_paths import DEPLOYMENT
from gateway.inference.api.caller_urls import refuse_urls
from gateway.inference.api.chat_turns import turns_of
from gateway.inference.api.constraints import grammar_of
from gateway.inference.api.foreign_fields import FieldReader, whole_text
from gateway.inference.api.json_bounds import json_excess, structure_refusal
from gateway.inference.api.schemas import MAX_PROMPTS, ChatRequest, CompletionRequest, Sampling
from gateway.inference.service import Serving, serving_of
from gateway.tenancy.guard import PlainRequest
from inference_core.protocol import SamplingParams
from tiers.conversation import Turn
from tiers.dialects.rules import ALL_SAMPLING, SERVICE_FIELDS
from tiers.prompt_bounds import num_bytes

Body = TypeVar("Body", bound=msgspec.Struct)
Built = TypeVar("Built")
Decoded = TypeVar("Decoded")

UNKNOWN, INVALID, MISSING = "unknown_parameter", "invalid_value", "missing_required_parameter"
NOT_JSON = "invalid_json"
IGNORED = "ignored_fields"
"""Where a request's state holds the names of its fields that were ignored, if there are any."""
EXTRA = "extra_fields"
"""Where it holds those that some servers know, by name."""
FILES = "files"
"""The key of the app's state for callers' files (`prompt_files.Files`)."""
MENDED = "mended_body"
"""There, and true, where its body was read in another form than it was sent in."""

PRIORITY_OF_SERVICE_TIER = {"auto": 1, "default": 1, "scale": 1, "priority": 0, "flex": 2, "batch": 2}
# Those that providers have; `batch` is our own.
SERVICE_TIERS_ELSEWHERE = ("auto", "default", "flex", "priority", "scale")
# OpenAI's default of the older API; chat has none.
COMPLETION_MAX_TOKENS = 16

MAX_LOGPROBS = 1 << 17
"""Log-probabilities of drawn tokens in one answer of several choices: about 8 MB of JSON."""
UNSTATED_TOKENS = 4096
"""What a choice without a limit of its own counts as."""
MAX_ECHOED_BYTES = 1 << 22
"""Bytes of repeated prompts in one answer."""
# Bytes of a token: few have as many.
_TOKEN_BYTES = 16

# Larger bodies are decoded on a thread, which costs less than their decoding.
_DECODED_AT_ONCE = 1 << 17
_PATH = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>.*)`)?$", re.DOTALL)
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING_FIELD = re.compile(r"Object missing required field `(.*)`")


async def read_body(request: HttpRequest, form: type[Body]) -> Body:
    """The JSON body, decoded as `form`. Raises `ApiError`: 415 for another media type, 400 for what does not decode."""
    body, caller = await json_of(request), request.scope["state"][CALLER]
    decoder: msgspec.json.Decoder[Body] = _decoder_of(form)
    return await decoded_body(serving_of(request), decoder, body, caller)


@cache
def _decoder_of(form: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(form)


async def read_fields(
    serving: Serving, request: HttpRequest, fields: FieldReader[Body], *, again: bool = False
) -> Body:
    """Like `read_body`, but unless the caller's key or the server is strict, fields that have no meaning here are left
    out; a header of the answer names them. `again`: the body as it was sent has been refused."""
    found = await json_of(request)
    state = request.scope["state"]
    body, ignored, extra, is_mended = await decoded_fields(serving, fields, found, state[CALLER], again=again)
    if ignored:
        state[IGNORED] = ignored
    if extra:
        state[EXTRA] = extra
    if is_mended:
        state[MENDED] = True
    return body


async def read_and_build(
    serving: Serving, request: HttpRequest, fields: FieldReader[Body], build: Callable[[Body], Awaitable[Built]]
) -> tuple[Body, Built]:
    """The body of a request, and what `build` makes of it; where that refuses it with a 400, of the body as it is
    plainly meant, unless the caller's requests are read to the letter. Raises `ApiError`."""
    body = await read_fields(serving, request, fields)
    try:
        return body, await build(body)
    except ApiError as error:
        if error.status != 400 or is_strict(serving, request.scope["state"][CALLER]):
            raise
        request.scope["state"].pop(IGNORED, None)
        mended = await read_fields(serving, request, fields, again=True)
        if mended == body:
            raise
        return mended, await build(mended)


def is_strict(serving: Serving, caller: Caller) -> bool:
    """Whether the caller's requests are read to the letter."""
    return caller.strict or serving.settings.strict_fields


def decoded_body(serving: Serving, decoder: msgspec.json.Decoder[Body], body: bytes, caller: Caller) -> Awaitable[Body]:
    """What `decode_body` returns, of a large body without holding up the event loop."""
    return off_loop(serving, caller, body, partial(decode_body, decoder, body))


def decoded_fields(
    serving: Serving, fields: FieldReader[Body], body: bytes, caller: Caller, *, again: bool = False
) -> Awaitable[tuple[Body, list[str], dict[str, Any], bool]]:
    """The request in `body`, the names of its fields that are ignored, those that some servers know, and whether it had
    another form. `again`: see `read_fields`. Raises `ApiError` as `read_body` does."""
    return off_loop(serving, caller, body, partial(_decode_fields, serving, fields, body, caller, again=again))


async def off_loop(serving: Serving, caller: Caller, body: bytes, work: Callable[[], Decoded]) -> Decoded:
    """Return what `work` makes of `body`, or of what it was decoded as: of a large one on a thread, since it takes tens
    of milliseconds."""
    if len(body) <= _DECODED_AT_ONCE:
        return work()
    return await serving.routing.threads.run(caller.tenant, work)


def _decode_fields(
    serving: Serving, fields: FieldReader[Body], body: bytes, caller: Caller, *, again: bool = False
) -> tuple[Body, list[str], dict[str, Any], bool]:
    strict = is_strict(serving, caller)
    ignored: list[str] = []
    extra: dict[str, Any] = {}
    known_part = partial(fields.known_part, forward=serving.routing.served.forwarded_fields)
    try:
        if again:
            found, ignored, extra = _decoded(known_part, body, fields.body)
        else:
            found = _decoded(fields.decode, body, fields.body)
    except ApiError as error:
        if not strict and error.body.code == NOT_JSON and (whole := whole_text(body)) != body:
            return _decode_fields(serving, fields, whole, caller, again=again)
        if strict or again or error.body.code not in (UNKNOWN, INVALID, MISSING):
            raise
        found, ignored, extra = _decoded(known_part, body, fields.body)
        again = error.body.code != UNKNOWN
    refuse_urls(extra, "")
    given = [name for name in fields.harmless if getattr(found, name) is not None]
    if given and strict:
        refuse_given(found, fields.harmless)
    if given or ignored:
        serving.count_ignored(fields.endpoint)
        ignored += given
    return found, ignored, extra, again


async def json_of(request: HttpRequest) -> bytes:
    """Return the body of a request in JSON, with the model that its path names and the files that it
    names. Raises `ApiError` 415, 413."""
    # Forms and plain text, whatever their parameters say, are what web pages may send to other sites unasked.
    stated = request.scope["state"]["headers"].get("content-type", "")
    if stated != "application/json":
        media_type = stated.partition(";")[0].strip().lower()
        if media_type and media_type != "application/json" and not media_type.endswith("+json"):
            raise ApiError(415, f"Send the body as application/json, not as {media_type[:64]!r}.")
    body = await request.body()
    if b'"file-' in body:
        from gateway.inference.api.prompt_files import with_files  # Most bodies name none.

        tenant, most = request.scope["state"][CALLER].tenant, serving_of(request).settings.body_limit
        body = await with_files(request.app.state[FILES], tenant, body, most)
        if isinstance(request, PlainRequest):
            request.become(body)
    deployment: Any = (request.scope.get("extensions") or {}).get(DEPLOYMENT)
    return body if deployment is None else _with_model(body, deployment)


def _with_model(body: bytes, model: str) -> bytes:
    """The body with the model that a client of Azure names in its path; as it is where it is no object of JSON."""
    if json_excess(body) is not None:
        return body
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return body
    return msgspec.json.encode(fields | {"model": msgspec.Raw(msgspec.json.encode(model))})


def decode_body(decoder: msgspec.json.Decoder[Body], body: bytes) -> Body:
    """Decode JSON strictly. Raises `ApiError` 400 for bad UTF-8, bad JSON, wrong types, ranges and unknown fields."""
    return _decoded(decoder.decode, body, decoder.type)


def _decoded(decode: Callable[[bytes], Decoded], body: bytes, kind: Any) -> Decoded:
    if (excess := json_excess(body)) is not None:
        raise structure_refusal(body, excess)
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        raise refusal_of(error, kind) from None
    except UnicodeDecodeError as error:
        raise bad_request(f"The body is not valid UTF-8: {error.reason} in a string.", None, "invalid_utf8") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"The body is not valid JSON: {error}.", None, NOT_JSON) from None


def refusal_of(error: msgspec.ValidationError, kind: Any) -> ApiError:
    """The 400 that names what did not fit in values of type `kind`."""
    from gateway.base.allowed_values import explained  # Most bodies decode.

    said = explained(error, kind)
    matched = _PATH.match(said)
    what, path = (matched["what"], matched["path"] or "") if matched else (said, "")
    if unknown := _UNKNOWN_FIELD.match(what):
        name = _join(path, unknown[1])
        return bad_request(f"Unrecognized request argument supplied: {name}.", name, UNKNOWN)
    if missing := _MISSING_FIELD.match(what):
        name = _join(path, missing[1])
        return bad_request(f"You must provide the parameter {name}.", name, "missing_required_parameter")
    name = path.replace("[...]", "")
    return bad_request(f"Invalid value for {name or 'the body'}: {what}.", name or None, INVALID)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def check_chat(body: ChatRequest) -> list[Turn]:
    """The conversation, after everything that decoding could not check."""
    if body.max_tokens == 0:
        raise bad_request("max_tokens is 0: an answer needs at least 1.", "max_tokens", "invalid_value")
    if body.max_tokens and body.max_completion_tokens:
        raise bad_request("Give max_completion_tokens or max_tokens, not both.", "max_tokens", "invalid_value")
    if body.top_logprobs and not body.logprobs:
        raise bad_request("top_logprobs needs logprobs to be true.", "top_logprobs", "invalid_value")
    check_sampling(body)
    if body.logprobs:
        _check_logprobs(body.n or 1, body.top_logprobs or 0, token_limit(body), "top_logprobs")
    return turns_of(body.messages)


def check_completion(body: CompletionRequest) -> list[Prompt]:
    """The prompts, one or more, each a text or token ids, after everything that decoding could not check."""
    if body.max_tokens == 0 and not body.echo:
        raise bad_request(
            "max_tokens is 0: give at least 1, or echo with logprobs to score the prompt alone.",
            "max_tokens",
            "invalid_value",
        )
    _check_best_of(body)
    check_sampling(body)
    prompts = prompts_of(body.prompt, "prompt")
    if len(prompts) > MAX_PROMPTS:
        raise bad_request(
            f"prompt holds {len(prompts)} prompts; at most {MAX_PROMPTS} fit one request.", "prompt", "array_too_long"
        )
    for place, prompt in enumerate(prompts):
        if not prompt:
            raise bad_request("A prompt is empty: give some text.", f"prompt[{place}]" if place else "prompt", "empty")
    n = body.n or 1
    if body.echo:
        _check_echo(prompts, n)
    _check_logprobs(len(prompts) * (body.best_of or n), body.logprobs, token_limit(body), "logprobs")
    return prompts


def _check_logprobs(choices: int, logprobs: int | None, max_tokens: int | None, param: str) -> None:
    """Raises `ApiError` 400 if the log-probabilities of so many choices are too many; one choice may have as many as
    fit its context. `max_tokens`: of each choice, None for no limit."""
    tokens = UNSTATED_TOKENS if max_tokens is None else max_tokens
    if logprobs is not None and choices > 1 and choices * tokens * (1 + logprobs) > MAX_LOGPROBS:
        raise bad_request(
            f"{choices} choices of up to {tokens} tokens with {1 + logprobs} log-probabilities each are too many: an "
            f"answer of several choices may have {MAX_LOGPROBS}. Ask for fewer choices, tokens or log-probabilities.",
            param,
            "answer_too_large",
        )


def _check_echo(prompts: Sequence[Prompt], n: int) -> None:
    """Raises `ApiError` 400 if the repeated prompts are too long, each in each of its `n` choices."""
    size = n * sum(_TOKEN_BYTES * len(one) if isinstance(one, list) else num_bytes(one) for one in prompts)
    if size > MAX_ECHOED_BYTES:
        raise bad_request(
            f"echo repeats {size} bytes of prompts in {n * len(prompts)} choices; an answer may repeat "
            f"{MAX_ECHOED_BYTES}. Ask for fewer choices or shorter prompts.",
            "echo",
            "answer_too_large",
        )


def _check_best_of(body: CompletionRequest) -> None:
    wanted = body.n or 1
    if body.best_of is None or body.best_of == wanted:
        return
    if body.best_of < wanted:
        raise bad_request(
            f"best_of is {body.best_of}: of fewer than n = {wanted} choices no {wanted} can be returned.",
            "best_of",
            "invalid_value",
        )
    if body.stream:
        raise bad_request(
            "best_of above n cannot be streamed: the best choices are known once all have ended.",
            "best_of",
            "invalid_value",
        )


def prompts_of(prompt: str | list[str | int | list[int]], param: str) -> list[Prompt]:
    """The texts, or lists of token ids, that `param` gives, one or several."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise bad_request(f"{param} is empty: give at least one.", param, "empty_array")
    # Millions of token ids may be given, so they are looked at in one pass.
    kinds = set(map(type, prompt))
    if kinds == {int}:
        return [cast(list[int], prompt)]
    if kinds in ({str}, {list}):
        return cast(list[Prompt], prompt)
    raise bad_request(f"{param} mixes texts and token ids: give texts, token ids, or lists of one kind.", param)


def check_sampling(body: Sampling) -> None:
    """Checks common to both APIs."""
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options is only allowed when stream is true.", "stream_options", "invalid_value")
    for name in body.logit_bias or {}:
        if not name.isascii() or not name.isdigit() or len(name) > 9:
            raise bad_request(f"logit_bias maps token ids to biases; {name!r} is no token id.", "logit_bias")
    if body.min_tokens is not None and (limit := token_limit(body)) is not None and body.min_tokens > limit:
        raise bad_request(
            f"min_tokens {body.min_tokens} is above the token limit {limit}.", "min_tokens", "invalid_value"
        )


def refuse_given(body: msgspec.Struct, names: tuple[str, ...]) -> None:
    """Refuse by name every field that has a value and no machinery."""
    for name in names:
        if getattr(body, name) is not None:
            raise bad_request(f"Unsupported parameter {name}: leave it out.", name, "unsupported_parameter")


def token_limit(body: Sampling) -> int | None:
    """The limit on generated tokens, by either name; None (chat only) for as many as the context allows."""
    if isinstance(body, ChatRequest):
        return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    return COMPLETION_MAX_TOKENS if body.max_tokens is None else body.max_tokens


def priority_of(body: Sampling, slo: SloName | None = None) -> int:
    """The scheduling class: `priority`, else by `service_tier`, else that of the class of service asked for."""
    if body.priority is not None:
        return body.priority
    service_tier = body.service_tier if isinstance(body, ChatRequest) else None
    if service_tier is None:
        return slo_class(slo, 1).priority
    return _priority_of_tier(service_tier)


def _priority_of_tier(service_tier: str) -> int:
    if (priority := PRIORITY_OF_SERVICE_TIER.get(service_tier)) is None:
        allowed = ", ".join(PRIORITY_OF_SERVICE_TIER)
        raise bad_request(f"Invalid service_tier {service_tier!r}: allowed are {allowed}.", "service_tier")
    return priority


def served_tier(asked: str | None, priority: int) -> str | None:
    """What `service_tier` of an answer says: the class it was served in, which a key's ceiling may have lowered; None
    where the caller did not ask."""
    if asked is None or PRIORITY_OF_SERVICE_TIER.get(asked) == priority:
        return "default" if asked == "auto" else asked
    return SERVICE_TIERS[priority]


def _only(name: str, body: Sampling) -> tuple[Any]:
    return (getattr(body, name),)


class _Fields:
    """Fields of both APIs by name: called with a body, it returns those that are set. Most bodies set none."""

    def __init__(self, *names: str) -> None:
        self._of: dict[type[Sampling], tuple[list[str], Callable[[Sampling], Any], tuple[None, ...]]] = {}
        for api in (ChatRequest, CompletionRequest):
            known = [name for name in names if name in api.__struct_fields__]
            # With one name it returns no tuple.
            values_of = attrgetter(*known) if len(known) > 1 else partial(_only, known[0])
            self._of[api] = known, values_of, (None,) * len(known)

    def __call__(self, body: Sampling) -> dict[str, Any]:
        names, values_of, unset = self._of[ChatRequest if isinstance(body, ChatRequest) else CompletionRequest]
        values = values_of(body)
        if values == unset:
            return {}
        return {name: value for name, value in zip(names, values, strict=True) if value is not None}


_sampling_fields = _Fields(
    "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed",
    "min_tokens", "ignore_eos",
)  # fmt: skip
# What is not sent to a server elsewhere where it has its usual value, unless the caller said so.
_saying_fields = _Fields(*ALL_SAMPLING, "n", "top_logprobs", "tool_choice", "parallel_tool_calls")
_service_fields = _Fields(*SERVICE_FIELDS)


def sampling_params(body: Sampling, logprobs: int | None) -> SamplingParams:
    """The core's sampling parameters; what the caller left open takes the tier's default later (`unset_fields`)."""
    return SamplingParams(
        **_sampling_fields(body),
        top_k=max(body.top_k or 0, 0),  # -1 is vLLM's way to switch it off
        logit_bias={int(token): bias for token, bias in (body.logit_bias or {}).items()},
        stop_token_ids=tuple(body.stop_token_ids or ()),
        logprobs=logprobs,
        grammar=grammar_of(body.response_format if isinstance(body, ChatRequest) else None, body.structured_outputs),
    )


_defaults_of = attrgetter(*TIER_DEFAULTS)
_NO_DEFAULTS = (None,) * len(TIER_DEFAULTS)


def unset_fields(body: Sampling) -> tuple[str, ...]:
    """The sampling fields that the caller left to the tier."""
    values = _defaults_of(body)
    return (
        TIER_DEFAULTS
        if values == _NO_DEFAULTS
        else tuple([name for name, value in zip(TIER_DEFAULTS, values, strict=True) if value is None])
    )


def explicit_fields(body: Sampling) -> tuple[str, ...]:
    """The fields that the caller set and whose neutral value says something to a server elsewhere."""
    return tuple(_saying_fields(body))


def provider_fields(body: Sampling, ceiling: int = 0) -> dict[str, Any]:
    """The fields that mean something to a provider alone, as the caller set them. `ceiling`: the most urgent class that
    the caller's key may ask for, of a provider too."""
    passed = _service_fields(body)
    asked = passed.get("service_tier")
    if asked is None:
        return passed
    if _priority_of_tier(asked) < ceiling:
        return passed | {"service_tier": SERVICE_TIERS[ceiling]}
    if asked not in SERVICE_TIERS_ELSEWHERE:
        del passed["service_tier"]
    return passed


def stops_of(body: Sampling) -> tuple[str, ...]:
    """The stop strings as a tuple."""
    if body.stop is None:
        return ()
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
