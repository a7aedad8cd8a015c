"""What a catalogue says of prompts before a tier may see them: which ones are private, and which guardrails judge
them and their answers."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

import msgspec

from tiers.metadata_addresses import is_metadata_host

RuleName = Literal["email", "phone", "card", "iban", "api-key", "private-key", "national-id"]
RULES: tuple[RuleName, ...] = get_args(RuleName)
Stage = Literal["request", "answer"]
STAGES: tuple[Stage, ...] = get_args(Stage)
_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class PrivateSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prompts that only local tiers may see. `rules`: what is looked for in their texts. `patterns`: further regular
    expressions, by a name that reasons show. `unreadable`: whether a prompt with something that no rule can read
    (images, audio, files, token ids) is private. `store`: whether texts of private requests may be stored, sampled and
    learned from."""

    rules: list[RuleName] = msgspec.field(default_factory=lambda: list(RULES))
    patterns: dict[Annotated[str, msgspec.Meta(min_length=1, max_length=64)], str] = {}
    unreadable: bool = True
    store: bool = True


class GuardrailSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A judge of texts: a class in process (`python`, as `module:Class`, made with `options`), or a server (`url`).

    `on`: the stages that it is asked at. `fail`: what becomes of a text that it does not judge within
    `timeout_seconds`, or at all: `closed` refuses the request, `open` lets the text pass. `local`: whether what the
    server is sent stays in the operator's network. `api_key_env`: the variable that holds the server's bearer token.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    python: str | None = None
    url: str | None = None
    on: Annotated[list[Stage], msgspec.Meta(min_length=1)] = msgspec.field(default_factory=lambda: list(STAGES))
    fail: Literal["closed", "open"] = "closed"
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=600)] = 5.0
    local: bool | None = None
    api_key_env: str | None = None
    options: dict[str, Any] = {}

    @property
    def is_local(self) -> bool:
        """Whether what it is sent stays in the operator's network: as declared, else where it runs in process."""
        return self.url is None if self.local is None else self.local


def screening_problems(private: PrivateSpec | None, guardrails: list[GuardrailSpec]) -> Iterator[str]:
    """Yield every violated rule as one sentence that names the entry, the value and what is allowed."""
    for name, pattern in ({} if private is None else private.patterns).items():
        try:
            if re.compile(pattern).search("") is not None:
                yield f"private.patterns.{name} = {pattern!r}: it matches every text, the empty one included"
        except re.error as error:
            yield f"private.patterns.{name} = {pattern!r}: no regular expression: {error}"
    names = [one.name for one in guardrails]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"guardrails: the name {name!r} occurs {names.count(name)} times"
    for place, one in enumerate(guardrails):
        yield from _guardrail_problems(f"guardrails[{place}] ({one.name})", one)


def _guardrail_problems(where: str, one: GuardrailSpec) -> Iterator[str]:
    if (one.python is None) == (one.url is None):
        yield f"{where}: give either python, as module:Class, or url"
    elif one.python is not None:
        if not _CLASS.fullmatch(one.python):
            yield f"{where}.python = {one.python!r}: must be module:Class"
        if one.local is not None or one.api_key_env is not None:
            yield f"{where}: local and api_key_env are of servers, and this one runs in process"
    elif one.url is not None:
        parts = urlsplit(one.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            yield f"{where}.url = {one.url!r}: must be an http or https URL without a user"
        elif is_metadata_host(parts.hostname):
            yield f"{where}.url = {one.url!r}: clouds have their metadata there"
        if one.options:
            yield f"{where}.options: they are of classes in process, and this is a server"
