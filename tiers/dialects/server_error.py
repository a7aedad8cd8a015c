"""What a server says went wrong, and when it may be asked again: OpenAI's error object and the many others."""

import ast
import re
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from html import unescape
from typing import Any

import msgspec

from inference_core.io.files import JSON_ERRORS
from tiers.dialects.event_stream import BOM, EventParser
from tiers.dialects.lenient_json import whole
from tiers.errors import TierError

MAX_RETRY_AFTER_SECONDS = 300.0
ENVELOPES = frozenset(
    ("error", "errors", "base_resp", "detail", "message", "fault", "exception", "details", "metadata", "headers")
)
"""Fields of a refusal in which its details are. Others may hold the request."""


class ErrorObject(msgspec.Struct):
    """The error object of OpenAI and of most compatible servers."""

    message: str = ""
    """What is shown."""
    type: str | None = None
    param: str | None = None
    code: str | int | None = None
    retry_after_seconds: float | None = None
    """As other servers say it in their body instead of a header."""
    own: str | None = None
    """The part of the message that is no echo of the request (`tiers.dialects.echoes`), once that is known."""

    @property
    def words(self) -> str:
        """What the message means is concluded from these."""
        return self.message if self.own is None else self.own


class ServerSaidError(TierError):
    """A failure that a server reports after it has answered with 200: `said`, in its words."""

    def __init__(self, said: ErrorObject) -> None:
        super().__init__(whole(said.message))
        self.said = said


_WITHIN = ("error", "errors", "base_resp", "detail", "message", "fault", "exception", "_embedded", "err", "response",
           "status")  # fmt: skip
"""What may hold the error proper: `base_resp` is MiniMax's, `fault` Apigee's, `response` Tencent's, `status` gRPC's,
lists are Google's, Cloudflare's and FastAPI's."""
_MOST_DEPTH = 8
# Names without regard to case. An explanation says more than what has the first names, so it is shown besides.
_MESSAGES = ("originalmessage", "message", "detail", "msg", "status_msg", "error_message", "error_msg",
             "errormessage", "error", "errmsg", "err_msg", "faultstring", "description", "reason", "title",
             "defaultmessage")  # fmt: skip
_EXPLANATIONS = ("error_description", "description", "details", "reason", "violations", "invalid-params",
                 "invalidparams", "fielderrors")  # fmt: skip
_MOST_EXPLAINED = 300
# Fields that say that what is no answer reports a failure.
_FAILURE_WORDS = ("error", "errors", "base_resp", "detail", "message", "fault", "exception", "msg", "status_msg",
                  "error_message", "Message", "error_msg", "errorMessage", "errmsg", "err_msg",
                  "faultstring")  # fmt: skip
_REPR = re.compile(r"(?:^|[-:] )(?=\[?\{['\"])")
_MOST_OF_REPR = 4096
_NO_REPR = (ValueError, SyntaxError, TypeError, AttributeError, LookupError, MemoryError, RecursionError)
_CODES = ("code", "status_code", "status", "error_code", "errorcode", "statuscode")
_KINDS = ("type", "error_type")


def parse_error(body: bytes) -> ErrorObject:
    """Return the error of a reply: OpenAI's envelope, an error object at any depth, or else the text itself."""
    error = _stated(body)
    return _repeated(error) or error


def _stated(body: bytes) -> ErrorObject:
    try:
        inner = msgspec.json.decode(_bare(body))
    except JSON_ERRORS:
        return ErrorObject(message=_text_of(body))
    seconds = _stated_wait(inner, _MOST_DEPTH)
    tables: list[dict[str, Any]] = []
    while isinstance(inner, list | dict) and inner:
        if isinstance(inner, list):
            inner = "; ".join(inner) if all(isinstance(text, str) for text in inner) else inner[0]
            continue
        # Gateways spell one name in several ways.
        table = {name.lower(): value for name, value in inner.items()}
        tables.insert(0, table)
        named = (table.get(name) for name in _WITHIN)
        within = next((envelope for envelope in named if envelope and isinstance(envelope, dict | list)), None)
        if within is None:
            break
        inner = within
    if not (tables and isinstance(inner, dict) and inner):
        tables.insert(0, {"message": str(inner)})
    proper = tables[0]
    message, param = _worded(tables, inner), proper.get("param")
    more, location = proper.get("metadata"), proper.get("loc", proper.get("field"))
    if isinstance(location, list | str) and location:
        param = location if isinstance(location, str) else ".".join(str(part) for part in location if part != "body")
        message = f"{message} ({param})"
    if isinstance(more, dict) and more.get("raw"):
        # OpenRouter's: the words of the provider behind it.
        message += f" ({more['raw']})"
    code = next((table[name] for table in tables for name in _CODES if isinstance(table.get(name), str | int)), None)
    kind = next((table[name] for table in tables for name in _KINDS if isinstance(table.get(name), str)), None)
    return ErrorObject(message, kind, param if isinstance(param, str) else None, code, seconds)


