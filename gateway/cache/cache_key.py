"""The key of an answer: a digest of everything that it depends on, and of whose it is."""

import hashlib
from collections.abc import Sequence

import msgspec

from classifier.decision import Decision
from gateway.requests.inference_request import Ask
from tiers.catalog.tier_spec import TierSpec

# Another number for another form of what is kept: answers of both never meet in one Redis.
VERSION = 1


def is_deterministic(ask: Ask, spec: TierSpec) -> bool:
    """Whether the tier of `spec` says the same to an equal request: at temperature 0, or from a seed, all draws of our
    tiers are functions of the request (SPEC GW-04); of other servers it is what the caller asked for."""
    unset = "temperature" in ask.unset
    return ask.sampling.seed is not None or (spec.sampling.temperature if unset else ask.sampling.temperature) == 0


def cache_key(ask: Ask, decision: Decision, spec: TierSpec, catalogue: bytes) -> bytes:
    """32 bytes, equal for requests of one tenant that get the same answer while `catalogue` is in force.

    The tier that was chosen is part of it, and so is what bounds to whom that tier may hand the answer. What only
    words the answer (streaming, usage, tags) is not.
    """
    unset = {name: getattr(spec.sampling, name) for name in ask.unset}
    allowed = ask.caller.tiers
    parts = (
        VERSION,
        catalogue,
        ask.caller.tenant,
        ask.api,
        ask.requested_model,
        ask.adapter,
        decision.tier,
        decision.inputs.prediction.classifier_version,
        msgspec.structs.replace(ask.sampling, **unset),
        ask.messages,
        ask.prompts,
        ask.max_tokens,
        ask.stop,
        ask.n,
        ask.best_of,
        ask.echo,
        ask.include_stop,
        ask.reasoning_effort,
        ask.reasoning_budget,
        ask.tooling,
        ask.response_format,
        ask.wanted_quality,
        max(ask.min_tier or 0, ask.caller.min_tier or 0) or None,
        ask.max_cost_usd,
        None if allowed is None else sorted(allowed),
    )
    return hashlib.blake2b(_encode(parts), digest_size=32).digest()


class CatalogueDigest:
    """The digest of all tiers of a catalogue, computed again when one of them has been replaced."""

    def __init__(self) -> None:
        self._specs: list[TierSpec] = []
        self._digest = b""

    def of(self, specs: Sequence[TierSpec], fingerprint: str) -> bytes:
        """`fingerprint`: of the models behind the tiers (`Catalog.fingerprint`)."""
        if len(specs) != len(self._specs) or any(map(_differ, specs, self._specs)):
            self._specs = list(specs)
            self._digest = hashlib.blake2b(_encode((fingerprint, self._specs)), digest_size=16).digest()
        return self._digest


def _differ(one: TierSpec, other: TierSpec) -> bool:
    return one is not other


# As it stands: a schema whose properties come in another order makes another answer.
_encode = msgspec.msgpack.Encoder().encode
