"""Batch lines obey the current limits of their key: rate limits wait, budgets and revocation end them."""

from typing import Any

import openai
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from gateway.base.errors import ApiError
from gateway.batches.line_worker import LONGEST_BACKOFF_SECONDS, again
from tests.gateway.batches.batching import made, outcome, request_line
from tests.polling import eventually
from tests.support.app import RunningGateway, StartApp

pytestmark = pytest.mark.processes


@pytest_asyncio.fixture
async def working(app: StartApp) -> RunningGateway:
    return await app()


async def key_of(gateway: RunningGateway, **terms: Any) -> tuple[str, openai.AsyncOpenAI]:
    """A stored key's id, and a client with it."""
    key = await gateway.order("POST", "/keys", {"name": "ada", "terms": terms})
    return key["key_id"], gateway.openai.with_options(api_key=key["key"])


async def test_lines_beyond_the_budget_are_errors(working: RunningGateway) -> None:
    _, ada = await key_of(working)
    await working.budget("ada", 0.0, "day")
    batch, output, errors = await outcome(ada, (await made(ada, [request_line("a"), request_line("b")])).id)
    assert (batch.status, output, list(errors)) == ("completed", {}, ["a", "b"])
    response = errors["a"]["response"]
    assert (response["status_code"], response["body"]["error"]["code"]) == (429, "insufficient_quota")
    assert working.tier(1).requests == []


async def test_lines_over_a_keys_concurrency_wait_and_none_is_lost(working: RunningGateway) -> None:
    _, ada = await key_of(working, concurrency=1)
    # Rejection by a rate limit is not an attempt.
    await working.http.patch("/v1/admin/knobs/batches", json={"most_attempts": 1})
    tier = working.tier(1)
    tier.hold_at = 1
    batch = await made(ada, [request_line(f"r{n}") for n in range(4)])
    await tier.holding.wait()

    async def retried() -> bool:
        return _outcomes((await working.http.get("/metrics")).text).get("retried", 0) > 0

    await eventually(retried)
    tier.go.set()
    batch, output, errors = await outcome(ada, batch.id)
    assert (batch.status, len(output), errors) == ("completed", 4, {})


async def test_the_lines_of_a_revoked_key_are_errors(working: RunningGateway) -> None:
    key_id, ada = await key_of(working)
    tier = working.tier(1)
    tier.hold_at = 1
    await working.http.patch("/v1/admin/knobs/batches", json={"concurrency": 1})
    batch = await made(ada, [request_line("before"), request_line("after")])
    await tier.holding.wait()
    await working.order("POST", f"/keys/{key_id}/revoke", {})
    tier.go.set()

    async def ended() -> Any:
        found = await working.jobs.book.find(key_id, batch.id)
        assert found is not None
        return found if found.completed is not None else None

    caught = await eventually(ended)
    assert (caught.status, caught.completed, caught.failed) == ("completed", 1, 1)


def _outcomes(text: str) -> dict[str, float]:
    return {
        sample.labels["outcome"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "aio_batch_lines_total"
    }


def test_what_the_request_is_to_blame_for_is_not_asked_again() -> None:
    for status in (400, 401, 403, 404, 409, 413, 422):
        assert again(ApiError(status, "no"), 1, 8, 1.0) is None
    quota = ApiError(429, "no", code="insufficient_quota", headers={"retry-after": "60"})
    too_large_for_ever = ApiError(429, "no")
    assert again(quota, 1, 8, 1.0) is None
    assert again(too_large_for_ever, 1, 8, 1.0) is None


def test_backoff_doubles_with_jitter_up_to_a_bound_and_then_it_is_over() -> None:
    failure = ApiError(502, "not now")
    for attempts in range(1, 20):
        wait = again(failure, attempts, 20, 1.0)
        assert wait is not None
        whole = min(2.0 ** (attempts - 1), LONGEST_BACKOFF_SECONDS)
        assert whole / 2 <= wait.seconds <= whole
        assert wait.counted
    assert again(failure, 20, 20, 1.0) is None


def test_a_tier_that_is_down_is_not_asked_before_it_says() -> None:
    wait = again(ApiError(503, "not now", retry_after_seconds=10), 1, 8, 1.0)
    assert wait is not None
    assert 10 <= wait.seconds <= 12.5
    assert wait.counted


def test_a_rate_limit_is_no_attempt_and_pauses_the_batch_for_retry_after() -> None:
    failure = ApiError(429, "not now", headers={"retry-after": "7"})
    wait = again(failure, 100, 8, 1.0)
    assert wait is not None
    assert (wait.counted, wait.batch) == (False, True)
    assert 7 <= wait.seconds <= 9
    drained = again(ApiError(503, "bye", code="shutting_down"), 100, 8, 1.0)
    assert drained is not None
    assert (drained.seconds, drained.counted) == (0.0, False)
