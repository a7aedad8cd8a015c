"""An answer of our own engine outlives its core: another one goes on exactly, from its tokens, where it may."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import ClassVar

import pytest
import pytest_asyncio

from gateway.base.settings import Settings
from inference_core.errors import CoreLostError
from inference_core.protocol import AddRequest, SamplingParams, SequenceOutput
from inference_core.transport.core_thread import ThreadCoreClient
from tests.gateway.inference.api.test_disconnects import only_record
from tests.gateway.running_gateway import RunningGateway, laptop_hash_core, running_gateway
from tests.gateway.served_process import UNCACHED
from tiers.tier import ChatMessage, GenerationRequest

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Losses:
    """`after`: the outputs after which each next request finds its core lost. `asked`: the requests."""

    after: ClassVar[list[int]] = []
    asked: ClassVar[list[AddRequest]] = []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    settings = Settings(data_dir=str(tmp_path_factory.mktemp("data")), monitor=False, drain_seconds=5)
    core = laptop_hash_core(settings)
    generate = core.generate

    async def lost(request: AddRequest, after: int) -> AsyncGenerator[SequenceOutput, None]:
        async with aclosing(generate(request)) as outputs:
            async for output in outputs:
                if not after:
                    raise CoreLostError("the core died")
                after -= 1
                yield output

    def begin(request: AddRequest) -> AsyncGenerator[SequenceOutput, None]:
        Losses.asked.append(request)
        return lost(request, Losses.after.pop(0)) if Losses.after else generate(request)

    core.generate = begin  # type: ignore[method-assign]
    assert isinstance(core, ThreadCoreClient)
    async with running_gateway(settings, core=core, scripted=False) as gateway:
        yield gateway


@pytest.fixture
def gateway(running: RunningGateway) -> RunningGateway:
    Losses.after, Losses.asked = [], []
    return running


async def ask(gateway: RunningGateway, after: list[int], header: str = "auto", **more: object) -> tuple[str, dict, str]:
    # A tier that has lost its core is down until it is looked at again.
    await gateway.serving.routing.served.tier(1).active_tier().watch._refresh()  # type: ignore[attr-defined]
    Losses.after, Losses.asked = list(after), []
    body = {
        "model": "tier-1",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "Say much."}],
        "temperature": 1.0,
        "seed": 5,
        "max_tokens": 48,
    }
    headers = {**UNCACHED, "x-aio-continue": header}
    answer = await gateway.http.post("/v1/chat/completions", json=body | more, headers=headers)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    text = "".join(c["delta"].get("content") or "" for event in events for c in event.get("choices", ()))
    return text, events[-1], answer.headers["x-aio-decision-id"]


async def test_a_lost_core_changes_no_character_and_no_count(gateway: RunningGateway) -> None:
    whole, told, _ = await ask(gateway, [])
    assert told["usage"]["completion_tokens"] == 48
    for after in (*range(1, 48), [1, 1], [7, 20], [30, 5]):
        losses = [after] if isinstance(after, int) else list(after)
        text, last, request_id = await ask(gateway, losses)
        assert text == whole, after
        usage = {k: v for k, v in last["usage"].items() if k != "prompt_tokens_details"}
        assert usage == {k: v for k, v in told["usage"].items() if k != "prompt_tokens_details"}
        assert len(Losses.asked) == 1 + len(losses)
    record = await only_record(gateway, request_id)
    assert (record.status, [one.resumed for one in record.attempts]) == ("ok", [True])
    assert record.is_continued


async def test_a_stop_string_over_the_loss_is_still_one(gateway: RunningGateway) -> None:
    whole, _, _ = await ask(gateway, [])
    stop = whole[len(whole) // 2 :][:6]
    expected, _, _ = await ask(gateway, [], stop=[stop])
    for after in range(1, 30, 2):
        assert (await ask(gateway, [after], stop=[stop]))[0] == expected


async def test_an_answer_outlives_two_losses_and_no_more(gateway: RunningGateway) -> None:
    _, last, _ = await ask(gateway, [2] * 9)
    assert "error" in last
    assert len(Losses.asked) == 3


@pytest.mark.parametrize(("header", "more"), [("off", {}), ("auto", {"n": 2}), ("auto", {"logprobs": True})])
async def test_a_loss_is_an_error_where_it_is_not_allowed(
    gateway: RunningGateway, header: str, more: dict[str, object]
) -> None:
    _, last, _ = await ask(gateway, [5], header, **more)
    assert "error" in last
    assert len(Losses.asked) == 1


async def test_an_unfinished_turn_is_what_the_template_opens_and_the_text(gateway: RunningGateway) -> None:
    tier = gateway.serving.routing.served.tier(1).active_tier()
    assert tier.continues_chats
    await ask(gateway, [])
    (opened,) = Losses.asked
    decoder = tier._policy.decoder  # type: ignore[attr-defined]
    tokens = decoder.tokenizer.encode("Once upon")
    asked = GenerationRequest(
        request_id="x",
        sampling=SamplingParams(),
        messages=[ChatMessage(role="user", content="Say much."), ChatMessage(role="assistant", content="Once upon")],
        continues=True,
    )
    assert decoder.prompt(asked).ids() == opened.prompt_token_ids + tokens
