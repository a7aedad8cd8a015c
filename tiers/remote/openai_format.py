"""OpenAI's chat and completion wire format on the client side: request bodies out, errors and token counts in.

Servers have several names for the counts; all are read.
"""

import math
import re
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from html import unescape
from typing import Any

import msgspec

from inference_core.io.files import JSON_ERRORS
from tiers.catalog.tier_spec import RemoteSpec
from tiers.chat_state import PART_TYPES
from tiers.conversation import BREAKPOINT, Content, Text, Tool, Turn
from tiers.remote.refusals import ENVELOPES
from tiers.remote.request_fields import ALL_SAMPLING, NEUTRAL, SERVICE_FIELDS, sampling_of
from tiers.remote.usage_counter import Tally
from tiers.tier import FinishReason, GenerationRequest, Usage

MAX_RETRY_AFTER_SECONDS = 300.0
# Kinds of servers that render the model's own chat template, and take its variables.
TEMPLATED = ("vllm", "sglang", "llama-server")
SEEN = "OK."
"""What an assistant says between a result and the user, where a server wants that."""
# Stands for the media of a result.
MEDIA_FOLLOW = "(The image of this result follows in the next message.)"
# All that text completions have of the fields that mean something to a provider alone.
_OF_COMPLETIONS = ("user",)


class WireError(msgspec.Struct):
    """The error object of OpenAI and of most compatible servers. `retry_after_seconds`: as other servers say it in
    their body instead of a header. `message`: what is shown. `own`: of it what is no echo of the request
    (`tiers.remote.echoes`), once that is known."""

    message: str = ""
    type: str | None = None
    param: str | None = None
    code: str | int | None = None
    retry_after_seconds: float | None = None
    own: str | None = None

    @property
    def words(self) -> str:
        """What the message means is concluded from these."""
        return self.message if self.own is None else self.own


def request_body(
    remote: RemoteSpec, request: GenerationRequest, max_tokens: int | None, *, streamed: bool = True
) -> dict[str, Any]:
    """Return the JSON body of a call: what caller or catalogue set, the model, and what reading the answer needs."""
    sampling, given = request.sampling, request.given
    is_chat = request.messages is not None
    body: dict[str, Any] = {"model": remote.model, "stream": streamed}
    if max_tokens is not None:
        body[remote.max_tokens_field if is_chat else "max_tokens"] = max_tokens
    if request.messages is not None:
        templated = remote.kind in TEMPLATED
        body["messages"] = [_wire_message(message) for message in request.messages]
        if templated and request.template_variables:
            body["chat_template_kwargs"] = request.template_variables
    else:
        body["prompt"] = request.prompt
    if streamed and remote.stream_usage:
        body["stream_options"] = {"include_usage": True}
    if given or sampling_of(sampling) != NEUTRAL:
        triples = zip(ALL_SAMPLING, sampling_of(sampling), NEUTRAL, strict=True)
        body |= {name: value for name, value, neutral in triples if value != neutral or name in given}
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if request.stop:
        body["stop"] = list(request.stop)
    if request.include_stop:
        body["include_stop_str_in_output"] = True
    if request.n != 1 or "n" in given:
        body["n"] = request.n
    if is_chat and request.reasoning_effort is not None:
        body["reasoning_effort"] = request.reasoning_effort
    if is_chat and request.reasoning_budget is not None:
        body["thinking_token_budget"] = request.reasoning_budget
    body |= _constraints(request)
    if sampling.logprobs is not None:
        body["logprobs"] = is_chat or sampling.logprobs
        if is_chat and (sampling.logprobs or "top_logprobs" in given):
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


