"""The caller of a request and its permissions and limits, as plain data from the guard to routing and billing."""

from typing import Literal

import msgspec

from tiers.consent import ALL, NO_CREDENTIAL, Consent, Reader, hidden_from

Scope = Literal["inference", "viewer", "admin"]
# `viewer` reads what `/v1/admin` and `/admin/api` show, `admin` changes it too, and only `inference` asks for answers.
SCOPES: tuple[Scope, ...] = ("inference", "viewer", "admin")
Period = Literal["day", "month", "total"]

CALLER = "caller"
"""Where a request's state holds its Caller."""


class BudgetRef(msgspec.Struct, frozen=True, kw_only=True):
    """A budget that the caller's requests are charged to: US dollars per calendar day or month (UTC), or in total.
    `subject_kind`: whose it is, the key's own or its team's."""

    budget_id: str
    period: Period
    amount_usd: float
    subject_kind: Literal["key", "team"] = "key"

    @property
    def said(self) -> str:
        """Such as "$5 per day"."""
        return f"${self.amount_usd:g} {'in total' if self.period == 'total' else f'per {self.period}'}"


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller may use; None is no bound. Rates are per sliding minute, tokens those of prompt and answer."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    budgets: tuple[BudgetRef, ...] = ()


UNLIMITED = Allowance()


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """`key_id` is the pseudonym under which rows are recorded, None without a key; a static key's is its name.

    `tenant` separates caches and prefixes: the team where there is one, else the key. `team`: its id, `team_name` what
    operators call it. `consent`: which tiers may see
    its requests, and whether these may be used for more than their answers. `quality_target`: what its requests ask for
    that name no target of their own; `min_tier`: the least tier that may answer them. `max_cost_usd`: the
    most that one of them may be predicted to cost, None for no bound. `priority_ceiling`: the most
    urgent class it may ask for (`Command.priority`: 0 goes first). `strict`: unknown fields of its requests are
    refused. `aliases`: its own names of models.
    """

    key_id: str | None = None
    name: str = ""
    team: str | None = None
    team_name: str | None = None
    scopes: frozenset[str] = frozenset(SCOPES)
    consent: Consent = ALL
    quality_target: float | None = None
    min_tier: int | None = None
    max_cost_usd: float | None = None
    priority_ceiling: int = 0
    strict: bool = False
    aliases: dict[str, str] = {}
    allowance: Allowance = UNLIMITED

    @property
    def tenant(self) -> str:
        """Whose caches and prefixes the caller shares; "" where no keys are asked for."""
        return self.team or self.key_id or ""

    def may_use(self, tier: Reader) -> bool:
        """Whether the caller may be answered by this tier; one that asks for a credential, by a request with one."""
        return tier.number >= (self.min_tier or 1) and hidden_from(tier, self.consent) in (None, NO_CREDENTIAL)


# Every caller while no keys are configured.
KEYLESS = Caller()
