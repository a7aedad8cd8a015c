"""Where alerts go: a webhook in the form of PagerDuty's Events API v2, which incident tools understand, Slack's and
Microsoft Teams' webhooks, and e-mail.

References: https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks,
https://learn.microsoft.com/microsoftteams/platform/webhooks-and-connectors/how-to/connectors-using (workflows take
Adaptive Cards; the MessageCard of the earlier connectors is retired).
"""

import asyncio
import smtplib
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid, parseaddr
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
import msgspec

from gateway.base.settings import Settings, SettingsError
from gateway.edge.proxies import is_loopback_host
from gateway.telemetry.alert_rules import Severity
from gateway.telemetry.telemetry_url import telemetry_url
from tiers.remote.certificates import trust_of
from tiers.remote.http_exchange import bounded_answer
from tiers.remote.http_transport import transport_to
from tiers.server_words import is_metadata_host, one_line

SEND_SECONDS, MOST_ANSWER_BYTES = 10.0, 2**20
HOUR = 3600.0
MOST_SUMMARY = 1000
SEND_ERRORS = (httpx.HTTPError, OSError, smtplib.SMTPException)


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """What an alert is about. `name`: of the alert; `key`: what it is reported by once, which begins with the name, for
    `source` alone unless that is empty; `ends`: whether its end is a message for people; `for_seconds`: how long it
    lasts before it is reported."""

    name: str
    key: str
    summary: str
    severity: Severity = "warning"
    source: str = ""
    for_seconds: float = 0.0
    ends: bool = True
    details: dict[str, Any] = {}

    @property
    def id(self) -> str:
        return f"{self.source}/{self.key}" if self.source else self.key


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A cause that began or is over, or a test. `source`: the machine that says so; `at`: epoch seconds."""

    action: Literal["trigger", "resolve", "test"]
    cause: Cause
    source: str
    at: float

    @property
    def title(self) -> str:
        """Such as "AioErrors (warning)"."""
        state = {"trigger": self.cause.severity, "resolve": "over", "test": "test"}[self.action]
        return f"{self.cause.name} ({state})"

    @property
    def text(self) -> str:
        return one_line(self.cause.summary, MOST_SUMMARY)

    @property
    def signed(self) -> str:
        """Who says so, and when."""
        return f"AIO on {self.source}, {datetime.fromtimestamp(self.at, UTC):%Y-%m-%d %H:%M} UTC"


class Channel(ABC):
    """`name` and `where` are shown; `where` has no secret. `gap_seconds`: the least time between two messages about a
    cause; `pairs`: whether every message about a beginning is followed by one about the end."""

    name: str
    where: str
    gap_seconds: float = HOUR
    pairs: bool = False

    @abstractmethod
    async def send(self, message: Message) -> None:
        """Return once the receiver has accepted it. Raises one of `SEND_ERRORS`."""

    async def aclose(self) -> None:
        """Close connections; most have none."""
        return


class Webhook(Channel):
    """Posts `body` of each message as JSON to `url`; any other answer than 2xx is a failure."""

    def __init__(
        self, name: str, url: httpx.URL, body: Callable[[Message], dict[str, Any]], pairs: bool = False
    ) -> None:
        self.name, self.where, self._url, self._body = name, url.host, url, body
        self.pairs, self.gap_seconds = pairs, 0.0 if pairs else HOUR
        self._client = httpx.AsyncClient(transport=transport_to(url), timeout=SEND_SECONDS, follow_redirects=False)

    async def send(self, message: Message) -> None:
        request = self._client.build_request("POST", self._url, json=self._body(message))
        answer, _ = await bounded_answer(self._client, request, MOST_ANSWER_BYTES, SEND_SECONDS)
        answer.raise_for_status()

    async def aclose(self) -> None:
        await self._client.aclose()


def pagerduty_event(routing_key: str, message: Message) -> dict[str, Any]:
    """Return an event; begin and end of a cause have one `dedup_key`. A test is an event that is at once over."""
    cause = message.cause
    return {
        "routing_key": routing_key,
        "event_action": "trigger" if message.action == "test" else message.action,
        "dedup_key": f"aio/{cause.id}",
        "client": "aio",
        "payload": {
            "summary": f"{cause.name}: {message.text}",
            "source": message.source,
            "severity": "info" if message.action == "test" else cause.severity,
            "timestamp": datetime.fromtimestamp(message.at, UTC).isoformat(),
            "component": "gateway",
            "custom_details": cause.details,
        },
    }


def slack_message(message: Message) -> dict[str, Any]:
    """Return a message of Slack's own markup, in which `&`, `<` and `>` are escaped: no text mentions a channel."""
    text = f"{message.text}\n_{message.signed}_".replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {"text": f"*{message.title}*\n{text}"}


