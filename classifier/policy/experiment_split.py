"""The traffic split of an experiment: the arm of a unit (a user, a key, a conversation or a request), if any, by a hash
of its name (SPEC QM-11)."""

import hashlib
from typing import Literal

import msgspec

ArmName = Literal["a", "b"]
SplitBy = Literal["user", "key", "conversation", "request"]
_PERSON = b"aio-split-v1"


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """How an arm routes: by a classifier version, or to a tier. Raises `ValueError` unless exactly one is given."""

    version: str | None = None
    tier: int | None = None

    def __post_init__(self) -> None:
        if (self.version is None) == (self.tier is None):
            raise ValueError("an arm is a version or a tier; give one of both")

    def __str__(self) -> str:
        return f"version {self.version}" if self.tier is None else f"tier {self.tier}"


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment as servers apply it: each arm gets half of the `share` of the units.

    Raises `ValueError`.
    """

    experiment_id: str
    share: float
    a: Arm
    b: Arm
    by: SplitBy = "request"
    """The unit, all of whose requests have the same arm. A split that was stored without it is by request."""

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0:
            raise ValueError(f"an experiment's share is {self.share}; it must be above 0 and at most 1")
        if self.a == self.b:
            raise ValueError(f"both arms are {self.a}; they must differ")

    def arm_of(self, unit: str) -> ArmName | None:
        """Return the arm of the unit of this name, which is the same at any time and on any replica."""
        draw = int(self.pseudonym(unit), 16) / 2**64
        if draw >= self.share:
            return None
        return "a" if draw < self.share / 2 else "b"

    def pseudonym(self, unit: str) -> str:
        """Return 16 hexadecimal digits that stand for the unit in this experiment, and in no other."""
        key = hashlib.blake2b(self.experiment_id.encode()).digest()
        return hashlib.blake2b(unit.encode(errors="replace"), digest_size=8, key=key, person=_PERSON).hexdigest()

    def arm(self, name: ArmName) -> Arm:
        return self.a if name == "a" else self.b

    @property
    def tiers(self) -> list[int]:
        return [arm.tier for arm in (self.a, self.b) if arm.tier is not None]
