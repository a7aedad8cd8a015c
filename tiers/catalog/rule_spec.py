"""Routing rules as an operator writes them: for which requests, and which tiers these may go to."""

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Script = Literal[
    "latin", "cyrillic", "greek", "arabic", "hebrew", "devanagari", "thai", "han", "kana", "hangul", "other"
]
Values = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1)]
Tokens = Annotated[int, Meta(ge=0)]
ANY = "*"
"""Of a tag or header: it is there, whatever its value."""
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)\Z")


class RuleWhen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The conditions of a rule, all of which must hold; of several values one suffices. Without any, every request.

    `key`, `team`: ids or names. `tag`: by name, values of the request's `metadata`; `header`: by name, values of its
    headers; `*` is any value. `hour`: `HH:MM-HH:MM` in `time_zone`, the end not included, over
    midnight where the end is earlier. `language`: the script that most letters of the last user turn are in, which is
    all that is looked at: `latin` is English as well as French. `min_tokens`, `max_tokens`: of the prompt, as routing
    estimates them, both included.
    """

    key: Values | None = None
    team: Values | None = None
    tag: dict[str, Values] = {}
    header: dict[str, Values] = {}
    hour: str | None = None
    time_zone: str = "UTC"
    language: Annotated[list[Script], Meta(min_length=1)] | None = None
    min_tokens: Tokens | None = None
    max_tokens: Tokens | None = None


class RuleSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds for the requests of `when`. All rules that match a request apply together.

    `allow`: the names of the tiers and targets that may answer; those of several rules intersect. `floor`: the least
    tier; the highest of several holds. `target`: the tier or target that answers in place of routing while it is up,
    of the first rule that has one. `quality`: the quality target of requests that ask for none, of the first rule that
    has one.
    """

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$")]
    when: RuleWhen = RuleWhen()
    allow: Values | None = None
    floor: str | None = None
    target: str | None = None
    quality: Annotated[float, Meta(ge=0, le=1)] | Literal["economy", "balanced", "careful"] | None = None


def minutes_of(hour: str) -> tuple[int, int] | None:
    """Return the first minute of a day and the one after the last of `HH:MM-HH:MM`; None for any other text."""
    found = _HOURS.match(hour)
    if found is None:
        return None
    return int(found[1]) * 60 + int(found[2]), int(found[3]) * 60 + int(found[4])
