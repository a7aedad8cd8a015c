"""What a refusal says that its server does not take, and what is sent instead from then on.

Parameters that it refuses are left out or have another name. Rules (`tiers.dialects.rules`) hold for it from then on:
gateways and servers of open models have those of whatever is behind them, which no table knows by their address. A
lesson counts only if the request was taken once it was adapted. And a prompt may be too long, or the model unable to do
what is asked. All wordings are rows (`quirks/refusals.toml`, `quirks/overflow.toml`).
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from inference_core.io.files import JSON_ERRORS
from tiers.dialects.dialect import THINKING_TOKENS
from tiers.dialects.quirks import Row, pattern_of, read_rows
from tiers.dialects.rules import (
    ALL_SAMPLING,
    BREAKPOINT,
    EFFORTS,
    SERVICE_FIELDS,
    TUNING,
    VARIABLES,
    Rules,
    typed_rules,
)
from tiers.dialects.server_error import ENVELOPES, WAIT_IN_WORDS, ErrorObject
from tiers.errors import CONTEXT_CODE, TierContextError
from tiers.prompt_bounds import room_after
from tiers.server_words import MOST_CONTEXT

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
"""Parameters that an answer can do without. Limits, tools, safety and what was said are not among them: a server that
refuses these refuses the request, or says how it wants them. A server that does not know `store` stores nothing for it,
with the field or without."""
RENAMED = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
"""Limits are never left out: they have another name."""
_ANY_OBJECT = msgspec.Raw(b'{"type":"json_schema","json_schema":{"name":"answer","schema":{"type":"object"}}}')
_MOST_BYTES, _MOST_CHARS = 64 * 1024, 4000
_MOST_DEPTH = 6
MOST_WORDS = 4096
"""Characters of a refusal: some servers repeat the request in it, whose texts are no wording of theirs."""


class Wording(Row, frozen=True, kw_only=True):
    """One way to refuse something, with regular expressions of the words."""

    servers: str
    """Who says it so."""
    patterns: tuple[str, ...]


class Limit(Wording, frozen=True, kw_only=True):
    """A way to say the most tokens that a model can answer."""

    of_request: bool = False
    """Whether it holds for this request alone."""


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
    """Fields of `Rules` and of its parts that hold from then on. Without any, the parameter of this name is left out,
    or the body of a request is changed."""


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
    limits: tuple[Limit, ...]
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
        for error in said:
            yield from _of_errors(error, depth - 1)
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


SCHEMA, ANY_FORMAT, CHOICES = "response_format.json_schema", "response_format.type", "n"
LIMIT, CONTEXT, TOOLS = "max_tokens<=", "context<=", "tools<="
"""Before the most tokens of an answer, those of prompt and answer, and the most tools of a request."""
THIS_VALUE = "=?"
"""Behind what holds for this request: a parameter of which a value is refused, which another may not be."""
_MOST_READ = 1500
"""Characters of a refusal; what follows is often the request itself."""
ELSEWHERE = (404, 405, 500, 501)
"""Statuses by which some servers refuse what a lesson is about."""
EXTRAS = REFUSAL_ROWS.extras
# Keywords of a tool's schema that a server does not know.
_SCHEMAS = "tools.parameters."
_PATTERNS = [
    (lesson, REFUSAL_ROWS.pattern(*lesson.patterns), REFUSAL_ROWS.pattern(*lesson.unless))
    for lesson in REFUSAL_ROWS.lessons
    if lesson.patterns
]
_RULES = {lesson.name: typed_rules(lesson.rules) for lesson in REFUSAL_ROWS.lessons}
_KEYWORDS = [(REFUSAL_ROWS.pattern(text), row.keywords) for row in REFUSAL_ROWS.keywords for text in row.patterns]
_LIMITS = [(REFUSAL_ROWS.pattern(text), row) for row in REFUSAL_ROWS.limits for text in row.patterns]
_LEAST_AFFORDED = 256
"""Tokens: an answer that is cut off before them is of no use."""
_MOST_TOOLS = [REFUSAL_ROWS.pattern(text) for row in REFUSAL_ROWS.tools for text in row.patterns]
# The value, or what it stands with, is what is refused.
_THIS_ONE = re.compile(
    r"only (?:allowed|available|supported)|not (?:allowed|available|supported) (?:for|with|on|in|when)", re.I
)
_EFFORT = "reasoning_effort"
_VALUES = re.compile(
    r"(?:(?<!un)supported (?:reasoning )?(?:values?|levels?|efforts?)(?: are)?|(?<!in)valid \w+|one of|should be|"
    r"expected|allowed(?: values)?)"
    r"\W{0,12}((?:\W*\b(?:none|default|minimal|low|medium|high|xhigh|max|and|or)\b)+)",
    re.IGNORECASE,
)
_OF_EFFORT = re.compile(r"effort|\blevel\b|thinking", re.IGNORECASE)


def refused_in(body: bytes, error: ErrorObject) -> frozenset[str]:
    """Return what a refusal with this `body`, read as `error`, is about: parameters (`refused_parameters`), lessons."""
    parameters = refused_parameters(body, error.words, error.param, error.code)
    if FORMAT in parameters:
        return parameters
    lessons = set(lessons_in(error.words, error.param, error.code))
    # A server that lists the values of an effort takes some.
    is_listed = any(name.startswith(f"{_EFFORT}=") for name in lessons)
    return frozenset((parameters - {_EFFORT} if is_listed else parameters) | lessons)


def told_limit(words: str) -> str | None:
    """Return the lesson of the most tokens that the model can answer, where a request was refused for more; else
    None."""
    for pattern, row in _LIMITS:
        if (match := pattern.search(words[:_MOST_READ])) is not None:
            most = int(match["most"]) - (match.groupdict().get("beyond") is not None)
            if most < (_LEAST_AFFORDED if row.of_request else 1):
                return None
            return f"{LIMIT}{most}{THIS_VALUE if row.of_request else ''}"
    return None


def told_tools(words: str) -> int:
    """Return the most tools of a request, where one was refused for more; else 0."""
    matches = (pattern.search(words[:_MOST_READ]) for pattern in _MOST_TOOLS)
    return next((int(match["most"]) for match in matches if match is not None), 0)


def least_told(refused: Iterable[str], what: str) -> int | None:
    """Return the least number that these names tell of `what`: `LIMIT`, `CONTEXT` or `TOOLS`; None without any."""
    told = (name.removeprefix(what) for name in refused if name.startswith(what))
    return min((int(most) for most in told if most.isdecimal()), default=None)


def of_this_request(refused: Iterable[str]) -> frozenset[str]:
    """Return what is refused for the value that this request has, by the names of the parameters."""
    return frozenset(name.removesuffix(THIS_VALUE) for name in refused if name.endswith(THIS_VALUE))


ADAPTIVE, BLOCKS, BLANK = "thinking.type: adaptive", "system: blocks", "messages.content: empty"
_PATH = r"([a-z_]\w{0,40}(?:\.\w{1,40}){0,6})"
_EXTRA = re.compile(
    rf"{_PATH}: extra inputs are not permitted|(?:unknown|unsupported) parameter: '{_PATH}'", re.IGNORECASE
)
_LEAST_BUDGET = 1024


def without_extras(body: bytes, refused: frozenset[str]) -> tuple[bytes, tuple[str, ...], tuple[str, ...]]:
    """Return the body of a request of Anthropic's form or of Responses without what its server does not know, the
    names of the fields that were left out, and those of the fields that were changed."""
    paths = [name for name in refused if name.rpartition(".")[2] in EXTRAS]
    if not (paths or refused & {ADAPTIVE, BLOCKS, BLANK}):
        return body, (), ()
    said = msgspec.json.decode(body, type=dict[str, Any])
    left_out = [path for path in sorted(paths) if _removed(said, path)]
    changed: list[str] = []
    if ADAPTIVE in refused and said.get("thinking", {}).get("type") == "adaptive":
        effort = said.pop("output_config", {}).get("effort", "medium")
        budget = min(THINKING_TOKENS.get(effort, 0), said["max_tokens"] - _LEAST_BUDGET)
        said["thinking"] = {"type": "enabled", "budget_tokens": budget}
        if budget < _LEAST_BUDGET:
            del said["thinking"]
        changed.append("thinking")
    if BLOCKS in refused and isinstance(said.get("system"), list):
        said["system"] = "\n\n".join(block["text"] for block in said["system"] if block.get("text"))
        changed.append("system")
    if BLANK in refused:
        for turn in said["messages"]:
            if isinstance(turn["content"], list):
                turn["content"] = [block for block in turn["content"] if block.get("text", "x").strip()]
        changed.append("messages")
    return msgspec.json.encode(said), tuple(left_out), tuple(changed)


def _removed(body: dict[str, Any], path: str) -> bool:
    """Remove what stands at `path`, whose parts that are no field are types of what stands there. Marks of the cache
    are removed wherever they may stand. Return whether there was any."""
    *_, last = parts = path.split(".")
    if last == "cache_control":
        holders: tuple[list[str], ...] = (
            [],
            ["system"],
            ["tools"],
            ["messages", "content"],
            ["messages", "content", "content"],
        )
        return sum(_remove(body, [*holder, last]) for holder in holders) > 0
    if last == "output_config" and "format" in body.get(last, {}):
        return body[last].pop("effort", None) is not None
    return _remove(body, parts)


def _remove(node: Any, parts: list[str]) -> bool:
    if isinstance(node, list):
        return sum(_remove(element, parts) for element in node) > 0
    if not isinstance(node, dict) or not parts:
        return False
    first, *rest = parts
    if first not in node:
        return bool(rest) and _remove(node, rest)
    if rest:
        return _remove(node[first], rest)
    del node[first]
    return True


def lessons_in(message: str, param: str | None, code: str | int | None) -> Iterator[str]:
    """Yield the names of what a refusal with these words teaches: those of the rows, and `reasoning_effort=VALUE` for
    each value of the effort that it does not list among those that it takes, `max_tokens<=N`, and `NAME=?` for a value
    of a parameter that answers can do without."""
    said = f"{message[:_MOST_READ]} {code or ''}"
    for lesson, pattern, other_meaning in _PATTERNS:
        if pattern.search(said) is not None and not (lesson.unless and other_meaning.search(said)):
            yield lesson.name
    for extra in _EXTRA.finditer(said):
        parts = [part for part in (extra[1] or extra[2]).split(".") if not part.isdecimal()]
        if parts[-1] in EXTRAS:
            yield ".".join(parts)
    if param in SERVICE_FIELDS and param in LEFT_OUT and (code == "unsupported_value" or _THIS_ONE.search(said)):
        yield f"{param}{THIS_VALUE}"
    if (limit := told_limit(message)) is not None:
        yield limit
    if (most := told_tools(message)) > 0:
        yield f"{TOOLS}{most}"
    for pattern, keywords in _KEYWORDS:
        for match in pattern.finditer(said):
            yield from (f"{_SCHEMAS}{keyword}" for keyword in keywords or (match[1],))
    if _OF_EFFORT.search(f"{said} {param}") is not None and (listed := _VALUES.search(said)) is not None:
        taken = set(re.findall(r"\w+", listed[1].lower()))
        yield from (f"{_EFFORT}={effort}" for effort in EFFORTS if effort not in taken)


def taught(rules: Rules, refused: frozenset[str]) -> Rules:
    """Return the rules of a server that has `refused` what these names say."""
    fields: dict[str, Any] = {}
    for name in _RULES.keys() & refused:
        fields |= _RULES[name]
    if keywords := {name.removeprefix(_SCHEMAS) for name in refused if name.startswith(_SCHEMAS)}:
        fields["refused_keywords"] = frozenset(keywords)
    if ANY_FORMAT in refused:
        fields["formats"] = "none"
    if unknown := {name.partition("=")[2] for name in refused if name.startswith(f"{_EFFORT}=")}:
        fields["efforts"] = tuple(
            effort for effort in rules.parameters.efforts or EFFORTS if effort not in unknown
        ) or ("none",)
    return rules.with_fields(fields) if fields else rules


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


class TooLong(NamedTuple):
    """The tokens of a prompt that a server refuses, of the answer that was asked for, of both, and the most of both; 0
    for what it does not say.
    """

    prompt_tokens: int = 0
    answer_tokens: int = 0
    total_tokens: int = 0
    max_context: int = 0
    in_bytes: bool = False
    """Whether the request's size is what is refused."""


