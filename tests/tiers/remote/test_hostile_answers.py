"""Answers of a server that is broken or hostile: refused as `TierError`, and never billed beyond reason."""

import json
import time
from collections.abc import Callable

import pytest

from tiers.catalog.tier_spec import RemoteKind, RemoteSpec
from tiers.dialects.dialect import ServerDialect, dialect_of
from tiers.dialects.event_stream import EventParser
from tiers.dialects.server_error import parse_error
from tiers.dialects.server_models import parse_models
from tiers.dialects.usage_counter import MOST_TOKENS, Tally
from tiers.errors import TierError
from tiers.tier import Usage

DEEP = b"[" * 100_000
NO_TEXT = b'{"a": "\xff"}'


def wire(kind: RemoteKind) -> ServerDialect:
    return dialect_of(RemoteSpec(base_url="http://127.0.0.1:1/v1", kind=kind, model="m"))


@pytest.mark.parametrize("body", [DEEP, b'{"error": ' + DEEP, NO_TEXT], ids=["deep", "deep error", "no UTF-8"])
def test_a_body_that_no_parser_takes_is_an_error_with_its_text(body: bytes) -> None:
    assert parse_error(body).message
    assert parse_models(200, body) is None


@pytest.mark.parametrize(("opened", "closed"), [(b"[", b"]"), (b'{"error": ', b"}"), (b'[{"error": ', b"}]")])
def test_a_deeply_nested_error_is_read_without_its_wait(opened: bytes, closed: bytes) -> None:
    deep = 450 // len(closed)
    body = opened * deep + b'{"error": {"retry_after": 5}}' + closed * deep

    assert parse_error(body).retry_after_seconds is None


@pytest.mark.parametrize("kind", ["openai", "anthropic", "gemini", "bedrock", "triton-vllm"])
@pytest.mark.parametrize("key", [b"choices", b"content", b"candidates", b"output", b"outputs"])
def test_a_deeply_nested_answer_is_refused(kind: RemoteKind, key: bytes) -> None:
    answer = b'{"type": "a", "x": ' + DEEP + b', "' + key + b'": ' + DEEP

    with pytest.raises(TierError):
        wire(kind).read_whole(answer, Tally(1, 7))


def test_an_output_of_another_kind_than_tritons_is_refused() -> None:
    answer = json.dumps({"outputs": [{"name": "text_output", "data": [1]}]}).encode()

    with pytest.raises(TierError, match="another kind"):
        wire("triton-tensorrt-llm").read_whole(answer, Tally(1, 7))


def test_bytes_of_a_token_that_are_none_are_those_of_its_text() -> None:
    token = {"token": "a", "logprob": -1.0, "bytes": [256, -1]}
    answer = {"choices": [{"message": {"content": "a"}, "logprobs": {"content": [token]}}]}

    (delta,) = wire("openai").read_whole(json.dumps(answer).encode(), Tally(1, 7))

    assert delta.logprobs is not None
    assert delta.logprobs[0].token_bytes == b"a"


@pytest.mark.parametrize(
    ("reported", "billed"),
    [
        (Usage(prompt_tokens=-5, completion_tokens=-3), Usage(prompt_tokens=7)),
        (Usage(prompt_tokens=4, cached_tokens=9, cache_write_tokens=9), Usage(prompt_tokens=4, cached_tokens=4)),
        (
            Usage(prompt_tokens=5, completion_tokens=3, reasoning_tokens=8),
            Usage(prompt_tokens=5, completion_tokens=3, reasoning_tokens=3),
        ),
        (Usage(prompt_tokens=10**30), Usage(prompt_tokens=MOST_TOKENS)),
    ],
)
def test_counts_that_cannot_be_are_bounded(reported: Usage, billed: Usage) -> None:
    tally = Tally(1, 7)
    tally.sent = tally.over = True

    tally.report(reported)

    assert tally.usage() == billed


def test_a_negative_count_of_the_prompt_alone_lowers_no_bill() -> None:
    tally = Tally(1, 7)
    tally.sent = tally.over = True

    wire("gemini").read_whole(b'{"usageMetadata": {"promptTokenCount": -100}}', tally)

    assert tally.usage().prompt_tokens == 7


def seconds_of(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def test_an_event_in_many_pieces_takes_time_in_proportion_to_its_bytes() -> None:
    def read() -> None:
        parser = EventParser()
        for _ in range(4000):
            assert not parser.feed(b"data: " + b"x" * 1018)

    # Searching all that came before with every piece took about ten seconds.
    assert seconds_of(read) < 2
