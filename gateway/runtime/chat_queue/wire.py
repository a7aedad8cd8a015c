"""What gateways and workers say to each other through the queue: structs as MessagePack, nothing else."""

import time
from typing import Any

import msgspec

from inference_core.protocol import ModelInfo
from inference_core.protocol.commands import EvidenceRequest
from tiers.errors import (
    InvalidAnswerError,
    MissingKeyError,
    ReplicaTry,
    TierAnswerError,
    TierAnswerTooLongError,
    TierBusyError,
    TierCapabilityError,
    TierContextError,
    TierError,
    TierKeyError,
    TierLostError,
    TierRequestError,
    TierUnavailableError,
)
from tiers.tier import Delta, GenerationRequest, ModelRequest, Sent, Tier, TraceHeaders, Usage


class QueuedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A `GenerationRequest` without what belongs to one process."""

    asked: ModelRequest
    request_id: str
    priority: int
    seconds_left: float | None
    """Until its deadline, when it was put into the queue; None without one."""
    strict_deadline: bool
    salt: str
    adapter: str
    evidence: EvidenceRequest | None
    trace: TraceHeaders | None


_ASKED = ModelRequest.__struct_fields__
_COMMON = tuple(name for name in QueuedRequest.__struct_fields__ if name not in ("asked", "seconds_left"))
_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(QueuedRequest).decode


def encoded_request(request: GenerationRequest) -> bytes:
    """Return the request as it is queued. Raises `TierRequestError` for one that has no such form."""
    left = None if request.deadline is None else request.deadline - time.monotonic()
    asked = ModelRequest(**{name: getattr(request, name) for name in _ASKED})
    fields = {name: getattr(request, name) for name in _COMMON}
    try:
        return _encode(QueuedRequest(asked=asked, seconds_left=left, **fields))
    except (OverflowError, TypeError, ValueError) as error:
        raise TierRequestError(f"the request cannot be queued: {error}") from error


def decoded_request(body: bytes, age_seconds: float) -> GenerationRequest:
    """Return the request that was queued so long ago. Raises `msgspec.DecodeError`."""
    queued, now = _decode_request(body), time.monotonic()
    left = queued.seconds_left
    return GenerationRequest(
        arrival=now - age_seconds,
        deadline=None if left is None else now + left - age_seconds,
        **{name: getattr(queued.asked, name) for name in _ASKED},
        **{name: getattr(queued, name) for name in _COMMON},
    )


_KINDS: dict[str, type[TierError]] = {
    kind.__name__: kind
    for kind in (
        InvalidAnswerError,
        MissingKeyError,
        TierAnswerError,
        TierAnswerTooLongError,
        TierBusyError,
        TierCapabilityError,
        TierContextError,
        TierError,
        TierKeyError,
        TierLostError,
        TierRequestError,
        TierUnavailableError,
    )
}


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A `TierError`: its class, its message, and the attributes that differ from the defaults."""

    kind: str
    message: str
    tries: tuple[ReplicaTry, ...] = ()
    server: str = ""
    reason: str = ""
    retry_after_seconds: float | None = None
    param: str | None = None
    code: str | None = None
    refused: frozenset[str] = frozenset()
    said: str = ""
    token_ids: tuple[int, ...] = ()
    prompt_tokens: int = 0
    answer_tokens: int = 0
    total_tokens: int = 0
    max_context: int = 0
    in_bytes: bool = False

    @classmethod
    def of(cls, error: TierError) -> "Failure":
        """Return what is sent of `error`; one of an unknown class becomes its nearest known one."""
        kind = next(base.__name__ for base in type(error).__mro__ if base.__name__ in _KINDS)
        told = {name: getattr(error, name) for name in _ATTRIBUTES if getattr(error, name, None) is not None}
        return cls(kind=kind, message=str(error), **told)

    def error(self) -> TierError:
        """Return the error that was sent."""
        error = _KINDS.get(self.kind, TierError)(self.message)
        for name in _ATTRIBUTES:
            if (value := getattr(self, name)) not in (None, "", 0, (), frozenset()):
                setattr(error, name, value)
        return error


_ATTRIBUTES = Failure.__struct_fields__[2:]


class SentFields(msgspec.Struct, frozen=True, omit_defaults=True):
    """See `tiers.tier.Sent`."""

    max_tokens: int | None = None
    dropped: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    read_again: list[int] = []

    @classmethod
    def of(cls, sent: Sent) -> "SentFields":
        return cls(*(getattr(sent, name) for name in cls.__struct_fields__))

    def put_into(self, sent: Sent) -> None:
        """Note it in the request of the gateway."""
        for name in self.__struct_fields__:
            setattr(sent, name, getattr(self, name))


class Piece(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker sends at once of one answer: deltas, and what the tier has used and was sent so far."""

    deltas: list[Delta] = []
    usage: Usage
    claims: list[Usage] = []
    """See `UsageMeter.claims`."""
    sent: SentFields = SentFields()
    failure: Failure | None = None
    """How the answer has failed; nothing follows."""
    ended: bool = False
    """Whether nothing follows."""
    left: bool = False
    """Whether it has no more than the counts of a chat that the worker does not hold any more."""


_decode_piece = msgspec.msgpack.Decoder(Piece).decode


def piece_of(
    request: GenerationRequest,
    deltas: list[Delta],
    *,
    failure: TierError | None = None,
    ended: bool = False,
    left: bool = False,
) -> bytes:
    """Return a piece of the answer to a worker's `request`."""
    for delta in deltas:
        # Of this machine's clock.
        delta.made_at = None
    failed = None if failure is None else Failure.of(failure)
    meter = request.meter
    piece = Piece(
        deltas=deltas,
        usage=meter.usage(),
        claims=meter.claims,
        sent=SentFields.of(request.sent),
        failure=failed,
        ended=ended or failed is not None,
        left=left,
    )
    return _encode(piece)


def decoded_piece(body: bytes) -> Piece:
    return _decode_piece(body)


class TierFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker tells of one of its tiers: what gateways cannot know without its server or core."""

    model: str
    max_context: int
    max_output: int | None
    num_layers: int
    takes_chats: bool
    continues_chats: bool
    healthy: bool
    wait_seconds: float
    """The predicted wait of `Tier.load`."""

    @classmethod
    def of(cls, tier: Tier) -> "TierFacts":
        load = tier.load()
        fields: dict[str, Any] = {name: getattr(tier, name) for name in cls.__struct_fields__[:6]}
        return cls(**fields, healthy=load.healthy, wait_seconds=load.predicted_wait_seconds)


class WorkerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has: started tiers by name, and the models of its cores by the cores' names."""

    tiers: dict[str, TierFacts]
    cores: dict[str, list[ModelInfo]]


_decode_facts = msgspec.msgpack.Decoder(WorkerFacts).decode


def encoded_facts(facts: WorkerFacts) -> bytes:
    return _encode(facts)


def decoded_facts(body: bytes) -> WorkerFacts:
    return _decode_facts(body)
