"""Answers of remote servers, kind by kind: what a model server may send ends in deltas or in a `TierError`."""

import json
import math
from collections.abc import Callable, Iterable

from tests.fuzz.mutations import json_mutated
from tests.fuzz.pieces import pieces_of
from tests.hostile.target import FuzzTarget, fuzz_target
from tests.tiers.remote import provider_shapes as shapes
from tiers.catalog.tier_spec import RemoteKind, RemoteSpec
from tiers.dialects.dialect import ServerDialect, dialect_of
from tiers.dialects.event_stream import EventTooLargeError
from tiers.dialects.lenient_json import NotAnObjectError
from tiers.dialects.server_error import ServerSaidError, parse_error, parse_retry_after
from tiers.dialects.server_models import chosen_model, parse_models
from tiers.dialects.usage_counter import AnswerBounds, Tally
from tiers.errors import TierError
from tiers.remote.answer_reader import AnswerReader
from tiers.remote.server_state import sum_of_samples
from tiers.tier import USAGE_COUNTS, Delta

_MOST_TOKENS = 2**40


def wire(kind: RemoteKind) -> ServerDialect:
    """Return the dialect of a server of this kind."""
    return dialect_of(RemoteSpec(base_url="http://127.0.0.1:1/v1", kind=kind, model="m"))


def reader_of(server: ServerDialect, tally: Tally) -> AnswerReader:
    """Return a reader of an answer of any size."""
    most = AnswerBounds(*[2**40] * len(AnswerBounds._fields))
    return AnswerReader(server, tally, most, lambda deltas: None)


def checked(deltas: Iterable[Delta], tally: Tally) -> str:
    """Check what a caller would be sent and billed; return the texts and the ends."""
    said = []
    for delta in deltas:
        said += [delta.text, delta.reasoning, *(call.name + call.arguments for call in delta.tool_calls)]
        for logprob in delta.logprobs or []:
            assert all(0 <= byte <= 255 for byte in logprob.token_bytes)
            assert not math.isnan(logprob.logprob)
        said.append(delta.finish_reason or "")
    text = "\x00".join(filter(None, said))
    text.encode()
    tally.sent = True
    used = tally.usage()
    counts = [*(getattr(used, name) for name in USAGE_COUNTS), *used.extras.values()]
    assert all(0 <= count < _MOST_TOKENS for count in counts), f"billed {used}"
    assert used.cached_tokens + used.cache_write_tokens <= used.prompt_tokens, f"billed {used}"
    return text


def read_stream(kind: RemoteKind, pieces: Iterable[bytes]) -> tuple[str, str]:
    """Read a streamed answer as `RemoteTier` does; return what was said, and the error."""
    server, tally, said, error = wire(kind), Tally(1, 7), list[Delta](), ""
    parser, reader = server.parser(), reader_of(server, tally)
    try:
        for events in (*(parser.feed(piece) for piece in pieces), parser.flush()):
            for event in events:
                said += reader.events([event])
                if reader.ended:
                    return checked(said, tally), "end"
        said += reader.last_events([])
    except EventTooLargeError:
        error = "too large"
    except TierError as refusal:
        _require_plain(refusal)
        str(refusal).encode()
        error = "refused"
    return checked(said, tally), error


def _require_plain(refusal: TierError) -> None:
    """Raise what `RemoteTier` would not expect of a wire."""
    if type(refusal) not in (TierError, NotAnObjectError, ServerSaidError):
        raise refusal


def stream_of(kind: RemoteKind, seeds: list[bytes], words: list[bytes], name: str) -> FuzzTarget:
    """Return a target for streams: any cuts say the same."""

    def run(data: bytes) -> str:
        whole, cut = read_stream(kind, [data]), read_stream(kind, pieces_of(data))
        assert cut == whole
        return f"{len(whole[0]) > 0} {whole[1]}"

    run.__name__, run.__module__ = name, __name__
    return fuzz_target(seeds, words, _events_mutated)(run)


def whole_of(kind: RemoteKind, seeds: list[bytes], name: str) -> FuzzTarget:
    """Return a target for whole answers."""

    def run(data: bytes) -> str:
        tally = Tally(1, 7)
        try:
            deltas = reader_of(wire(kind), tally).whole(data)
        except TierError as refusal:
            _require_plain(refusal)
            str(refusal).encode()
            return "refused"
        return f"{len(deltas)} deltas, {checked(deltas, tally).rpartition(chr(0))[2][:9]}"

    run.__name__, run.__module__ = name, __name__
    words = [b'"index"', b'"usage"', b'"error"', b'"text"', b'"content"', b"null", b"-1", b"[]", b"\\ud800"]
    return fuzz_target(seeds, words, json_mutated)(run)


