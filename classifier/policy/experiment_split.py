"""The traffic split of an experiment: the arm of a request, if any, by a hash of its id (QM-11)."""

import hashlib
from typing import Literal

import msgspec

ArmName = Literal["a", "b"]
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
    """An experiment as servers apply it: each arm gets half of the `share` of the requests. Raises `ValueError`."""

    experiment_id: str
    share: float
    a: Arm
    b: Arm

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0:
            raise ValueError(f"an experiment's share is {self.share}; it must be above 0 and at most 1")
        if self.a == self.b:
            raise ValueError(f"both arms are {self.a}; they must differ")

    def arm_of(self, request_id: str) -> ArmName | None:
        """Return the arm of a request, which is the same at any time and on any replica."""
        draw = _draw(self.experiment_id, request_id)
        if draw >= self.share:
            return None
        return "a" if draw < self.share / 2 else "b"

    def arm(self, name: ArmName) -> Arm:
        """Return the arm of that name."""
        return self.a if name == "a" else self.b

    @property
    def tiers(self) -> list[int]:
        """The tiers of arms that route to tiers."""
        return [arm.tier for arm in (self.a, self.b) if arm.tier is not None]


def _draw(experiment_id: str, request_id: str) -> float:
    key = hashlib.blake2b(experiment_id.encode()).digest()
    digest = hashlib.blake2b(request_id.encode(errors="replace"), digest_size=8, key=key, person=_PERSON)
    return int.from_bytes(digest.digest(), "big") / 2**64
