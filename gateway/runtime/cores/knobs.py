"""The live knobs of the cores behind a gateway: shown, changed, with every change and refusal recorded."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.errors import bad_request
from gateway.base.stores.database import reached
from gateway.runtime.cores.reading import core_gone, read_answering, require_cores
from inference_core.engine.live_knobs import COMMON_KNOBS, KNOB_NAMES
from inference_core.errors import CoreGoneError, InvalidRequestError
from inference_core.protocol import CoreStats, Knobs, KnobsSet, KnobValue
from inference_core.transport.client import CoreClient
from quality.store.queries import KnobChange, list_knob_changes, record_knob_changes
from tiers.catalog.catalog import CPU_CORE

log = logging.getLogger(__name__)

PART = "core"
# The column's limit; a requested name may have any length.
MAX_NAME = 64
# Most that a change waits to be stored, behind others; it is stored later then.
FLUSH_SECONDS = 5.0
_CIRCUMSTANCES = ("model", "core", "keep")


class KnobOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A requested change: `changes` by knob for `model`, or all models of `core`, or (both None) all models of all
    cores.
    """

    changes: dict[str, KnobValue]
    actor: str
    model: str | None = None
    core: str | None = None
    keep: bool = False
    """Whether the change holds across restarts of the core."""
    reason: str | None = None


class KnobsChanged(msgspec.Struct, frozen=True, kw_only=True):
    """What a command changed, and the current knobs by model."""

    changed: list[KnobChange]
    models: dict[str, Knobs]
    recorded: bool
    """False while the database is down; the changes apply, are logged, and are recorded when it is back."""


class CoreKnobs:
    """Controls `cores` by name (none: every tier is remote) and records in `engine`'s store.

    What cannot be stored now is kept in memory and written with the next change, look at the history or scrape.
    """

    def __init__(self, cores: Mapping[str, CoreClient], engine: AsyncEngine) -> None:
        self._cores, self._engine = dict(cores), engine
        self._unwritten: list[KnobChange] = []
        self._writing = asyncio.Lock()
        self._changing = asyncio.Lock()

    @property
    def cores(self) -> dict[str, CoreClient]:
        return dict(self._cores)

    async def stats(self) -> dict[str, CoreStats]:
        """Return the statistics of every core that answers, by name. Raises `ApiError` 503 if none does."""
        return await read_answering(self._cores)

    async def change(self, order: KnobOrder) -> KnobsChanged:
        """Apply `order` completely or not at all. Raises `ApiError`: 400 naming the knob, 503 without a core."""
        try:
            async with self._changing:
                answers = await self._set(order, self._concerned(order))
        except InvalidRequestError as error:
            await self.write_down([_refusal(order, error)])
            code = "invalid_value" if error.param in (*KNOB_NAMES, *_CIRCUMSTANCES) else "unknown_parameter"
            raise bad_request(f"{error}.", error.param, code) from None
        changed = [change for name, answer in answers.items() for change in _changes(order, name, answer)]
        recorded = await self.write_down(changed)
        models = {model: knobs for answer in answers.values() for model, knobs in answer.knobs.items()}
        return KnobsChanged(changed=changed, models=models, recorded=recorded)

    async def history(self, limit: int, before: int | None, knob: str | None) -> list[KnobChange]:
        """Return changes and refusals, newest first. Raises `ApiError` 503 while the database is down."""
        await reached(self._flush())
        return await reached(list_knob_changes(self._engine, limit=limit, before=before, knob=knob))

    def _concerned(self, order: KnobOrder) -> dict[str, CoreClient]:
        """Return the cores that an order is for. Raises InvalidRequestError for a name that none of them knows."""
        require_cores(self._cores)
        if order.core is not None and order.core not in self._cores:
            raise InvalidRequestError(f"core {order.core!r} is unknown; there are {', '.join(self._cores)}", "core")
        named = {name: core for name, core in self._cores.items() if order.core in (None, name)}
        if order.model is None or len(self._cores) == 1:
            return named
        having = {name: core for name, core in named.items() if order.model in core.models}
        if not having and not all(core.models for core in named.values()):
            raise core_gone(CoreGoneError("not all cores have been reached yet"))
        if not having:
            loaded = ", ".join(model for core in named.values() for model in core.models)
            raise InvalidRequestError(f"model {order.model!r} is unknown; loaded: {loaded or 'none'}", "model")
        return having

    async def _set(self, order: KnobOrder, cores: Mapping[str, CoreClient]) -> dict[str, KnobsSet]:
        """Set every core's knobs. If one refuses or is unreachable, the others are reset.

        With several cores a change is kept across restarts only when all of them have accepted it.
        """
        done: dict[str, KnobsSet] = {}
        try:
            for name, core in cores.items():
                keep = order.keep and len(cores) == 1
                done[name] = await core.set_knobs(order.changes, order.model, keep=keep)
            if order.keep and len(cores) > 1:
                for core in cores.values():
                    await core.set_knobs(order.changes, order.model, keep=True)
        except (InvalidRequestError, CoreGoneError) as error:
            for name, answer in done.items():
                with contextlib.suppress(CoreGoneError):  # whose knobs are lost with it
                    await _put_back(cores[name], order, answer)
            if isinstance(error, CoreGoneError):
                raise core_gone(error) from error
            raise
        return done

    async def write_down(self, changes: list[KnobChange]) -> bool:
        """Log `changes`, of any part, and store them; return whether they are stored."""
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
        async with asyncio.timeout(FLUSH_SECONDS), self._writing:
            waiting = list(self._unwritten)
            await record_knob_changes(self._engine, waiting)
            del self._unwritten[: len(waiting)]


async def _put_back(core: CoreClient, order: KnobOrder, answer: KnobsSet) -> None:
    """Restore the previous values, model by model; those that all models have in common once."""
    for model, knobs in answer.before.items():
        own = {name: getattr(knobs, name) for name in order.changes if name not in COMMON_KNOBS}
        if own and order.model in (None, model):
            await core.set_knobs(own, model)
    any_model = next(iter(answer.before.values()))
    shared = {name: getattr(any_model, name) for name in order.changes if name in COMMON_KNOBS}
    if shared:
        await core.set_knobs(shared)


def _part(core: str) -> str:
    """Name the part in records: the CPU core is called `core`, since most servers have no other."""
    return PART if core == CPU_CORE else f"{PART} {core}"


def _changes(order: KnobOrder, core: str, answer: KnobsSet) -> list[KnobChange]:
    """Return a change per knob and model named by the order, if the value is new or is kept."""
    changes = []
    for model, after in answer.knobs.items():
        if order.model not in (None, model):
            continue
        for name in order.changes:
            old, new = getattr(answer.before[model], name), getattr(after, name)
            if old != new or order.keep:
                changes.append(_change(order, _part(core), model, name, old, new))
    return changes


def _refusal(order: KnobOrder, error: InvalidRequestError) -> KnobChange:
    name = (error.param or "")[:MAX_NAME]
    part = _part((order.core or CPU_CORE)[: MAX_NAME - len(PART) - 1])
    return _change(order, part, order.model, name, None, order.changes.get(error.param or ""), str(error))


def _change(
    order: KnobOrder, part: str, model: str | None, knob: str, old: Any, new: Any, refused: str | None = None
) -> KnobChange:
    return KnobChange(
        created_at=time.time(),
        actor=order.actor,
        part=part,
        model=model,
        knob=knob,
        old_value=old,
        new_value=new,
        reason=order.reason,
        kept=order.keep,
        refused=refused,
    )
