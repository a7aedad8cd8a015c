"""Observe mode in a running gateway: shadow answers in the background, and the report by endpoint, command and page."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import click.testing
import msgspec
import pytest
import pytest_asyncio

from gateway.base.settings import Settings
from gateway.cli.quality.report import report as report_command
from gateway.operations.labels import loop_setup
from quality.verification.sampling import SamplingSettings
from tests.gateway.operations.dashboard.browsing import browser, sign_in
from tests.polling import eventually
from tests.support.administrator import ADMIN_KEY
from tests.support.app import RunningGateway, running_gateway
from tests.support.served import UNCACHED
from tiers.catalog.catalog import Catalog
from tiers.errors import TierError
from tiers.tier import Usage

pytestmark = pytest.mark.asyncio(loop_scope="module")
EASY, HARD = (0.999, 0.999, 0.999, 1.0), (0.1, 0.1, 0.1, 1.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def watched(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    """A gateway that observes, with a shadow for every request and none of the random probes."""
    settings = Settings(
        data_dir=str(tmp_path_factory.mktemp("data")), verification_budget=1e6, cold_start_usd=0.0, second_opinions=0
    )
    usual = loop_setup.sampling_settings

    def unprobed(settings: Settings, catalog: Catalog) -> SamplingSettings:
        return msgspec.structs.replace(usual(settings, catalog), probe_rate=0.0, first_probes=0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_setup, "sampling_settings", unprobed)
        async with running_gateway(settings) as running:
            running.serving.routing.knobs.change({"mode": "observe", "shadow_share": 1.0})
            await eventually(
                lambda: running.operations.quality_loop is not None and running.operations.quality_loop.monitor
            )
            yield running


async def asked(gateway: RunningGateway, number: int, **more: Any) -> dict[str, Any]:
    """An answer of tier 4, whatever routing would have done."""
    messages = [{"role": "user", "content": f"What is {number} + 4? Answer with the number only."}]
    answer = await gateway.http.post(
        "/v1/chat/completions", json={"model": "auto", "messages": messages} | more, headers=UNCACHED
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-aio-tier"] == "4"
    found: dict[str, Any] = answer.json()
    assert found["choices"][0]["message"]["content"] == "7"
    return found


async def shown(gateway: RunningGateway) -> dict[str, Any]:
    found: dict[str, Any] = (await gateway.http.get("/admin/api/report")).json()["worth"]["observed"]
    return found


async def test_the_figures_are_those_computed_by_hand(watched: RunningGateway) -> None:
    gateway = watched
    for tier in gateway.tiers:
        tier.words = ("7",)
    gateway.tier(1).later_words = ("8", "!", "!")
    for number in range(5):
        await asked(gateway, number)
    await asked(gateway, 5, store=False)
    await asked(gateway, 6, store=False)
    await asked(gateway, 8, n=2)
    gateway.classifier.p_ok = HARD
    await asked(gateway, 7)

    async def all_judged() -> dict[str, Any] | None:
        found = await shown(gateway)
        return found if (found["requests"], found["judged"]) == (9, 5) else None

    found = await eventually(all_judged)

    # Five shadows, of the five requests that may be stored and compared; tier 1 said the same once, and else 8.
    assert len(gateway.tier(1).requests) == 5
    assert {request.priority for request in gateway.tier(1).requests} == {3}
    assert (found["same"], found["worse"], found["priced"]) == (1, 4, 5)
    price = gateway.serving.routing.served.price
    prompt = 14  # the scripted count: ten words and four for the turn
    given = price(4, Usage(prompt_tokens=prompt, completion_tokens=1))
    records = [await gateway.serving.records.find(row["request_id"]) for row in found["worst"]]
    assert [one.cost_usd for one in records if one is not None] == pytest.approx([given] * 5)
    costs = records[0].decision.inputs.costs  # type: ignore[union-attr]
    measured = price(1, Usage(prompt_tokens=prompt, completion_tokens=1)) + 4 * price(
        1, Usage(prompt_tokens=prompt, completion_tokens=3)
    )
    ratio = measured / (5 * given * costs[0] / costs[3])
    assert found["cost_ratio"] == pytest.approx(ratio)
    paid = found["net"]["strongest_usd"]
    would_be = given + ratio * (paid - given) * costs[0] / costs[3]
    assert found["net"]["paid_usd"] == pytest.approx(would_be)
    assert found["net"]["checks_usd"] == pytest.approx(measured)
    share = found["net_share"]
    assert share["value"] == pytest.approx(1 - (would_be + measured) / paid)
    assert share["low"] < share["value"] < share["high"]
    # One of five no worse, for eight of the nine; the ninth would have stayed at tier 4.
    assert found["no_worse"]["value"] == pytest.approx((8 * 0.2 + 1) / 9)
    sentences = (await gateway.http.get("/admin/api/report")).json()["worth"]["sentences"]
    assert "That is too little to decide by: 5 of at least 30 answers have been judged." in sentences
    assert [one["label"] for one in found["worst"]] == ["worse"] * 4 + ["no_worse"]


async def test_the_command_and_the_page_say_the_same(
    watched: RunningGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await shown(watched)
    # Outside a checkout, where there is no folder of measurements.
    monkeypatch.chdir(tmp_path)
    runner = click.testing.CliRunner()
    where = ["--data-dir", watched.serving.settings.data_dir]

    printed = await asyncio.to_thread(runner.invoke, report_command, [*where, "--json"])
    assert printed.exit_code == 0, printed.output
    told = json.loads(printed.output)["worth"]["observed"]
    assert told == found
    text = (await asyncio.to_thread(runner.invoke, report_command, where)).output
    assert "While routing was only observed, over the newest 9 requests, it would have cost" in text
    assert found["worst"][0]["request_id"] in text

    async with browser(watched) as client:
        await sign_in(client)
        page = (await client.get("/admin/routing")).text
    assert "Switch routing on" in page
    assert page.count("worse</span>") == 5
    assert "8!!" not in page


async def test_the_command_asks_a_running_gateway_by_its_url(
    watched: RunningGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await shown(watched)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AIO_DATA_DIR", str(tmp_path / "none"))

    async def report(*words: str, **environment: str) -> click.testing.Result:
        return await asyncio.to_thread(click.testing.CliRunner().invoke, report_command, words, env=environment)

    with_key = await report("--url", watched.url, "--key", ADMIN_KEY, "--days", "3")
    assert with_key.exit_code == 0, with_key.output
    assert "While routing was only observed, over the newest 9 requests, it would have cost" in with_key.output
    assert found["worst"][0]["request_id"] in with_key.output
    by_environment = await report("--json", AIO_URL=watched.url, AIO_ADMIN_KEY=ADMIN_KEY)
    assert json.loads(by_environment.output)["worth"]["observed"] == found
    assert not (tmp_path / "none").exists(), "the database here is not asked"

    without_key = await report("--url", watched.url)
    assert without_key.exit_code == 1
    assert "Give it as --key or in AIO_ADMIN_KEY." in without_key.output


async def test_a_named_database_is_read_where_the_environment_names_a_gateway(tmp_path: Path) -> None:
    runner, here = click.testing.CliRunner(), ["--data-dir", str(tmp_path)]
    nowhere = "http://127.0.0.1:9"
    read = await asyncio.to_thread(runner.invoke, report_command, here, env={"AIO_URL": nowhere})
    assert read.exit_code == 0, read.output
    assert "Nothing was spent in this period." in read.output

    both = await asyncio.to_thread(runner.invoke, report_command, [*here, "--url", nowhere])
    assert both.exit_code == 2
    assert "--url asks a gateway, which has its own database: leave out --data-dir" in both.output


async def test_a_failing_tier_of_routing_disturbs_no_caller_and_is_reported(watched: RunningGateway) -> None:
    watched.classifier.p_ok = EASY
    watched.tier(1).fail_at, watched.tier(1).error = 0, TierError("the model is gone")
    before = (await shown(watched))["shadows"]

    for number in range(2):
        await asked(watched, number)
    await eventually(lambda: len(watched.tier(1).requests) >= 7)

    # The first attempts have failed; they are repeated later.
    after = (await shown(watched))["shadows"]
    assert (after["judged"], after["waiting"]) == (before["judged"], 2)
