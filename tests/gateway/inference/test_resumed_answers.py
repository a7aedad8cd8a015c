"""An answer of our own engine outlives its core: another one goes on exactly, from its tokens, where it may."""

import json
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import ClassVar

import openai
import pytest
import pytest_asyncio

from gateway.base.settings import Settings
from gateway.runtime.cluster.registry import ReplicaAnnouncement
from gateway.runtime.cluster.replicated_core import ReplicatedCore
from inference_core.errors import CoreLostError
from inference_core.protocol import AddRequest, SamplingParams, SequenceOutput
from inference_core.transport.core_thread import ThreadCoreClient
from inference_core.transport.tcp import CoreAddress
from tests.gateway.inference.api.test_disconnects import only_record
from tests.gateway.inference.test_continued_streams import most_of
from tests.polling import eventually
from tests.support.app import RunningGateway, StartApp, running_gateway
from tests.support.core import laptop_hash_core
from tests.support.served import UNCACHED
from tiers.conversation import Turn
from tiers.tier import GenerationRequest

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Losses:
    """`after`: the outputs after which each next request finds its core lost. `asked`: the requests."""

    after: ClassVar[list[int]] = []
    asked: ClassVar[list[AddRequest]] = []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory, module_app: StartApp) -> RunningGateway:
    settings = Settings(data_dir=str(tmp_path_factory.mktemp("data")), monitor=False, drain_seconds=5)
    return await module_app(settings, core=mortal_core(settings), scripted=False)


def mortal_core(settings: Settings) -> ThreadCoreClient:
    """A core that is lost as `Losses` says."""
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
    return core


@pytest.fixture
def gateway(running: RunningGateway) -> RunningGateway:
    Losses.after, Losses.asked = [], []
    return running


async def ask(
    gateway: RunningGateway, after: list[int], header: str = "auto", key: str = "", **more: object
) -> tuple[str, dict, str]:
    # A tier that has lost its core is down until it is looked at again.
    await gateway.serving.routing.served.tier(1).active_tier().watch._refresh()  # type: ignore[attr-defined]
    Losses.after, Losses.asked = list(after), []
    body = {
        "model": "tier-1",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 1.0,
        "seed": 5,
        "max_tokens": 48,
    }
    headers = {**UNCACHED, "x-aio-continue": header} | ({"authorization": f"Bearer {key}"} if key else {})
    path = "completions" if "prompt" in more else "chat/completions"
    if "prompt" not in more:
        body["messages"] = [{"role": "user", "content": "Say much."}]
    answer = await gateway.http.post(f"/v1/{path}", json=body | more, headers=headers)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in event.get("choices", ())]
    text = "".join(one.get("text") or one.get("delta", {}).get("content") or "" for one in choices)
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


async def test_each_token_counts_once_and_what_is_read_again_is_paid(gateway: RunningGateway) -> None:
    _, told, request_id = await ask(gateway, [])
    (whole,) = (await only_record(gateway, request_id)).attempts
    _, last, request_id = await ask(gateway, [7, 20])
    record = await only_record(gateway, request_id)
    (attempt,) = record.attempts
    prompt = whole.prompt_tokens
    assert (attempt.prompt_tokens, attempt.completion_tokens) == (prompt + prompt + 7 + prompt + 27, 48)
    assert (record.prompt_tokens, record.completion_tokens) == (prompt, 48)
    price = gateway.serving.routing.served.spec(1).price.input_usd_per_million
    again = (attempt.prompt_tokens - prompt) * price / 1e6
    assert record.cost_usd == pytest.approx(told["x_aio"]["cost_usd"] + again, rel=1e-9)
    assert last["x_aio"]["cost_usd"] == pytest.approx(record.cost_usd)


async def test_another_replica_goes_on(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path), monitor=False, drain_seconds=5)
    cores = {name: mortal_core(settings) for name in ("one", "two")}

    async def announced() -> list[ReplicaAnnouncement]:
        address = CoreAddress(host="here", port=1, secret=b"")
        return [ReplicaAnnouncement(name=name, node="here", pid=0, address=address) for name in cores]

    core = ReplicatedCore("the core", announced, connect=lambda one: cores[one.name], look_seconds=0.01)
    async with running_gateway(settings, core=core, scripted=False) as gateway:
        await eventually(lambda: len(core.replicas) == len(cores))
        whole, told, _ = await ask(gateway, [])
        text, last, request_id = await ask(gateway, [9])
        assert (text, last["usage"]["completion_tokens"]) == (whole, told["usage"]["completion_tokens"])
        assert [len(one.drawn_token_ids) for one in Losses.asked] == [0, 9]
        assert (await only_record(gateway, request_id)).is_continued


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


@pytest.mark.parametrize(
    ("header", "more"),
    [
        ("off", {}),
        ("auto", {"n": 2}),
        ("auto", {"logprobs": True}),
        ("auto", {"prompt": "Say much.", "echo": True}),
        ("auto", {"prompt": ["Say much.", "Say more."]}),
    ],
)
async def test_a_loss_is_an_error_where_it_is_not_allowed(
    gateway: RunningGateway, header: str, more: dict[str, object]
) -> None:
    _, last, _ = await ask(gateway, [5], header, **more)
    assert "error" in last
    assert len([one for one in Losses.asked if one.drawn_token_ids]) == 0


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
        messages=[Turn.of("user", "Say much."), Turn.of("assistant", "Once upon")],
        continues=True,
    )
    assert decoder.prompt(asked).ids() == opened.prompt_token_ids + tokens


async def test_what_is_read_again_is_reserved_first_and_charged(gateway: RunningGateway) -> None:
    # What the first core may cost, in whole micro-dollars.
    first = math.ceil(most_of(gateway, 1, "Say much.", 48) * 1e6) / 1e6
    for name, amount, goes_on in (("poor", first, False), ("rich", 4 * first, True)):
        key = await gateway.key(name)
        await gateway.budget(name, amount)
        _, last, request_id = await ask(gateway, [7], key=key)
        assert (len(Losses.asked), "error" in last) == (1 + goes_on, not goes_on), name
        record = await only_record(gateway, request_id)
        assert record.is_continued is goes_on
    # A request that the budget does not cover: its refusal reports to the database what was spent before.
    refused = gateway.openai.with_options(api_key=key).chat.completions.create(
        model="tier-1", messages=[{"role": "user", "content": "Say more."}], max_tokens=2000
    )
    with pytest.raises(openai.RateLimitError):
        await refused
    rows = (await gateway.http.get("/admin/api/budgets")).json()["rows"]
    (spent,) = [row["spent_usd"] for row in rows if row["amount_usd"] == amount]
    assert spent == pytest.approx(record.cost_usd, abs=1e-6)
