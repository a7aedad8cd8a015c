"""A stream whose server fails after its first token goes on where caller or knob allows it: at the same tier, or at
the next one that can continue an assistant's turn; no character is lost or comes twice."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.base.inference_request import KEYLESS
from gateway.inference import answer_limits
from gateway.inference.api.build_request import RequestHead, chat_request
from gateway.tenancy.admission import max_cost_usd
from quality.records.record import Record
from quality.verification.sampling import refusal
from tests.attacks.hostile_wires import HostileWire
from tests.gateway.inference.api.test_disconnects import only_record
from tests.gateway.known_text import known_text, rest
from tests.support.app import RunningGateway, gateway_of
from tests.support.upstream import Call, LoopbackServer
from tiers.dialects.chat_schemas import ChatRequest, Message
from tiers.errors import HEADER

pytestmark = pytest.mark.asyncio(loop_scope="module")
TEXT = known_text(3)
PROMPT = "Go on."
# By number; a generic server is not known to go on, and every other one asks for it in its own way.
KINDS = ("openai", "vllm", "anthropic", "llama-server")
CATALOG = """
[[tiers]]
number = {number}
name = "tier-{number}"
price = {{ input_usd_per_million = {price}, output_usd_per_million = {price} }}
objective = {{ ttft_ms = 1000, itl_ms = 100 }}
expected_answer_tokens = 50
mean_latency_ms = 1000
max_tokens = 512
{label}

[tiers.remote]
kind = "{kind}"
base_url = "{url}/{kind}"
model = "m-{kind}"
max_context = 4096
"""

OWN = """
[[targets]]
name = "own"
url = "{url}/vllm"
kind = "vllm"
model = "m-own"
credentials = "caller"
"""


class Script:
    """What the servers do with `text`: each attempt ends after that many characters of its share, None: it is whole.
    `calls`: the kind of the server and the body of each attempt. `calls_tool`: they begin a call, too."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.cuts: list[int | None] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.refuses: tuple[str, ...] = ()
        self.thinks: tuple[str, ...] = ()
        self.counts = True
        self.calls_tool = False
        self.text = TEXT

    async def answer(self, call: Call) -> None:
        kind = call.path.split("/")[2]
        self.calls.append((kind, call.body))
        if kind in self.refuses:
            await call.reply(400, {"error": {"message": "no prefill here", "type": "invalid_request_error"}})
            return
        wire = HostileWire("anthropic" if kind == "anthropic" else "openai")
        said = rest(self.text, call.body, PROMPT, needs_fields=kind in ("vllm", "openai"))
        cut = self.cuts.pop(0) if self.cuts else None
        await call.begin()
        await call.send(wire.begin())
        if kind in self.thinks:
            await call.send(wire.reasoning("Let me see"))
        if self.calls_tool:
            await call.send(wire.call(0, '{"wo'))
        for piece in said[:cut]:
            if "prompt" in call.body:
                await call.event({"choices": [{"index": 0, "text": piece}]})
            else:
                await call.send(wire.text(piece))
        if cut is None:
            if self.counts and wire.name == "openai":
                await call.event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 70}})
            await call.send(wire.end())


SCRIPT = Script()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    data: Path = tmp_path_factory.mktemp("data")
    async with LoopbackServer(SCRIPT.answer) as server:
        root = server.base_url
        entries = [
            CATALOG.format(number=n, kind=kind, url=root, price=float(n), label="local = true" if n == 1 else "")
            for n, kind in enumerate(KINDS, 1)
        ]
        async with gateway_of(data, 'name = "wires"\n' + "".join([*entries, OWN.format(url=root)])) as gateway:
            yield gateway


@pytest.fixture
def gateway(running: RunningGateway) -> RunningGateway:
    SCRIPT.reset()
    return running


class Heard:
    """A stream as its caller heard it."""

    def __init__(self, text: str, error: dict[str, Any] | None, last: dict[str, Any], request_id: str) -> None:
        self.text, self.error, self.last, self.request_id = text, error, last, request_id


