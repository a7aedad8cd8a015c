"""The catalogue's routing rules, compiled when it is loaded: which of them a request matches, and what they leave."""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple
from zoneinfo import ZoneInfo

from classifier.complexity.quality_setting import target_of
from classifier.features.routing_input import RoutingInput
from gateway.base.inference_request import InferenceRequest
from tiers.catalog.catalog import ANY, Catalog, RuleSpec, RuleWhen, Script, minutes_of
from tiers.catalog.rule_check import bounds_of

# Letters of a turn that are looked at for its script.
MOST_LETTERS = 200
OTHER: Script = "other"
# First code points of ranges, by Unicode's blocks; a range without a script ends the one before it.
_RANGES: tuple[tuple[int, Script | None], ...] = (
    (0x41, "latin"), (0x250, None), (0x370, "greek"), (0x400, "cyrillic"), (0x530, None), (0x590, "hebrew"),
    (0x600, "arabic"), (0x700, None), (0x750, "arabic"), (0x780, None), (0x8A0, "arabic"), (0x900, "devanagari"),
    (0x980, None), (0xE00, "thai"), (0xE80, None), (0x1100, "hangul"), (0x1200, None), (0x1E00, "latin"),
    (0x1F00, "greek"), (0x2000, None), (0x3040, "kana"), (0x3100, None), (0x3130, "hangul"), (0x3190, None),
    (0x31F0, "kana"), (0x3200, None), (0x3400, "han"), (0xA000, None), (0xAC00, "hangul"), (0xD7B0, None),
    (0xF900, "han"), (0xFB00, "latin"), (0xFB07, None), (0xFB1D, "hebrew"), (0xFB50, "arabic"), (0xFE00, None),
    (0xFE70, "arabic"), (0xFEFF, None), (0xFF21, "latin"), (0xFF5B, None), (0xFF66, "kana"), (0xFFA0, None),
    (0x20000, "han"), (0x32000, None),
)  # fmt: skip
_FIRST = [first for first, _ in _RANGES]

Condition = Callable[[InferenceRequest, RoutingInput], bool]


class Rule(NamedTuple):
    """A rule as it is applied."""

    name: str
    conditions: tuple[Condition, ...]
    barred: dict[int, str]
    """Tiers that may not answer, with the reason."""
    targets: frozenset[str] | None
    floor: int
    tier: int | None
    """The tier that answers, by its own server or by `target`."""
    target: str | None
    quality: float | None


class Matched(NamedTuple):
    """What all matching rules leave together; see `RuleSpec`."""

    names: list[str]
    barred: dict[int, str]
    targets: frozenset[str] | None
    floor: int
    tier: int | None
    target: str | None
    quality: float | None


class RoutingRules:
    """`headers`: the names, in lower case, of the headers that rules look at."""

    def __init__(self, catalog: Catalog) -> None:
        self._rules = [_compiled(catalog, rule) for rule in catalog.rules]
        self.headers = frozenset(name.lower() for rule in catalog.rules for name in rule.when.header)

    def of(self, request: InferenceRequest, routing_input: RoutingInput) -> Matched | None:
        """Return what holds for a request; None if it matches no rule."""
        matching = [rule for rule in self._rules if all(holds(request, routing_input) for holds in rule.conditions)]
        return combined(matching) if matching else None


def combined(rules: Iterable[Rule]) -> Matched:
    """Return what `rules` leave together: allowed sets intersect, the highest floor holds, and of targets and qualities
    the first. The order of rules changes nothing else but which one a tier's reason names."""
    names: list[str] = []
    barred: dict[int, str] = {}
    targets: frozenset[str] | None = None
    floor, tier, target, quality = 1, None, None, None
    for rule in rules:
        names.append(rule.name)
        barred = rule.barred | barred
        if rule.targets is not None:
            targets = rule.targets if targets is None else targets & rule.targets
        floor = max(floor, rule.floor)
        if tier is None:
            tier, target = rule.tier, rule.target
        quality = rule.quality if quality is None else quality
    return Matched(names, barred, targets, floor, tier, target, quality)


def _compiled(catalog: Catalog, rule: RuleSpec) -> Rule:
    left = bounds_of(catalog, rule).tiers
    floor = 1 if rule.floor is None else catalog.numbered(rule.floor) or 1
    barred = {
        tier.number: f"rule {rule.name} asks for at least {rule.floor}"
        if tier.number < floor
        else f"rule {rule.name} allows only {', '.join(rule.allow or ())}"
        for tier in catalog.tiers
        if tier.number not in left
    }
    beside = None if rule.target is None else catalog.target(rule.target)
    return Rule(
        name=rule.name,
        conditions=tuple(_conditions(rule.when)),
        barred=barred,
        targets=None if rule.allow is None else frozenset(rule.allow) & {target.name for target in catalog.targets},
        floor=floor,
        tier=None if rule.target is None else catalog.numbered(rule.target) if beside is None else beside.number,
        target=None if beside is None else beside.name,
        quality=target_of(rule.quality),
    )


def _conditions(when: RuleWhen) -> Iterable[Condition]:
    """Return the conditions, the cheapest first."""
    if when.key is not None:
        keys = frozenset(when.key)
        yield lambda request, _: request.key_id in keys or request.caller.name in keys
    if when.team is not None:
        teams = frozenset(when.team)
        yield lambda request, _: request.caller.team in teams or request.caller.team_name in teams
    if when.min_tokens is not None or when.max_tokens is not None:
        least, most = when.min_tokens or 0, float("inf") if when.max_tokens is None else when.max_tokens
        yield lambda _, routing_input: least <= routing_input.prompt_tokens <= most
    for name, values in when.tag.items():
        yield partial(_has_tag, name, frozenset(values))
    for name, values in when.header.items():
        yield partial(_has_header, name.lower(), frozenset(values))
    if when.hour is not None and (minutes := minutes_of(when.hour)) is not None:
        yield partial(_is_at, *minutes, ZoneInfo(when.time_zone))
    if when.language is not None:
        scripts = frozenset(when.language)
        yield lambda _, routing_input: script_of(routing_input.turn) in scripts


def _has_tag(name: str, values: frozenset[str], request: InferenceRequest, _: RoutingInput) -> bool:
    return _is_among((request.metadata or {}).get(name), values)


def _has_header(name: str, values: frozenset[str], request: InferenceRequest, _: RoutingInput) -> bool:
    return _is_among((request.ruled_headers or {}).get(name), values)


def _is_among(value: str | None, values: frozenset[str]) -> bool:
    return value is not None and (value in values or ANY in values)


def _is_at(first: int, end: int, zone: ZoneInfo, request: InferenceRequest, _: RoutingInput) -> bool:
    there = datetime.fromtimestamp(request.created_at, UTC).astimezone(zone)
    minute = there.hour * 60 + there.minute
    return first <= minute < end if first < end else minute >= first or minute < end


def script_of(text: str) -> Script | None:
    """Return the script of most of the first 200 letters of `text`; None without letters, `other` if unlisted."""
    counts: dict[Script, int] = {}
    left = MOST_LETTERS
    for character in text:
        if not character.isalpha():
            continue
        index = bisect_right(_FIRST, ord(character)) - 1
        named = _RANGES[index][1] if index >= 0 else None
        script: Script = OTHER if named is None else named
        counts[script] = counts.get(script, 0) + 1
        left -= 1
        if not left:
            break
    if not counts:
        return None
    most: Script = max(counts, key=counts.__getitem__)
    return most
