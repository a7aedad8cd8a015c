"""The first requests of a family are verified densely: how many of each have been, and at which rates the next are.

A family: the requests of a key with one system prompt, in which dates, ids and numbers are masked, and one kind of
answer. The first of them that a rule judges are probes; the rates fall with the draws, to the steady sample.
A key has few new families a day, so that one whose system prompts all differ is sampled as any other.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.features.routing_input import app_of
from migrations.tables.quality import training_rows
from quality.records.record import Record

NEW_A_DAY = 3
# Up to so many draws of a family, at least this share of its answers is drawn.
RATES = ((100, 0.12), (300, 0.05))
# Among so many requests for each probe; in a family of open questions alone the search ends.
_LOOKED_AT = 10
_DAY = 86_400
_MOST_FAMILIES, _MOST_KEYS = 4096, 4096
# What masks of a system prompt look at; beyond, two prompts are hardly the same by chance.
_MOST_CHARS = 4096
_CHANGING = re.compile(
    r"[\w-]*\d[\w-]*|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b"
    r"|\b(?:january|february|march|april|may|june|july|august|september|october|november|december"
    r"|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)\b",
    re.IGNORECASE,
)


class Phase(NamedTuple):
    """The least rates at which a request is drawn as a probe, and as a sample."""

    probe: float = 0.0
    sample: float = 0.0


# Of most requests.
STEADY = Phase()


class _Family:
    def __init__(self, drawn: int) -> None:
        self.seen = self.probed = self.drawn = drawn


class Families:
    """Counts of one process; `first`: so many requests of a family that a rule judges are probes. Bounded in memory."""

    def __init__(self, first: int, clock: Callable[[], float]) -> None:
        self.first, self._clock = first, clock
        self._families: OrderedDict[tuple[str | None, str, str], _Family] = OrderedDict()
        self._new: OrderedDict[str | None, tuple[int, int]] = OrderedDict()
        self._labels: Mapping[tuple[str | None, str], int] = {}

    async def load(self, engine: AsyncEngine) -> None:
        """Read how many labels there are of each key's system prompts, so that a restart keeps the count."""
        row = training_rows.c
        query = select(row.key_id, row.app, func.count()).group_by(row.key_id, row.app)
        async with engine.connect() as connection:
            self._labels = {(key, app or ""): count for key, app, count in await connection.execute(query)}

    def phase(self, record: Record, by_rule: Callable[[], bool]) -> Phase:
        """Count a request and return its rates; takes microseconds. `by_rule`: whether a rule judges such answers."""
        family = self._of(record)
        if family is None:
            return STEADY
        family.seen += 1
        is_first = family.probed < self.first and family.seen <= _LOOKED_AT * self.first and by_rule()
        if not is_first and family.drawn >= RATES[-1][0]:
            return STEADY
        family.probed += is_first
        return Phase(float(is_first), next((rate for most, rate in RATES if family.drawn < most), 0.0))

    def drawn(self, record: Record) -> None:
        """Count a draw."""
        family = self._families.get(_name(record))
        if family is not None:
            family.drawn += 1

    def _of(self, record: Record) -> _Family | None:
        """Return the family of a request; None for a new one beyond those of the key's day."""
        name = _name(record)
        family = self._families.get(name)
        if family is None:
            label_count = self._labels.get((record.key_id, app_of(_system(record))), 0)
            if not label_count and not self._is_admitted(record.key_id):
                return None
            family = self._families[name] = _Family(label_count)
            if len(self._families) > _MOST_FAMILIES:
                self._families.popitem(last=False)
        self._families.move_to_end(name)
        return family

    def _is_admitted(self, key: str | None) -> bool:
        today = int(self._clock() // _DAY)
        day, count = self._new.get(key, (today, 0))
        count = count + 1 if day == today else 1
        if count <= NEW_A_DAY:
            self._new[key] = today, count
            self._new.move_to_end(key)
            if len(self._new) > _MOST_KEYS:
                self._new.popitem(last=False)
        return count <= NEW_A_DAY


def _system(record: Record) -> str:
    said = [
        message.get("content", "")
        for message in record.messages or ()
        if message.get("role") in ("system", "developer")
    ]
    return "\n".join(said)


def _name(record: Record) -> tuple[str | None, str, str]:
    system, form = _system(record), record.response_format
    masked = _masked(system[:_MOST_CHARS]) if system else ""
    return record.key_id, masked, "" if form is None else str(form.get("type", ""))


# Most applications send the same system prompt again and again.
@lru_cache(maxsize=256)
def _masked(system: str) -> str:
    return app_of(_CHANGING.sub("#", system))
