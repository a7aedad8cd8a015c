"""What a key may do and for how long, as an operator writes it."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from classifier.policy.quality_setting import QualitySetting
from gateway.requests.caller import Scope
from gateway.tenancy.errors import TenancyError
from tiers.catalog.tier_spec import TierNumber

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
ModelName = Annotated[str, Meta(min_length=1, max_length=256)]


class KeyTerms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A field that is left out stays as it is; in a new key it takes its default. `null` is no bound.

    `scopes`: inference (the default), viewer (reads `/v1/admin` and `/admin/api`), admin (changes them too).
    `tiers`, `models`: what may answer; a tier needs to be in both. `min_tier`: never below this tier. `quality`: the
    target of requests that name none, as a number or a name; null is the server's. `consent`: whether texts may be
    stored, sampled and learned from. `priority_ceiling`: the most urgent class it may ask for, 0 for all. Rates are per
    sliding minute. `concurrency`: requests in flight. `expires_at`: epoch seconds.
    """

    scopes: Annotated[list[Scope], Meta(min_length=1, max_length=3)] | UnsetType = UNSET
    tiers: Annotated[list[TierNumber], Meta(min_length=1)] | UnsetType | None = UNSET
    models: Annotated[list[ModelName], Meta(min_length=1, max_length=64)] | UnsetType | None = UNSET
    quality: QualitySetting | UnsetType | None = UNSET
    min_tier: TierNumber | UnsetType | None = UNSET
    consent: bool | UnsetType = UNSET
    priority_ceiling: Annotated[int, Meta(ge=0, le=2)] | UnsetType = UNSET
    requests_per_minute: Count | UnsetType | None = UNSET
    tokens_per_minute: Count | UnsetType | None = UNSET
    concurrency: Count | UnsetType | None = UNSET
    expires_at: Annotated[float, Meta(ge=0)] | UnsetType | None = UNSET


_NEW: dict[str, Any] = {"scopes": ["inference"], "consent": True, "priority_ceiling": 0}


def given(terms: KeyTerms) -> dict[str, Any]:
    """The fields that were given, as columns of `api_keys`."""
    return {name: value for name in terms.__struct_fields__ if (value := getattr(terms, name)) is not UNSET}


def columns_of_new(terms: KeyTerms, now: float) -> dict[str, Any]:
    """All columns for a new key. Raises `TenancyError` if it would have expired already."""
    columns = dict.fromkeys(terms.__struct_fields__) | _NEW | given(terms)
    check_expiry(columns["expires_at"], now)
    return columns


def check_expiry(expires_at: float | None, now: float) -> None:
    """Raises `TenancyError` for a time that has passed: to end a key now, revoke it."""
    if expires_at is not None and expires_at <= now:
        raise TenancyError(f"expires_at {expires_at:.0f} has passed; it is {now:.0f}", "expires_at")
