"""Reads full-ladder probes with the decision that routing made, and keeps what they say about routing's worth.

The costs are those that were predicted for the request, so that a tier costs the same whether routing chose it or it is
the constant. Routing's own are those of all attempts: an answer that was handed on is paid twice. While a constant or
observe mode answers, routing's choice is replayed from the stored inputs of the decision.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from sqlalchemy import RowMapping, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from classifier.decision import PolicyInputs
from classifier.errors import NoTierAllowedError, PolicyInputsError
from classifier.policy.decide import constant_choices, routed_choice
from migrations.tables.quality import training_rows
from migrations.tables.requests import requests, routing_decisions
from migrations.tables.tenancy import api_keys
from quality.comparison.routing_worth import Probes, RoutingWorth, routing_worth
from quality.records.record import inputs_reader
from quality.store.queries import labels_count_from
from quality.verification.training_rows import outcomes_of_tiers

# Rows of one query, and probes that are kept: with more, the oldest are left out.
CHUNK, MOST_PROBES = 1_000, 50_000
# Rows that another process stored under a lower number, but later, are found among so many.
OVERLAP = 100
# A key has a verdict of its own from so many probes on, and so many keys have one: those with the most.
LEAST_OF_KEY, MOST_KEYS = 50, 20
# An attempt that failed left no answer, and the next tier's cost is counted.
_FAILED = ("error", "aborted")
_read_inputs = inputs_reader(PolicyInputs)


class RoutedProbe(NamedTuple):
    """One probe of a key, as in `Probes`."""

    key_id: str | None
    no_worse: Sequence[bool]
    usd: Sequence[float]
    routed: bool
    routed_usd: float
    reference_usd: float


class WorthAsked(NamedTuple):
    """What the verdict depends on: fingerprints of the current tiers, the quality target, the worth of routing."""

    tiers: tuple[str, ...]
    target: float
    worth: float


class KeyWorth(msgspec.Struct, frozen=True, kw_only=True):
    """The worth of routing for one key."""

    key_id: str | None
    """None for requests without a key."""
    name: str
    worth: RoutingWorth


class WorthFound(msgspec.Struct, frozen=True, kw_only=True):
    """The worth of routing in a catalogue, None without probes, and for the keys with enough of them, most first."""

    catalogue: RoutingWorth | None
    keys: list[KeyWorth]
    computed_at: float
    """Epoch seconds."""


class WorthRecord:
    """What the stored probes say about routing; only new rows are read. It begins again when the catalogue's tiers
    change, when labels are reset, and when rows are deleted."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._of: tuple[Any, ...] = ()
        self._probes: dict[int, RoutedProbe | None] = {}
        self._found: tuple[WorthAsked, int, WorthFound] | None = None
        self._turn = asyncio.Lock()

    async def of(self, asked: WorthAsked) -> WorthFound:
        """Return the verdicts by all probes that are stored now."""
        async with self._turn:
            async with self._engine.connect() as connection:
                since = await labels_count_from(connection)
                if self._of != (asked.tiers, since) or await self._some_were_erased(connection, since):
                    self._of, self._probes, self._found = (asked.tiers, since), {}, None
                while await self._read(connection, asked.tiers, since):
                    pass
            newest = max(self._probes, default=0)
            if self._found is None or self._found[:2] != (asked, newest):
                probes = [probe for _, probe in sorted(self._probes.items()) if probe is not None]
                by_key = await asyncio.to_thread(_worth_by_key, probes, asked)
                names = await key_names(self._engine, [key for key in by_key if key is not None])
                keys = [
                    KeyWorth(key_id=key, name=names.get(key, key) if key else "requests without a key", worth=verdict)
                    for key, verdict in by_key.items()
                ]
                whole = await asyncio.to_thread(_worth, probes, asked) if probes else None
                verdicts = WorthFound(catalogue=whole, keys=keys, computed_at=time.time())
                self._found = asked, newest, verdicts
            return self._found[2]

    async def _some_were_erased(self, connection: AsyncConnection, since: float) -> bool:
        """Whether rows that were read are gone, because a user or old records were deleted."""
        if not self._probes:
            return False
        number = training_rows.c.training_row_id
        between = number.between(min(self._probes), max(self._probes))
        stored = await connection.scalar(select(func.count()).select_from(_JOINED).where(*_wanted(since), between))
        return (stored or 0) < len(self._probes)

    async def _read(self, connection: AsyncConnection, tiers: Sequence[str], since: float) -> bool:
        """Read the next rows; return whether there may be more."""
        # The first time the newest are wanted, in the order of their numbers; later what came since.
        number = training_rows.c.training_row_id
        if self._probes:
            after = sorted(self._probes)[-OVERLAP:][0]
        else:
            wanted = select(number).where(*_wanted(since)).order_by(number.desc()).limit(1).offset(MOST_PROBES)
            after = await connection.scalar(wanted) or 0
        query = _SELECT.where(*_wanted(since), number > after).order_by(number).limit(CHUNK + OVERLAP)
        rows = (await connection.execute(query)).mappings().all()
        new = [row for row in rows if row["number"] not in self._probes]
        self._probes |= await asyncio.to_thread(lambda: {row["number"]: _probe_of(row, tiers) for row in new})
        for oldest in sorted(self._probes)[: max(len(self._probes) - MOST_PROBES, 0)]:
            del self._probes[oldest]
        return len(rows) == CHUNK + OVERLAP and bool(new)


