"""What an attack class is, what one hostile input did, and which answers of 5xx are not caused by it."""

from collections.abc import Callable, Iterator
from random import Random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tests.attacks.targets import Target

EXCUSED = {
    "too_many_connections": "the connections of other clients, a limit that tells clients to come back",
    "overloaded": "the requests of other clients, likewise",
    "database_unavailable": "a database that is down, as all of these only where a class stopped it",
    "budget_unavailable": "likewise",
    "limits_unavailable": "a Redis that is down, likewise",
    "no_core": "a gateway whose tiers are all remote has no core to ask, whatever the input",
}
"""Codes of documented 503 answers that no input causes by what it holds, with what does."""


class Outcome(NamedTuple):
    """`label`: how to recognise the input. `status`: of the answer, 0 where the connection was closed without one, -1
    where nothing came in time. `code`: of the error envelope. `bypass`: what the input gained that it must not, else
    empty. `expected`: an answer of 5xx is right, because a server behind the gateway failed."""

    label: str
    status: int
    code: str = ""
    bypass: str = ""
    expected: bool = False

    @property
    def is_server_error(self) -> bool:
        """Whether the input made the server fail."""
        return self.status >= 500 and self.code not in EXCUSED and not self.expected


Attack = Callable[["Target", Random, int], Iterator[Outcome]]


class AttackClass(NamedTuple):
    """`attack` sends `inputs` inputs in a whole run to the target called `on`, and yields their outcomes. One that is
    `privileged` has an admin key; after any other the administration must be unchanged."""

    name: str
    attack: Attack
    on: str
    inputs: int
    privileged: bool


CLASSES: dict[str, AttackClass] = {}
"""By name, in the order of the report."""


def attack_class(name: str, inputs: int, *on: str, privileged: bool = False) -> Callable[[Attack], Attack]:
    """Register a class of attacks, for each of the targets `on`; the others than the first are part of the name."""

    def register(attack: Attack) -> Attack:
        for place, target in enumerate(on):
            full = name if place == 0 else f"{name} ({target})"
            # A laptop's models take their time.
            share = 1 if place == 0 else 8 if target == "laptop" else 3
            CLASSES[full] = AttackClass(full, attack, target, inputs // share, privileged)
        return attack

    return register
