"""The Record: one served request, complete, as it goes from the gateway to journal, database and monitor.

`Recorded`: any request as the ledger keeps it, an answer by a tier or anything else, distinguished by `api`. Of what is
stored of one, `inputs_reader` reads a part."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal, TypeVar

import msgspec

from classifier.decision import Decision
from tiers.catalog.consent import ALL, Consent
from tiers.catalog.tier_spec import Price
from tiers.errors import ReplicaTry
from tiers.tier import Usage

AttemptStatus = Literal["ok", "error", "aborted", "escalated", "compared", "agreed", "differed"]
CacheUse = Literal["hit", "shared", "miss"]


class ComparedAs(msgspec.Struct, frozen=True, kw_only=True):
    """The `kind` of answers that several tiers gave at once to be compared."""

    kind: str
    app: str = ""
    """Hash of the request's system prompt, "" without one or without consent to learn from it."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One tier that was tried. Failed and escalated attempts are billed for what they generated, and so is a second
    sample that an answer was `compared` with.

    The fields stand in the order in which the dictionary that packs attempts has them.
    """

    tier: int
    model: str
    status: AttemptStatus
    cost_usd: float
    """The price times the tokens, unless the server said what it charges."""
    max_tokens: int | None = None
    """The limit of a choice that a server elsewhere was sent; None: it was sent none."""
    error: str | None = None
    stage: Literal["prefill", "opening", "whole", "agreement"] | None = None
    """How much of the answer there was when its own evidence was judged (`prefill` in old records); None if it was not
    judged.
    """
    p_ok: float | None = None
    """P(no worse) of this very answer, by that evidence."""
    reason: str | None = None
    """The reason for or against escalation."""
    replicas: list[ReplicaTry] = []
    """The replicas that were asked, if the tier has several."""
    claimed: Usage | None = None
    """The tokens that a server elsewhere reported where they cannot be, so that others are billed."""
    compared_as: ComparedAs | None = None
    """How one of several tiers that answered at once took part: the one that was sent is "ok", others "agreed" or
    "differed".
    """
    cached_tokens: int = 0
    """Tokens of the prompt that the server read from its cache."""
    cache_write_tokens: int = 0
    """Tokens of the prompt that the server wrote into its cache."""
    cache_write_1h_tokens: int = 0
    """How many of these stay for an hour."""
    added: list[str] = []
    """Fields that the server was sent and no caller set."""
    guarded: str | None = None
    """The guardrail that replaced or blocked the answer, after which it is no evidence about the tier."""
    target: str | None = None
    """The name of the target that stood in for the tier, which says nothing of the tier's own answers."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    price: Price | None = None
    """What its tokens were billed at, with the step of a long prompt."""
    charged_usd: float | None = None
    """What the server said it charges, within what was held; it was billed."""
    extras: list[str] = []
    """What was billed besides tokens, or has no known price."""
    extras_usd: float = 0.0
    """How much of `cost_usd` is for these."""
    estimated: bool = False
    """Whether a server elsewhere has not counted all its tokens, because the answer was left or broke off, or because
    it tells no counts.
    """
    continued_at: int | None = None
    """After how many characters it went on, which failed attempts before it had given."""
    resumed: bool = False
    """Whether the core that computed it was lost, and another one went on after its tokens."""


def continued_from(attempts: list[Attempt]) -> list[str]:
    """Return the names of the tiers and targets that gave the beginning of an answer, and failed; in order."""
    if len(attempts) < 2:
        return []
    return [
        attempt.target or f"tier-{attempt.tier}"
        for attempt, after in pairwise(attempts)
        if after.continued_at is not None and after.continued_at > (attempt.continued_at or 0)
    ]


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds."""

    route_ms: float
    ttft_ms: float | None
    """From arrival to the first text."""
    e2e_ms: float
    overhead_ms: float
    """All time outside the tier."""
    queue_ms: float | None = None
    """At the tier that answered, waiting and planning the prompt's steps."""
    prefill_ms: float | None = None
    """At that tier, then until the first text."""
    decode_ms: float | None = None
    """At that tier, from the first text to the last."""


TRIED_OUT = "aio-try"
"""The tag of a request that an administrator tried out: the id of the key whose rules it was asked by, "" for none.
Such requests are no sample of the traffic, so they are never verified."""


class ServedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is recorded of every request, whatever answered it."""

    request_id: str
    created_at: float
    requested_model: str
    key_id: str | None
    status: Literal["ok", "error", "aborted"]
    http_status: int
    error: str | None
    model: str
    attempts: list[Attempt]
    prompt_tokens: int
    cost_usd: float
    tags: dict[str, str] | None = None
    """The caller's `metadata`, by which bills are split."""
    replica: str | None = None
    """The process that answered."""


