"""Which parameters a server refuses as such: from the wordings of its 400s and 422s, as providers write them
(`tiers/dialects/quirks/refusals.toml`).

What was refused is left out of further requests, or sent by another name.
"""

import re
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import msgspec

from inference_core.io.files import JSON_ERRORS
from tiers.conversation import BREAKPOINT
from tiers.dialects.quirks import Row, pattern_of, read_rows
from tiers.dialects.rules import ALL_SAMPLING, SERVICE_FIELDS, TUNING, VARIABLES
from tiers.dialects.server_error import ENVELOPES

STREAM_OPTIONS, EDITS, FORMAT = "stream_options", "context_management", "response_format"
LEFT_OUT = frozenset(
    {
        *ALL_SAMPLING,
        "logit_bias",
        "reasoning_effort",
        "parallel_tool_calls",
        STREAM_OPTIONS,
        EDITS,
        VARIABLES,
        BREAKPOINT,
    }
    | {*SERVICE_FIELDS, *TUNING}
) - {"min_tokens", "ignore_eos", "stop_token_ids", "safety_identifier"}
"""Parameters that an answer can do without. Limits, tools, safety and what was said are not among them: a
server that refuses these refuses the request, or says how it wants them (`tiers.remote.lessons`). A server that does
not know `store` stores nothing for it, with the field or without."""
RENAMED = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
"""Limits are never left out: they have another name."""
_ANY_OBJECT = msgspec.Raw(b'{"type":"json_schema","json_schema":{"name":"answer","schema":{"type":"object"}}}')
_MOST_BYTES, _MOST_CHARS = 64 * 1024, 4000
_MOST_DEPTH = 6


class Wording(Row, frozen=True, kw_only=True):
    """One way to refuse something, with regular expressions of the words."""

    servers: str
    """Who says it so."""
    patterns: tuple[str, ...]


class Parameters(Wording, frozen=True, kw_only=True):
    """A way to refuse parameters."""

    parameters: frozenset[str] = frozenset()
    """What is refused, where the words do not name it."""
    of_values: bool = False
    """It counts even if the words refuse a value."""


class Keywords(Wording, frozen=True, kw_only=True):
    """A way to refuse keywords of tools' schemas."""

    keywords: frozenset[str] = frozenset()
    """What is refused, where the words do not name it."""


class Meaning(Row, frozen=True, kw_only=True):
    """What an error means that names no status."""

    status: int
    patterns: tuple[str, ...]
    sentences: bool = False
    """Its patterns are sentences, which count in the words of a 400, a 403 or a 429, too."""


class Lesson(Row, frozen=True, kw_only=True):
    """What a refusal says that its server wants instead."""

    name: str
    """The name as an operator sees it."""
    patterns: tuple[str, ...] = ()
    """Regular expressions of the words; none if it is concluded otherwise."""
    unless: tuple[str, ...] = ()
    """Regular expressions of words that mean something else."""
    rules: dict[str, Any] = msgspec.field(default_factory=dict)
    """Fields of `Rules` that hold from then on. Without any, the parameter of this name is left out, or the body of a
    request is changed."""


class RefusalRows(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of rows."""

    codes: frozenset[str]
    """Codes of errors whose `param` is not known."""
    value_words: tuple[str, ...]
    """Regular expressions of words that refuse a value, so that another value is taken."""
    value_codes: tuple[str, ...]
    """Regular expressions of codes that do so."""
    extras: frozenset[str]
    """Fields of Anthropic's API and of Responses that an answer can do without."""
    words: dict[str, str]
    """Regular expressions by the names that stand for them in patterns."""
    same: dict[str, str]
    """Parameters by other names of theirs."""
    parameters: tuple[Parameters, ...]
    keywords: tuple[Keywords, ...]
    limits: tuple[Wording, ...]
    """How servers say the most tokens that a model can answer."""
    tools: tuple[Wording, ...]
    """How servers say the most tools of a request."""
    meanings: tuple[Meaning, ...]
    """The first that matches counts."""
    lessons: tuple[Lesson, ...]

    def pattern(self, *texts: str) -> re.Pattern[str]:
        """Return one pattern of what any of these match."""
        return pattern_of("|".join(texts), self.words)


REFUSAL_ROWS = read_rows("refusals", RefusalRows)
_VALUE_WORDS, _VALUE_CODES = (
    REFUSAL_ROWS.pattern(*REFUSAL_ROWS.value_words),
    REFUSAL_ROWS.pattern(*REFUSAL_ROWS.value_codes),
)
# Each has the group `name`.
_PARAMETERS = [(REFUSAL_ROWS.pattern(text), row) for row in REFUSAL_ROWS.parameters for text in row.patterns]


def refused_parameters(body: bytes, message: str, param: str | None, code: str | int | None) -> frozenset[str]:
    """Return the parameters that a refusal with this `body` names as such, by the caller's names: unsupported,
    deprecated or not allowed, whatever their value; only those of `LEFT_OUT` and `RENAMED`, and what the row itself
    names. `message`, `param`, `code`: what was read of it."""
    message = message[:_MOST_CHARS]
    names, of_rows = set(_pydantic_names(body)), set[str]()
    is_value = _VALUE_WORDS.search(message) is not None or _VALUE_CODES.search(str(code)) is not None
    if param is not None and code in REFUSAL_ROWS.codes:
        names.add(param)
    for pattern, row in _PARAMETERS:
        for match in () if is_value and not row.of_values else pattern.finditer(message):
            of_rows |= row.parameters
            names |= set() if row.parameters else {*re.split(r"[,\s]+", match["name"])}
    return frozenset({_own_name(name) for name in names} & (LEFT_OUT | RENAMED.keys()) | of_rows)


def _own_name(name: str) -> str:
    last = name.strip("`'\". ").rpartition(".")[2]
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", last).lower()
    return REFUSAL_ROWS.same.get(snake, snake)


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
