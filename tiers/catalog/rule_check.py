"""Rules of a catalogue's tables beyond the type of each field: chains, routing rules, private prompts, guardrails.

Of chains and rules: what is wrong with them, what they say, and what never applies.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import combinations
from typing import NamedTuple
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tiers.catalog.catalog import ANY, Catalog, GuardrailSpec, PrivateSpec, RuleSpec, RuleWhen, TargetSpec, minutes_of
from tiers.catalog.tier_spec import TierSpec
from tiers.errors import HEADER
from tiers.server_words import is_metadata_host

_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def screening_problems(private: PrivateSpec | None, guardrails: list[GuardrailSpec]) -> Iterator[str]:
    """Yield every violated rule as one sentence that names the entry, the value and what is allowed."""
    for name, pattern in ({} if private is None else private.patterns).items():
        try:
            if re.compile(pattern).search("") is not None:
                yield f"private.patterns.{name} = {pattern!r}: it matches every text, the empty one included"
        except re.error as error:
            yield f"private.patterns.{name} = {pattern!r}: not a regular expression: {error}"
    names = [guardrail.name for guardrail in guardrails]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"guardrails: the name {name!r} occurs {names.count(name)} times"
    for index, guardrail in enumerate(guardrails):
        yield from _guardrail_problems(f"guardrails[{index}] ({guardrail.name})", guardrail)


def _guardrail_problems(where: str, guardrail: GuardrailSpec) -> Iterator[str]:
    if (guardrail.python is None) == (guardrail.url is None):
        yield f"{where}: give either python, as module:Class, or url"
    elif guardrail.python is not None:
        if not _CLASS.fullmatch(guardrail.python):
            yield f"{where}.python = {guardrail.python!r}: must be module:Class"
        if guardrail.local is not None or guardrail.api_key_env is not None:
            yield f"{where}: local and api_key_env are for servers, and this one runs in process"
    elif guardrail.url is not None:
        parts = urlsplit(guardrail.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            yield f"{where}.url = {guardrail.url!r}: must be an http or https URL without a user"
        elif is_metadata_host(parts.hostname):
            yield f"{where}.url = {guardrail.url!r}: this is the metadata address of a cloud"
        if guardrail.options:
            yield f"{where}.options: they are for classes in process, and this is a server"


_DAY_MINUTES = 24 * 60


class Bounds(NamedTuple):
    """What one rule leaves: `tiers` may answer, and `targets` may stand in for them."""

    tiers: frozenset[int]
    targets: frozenset[str]


def bounds_of(catalog: Catalog, rule: RuleSpec) -> Bounds:
    """Return the tiers and targets that `rule` leaves by `allow` and `floor`, whose names are known."""
    floor = 1 if rule.floor is None else catalog.numbered(rule.floor) or 1
    named = None if rule.allow is None else set(rule.allow)
    tiers = {tier.number for tier in catalog.tiers}
    if named is not None:
        tiers = {number for name in named if (number := catalog.numbered(name)) is not None}
    targets = [target for target in catalog.targets if named is None or target.name in named]
    return Bounds(
        frozenset(number for number in tiers if number >= floor),
        frozenset(target.name for target in targets if target.number >= floor),
    )


def check_chains(catalog: Catalog) -> Iterator[str]:
    """Yield what is wrong with targets and fallback chains."""
    tier_names = {name for tier in catalog.tiers for name in (tier.name, f"tier-{tier.number}")}
    all_names, target_names = _known(catalog), [target.name for target in catalog.targets]
    for name, count in Counter(target.name for target in catalog.targets).items():
        if count > 1 or name in tier_names:
            yield f"targets '{name}': another tier or target has this name; choose another"
    for target in catalog.targets:
        where = f"targets '{target.name}'"
        if target.remote is not None and target.remote.engine is not None:
            yield f"{where}: AIO starts no engine for a target; give a url or a provider"
        if target.model is not None:
            yield f"{where}.model: a target is on a server elsewhere; give a url or a provider with it"
        others = [other for other in (all_names if target.fallback_named else target_names) if other != target.name]
        for name in target.fallback or ():
            if name not in others:
                yield f"{where}.fallback: {name!r} is not another target; there are {', '.join(others) or 'none'}"
        if target.number == 0:
            names = ", ".join(tier.name for tier in catalog.tiers)
            yield f"{where}.stands_for = {target.stands_for!r}: no such tier; there are {names}"
    for tier in catalog.tiers:
        where = f"tiers '{tier.name}'.fallback"
        for name in tier.fallback or ():
            if name not in all_names:
                yield f"{where}: {name!r} is not a tier or target; there are {', '.join(all_names)}"
            elif catalog.numbered(name) == tier.number:
                yield f"{where}: {name!r} is the tier itself; leave it out"
        counts = Counter(catalog.numbered(name) or name for name in tier.fallback or ())
        if repeated := [str(key) for key, count in counts.items() if count > 1]:
            yield f"{where}: {', '.join(repeated)} is listed more than once; each is tried once"


def check_routing_rules(catalog: Catalog) -> Iterator[str]:
    """Yield what is wrong with the rules, naming rule and field."""
    for name, count in Counter(rule.name for rule in catalog.rules).items():
        if count > 1:
            yield f"rules: the name {name!r} occurs {count} times; names must be unique"
    for rule in catalog.rules:
        where = f"rules '{rule.name}'"
        yield from _check_when(f"{where}.when", rule.when)
        if HEADER in map(str.lower, rule.when.header):
            yield f"{where}.when.header: {HEADER} is a caller's credential, which is for one server alone"
        if rule.allow is None and rule.floor is None and rule.target is None and rule.quality is None:
            yield f"{where}: does nothing; give allow, floor, target or quality"
        problems = list(_check_names(catalog, where, rule))
        yield from problems
        if not problems:
            yield from _check_bounds(catalog, where, rule)


def _check_names(catalog: Catalog, where: str, rule: RuleSpec) -> Iterator[str]:
    all_names = _known(catalog)
    for name in rule.allow or ():
        if name not in all_names:
            yield f"{where}.allow: {name!r} is not a tier or target; there are {', '.join(all_names)}"
    if rule.floor is not None and catalog.numbered(rule.floor) is None:
        names = ", ".join(tier.name for tier in catalog.tiers)
        yield f"{where}.floor = {rule.floor!r}: no such tier; there are {names}"
    if rule.target is not None and rule.target not in all_names:
        yield f"{where}.target = {rule.target!r}: no such tier or target; there are {', '.join(all_names)}"


def _check_bounds(catalog: Catalog, where: str, rule: RuleSpec) -> Iterator[str]:
    left = bounds_of(catalog, rule)
    if not left.tiers:
        if rule.floor is None:
            yield f"{where}.allow: names only targets; add a tier that they stand in for"
        else:
            yield f"{where}.floor = {rule.floor!r}: is above every tier in allow, so no tier would be left"
        return
    if rule.target is None:
        return
    beside = catalog.target(rule.target)
    if rule.target not in left.targets and catalog.numbered(rule.target) not in left.tiers:
        yield f"{where}.target = {rule.target!r}: the rule's own allow or floor rules it out"
    elif beside is not None and beside.number not in left.tiers:
        tier = catalog.tier(beside.number).name
        yield f"{where}.target = {rule.target!r}: stands for {tier}, which the rule rules out; allow that, too"


def _check_when(where: str, when: RuleWhen) -> Iterator[str]:
    if when.hour is not None:
        minutes = minutes_of(when.hour)
        if minutes is None:
            yield f"{where}.hour = {when.hour!r}: expected HH:MM-HH:MM, such as 22:00-06:00"
        elif minutes[0] == minutes[1]:
            yield f"{where}.hour = {when.hour!r}: begins and ends at the same minute; leave it out for the whole day"
    elif when.time_zone != "UTC":
        yield f"{where}.time_zone: belongs to hour, which is missing; give hour too"
    try:
        ZoneInfo(when.time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        yield (
            f"{where}.time_zone = {when.time_zone!r}: this machine has no such time zone; expected a name such as "
            "Europe/Berlin"
        )
    if when.min_tokens is not None and when.max_tokens is not None and when.min_tokens > when.max_tokens:
        yield f"{where}.min_tokens = {when.min_tokens}: above max_tokens = {when.max_tokens}, so it never applies"


def routing_lines(catalog: Catalog) -> list[str]:
    """Return what was read of rules and chains, a line each; empty without any."""
    lines = [f"fallback of {tier.name}: {_chain(tier)}" for tier in catalog.tiers if tier.fallback is not None]
    lines += [
        f"target {target.name}: {target.model_name} at {target.url}, counts as tier {target.number}"
        for target in catalog.targets
    ]
    return [*lines, *(f"rule {rule.name}: {_conditions(rule.when)} → {_effects(rule)}" for rule in catalog.rules)]


def routing_warnings(catalog: Catalog) -> list[str]:
    """Return which rules, chains and targets can never apply, or leave no tier together."""
    return [*_idle_rules(catalog), *_conflicts(catalog)]


def answers_chats(catalog: Catalog, target: TargetSpec) -> bool:
    """Whether a target answers chats: it serves no other endpoint, or a chain or a rule names it."""
    if not target.serves:
        return True
    entries = (*catalog.tiers, *catalog.targets)
    return any(target.name in (entry.fallback or ()) for entry in entries) or any(
        rule.target == target.name for rule in catalog.rules
    )


def _idle_rules(catalog: Catalog) -> Iterator[str]:
    contexts = [tier.remote.max_context for tier in catalog.tiers if tier.remote is not None]
    stated_contexts = [context for context in contexts if context is not None]
    longest = max(stated_contexts) if len(stated_contexts) == len(catalog.tiers) else None
    for index, rule in enumerate(catalog.rules):
        least = rule.when.min_tokens
        if least is not None and longest is not None and least >= longest:
            yield f"rule {rule.name}: no tier reads prompts of {least} tokens ({longest} at most), so it never applies"
        for name in ("target", "quality"):
            earlier = (
                previous
                for previous in catalog.rules[:index]
                if getattr(previous, name) is not None and previous.when in (RuleWhen(), rule.when)
            )
            if getattr(rule, name) is not None and (first := next(earlier, None)) is not None:
                yield f"rule {rule.name}: its {name} never applies, because rule {first.name} before it always does too"
        left = bounds_of(catalog, rule)
        everything = len(left.tiers) == len(catalog.tiers) and len(left.targets) == len(catalog.targets)
        if everything and rule.target is None and rule.quality is None:
            yield f"rule {rule.name}: allows every tier and target, so it changes nothing"


def _conflicts(catalog: Catalog) -> Iterator[str]:
    for rule, other in combinations(catalog.rules, 2):
        left = bounds_of(catalog, rule).tiers & bounds_of(catalog, other).tiers
        if not left and _may_both_match(rule.when, other.when):
            yield f"rules {rule.name} and {other.name}: leave no tier together; AIO refuses requests that match both"


def _may_both_match(first: RuleWhen, second: RuleWhen) -> bool:
    """Return False only if no request can match both."""
    for mine, theirs in ((first.team, second.team), (first.language, second.language)):
        if mine is not None and theirs is not None and not set(mine) & set(theirs):
            return False
    for mine_by_name, theirs_by_name in ((first.tag, second.tag), (first.header, second.header)):
        for name in mine_by_name.keys() & theirs_by_name.keys():
            values, others = set(mine_by_name[name]), set(theirs_by_name[name])
            if ANY not in values | others and not values & others:
                return False
    if (first.min_tokens or 0) > _most(second) or (second.min_tokens or 0) > _most(first):
        return False
    if first.hour is None or second.hour is None or first.time_zone != second.time_zone:
        return True
    return bool(_minutes(first.hour) & _minutes(second.hour))


def _most(when: RuleWhen) -> float:
    return float("inf") if when.max_tokens is None else when.max_tokens


def _minutes(hour: str) -> set[int]:
    first, end = minutes_of(hour) or (0, 0)
    return set(range(first, end)) if first < end else set(range(first, _DAY_MINUTES)) | set(range(end))


def _known(catalog: Catalog) -> list[str]:
    names = [tier.name for tier in catalog.tiers] + [target.name for target in catalog.targets]
    return list(dict.fromkeys([*names, *(f"tier-{tier.number}" for tier in catalog.tiers)]))


def _chain(tier: TierSpec) -> str:
    return " → ".join([tier.name, *tier.fallback]) if tier.fallback else "none; the caller gets its failures"


def _conditions(when: RuleWhen) -> str:
    said = [f"{name} {_any(values)}" for name in ("key", "team", "language") if (values := getattr(when, name))]
    said += [f"tag {name} = {_any(values)}" for name, values in when.tag.items()]
    said += [f"header {name} = {_any(values)}" for name, values in when.header.items()]
    said += [] if when.hour is None else [f"{when.hour} {when.time_zone}"]
    said += [] if when.min_tokens is None else [f"at least {when.min_tokens} tokens"]
    said += [] if when.max_tokens is None else [f"at most {when.max_tokens} tokens"]
    return ", ".join(said) or "every request"


def _effects(rule: RuleSpec) -> str:
    said = [] if rule.allow is None else [f"allows {', '.join(rule.allow)}"]
    said += [] if rule.floor is None else [f"at least {rule.floor}"]
    said += [] if rule.target is None else [f"to {rule.target}"]
    said += [] if rule.quality is None else [f"quality {rule.quality}"]
    return ", ".join(said)


def _any(values: Collection[str]) -> str:
    return " or ".join(values)
