"""The terms of a key: what it may do and for how long."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from classifier.complexity.quality_setting import QualitySetting
from gateway.base.numbers import MOST_EPOCH, EpochSeconds, utc_text
from gateway.base.requests.caller import Scope
from gateway.tenancy.changes.errors import TenancyError
from tiers.catalog.tier_spec import TierNumber

# Names are shown in logs and lists; ids begin with key_ and team_.
Name = Annotated[str, Meta(pattern=r"^(?!key_|team_|budget_)[A-Za-z0-9][A-Za-z0-9 ._@:-]{0,127}\Z")]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
ModelName = Annotated[str, Meta(min_length=1, max_length=256)]
# `auto` and the tiers keep their names.
Alias = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^(?!(auto|tier-[0-9]+)$)")]


class KeyTerms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An omitted field stays as it is; in a new key it takes its default. `null` means no limit."""

    scopes: Annotated[
        Annotated[list[Scope], Meta(min_length=1, max_length=3)] | UnsetType,
        Meta(description="inference (default), viewer (reads `/v1/admin` and `/admin/api`), admin (changes them too)."),
    ] = UNSET
    tiers: Annotated[
        Annotated[list[TierNumber], Meta(min_length=1)] | UnsetType | None,
        Meta(description="Tiers that may answer; `models` has to allow them too."),
    ] = UNSET
    models: Annotated[
        Annotated[list[ModelName], Meta(min_length=1, max_length=64)] | UnsetType | None,
        Meta(description="Models that may answer; `tiers` has to allow them too."),
    ] = UNSET
    quality: Annotated[
        QualitySetting | UnsetType | None,
        Meta(description="Quality target of requests that name none; null is the server's."),
    ] = UNSET
    min_tier: Annotated[TierNumber | UnsetType | None, Meta(description="Lowest tier that may answer.")] = UNSET
    consent: Annotated[
        bool | UnsetType,
        Meta(description="Whether texts may be stored, sampled and learned from."),
    ] = UNSET
    local_only: Annotated[
        bool | UnsetType,
        Meta(description="Whether only tiers that the catalogue labels local may see its requests."),
    ] = UNSET
    priority_ceiling: Annotated[
        Annotated[int, Meta(ge=0, le=2)] | UnsetType,
        Meta(description="Highest priority that may be requested; 0 allows all."),
    ] = UNSET
    requests_per_minute: Annotated[
        Count | UnsetType | None,
        Meta(description="Requests in any sliding minute."),
    ] = UNSET
    tokens_per_minute: Annotated[Count | UnsetType | None, Meta(description="Tokens in any sliding minute.")] = UNSET
    concurrency: Annotated[Count | UnsetType | None, Meta(description="Requests in flight.")] = UNSET
    max_cost_usd_per_request: Annotated[
        Annotated[float, Meta(ge=0, le=1e6)] | UnsetType | None,
        Meta(description="Most US dollars that one request may be predicted to cost, as the header `x-aio-max-cost`."),
    ] = UNSET
    strict: Annotated[
        bool | UnsetType,
        Meta(description="Whether unknown fields of a request are refused; otherwise they are ignored."),
    ] = UNSET
    aliases: Annotated[
        Annotated[dict[Alias, ModelName], Meta(min_length=1, max_length=64)] | UnsetType | None,
        Meta(description="Names that it may use for models: name to `auto`, a tier or a model; `*`: any other name."),
    ] = UNSET
    expires_at: Annotated[
        EpochSeconds | UnsetType | None,
        Meta(description="End of the key, in UTC epoch seconds."),
    ] = UNSET


_NEW: dict[str, Any] = {
    "scopes": ["inference"],
    "consent": True,
    "local_only": False,
    "priority_ceiling": 0,
    "strict": False,
}


def given(terms: KeyTerms) -> dict[str, Any]:
    """Return the given fields, as columns of `api_keys`."""
    return {name: value for name in terms.__struct_fields__ if (value := getattr(terms, name)) is not UNSET}


def columns_of_new(terms: KeyTerms, now: float) -> dict[str, Any]:
    """Return all columns for a new key. Raises `TenancyError` if it would have expired already."""
    columns = dict.fromkeys(terms.__struct_fields__) | _NEW | given(terms)
    check_expiry(columns["expires_at"], now)
    return columns


def check_expiry(expires_at: float | None, now: float) -> None:
    """Raises `TenancyError` for a time in the past (to end a key now, revoke it), or beyond the year 2100."""
    if expires_at is None or now < expires_at <= MOST_EPOCH:
        return
    reason = "has passed" if expires_at <= now else f"is after {utc_text(MOST_EPOCH)}"
    raise TenancyError(f"expires_at {utc_text(expires_at)} {reason}; it is {utc_text(now)}", "expires_at")