_JOINED = training_rows.join(requests, requests.c.request_id == training_rows.c.request_id).join(
    routing_decisions, routing_decisions.c.request_id == training_rows.c.request_id
)
_SELECT = select(
    training_rows.c.training_row_id.label("number"),
    training_rows.c.key_id,
    training_rows.c.no_worse,
    training_rows.c.tiers,
    requests.c.tier.label("answered"),
    requests.c.attempts,
    routing_decisions.c.tier.label("decided"),
    routing_decisions.c.decision,
).select_from(_JOINED)


def _wanted(since: float) -> tuple[Any, ...]:
    return training_rows.c.source == "probe", training_rows.c.created_at > since


def _probe_of(row: RowMapping, tiers: Sequence[str]) -> RoutedProbe | None:
    """Return a stored probe; None where a tier's outcome is unknown, or where routing did not decide: the request or a
    rule named a tier, or it was in an experiment."""
    try:
        inputs = _read_inputs(row["decision"])
        free = inputs.pinned_tier is None and inputs.experiment_id is None
        free = free and (inputs.rules is None or inputs.rules.tier is None)
        outcomes = outcomes_of_tiers(row["no_worse"], row["tiers"], tiers)
        if not free or outcomes is None or len(inputs.costs) != len(tiers):
            return None
        observed = [outcome for outcome in outcomes if outcome is not None]
        if len(observed) < len(tiers):
            return None
        choice, constants = routed_choice(inputs), constant_choices(inputs)
        if inputs.costs[constants[-1] - 1] <= 0:
            return None
    except (msgspec.ValidationError, PolicyInputsError, NoTierAllowedError):
        return None
    answered, attempted = choice, [choice]
    # What became of an answer is known where routing's own choice was asked.
    if inputs.observe_tier is None and not inputs.is_constant and row["decided"] == choice <= len(tiers):
        answered = min(row["answered"], len(tiers))
        attempted = [attempt["tier"] for attempt in row["attempts"] if attempt["status"] not in _FAILED] or [answered]
    return RoutedProbe(
        key_id=row["key_id"],
        no_worse=[observed[k - 1] for k in constants],
        usd=[inputs.costs[k - 1] for k in constants],
        routed=observed[answered - 1],
        routed_usd=sum(inputs.costs[min(k, len(tiers)) - 1] for k in attempted),
        reference_usd=inputs.reference,
    )


def _worth(probes: Sequence[RoutedProbe], asked: WorthAsked) -> RoutingWorth:
    table = Probes(
        np.array([probe.no_worse for probe in probes], np.float64),
        np.array([probe.usd for probe in probes], np.float64),
        np.array([probe.routed for probe in probes], np.float64),
        np.array([probe.routed_usd for probe in probes], np.float64),
        np.array([probe.reference_usd for probe in probes], np.float64),
    )
    return routing_worth(table, asked.target, asked.worth)


def _worth_by_key(probes: Sequence[RoutedProbe], asked: WorthAsked) -> dict[str | None, RoutingWorth]:
    of_key: dict[str | None, list[RoutedProbe]] = {}
    for probe in probes:
        of_key.setdefault(probe.key_id, []).append(probe)
    most = sorted(of_key, key=lambda key: -len(of_key[key]))[:MOST_KEYS]
    return {key: _worth(of_key[key], asked) for key in most if len(of_key[key]) >= LEAST_OF_KEY}


async def key_names(engine: AsyncEngine, keys: Sequence[str]) -> Mapping[str, str]:
    """Return the names of those of `keys` (ids) that exist."""
    query = select(api_keys.c.key_id, api_keys.c.name).where(api_keys.c.key_id.in_(keys))
    async with engine.connect() as connection:
        return {row.key_id: row.name for row in await connection.execute(query)}