def _events_mutated(data: bytes, random: "Callable[..., object]") -> bytes:
    """Mutate the JSON behind one `data:` of a stream of events."""
    lines = data.split(b"\n")
    held = [place for place, line in enumerate(lines) if line.startswith(b"data: {")]
    if held:
        place = random.choice(held)  # type: ignore[attr-defined]
        lines[place] = b"data: " + json_mutated(lines[place][6:].rstrip(b"\r"), random)  # type: ignore[arg-type]
    return b"\n".join(lines)


def _sse(*events: object) -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"


CALL = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a"'}}
LOGPROBS = {
    "content": [{"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": [{"token": "b", "logprob": -1}]}]
}
OLD_LOGPROBS = {"tokens": ["a"], "token_logprobs": [-0.1], "top_logprobs": [{"a": -0.1}], "text_offset": [0]}
USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 3,
    "total_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 1},
    "completion_tokens_details": {"reasoning_tokens": 1},
}
OPENAI = [
    _sse(
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "a"}, "logprobs": LOGPROBS}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [CALL], "reasoning_content": "r"}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": "x"}], "usage": USAGE},
    ),
    _sse({"choices": [{"index": 0, "text": "a", "logprobs": OLD_LOGPROBS, "finish_reason": "length"}]}),
    _sse({"error": {"message": "m", "code": 500}}),
]
OPENAI_WHOLE = [
    {
        "choices": [
            {
                "index": 0,
                "message": {"content": "a", "tool_calls": [CALL]},
                "logprobs": LOGPROBS,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
    },
    {"choices": [{"index": 0, "text": "a", "logprobs": OLD_LOGPROBS, "finish_reason": "length", "matched_stop": "b"}]},
    {"error": "e"},
]
GEMINI = [
    shapes.gemini_event({"text": "a", "thought": True}, {"text": "b"}, candidatesTokenCount=2, thoughtsTokenCount=1),
    shapes.gemini_event({"functionCall": {"name": "f", "args": {"a": 1}}}, finish="STOP"),
    {"promptFeedback": {"blockReason": "SAFETY"}},
    {"error": {"message": "m"}},
]
BEDROCK_WHOLE = {
    "output": {
        "message": {
            "role": "assistant",
            "content": [
                {"text": "a"},
                {"reasoningContent": {"reasoningText": {"text": "r"}}},
                {"toolUse": {"toolUseId": "t", "name": "f", "input": {"a": 1}}},
            ],
        }
    },
    "stopReason": "end_turn",
    "usage": {"inputTokens": 1, "outputTokens": 2, "cacheReadInputTokens": 3, "cacheWriteInputTokens": 4},
}
TRITON = [
    {"text_output": "a", "finish_reason": None, "num_input_tokens": 3, "num_output_tokens": 1},
    {"text_output": ["a"], "finish_reason": ["length"], "num_output_tokens": [2]},
    {"outputs": [{"name": "text_output", "data": ["a"]}, {"name": "num_output_tokens", "data": [3]}]},
    {"error": "e"},
]


def _encoded(bodies: Iterable[object]) -> list[bytes]:
    return [json.dumps(body).encode() for body in bodies]


openai_stream = stream_of(
    "openai", OPENAI, [b'"choices"', b'"usage"', b"data: [DONE]\n\n", b'"delta"'], "openai_stream"
)
openai_whole = whole_of("openai-provider", _encoded(OPENAI_WHOLE), "openai_whole")
anthropic_stream = stream_of(
    "anthropic",
    [
        shapes.anthropic_stream(shapes.THINKING_AND_TOOLS),
        shapes.anthropic_stream([{"type": "error", "error": {"message": "m"}}]),
    ],
    [b'"content_block_start"', b'"content_block_delta"', b'"message_delta"', b'"index": 1', b'"input_json_delta"'],
    "anthropic_stream",
)
anthropic_whole = whole_of("anthropic", _encoded([shapes.WHOLE_MESSAGE]), "anthropic_whole")
gemini_stream = stream_of(
    "gemini", [shapes.gemini_stream(GEMINI[:2]), shapes.gemini_stream(GEMINI)], [b'"parts"'], "gemini_stream"
)
gemini_whole = whole_of("gemini", _encoded(GEMINI), "gemini_whole")
bedrock_whole = whole_of("bedrock", _encoded([BEDROCK_WHOLE]), "bedrock_whole")
triton_stream = stream_of("triton-vllm", [_sse(*TRITON[:2]), _sse(*TRITON)], [b'"text_output"'], "triton_stream")
triton_whole = whole_of("triton-tensorrt-llm", _encoded(TRITON), "triton_whole")
_BEDROCK_KINDS = (
    "contentBlockDelta",
    "contentBlockStart",
    "contentBlockStop",
    "messageStop",
    "metadata",
    "exception",
    "x",
)
_BEDROCK_EVENTS = [
    {"contentBlockIndex": 0, "delta": {"text": "a"}},
    {"contentBlockIndex": 1, "start": {"toolUse": {"toolUseId": "t", "name": "f"}}},
    {"contentBlockIndex": 1, "delta": {"toolUse": {"input": "{}"}}},
    {"contentBlockIndex": 1},
    {"stopReason": "tool_use"},
    {"usage": {"inputTokens": 1, "outputTokens": 2}},
    {"message": "m"},
]


@fuzz_target(
    [
        b"\n".join(
            b"%d%b" % (kind, event)
            for kind, event in zip((0, 1, 0, 2, 3, 4, 5), _encoded(_BEDROCK_EVENTS), strict=True)
        )
    ],
    [b"\n1{", b"\n0{", b'"toolUse"', b'"delta"'],
)
def bedrock_stream(data: bytes) -> str:
    """Messages with right lengths and checksums: each line is the number of its kind and its payload."""
    server, tally, said = wire("bedrock"), Tally(1, 7), list[Delta]()
    reader, message = reader_of(server, tally), b""
    for line in data.split(b"\n")[:64]:
        kind = _BEDROCK_KINDS[(line[0] if line else 0) % len(_BEDROCK_KINDS)]
        message += shapes.event_stream_message(kind, {}, "exception" if kind == "exception" else "event")[:0]
        message += _bedrock_message(kind, line[1:])
    parser = server.parser()
    try:
        for piece in pieces_of(message):
            for event in parser.feed(piece):
                said += reader.events([event])
    except TierError as refusal:
        _require_plain(refusal)
        return f"refused {str(refusal)[:16]}"
    return f"{len(checked(said, tally)) > 0}"


def _bedrock_message(kind: str, payload: bytes) -> bytes:
    from tests.fuzz.tiers.streams import message, text_header

    headers = text_header(b":event-type", kind.encode()) + text_header(b":message-type", b"event")
    return message(text_header(b":message-type", b"exception") if kind == "exception" else headers, payload)


_ERRORS = [
    {"error": {"message": "m", "type": "t", "param": "p", "code": "c"}},
    {"error": "m"},
    {"message": "prompt is too long", "code": 3},
    {"detail": [{"loc": ["body"], "msg": "m"}]},
    {"error": {"message": "m", "details": [{"retryDelay": "3.5s"}]}},
]


@fuzz_target([*_encoded(_ERRORS), b"<html>", b""], [b'"error"', b'"retryDelay": "1s"', b'"message"'], json_mutated)
def error_bodies(data: bytes) -> str:
    """The body of a refusal, whatever it is, becomes an error with texts, for every kind of server."""
    kinds: tuple[RemoteKind, ...] = ("openai", "anthropic", "gemini", "bedrock", "triton-vllm", "openai-provider")
    for kind in kinds:
        error = parse_error(data)
        error.message.encode()
        wire(kind).is_about_model(error)
        assert error.retry_after_seconds is None or 0 <= error.retry_after_seconds <= 300
        wire(kind).model_problem(404, data)
        wire(kind).model_problem(200, data)
    return f"{type(parse_error(data).code).__name__}"


_MODELS = [
    {"data": [{"id": "a", "max_model_len": 4096, "parent": None}, {"id": "b", "meta": {"n_ctx": 5}}]},
    {"data": 1},
]


@fuzz_target([*_encoded(_MODELS), b"[]"], [b'"data"', b'"id"', b'"meta"'], json_mutated)
def model_lists(data: bytes) -> str:
    """A list of models, or none; contexts are numbers of tokens."""
    models = parse_models(200, data)
    chosen_model("a", models or [])
    assert all(model.max_context is None or model.max_context >= 2 for model in models or [])
    return "no list" if models is None else f"{min(len(models), 3)} models"


_PAGE = b'# HELP a b\nvllm:num_requests_running{engine="0"} 3.0\nvllm:num_requests_running{engine="1"} 1e3\nx 1\n'


@fuzz_target(
    [_PAGE, b"vllm:num_requests_running NaN\n"], [b"vllm:num_requests_running", b"{", b"} ", b"+Inf", b"1e999"]
)
def queue_metrics(data: bytes) -> str:
    """The number of requests is a number, or unknown."""
    found = sum_of_samples(data, ("vllm:num_requests_running",))
    assert found is None or isinstance(found, int)
    return f"{found is None}"


@fuzz_target(
    [b"5", b"1.5", b"Wed, 21 Oct 2026 07:28:00 GMT", b"1e9", b"-1"], [b"GMT", b" +0000", b"Oct", b"e", b"99999"]
)
def retry_after(data: bytes) -> str:
    """Seconds within their bounds, or none."""
    seconds = parse_retry_after({"retry-after": data.decode("latin-1")})
    assert seconds is None or 0 <= seconds <= 300
    return f"{seconds is None}"