class Record(ServedRequest, frozen=True, kw_only=True):
    """One request that a tier answered. Messages, answer and response format are None unless the key's owner consented
    to storing texts.
    """

    api: Literal["chat", "completion"]
    stream: bool
    decision: Decision
    tier: int
    messages: list[dict[str, str]] | None
    answer: str | None
    reasoning: str | None
    finish_reason: str | None
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    baseline_cost_usd: float
    timings: Timings
    response_format: dict[str, Any] | None = None
    """The requested form, as OpenAI writes it."""
    consent: Consent = ALL
    """Which tiers may see the texts from now on."""
    cache: Literal["hit", "shared", "miss", "similar"] | None = None
    """"hit" if the answer was a cached one, "shared" if it came from another caller's running request, "miss" if it had
    to be made; None without a cache. Older records may say "similar": the answer was that of a similar prompt. Tokens
    of an answer that was not made for this request are recorded but cost nothing.
    """

    @property
    def comparison(self) -> "Comparison | None":
        """What became of the tiers that answered at once; None if none did."""
        return comparison_of(self.attempts)

    @property
    def target(self) -> str | None:
        """The target that gave the answer in place of its tier; None if the tier did."""
        return self.attempts[-1].target if self.attempts else None

    @property
    def is_continued(self) -> bool:
        """Whether the answer was broken off and went on, so that it is no evidence about a tier."""
        return any(attempt.resumed or attempt.continued_at is not None for attempt in self.attempts)

    @property
    def is_made(self) -> bool:
        """Whether a tier made the answer for this request, so that it is evidence about the tier."""
        return self.cache is None or self.cache == "miss"


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Tiers that answered at once."""

    tiers: tuple[int, ...]
    """Ascending."""
    outcome: Literal["agreed", "differed", "failed"]
    """"failed" if none agreed and one of them gave no whole answer."""
    compared_as: ComparedAs


def comparison_of(attempts: list[Attempt]) -> Comparison | None:
    """Return the comparison among `attempts`, if there was one."""
    if len(attempts) < 2:
        return None
    members = [attempt for attempt in attempts if attempt.compared_as is not None]
    if len(members) < 2 or (compared_as := members[0].compared_as) is None:
        return None
    statuses = {attempt.status for attempt in members}
    outcome: Literal["agreed", "differed", "failed"] = "differed"
    if "agreed" in statuses:
        outcome = "agreed"
    elif "error" in statuses or "aborted" in statuses:
        outcome = "failed"
    return Comparison(
        tiers=tuple(sorted(attempt.tier for attempt in members)), outcome=outcome, compared_as=compared_as
    )


PassedApi = Literal["embedding", "rerank", "moderation", "image", "speech", "transcription"]


class EmbeddingRecord(ServedRequest, frozen=True, kw_only=True):
    """One request that `model`, one of the catalogue's embedding models or one whose endpoint was passed through,
    answered or started. A request without vectors is charged for no tokens, but those of a server's finished calls.
    """

    api: PassedApi = "embedding"
    e2e_ms: float
    overhead_ms: float
    """The time before the model was asked."""
    attempts: list[Attempt] = []
    """What was charged, at which price, of tier 0, which is none; empty in old records. For what was passed through,
    the attempt's `reason` says the units and their price, or that they have none.
    """


Recorded = Record | EmbeddingRecord


class Begun(msgspec.Struct, frozen=True):
    """A request whose answer is under way."""

    begun: Record
    """What is recorded if its process dies before the answer ends."""


ANSWERS = ("chat", "completion")


class _Kind(msgspec.Struct):
    api: str = ""


_kind = msgspec.msgpack.Decoder(_Kind)
_decode_answer = msgspec.msgpack.Decoder(Record)
_decode_embedding = msgspec.msgpack.Decoder(EmbeddingRecord)
_decode_begun = msgspec.msgpack.Decoder(Begun)

encoded = msgspec.msgpack.Encoder().encode


def decoded(payload: bytes) -> Recorded:
    """Decode a record, or the record of a started request, that `encoded` returned. Raises `msgspec.DecodeError`."""
    api = _kind.decode(payload).api
    if not api:
        return _decode_begun.decode(payload).begun
    return (_decode_answer if api in ANSWERS else _decode_embedding).decode(payload)


def is_begun(payload: bytes) -> bool:
    """Return whether `payload` is that of a started request."""
    return not _kind.decode(payload).api


def consent_of(stored: Any) -> Consent:
    """Return the consent that a row of `requests` or `stored_responses` has stored."""
    return ALL if stored is None else msgspec.convert(stored, Consent)


read_decision = msgspec.json.Decoder(Decision).decode
Inputs = TypeVar("Inputs")


def inputs_reader(kind: type[Inputs]) -> Callable[[bytes], Inputs]:
    """Return what reads the inputs of a stored decision as `kind`, a struct of those needed: decoding all takes far
    longer. It raises `msgspec.ValidationError` for those of a release that this one cannot read."""
    decode = msgspec.json.Decoder(msgspec.defstruct("_Decided", [("inputs", kind)])).decode

    def read(decision: bytes) -> Inputs:
        inputs: Inputs = decode(decision).inputs  # type: ignore[attr-defined]
        return inputs

    return read


class _Predicted(msgspec.Struct):
    p_ok: list[float]
    classes: list[float] = []
    labels: list[float] = []


class _OfPrediction(msgspec.Struct):
    prediction: _Predicted


_read_predicted = inputs_reader(_OfPrediction)


def predicted_of(decision: bytes) -> _Predicted:
    """Return what was predicted for a stored decision. Raises as `inputs_reader`."""
    return _read_predicted(decision).prediction
