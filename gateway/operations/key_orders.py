"""The orders that change keys and teams, and set their budgets, for commands and endpoints."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.base.inference_request import Period
from gateway.tenancy.budgets.lease_book import BudgetUsd
from gateway.tenancy.keys.key_commands import GRACE_SECONDS, KeyTerms, Name

Reason = Annotated[str, Meta(min_length=1, max_length=1024)]
MOST_GRACE_SECONDS = 90 * 24 * 3600.0


class KeyOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new key: its name, its team (name or id), and its terms."""

    name: Name
    team: str | None = None
    terms: KeyTerms = KeyTerms()
    reason: Reason | None = None


class ChangeOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """New terms of a key; omitted fields of `terms` stay."""

    terms: KeyTerms
    reason: Reason | None = None


class RotateOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long the old secret stays valid besides the new one; a day by default, at most 90."""

    grace_seconds: Annotated[float, Meta(ge=0, le=MOST_GRACE_SECONDS)] = GRACE_SECONDS
    reason: Reason | None = None


class VerbOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reason, which is recorded."""

    reason: Reason | None = None


class TeamOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new team."""

    name: Name
    reason: Reason | None = None


class BudgetOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At most `amount_usd` per calendar day or month (UTC) or in total, for the key or team of this id or name."""

    kind: Literal["key", "team"]
    subject: Annotated[str, Meta(min_length=1, max_length=128)]
    period: Period
    amount_usd: BudgetUsd
    reason: Reason | None = None
