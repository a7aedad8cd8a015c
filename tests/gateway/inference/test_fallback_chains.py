"""A tier's fallback chain: tiers and targets stand in, in the catalogue's order, before an answer starts; records,
headers and reasons say so, and nothing is billed twice."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from classifier.policy.decide import decide
from quality.records.record import Record
from tests.gateway.chained_tiers import (
    BACKUP,
    SECOND,
    Handler,
    ask,
    break_after_a_word,
    break_before_a_word,
    broken,
    busy,
    chained_tiers,
    reset,
    wrong_request,
)
from tests.gateway.inference.api.test_disconnects import only_record
from tests.support.administrator import ADMIN_HEADERS, bearer
from tests.support.app import RunningGateway
from tests.support.upstream import Call


async def record_of(gateway: RunningGateway, answer: httpx.Response) -> Record:
    return await only_record(gateway, answer.headers.get("x-aio-decision-id") or answer.headers["x-request-id"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fails", [broken, busy, reset, break_before_a_word])
async def test_a_target_answers_for_a_tier_that_fails_before_its_first_word(
    tmp_path: Path, fails: Handler, stream: bool
) -> None:
    async with chained_tiers(tmp_path, large='fallback = ["backup"]') as (gateway, servers):
        gateway.classifier.p_ok = (0.1, 0.1, 1.0)
        servers.by_model["large"] = fails
        answer = await ask(gateway, stream=stream, stream_options={"include_usage": True} if stream else None)
        assert answer.status_code == 200
        assert "I am backup-model" in answer.text
        assert "error" not in answer.text
        assert servers.asked == ["large", "backup"]
        assert answer.headers["x-aio-tier"] == "3", "what the target counts as"
        assert answer.headers["x-aio-target"] == "backup"
        assert answer.headers["x-aio-model"] == "backup-model"
        assert answer.headers["x-aio-fell-over-from"] == "tier-3"

        record = await record_of(gateway, answer)
        failed, done = record.attempts
        assert (failed.status, failed.target, done.status, done.target) == ("error", None, "ok", "backup")
        assert (record.tier, record.model, record.target) == (3, "backup-model", "backup")
        assert "tier 3 failed" in record.decision.reason
        assert record.decision.reason.endswith("backup took over")
        assert decide(record.decision.inputs) == record.decision, "it can be replayed"
        # 10 and 2 tokens at the target's own $7 per million; the failed attempt costs nothing.
        assert failed.cost_usd == 0
        assert record.cost_usd == pytest.approx(12 * 7e-6)
        body = answer.text if stream else json.dumps(answer.json())
        assert '"target":"backup"' in body.replace('": "', '":"')


async def test_a_chain_goes_on_in_its_order_and_passes_over_what_is_down(tmp_path: Path) -> None:
    chain = 'fallback = ["second", "medium", "backup"]'
    async with chained_tiers(tmp_path, BACKUP + SECOND, small=chain) as (gateway, servers):
        servers.by_model |= {"small": broken, "second": busy, "medium": broken}
        first = await ask(gateway)
        assert servers.asked == ["small", "second", "medium", "backup"]
        assert first.headers["x-aio-fell-over-from"] == "tier-1, second, tier-2"
        assert first.headers["x-aio-tier"] == "1", "backup stands for the first tier whose chain names it"

        # The failures are remembered: small is not chosen, and what cools down is not asked.
        servers.asked.clear()
        servers.by_model["large"] = broken
        second = await ask(gateway)
        assert second.headers["x-aio-tier"] == "3" if second.status_code == 200 else second.status_code >= 500
        assert servers.asked == ["large"]


async def test_what_is_down_is_passed_over_with_its_reason(tmp_path: Path) -> None:
    async with chained_tiers(tmp_path, BACKUP + SECOND, small='fallback = ["second", "backup"]') as (gateway, servers):
        servers.by_model |= {"small": broken, "second": busy}
        # A rule-free way to let the target cool down: the first request meets its 429.
        await ask(gateway)
        servers.asked.clear()
        gateway.serving.routing.served.tier(1)._failures.unhealthy_until = 0.0  # type: ignore[attr-defined]
        answer = await ask(gateway)
        assert servers.asked == ["small", "backup"]
        record = await record_of(gateway, answer)
        assert "not second: the tier is down" in record.decision.reason


async def test_the_last_error_is_returned_with_the_chain_that_was_tried(tmp_path: Path) -> None:
    async with chained_tiers(tmp_path, BACKUP + SECOND, small='fallback = ["second", "backup"]') as (gateway, servers):
        servers.by_model |= {"small": broken, "second": broken, "backup": busy}
        answer = await ask(gateway)
        assert answer.status_code == 503
        error = answer.json()["error"]
        assert error["code"] == "tier_unavailable"
        assert answer.headers["retry-after"] == "30"
        assert "target" not in error
        assert "answered 429" in error["message"]
        assert "Tried in this order: tier 1, second, backup" in error["message"]
        record = await record_of(gateway, answer)
        assert [attempt.target for attempt in record.attempts] == [None, "second", "backup"]
        assert record.status == "error"
        assert record.cost_usd == 0
        assert "backup failed (TierBusyError)" in record.decision.reason
        assert decide(record.decision.inputs) == record.decision


async def test_a_target_that_refuses_the_request_is_one_failure_of_the_chain(tmp_path: Path) -> None:
    async with chained_tiers(tmp_path, BACKUP + SECOND, small='fallback = ["second", "backup"]') as (gateway, servers):
        servers.by_model |= {"small": broken, "second": wrong_request}
        answer = await ask(gateway)
        assert answer.status_code == 200
        assert servers.asked == ["small", "second", "backup"]


async def test_the_callers_own_mistake_at_the_tier_itself_is_not_tried_elsewhere(tmp_path: Path) -> None:
    async with chained_tiers(tmp_path, small='fallback = ["backup"]') as (gateway, servers):
        servers.by_model["small"] = wrong_request
        answer = await ask(gateway)
        assert answer.status_code == 400
        assert servers.asked == ["small"]


async def test_a_started_stream_stays_where_it_is(tmp_path: Path) -> None:
    async with chained_tiers(tmp_path, small='fallback = ["backup"]') as (gateway, servers):
        servers.by_model["small"] = break_after_a_word
        answer = await ask(gateway, stream=True)
        assert '"Hel"' in answer.text
        assert '"error"' in answer.text
        assert servers.asked == ["small"]


async def test_an_empty_chain_ends_with_the_tier(tmp_path: Path) -> None:
    async with chained_tiers(tmp_path, small="fallback = []") as (gateway, servers):
        servers.by_model["small"] = broken
        answer = await ask(gateway)
        assert answer.status_code == 503
        assert servers.asked == ["small"]
        assert "Tried" not in answer.json()["error"]["message"]


async def test_a_request_that_names_its_tier_falls_back_to_targets_alone(tmp_path: Path) -> None:
    async with chained_tiers(tmp_path, medium='fallback = ["large", "backup"]') as (gateway, servers):
        servers.by_model["medium"] = broken
        answer = await ask(gateway, model="medium")
        assert servers.asked == ["medium", "backup"]
        record = await record_of(gateway, answer)
        assert "not large: the request is pinned to tier 2" in record.decision.reason


async def test_a_chain_keeps_to_the_maximum_cost_and_to_the_minimum_tier(tmp_path: Path) -> None:
    async with chained_tiers(tmp_path, small='fallback = ["backup", "large"]') as (gateway, servers):
        servers.by_model["small"] = broken
        answer = await ask(gateway, {"x-aio-max-cost": "0.0003"}, max_tokens=100)
        # 100 tokens at $7 are more, and so are those at $100.
        assert answer.status_code == 503
        assert servers.asked == ["small"]
        message = answer.json()["error"]["message"]
        assert "not backup: the predicted cost" in message
        assert "not large: the predicted cost" in message


async def test_a_chain_passes_over_what_a_budget_does_not_cover(tmp_path: Path) -> None:
    chain = 'fallback = ["backup", "second"]'
    dear = BACKUP.replace("7.0", "7000.0")
    async with chained_tiers(tmp_path, dear + SECOND.replace("5.0", "1.0"), small=chain) as (gateway, servers):
        key = await gateway.key("ada")
        await gateway.budget("ada", 0.01)
        servers.by_model["small"] = broken
        answer = await ask(gateway, bearer(key), max_tokens=5)
        assert answer.status_code == 200, answer.text
        assert servers.asked == ["small", "second"]
        assert "not backup: the budget does not cover it" in answer.json()["x_aio"]["reason"]
        assert float(answer.headers["x-aio-cost-usd"]) == pytest.approx(12 * 1e-6), "the failed attempt costs nothing"


async def test_a_target_that_is_not_local_takes_no_request_for_local_tiers(tmp_path: Path) -> None:
    async with chained_tiers(tmp_path, small='local = true\nfallback = ["backup"]') as (gateway, servers):
        servers.by_model["small"] = broken
        answer = await ask(gateway, {"x-aio-consent": "local"})
        assert answer.status_code == 503
        assert servers.asked == ["small"]
        assert "not backup: only tiers that are labelled local" in answer.json()["error"]["message"]


async def test_a_target_that_cannot_do_what_is_asked_is_passed_over(tmp_path: Path) -> None:
    unable = BACKUP + "capabilities = {{ tools = false }}\n" + SECOND
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    async with chained_tiers(tmp_path, unable, small='fallback = ["backup", "second"]') as (gateway, servers):
        servers.by_model["small"] = broken
        answer = await ask(gateway, tools=[tool])
        assert answer.status_code == 200
        assert servers.asked == ["small", "second"]
        record = await record_of(gateway, answer)
        assert "not backup: it does not support function calls" in record.decision.reason


async def test_an_answer_of_a_target_is_not_kept_for_its_tier(tmp_path: Path) -> None:
    async with chained_tiers(tmp_path, small='fallback = ["backup"]') as (gateway, servers):
        servers.by_model["small"] = broken
        first = await ask(gateway, temperature=0)
        assert first.headers["x-aio-cache"] == "miss"
        assert first.headers["x-aio-target"] == "backup"
        assert "backup took over" in first.json()["x_aio"]["reason"]
        gateway.serving.routing.served.tier(1)._failures.unhealthy_until = 0.0  # type: ignore[attr-defined]
        servers.by_model.clear()
        second = await ask(gateway, temperature=0)
        assert (second.headers["x-aio-cache"], second.headers["x-aio-model"]) == ("miss", "small-model")


async def test_what_a_target_says_is_no_evidence_of_its_tier(tmp_path: Path) -> None:
    async with chained_tiers(tmp_path, small='fallback = ["backup"]') as (gateway, servers):
        servers.by_model["small"] = broken
        answer = await ask(gateway)
        record = await record_of(gateway, answer)
        from quality.verification.sampling import refusal

        assert refusal(record) == "target"
        body = {"request_id": record.request_id, "score": 1.0}
        told = await gateway.http.post("/v1/feedback", json=body)
        assert told.status_code == 200, told.text
        assert not told.json()["learned"]


async def test_without_a_chain_the_next_tier_up_answers_and_the_reply_says_so(tmp_path: Path) -> None:
    async with chained_tiers(tmp_path) as (gateway, servers):
        servers.by_model["small"] = broken
        answer = await ask(gateway)
        assert servers.asked == ["small", "medium"]
        assert answer.headers["x-aio-fell-over-from"] == "tier-1"
        assert "x-aio-target" not in answer.headers
        assert answer.json()["x_aio"]["reason"].endswith("tier 1 failed (TierUnavailableError), tier 2 took over")


async def test_a_pool_of_keys_answers_with_the_next_key_behind_a_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_A", "first-secret")
    monkeypatch.setenv("KEY_B", "second-secret")
    keys = 'api_keys = [{ env = "KEY_A", requests_per_minute = 1 }, { env = "KEY_B" }]'

    async def refuse(call: Any) -> None:
        if "first" in call.headers["authorization"]:
            await call.reply(401, {"error": {"message": "no"}})
            return
        from tests.gateway.chained_tiers import well

        await well(call)

    async with chained_tiers(tmp_path, small=keys) as (gateway, servers):
        servers.by_model["small"] = refuse
        answers = [await ask(gateway) for _ in range(4)]
        assert [answer.headers["x-aio-tier"] for answer in answers] == ["1"] * 4
        assert servers.keys.count("first-secret") <= 1
        stats = (await gateway.http.get("/v1/admin/stats", headers=ADMIN_HEADERS)).json()
        replicas = stats["tiers"][0]["replicas"]
        assert [one["replica"].rpartition(" ")[2] for one in replicas] == ["(KEY_A)", "(KEY_B)"]
        assert "secret" not in json.dumps(stats)


NAMED = BACKUP + SECOND.replace('name = "second"', 'name = "second"\nfallback = ["backup"]')
ALIAS = '[aliases]\n"old/name" = "second"\n'


@pytest.mark.parametrize("model", ["second", "old/name"])
async def test_a_request_may_name_a_target_which_answers_though_its_tier_is_down(tmp_path: Path, model: str) -> None:
    async with chained_tiers(tmp_path, ALIAS + NAMED) as (gateway, servers):
        servers.by_model["large"] = broken
        await ask(gateway, model="large")
        servers.asked.clear()
        answer = await ask(gateway, model=model)
        assert answer.status_code == 200, answer.text
        assert servers.asked == ["second"]
        assert (answer.headers["x-aio-target"], answer.headers["x-aio-model"]) == ("second", "second-model")
        record = await record_of(gateway, answer)
        assert (record.requested_model, record.attempts[-1].target) == ("second", "second")
        assert record.decision is not None
        assert decide(record.decision.inputs).target == "second"
        listed = (await gateway.http.get("/v1/models")).json()["data"]
        assert {"second", "backup", "old/name"} <= {one["id"] for one in listed}


@pytest.mark.parametrize(("name", "asked"), [("second", ["second", "backup"]), ("backup", ["backup"])])
async def test_what_follows_a_target_that_a_request_names_is_its_own_chain(
    tmp_path: Path, name: str, asked: list[str]
) -> None:
    async with chained_tiers(tmp_path, NAMED) as (gateway, servers):
        servers.by_model |= {"second": broken, "backup": broken}
        answer = await ask(gateway, model=name)
        assert answer.status_code == 503
        assert servers.asked == asked


async def test_a_target_that_a_request_names_is_judged_by_its_own_entry(tmp_path: Path) -> None:
    short = BACKUP + "max_context = 40\ncapabilities = {{ tools = false }}\n"
    async with chained_tiers(tmp_path, short) as (gateway, servers):
        long = await ask(gateway, model="backup", messages=[{"role": "user", "content": "word " * 200}])
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        tools = await ask(gateway, model="backup", tools=[tool])
        dear = await ask(gateway, {"x-aio-max-cost": "0.0000001"}, model="backup")
        assert [one.status_code for one in (long, tools, dear)] == [400, 400, 400]
        codes = [one.json()["error"]["code"] for one in (long, tools, dear)]
        assert codes == ["context_length_exceeded", "unsupported_parameter", "no_tier_allowed"]
        assert "40 tokens" in long.json()["error"]["message"]
        assert servers.asked == []


async def test_rules_hold_for_a_target_that_a_request_names(tmp_path: Path) -> None:
    rule = '[[rules]]\nname = "tiers alone"\nallow = ["small", "medium", "large"]\n'
    async with chained_tiers(tmp_path, rule + BACKUP) as (gateway, servers):
        answer = await ask(gateway, model="backup")
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "no_tier_allowed")
        assert servers.asked == []


TO_TIERS = 'fallback = ["second", "large", "backup"]\nfallback_named = true'


async def test_a_request_that_names_its_tier_goes_on_to_tiers_where_the_entry_says_so(tmp_path: Path) -> None:
    async with chained_tiers(tmp_path, BACKUP + SECOND, small=TO_TIERS) as (gateway, servers):
        servers.by_model |= {"small": broken, "second": broken}
        answer = await ask(gateway, model="small")
        assert answer.status_code == 200, answer.text
        assert servers.asked == ["small", "second", "large"]
        assert answer.headers["x-aio-tier"] == "3"
        record = await record_of(gateway, answer)
        assert decide(record.decision.inputs) == record.decision, "it can be replayed"


async def test_what_stands_in_answers_at_once_while_the_named_entry_is_down_and_the_chain_goes_on_behind_it(
    tmp_path: Path,
) -> None:
    async with chained_tiers(tmp_path, BACKUP + SECOND, small=TO_TIERS) as (gateway, servers):
        servers.by_model["small"] = broken
        await ask(gateway, model="small")
        servers.asked.clear()
        answer = await ask(gateway, model="small-model")
        assert servers.asked == ["second"]
        assert answer.headers["x-aio-target"] == "second"
        record = await record_of(gateway, answer)
        assert "not small: the tier is down; second answers instead" in record.decision.reason
        assert decide(record.decision.inputs) == record.decision

        servers.asked.clear()
        servers.by_model["second"] = broken
        answer = await ask(gateway, model="small")
        assert answer.status_code == 200, answer.text
        assert servers.asked == ["second", "large"]
        record = await record_of(gateway, answer)
        assert "not second" not in record.decision.reason, "what stood in already is not looked at again"


async def test_a_named_target_goes_on_to_tiers_where_its_entry_says_so(tmp_path: Path) -> None:
    named = BACKUP + 'fallback = ["large"]\nfallback_named = true\n'
    async with chained_tiers(tmp_path, named) as (gateway, servers):
        servers.by_model["backup"] = broken
        answer = await ask(gateway, model="backup")
        assert (answer.status_code, servers.asked) == (200, ["backup", "large"])
        servers.asked.clear()
        answer = await ask(gateway, model="backup")
        assert (answer.status_code, servers.asked) == (200, ["large"])
        assert "x-aio-target" not in answer.headers


async def test_a_prompt_too_long_for_the_named_entry_goes_to_one_that_reads_it(tmp_path: Path) -> None:
    short = TO_TIERS + "\nmax_context = 100"
    async with chained_tiers(tmp_path, BACKUP + SECOND + "max_context = 100\n", small=short) as (gateway, servers):
        long = [{"role": "user", "content": "hello " * 400}]
        answer = await ask(gateway, model="small", messages=long, max_tokens=5)
        assert answer.status_code == 200, answer.text
        assert servers.asked == ["large"]


async def test_rules_hold_for_the_tiers_that_stand_in_for_a_named_one(tmp_path: Path) -> None:
    rule = '\n[[rules]]\nname = "cheap"\nallow = ["small", "medium", "backup"]\n'
    async with chained_tiers(tmp_path, BACKUP + SECOND + rule, small=TO_TIERS) as (gateway, servers):
        servers.by_model["small"] = broken
        for expected in (["small", "backup"], ["backup"]):
            servers.asked.clear()
            answer = await ask(gateway, model="small")
            assert (answer.status_code, servers.asked) == (200, expected)


async def test_the_entry_that_is_down_is_the_error_where_nothing_stands_in(tmp_path: Path) -> None:
    async with chained_tiers(tmp_path, small='fallback = ["large"]') as (gateway, servers):
        servers.by_model["small"] = broken
        await ask(gateway, model="small")
        servers.asked.clear()
        answer = await ask(gateway, model="small")
        assert (answer.status_code, servers.asked) == (503, [])


async def test_the_failure_that_takes_a_tier_down_says_when_to_come_back_as_the_next_refusal_does(
    tmp_path: Path,
) -> None:
    async def without_credit(call: Call) -> None:
        await call.reply(402, {"error": {"message": "no credit"}})

    async with chained_tiers(tmp_path) as (gateway, servers):
        servers.by_model["small"] = without_credit
        failed, refused = [await ask(gateway, model="tier-1") for _ in range(2)]
        assert (failed.status_code, failed.json()["error"]["code"]) == (503, "tier_unavailable")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_tier_available")
        assert failed.headers["retry-after"] == refused.headers["retry-after"]
        assert float(refused.headers["retry-after"]) > 1


async def test_a_tier_below_with_a_longer_context_takes_a_prompt_that_is_too_long(tmp_path: Path) -> None:
    async def too_long(call: Call) -> None:
        await call.reply(400, {"error": {"message": "Input is too long for requested model."}})

    lines = {"small": "max_context = 1000000", "medium": "max_context = 4096", "large": "max_context = 4096"}
    async with chained_tiers(tmp_path, **lines) as (gateway, servers):
        gateway.classifier.p_ok = (0.01, 0.01, 1.0)
        servers.by_model["large"] = too_long
        assert (await ask(gateway)).status_code == 200
        assert servers.asked == ["large", "small"]
