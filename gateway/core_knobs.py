"""The live knobs of the core behind a gateway: shown, changed, and every change and refusal written down."""

import asyncio
import logging
import time
from typing import Any

import msgspec
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.errors import ApiError, bad_request
from inference_core.client import CoreClient
from inference_core.errors import CoreGoneError, InvalidRequestError
from inference_core.live_knobs import KNOB_NAMES
from inference_core.protocol import Knobs, KnobsSet, KnobValue, ModelStats
from quality.knob_log import KnobChange, list_knob_changes, record_knob_changes

log = logging.getLogger(__name__)

PART = "core"
# The schema's; a name that no knob has may be of any length.
MAX_NAME = 64


class KnobOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Who wants what: `changes` by knob for `model` (None: for all); `keep`: across restarts of the core."""

    changes: dict[str, KnobValue]
    actor: str
    model: str | None = None
    keep: bool = False
    reason: str | None = None


class KnobsChanged(msgspec.Struct, frozen=True, kw_only=True):
    """What an order changed, and the knobs now in force by model.

    `recorded` is False while the database is away; the changes are in force, in the log, and written down when it is
    back.
    """

    changed: list[KnobChange]
    models: dict[str, Knobs]
    recorded: bool


class CoreKnobs:
    """Speaks to `core` (None: every tier is remote) and writes into `engine`'s store.

    What the store cannot take now is kept in memory and written with the next change, look at the history or scrape.
    """

    def __init__(self, core: CoreClient | None, engine: AsyncEngine) -> None:
        self._core, self._engine = core, engine
        self._unwritten: list[KnobChange] = []
        self._writing = asyncio.Lock()

    @property
    def has_core(self) -> bool:
        """Whether this gateway speaks to a core at all."""
        return self._core is not None

    async def models(self) -> list[ModelStats]:
        """What every model of the core is at, its knobs included. Raises `ApiError` 503 without a core."""
        core = self._there()
        try:
            return (await core.stats()).models
        except CoreGoneError as error:
            raise _gone(error) from error

    async def change(self, order: KnobOrder) -> KnobsChanged:
        """Carry out `order` whole or not at all. Raises `ApiError`: 400 naming the knob, 503 without a core."""
        try:
            answer = await self._set(order)
        except InvalidRequestError as error:
            await self._write_down([_refusal(order, error)])
            code = "invalid_value" if error.param in (*KNOB_NAMES, "model", "keep") else "unknown_parameter"
            raise bad_request(f"{error}.", error.param, code) from None
        changed = _changes(order, answer)
        recorded = await self._write_down(changed)
        return KnobsChanged(changed=changed, models=answer.knobs, recorded=recorded)

    async def history(self, limit: int, before: int | None, knob: str | None) -> list[KnobChange]:
        """Changes and refusals, newest first. Raises `ApiError` 503 while the database is away."""
        try:
            await self._flush()
            return await list_knob_changes(self._engine, limit=limit, before=before, knob=knob)
        except (SQLAlchemyError, OSError) as error:
            raise ApiError(503, "The database is away. Try again later.", code="database_unavailable") from error

    async def _set(self, order: KnobOrder) -> KnobsSet:
        core = self._there()
        try:
            return await core.set_knobs(order.changes, order.model, keep=order.keep)
        except CoreGoneError as error:
            raise _gone(error) from error

    def _there(self) -> CoreClient:
        if self._core is None:
            raise ApiError(503, "This server has no core of its own: all its tiers are remote.", code="no_core")
        return self._core

    async def _write_down(self, changes: list[KnobChange]) -> bool:
        """Log `changes` and store them; whether the store has them."""
        for change in changes:
            log.info("knob: %s", msgspec.json.encode(change).decode())
        self._unwritten += changes
        try:
            await self._flush()
        except (SQLAlchemyError, OSError) as error:
            log.warning("%d knob changes are not in the database yet: %s", len(self._unwritten), error)
            return False
        return True

    async def _flush(self) -> None:
        async with self._writing:
            waiting = list(self._unwritten)
            await record_knob_changes(self._engine, waiting)
            del self._unwritten[: len(waiting)]


def _gone(error: CoreGoneError) -> ApiError:
    return ApiError(503, f"The core is away: {error}.", code="core_unavailable")


def _changes(order: KnobOrder, answer: KnobsSet) -> list[KnobChange]:
    """A change for every knob of every model that the order named and that a keeping or a new value concerns."""
    changes = []
    for model, after in answer.knobs.items():
        if order.model not in (None, model):
            continue
        for name in order.changes:
            old, new = getattr(answer.before[model], name), getattr(after, name)
            if old != new or order.keep:
                changes.append(_change(order, model, name, old, new))
    return changes


def _refusal(order: KnobOrder, error: InvalidRequestError) -> KnobChange:
    name = (error.param or "")[:MAX_NAME]
    return _change(order, order.model, name, None, order.changes.get(error.param or ""), str(error))


def _change(
    order: KnobOrder, model: str | None, knob: str, old: Any, new: Any, refused: str | None = None
) -> KnobChange:
    return KnobChange(
        created_at=time.time(),
        actor=order.actor,
        part=PART,
        model=model,
        knob=knob,
        old_value=old,
        new_value=new,
        reason=order.reason,
        kept=order.keep,
        refused=refused,
    )
