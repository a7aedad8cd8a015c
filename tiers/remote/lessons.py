"""What a refusal says that its server wants instead: rules (`tiers.dialects.rules`) that hold for it from then on.

Gateways and servers of open models have the rules of whatever is behind them, which no table knows by their address;
their refusals tell. A lesson counts only if the request was taken once it was adapted, and is forgotten like the
refusal of a parameter. What the words of a refusal teach are rows of `tiers/dialects/quirks/refusals.toml`.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from tiers.dialects.dialect import THINKING_TOKENS
from tiers.dialects.rules import EFFORTS, SERVICE_FIELDS, Rules, typed_rules
from tiers.dialects.server_error import WireError
from tiers.remote.refusals import FORMAT, LEFT_OUT, REFUSAL_ROWS, refused_parameters

SCHEMA, ANY_FORMAT, CHOICES = "response_format.json_schema", "response_format.type", "n"
LIMIT, CONTEXT, TOOLS = "max_tokens<=", "context<=", "tools<="
"""Before the most tokens of an answer, those of prompt and answer, and the most tools of a request."""
THIS_VALUE = "=?"
"""Behind what holds for this request: a parameter of which a value is refused, which another may not be."""
MOST_READ = 1500
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
_LIMITS = [REFUSAL_ROWS.pattern(text) for row in REFUSAL_ROWS.limits for text in row.patterns]
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


def refused_in(body: bytes, error: WireError) -> frozenset[str]:
    """Return what a refusal with this `body`, read as `error`, is about: parameters (`refused_parameters`), lessons."""
    known = refused_parameters(body, error.words, error.param, error.code)
    if FORMAT in known:
        return known
    lessons = set(lessons_in(error.words, error.param, error.code))
    # A server that lists the values of an effort takes some.
    is_listed = any(name.startswith(f"{_EFFORT}=") for name in lessons)
    return frozenset((known - {_EFFORT} if is_listed else known) | lessons)


def told_limit(words: str) -> int:
    """Return the most tokens that the model can answer, where a request was refused for more; else 0."""
    for pattern in _LIMITS:
        if (match := pattern.search(words[:MOST_READ])) is not None:
            return int(match["most"]) - (match.groupdict().get("beyond") is not None)
    return 0


def told_tools(words: str) -> int:
    """Return the most tools of a request, where one was refused for more; else 0."""
    matches = (pattern.search(words[:MOST_READ]) for pattern in _MOST_TOOLS)
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
        places: tuple[list[str], ...] = (
            [],
            ["system"],
            ["tools"],
            ["messages", "content"],
            ["messages", "content", "content"],
        )
        return sum(_remove(body, [*place, last]) for place in places) > 0
    if last == "output_config" and "format" in body.get(last, {}):
        return body[last].pop("effort", None) is not None
    return _remove(body, parts)


def _remove(node: Any, parts: list[str]) -> bool:
    if isinstance(node, list):
        return sum(_remove(one, parts) for one in node) > 0
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
    said = f"{message[:MOST_READ]} {code or ''}"
    for lesson, pattern, other_meaning in _PATTERNS:
        if pattern.search(said) is not None and not (lesson.unless and other_meaning.search(said)):
            yield lesson.name
    for found in _EXTRA.finditer(said):
        parts = [part for part in (found[1] or found[2]).split(".") if not part.isdecimal()]
        if parts[-1] in EXTRAS:
            yield ".".join(parts)
    if param in SERVICE_FIELDS and param in LEFT_OUT and (code == "unsupported_value" or _THIS_ONE.search(said)):
        yield f"{param}{THIS_VALUE}"
    if (most := told_limit(message)) > 0:
        yield f"{LIMIT}{most}"
    if (most := told_tools(message)) > 0:
        yield f"{TOOLS}{most}"
    for pattern, keywords in _KEYWORDS:
        for match in pattern.finditer(said):
            yield from (f"{_SCHEMAS}{keyword}" for keyword in keywords or (match[1],))
    if _OF_EFFORT.search(f"{said} {param}") is not None and (listed := _VALUES.search(said)) is not None:
        taken = set(re.findall(r"\w+", listed[1].lower()))
        yield from (f"{_EFFORT}={one}" for one in EFFORTS if one not in taken)


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
        fields["efforts"] = tuple(one for one in rules.efforts or EFFORTS if one not in unknown) or ("none",)
    return msgspec.structs.replace(rules, **fields) if fields else rules
