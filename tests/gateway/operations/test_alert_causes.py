"""What a running gateway reports to real receivers: budgets, a tier that is out, missing labels, routing that does not
pay; and the test of all channels."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from sqlalchemy import insert, select, update

from gateway.base.settings import Settings
from gateway.cli import main
from gateway.operations import alert_causes
from gateway.operations.alert_causes import LEAST_ANSWERS
from gateway.operations.constant_tier import ConstantFollower
from gateway.tenancy.admission import QUOTA_EXCEEDED
from gateway.tenancy.budgets.budget_commands import set_budget
from gateway.tenancy.changes import Order
from gateway.tenancy.keys.key_commands import KeyTerms, create_key, create_team
from migrations.tables.audit import audit_events
from migrations.tables.quality import verifications
from migrations.tables.tenancy import budget_leases
from quality.comparison.routing_probes import WorthFound
from quality.comparison.routing_worth import routing_worth
from quality.store.database import open_database
from quality.store.queries import RefusalCount, RefusalKind, add_refused
from tests.gateway.operations.dashboard.browsing import browser, forms_of, sign_in
from tests.gateway.operations.dashboard.rows import insert_requests
from tests.gateway.telemetry.smtp_server import PASSWORD, USER, SmtpServer, make_certificate, smtp_server
from tests.quality.comparison.test_routing_worth import probes
from tests.support.administrator import ADMIN_KEY
from tests.support.app import RunningGateway, StartApp, running_gateway
from tests.support.database import migrated
from tests.support.upstream import Call, LoopbackServer

pytestmark = pytest.mark.usefixtures("ready_alert_sender")
DAY = 86_400.0
HELLO = [{"role": "user", "content": "hello"}]


class Receivers:
    """What a chat and the mail server got."""

    def __init__(self, settings: Settings, mail: SmtpServer) -> None:
        self.settings, self.mail = settings, mail
        self.chat = asyncio.Queue[str]()

    async def hear(self, call: Call) -> None:
        await call.reply(200, "ok")
        self.chat.put_nowait(f"{call.body['title']}\n{call.body['message']}")

    async def chat_says(self, wanted: str) -> str:
        """Wait for a message with these words; others are passed over."""
        while wanted not in (text := await asyncio.wait_for(self.chat.get(), 60)):
            pass
        return text


@asynccontextmanager
async def receivers(settings: Settings, folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Receivers]:
    certificate = make_certificate(folder)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with smtp_server(certificate) as mail:
        found = Receivers(settings, mail)
        async with LoopbackServer(found.hear) as desk:
            found.settings = msgspec.structs.replace(
                settings,
                alert_urls=f"json://{desk.base_url.partition('://')[2]}/chat-s3cret "
                f"mailtos://{USER}:{PASSWORD}@127.0.0.1:{mail.port}?from=aio@example.com&to=ops@example.com",
                alert_poll_seconds=0.05,
            )
            yield found


@pytest.fixture
async def desk(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Receivers]:
    async with receivers(settings, tmp_path, monkeypatch) as found:
        yield found


async def spend(gateway: RunningGateway, budget_id: str, usd: float) -> None:
    """What another replica reports to have spent."""
    row = {
        "budget_id": budget_id, "period_key": "total", "replica": "elsewhere", "status": "returned",
        "granted_microusd": round(usd * 1e6), "spent_microusd": round(usd * 1e6), "expires_at": 0.0, "created_at": 1.0,
    }  # fmt: skip
    lease = budget_leases.c
    async with gateway.serving.database.begin() as connection:
        mine = (lease.budget_id == budget_id, lease.replica == "elsewhere")
        if (await connection.execute(update(budget_leases).where(*mine).values(row))).rowcount == 0:
            await connection.execute(insert(budget_leases).values(row))


async def test_a_budget_is_reported_at_50_and_80_per_cent_and_when_it_refuses_requests(desk: Receivers) -> None:
    async with running_gateway(desk.settings) as gateway:
        made = (await gateway.http.post("/admin/api/keys", json={"name": "ada"})).json()
        budget = await gateway.budget("ada", 4.0)

        await spend(gateway, budget, 1.99)
        await spend(gateway, budget, 2.0)
        half = await desk.chat_says("AioBudget")
        assert "50% of the budget of $4 in total of key ada is spent ($2.00 so far)" in half
        await spend(gateway, budget, 3.9)
        assert "80% of the budget" in await desk.chat_says("AioBudget")
        await spend(gateway, budget, 3.999999)
        headers = {"authorization": f"Bearer {made['key']}"}
        body = {"model": "tier-4", "messages": HELLO, "max_tokens": 4000}
        assert (await gateway.http.post("/v1/chat/completions", json=body, headers=headers)).status_code == 429
        assert "requests are refused by the budget of $4 in total of key ada" in await desk.chat_says("AioBudget")

        subjects = [(await asyncio.wait_for(desk.mail.mails.get(), 60))[0].get_content() for _ in range(3)]
        assert ["80%" in text for text in subjects] == [False, True, False]
        assert desk.chat.empty()
    assert desk.mail.signed_in == [(USER, PASSWORD)] * 3


async def test_a_teams_budget_refuses_the_keys_of_the_team_and_no_other_budget_is_named(settings: Settings) -> None:
    order, now = Order(actor="test", now=1.0), time.time()
    async with migrated(settings.database) as engine:
        await create_team(engine, "red", order)
        made = await create_key(engine, "ada", "red", KeyTerms(), order)
        await set_budget(engine, "team", "red", "total", 4.0, order)
        await set_budget(engine, "key", "ada", "total", 9.0, order)
        refused = RefusalKind(
            made.key_id, 429, QUOTA_EXCEEDED, "the team's budget of $4 in total", "/v1/chat/completions"
        )
        assert await alert_causes.spent_budgets(engine, now) == []

        await add_refused(engine, [(now - 120, refused, RefusalCount(count=1, last_at=now - 100))])
        (cause,) = await alert_causes.spent_budgets(engine, now)
        assert cause.summary == "requests are refused by the budget of $4 in total of team red"
        assert await alert_causes.spent_budgets(engine, now + 2 * alert_causes.REFUSED_SECONDS) == []


async def test_a_tier_that_is_out_is_reported_by_its_number(desk: Receivers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alert_causes, "OUT_SECONDS", 0.0)
    async with running_gateway(desk.settings) as gateway:
        tier = gateway.tier(3)
        tier.health = msgspec.structs.replace(tier.health, healthy=False)
        said = await desk.chat_says("AioTierDown")
    assert f"tier 3 ({tier.model}) takes no requests" in said


async def answered(settings: Settings, days: float, count: int) -> None:
    """Requests before a start whose answers could have been verified."""
    now = time.time()
    async with migrated(settings.database) as engine:
        rows: list[dict[str, Any]] = [
            {"request_id": f"r{n}", "created_at": now - DAY, "messages": HELLO} for n in range(count)
        ]
        await insert_requests(engine, {"request_id": "first", "created_at": now - days * DAY, "messages": HELLO}, *rows)


async def test_labels_that_stay_away_are_reported(desk: Receivers) -> None:
    loud = msgspec.structs.replace(desk.settings, monitor=True)
    await answered(loud, 4, LEAST_ANSWERS)
    async with running_gateway(loud):
        said = await desk.chat_says("AioLabelsSilent")
    assert f"no label for 3 days, in which {LEAST_ANSWERS} answers could have been verified" in said


@pytest.mark.parametrize(
    ("days", "count", "label", "found"),
    [(4, 5, None, 5), (2, 5, None, 0), (4, 5, "no_worse", 0)],
    ids=["silent", "a young installation", "a label came"],
)
async def test_labels_are_silent_only_where_they_could_have_come(
    settings: Settings, days: float, count: int, label: str | None, found: int
) -> None:
    await answered(settings, days, count)
    engine, now = open_database(settings.database), time.time()
    row = {
        "request_id": "r0", "tier": 1, "model": "m", "sampled_probability": 1.0, "sampled_reason": "sample",
        "status": "done", "label": label, "cost_usd": 0.0, "reserved_usd": 0.0, "attempts": 1, "created_at": now,
        "finished_at": now,
    }  # fmt: skip
    async with engine.begin() as connection:
        await connection.execute(insert(verifications).values(row))
    assert await alert_causes.unlabelled_answers(engine, now) == found
    await engine.dispose()


async def test_routing_that_does_not_pay_is_reported_in_a_sentence(
    desk: Receivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    worth = routing_worth(probes(4000, 0.0), target=0.7, worth=0.01)
    assert worth.verdict == "does_not_pay"

    async def found(self: ConstantFollower) -> WorthFound:
        return WorthFound(catalogue=worth, keys=[], computed_at=1.0)

    # At every look, also one that a busy machine makes late.
    monkeypatch.setattr(ConstantFollower, "found", found)
    async with running_gateway(desk.settings):
        said = await desk.chat_says("AioRoutingDoesNotPay")
    assert "Routing does not pay here" in said


async def heard_test(desk: Receivers) -> None:
    assert "AioTest (test)" in await asyncio.wait_for(desk.chat.get(), 60)
    mail, _ = await asyncio.wait_for(desk.mail.mails.get(), 60)
    assert mail["Subject"] == "AIO: AioTest (test)"


async def test_the_page_and_the_command_test_every_channel(
    desk: Receivers, caplog: pytest.LogCaptureFixture, app: StartApp
) -> None:
    gateway = await app(desk.settings)
    async with browser(gateway) as client:
        await sign_in(client)
        shown = await client.get("/admin/system/alerts")
        assert "<dt>Webhook at 127.0.0.1</dt><dd>address 1 of AIO_ALERT_URLS</dd>" in shown.text
        assert "json 1" not in shown.text
        form = forms_of(shown)["/admin/system/alerts/test"]
        done = await client.post(form["action"], data=form["fields"])
        assert done.status_code == 303
        notice = (await client.get("/admin/system/alerts")).text
        assert "Test: webhook at 127.0.0.1 accepted it; e-mail through 127.0.0.1 accepted it" in notice
    await heard_test(desk)

    order = ["alerts", "--test", "--url", gateway.url, "--key", ADMIN_KEY]
    said = await asyncio.to_thread(CliRunner().invoke, main, [*order, "--json"])
    assert said.exit_code == 0, said.output
    assert [one["problem"] for one in json.loads(said.output)["channels"]] == [None, None]
    await heard_test(desk)
    async with gateway.serving.database.connect() as connection:
        rows = (await connection.execute(select(audit_events).where(audit_events.c.action == "alerts.tested"))).all()
    assert len(rows) == 2
    assert PASSWORD not in shown.text + notice + said.output + caplog.text
    assert "chat-s3cret" not in shown.text + notice + said.output + caplog.text


async def test_a_refused_test_names_the_channel_and_the_reason_without_secrets(settings: Settings) -> None:
    async def refuse(call: Call) -> None:
        await call.reply(404, "no_service")

    async with LoopbackServer(refuse) as chat:
        address = f"json://{chat.base_url.partition('://')[2]}/x-s3cret"
        telling = msgspec.structs.replace(settings, alert_urls=address)
        async with running_gateway(telling) as gateway:
            answer = (await gateway.http.post("/v1/admin/alerts/test")).json()
            assert answer == {
                "channels": [{"channel": "json 1", "where": "address 1 of AIO_ALERT_URLS", "problem": "HTTP 404"}]
            }
            shown = await asyncio.to_thread(
                CliRunner().invoke, main, ["alerts", "--test", "--url", gateway.url, "--key", ADMIN_KEY]
            )
            assert (shown.exit_code, "HTTP 404" in shown.output) == (1, True)


async def test_without_a_channel_there_is_nothing_to_test(app: StartApp) -> None:
    gateway = await app()
    answer = await gateway.http.post("/v1/admin/alerts/test")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "no_alert_channel")
    assert (await gateway.http.get("/v1/admin/alerts")).json() == {"channels": [], "sent": []}
