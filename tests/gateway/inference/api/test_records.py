"""What is kept of a request: found once durable, replayable, without texts where the caller does not consent."""

import pytest
from sqlalchemy.exc import OperationalError

from classifier.policy.decide import decide
from quality.records.record import Record
from tests.gateway.inference.api.test_disconnects import only_record
from tests.support.app import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO = [{"role": "user", "content": "Say hello."}]


async def record_of(gateway: RunningGateway, **fields: object) -> Record:
    body = {"model": "auto", "messages": HELLO, **fields}
    answer = await gateway.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    return await only_record(gateway, answer.headers["x-aio-decision-id"])


async def test_a_record_can_be_read_over_http(gateway: RunningGateway) -> None:
    record = await record_of(gateway)
    shown = (await gateway.http.get(f"/v1/requests/{record.request_id}")).json()
    assert shown["request_id"] == record.request_id
    assert shown["answer"] == "Hello there, how are you?"
    assert shown["messages"] == HELLO
    assert shown["decision"]["inputs"]["prediction"]["p_ok"] == [0.999, 0.999, 0.999, 1.0]


@pytest.mark.parametrize("error", [OperationalError("SELECT", {}, Exception("gone")), ConnectionRefusedError("gone")])
async def test_a_record_out_of_reach_is_no_bug_of_the_server(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def find(request_id: str) -> Record | None:
        raise error

    monkeypatch.setattr(gateway.serving.records, "find", find)
    answer = await gateway.http.get("/v1/requests/chatcmpl-1")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "database_unavailable"
    assert answer.headers["retry-after"]


async def test_a_recorded_decision_is_reproduced_from_its_inputs(gateway: RunningGateway) -> None:
    record = await record_of(gateway)
    assert decide(record.decision.inputs) == record.decision


async def test_usage_cost_and_timings_add_up(gateway: RunningGateway) -> None:
    record = await record_of(gateway, model="tier-2")
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (6, 5, 2)
    assert record.cost_usd == 0.000013125
    # The same tokens on tier 4: 6 at $3.75 and 5 at $11.25 per million.
    assert record.baseline_cost_usd == 0.00007875
    timings = record.timings
    assert timings.ttft_ms is not None
    assert 0 <= timings.route_ms <= timings.ttft_ms <= timings.e2e_ms
    assert 0 <= timings.overhead_ms <= timings.e2e_ms


async def test_store_false_keeps_the_texts_out(gateway: RunningGateway) -> None:
    record = await record_of(gateway, model="tier-4", store=False)
    assert (record.messages, record.answer, record.reasoning) == (None, None, None)
    assert record.completion_tokens == 5


async def test_a_prompt_of_the_older_api_is_one_turn_of_the_role_prompt(gateway: RunningGateway) -> None:
    answer = await gateway.openai.completions.create(model="auto", prompt="Once")
    record = await only_record(gateway, answer.id)
    assert record.api == "completion"
    assert record.messages == [{"role": "prompt", "content": "Once"}]


async def test_a_stream_leaves_the_same_record_as_a_whole_answer(gateway: RunningGateway) -> None:
    whole, stream = await record_of(gateway), await record_of(gateway, stream=True)
    assert (whole.stream, stream.stream) == (False, True)
    for name in ("answer", "prompt_tokens", "completion_tokens", "cost_usd", "finish_reason", "status"):
        assert getattr(whole, name) == getattr(stream, name)


async def test_the_callers_request_id_comes_back(gateway: RunningGateway) -> None:
    headers = {"x-request-id": "trace-42"}
    answer = await gateway.http.post("/v1/chat/completions", json={"model": "auto", "messages": HELLO}, headers=headers)
    assert answer.headers["x-request-id"] == "trace-42"
    assert answer.headers["x-aio-decision-id"].startswith("chatcmpl-")
    unfit = await gateway.http.get("/v1/nothing", headers={"x-request-id": "no spaces, please"})
    assert unfit.headers["x-request-id"].startswith("req-")
