"""A server's counts of tokens are billed within bounds that hold for every honest tokeniser, on every wire."""

import gc
import json
import logging
import weakref
from typing import Any

import pytest

from inference_core.io.files import JSON_ERRORS
from tests.support.upstream import Call, LoopbackServer
from tests.tiers.tier_world import chat, remote_spec
from tiers.catalog.tier_spec import RemoteKind, RemoteSpec
from tiers.conversation import Text, Turn, media
from tiers.dialects.dialect import dialect_of
from tiers.dialects.usage_counter import Tally
from tiers.prompt_bounds import TOLERANCE, PromptBounds, prompt_bounds
from tiers.remote.remote_tier import RemoteTier
from tiers.tier import Delta, GenerationRequest, Usage

KINDS: tuple[RemoteKind, ...] = (
    "openai", "vllm", "openai-provider", "anthropic", "gemini", "bedrock", "triton-tensorrt-llm", "triton-vllm",
)  # fmt: skip
LIMIT = 16
TEXT = "x" * 40
OWN = 10
BOUNDS = PromptBounds(2, 900)


def whole_answer(kind: RemoteKind, text: str, prompt: int, completion: int) -> bytes:
    """A whole answer of a server of this kind that claims these counts."""
    if kind == "anthropic":
        usage = {"input_tokens": prompt, "output_tokens": completion}
        body: Any = {"content": [{"type": "text", "text": text}], "stop_reason": "end_turn", "usage": usage}
    elif kind == "gemini":
        candidate = {"content": {"parts": [{"text": text}]}, "finishReason": "STOP"}
        counts = {"promptTokenCount": prompt, "candidatesTokenCount": completion, "thoughtsTokenCount": 0}
        body = {"candidates": [candidate], "usageMetadata": counts}
    elif kind == "bedrock":
        message = {"message": {"role": "assistant", "content": [{"text": text}]}}
        usage = {"inputTokens": prompt, "outputTokens": completion}
        body = {"output": message, "stopReason": "end_turn", "usage": usage}
    elif kind.startswith("triton"):
        body = {"text_output": text, "num_input_tokens": prompt, "num_output_tokens": completion}
    else:
        choice = {"index": 0, "message": {"content": text}, "finish_reason": "stop"}
        body = {"choices": [choice], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}
    return json.dumps(body).encode()


def claimed(kind: RemoteKind, prompt: int, completion: int) -> Tally:
    """The tally of an answer of `TEXT` for which the server claims these counts."""
    tally = Tally(1, 100, lambda: BOUNDS)
    tally.sent, tally.max_tokens = True, LIMIT
    wire = dialect_of(RemoteSpec(base_url="http://127.0.0.1:1/v1", kind=kind, model="m"))
    tally.passed(wire.read_whole(whole_answer(kind, TEXT, prompt, completion), tally))
    tally.ended(marked=True)
    return tally


@pytest.mark.parametrize("kind", KINDS)
def test_counts_beyond_the_request_are_billed_up_to_what_it_may_have(kind: RemoteKind) -> None:
    tally = claimed(kind, 2**31, 2**31)
    used = tally.usage()
    assert (used.prompt_tokens, used.completion_tokens) == (BOUNDS.most, LIMIT)
    assert tally.impossible_claim() is not None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [0, -7])
def test_an_answer_is_not_free_because_its_server_says_so(kind: RemoteKind, count: int) -> None:
    tally = claimed(kind, count, count)
    used = tally.usage()
    assert used.completion_tokens == OWN
    assert used.prompt_tokens == 100
    # Gemini's early events count the prompt alone, so that none of the answer is no claim.
    assert tally.impossible_claim() is not None or (kind, count) == ("gemini", 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("prompt", "completion"), [(2, 1), (100, OWN), (899, LIMIT)])
def test_counts_within_the_bounds_are_billed_as_they_are(kind: RemoteKind, prompt: int, completion: int) -> None:
    tally = claimed(kind, prompt, completion)
    assert (tally.usage().prompt_tokens, tally.usage().completion_tokens) == (prompt, completion)
    assert tally.impossible_claim() is None