def _repeated(error: ErrorObject) -> ErrorObject | None:
    """Return the error that a message ends with as Python shows a dict: gateways write so what their client raised.
    What it leaves out is that of `error`. None for a message that is none of these."""
    match = _REPR.search(error.message)
    if match is None or len(error.message) > _MOST_OF_REPR:
        return None
    try:
        value = ast.literal_eval(error.message[match.end() :])
        table = value[0] if isinstance(value, list) else value
        if not ("error" in table or "error" in (table.get("object"), table.get("type"))):
            return None
        inner = _stated(msgspec.json.encode(table))
    except _NO_REPR:
        return None
    said = {name: value for name, value in msgspec.structs.asdict(inner).items() if value is not None}
    return msgspec.structs.replace(error, **said) if inner.message else None


def _bare(body: bytes) -> bytes:
    """Return the JSON of a body that begins with a byte order mark, or is a stream whose first event is the error."""
    body = body.removeprefix(BOM)
    if not body.startswith((b"event:", b"data:")):
        return body
    parser = EventParser()
    events = [*parser.feed(body), *parser.flush()]
    return events[0].data if events else body


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
        for element in node[:_MOST_DEPTH]:
            yield from _texts(element, depth - 1)
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
    page_text = hidden = ""
    for piece in text.split("<"):
        tag, _, said = piece.partition(">")
        name = tag.split(maxsplit=1)[0].lower() if tag.strip() else ""
        if hidden:
            hidden = "" if name == f"/{hidden}" else hidden
        elif name in ("script", "style"):
            hidden = name
        said = " ".join(unescape(said).split())
        if said and not hidden and said not in page_text:
            page_text += f" - {said}" if page_text else said
        if len(page_text) > _MOST_OF_PAGE:
            break
    return page_text[:_MOST_OF_PAGE] or text[:_MOST_OF_PAGE]


def _stated_wait(node: Any, depth: int) -> float | None:
    """Return the seconds that a field of an error's envelope gives until the next try; None without any. What else
    there is may repeat the request."""
    if isinstance(node, list) and depth:
        waits = (_stated_wait(element, depth - 1) for element in node[:_MOST_DEPTH])
        return next((seconds for seconds in waits if seconds is not None), None)
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


def is_filtered(error: ErrorObject) -> bool:
    """Whether an error says that a filter has stopped the prompt or the answer. 1026, 1027: MiniMax's; 1301:
    Zhipu's."""
    return any(_FILTERED.search(str(said)) is not None for said in (error.type, error.code))


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
        stated, unit = next(((value, unit) for (_, retry_after, unit), value in named if retry_after), ("", ""))
        if unit == "-ms":
            return _seconds_until(stated, is_milliseconds=True)
    # Of two headers with one name the first counts.
    return _seconds_until(stated.partition(",")[0] if stated[:1].isdigit() else stated)


def parse_reset(headers: Mapping[str, str]) -> float | None:
    """Return the seconds until a limit is lifted, as headers of rate limits say it (`x-ratelimit-reset-requests`,
    `anthropic-ratelimit-tokens-reset`, `ratelimit-reset`, …): of those limits of which nothing remains, or that do not
    say what remains. None without any."""
    waits: list[float] = []
    for name, value in headers.items():
        name = name.lower()
        if "ratelimit" in name.replace("-", "") and "reset" in name:
            remaining = headers.get(name.replace("reset", "remaining"), "0").strip()
            if remaining in ("", "0") and (seconds := _seconds_until(value.strip())):
                waits.append(seconds)
        elif name == "ratelimit":
            waits += [float(seconds) for seconds in _LIMITED.findall(value)]
    return min(max(waits), MAX_RETRY_AFTER_SECONDS) if waits else None


# The field of the draft "RateLimit header fields for HTTP", in its two forms.
_LIMITED = re.compile(r"\b(?:remaining|r)=0\b[;,] ?(?:reset|t)=(\d{1,9})\b")
_LEAST_TIME = 1_000_000_000.0
"""Seconds since 1970: more is no wait but a time."""


def _seconds_until(stated: str, *, is_milliseconds: bool = False) -> float | None:
    """Return the seconds that a text says: a duration, a number, or a time in any usual form; None for no such text."""
    try:
        if stated and (duration := _DURATION.fullmatch(stated)) is not None:
            return _seconds_of(duration)
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
    match = WAIT_IN_WORDS.search(message)
    return None if match is None or not any(match.groups()) else _seconds_of(match)


def _seconds_of(duration: re.Match[str]) -> float:
    hours, minutes, seconds, milliseconds = (float(part or 0) for part in duration.groups())
    return min(hours * 3600 + minutes * 60 + seconds + milliseconds / 1000, MAX_RETRY_AFTER_SECONDS)


_COUNT = r"(\d{1,9}(?:\.\d{1,9})?)"
_SPAN = (
    rf"(?:{_COUNT} ?h(?:ours?|rs?)?,? ?)?(?:{_COUNT} ?m(?!s|illi)(?:in\w*)?,? ?)?(?:{_COUNT} ?s(?:ec\w*)?)?"
    rf"(?:{_COUNT} ?(?:ms|milli\w*))?"
)
_DURATION = re.compile(_SPAN)
WAIT_IN_WORDS = re.compile(
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
