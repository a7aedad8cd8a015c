"""Whether a tier may see a request: the one question of every use of a prompt, and what the prompt's owner allows."""

from typing import ClassVar, Literal, Protocol

import msgspec

Use = Literal["answer", "reuse"]
"""`answer`: the request's own answer, by whichever tier, sample or replica gives it. `reuse`: everything else, such as
verification, probes, shadows, judges and training."""

NOT_ALLOWED = "the key may not use it"
NOT_LOCAL = "only tiers that are labelled local may see the request"
ANSWER_ALONE = "the request may only be used for its answer"
NO_CREDENTIAL = "it is asked only first, with the caller's own credential (x-aio-upstream-authorization)"


class Consent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the owner of a request consents to; recorded with the request's texts, so that later uses ask again."""

    has_credential: ClassVar[bool] = False
    """Whether the request brings its owner's own credential, for a tier that asks for one."""
    tiers: frozenset[int] | None = None
    """The numbers of the tiers that may see it; None for all."""
    local: bool = False
    """Whether only tiers that the catalogue labels local may see it."""
    reuse: bool = True
    """Whether its texts may be stored, sampled and learned from."""

    @property
    def is_for_all(self) -> bool:
        """Whether every tier may see it for its answer, those that ask for a credential aside."""
        return self.tiers is None and not self.local

    def narrowed(self, other: "Consent") -> "Consent":
        """Return what both consent to."""
        if other == ALL or self is other:
            return self
        if self == ALL:
            return other
        named = [tiers for tiers in (self.tiers, other.tiers) if tiers is not None]
        return Consent(
            tiers=frozenset.intersection(*named) if named else None,
            local=self.local or other.local,
            reuse=self.reuse and other.reuse,
        )

    @property
    def recorded(self) -> "Consent":
        """What is kept of it."""
        return self


ALL = Consent()


class CredentialConsent(Consent, frozen=True, kw_only=True, omit_defaults=True):
    """The consent of a request with a credential; never recorded."""

    has_credential = True

    @classmethod
    def of(cls, consent: Consent) -> "CredentialConsent":
        """Return `consent`, with a credential."""
        return cls(tiers=consent.tiers, local=consent.local, reuse=consent.reuse)

    @property
    def recorded(self) -> Consent:
        return Consent(tiers=self.tiers, local=self.local, reuse=self.reuse)


class Reader(Protocol):
    """Who would see a request: a tier, or its entry in the catalogue."""

    @property
    def number(self) -> int: ...

    @property
    def is_local(self) -> bool: ...

    @property
    def asks_credential(self) -> bool: ...


def hidden_from(tier: Reader, consent: Consent, use: Use = "answer") -> str | None:
    """Return why `tier` may not see a request of this `consent` for this `use`; None if it may."""
    if consent is ALL:
        return NO_CREDENTIAL if tier.asks_credential else None
    if use == "reuse" and not consent.reuse:
        return ANSWER_ALONE
    if consent.tiers is not None and tier.number not in consent.tiers:
        return NOT_ALLOWED
    if consent.local and not tier.is_local:
        return NOT_LOCAL
    if tier.asks_credential and not (use == "answer" and consent.has_credential):
        return NO_CREDENTIAL
    return None
