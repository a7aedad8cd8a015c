"""Budgets of keys and teams: the order that sets one."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.base.requests.inference_request import Period
from gateway.operations.usecases.keys import Reason
from gateway.tenancy.budgets.lease_book import BudgetUsd


class BudgetOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At most `amount_usd` per calendar day or month (UTC) or in total, for the key or team of this id or name."""

    kind: Literal["key", "team"]
    subject: Annotated[str, Meta(min_length=1, max_length=128)]
    period: Period
    amount_usd: BudgetUsd
    reason: Reason | None = None
