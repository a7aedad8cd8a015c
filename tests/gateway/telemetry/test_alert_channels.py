"""Slack, Teams and e-mail: at most one message per cause and hour, over restarts and replicas, in today's formats."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.base.configuration import load_settings
from gateway.base.settings import Settings, SettingsError
from gateway.telemetry.alert_channels import (
    Cause,
    Channel,
    Mail,
    Message,
    channels_of,
    slack_message,
    teams_card,
)
from gateway.telemetry.alerts import ATTEMPT_SECONDS, AlertMessages, Alerts, Causes, Sent
from tests.database_servers import migrated
from tests.gateway.telemetry.smtp_server import PASSWORD, USER, make_certificate, smtp_server

HOUR = 3600.0
DOWN = Cause(name="AioTierDown", key="AioTierDown/2", summary="tier 2 takes no requests", source="here")
WORTH = Cause(name="AioRoutingDoesNotPay", key="AioRoutingDoesNotPay", summary="it does not")


class Chat(Channel):
    """A channel that remembers what it got."""

    name, where = "Slack", "here"

    def __init__(self) -> None:
        self.got: list[str] = []
        self.deaf = False

    async def send(self, message: Message) -> None:
        if self.deaf:
            raise httpx.ConnectError("no connection")
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


def test_a_slack_message_mentions_no_one() -> None:
    said = slack_message(message("<!channel> of a & b\nnext"))
    assert said == {
        "text": "*AioBudget (warning)*\n&lt;!channel&gt; of a &amp; b next\n_AIO on here, 2030-03-17 17:46 UTC_"
    }


def test_a_teams_message_is_an_adaptive_card_whose_texts_are_no_markup() -> None:
    said = teams_card(message("[click](https://evil.example)", severity="critical"))
    assert said["type"] == "message"
    (attachment,) = said["attachments"]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    card = attachment["content"]
    assert (card["type"], card["version"]) == ("AdaptiveCard", "1.4")
    assert card["body"][0]["text"] == "AioBudget (critical)"
    assert card["body"][1] == {
        "type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": "[click](https://evil.example)"}],
    }  # fmt: skip


def mail_settings(**changes: Any) -> Settings:
    return Settings(**{"alert_email_to": "ops@example.com, on-call@example.com", **changes})


async def test_e_mail_signs_in_over_starttls_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = make_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with smtp_server(certificate) as server:
        settings = mail_settings(
            alert_smtp=f"smtp://127.0.0.1:{server.port}", alert_smtp_user=USER, alert_smtp_password=PASSWORD
        )
        await Mail(settings).send(message("80% of the budget of key ädä is spent"))
        mail, encrypted = await server.mails.get()
    assert encrypted
    assert server.signed_in == [(USER, PASSWORD)]
    assert mail["Subject"] == "AIO: AioBudget (warning)"
    assert (mail["From"], mail["To"]) == ("ops@example.com", "ops@example.com, on-call@example.com")
    assert mail.get_content().startswith("80% of the budget of key ädä is spent\r\n")


async def test_a_password_is_not_sent_unencrypted_and_a_local_relay_needs_none() -> None:
    async with smtp_server() as server:
        address = f"smtp://127.0.0.1:{server.port}"
        signed_in = mail_settings(alert_smtp=address, alert_smtp_user=USER, alert_smtp_password=PASSWORD)
        with pytest.raises(Exception, match="STARTTLS"):
            await Mail(signed_in).send(message("x"))
        await Mail(mail_settings(alert_smtp=address)).send(message("x"))
        assert not (await server.mails.get())[1]
    assert server.signed_in == []


async def test_a_certificate_of_an_unknown_authority_is_refused(tmp_path: Path) -> None:
    async with smtp_server(make_certificate(tmp_path)) as server:
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            await Mail(mail_settings(alert_smtp=f"smtp://127.0.0.1:{server.port}")).send(message("x"))
        assert server.mails.empty()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"alert_smtp": "mail.example.com:587"}, "smtp://HOST:PORT"),
        ({"alert_smtp": "smtp://user:secret@mail.example.com"}, "AIO_ALERT_SMTP_PASSWORD"),
        ({"alert_smtp": "smtp://169.254.169.254"}, "smtp://HOST:PORT"),
        ({"alert_smtp": "smtp://mail", "alert_email_to": ""}, "AIO_ALERT_EMAIL_TO"),
        (
            {"alert_smtp": "smtp://mail", "alert_email_to": "ops@example.com\r\nBcc: x@example.com"},
            "AIO_ALERT_EMAIL_TO",
        ),
        ({"alert_slack_webhook": "ftp://hooks.example.com"}, "AIO_ALERT_SLACK_WEBHOOK"),
        ({"alert_teams_webhook": "http://metadata/"}, "AIO_ALERT_TEAMS_WEBHOOK"),
    ],
)
def test_an_impossible_channel_is_refused_at_the_start(changes: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        channels_of(mail_settings(**changes))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["alert_slack_webhook", "alert_teams_webhook", "alert_smtp_password"])
def test_secrets_are_in_no_message(name: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({}, **{name: ["s3cret"]})
    assert "s3cret" not in str(caught.value)
