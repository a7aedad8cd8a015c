"""What crosses the queue comes out as it went in, and a deadline as the time that is left."""

import time

import msgspec
import pytest

from gateway.runtime.chat_queue.wire import Failure, decoded_piece, decoded_request, encoded_request, piece_of
from inference_core.protocol import Grammar, SamplingParams
from inference_core.protocol.commands import Evidence, TokenEvidence
from tiers.conversation import Call, Opaque, OpaqueFields, Thought, Tool, ToolCallDelta, Tooling, Turn, media
from tiers.errors import (
    ReplicaTry,
    TierAnswerTooLongError,
    TierBusyError,
    TierContextError,
    TierError,
    TierLostError,
    TierRequestError,
)
from tiers.tier import Delta, GenerationRequest, TextLogprob, TraceHeaders, Usage

TURNS = [
    Turn.of("system", "Be brief.", cache_mark=True),
    Turn.of("user", [media("image", {"url": "data:image/png;base64,AAAA", "detail": "low"})]),
    Turn("assistant", (Thought("hm"), Call(id="c", name="look", arguments="{}", source=Opaque("chat", b"{}")))),
    Turn.of("tool", "seen", call_id="c"),
]
REQUEST = GenerationRequest(
    request_id="r",
    messages=TURNS,
    sampling=SamplingParams(temperature=0.5, seed=3, grammar=Grammar(kind="regex", text="a+")),
    tooling=Tooling(tools=(Tool(name="look", parameters={"type": "object"}),), choice="required"),
    response_format={"type": "json_object"},
    opaque=OpaqueFields("messages", fields={"thinking": b"{}"}),
    stop=("end",),
    max_tokens=7,
    n=2,
    priority=0,
    salt="tenant",
    trace=TraceHeaders("00-1"),
    whole=True,
)
OWN = ("arrival", "deadline", "resumes", "credential", "sent", "meter", "prompts_read")


def test_a_request_crosses_with_all_that_is_not_of_one_process() -> None:
    crossed = decoded_request(encoded_request(REQUEST), 0.0)
    for name in GenerationRequest.__struct_fields__:
        if name not in OWN:
            assert getattr(crossed, name) == getattr(REQUEST, name), name


def test_a_deadline_crosses_as_the_time_that_is_left_after_the_queue() -> None:
    dated = msgspec.structs.replace(REQUEST, deadline=time.monotonic() + 10.0, strict_deadline=True)
    crossed = decoded_request(encoded_request(dated), 4.0)
    assert crossed.deadline is not None
    assert 5.0 < crossed.deadline - time.monotonic() <= 6.0
    assert time.monotonic() - crossed.arrival >= 4.0


def test_what_has_no_form_is_refused_as_the_callers_request() -> None:
    with pytest.raises(TierRequestError, match="cannot be queued"):
        encoded_request(msgspec.structs.replace(REQUEST, extra={"number": 2**70}))


def test_deltas_cross_with_what_was_used_and_sent() -> None:
    request = decoded_request(encoded_request(REQUEST), 0.0)
    request.meter.add(lambda: Usage(completion_tokens=3, cost_usd=0.25, extras={"search": 1}))
    request.meter.claims.append(Usage(completion_tokens=1000))
    request.sent.max_tokens, request.sent.dropped = 7, ("seed",)
    logprob = TextLogprob(token="a", token_bytes=b"\xff", logprob=-0.5, top=[("a", b"\xff", -0.5)])
    delta = Delta(
        index=1, text="a", token_ids=[5], logprobs=[logprob], tool_calls=[ToolCallDelta(index=0, id="c")],
        evidence=Evidence(state=b"12", tokens=[TokenEvidence(-1.0, 1.0, 0.5)]), made_at=5.0,
    )  # fmt: skip
    piece = decoded_piece(piece_of(request, [delta]))
    assert piece.deltas == [delta]
    assert piece.deltas[0].made_at is None
    assert (piece.usage, piece.claims) == (request.meter.usage(), request.meter.claims)
    piece.sent.put_into(REQUEST.sent)
    assert (REQUEST.sent.max_tokens, REQUEST.sent.dropped) == (7, ("seed",))


ERRORS: list[TierError] = [
    TierError("failed"),
    TierLostError("died"),
    TierAnswerTooLongError("long"),
    TierRequestError("bad", "messages[1]", "code"),
    TierContextError("too long", "messages", prompt_tokens=9, answer_tokens=1, total_tokens=10, max_context=8),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_crosses_with_its_type_and_all_that_it_says(error: TierError) -> None:
    error.tries, error.server, error.reason = (ReplicaTry(replica="a", outcome="failed", seconds=0.5),), "http://a", "x"
    crossed = Failure.of(error).error()
    assert type(crossed) is type(error)
    assert (str(crossed), crossed.tries) == (str(error), error.tries)
    assert crossed.for_operators == error.for_operators
    assert {name: getattr(crossed, name) for name in vars(error)} == vars(error)


def test_when_a_server_may_be_asked_again_crosses() -> None:
    busy = TierBusyError("wait")
    busy.retry_after_seconds = 17.0
    crossed = Failure.of(busy).error()
    assert isinstance(crossed, TierBusyError)
    assert crossed.retry_after_seconds == 17.0


def test_an_error_of_an_unknown_class_is_its_nearest_known_one() -> None:
    class OwnError(TierLostError):
        pass

    assert type(Failure.of(OwnError("x")).error()) is TierLostError