class Wordings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of rows."""

    codes: frozenset[str]
    """Codes and types of errors that say it whatever the words."""
    unable: tuple[str, ...]
    """Regular expressions of words that say that a model cannot do what is asked."""
    words: dict[str, str]
    """Regular expressions by the names that stand for them in the patterns of the wordings."""
    wordings: tuple[Wording, ...]

    def compiled(self) -> list[re.Pattern[str]]:
        """Return the patterns of all wordings, in their order."""
        return [pattern_of(text, self.words) for wording in self.wordings for text in wording.patterns]


WORDINGS = read_rows("overflow", Wordings)
_COMPILED = WORDINGS.compiled()
_TOO_LARGE = 413
_UNABLE = pattern_of(rf"\b(?:{'|'.join(WORDINGS.unable)})\b")


def too_long(error: ErrorObject, status: int = 400) -> TooLong | None:
    """Return what a refusal with `status` tells of a prompt that is too long; None if that is not what it says."""
    text = error.words[:MOST_WORDS]
    for pattern in _COMPILED:
        if (said := pattern.search(text)) is not None:
            return _counts(said.groupdict())
    if str(error.code) in WORDINGS.codes or error.type in WORDINGS.codes or status == _TOO_LARGE:
        return TooLong(in_bytes=status == _TOO_LARGE and error.code != CONTEXT_CODE)
    return None


def room_left(error: TierContextError, prompt_tokens: int, asked: int) -> int:
    """Return the tokens that the context leaves for an answer, where a prompt of `prompt_tokens`, as estimated, was
    refused only because `asked` are more; 0 if there is no room, or the error tells no context."""
    context = error.max_context
    if error.total_tokens == error.prompt_tokens == asked:
        # The only count is that of the answer alone.
        rooms = [room_after(prompt_tokens, context)]
    elif error.total_tokens > asked:
        # Tools and the like may be in it, too.
        rooms = [context - (error.total_tokens - asked)]
    elif error.prompt_tokens in (0, context - error.answer_tokens + 1):
        # vLLM reads no more of a prompt than leaves room for the answer, and then says that it is one token too long.
        room = room_after(prompt_tokens, context)
        rooms = [room, room - prompt_tokens // 4, room - prompt_tokens]
    else:
        rooms = [context - error.prompt_tokens]
    return next((room for room in rooms if 0 < room < asked), 0)


def is_unable(error: ErrorObject) -> bool:
    """Return whether a refusal says that the model, or its server, cannot do what is asked at all."""
    return _UNABLE.search(error.words[:MOST_WORDS]) is not None


# What a refusal may mean, by all patterns of the words.
_MEANINGS = [
    *(("context", pattern) for pattern in _COMPILED),
    *(("limit", pattern) for pattern, _ in _LIMITS),
    *(("tools", pattern) for pattern in _MOST_TOOLS),
    *(("lesson", pattern) for _, pattern, _ in _PATTERNS),
    *(("lesson", pattern) for pattern, _ in (*_PARAMETERS, *_KEYWORDS)),
    *((str(row.status), REFUSAL_ROWS.pattern(*row.patterns)) for row in REFUSAL_ROWS.meanings),
    ("lesson", _EXTRA),
    ("lesson", _VALUES),
    ("unable", _UNABLE),
    ("wait", WAIT_IN_WORDS),
]


def meanings_in(words: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield what words may mean, and where they say it."""
    for what, pattern in _MEANINGS:
        yield from ((what, match.span()) for match in pattern.finditer(words) if match[0])


def _counts(said: dict[str, str | None]) -> TooLong:
    prompt, answer, limit, total = (_count(said.get(name)) for name in ("prompt", "answer", "limit", "total"))
    if not prompt and total > answer:
        prompt = total - answer
    return TooLong(prompt, answer, total, limit)


def _count(text: str | None) -> int:
    digits = (text or "").replace(",", "")
    count = int(digits) if 0 < len(digits) < 12 else 0
    return count if count <= MOST_CONTEXT else 0
