"""Which proxies are believed, and what of their headers."""

import asyncio
import socket
from typing import Any

import pytest

from gateway.base.settings import SettingsError
from gateway.edge.proxies import ForwardedClient, TrustedProxies, is_authority, network_of


def headers(**given: str) -> list[tuple[bytes, bytes]]:
    return [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()]


@pytest.mark.parametrize(
    "setting", ["*", "10.0.0.1/8", "0.0.0.0/0", "::/0", "10.0.0", "a b", "http://proxy", "-", "a..b"]
)
def test_what_is_no_proxy_or_every_client_is_refused(setting: str) -> None:
    with pytest.raises(SettingsError, match="AIO_TRUSTED_PROXIES"):
        TrustedProxies(f"10.0.0.1, {setting}")


@pytest.mark.parametrize(
    ("given", "address", "https"),
    [
        ({}, "10.0.0.1", False),
        ({"x_forwarded_for": "9.9.9.9"}, "9.9.9.9", False),
        ({"x_forwarded_for": "9.9.9.9:4711", "x_forwarded_proto": "https"}, "9.9.9.9", True),
        ({"x_forwarded_for": "8.8.8.8, 9.9.9.9, 10.0.0.2", "x_forwarded_proto": "http, https"}, "9.9.9.9", True),
        ({"x_forwarded_for": "10.0.0.3, 10.0.0.2"}, "10.0.0.3", False),
        ({"x_forwarded_for": "8.8.8.8, unknown, 10.0.0.2"}, "10.0.0.2", False),
        ({"x_forwarded_for": "fe80::1%<script>"}, "10.0.0.1", False),
        ({"x_forwarded_for": "::ffff:9.9.9.9"}, "9.9.9.9", False),
        ({"x_forwarded_for": "[2001:DB8::1]:80"}, "2001:db8::1", False),
        ({"x_forwarded_for": "9.9.9.9", "forwarded": "for=8.8.8.8;proto=https"}, "9.9.9.9", False),
        ({"forwarded": 'for=8.8.8.8, For="[2001:db8::1]:80";Proto=https'}, "2001:db8::1", True),
        ({"forwarded": "for=8.8.8.8, for=_hidden;proto=https"}, "10.0.0.1", True),
        ({"x_forwarded_for": " , ,", "x_forwarded_proto": ","}, "10.0.0.1", False),
    ],
)
def test_of_a_trusted_proxy_the_last_address_that_is_no_proxy_is_the_client(
    given: dict[str, str], address: str, https: bool
) -> None:
    proxies = TrustedProxies("10.0.0.0/24")
    assert proxies.client("10.0.0.1", "http", headers(**given)) == ForwardedClient(address, https)
    # The same headers of anyone else change nothing.
    for peer in ("10.0.1.1", "127.0.0.1", "::1", "", None):
        assert proxies.client(peer, "http", headers(**given)) == ForwardedClient(peer or "", False)


def test_several_lines_of_a_header_are_one_list() -> None:
    lines = [(b"x-forwarded-for", b"8.8.8.8"), (b"x-forwarded-for", b"9.9.9.9")]
    assert TrustedProxies("::1").client("::1", "http", lines).address == "9.9.9.9"


async def test_names_are_followed_to_other_addresses_and_trusted_no_more_once_they_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[Any] = [["10.0.0.7", "fd00::7"], OSError(socket.EAI_AGAIN, "later"), ["10.0.0.8"]]
    answers.append(socket.gaierror(socket.EAI_NONAME, "gone"))

    async def resolve(*arguments: object, **named: object) -> list[Any]:
        found = answers.pop(0)
        if isinstance(found, OSError):
            raise found
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in found]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    proxies = TrustedProxies("traefik, 10.9.9.9")
    asked = ("10.0.0.7", "fd00::7", "10.0.0.8", "10.9.9.9")
    trusted = []
    for _ in range(5):
        trusted.append([proxies.client(peer, "http", headers(x_forwarded_for="1.1.1.1")).address for peer in asked])
        if answers:
            await proxies.resolve()
    client = "1.1.1.1"
    assert trusted == [
        ["10.0.0.7", "fd00::7", "10.0.0.8", client],
        [client, client, "10.0.0.8", client],
        [client, client, "10.0.0.8", client],
        ["10.0.0.7", "fd00::7", client, client],
        ["10.0.0.7", "fd00::7", "10.0.0.8", client],
    ]


@pytest.mark.parametrize(
    "host", ["", "localhost", "a.b:8080", "1.2.3.4:1", "[::1]:80", "[::ffff:1.2.3.4]", "a_b", "a."]
)
def test_names_and_addresses_are_authorities(host: str) -> None:
    assert is_authority(host.encode())


@pytest.mark.parametrize("host", ["[", "[]", "[::1", "::1", "[1.2.3.4]", "a:b", "a:99999", "a b", "a/b", "u@a", "é"])
def test_anything_else_is_no_authority(host: str) -> None:
    assert not is_authority(host.encode())


def test_limits_count_addresses_of_version_4_and_networks_of_version_6() -> None:
    assert network_of("2001:db8:1:2:3::4") == network_of("2001:db8:1:2::9") == "2001:db8:1:2::/64"
    assert (network_of("192.0.2.1"), network_of("")) == ("192.0.2.1", "")
