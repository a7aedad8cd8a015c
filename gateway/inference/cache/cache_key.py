"""The key of an answer: a digest of everything that it depends on, and of whose it is."""

import hashlib
from collections.abc import Sequence

import msgspec

from classifier.decision import Decision
from gateway.base.requests.inference_request import InferenceRequest
from tiers.catalog.tier_spec import TierSpec

# Another number for another form of what is kept: answers of both never meet in one Redis.
VERSION = 4
_SAYING = ("parallel_tool_calls", "tool_choice")


def cache_key(request: InferenceRequest, decision: Decision, spec: TierSpec, catalogue: bytes) -> bytes:
    """32 bytes, equal for requests of one tenant that get the same answer under `catalogue`.

    The chosen tier is part of it, and so are the limits on which tiers may take over or see the request. What only
    words the answer (streaming, usage, tags) is not.
    """
    usual = spec.sampling.given()
    unset = {name: usual[name] for name in request.unset if name in usual}
    consent, asked = request.consent, request.generation
    parts = (
        VERSION,
        catalogue,
        request.caller.tenant,
        request.api,
        request.requested_model,
        asked.adapter,
        decision.tier,
        decision.inputs.prediction.classifier_version,
        msgspec.structs.replace(asked.sampling, **unset),
        None if asked.messages is None else [message.without_media for message in asked.messages],
        request.prompts,
        asked.max_tokens,
        asked.stop,
        asked.n,
        request.best_of,
        asked.echo,
        asked.include_stop,
        asked.reasoning_effort,
        asked.reasoning_budget,
        asked.template_variables,
        asked.extra,
        asked.tooling,
        # Sent to a server elsewhere with their usual value only where the caller said so.
        sorted(name for name in asked.given if name in _SAYING),
        asked.response_format,
        asked.native,
        asked.passed.get("verbosity"),
        request.wanted_quality,
        max(request.min_tier or 1, request.caller.min_tier or 1),
        request.max_cost_usd,
        None if consent.tiers is None else sorted(consent.tiers),
        consent.local,
        *(() if decision.inputs.rules is None else decision.inputs.rules.names),
    )
    return hashlib.blake2b(_encode(parts), digest_size=32).digest()


class CatalogueDigest:
    """The digest of all tiers of a catalogue and of their models' weights (SPEC CA-03), computed again when one of them
    has been replaced."""

    def __init__(self) -> None:
        self._specs: list[TierSpec] = []
        self._weights: list[str] = []
        self._digest = b""

    def of(self, specs: Sequence[TierSpec], fingerprint: str, weights: list[str]) -> bytes:
        """`fingerprint`: of the models behind the tiers (`Catalog.fingerprint`), which knows files by their names only.
        `weights`: content hashes of the tiers' models (`Tier.weights`)."""
        if len(specs) != len(self._specs) or weights != self._weights or any(map(_differ, specs, self._specs)):
            self._specs, self._weights = list(specs), weights
            self._digest = hashlib.blake2b(_encode((fingerprint, self._specs, weights)), digest_size=16).digest()
        return self._digest


def _differ(spec: TierSpec, other: TierSpec) -> bool:
    return spec is not other


# As it stands: a schema whose properties come in another order makes another answer.
_encode = msgspec.msgpack.Encoder().encode
