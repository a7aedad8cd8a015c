"""Which requests go through a proxy of the environment, in all forms in which it and its exemptions are written."""

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from tests.support.upstream import Call, LoopbackServer
from tests.tiers.remote.recording_proxy import RecordingProxy, recording_proxy
from tests.tiers.tier_world import chat, collect, remote_spec
from tiers.errors import TierUnavailableError
from tiers.remote.http_transport import HttpTransport, ProxyingTransport, ask, proxy_url, shown_proxy, transport_to
from tiers.remote.remote_tier import RemoteTier

NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingProxy]:
    with recording_proxy() as running:
        monkeypatch.setenv("HTTP_PROXY", f"http://user:s3cret@{running.place}")
        yield running


def chosen(url: str) -> str:
    return proxy_url(httpx.URL(url))


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "LOCALHOST.", "app.localhost", "[::1]", "[::ffff:127.0.0.1]", "127.1", "2130706433",
     "0x7f.0.0.1", "0.0.0.0", "127.8.9.10", "169.254.169.254", "metadata.google.internal"],
)  # fmt: skip
def test_this_machine_and_metadata_servers_are_never_asked_through_a_proxy(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    for name in NAMES[:3]:
        monkeypatch.setenv(name, "http://proxy:3128")
    assert chosen(f"http://{host}:8080/v1") == ""
    assert chosen(f"https://{host}/v1") == ""
    assert chosen("https://api.example.com/v1") == "http://proxy:3128"


@pytest.mark.parametrize(
    ("exempt", "url", "is_exempt"),
    [
        ("10.0.0.7", "https://10.0.0.7/v1", True),
        ("10.0.0.7", "https://10.0.0.77/v1", False),
        ("10.0.0.0/8", "http://10.1.2.3:8000/", True),
        ("10.0.0.0/8,192.168.0.0/16", "http://192.168.7.7/", True),
        ("10.0.0.0/8", "http://11.1.2.3/", False),
        ("10.0.0.0/8", "http://10.example.com/", False),
        ("fd00::/8", "http://[fd00::7]/", True),
        ("[fd00::7]:80", "http://[fd00::7]/", True),
        ("::1, fd00::7", "http://[fd00::7]/", True),
        ("example.com", "https://api.example.com/", True),
        (".example.com", "https://api.example.com/", True),
        ("*.example.com", "https://api.example.com./", True),
        ("example.com", "https://badexample.com/", False),
        ("Example.COM", "https://example.com/", True),
        ("a.example b.example", "https://b.example/", True),
        ("svc.cluster.local", "http://model.ml.svc.cluster.local/", True),
        ("api.example.com:8443", "https://api.example.com/", False),
        ("api.example.com:443", "https://api.example.com/", True),
        ("10.0.0.7:8000", "http://10.0.0.7:9000/v1", False),
        ("10.0.0.7:8000", "http://10.0.0.7:8000/v1", True),
        ("https://api.example.com", "https://api.example.com/", True),
        ("*", "https://api.example.com/", True),
        ("", "https://api.example.com/", False),
    ],
)
def test_exemptions_are_names_ends_of_names_addresses_and_networks(
    monkeypatch: pytest.MonkeyPatch, exempt: str, url: str, is_exempt: bool
) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:3128")
    monkeypatch.setenv("NO_PROXY", exempt)
    assert (chosen(url) == "") is is_exempt
    assert isinstance(transport_to(httpx.URL(url)), HttpTransport) is is_exempt


def test_a_proxy_without_a_scheme_speaks_http(proxy: RecordingProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy.place)
    assert ask("GET", "http://server.example/x", timeout=5).status_code == 200
    assert proxy.asked == [("GET http://server.example/x HTTP/1.1", "")]


async def test_a_proxys_user_and_password_are_sent_and_not_shown(proxy: RecordingProxy) -> None:
    proxy.status = 407
    async with httpx.AsyncClient(transport=ProxyingTransport()) as client:
        with pytest.raises(httpx.ProxyError, match=f"the proxy http://{proxy.place} answered 407") as caught:
            await client.get("http://server.example/x")
    [(_, sent)] = proxy.asked
    assert sent.startswith("Basic ")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["socks5", "socks5h", "socks4", "ftp"])
async def test_a_proxy_that_cannot_be_used_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    monkeypatch.setenv("ALL_PROXY", f"{scheme}://user:s3cret@proxy.example:1080")
    monkeypatch.setattr("tiers.remote.http_transport.find_spec", lambda name: None)
    tier = RemoteTier(remote_spec("http://server.example/v1"))
    with pytest.raises(TierUnavailableError) as caught:
        await collect(tier, chat())
    await tier.close()
    assert f"the proxy {scheme}://proxy.example:1080 " in caught.value.for_operators
    assert "s3cret" not in caught.value.for_operators
    assert "proxy.example" not in str(caught.value)


async def test_a_proxy_that_is_away_is_named_for_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:s3cret@127.0.0.1:9")
    tier = RemoteTier(remote_spec("http://server.example/v1"))
    with pytest.raises(TierUnavailableError) as caught:
        await collect(tier, chat())
    await tier.close()
    assert "through the proxy http://127.0.0.1:9: " in caught.value.for_operators
    assert "s3cret" not in caught.value.for_operators


async def test_a_tier_on_this_machine_is_asked_directly(proxy: RecordingProxy) -> None:
    async with LoopbackServer(lambda call: call.say("Hello")) as server:
        for host in ("127.0.0.1", "localhost"):
            tier = RemoteTier(remote_spec(server.base_url.replace("127.0.0.1", host)))
            [answer], _ = await collect(tier, chat())
            assert answer.text == "Hello"
            await tier.close()
    assert proxy.asked == []


async def test_a_command_sends_its_key_for_this_machine_to_no_proxy(proxy: RecordingProxy) -> None:
    async def answer(call: Call) -> None:
        await call.reply(200, {"authorization": call.headers["authorization"]})

    async with LoopbackServer(answer) as server:
        url = f"{server.base_url}/admin/knobs"
        said = await asyncio.to_thread(ask, "POST", url, 5, json={}, headers={"authorization": "Bearer k"})
    assert said.json() == {"authorization": "Bearer k"}
    assert proxy.asked == []


def test_the_name_of_a_proxy_is_its_scheme_host_and_port() -> None:
    assert shown_proxy("http://a:b@c@proxy:3128/x?y") == "http://proxy:3128"
