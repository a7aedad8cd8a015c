"""Refuse URLs of callers that a tier's server would open, and that are not public.

What names a URL is known by the field: `url`, `image_url`, `file_uri` and the like hold one; `image`, `audio` or `file`
may hold one instead of bytes. What a tool was given or has found is text, which no server opens.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

from tiers.errors import BadRequestError
from tiers.server_words import host_problem, looks_like_url, url_problem

_MAY_NAME = re.compile(rb"ur[li]|href|src|link|image|audio|video|file|media|mask|voice|reference|\\u00", re.IGNORECASE)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_URL = re.compile(r"(?:\w*ur[li]s?|href|src|links?)\Z")
_MEDIUM = re.compile(r"(?:image|img|audio|video|file|media|mask|voice|reference)s?\Z")
_HOST = re.compile(r"\s*(?:[^/?#\s@]*@)?(\[[^\]]*\]|[^/?#:\s]+)")
# Fields of tools and their calls, and notes to an answer.
_DATA = frozenset(
    {"arguments", "parameters", "input_schema", "json_schema", "schema", "annotations", "citations", "headers"}
)
_CALL = re.compile(r"tool_use\Z|.+_(?:call|tool_use|tool_result|citation)\Z")


def refuse_urls(value: Any, where: str) -> None:
    """Raises `BadRequestError` that names the first field with such a URL in `value`, JSON at the path `where`."""
    for path, problem in _problems(value, where, ""):
        raise BadRequestError(
            f"{path}: give a public https: or http: address, or a data: URL; {problem}.", path, "invalid_value"
        )


def refuse_raw(raw: bytes, where: str) -> None:
    """Do the same for JSON that is not decoded."""
    if _MAY_NAME.search(raw):
        refuse_urls(msgspec.json.decode(raw), where)


def refuse_turn(raw: bytes, where: str) -> None:
    """Do the same for a part of a conversation or a tool in the form of any API, except for what calls hold."""
    if _MAY_NAME.search(raw):
        refuse_urls(_without_calls(msgspec.json.decode(raw)), where)


def _without_calls(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_calls(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if _CALL.match(str(value.get("type"))):
        return None
    return {name: _without_calls(inner) for name, inner in value.items() if name not in _DATA}


def _problems(value: Any, path: str, naming: str) -> Iterator[tuple[str, str]]:
    """The paths of refused URLs, and why. `naming`: "url" in a field that holds one, "medium" in one that may."""
    if isinstance(value, dict):
        for name, inner in value.items():
            own = _naming(name) or (naming and "medium")
            yield from _problems(inner, f"{path}.{name}" if path else name, own)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _problems(inner, f"{path}[{index}]", naming)
    elif isinstance(value, str) and naming and (problem := _problem(value, naming)):
        yield path, problem


def _problem(text: str, naming: str) -> str:
    if looks_like_url(text):
        # A scheme that is missing is added by libraries.
        return url_problem(f"http:{text.lstrip()}" if text.lstrip()[0] in "/\\" else text)
    if naming == "url" and (host := _HOST.match(text)):
        with suppress(ValueError):
            return host_problem(host[1])
    return ""


def _naming(name: str) -> str:
    words = [word.lower() for word in _WORD.findall(name)]
    if any(map(_URL.match, words)):
        return "url"
    return "medium" if any(map(_MEDIUM.match, words)) else ""
