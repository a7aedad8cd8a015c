"""Which parameters a server refuses as such: from the wordings of its 400s and 422s, as providers write them.

What was refused is left out of further requests, or sent by another name.
"""

import re
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import msgspec

from inference_core.io.files import JSON_ERRORS
from tiers.remote.request_fields import ALL_SAMPLING, BUDGET, SERVICE_FIELDS, TUNING, VARIABLES

STREAM_OPTIONS, EDITS, FORMAT = "stream_options", "context_management", "response_format"
LEFT_OUT = frozenset(
    {*ALL_SAMPLING, "logit_bias", "reasoning_effort", "parallel_tool_calls", STREAM_OPTIONS, EDITS, VARIABLES}
    | {*SERVICE_FIELDS, *TUNING}
) - {"min_tokens", "ignore_eos", "stop_token_ids", "safety_identifier"}
"""Parameters that an answer can do without. Limits, tools, safety and what was said are not among them: a
server that refuses these refuses the request, or says how it wants them (`tiers.remote.lessons`). A server that does
not know `store` stores nothing for it, with the field or without."""
RENAMED = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
"""Limits are never left out: they have another name."""
_CODES = ("unsupported_parameter", "unknown_parameter", "unrecognized_parameter")
# LM Studio's of any JSON object, which a schema says as well.
_NO_OBJECT = re.compile(r"response_format\.type\W+must be \W?json_schema", re.IGNORECASE)
_ANY_OBJECT = msgspec.Raw(b'{"type":"json_schema","json_schema":{"name":"answer","schema":{"type":"object"}}}')
# Other names of the same: Anthropic's, Gemini's and Bedrock's, in lower case with underlines.
_SAME = {
    "effort": "reasoning_effort",
    BUDGET: "reasoning_effort",
    "reasoning": "reasoning_effort",
    "include_usage": STREAM_OPTIONS,
}

_NAME = r"[`'\"]?(?P<name>\b[A-Za-z_][\w.]{0,63})[`'\"]?"
_END = r"(?=\s*(?:$|[.,;:!)]|(?:field|parameter|param|argument|with|for|on|in|by)\b))"
# What is refused is a value, so that another one is taken.
_VALUE = re.compile(
    r"supported values|must be|may only be|should be|range|between|less than|greater than|at most|at least|"
    r"invalid value|is not one of|too (?:long|many|large|small|big|high|low)|out of range|(?:above|below|beyond) the|"
    r"exceed|longer than|more than",
    re.IGNORECASE,
)
_VALUE_CODES = re.compile(r"invalid_(?:value|type)|_(?:above|below)_")
_WORDINGS = [
    re.compile(wording, re.IGNORECASE)
    for wording in (
        # OpenAI, Azure: https://platform.openai.com/docs/guides/error-codes
        rf"unsupported parameter:? {_NAME}",
        rf"unknown parameter:? {_NAME}",
        r"\b(?P<name>temperature|top_?p|(?:presence|frequency)_?penalty)\W? does not support \S{1,32} with this model",
        r"unrecognized request arguments? supplied: (?P<names>[\w., ]{1,200})",
        # Anthropic: https://platform.claude.com/docs/en/api/errors
        rf"{_NAME} is deprecated",
        rf"{_NAME}: extra inputs are not permitted",
        rf" and {_NAME} cannot both be (?:specified|set)",
        # Gemini: https://ai.google.dev/gemini-api/docs/troubleshooting
        rf"unknown name {_NAME}",
        # Bedrock: https://docs.aws.amazon.com/bedrock/latest/userguide/troubleshooting-api-error-codes.html
        rf"extraneous key \[{_NAME}\] is not permitted",
        # xAI: https://docs.x.ai/docs/guides/reasoning
        rf"not supported (?:on|by|for|with) this model: {_NAME}",
        # Groq: https://console.groq.com/docs/errors
        rf"property {_NAME} is unsupported",
        # Servers written in Rust, TGI among them
        rf"unknown field {_NAME}",
        # vLLM, SGLang, Fireworks, Together and others
        rf"{_NAME}(?: (?:parameter|field|argument|option))? (?:is|are) (?:currently )?"
        r"(?:not (?:supported|allowed|permitted|available|enabled)|unsupported)(?! to\b)",
        rf"does(?:n't| not) (?:support|allow|accept) (?:the )?(?:use of )?(?:parameters?:? |field )?{_NAME}{_END}",
        rf"unexpected (?:keyword )?(?:argument|field):? {_NAME}",
        # Moonshot: https://github.com/logancyang/obsidian-copilot/issues/2959
        rf"invalid {_NAME}: only \S{{1,8}} is allowed for this model",
        rf"extra inputs are not permitted, field: {_NAME}",
        rf"additional properties are not allowed \({_NAME}",
    )
]
# Anthropic's, which servers in front of it pass on.
_WHILE_THINKING = re.compile(rf"{_NAME} (?:may only|must) be .{{0,60}}when thinking is enabled", re.IGNORECASE)
_PENALTIES = re.compile(r"penalty is not enabled for", re.IGNORECASE)
# A list of Pydantic's errors, written by Python into a text.
_LOC = re.compile(
    r"'type': '(?:extra_forbidden|value_error\.extra)', 'loc': [(\[]'body', '(?P<name>\w+)'[,)\]]", re.IGNORECASE
)
_MOST_BYTES, _MOST_CHARS = 64 * 1024, 4000
_MOST_DEPTH = 6
ENVELOPES = frozenset(
    ("error", "errors", "base_resp", "detail", "message", "fault", "exception", "details", "metadata", "headers")
)
"""Fields of a refusal in which its details are. Others may hold the request."""


