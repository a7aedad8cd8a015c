"""The x-aio headers of a request: what the caller wants of routing."""

import re
from collections.abc import Mapping
from typing import get_args

import msgspec
from litestar.datastructures import Headers

from classifier.complexity.quality_setting import QUALITY_SETTINGS
from gateway.base.errors import bad_request
from gateway.base.numbers import number, whole_number
from gateway.base.requests.inference_request import CacheMode, PrivateMark
from gateway.base.requests.slo_class import SLO_CLASSES, SloName
from tiers.consent import ALL, Consent
from tiers.credential import HEADER, CallerCredential

_CONVERSATION = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")

CONSENT, PRIVATE = "x-aio-consent", "x-aio-private"
_OR_NAMED = f", or one of {', '.join(QUALITY_SETTINGS)}"
CACHE_MODES: tuple[CacheMode, ...] = get_args(CacheMode)


class RoutingHeaders(msgspec.Struct, frozen=True, kw_only=True):
    """`x-aio-quality` (a number, or a named setting), `x-aio-min-tier`, `x-aio-max-cost` (US dollars),
    `x-aio-deadline-ms` (to the first token), `x-aio-conversation` (the caller's own id of the conversation),
    `x-aio-slo` (what it is for: `SLO_CLASSES`),
    `x-aio-consent` (answer: to be used for its answer alone, local: to be seen by local tiers alone, or both),
    `x-aio-private` (true: the same as local, for the rest of its session too; false: nothing),
    `x-aio-cache` (use: of sampled answers too, refresh: a new answer, exact: of an equal request only, off),
    `x-aio-agree` (true, false: whether cheap tiers answer at once and are compared),
    `x-aio-may-wait` (true, false: whether the first byte of a stream may wait for that, where it pays),
    `x-aio-upstream-authorization` (the caller's own credential, for a tier that asks for it)."""

    quality_target: float | None = None
    min_tier: int | None = None
    max_cost_usd: float | None = None
    deadline_seconds: float | None = None
    conversation: str | None = None
    slo: SloName | None = None
    cache: CacheMode | None = None
    agree: bool | None = None
    may_wait: bool | None = None
    consent: Consent = ALL
    private: PrivateMark | None = None
    credential: CallerCredential | None = None


_NAMES = frozenset({
    "x-aio-quality", "x-aio-min-tier", "x-aio-max-cost", "x-aio-deadline-ms", "x-aio-conversation", "x-aio-slo",
    CONSENT, PRIVATE, "x-aio-cache", "x-aio-agree", "x-aio-may-wait", HEADER,
})  # fmt: skip
_USUAL = RoutingHeaders()


def routing_headers(headers: Mapping[str, str], tiers: int) -> RoutingHeaders:
    """Read and check the headers. Raises `ApiError` 400 naming the header, its value and what is allowed."""
    if _NAMES.isdisjoint(headers):
        return _USUAL
    deadline_ms = _number(headers, "x-aio-deadline-ms", 1, 86_400_000)
    min_tier, consent, private = headers.get("x-aio-min-tier"), _consent(headers), _private(headers)
    return RoutingHeaders(
        quality_target=_quality(headers),
        min_tier=None if min_tier is None else whole_number(min_tier, "x-aio-min-tier", 1, tiers),
        max_cost_usd=_number(headers, "x-aio-max-cost", 0, 1e6),
        deadline_seconds=None if deadline_ms is None else deadline_ms / 1e3,
        conversation=_conversation(headers.get("x-aio-conversation")),
        slo=_slo(headers.get("x-aio-slo")),
        cache=_cache(headers.get("x-aio-cache")),
        agree=_yes_or_no(headers, "x-aio-agree"),
        may_wait=_yes_or_no(headers, "x-aio-may-wait"),
        consent=consent if private is None else consent.narrowed(Consent(local=True)),
        private=private,
        credential=_credential(headers),
    )


def _quality(headers: Mapping[str, str]) -> float | None:
    value = headers.get("x-aio-quality")
    if value is None:
        return None
    named = QUALITY_SETTINGS.get(value)
    return number(value, "x-aio-quality", 0, 1, _OR_NAMED) if named is None else named


def _number(headers: Mapping[str, str], name: str, least: float, most: float) -> float | None:
    value = headers.get(name)
    return None if value is None else number(value, name, least, most)


def _conversation(value: str | None) -> str | None:
    if value is None or _CONVERSATION.match(value):
        return value
    raise bad_request(
        f"Invalid header x-aio-conversation: {value[:64]!r}; allowed are 1 to 128 letters, digits, dots, colons, "
        "underscores and hyphens.",
        "x-aio-conversation",
        "invalid_value",
    )


def _slo(value: str | None) -> SloName | None:
    if value is None:
        return None
    slo = SLO_CLASSES.get(value)
    if slo is None:
        allowed = ", ".join(SLO_CLASSES)
        raise bad_request(
            f"Invalid header x-aio-slo: {value[:64]!r}; allowed are {allowed}.", "x-aio-slo", "invalid_value"
        )
    return slo.name


def _consent(headers: Mapping[str, str]) -> Consent:
    if CONSENT not in headers:
        return ALL
    # Of several headers each one binds.
    value = ",".join(headers.getall(CONSENT)) if isinstance(headers, Headers) else headers[CONSENT]
    words = {word.strip() for word in value.split(",")}
    if words <= {"answer", "local"}:
        return Consent(local="local" in words, reuse="answer" not in words)
    raise bad_request(
        f"Invalid header {CONSENT}: {value[:64]!r}; allowed are answer, local, and both with a comma between them.",
        CONSENT,
        "invalid_value",
    )


def _private(headers: Mapping[str, str]) -> PrivateMark | None:
    if PRIVATE not in headers:
        return None
    values = headers.getall(PRIVATE) if isinstance(headers, Headers) else [headers[PRIVATE]]
    for value in values:
        if value not in ("true", "false"):
            raise bad_request(
                f"Invalid header {PRIVATE}: {value[:64]!r}; allowed are true and false.", PRIVATE, "invalid_value"
            )
    return PrivateMark("asked for", PRIVATE) if "true" in values else None


def _credential(headers: Mapping[str, str]) -> CallerCredential | None:
    if HEADER not in headers:
        return None
    try:
        return CallerCredential(headers[HEADER].strip())
    except ValueError as error:
        raise bad_request(f"Invalid header {HEADER}: {error}.", HEADER, "invalid_value") from None


def _cache(value: str | None) -> CacheMode | None:
    if value is None:
        return None
    for wish in CACHE_MODES:
        if value == wish:
            return wish
    raise bad_request(
        f"Invalid header x-aio-cache: {value[:64]!r}; allowed are {', '.join(CACHE_MODES)}.",
        "x-aio-cache",
        "invalid_value",
    )


def _yes_or_no(headers: Mapping[str, str], name: str) -> bool | None:
    value = headers.get(name)
    if value is None or value in ("true", "false"):
        return None if value is None else value == "true"
    raise bad_request(f"Invalid header {name}: {value[:64]!r}; allowed are true and false.", name, "invalid_value")
