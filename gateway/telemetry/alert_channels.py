"""Where alerts go: to services that Apprise knows, such as Slack, Teams, e-mail and PagerDuty. A process of its own
sends each message (`alert_sender`)."""

import asyncio
import re
import socket
import subprocess
import sys
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from gateway.base.settings import Settings, SettingsError
from gateway.telemetry.alert_rules import Severity
from tiers.server_words import one_line

SEND_SECONDS = 20.0
HOUR = 3600.0
MOST_SUMMARY = 1000
# What a service could take for a mention or a link: "@here", "<!channel>", "[text](address)".
_MARKUP = re.compile(r"[@<]|\](?=\()")
_KINDS = {"trigger": "warning", "resolve": "success", "test": "info"}
# Schemes without the "s" of TLS whose host is no token, and the names of services that their scheme does not tell.
_WEBHOOKS, _MAIL = ("json", "xml", "form"), "mailto"
_SERVICES = {"msteams": "Teams", "workflows": "Teams", "tgram": "Telegram", "pagerduty": "PagerDuty"}


class AlertNotSentError(Exception):
    """A message that a channel did not take; says why, without the channel's address."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """What an alert is about."""

    name: str
    """Name of the alert."""
    key: str
    """What it is reported by once. It begins with the name."""
    summary: str
    severity: Severity = "warning"
    source: str = ""
    """The process that it is reported for; empty for all."""
    for_seconds: float = 0.0
    """How long it lasts before it is reported."""
    ends: bool = True
    """Whether its end is a message for people."""

    @property
    def id(self) -> str:
        return f"{self.source}/{self.key}" if self.source else self.key


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A cause that began or is over, or a test."""

    action: Literal["trigger", "resolve", "test"]
    cause: Cause
    source: str
    """The machine that says so."""
    at: float
    """Epoch seconds."""

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


class Channel:
    """Where messages are sent. Messages are stored under `name`; `title` is its name for people; the address is a
    secret."""

    def __init__(self, name: str, title: str, where: str, url: str) -> None:
        self.name, self.title, self.where, self._url = name, title, where, url

    @property
    def pairs(self) -> bool:
        """Whether every message about a beginning is followed by one about the end, which closes an incident."""
        return self._url.lower().startswith("pagerduty://")

    @property
    def gap_seconds(self) -> float:
        """The least time between two messages about a cause."""
        return 0.0 if self.pairs else HOUR

    async def send(self, message: Message) -> None:
        """Return once the receiver has accepted it. Raises `AlertNotSentError`."""
        is_critical = message.action == "trigger" and message.cause.severity == "critical"
        order = {
            "url": self._url,
            "title": f"AIO: {message.title}",
            "body": _MARKUP.sub("\\g<0>\u200b", f"{message.text}\n\n{message.signed}"),
            "kind": "failure" if is_critical else _KINDS[message.action],
            "incident": f"aio/{message.cause.id}",
        }
        await asyncio.to_thread(_carry_out, order)

    def check(self) -> None:
        """Raises `AlertNotSentError` if no message can be sent to the address, whatever is there. Takes a second."""
        _carry_out({"url": self._url})


def _carry_out(order: dict[str, Any]) -> None:
    """Let a process carry out an order. Raises `AlertNotSentError`."""
    command = (sys.executable, "-m", "gateway.telemetry.alert_sender")
    try:
        done = subprocess.run(  # noqa: S603 - our own program
            command, input=msgspec.json.encode(order), capture_output=True, check=False, timeout=SEND_SECONDS
        )
        problem = msgspec.json.decode(done.stdout, type=str | None)
    except subprocess.TimeoutExpired:
        raise AlertNotSentError(f"it took longer than {SEND_SECONDS:g} s") from None
    except (OSError, msgspec.DecodeError):
        raise AlertNotSentError("the process that sends alerts failed") from None
    if problem is not None:
        raise AlertNotSentError(problem)


def channels_of(settings: Settings) -> list[Channel]:
    """Return the channels that are set. Raises `SettingsError`, which repeats no address."""
    channels: list[Channel] = []
    for number, address in enumerate(settings.alert_urls.split(), 1):
        scheme, separator, _ = address.partition("://")
        if not separator or not scheme.isalnum():
            raise SettingsError(f"AIO_ALERT_URLS: address {number} does not begin with SCHEME://")
        try:
            title = _title_of(scheme.lower(), address)
        except ValueError:
            raise SettingsError(f"AIO_ALERT_URLS: address {number} is not a URL") from None
        name = title if scheme in ("http", "https") else scheme
        channels.append(Channel(f"{name} {number}", title, f"address {number} of AIO_ALERT_URLS", address))
    return channels


def _title_of(scheme: str, address: str) -> str:
    """Return the receiver's host, where the address names one that is no token, or the kind of receiver."""
    kind = scheme.removesuffix("s")
    if kind not in ("http", *_WEBHOOKS, _MAIL):
        return _SERVICES.get(scheme, scheme.capitalize())
    host = urlsplit(address).hostname or "no host"
    return host if kind == "http" else f"e-mail through {host}" if kind == _MAIL else f"webhook at {host}"


def check_channels(settings: Settings) -> None:
    """Raises `SettingsError` for an address that no message can be sent to. Takes a second for each."""
    if find_spec("apprise") is None:
        raise SettingsError("AIO_ALERT_URLS needs the library apprise: pip install 'aio-gateway[alerts]'")
    for channel in channels_of(settings):
        try:
            channel.check()
        except AlertNotSentError as error:
            hint = "https://appriseit.com/services/ says how addresses are written"
            raise SettingsError(f"{channel.where}: {error}; {hint}") from None


class Tested(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a test message."""

    channel: str
    where: str
    problem: str | None
    """Why the receiver did not accept it; None if it did."""


async def send_test(settings: Settings, at: float) -> list[Tested]:
    """Send a test message to every channel, at once. An incident that it opens is closed again."""
    source = socket.gethostname()
    summary = "a test of this channel, which needs no answer"
    cause = Cause(name="AioTest", key=f"AioTest/{at:.3f}", summary=summary, source=source)

    async def tell(channel: Channel) -> Tested:
        problem = None
        try:
            await channel.send(Message(action="test", cause=cause, source=source, at=at))
            if channel.pairs:
                await channel.send(Message(action="resolve", cause=cause, source=source, at=at))
        except AlertNotSentError as error:
            problem = str(error)
        return Tested(channel=channel.name, where=channel.where, problem=problem)

    return list(await asyncio.gather(*map(tell, channels_of(settings))))