def teams_card(message: Message) -> dict[str, Any]:
    """Return the message of a workflow "When a Teams webhook request is received", with one Adaptive Card. Runs of text
    are shown as they are, without markup."""
    colour = {"trigger": "attention" if message.cause.severity == "critical" else "warning", "resolve": "good"}
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "msteams": {"width": "Full"},
        "body": [
            {
                "type": "TextBlock",
                "text": message.title,
                "weight": "Bolder",
                "size": "Medium",
                "wrap": True,
                "color": colour.get(message.action, "default"),
            },
            {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": message.text}]},
            {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": message.signed, "isSubtle": True}]},
        ],
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


class Mail(Channel):
    """E-mail by SMTP, on a thread: `smtps` encrypts from the start, `smtp` by STARTTLS, without which only a server on
    this machine gets a message. The password is never sent unencrypted."""

    name = "e-mail"

    def __init__(self, settings: Settings) -> None:
        """Raises `SettingsError`."""
        url = urlsplit(settings.alert_smtp)
        try:
            host, port = url.hostname or "", url.port
        except ValueError:
            host, port = "", None
        if url.scheme not in ("smtp", "smtps") or not host or is_metadata_host(host) or "@" in url.netloc:
            raise SettingsError(
                "AIO_ALERT_SMTP must be smtp://HOST:PORT or smtps://HOST:PORT; user and password are in "
                "AIO_ALERT_SMTP_USER and AIO_ALERT_SMTP_PASSWORD"
            )
        self._to = [one.strip() for one in settings.alert_email_to.split(",") if one.strip()]
        self._from = settings.alert_email_from.strip() or (self._to[0] if self._to else "")
        if not self._to or not all(_is_address(one) for one in (*self._to, self._from)):
            raise SettingsError("AIO_ALERT_SMTP needs e-mail addresses in AIO_ALERT_EMAIL_TO, such as ops@example.com")
        self._encrypted, self._host = url.scheme == "smtps", host
        self._port = port or (465 if self._encrypted else 587)
        self._user, self._password = settings.alert_smtp_user, settings.alert_smtp_password
        self.where = f"{', '.join(self._to)} by {host}"

    async def send(self, message: Message) -> None:
        await asyncio.to_thread(self._deliver, self._written(message))

    def _written(self, message: Message) -> EmailMessage:
        mail = EmailMessage()
        mail["Subject"], mail["From"], mail["To"] = f"AIO: {message.title}", self._from, ", ".join(self._to)
        mail["Date"] = format_datetime(datetime.fromtimestamp(message.at, UTC))
        mail["Message-ID"] = make_msgid(domain=parseaddr(self._from)[1].rpartition("@")[2])
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(f"{message.text}\n\n{message.signed}\n")
        return mail

    def _deliver(self, mail: EmailMessage) -> None:
        context = trust_of().context
        server = (
            smtplib.SMTP_SSL(self._host, self._port, timeout=SEND_SECONDS, context=context)
            if self._encrypted
            else smtplib.SMTP(self._host, self._port, timeout=SEND_SECONDS)
        )
        with server:
            server.ehlo()
            if not self._encrypted and (server.has_extn("starttls") or not is_loopback_host(self._host)):
                server.starttls(context=context)
                server.ehlo()
            if self._user:
                if not isinstance(server.sock, ssl.SSLSocket):
                    raise smtplib.SMTPNotSupportedError("the server offers no STARTTLS, and a password needs it")
                server.login(self._user, self._password)
            server.send_message(mail)


def _is_address(text: str) -> bool:
    name, at, host = parseaddr(text)[1].rpartition("@")
    return bool(name and at and host) and text.isprintable()


def problem_of(error: Exception) -> str:
    """Return why a message was not accepted. Addresses of webhooks are secrets, so no message of a library is shown."""
    if isinstance(error, httpx.HTTPStatusError):
        return f"HTTP {error.response.status_code}"
    if isinstance(error, smtplib.SMTPResponseException):
        return f"{type(error).__name__} {error.smtp_code}"
    return "its name has no address" if isinstance(error, socket.gaierror) else type(error).__name__


def channels_of(settings: Settings) -> list[Channel]:
    """Return the channels that are set. Raises `SettingsError`, which repeats no address."""
    found: list[Channel] = []
    if settings.alert_webhook:
        url, key = telemetry_url("AIO_ALERT_WEBHOOK", settings.alert_webhook), settings.alert_routing_key
        found.append(Webhook("webhook", url, lambda message: pagerduty_event(key, message), pairs=True))
    if settings.alert_slack_webhook:
        slack = telemetry_url("AIO_ALERT_SLACK_WEBHOOK", settings.alert_slack_webhook)
        found.append(Webhook("Slack", slack, slack_message))
    if settings.alert_teams_webhook:
        teams = telemetry_url("AIO_ALERT_TEAMS_WEBHOOK", settings.alert_teams_webhook)
        found.append(Webhook("Teams", teams, teams_card))
    if settings.alert_smtp:
        found.append(Mail(settings))
    return found


class Tested(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a test message; `problem`: why the receiver did not accept it, None if it did."""

    channel: str
    where: str
    problem: str | None


async def send_test(settings: Settings, at: float) -> list[Tested]:
    """Send a test message to every channel, at once. PagerDuty's event is resolved again."""
    source = socket.gethostname()
    summary = "a test of this channel, which needs no answer"
    cause = Cause(name="AioTest", key=f"AioTest/{at:.3f}", summary=summary, source=source)

    async def tell(channel: Channel) -> Tested:
        problem = None
        try:
            await channel.send(Message(action="test", cause=cause, source=source, at=at))
            if channel.pairs:
                await channel.send(Message(action="resolve", cause=cause, source=source, at=at))
        except SEND_ERRORS as error:
            problem = problem_of(error)
        finally:
            await channel.aclose()
        return Tested(channel=channel.name, where=channel.where, problem=problem)

    return list(await asyncio.gather(*map(tell, channels_of(settings))))
