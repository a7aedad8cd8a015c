"""The live knobs of replica sets: differences from the catalogue, in a file that all gateway processes follow."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from gateway.base.errors import bad_request
from gateway.base.knobs import check_knobs
from gateway.base.stores.followed_file import FollowedFile
from tiers.catalog.replica_spec import BalancingSpec
from tiers.tier import Tier

if TYPE_CHECKING:
    from tiers.replicas.replica_set import ReplicaSet

log = logging.getLogger(__name__)

Overrides = dict[str, dict[str, Any]]


class BalancingChange(NamedTuple):
    """A tier's load balancing before and after a change."""

    tier: "ReplicaSet"
    before: BalancingSpec
    after: BalancingSpec


class ReplicaKnobs:
    """Sets `balancing` of the replicated ones of `tiers`, from `path`; None keeps changes in memory only.

    A file that cannot be used changes nothing.
    """

    def __init__(self, tiers: Iterable[Tier], path: Path | None = None) -> None:
        self._overrides: Overrides = {}
        self._file = FollowedFile(path, self._take, "knobs of replicas")
        self._set(tiers)
        self.refresh()

    def renew(self, tiers: Iterable[Tier]) -> None:
        """Continue with these tiers, some of which may be new; the current knobs stay. Never raises."""
        self._set(tiers)
        try:
            self._apply(self._overrides)
        except Exception as error:
            log.error("the catalogue's replica knobs apply, since changed ones do not fit: %s", error)

    def _set(self, tiers: Iterable[Tier]) -> None:
        now = (tier.active_tier() for tier in tiers)
        # The contract of the tiers with replicas.
        self.sets = {tier.number: cast("ReplicaSet", tier) for tier in now if tier.replicas()}
        self._catalog = {number: tier.balancing for number, tier in self.sets.items()}

    def refresh(self) -> None:
        """Read the file again if it has changed; never raises."""
        self._file.refresh()

    async def follow(self, seconds: float) -> None:
        await self._file.follow(seconds)

    def change(self, numbers: Iterable[int], changes: Mapping[str, Any]) -> list[BalancingChange]:
        """Apply `changes` to these tiers, all or none, here at once and in other processes soon.

        None restores the catalogue's value. Raises `ApiError` 400 naming the knob or the tier, and OSError if the file
        cannot be written; then nothing has changed.
        """
        self.refresh()
        overrides = {name: dict(knobs) for name, knobs in self._overrides.items()}
        for number in numbers:
            if number not in self.sets:
                there = ", ".join(map(str, self.sets)) or "none"
                raise bad_request(
                    f"Tier {number} has no replicas; tiers with replicas: {there}.", "tier", "invalid_value"
                )
            knobs = overrides.get(self.sets[number].name, {}) | dict(changes)
            overrides[self.sets[number].name] = {name: value for name, value in knobs.items() if value is not None}
        self._specs(overrides)
        self._file.replace(overrides)
        return self._apply(overrides)

    def _take(self, content: bytes) -> None:
        self._apply(msgspec.json.decode(content, type=Overrides))

    def _apply(self, overrides: Overrides) -> list[BalancingChange]:
        specs = self._specs(overrides)
        changes = [BalancingChange(tier, tier.balancing, specs[number]) for number, tier in self.sets.items()]
        for change in changes:
            change.tier.balancing = change.after
        self._overrides = overrides
        return changes

    def _specs(self, overrides: Overrides) -> dict[int, BalancingSpec]:
        return {
            number: _checked(self._catalog[number], overrides.get(tier.name, {})) for number, tier in self.sets.items()
        }


def _checked(start: BalancingSpec, knobs: Mapping[str, Any]) -> BalancingSpec:
    check_knobs(knobs, BalancingSpec, "knob of replicas")
    return msgspec.convert(msgspec.structs.asdict(start) | dict(knobs), BalancingSpec)
