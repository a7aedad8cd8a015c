"""What servers have refused: parameters that are left out of further requests, or sent by another name."""

import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from tiers.remote.refusals import RENAMED, STREAM_OPTIONS

MOST = 1000
"""Places that are known at a time."""
SECONDS = 86_400.0
"""For how long a refusal is remembered."""
NOTHING: frozenset[str] = frozenset()


class Place(NamedTuple):
    """Where something was refused: a tier, the address of its server, the API by which it was asked, and the model."""

    tier: str
    url: str
    api: str
    model: str


class LearnedRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """`parameters` that the server refuses; `until`: when that is forgotten, seconds since 1970."""

    tier: str
    url: str
    api: str
    model: str
    parameters: list[str]
    until: float


class LearnedRefusals:
    """The parameters that were refused at at most `most` places, each for `seconds`. Only what a retry without them has
    shown is noted. `known`: until when each is refused, by place."""

    def __init__(self, most: int = MOST, seconds: float = SECONDS, clock: Callable[[], float] = time.time) -> None:
        self._most, self._seconds, self._clock = most, seconds, clock
        self.known: dict[Place, dict[str, float]] = {}  # oldest first

    def at(self, place: Place) -> frozenset[str]:
        """Return the parameters that are refused there."""
        if (known := self.known.get(place)) is None:
            return NOTHING
        now = self._clock()
        return frozenset(name for name, until in known.items() if until > now)

    def learn(self, place: Place, parameters: frozenset[str]) -> None:
        """Note that the server at `place` refuses `parameters`."""
        known = self.known.pop(place, {})
        known |= dict.fromkeys(parameters, self._clock() + self._seconds)
        self.known[place] = known
        if len(self.known) > self._most:
            del self.known[next(iter(self.known))]

    def listed(self) -> list[LearnedRefusal]:
        """Return what is known, the latest last."""
        now, found = self._clock(), list[LearnedRefusal]()
        for place, known in self.known.items():
            names = sorted(name for name, until in known.items() if until > now)
            if names:
                until = max(known[name] for name in names)
                found.append(LearnedRefusal(**place._asdict(), parameters=names, until=until))
        return found

    def forget(self, tier: str | None = None) -> int:
        """Forget what is known of a tier, or all; return of how many places."""
        gone = [place for place in self.known if tier in (None, place.tier)]
        for place in gone:
            del self.known[place]
        return len(gone)


REFUSALS = LearnedRefusals()
"""Those that this process knows: all tiers share them, and a reload of the catalogue changes nothing about them."""


def without(body: bytes, refused: frozenset[str]) -> tuple[bytes, tuple[str, ...]]:
    """Return the body of a chat in OpenAI's form without `stream_options` and with the other name of its limit, as
    `refused` says, and the names of what was changed."""
    if not refused & {STREAM_OPTIONS, *RENAMED}:
        return body, ()
    said = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    changed: list[str] = []
    if STREAM_OPTIONS in refused and said.pop(STREAM_OPTIONS, None) is not None:
        changed.append(STREAM_OPTIONS)
    for name, other in RENAMED.items():
        if name in refused and name in said and other not in refused:
            said[other] = said.pop(name)
            changed.append(name)
            break
    return (msgspec.json.encode(said), tuple(changed)) if changed else (body, ())