async def ask(gateway: RunningGateway, model: str, headers: dict[str, str] | None = None, **more: Any) -> Heard:
    body = {"model": model, "stream": True, "stream_options": {"include_usage": True}} | more
    path = "/v1/completions" if "prompt" in more else "/v1/chat/completions"
    if "prompt" not in more:
        body.setdefault("messages", [{"role": "user", "content": PROMPT}])
    answer = await gateway.http.post(path, json=body, headers={"x-aio-continue": "auto"} | (headers or {}))
    assert answer.status_code == 200, answer.text
    text, error, last = "", None, {}
    for line in answer.text.splitlines():
        if not line.startswith("data: {"):
            continue
        event = json.loads(line[6:])
        error = event.get("error", error)
        last = event if event.get("x_aio") else last
        for choice in event.get("choices", ()):
            text += choice.get("text") or choice.get("delta", {}).get("content") or ""
    return Heard(text, error, last, answer.headers["x-aio-decision-id"])


async def record_of(gateway: RunningGateway, heard: Heard) -> Record:
    record = await only_record(gateway, heard.request_id)
    assert isinstance(record, Record)
    return record


@pytest.mark.parametrize("model", ["tier-2", "tier-3", "tier-4"])
@pytest.mark.parametrize("cut", range(1, len(TEXT) + 1, 3))
async def test_a_server_goes_on_from_its_own_beginning(gateway: RunningGateway, model: str, cut: int) -> None:
    SCRIPT.cuts = [cut]
    heard = await ask(gateway, model)
    assert (heard.text, heard.error) == (TEXT, None)
    number = int(model[-1])
    assert [kind for kind, _ in SCRIPT.calls] == [KINDS[number - 1]] * 2
    assert (heard.last["x_aio"]["tier"], heard.last["x_aio"]["continued_from"]) == (number, [model])


async def test_a_server_that_cannot_go_on_leaves_it_to_the_next_that_can(gateway: RunningGateway) -> None:
    SCRIPT.cuts = [20]
    heard = await ask(gateway, "auto", {"x-aio-quality": "0"})
    assert (heard.text, heard.error) == (TEXT, None)
    assert [kind for kind, _ in SCRIPT.calls] == ["openai", "vllm"]
    told = heard.last["x_aio"]
    assert (told["tier"], told["model"], told["continued_from"]) == (2, "m-vllm", ["tier-1"])
    assert "tier 1 broke off (TierAnswerError), tier 2 went on" in told["reason"]
    record = await record_of(gateway, heard)
    assert [(one.tier, one.status, one.continued_at) for one in record.attempts] == [
        (1, "error", None),
        (2, "ok", 20),
    ]
    assert (record.status, record.tier, record.answer) == ("ok", 2, TEXT)
    assert record.cost_usd == pytest.approx(sum(one.cost_usd for one in record.attempts))
    assert min(one.cost_usd for one in record.attempts) > 0
    assert refusal(record) == "continued"


async def test_each_token_counts_once_and_each_attempt_costs_its_own_prompt(gateway: RunningGateway) -> None:
    SCRIPT.cuts = [40, 10]
    heard = await ask(gateway, "tier-2")
    assert heard.text == TEXT
    record = await record_of(gateway, heard)
    first, second, third = record.attempts
    usage = heard.last["usage"]
    assert usage["completion_tokens"] == sum(one.completion_tokens for one in record.attempts)
    assert third.completion_tokens == 70
    assert usage["prompt_tokens"] == first.prompt_tokens < second.prompt_tokens
    assert (record.prompt_tokens, record.completion_tokens) == (usage["prompt_tokens"], usage["completion_tokens"])


async def test_a_raw_prompt_goes_on_at_any_server(gateway: RunningGateway) -> None:
    SCRIPT.cuts = [15]
    heard = await ask(gateway, "tier-1", prompt=PROMPT, max_tokens=200)
    assert (heard.text, heard.error) == (TEXT, None)
    assert [kind for kind, _ in SCRIPT.calls] == ["openai", "openai"]


async def test_the_limit_of_the_answer_is_what_is_left_of_it(gateway: RunningGateway) -> None:
    SCRIPT.cuts = [40]
    await ask(gateway, "tier-2", max_tokens=100)
    limits = [body.get("max_completion_tokens") or body.get("max_tokens") for _, body in SCRIPT.calls]
    assert limits[0] == 100 > limits[1] > 50


async def test_an_answer_that_has_used_its_limit_ends_there(gateway: RunningGateway) -> None:
    SCRIPT.cuts = [40]
    heard = await ask(gateway, "tier-2", max_tokens=2)
    assert (heard.text, heard.error, len(SCRIPT.calls)) == (TEXT[:40], None, 1)
    assert (await record_of(gateway, heard)).finish_reason == "length"


LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
SCHEMA = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
STRUCTURED = {"type": "json_schema", "json_schema": {"name": "word", "schema": SCHEMA}}
ENDING: dict[str, dict[str, Any]] = {
    "tools in progress": {"tools": [LOOK]},
    "structured output": {"response_format": STRUCTURED},
    "any JSON": {"response_format": {"type": "json_object"}},
    "asked to reason": {"reasoning_effort": "high"},
    "thinks": {},
    "own credential": {"model": "own", "headers": {HEADER: "Bearer sk-ada-5e3c1f7a9b2d4680"}},
    "several choices": {"n": 2},
    "log-probabilities": {"logprobs": True},
    "log-probabilities of a raw prompt": {"prompt": PROMPT, "logprobs": 1},
    "several prompts": {"prompt": [PROMPT, PROMPT]},
    "begun by the caller": {
        "messages": [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": TEXT[:2]}]
    },
}
"""What does not go on, by what it has."""


@pytest.mark.parametrize("what", ENDING)
async def test_it_ends_with_the_error_event_as_without_continuation(gateway: RunningGateway, what: str) -> None:
    heard = []
    for wanted in ("off", "auto"):
        SCRIPT.reset()
        SCRIPT.cuts = [30, 30]
        SCRIPT.calls_tool = what == "tools in progress"
        SCRIPT.thinks = ("vllm",) if what == "thinks" else ()
        SCRIPT.text = json.dumps({"word": TEXT}) if "response_format" in ENDING[what] else TEXT
        more = {"model": "tier-2"} | ENDING[what]
        heard.append(await ask(gateway, headers={"x-aio-continue": wanted} | more.pop("headers", {}), **more))
        assert len(SCRIPT.calls) == (2 if what == "several prompts" else 1)
    off, auto = heard
    assert auto.error is not None
    assert (auto.text, auto.error) == (off.text, off.error)
    assert "x_aio" not in auto.last or auto.last["x_aio"].get("continued_from") is None
    record = await record_of(gateway, auto)
    assert (record.status, record.is_continued) == ("error", False)


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("messages", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        ("responses", {"reasoning": {"effort": "high"}}),
    ],
)
async def test_a_turn_that_is_asked_to_think_ends_in_other_apis_too(
    gateway: RunningGateway, path: str, more: dict[str, Any]
) -> None:
    SCRIPT.cuts = [30]
    asked = {"input": PROMPT} if path == "responses" else {"messages": [{"role": "user", "content": PROMPT}]}
    body = {"model": "tier-3", "stream": True, "max_tokens": 2000} | asked | more
    answer = await gateway.http.post(f"/v1/{path}", json=body, headers={"x-aio-continue": "auto"})
    assert (answer.status_code, len(SCRIPT.calls)) == (200, 1), answer.text
    assert ("event: error" in answer.text) is (path == "messages")
    assert ("response.failed" in answer.text) is (path == "responses")


async def test_a_tier_that_thinks_again_does_not_go_on(gateway: RunningGateway) -> None:
    SCRIPT.cuts, SCRIPT.thinks = [30], ("vllm",)
    heard = await ask(gateway, "auto", {"x-aio-quality": "0"})
    assert (heard.text, heard.error) == (TEXT, None)
    assert SCRIPT.calls[0][0] == "openai"
    assert SCRIPT.calls[-1][0] != "vllm"
    assert heard.last["x_aio"]["continued_from"] == ["tier-1"]


async def test_a_tier_that_refuses_the_turn_leaves_it_to_another(gateway: RunningGateway) -> None:
    SCRIPT.cuts, SCRIPT.refuses = [30], ("vllm",)
    heard = await ask(gateway, "auto", {"x-aio-quality": "0"})
    assert (heard.text, heard.error) == (TEXT, None)


async def test_a_pin_holds(gateway: RunningGateway) -> None:
    SCRIPT.cuts = [30]
    heard = await ask(gateway, "tier-1")
    assert (heard.text, len(SCRIPT.calls)) == (TEXT[:30], 1)
    assert heard.error is not None


async def test_a_tier_that_may_not_see_the_request_is_not_asked(gateway: RunningGateway) -> None:
    SCRIPT.cuts = [30]
    heard = await ask(gateway, "auto", {"x-aio-quality": "0", "x-aio-consent": "local"})
    assert ([kind for kind, _ in SCRIPT.calls], heard.text) == (["openai"], TEXT[:30])
    assert heard.error is not None


