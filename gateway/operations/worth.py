"""Does routing pay here? The verdicts by all probes, in numbers and in words."""

import msgspec

from gateway.base.stores.database import reached
from gateway.operations.running import Operations
from quality.comparison.routing_probes import WorthFound
from quality.comparison.routing_worth import RoutingWorth, in_words


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """The worth of routing for one key, or for the catalogue: None without probes; `sentence` says it in words."""

    name: str
    sentence: str
    worth: RoutingWorth | None


class WorthShown(msgspec.Struct, frozen=True, kw_only=True):
    """`constant`: the routing knob. Each key has bounds of its own; they are not bounds over all keys at once."""

    constant: str
    catalogue: Said
    keys: list[Said]


async def worth_shown(operations: Operations) -> WorthShown:
    """Return the verdicts by the probes that are stored now. Raises `ApiError` 503."""
    found = await reached(operations.constant.found())
    return worth_said(found, operations.serving.routing.knobs.active.constant)


def worth_last(operations: Operations) -> WorthShown | None:
    """Return the verdicts of the last look, without asking the database; None before the first and with one tier."""
    found = operations.constant.last
    return None if found is None else worth_said(found, operations.serving.routing.knobs.active.constant)


def worth_said(worth: WorthFound, constant: str) -> WorthShown:
    """Put verdicts into words; `constant` is the routing knob."""
    return WorthShown(
        constant=constant,
        catalogue=Said(name="all keys", sentence=in_words(worth.catalogue, constant), worth=worth.catalogue),
        keys=[Said(name=one.name, sentence=in_words(one.worth, constant), worth=one.worth) for one in worth.keys],
    )