def test_cached_and_written_tokens_are_parts_of_the_prompt_that_is_billed() -> None:
    tally = Tally(1, 100, lambda: BOUNDS)
    tally.sent, tally.max_tokens = True, LIMIT
    tally.report(Usage(prompt_tokens=2**31, cached_tokens=2**30, cache_write_tokens=2**31, reasoning_tokens=2**31))
    used = tally.usage()
    assert used.prompt_tokens == used.cached_tokens == BOUNDS.most
    assert (used.cache_write_tokens, used.reasoning_tokens) == (0, 0)


@pytest.mark.parametrize(("said", "billed", "is_possible"), [(998, 998, True), (1001, 1000, False)])
def test_hidden_thoughts_are_billed_up_to_the_limit(said: int, billed: int, is_possible: bool) -> None:
    tally = Tally(2, 100, lambda: BOUNDS)
    tally.sent, tally.max_tokens = True, 500
    tally.report(Usage(prompt_tokens=100, completion_tokens=said, reasoning_tokens=990))
    tally.passed([Delta(index=index, text="yes") for index in (0, 1)])
    tally.ended(marked=True)
    assert tally.usage().completion_tokens == billed
    assert (tally.impossible_claim() is None) is is_possible


SCRIPTS = {
    "blanks": " " * 4096,
    "dashes": "-" * 4096,
    "English": "The quick brown fox jumps over the lazy dog. " * 90,
    "Chinese": "你好世界欢迎光临谢谢再见" * 100,
    "Thai": "สวัสดีชาวโลกยินดีต้อนรับ" * 60,
    "emoji": "👩‍👩‍👧‍👦🙂" * 200,
}


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS)
def test_no_tokeniser_counts_less_than_the_least_or_more_than_the_most(text: str) -> None:
    """Between one token per byte and tokens of 128 bytes, which are the longest of the vocabularies in use."""
    bounds = prompt_bounds(chat(text), 4096)
    size = len(text.encode())
    assert bounds.least <= -(-size // 128)
    assert bounds.most >= size
    assert bounds.least * 4 * TOLERANCE <= size


def test_media_have_no_bound_but_the_context() -> None:
    parts = [Text("What is this?"), media("image", {"url": "https://example.org/a.png"})]
    seen = Turn.of("user", parts)
    request = GenerationRequest(request_id="r", sampling=chat().sampling, messages=[seen])
    assert prompt_bounds(request, 128_000) == PromptBounds(1, 128_000)


def test_a_raw_prompt_of_token_ids_is_counted_here() -> None:
    request = GenerationRequest(request_id="r", sampling=chat().sampling, prompt=[1] * 6400)
    bounds = prompt_bounds(request, 128_000)
    assert bounds.least == 100
    assert 6400 < bounds.most < 12_800


async def test_the_first_lie_is_a_warning_with_its_counts_and_no_text(caplog: pytest.LogCaptureFixture) -> None:
    async def lie(call: Call) -> None:
        await call.say("a secret word", usage={"prompt_tokens": 2**31, "completion_tokens": 0})

    async with LoopbackServer(lie) as server:
        tier = RemoteTier(remote_spec(server.base_url))
        request = chat("a secret question")
        with caplog.at_level(logging.WARNING):
            deltas = [delta async for delta in tier.generate(request)]
            async for _ in tier.generate(chat("another question")):
                pass
        await tier.close()
    used = deltas[-1].end.usage
    assert used is not None
    assert used.completion_tokens == 4
    assert used.prompt_tokens < 10_000
    assert [claim.prompt_tokens for claim in request.meter.claims] == [2**31 - 1]
    (said,) = [record.getMessage() for record in caplog.records if "which cannot be" in record.getMessage()]
    assert "2147483647" in said
    assert "secret" not in said


async def test_a_request_is_freed_with_its_last_reader_and_waits_for_no_collection() -> None:
    async with LoopbackServer(lambda call: call.say("yes")) as server:
        tier = RemoteTier(remote_spec(server.base_url))
        request = chat("a question")
        tally = tier.tally(request)
        request.meter.add(tally.usage)
        kept = weakref.ref(tally)
        gc.disable()
        try:
            assert [delta async for delta in tier.answer(request, tally, 10.0)]
            del request, tally
            assert kept() is None
        finally:
            gc.enable()
        await tier.close()


def test_a_count_too_large_for_a_machine_word_is_refused_or_bounded() -> None:
    for kind in KINDS:
        try:
            used = claimed(kind, 10**30, 10**30).usage()
        except JSON_ERRORS:
            continue
        assert (used.prompt_tokens, used.completion_tokens) == (BOUNDS.most, LIMIT)
