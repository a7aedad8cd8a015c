"""Changes of live knobs, of files and of replicas: carried out, and recorded with their author."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from gateway.base.errors import ApiError
from gateway.base.knobs import KnobFile
from gateway.base.numbers import whole_number
from gateway.inference.catalogue.replica_knobs import ReplicaKnobs
from gateway.operations.running import Operations
from quality.store.database import MOST_INTEGER
from quality.store.queries import KnobChange

REPLICAS = "replicas"


class PartChange(NamedTuple):
    """The knobs of a part, named as the history names it, before and after a change."""

    part: str
    before: msgspec.Struct
    after: msgspec.Struct


class KnobsWritten(NamedTuple):
    """What changed, and whether the database has it: it applies and is logged even while the database is down."""

    changed: list[KnobChange]
    recorded: bool


async def order_knobs(
    operations: Operations, actor: str, knobs: KnobFile[Any], wanted: Mapping[str, Any], reason: str | None
) -> KnobsWritten:
    """Change the knobs of a file to `wanted`. Raises `ApiError`."""
    part = knobs.part
    return await carry_out_order(
        operations, actor, wanted, reason, part, lambda named: [PartChange(part, *knobs.change(named))]
    )


async def carry_out_order(
    operations: Operations,
    actor: str,
    wanted: Mapping[str, Any],
    reason: str | None,
    part: str,
    change: Callable[[Mapping[str, Any]], Sequence[PartChange]],
) -> KnobsWritten:
    """Apply `change` to `wanted`, and record that or the refusal in the history of `part`. Raises `ApiError`."""
    knobs = operations.core_knobs
    try:
        made = change(wanted)
    except ApiError as error:
        name = error.body.param or ""
        refused = _change(actor, part, name, None, wanted.get(name), reason, str(error))
        await knobs.write_down([refused])
        raise
    except OSError as error:
        raise ApiError(503, f"The knobs cannot be saved: {error}.", code="knobs_unwritable") from error
    changed = [
        _change(actor, one.part, name, getattr(one.before, name), getattr(one.after, name), reason)
        for one in made
        for name in one.after.__struct_fields__
        if getattr(one.before, name) != getattr(one.after, name)
    ]
    return KnobsWritten(changed, await knobs.write_down(changed))


def _change(
    actor: str, part: str, knob: str, old: Any, new: Any, reason: str | None, refused: str | None = None
) -> KnobChange:
    return KnobChange(
        created_at=time.time(),
        actor=actor,
        part=part,
        model=None,
        knob=knob,
        old_value=old,
        new_value=new,
        reason=reason,
        kept=True,
        refused=refused,
    )


def change_id(text: str | None) -> int | None:
    """Return the query parameter `before` of a history. Raises `ApiError` 400."""
    return None if text is None else whole_number(text, "before", 1, MOST_INTEGER)


async def order_replicas(
    operations: Operations, actor: str, wanted: Mapping[str, Any], reason: str, part: str = REPLICAS
) -> KnobsWritten:
    """Change the knobs of all tiers with replicas, or those of the tier called `part`, without a body. Raises
    `ApiError`."""
    knobs = operations.replica_knobs
    numbers = [number for number in knobs.sets if part in (REPLICAS, part_of(number))]
    return await carry_out_order(
        operations, actor, wanted, reason, part, lambda named: replica_changes(knobs, numbers, named)
    )


def replica_changes(knobs: ReplicaKnobs, numbers: list[int], wanted: Mapping[str, Any]) -> list[PartChange]:
    """Change the knobs of these tiers, all or none; return those of each. Raises `ApiError`."""
    return [PartChange(part_of(one.tier.number), one.before, one.after) for one in knobs.change(numbers, wanted)]


def part_of(tier: int) -> str:
    """Return what the history calls the replicas of a tier."""
    return f"{REPLICAS} of tier {tier}"