async def test_it_ends_after_so_many_attempts(gateway: RunningGateway) -> None:
    SCRIPT.cuts = [3] * 20
    heard = await ask(gateway, "tier-2")
    assert len(SCRIPT.calls) == 5
    assert TEXT.startswith(heard.text)
    assert heard.error is not None
    record = await record_of(gateway, heard)
    assert [one.continued_at is None for one in record.attempts] == [True, *[False] * 4]


@pytest.mark.parametrize(("knob", "header", "goes_on"), [("auto", None, True), ("auto", "off", False)])
async def test_the_knob_is_for_requests_that_say_nothing(
    gateway: RunningGateway, knob: str, header: str | None, goes_on: bool
) -> None:
    SCRIPT.cuts = [30]
    knobs = gateway.serving.routing.knobs
    knobs.change({"streams_continue": knob})
    try:
        body = {"model": "tier-2", "stream": True, "messages": [{"role": "user", "content": PROMPT}]}
        headers = {} if header is None else {"x-aio-continue": header}
        answer = await gateway.http.post("/v1/chat/completions", json=body, headers=headers)
    finally:
        knobs.change({"streams_continue": "off"})
    assert ("[DONE]" in answer.text, '"error"' in answer.text) == (goes_on, not goes_on)


async def test_nothing_goes_on_where_the_request_says_no(gateway: RunningGateway) -> None:
    SCRIPT.cuts = [30]
    heard = await ask(gateway, "tier-2", {"x-aio-continue": "off"})
    assert (heard.text, len(SCRIPT.calls)) == (TEXT[:30], 1)
    assert heard.error is not None


async def test_a_message_goes_on_at_a_server_of_the_same_api(gateway: RunningGateway) -> None:
    SCRIPT.cuts = [30]
    body = {"model": "tier-3", "stream": True, "max_tokens": 200, "messages": [{"role": "user", "content": PROMPT}]}
    answer = await gateway.http.post("/v1/messages", json=body, headers={"x-aio-continue": "auto"})
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    kinds = [event["type"] for event in events if event["type"] != "ping"]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert kinds.count("content_block_start") == 1
    assert "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta") == TEXT
    assert len(SCRIPT.calls) == 2


async def test_a_budget_covers_the_next_attempt_or_there_is_none(gateway: RunningGateway) -> None:
    # What the first attempt alone may cost; a half more covers the rest, as the first has not cost all of that.
    first = most_of(gateway, 2, PROMPT, 200)
    for name, amount, goes_on in (("poor", first, False), ("modest", first * 1.5, True), ("rich", 1.0, True)):
        key = await gateway.key(name)
        await gateway.budget(name, amount)
        SCRIPT.reset()
        SCRIPT.cuts = [30]
        heard = await ask(gateway, "tier-2", {"authorization": f"Bearer {key}"}, max_tokens=200)
        assert (heard.error is None, len(SCRIPT.calls)) == (goes_on, 1 + goes_on), name


async def test_what_goes_on_has_the_rest_of_the_limit_that_the_budget_set(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Far below the context.
    monkeypatch.setattr(answer_limits, "LEAST", 64)
    before, _ = gateway.serving.routing.knobs.change({"budget_limit_start": 256})
    key = await gateway.key("without")
    await gateway.budget("without", 1.0)
    SCRIPT.cuts = [30]
    heard = await ask(gateway, "tier-2", {"authorization": f"Bearer {key}"})
    assert (heard.text, heard.error) == (TEXT, None)
    gateway.serving.routing.knobs.change({"budget_limit_start": before.budget_limit_start})
    cut = (await record_of(gateway, heard)).attempts[0].completion_tokens
    assert cut > 0
    assert [body["max_tokens"] for _, body in SCRIPT.calls] == [256, 256 - cut]


def most_of(gateway: RunningGateway, tier: int, prompt: str, limit: int) -> float:
    """The most US dollars that an attempt at a chat of one prompt may cost."""
    messages = [Message(role="user", content=prompt)]
    body = ChatRequest(model=f"tier-{tier}", messages=messages, max_tokens=limit)
    request = chat_request(gateway.serving, RequestHead(request_id="x", arrival=0.0, caller=KEYLESS, headers={}), body)
    served = gateway.serving.routing.served
    return max_cost_usd(request, served.tier(tier), served.spec(tier))
