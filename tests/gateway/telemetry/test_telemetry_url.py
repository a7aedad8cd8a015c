"""Host names for telemetry are resolved before anything is sent: none may lead to a cloud's metadata server."""

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest

from gateway.app import create_app
from gateway.base.settings import Settings, SettingsError
from gateway.cli.group import told_error
from gateway.telemetry import telemetry_url
from gateway.telemetry.telemetry_url import refuse_metadata_behind

NAME = "collector.example"
Look = Callable[[], list[str]]


class NameServer:
    """Knows only `NAME`, by the addresses of `look`; `asked` records queries."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.look: Look = lambda: ["10.0.0.7"]
        self._real = socket.getaddrinfo

    def getaddrinfo(self, host: Any, port: Any, *rest: Any, **more: Any) -> Any:
        self.asked.append(host)
        if host != NAME:
            return self._real(host, port, *rest, **more)
        return [(None, socket.SOCK_STREAM, 0, "", (address, 0)) for address in self.look()]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> NameServer:
    server = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", server.getaddrinfo)
    return server


def look_up(host: str) -> None:
    refuse_metadata_behind("AIO_OTLP_ENDPOINT", httpx.URL(f"http://{host}:4318"))


@pytest.mark.parametrize("address", ["169.254.169.254", "fe80::1%eth0", "fd00:ec2::254", "::ffff:a9fe:a9fe"])
def test_a_name_of_which_one_address_is_metadata_is_refused(names: NameServer, address: str) -> None:
    names.look = lambda: ["10.0.0.7", address, "10.0.0.8"]
    with pytest.raises(SettingsError, match=f"AIO_OTLP_ENDPOINT resolves to {address}"):
        look_up(NAME)


def test_an_address_that_only_the_resolver_can_read_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"resolves to 169\.254\.169\.254"):
        look_up("2852039166")


def test_a_name_of_a_private_network_is_allowed(names: NameServer) -> None:
    look_up(NAME)
    assert names.asked == [NAME]


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.7", "[::1]", "[fd00::1]"])
def test_an_address_is_not_looked_up(names: NameServer, host: str) -> None:
    look_up(host)
    assert names.asked == []


@pytest.mark.parametrize("error", [socket.gaierror(-2, "Name or service not known"), UnicodeError("label too long")])
def test_a_name_that_does_not_resolve_is_left_to_the_exporter(names: NameServer, error: Exception) -> None:
    def unknown() -> list[str]:
        raise error

    names.look = unknown
    look_up(NAME)
    assert names.asked == [NAME]


def test_a_name_server_that_is_silent_does_not_hold_up_the_start(
    names: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry_url, "LOOKUP_SECONDS", 0.01)
    over = threading.Event()

    def silent() -> list[str]:
        over.wait()
        return []

    names.look = silent
    look_up(NAME)
    assert not over.is_set()
    over.set()


async def test_the_start_is_refused_for_a_collector_whose_name_leads_to_metadata(
    settings: Settings, names: NameServer
) -> None:
    """The name server answers only once the event loop has had a turn, so it is not the loop that waits."""
    loop, turned = asyncio.get_running_loop(), threading.Event()

    def after_a_turn_of_the_loop() -> list[str]:
        loop.call_soon_threadsafe(turned.set)
        turned.wait()
        return ["169.254.169.254"]

    names.look = after_a_turn_of_the_loop
    app = create_app(msgspec.structs.replace(settings, trace_exporter="otlp", otlp_endpoint=f"http://{NAME}:4318"))
    with pytest.raises(ExceptionGroup) as refused:
        async with app.lifespan():
            pytest.fail("it started")
    cause = told_error(refused.value)
    assert isinstance(cause, SettingsError)
    assert "resolves to 169.254.169.254" in str(cause)
