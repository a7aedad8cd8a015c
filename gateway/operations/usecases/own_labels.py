"""The labels that routing follows: how many count, and their reset."""

import time

import msgspec

from gateway.base.errors import ApiError
from gateway.base.stores.database import reached
from gateway.operations.quality_loop.active_labels import ActiveLabels
from gateway.operations.running import Operations
from quality.store.queries import reset_labels


class LabelsShown(msgspec.Struct, frozen=True, kw_only=True):
    """`labels`: by serving version, how many of the catalogue's own labels count in its decisions."""

    labels: dict[str, int]


async def order_reset(operations: Operations, actor: str, reason: str) -> None:
    """Reset the labels until now. Raises `ApiError` 409 and 503."""
    active, now = _active(operations), time.time()
    await reached(reset_labels(operations.serving.database, actor=actor, reason=reason, now=now))
    await reached(active.catch_up(now))


def labels_shown(operations: Operations) -> LabelsShown:
    """Return those that count now. Raises `ApiError` 409 without a classifier."""
    return LabelsShown(labels=_active(operations).counts)


def _active(operations: Operations) -> ActiveLabels:
    active = operations.active_labels
    if active is None:
        raise ApiError(409, "This server has no classifier of its own.", code="classifier_off")
    return active