def _wire_message(message: Turn) -> dict[str, Any]:
    wire: dict[str, Any] = {"role": message.role, "content": message.text}
    if parts := message.parts:
        wire["content"] = [part_of(block) for block in parts]
    if message.name is not None:
        wire["name"] = message.name
    if message.call_id is not None:
        wire["tool_call_id"] = message.call_id
    if message.calls:
        wire["content"] = wire["content"] or None
        wire["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    return wire


def with_text_results(messages: list[dict[str, Any]], *, answered: bool) -> list[dict[str, Any]]:
    """Return the conversation with results of tools as texts, which is all that the API has of them; their media are
    with what the user says next, and after a word of the assistant where results are to be `answered`."""
    found: list[dict[str, Any]] = []
    shown: list[Any] = []
    for message in [*messages, None]:
        if shown and (message is None or message["role"] != "tool"):
            said = message["content"] if message is not None and message["role"] == "user" else []
            shown += [{"type": "text", "text": said}] if isinstance(said, str) else said
            if answered and found[-1]["role"] == "tool":
                found.append({"role": "assistant", "content": SEEN})
            found.append({"role": "user", "content": shown})
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
            found.append(message)
    return found


def _constraints(request: GenerationRequest) -> dict[str, Any]:
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
        body["tools"] = [_wire_tool(tool) for tool in tooling.tools]
        if tooling.choice == "named":
            body["tool_choice"] = {"type": "function", "function": {"name": tooling.name}}
        elif tooling.choice != "auto" or "tool_choice" in request.given:
            body["tool_choice"] = tooling.choice
        if "parallel_tool_calls" in request.given or not (tooling.parallel or tooling.choice == "named"):
            body["parallel_tool_calls"] = tooling.parallel
    return body


def _wire_tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.parameters is not None:
        function["parameters"] = tool.parameters
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


_WITHIN = ("error", "errors", "base_resp", "detail", "message", "fault", "exception", "_embedded")
"""What may hold the error proper: `base_resp` is MiniMax's, `fault` Apigee's, lists are Google's, Cloudflare's and
FastAPI's."""
_MOST_DEPTH = 8
# Names without regard to case. An explanation says more than what has the first names, so it is shown besides.
_MESSAGES = ("message", "detail", "msg", "status_msg", "error_message", "error_msg", "errormessage", "error",
             "errmsg", "err_msg", "faultstring", "description", "reason", "title", "defaultmessage")  # fmt: skip
_EXPLANATIONS = ("error_description", "description", "details", "reason", "violations", "invalid-params",
                 "invalidparams", "fielderrors")  # fmt: skip
_MOST_EXPLAINED = 300
# Fields that say that what is no answer reports a failure.
_FAILURE_WORDS = ("error", "errors", "base_resp", "detail", "message", "fault", "exception", "msg", "status_msg",
                  "error_message", "Message", "error_msg", "errorMessage", "errmsg", "err_msg",
                  "faultstring")  # fmt: skip
_CODES = ("code", "status_code", "status", "error_code", "errorcode", "statuscode")
_KINDS = ("type", "error_type")


def parse_error(body: bytes) -> WireError:
    """Return the error of a reply: OpenAI's envelope, an error object at any depth, or else the text itself."""
    try:
        inner = msgspec.json.decode(body)
    except JSON_ERRORS:
        return WireError(message=_text_of(body))
    seconds = _stated_wait(inner, _MOST_DEPTH)
    tables: list[dict[str, Any]] = []
    while isinstance(inner, list | dict) and inner:
        if isinstance(inner, list):
            inner = "; ".join(inner) if all(isinstance(one, str) for one in inner) else inner[0]
            continue
        # Gateways spell one name in several ways.
        table = {name.lower(): value for name, value in inner.items()}
        tables.insert(0, table)
        named = (table.get(name) for name in _WITHIN)
        within = next((one for one in named if one and isinstance(one, dict | list)), None)
        if within is None:
            break
        inner = within
    if not (tables and isinstance(inner, dict) and inner):
        tables.insert(0, {"message": str(inner)})
    proper = tables[0]
    message, param = _worded(tables, inner), proper.get("param")
    more, place = proper.get("metadata"), proper.get("loc", proper.get("field"))
    if isinstance(place, list | str) and place:
        param = place if isinstance(place, str) else ".".join(str(part) for part in place if part != "body")
        message = f"{message} ({param})"
    if isinstance(more, dict) and more.get("raw"):
        # OpenRouter's: the words of the provider behind it.
        message += f" ({more['raw']})"
    code = next((one[name] for one in tables for name in _CODES if isinstance(one.get(name), str | int)), None)
    kind = next((one[name] for one in tables for name in _KINDS if isinstance(one.get(name), str)), None)
    return WireError(message, kind, param if isinstance(param, str) else None, code, seconds)


def _worded(tables: list[dict[str, Any]], proper: Any) -> str:
    """Return the message of the first of these tables that has one, the innermost first, with its explanation."""
    for table in tables:
        message = next((said for name in _MESSAGES if isinstance(said := table.get(name), str) and said), None)
        if message is None:
            continue
        more = [said for name in _EXPLANATIONS for said in _texts(table.get(name), _MOST_DEPTH)]
        if table is not tables[0]:
            more.append(msgspec.json.encode(proper).decode())
        added = "; ".join(said for said in dict.fromkeys(more) if said not in message)[:_MOST_EXPLAINED]
        return f"{message} ({added})" if added else message
    return str(proper)


def _texts(node: Any, depth: int) -> Iterator[str]:
    """Yield a text, or what is words in a list of errors."""
    if isinstance(node, str):
        yield from (node,) if node else ()
    elif depth and isinstance(node, list):
        for one in node[:_MOST_DEPTH]:
            yield from _texts(one, depth - 1)
    elif depth and isinstance(node, dict):
        field = node.get("field", node.get("name"))
        for name, value in node.items():
            if isinstance(value, list | dict):
                yield from _texts(value, depth - 1)
            elif name.lower() in _MESSAGES and isinstance(value, str):
                yield f"{field}: {value}" if isinstance(field, str) else value


def _text_of(body: bytes) -> str:
    """Return what is no JSON as a text: of a page or of XML what stands between the tags, each text once."""
    text = body.decode("utf-8", errors="replace").strip()
    if not text.startswith("<"):
        return text[:_MOST_TEXT].strip()
    found = hidden = ""
    for piece in text.split("<"):
        tag, _, said = piece.partition(">")
        name = tag.split(maxsplit=1)[0].lower() if tag.strip() else ""
        if hidden:
            hidden = "" if name == f"/{hidden}" else hidden
        elif name in ("script", "style"):
            hidden = name
        said = " ".join(unescape(said).split())
        if said and not hidden and said not in found:
            found += f" - {said}" if found else said
        if len(found) > _MOST_OF_PAGE:
            break
    return found[:_MOST_OF_PAGE] or text[:_MOST_OF_PAGE]


def _stated_wait(node: Any, depth: int) -> float | None:
    """Return the seconds that a field of an error's envelope gives until the next try; None without any. What else
    there is may repeat the request."""
    if isinstance(node, list):
        found = [_stated_wait(one, depth) for one in node[:_MOST_DEPTH]]
        return next((seconds for seconds in found if seconds is not None), None)
    if not isinstance(node, dict) or not depth:
        return None
    for name, value in node.items():
        if isinstance(value, str | int | float) and (named := _WAIT.fullmatch(name)) is not None:
            seconds = _seconds_until(str(value)[:40], is_milliseconds="m" in (named[1] or "").lower())
        else:
            seconds = _stated_wait(value, depth - 1) if name in ENVELOPES else None
        if seconds is not None:
            return seconds
    return None


def is_failure(value: Any) -> bool:
    """Whether plain JSON that is no answer reports a failure: `choices` and what stands for it are not there."""
    if not isinstance(value, dict):
        return False
    is_named = "error" in (value.get("object"), value.get("type"))
    return is_named or any(value.get(word) and isinstance(value[word], str | list | dict) for word in _FAILURE_WORDS)


_FILTERED = re.compile(
    r"content.?(?:filter|polic|moderat)|data.?inspection|new_sensitive|\bsensitive|prohibited.?content|responsible.?ai"
    r"|^1(?:02[67]|301)$",
    re.IGNORECASE,
)


def is_filtered(error: WireError) -> bool:
    """Whether an error says that a filter has stopped the prompt or the answer. 1026, 1027: MiniMax's; 1301:
    Zhipu's."""
    return any(_FILTERED.search(str(said)) is not None for said in (error.type, error.code))


# Reasons that an answer ended by the words in them, the first that fits; every further one is a stop. Sources: the
# references of DeepSeek, Z.ai, Gemini, Cohere, Bedrock and Anthropic, and the sources of vLLM and SGLang; read 2026-11.
_REASON_WORDS: tuple[tuple[FinishReason, re.Pattern[str]], ...] = (
    (
        "error",
        re.compile(
            "malformed|missing_thought|function_call_filter|unexpected_tool|too_many_tool|abort|cancel|insufficient|error(?!_toxic)|"
            "unavailable|fail|timeout|overload|rate_limit"
        ),
    ),
    (
        "content_filter",
        re.compile(
            "filter|safe|sensitive|recitation|prohibited|block|refus|guardrail|spii|toxic|moderat|violat|policy|flag|harm|"
            "^language$|armor"
        ),
    ),
    ("length", re.compile("length|max|limit|context_window|truncat|incomplete")),
    ("tool_calls", re.compile("tool|function")),
)


@lru_cache(256)
def finish_of(given: str) -> FinishReason:
    """Return why an answer ended, by the name that its server has for it."""
    said = given.lower()
    return next((reason for reason, words in _REASON_WORDS if words.search(said)), "stop")


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a `Retry-After` header, at most `MAX_RETRY_AFTER_SECONDS`; None without one.

    Seconds or a date (RFC 9110, 10.2.3), a duration (`1m30s`), a Unix time, or the milliseconds of OpenAI's
    `retry-after-ms`. An invalid value is ignored.
    """
    stated = headers.get("retry-after", "").strip()
    if not (stated and _DURATION.fullmatch(stated)) and (exact := headers.get("retry-after-ms")):
        return _seconds_until(exact, is_milliseconds=True)
    if not stated:
        named = ((name.lower().partition("retry-after"), value) for name, value in headers.items())
        stated, unit = next(((value, unit) for (_, found, unit), value in named if found), ("", ""))
        if unit == "-ms":
            return _seconds_until(stated, is_milliseconds=True)
    # Of two headers with one name the first counts.
    return _seconds_until(stated.partition(",")[0] if stated[:1].isdigit() else stated)


def parse_reset(headers: Mapping[str, str]) -> float | None:
    """Return the seconds until a limit is lifted, as headers of rate limits say it (`x-ratelimit-reset-requests`,
    `anthropic-ratelimit-tokens-reset`, `ratelimit-reset`, …): of those limits of which nothing remains, or that do not
    say what remains. None without any."""
    found: list[float] = []
    for name, value in headers.items():
        name = name.lower()
        if "ratelimit" in name.replace("-", "") and "reset" in name:
            remaining = headers.get(name.replace("reset", "remaining"), "0").strip()
            if remaining in ("", "0") and (seconds := _seconds_until(value.strip())):
                found.append(seconds)
        elif name == "ratelimit":
            found += [float(seconds) for seconds in _LIMITED.findall(value)]
    return min(max(found), MAX_RETRY_AFTER_SECONDS) if found else None


# The field of the draft "RateLimit header fields for HTTP", in its two forms.
_LIMITED = re.compile(r"\b(?:remaining|r)=0\b[;,] ?(?:reset|t)=(\d{1,9})\b")
_LEAST_TIME = 1_000_000_000.0
"""Seconds since 1970: more is no wait but a time."""


def _seconds_until(stated: str, *, is_milliseconds: bool = False) -> float | None:
    """Return the seconds that a text says: a duration, a number, or a time in any usual form; None for no such text."""
    try:
        if stated and (found := _DURATION.fullmatch(stated)) is not None:
            return _seconds_of(found)
        if not stated.replace(".", "", 1).isdigit():
            is_iso = stated[:4].isdigit() and stated[4:5] == "-"
            when = datetime.fromisoformat(stated) if is_iso else parsedate_to_datetime(stated)
            stated = str(max(when.timestamp(), _LEAST_TIME))
        return _bounded(stated, is_milliseconds=is_milliseconds)
    except (ValueError, OverflowError, TypeError):
        return None


def _bounded(stated: str, *, is_milliseconds: bool) -> float:
    """Return the seconds from now, at most `MAX_RETRY_AFTER_SECONDS`. Raises ValueError."""
    number = float(stated)
    if number >= _LEAST_TIME * 1000:
        number, is_milliseconds = number / 1000, False
    if number >= _LEAST_TIME:
        number -= time.time()
    return min(max(number / 1000 if is_milliseconds else number, 0.0), MAX_RETRY_AFTER_SECONDS)


def wait_in(message: str) -> float | None:
    """Return the seconds after which an error's message asks to try again, at most `MAX_RETRY_AFTER_SECONDS`."""
    found = _AGAIN.search(message)
    return None if found is None or not any(found.groups()) else _seconds_of(found)


def _seconds_of(duration: re.Match[str]) -> float:
    hours, minutes, seconds, milliseconds = (float(one or 0) for one in duration.groups())
    return min(hours * 3600 + minutes * 60 + seconds + milliseconds / 1000, MAX_RETRY_AFTER_SECONDS)


_COUNT = r"(\d{1,9}(?:\.\d{1,9})?)"
_SPAN = (
    rf"(?:{_COUNT} ?h(?:ours?|rs?)?,? ?)?(?:{_COUNT} ?m(?!s|illi)(?:in\w*)?,? ?)?(?:{_COUNT} ?s(?:ec\w*)?)?"
    rf"(?:{_COUNT} ?(?:ms|milli\w*))?"
)
_DURATION = re.compile(_SPAN)
_AGAIN = re.compile(
    r"(?:try(?:ing)? again|retry(?:ing)?|wait|resets?|available(?: again)?) "
    rf"(?:(?:in|after|for|at least|about) ){{0,2}}(?=\d){_SPAN}",
    re.IGNORECASE,
)
_WAIT = re.compile(
    r"(?:retry_?(?:after|delay)|resets?_?(?:in|at|after|time)|estimated_time|x-ratelimit-reset(?:-after)?)"
    r"(?:_?(s|sec|seconds|ms|millis|milliseconds))?",
    re.IGNORECASE,
)
_MOST_TEXT, _MOST_OF_PAGE = 500, 300
"""Characters that are read of what is no JSON."""


class _Written(msgspec.Struct):
    """What Anthropic's models have written to the cache for an hour."""

    ephemeral_1h_input_tokens: int | None = None


class _PromptDetails(msgspec.Struct):
    """`cache_write_tokens`: OpenRouter's name, `cache_creation_tokens`: LiteLLM's."""

    cached_tokens: int | None = None
    audio_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_creation_tokens: int | None = None
    cache_creation_token_details: _Written | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None
    audio_tokens: int | None = None
    image_tokens: int | None = None


class _CostDetails(msgspec.Struct):
    upstream_inference_cost: float | None = None


class _Cost(msgspec.Struct):
    total_cost: float | None = None
    total: float | None = None


_NOTHING_USED = Usage()
TICKS = 10**10
"""Of xAI's, in a US dollar."""


class ChatUsage(msgspec.Struct):
    """`total_tokens` is read for xAI, which counts reasoning there and not in `completion_tokens`.

    Cached tokens of the prompt: `cached_tokens` (Moonshot), `num_cached_tokens`, DeepSeek's hits, or Anthropic's names
    as gateways pass them on, whose prompt may be without them. `cost`: what OpenRouter charges, in US dollars; of a key
    of one's own (`is_byok`) the provider's own cost comes on top. Perplexity gives a sum in an object, DeepInfra
    `estimated_cost`, and xAI ten billionths of a dollar.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _PromptDetails | None = None
    cached_tokens: int | None = None
    num_cached_tokens: int | None = None
    prompt_cache_hit_tokens: int | None = None
    prompt_cache_miss_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens_details: _CompletionDetails | None = None
    cache_creation: _Written | None = None
    cost: float | _Cost | None = None
    total_cost: float | None = None
    estimated_cost: float | None = None
    cost_in_usd_ticks: int | None = None
    is_byok: bool | None = None
    cost_details: _CostDetails | None = None
    num_sources_used: int | None = None

    def report(self, tally: Tally) -> None:
        """Note the counts. What is left out here was counted before, or is not counted at all."""
        known = tally.claimed
        if known is not None and not (self.prompt_tokens or self.completion_tokens or self.input_tokens or self.cost):
            # Zeros after the counts.
            return
        cached, written = self._cached(), self._written()
        prompt, completion = self._prompt((cached or 0) + (written or 0)), self.completion_tokens
        if completion is None or self.total_tokens != completion + (self.prompt_tokens or 0):
            completion = self._completion(prompt)
        if completion is None:
            # The text is estimated until its tokens are counted.
            if prompt is not None and known is None:
                tally.read_prompt(prompt)
            return
        read = self.prompt_tokens_details or self.input_tokens_details
        details = self.completion_tokens_details or self.output_tokens_details
        if read is not None or details is not None or self.num_sources_used:
            self._report_extras(read, details, tally)
        reasoning = None if details is None else details.reasoning_tokens
        before = known or _NOTHING_USED
        if prompt is None:
            prompt = tally.prompt_tokens if known is None else known.prompt_tokens
        tally.report(
            Usage(
                prompt_tokens=prompt,
                completion_tokens=completion,
                cached_tokens=before.cached_tokens if cached is None else cached,
                cache_write_tokens=before.cache_write_tokens if written is None else written,
                cache_write_1h_tokens=self._written_for_an_hour() or before.cache_write_1h_tokens,
                reasoning_tokens=before.reasoning_tokens if reasoning is None else reasoning,
                cost_usd=self._cost() or before.cost_usd,
            )
        )

    def _report_extras(self, read: _PromptDetails | None, details: _CompletionDetails | None, tally: Tally) -> None:
        found = {"num_sources_used": self.num_sources_used}
        if read is not None:
            found["audio_prompt_tokens"] = read.audio_tokens
        if details is not None:
            found |= {"audio_completion_tokens": details.audio_tokens, "image_completion_tokens": details.image_tokens}
        tally.note_extras(found)

    def _prompt(self, apart: int) -> int | None:
        stated = self.input_tokens if self.prompt_tokens is None else self.prompt_tokens
        if stated is None and self.prompt_cache_hit_tokens is not None:
            return self.prompt_cache_hit_tokens + (self.prompt_cache_miss_tokens or 0)
        # The cache has more than all of the prompt: then it is counted without that.
        return stated + apart if stated is not None and apart > stated else stated

    def _completion(self, prompt: int | None) -> int | None:
        stated = self.output_tokens if self.completion_tokens is None else self.completion_tokens
        if self.total_tokens is None or self.prompt_tokens is None or prompt is None:
            return stated
        return max(stated or 0, self.total_tokens - prompt)

    def _cached(self) -> int | None:
        details = self.prompt_tokens_details or self.input_tokens_details
        if details is not None and (found := details.cached_tokens or details.cache_read_tokens):
            return found
        named = self.cached_tokens or self.prompt_cache_hit_tokens
        named = named or self.cache_read_input_tokens or self.num_cached_tokens
        return named or (None if details is None else details.cached_tokens)

    def _written(self) -> int | None:
        details = self.prompt_tokens_details or self.input_tokens_details
        if details is None:
            return self.cache_creation_input_tokens
        return details.cache_write_tokens or details.cache_creation_tokens or self.cache_creation_input_tokens

    def _written_for_an_hour(self) -> int | None:
        """By Anthropic's name or LiteLLM's."""
        details = self.prompt_tokens_details or self.input_tokens_details
        told = self.cache_creation or (details and details.cache_creation_token_details)
        return (told and told.ephemeral_1h_input_tokens) or None

    def _cost(self) -> float:
        """US dollars; 0 where the server does not tell, or nothing that can be."""
        cost: Any = self.cost.total_cost or self.cost.total if isinstance(self.cost, _Cost) else self.cost
        cost = cost or self.total_cost or self.estimated_cost or (self.cost_in_usd_ticks or 0) / TICKS
        if self.is_byok and self.cost_details is not None:
            cost += self.cost_details.upstream_inference_cost or 0.0
        return cost if math.isfinite(cost) and cost > 0 else 0.0
