"""Rules of a catalogue's tables on private prompts and guardrails, beyond the type of each field."""

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from tiers.catalog.screening_spec import GuardrailSpec, PrivateSpec
from tiers.metadata_addresses import is_metadata_host

_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


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