def refused_parameters(body: bytes, message: str, param: str | None, code: str | int | None) -> frozenset[str]:
    """Return the parameters that a refusal with this `body` names as such, by the caller's names: unsupported,
    deprecated or not allowed, whatever their value; only those of `LEFT_OUT` and `RENAMED`. `message`, `param`, `code`:
    what was read of it."""
    message = message[:_MOST_CHARS]
    names = {*_pydantic_names(body), *(match["name"] for match in _LOC.finditer(message))}
    is_value = _VALUE.search(message) is not None or _VALUE_CODES.search(str(code)) is not None
    if param is not None and code in _CODES:
        names.add(param)
    names |= {match["name"] for match in _WHILE_THINKING.finditer(message)}
    if not is_value:
        for wording in _WORDINGS:
            for match in wording.finditer(message):
                found = match.groupdict()
                names |= set(re.split(r"[,\s]+", found["names"])) if found.get("names") else {found["name"]}
        if _PENALTIES.search(message):
            names |= {"presence_penalty", "frequency_penalty"}
    known = {_own_name(name) for name in names} & (LEFT_OUT | RENAMED.keys())
    return frozenset(known | {FORMAT} if _NO_OBJECT.search(message) else known)


def _own_name(name: str) -> str:
    last = name.strip("`'\". ").rpartition(".")[2]
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", last).lower()
    return _SAME.get(snake, snake)


def _pydantic_names(body: bytes) -> Iterator[str]:
    """The names of fields that Pydantic does not permit: `{"type": "extra_forbidden", "loc": ["body", NAME]}`."""
    if b'"loc"' not in body or len(body) > _MOST_BYTES:
        return
    try:
        said = msgspec.json.decode(body)
    except JSON_ERRORS:
        return
    yield from _of_errors(said, _MOST_DEPTH)


def _of_errors(said: Any, depth: int) -> Iterator[str]:
    if not depth:
        return
    if isinstance(said, list):
        for one in said:
            yield from _of_errors(one, depth - 1)
        return
    if not isinstance(said, dict):
        return
    loc = said.get("loc")
    if isinstance(loc, list) and str(said.get("type")).lower() in ("extra_forbidden", "value_error.extra"):
        path = [part for part in loc if part != "body"]
        if len(path) == 1 and isinstance(path[0], str):
            yield path[0]
        return
    for name in ENVELOPES & said.keys():
        # Elsewhere may be what was sent.
        yield from _of_errors(said[name], depth - 1)


MOST = 1000
"""Places that are known at a time."""
SECONDS = 86_400.0
"""For how long a refusal is remembered."""
NOTHING: frozenset[str] = frozenset()
MOST_NAMES, ENOUGH = 256, 2
"""Names that are known of a place, and tenants that have to know one until all do."""


class Place(NamedTuple):
    """Where something was refused: a tier, the address of its server, the API by which it was asked, and the model."""

    tier: str
    url: str
    api: str
    model: str


class LearnedRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """`parameters` that the server refuses; `until`: when that is forgotten, seconds since 1970. `tenants`: of how many
    each was refused some of them alone, which hold for it; 0: they hold for all."""

    tier: str
    url: str
    api: str
    model: str
    parameters: list[str]
    until: float
    tenants: int = 0


Said = tuple[str, str]
"""What was refused, and the status and the code by which it was."""


class LearnedRefusals:
    """What was refused at at most `most` places, each for `seconds`. Only what a retry without it has shown is noted.

    A refusal may be about one caller's values, or repeat its words, so it holds for the tenant alone whose request got
    it. Once that of a second tenant gets the same one, by the same status and code, it holds for all. What requests
    without a tenant get holds for all at once: they are AIO's own, or no caller has a key.
    """

    def __init__(self, most: int = MOST, seconds: float = SECONDS, clock: Callable[[], float] = time.time) -> None:
        self._most, self._seconds, self._clock = most, seconds, clock
        # By place, the oldest first: until when each tenant that was refused something knows it.
        self.known: dict[Place, dict[Said, dict[str, float]]] = {}

    def at(self, place: Place, tenant: str = "") -> frozenset[str]:
        """Return what is refused there to a tenant."""
        if (known := self.known.get(place)) is None:
            return NOTHING
        return frozenset(name for (name, _), told in known.items() if self._holds(told, tenant))

    def _holds(self, known_until: dict[str, float], tenant: str | None) -> bool:
        """Whether it holds for a tenant; for None, for all."""
        now = self._clock()
        live = [one for one, until in known_until.items() if until > now]
        return len(live) > 1 or "" in live or (tenant is not None and tenant in live)

    def learn(self, place: Place, parameters: Collection[str], tenant: str = "", cause: str = "") -> None:
        """Note that the server at `place` refuses `parameters` to a tenant. `cause`: the status and the code."""
        if not parameters:
            return
        known = self.known.pop(place, {})
        until = self._clock() + self._seconds
        for name in sorted(parameters)[:MOST_NAMES]:
            told = {one: end for one, end in known.pop((name, cause), {}).items() if end > self._clock()}
            if tenant in told or len(told) < ENOUGH:
                told[tenant] = until
            known[name, cause] = told
        for oldest in list(known)[:-MOST_NAMES]:
            del known[oldest]
        self.known[place] = known
        if len(self.known) > self._most:
            del self.known[next(iter(self.known))]

    def listed(self) -> list[LearnedRefusal]:
        """Return what is known, the latest last."""
        now, found = self._clock(), list[LearnedRefusal]()
        for place, known in self.known.items():
            live = {said: told for said, told in known.items() if any(until > now for until in told.values())}
            for is_all in (True, False):
                some = {said[0]: told for said, told in live.items() if self._holds(told, None) is is_all}
                if some:
                    until = max(until for told in some.values() for until in told.values())
                    tenants = 0 if is_all else len({tenant for told in some.values() for tenant in told})
                    found.append(
                        LearnedRefusal(**place._asdict(), parameters=sorted(some), until=until, tenants=tenants)
                    )
        return found

    def forget(self, tier: str | None = None) -> int:
        """Forget what is known of a tier, or all; return of how many places."""
        gone = [place for place in self.known if tier in (None, place.tier)]
        for place in gone:
            del self.known[place]
        return len(gone)


REFUSALS = LearnedRefusals()
"""Those that this process knows: all tiers share them, and a reload of the catalogue changes nothing about them."""


def without(body: bytes, refused: frozenset[str]) -> tuple[bytes, tuple[str, ...]]:
    """Return the body of a chat in OpenAI's form without `stream_options`, with the other name of its limit, and with
    any JSON object as a schema, as `refused` says, and the names of what was changed."""
    if not refused & {STREAM_OPTIONS, FORMAT, *RENAMED}:
        return body, ()
    said = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    changed: list[str] = []
    if STREAM_OPTIONS in refused and said.pop(STREAM_OPTIONS, None) is not None:
        changed.append(STREAM_OPTIONS)
    if FORMAT in refused and b'"json_object"' in bytes(said.get(FORMAT, b"")):
        said[FORMAT] = _ANY_OBJECT
        changed.append(FORMAT)
    for name, other in RENAMED.items():
        if name in refused and name in said and other not in refused:
            said[other] = said.pop(name)
            changed.append(name)
            break
    return (msgspec.json.encode(said), tuple(changed)) if changed else (body, ())
