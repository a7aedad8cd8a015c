"""Channels of Apprise: at most one message per cause and hour, over restarts and replicas, and bounds on what their
plugins do in the network."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import requests

from gateway.base.configuration import load_settings
from gateway.base.settings import Settings, SettingsError
from gateway.telemetry.alert_channels import (
    AlertNotSentError,
    Cause,
    Channel,
    Message,
    channels_of,
    check_channels,
)
from gateway.telemetry.alert_sender import _notify, _refuse_metadata
from gateway.telemetry.alerts import ATTEMPT_SECONDS, AlertMessages, Alerts, Causes, Sent
from tests.gateway.telemetry.smtp_server import PASSWORD, USER, make_certificate, smtp_server
from tests.support.database import migrated
from tests.support.upstream import Call, LoopbackServer

HOUR = 3600.0
DOWN = Cause(name="AioTierDown", key="AioTierDown/2", summary="tier 2 takes no requests", source="here")
WORTH = Cause(name="AioRoutingDoesNotPay", key="AioRoutingDoesNotPay", summary="it does not")


class Chat(Channel):
    """A channel that remembers what it got."""

    def __init__(self) -> None:
        super().__init__("Slack", "Slack", "here", "")
        self.got: list[str] = []
        self.deaf = False

    async def send(self, message: Message) -> None:
        if self.deaf:
            raise AlertNotSentError("no connection")
        self.got.append(f"{message.action} {message.cause.key}")


class Replica:
    """A process with alerts, and its clock."""

    def __init__(self, chat: Chat, messages: AlertMessages | None, source: str = "here") -> None:
        self.chat, self.now = chat, 0.0
        self.alerts = Alerts([chat], (), source, clock=lambda: self.now, messages=messages)

    async def at(self, seconds: float, *causes: Cause, known: tuple[str, ...] = ("AioTierDown",)) -> list[str]:
        """Return what is sent at a time at which these causes stand."""
        self.now, before = seconds, len(self.chat.got)
        standing: Causes = {name: [one for one in causes if one.name == name] for name in known}
        await self.alerts.look({}, standing)
        return self.chat.got[before:]


@pytest.fixture
async def messages(tmp_path: Path) -> AsyncIterator[AlertMessages]:
    settings = Settings(data_dir=str(tmp_path))
    async with migrated(settings.database) as engine:
        yield AlertMessages(engine)


@pytest.mark.parametrize("stored", [True, False])
async def test_a_cause_that_comes_and_goes_is_one_message_an_hour(messages: AlertMessages, stored: bool) -> None:
    here = Replica(Chat(), messages if stored else None)
    assert await here.at(0, DOWN) == ["trigger AioTierDown/2"]
    for minute in range(1, 60):
        assert await here.at(60.0 * minute, *([DOWN] if minute % 2 else [])) == []
    assert await here.at(HOUR) == ["resolve AioTierDown/2"]
    assert await here.at(HOUR + 60, DOWN) == []
    assert await here.at(2 * HOUR, DOWN) == ["trigger AioTierDown/2"]


async def test_another_tier_is_another_cause(messages: AlertMessages) -> None:
    here = Replica(Chat(), messages)
    other = Cause(name="AioTierDown", key="AioTierDown/3", summary="tier 3 takes no requests", source="here")
    assert await here.at(0, DOWN) == ["trigger AioTierDown/2"]
    assert await here.at(15, DOWN, other) == ["trigger AioTierDown/3"]


async def test_a_restart_repeats_nothing_and_reports_what_ended_meanwhile(messages: AlertMessages) -> None:
    assert await Replica(Chat(), messages).at(0, DOWN) == ["trigger AioTierDown/2"]
    assert await Replica(Chat(), messages).at(60, DOWN) == []
    again = Replica(Chat(), messages)
    assert await again.at(2 * HOUR) == ["resolve AioTierDown/2"]
    assert await again.at(4 * HOUR, DOWN) == ["trigger AioTierDown/2"]


async def test_replicas_report_what_they_share_once_and_what_is_their_own_each(messages: AlertMessages) -> None:
    here, there = Replica(Chat(), messages), Replica(Chat(), messages, "there")
    known = ("AioRoutingDoesNotPay",)
    assert await here.at(0, WORTH, known=known) == ["trigger AioRoutingDoesNotPay"]
    assert await there.at(5, WORTH, known=known) == []
    assert await here.at(6, DOWN) == ["trigger AioTierDown/2"]
    own = Cause(name="AioTierDown", key="AioTierDown/2", summary="tier 2 takes no requests", source="there")
    assert await there.at(7, own) == ["trigger AioTierDown/2"]


async def test_a_message_that_was_not_accepted_is_sent_at_the_next_look(messages: AlertMessages) -> None:
    here = Replica(Chat(), messages)
    here.chat.deaf = True
    assert await here.at(0, DOWN) == []
    assert await messages.newest(9) == []
    here.chat.deaf = False
    assert await here.at(15, DOWN) == ["trigger AioTierDown/2"]
    assert [(one.cause, one.state, one.sent_at) for one in await messages.newest(9)] == [
        ("here/AioTierDown/2", "on", 15)
    ]


async def test_a_message_that_a_dead_process_did_not_send_is_sent_by_another(messages: AlertMessages) -> None:
    note = Sent("Slack", DOWN.id, "on", "warning", DOWN.summary, True, 0.0)
    assert (await messages.claim(note, HOUR)).granted
    assert await messages.newest(9) == []
    here = Replica(Chat(), messages)
    assert await here.at(15, DOWN) == []
    assert await here.at(ATTEMPT_SECONDS, DOWN) == ["trigger AioTierDown/2"]


async def test_a_spent_budget_has_no_second_message_when_its_period_ends(messages: AlertMessages) -> None:
    here = Replica(Chat(), messages)
    budget = Cause(name="AioBudget", key="AioBudget/b1/2030-12/80", summary="80%", ends=False)
    assert await here.at(0, budget, known=("AioBudget",)) == ["trigger AioBudget/b1/2030-12/80"]
    assert await here.at(2 * HOUR, known=("AioBudget",)) == []


async def test_while_the_database_is_away_alerts_are_sent(
    messages: AlertMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*arguments: object) -> None:
        raise OSError("no connection")

    for name in ("claim", "standing"):
        monkeypatch.setattr(messages, name, away)
    here = Replica(Chat(), messages)
    assert await here.at(0, DOWN) == ["trigger AioTierDown/2"]
    assert await here.at(60, DOWN) == []
    assert await here.at(2 * HOUR) == ["resolve AioTierDown/2"]


def message(summary: str, **changes: Any) -> Message:
    cause = Cause(name="AioBudget", key="AioBudget/1", summary=summary, **changes)
    return Message(action="trigger", cause=cause, source="here", at=1_900_000_000)


async def sent_by(url: str, summary: str) -> None:
    await Channel("x", "x", "there", url).send(message(summary))


def test_an_incident_of_pagerduty_is_opened_and_closed_by_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def post(url: str, data: str, **options: Any) -> requests.Response:
        asked.append(json.loads(data) | {"url": url})
        answer = requests.Response()
        answer.status_code = 202
        return answer

    monkeypatch.setattr(requests, "post", post)
    order = {
        "url": f"pagerduty://{'i' * 32}@{'a' * 20}",
        "title": "AIO: Q",
        "body": "a queue",
        "incident": "aio/here/Q",
    }
    for kind in ("failure", "success"):
        assert _notify(order | {"kind": kind}, [])
    opened, closed = asked
    assert opened["url"] == closed["url"] == "https://events.pagerduty.com/v2/enqueue"
    assert (opened["event_action"], closed["event_action"]) == ("trigger", "resolve")
    assert opened["dedup_key"] == closed["dedup_key"] == "aio/here/Q"
    assert opened["routing_key"] == "i" * 32
    assert opened["payload"]["severity"] == "critical"


async def test_no_text_is_a_mention_or_a_link() -> None:
    heard = asyncio.Queue[dict[str, Any]]()

    async def hear(call: Call) -> None:
        await call.reply(200, {})
        heard.put_nowait(call.body)

    async with LoopbackServer(hear) as server:
        await sent_by(f"json://{host_of(server)}", "<!channel> <@U1> @everyone of a & b [x](https://evil.example)")
    said = await heard.get()
    assert said["title"] == "AIO: AioBudget (warning)"
    words = "<\u200b!channel> <\u200b@\u200bU1> @\u200beveryone of a & b [x]\u200b(https://evil.example)"
    assert said["message"].split("\n\n") == [words, "AIO on here, 2030-03-17 17:46 UTC"]


def host_of(server: LoopbackServer) -> str:
    return server.base_url.partition("://")[2]


@pytest.mark.usefixtures("ready_alert_sender")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_channel_follows_a_redirect(status: int) -> None:
    got: list[str] = []

    async def lead_on(call: Call) -> None:
        got.append(call.path)
        head = f"HTTP/1.1 {status} X\r\nlocation: /elsewhere\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        await call.send(head.encode())

    async with LoopbackServer(lead_on) as server:
        with pytest.raises(AlertNotSentError, match=f"HTTP {status}"):
            await sent_by(f"json://{host_of(server)}/hook?redirect=yes", "x")
    assert {path.rstrip("/") for path in got} == {"/v1/hook"}


METADATA_ADDRESSES = ["169.254.169.254", "100.100.100.200", "fd00:ec2::254", "::ffff:169.254.169.254"]


@pytest.mark.parametrize("address", METADATA_ADDRESSES)
def test_no_library_of_a_sender_reaches_a_clouds_metadata_server(address: str) -> None:
    for event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        with pytest.raises(ConnectionRefusedError):
            _refuse_metadata(event, (None, (address, 80)))
    with pytest.raises(ConnectionRefusedError):
        _refuse_metadata("socket.connect", (None, ("a.name.that.resolves.to.it", 80)))
    _refuse_metadata("socket.connect", (None, ("192.0.2.1", 80)))


@pytest.mark.usefixtures("ready_alert_sender")
@pytest.mark.parametrize(
    "url", ["json://169.254.169.254/", "mailtos://a:b@169.254.169.254", "rsyslog://169.254.169.254"]
)
async def test_a_name_may_not_lead_there_and_no_proxy_is_asked_to(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def hear(call: Call) -> None:
        asked.append(call.path)
        await call.reply(200, {})

    async with LoopbackServer(hear) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.base_url)
        monkeypatch.setenv("http_proxy", proxy.base_url)
        with pytest.raises(AlertNotSentError):
            await sent_by(url, "x")
    assert asked == []


def mail_to(port: int, scheme: str = "mailtos", user: str = f"{USER}:{PASSWORD}@") -> str:
    return f"{scheme}://{user}127.0.0.1:{port}?from=aio@example.com&to=ops@example.com,on-call@example.com"


@pytest.mark.usefixtures("ready_alert_sender")
async def test_e_mail_signs_in_over_starttls_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = make_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with smtp_server(certificate) as server:
        await sent_by(mail_to(server.port), "80% of the budget of key ädä is spent")
        received = [await server.mails.get() for _ in range(2)]
    assert server.signed_in == [(USER, PASSWORD)]
    assert all(encrypted for _, encrypted in received)
    mail = received[0][0]
    assert mail["Subject"] == "AIO: AioBudget (warning)"
    assert "aio@example.com" in mail["From"]
    assert "80% of the budget of key ädä is spent" in mail.as_string() + mail.get_body().get_content()


@pytest.mark.usefixtures("ready_alert_sender")
async def test_a_password_is_not_sent_unencrypted_and_a_local_relay_needs_none() -> None:
    async with smtp_server() as server:
        with pytest.raises(AlertNotSentError):
            await sent_by(mail_to(server.port), "x")
        with pytest.raises(AlertNotSentError, match="a password is not sent unencrypted"):
            await sent_by(mail_to(server.port, "mailto"), "x")
        await sent_by(mail_to(server.port, "mailto", ""), "x")
        assert not (await server.mails.get())[1]
    assert server.signed_in == []


@pytest.mark.usefixtures("ready_alert_sender")
async def test_a_certificate_of_an_unknown_authority_is_refused(tmp_path: Path) -> None:
    async with smtp_server(make_certificate(tmp_path)) as server:
        with pytest.raises(AlertNotSentError):
            await sent_by(mail_to(server.port), "x")
        assert server.mails.empty()


@pytest.mark.usefixtures("ready_alert_sender")
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"alert_urls": "hooks.slack.com/services/s3cret"}, "address 1 .* SCHEME://"),
        ({"alert_urls": "json://127.0.0.1 nonsense://s3cret"}, "address 2 of AIO_ALERT_URLS: Apprise knows no such"),
        ({"alert_urls": "jsons://127.0.0.1/s3cret?verify=no"}, "certificates are checked"),
    ],
)
def test_an_impossible_channel_is_refused_at_the_start(changes: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        check_channels(Settings(**changes))
    assert "s3cret" not in str(caught.value)


@pytest.mark.usefixtures("ready_alert_sender")
def test_webhooks_of_slack_and_teams_are_addresses_as_they_are() -> None:
    slack = "https://hooks.slack.com/services/T024BE7LD/B024BE7LE/abcdefghijklmnopqrstuvwx"
    teams = "https://prod-1.westeurope.logic.azure.com:443/workflows/643e69f83c8944438d68119179a10a64/triggers/manual/paths/"
    query = (
        "invoke?api-version=2016-06-01&sp=%2Ftriggers%2Fmanual%2Frun&sv=1.0&sig=KODuebWbDGYFr0z0eu-6Rj8aUKz7108W3wrN"
    )
    check_channels(Settings(alert_urls=f"{slack} {teams}{query}"))
    names = [channel.name for channel in channels_of(Settings(alert_urls=f"{slack} {teams}{query}"))]
    assert names == ["hooks.slack.com 1", "prod-1.westeurope.logic.azure.com 2"]


@pytest.mark.parametrize(
    ("address", "title"),
    [
        ("json://user:s3cret@hooks.example.com:8000/s3cret", "webhook at hooks.example.com"),
        ("mailtos://user:s3cret@mail.example.com?to=ops@example.com", "e-mail through mail.example.com"),
        ("slack://s3cretA/s3cretB/s3cretC", "Slack"),
        ("pagerduty://s3cret@s3cret", "PagerDuty"),
        ("msteams://s3cret/s3cret/s3cret", "Teams"),
        ("https://hooks.slack.com/services/s3cret", "hooks.slack.com"),
    ],
)
def test_a_channel_has_a_title_for_people_without_secrets(address: str, title: str) -> None:
    (channel,) = channels_of(Settings(alert_urls=address))
    assert channel.title == title


def test_an_address_that_is_no_url_is_refused_without_repeating_it() -> None:
    with pytest.raises(SettingsError, match="address 1 is not a URL") as caught:
        channels_of(Settings(alert_urls="json://[s3cret/"))
    assert "s3cret" not in str(caught.value)


def test_secrets_are_in_no_message() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({}, alert_urls=["s3cret"])
    assert "s3cret" not in str(caught.value)
