"""Stored keys in memory: found by the SHA-256 of the secret, and replaced when their rows change."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from classifier.complexity.quality_setting import target_of
from gateway.base.requests.caller import Allowance, BudgetRef, Caller
from tiers.catalog.catalog import Catalog
from tiers.catalog.tier_spec import TierSpec
from tiers.consent import Consent

VIEWING: frozenset[str] = frozenset({"viewer"})
ADMINISTRATION = VIEWING | {"admin"}
# A budget's subject: its kind, and the id of the key or team.
Charges = Mapping[tuple[str, str], tuple[BudgetRef, ...]]


class KnownKey(msgspec.Struct, frozen=True):
    """A secret of a stored key: valid until `until` (epoch seconds), unless the key was revoked. `rotated`: it was
    replaced by another one."""

    digest: bytes
    caller: Caller
    until: float
    revoked: bool
    rotated: bool = False


class KnownKeys:
    """The stored keys of one catalogue. `charges`: the budgets that they are charged to."""

    def __init__(self, catalog: Catalog, charges: Charges) -> None:
        self._catalog, self._charges = catalog, charges
        self._by_digest: dict[bytes, KnownKey] = {}
        self._by_id: dict[str, tuple[KnownKey, ...]] = {}
        self._inference: set[str] = set()

    def with_digest(self, digest: bytes) -> KnownKey | None:
        """Return the key whose secret has this SHA-256. The time that it takes tells of the digest alone, and from no
        digest can a caller work towards a key."""
        return self._by_digest.get(digest)

    def secrets_of(self, key_id: str) -> Sequence[KnownKey]:
        """Return the key's current secret, and the one before it that may still be valid."""
        return self._by_id.get(key_id, ())

    def newest(self, key_id: str) -> KnownKey | None:
        """Return the key's current secret; None if there is no such key."""
        return self._by_id.get(key_id, (None,))[0]

    @property
    def ask_for_answers(self) -> bool:
        """Whether any key may request answers, ended ones included."""
        return bool(self._inference)

    @property
    def has_any(self) -> bool:
        """Whether any key is stored."""
        return bool(self._by_id)

    def may_answer(self, now: float) -> bool:
        """Whether any key valid at `now` (epoch seconds) may request answers."""
        return any(
            key.until > now and not key.revoked for key_id in self._inference for key in self._by_id.get(key_id, ())
        )

    def administer(self, now: float) -> bool:
        """Whether any key valid at `now` (epoch seconds) may administer or view."""
        return any(
            key.until > now and not key.revoked and not ADMINISTRATION.isdisjoint(key.caller.scopes)
            for key in self._all()
        )

    def put(self, row: Mapping[str, Any]) -> None:
        """Add or replace a row of `api_keys`, with the `team_name`."""
        caller = self.caller_of(row)
        until, revoked = row["expires_at"] or math.inf, row["revoked_at"] is not None
        secrets = [KnownKey(bytes.fromhex(row["digest"]), caller, until, revoked)]
        if row["old_digest"] is not None:
            old = bytes.fromhex(row["old_digest"])
            secrets.append(KnownKey(old, caller, min(until, row["old_until"]), revoked, rotated=True))
        self._replace(row["key_id"], tuple(secrets))

    def charge(self, charges: Charges) -> None:
        """Use these budgets from now on."""
        before, self._charges = self._charges, charges
        changed = {subject for subject in {*before, *charges} if before.get(subject) != charges.get(subject)}
        for key_id, secrets in list(self._by_id.items()) if changed else ():
            caller = secrets[0].caller
            if ("key", key_id) in changed or ("team", caller.team or "") in changed:
                allowance = msgspec.structs.replace(caller.allowance, budgets=self._budgets(key_id, caller.team))
                charged = msgspec.structs.replace(caller, allowance=allowance)
                self._replace(key_id, tuple(msgspec.structs.replace(key, caller=charged) for key in secrets))

    def _all(self) -> Iterator[KnownKey]:
        return (key for keys in self._by_id.values() for key in keys)

    def _replace(self, key_id: str, secrets: tuple[KnownKey, ...]) -> None:
        for gone in self._by_id.get(key_id, ()):
            self._by_digest.pop(gone.digest, None)
        for key in secrets:
            self._by_digest[key.digest] = key
        self._by_id[key_id] = secrets
        if "inference" in secrets[0].caller.scopes:
            self._inference.add(key_id)
        else:
            self._inference.discard(key_id)

    def caller_of(self, row: Mapping[str, Any]) -> Caller:
        """Return the caller with the key of a row of `api_keys`, with the `team_name`; its hashes are not read."""
        return Caller(
            key_id=row["key_id"],
            name=row["name"],
            team=row["team_id"],
            team_name=row.get("team_name"),
            scopes=frozenset(row["scopes"]),
            consent=Consent(
                tiers=self._tiers(row["tiers"], row["models"]), local=row["local_only"], reuse=row["consent"]
            ),
            quality_target=target_of(row["quality"]),
            # A minimum tier above a catalogue that has become shorter means its strongest tier.
            min_tier=None if row["min_tier"] is None else min(row["min_tier"], len(self._catalog.tiers)),
            max_cost_usd=row["max_cost_usd_per_request"],
            priority_ceiling=row["priority_ceiling"],
            strict=row["strict"],
            aliases=row["aliases"] or {},
            allowance=Allowance(
                requests_per_minute=row["requests_per_minute"],
                tokens_per_minute=row["tokens_per_minute"],
                concurrency=row["concurrency"],
                budgets=self._budgets(row["key_id"], row["team_id"]),
            ),
        )

    def _budgets(self, key_id: str, team: str | None) -> tuple[BudgetRef, ...]:
        return self._charges.get(("key", key_id), ()) + self._charges.get(("team", team or ""), ())

    def _tiers(self, tiers: list[int] | None, models: list[str] | None) -> frozenset[int] | None:
        """Return the catalogue's tiers that are in both lists; a model may be named by its own, its adapter's or its
        tier's name."""
        if tiers is None and models is None:
            return None
        return frozenset(
            spec.number
            for spec in self._catalog.tiers
            if (tiers is None or spec.number in tiers) and (models is None or not _names(spec).isdisjoint(models))
        )


def _names(spec: TierSpec) -> set[str]:
    return {spec.model_name, spec.served_name, spec.name, f"tier-{spec.number}"}
