"""Certificates of servers: a tier's own authority and client certificate, and errors that name file and setting."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from gateway.base.settings import SettingsError
from gateway.base.stores.redis_store import redis_client
from tests.tiers.remote.recording_proxy import recording_proxy
from tiers.catalog.load import load_catalog
from tiers.catalog.tier_spec import NO_TLS, RemoteSpec, TierSpec, TlsSpec
from tiers.errors import CatalogError, TierUnavailableError
from tiers.remote.certificates import require_authorities, trust_of
from tiers.remote.http_transport import BlockingTransport, HttpTransport, ProxyingTransport, transport_to
from tiers.remote.remote_tier import RemoteTier

VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


@pytest.fixture(autouse=True)
def no_authorities(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`server.pem`, `client.pem` and `other.pem`, which nothing else has signed, and their keys."""
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("server", "client", "other"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
             "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{name}.key", "-out",
             f"{name}.pem"],
            cwd=folder, check=True, capture_output=True,
        )  # fmt: skip
    (folder / "client-both.pem").write_text((folder / "client.pem").read_text() + (folder / "client.key").read_text())
    (folder / "garbage.pem").write_text("no certificate")
    return folder


@asynccontextmanager
async def serving(files: Path, *, asks_client: bool = False) -> AsyncIterator[str]:
    """A server that lists one model."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files / "server.pem", files / "server.key")
    if asks_client:
        context.load_verify_locations(files / "client.pem")
        context.verify_mode = ssl.CERT_REQUIRED
    body = b'{"object": "list", "data": [{"id": "m", "object": "model"}]}'

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            head = (
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
            )
            writer.write(head % len(body) + body)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


async def status(url: str, transport: httpx.AsyncBaseTransport) -> int:
    async with httpx.AsyncClient(transport=transport, timeout=20) as client:
        return (await client.get(f"{url}/models")).status_code


@pytest.mark.parametrize("kind", [HttpTransport, ProxyingTransport])
async def test_a_tiers_own_authority_and_certificate_are_used(
    files: Path, kind: type[httpx.AsyncBaseTransport]
) -> None:
    def made(url: str, tls: TlsSpec) -> httpx.AsyncBaseTransport:
        return HttpTransport(httpx.URL(url), tls) if kind is HttpTransport else ProxyingTransport(tls=tls)

    ca = str(files / "server.pem")
    async with serving(files) as url:
        assert await status(url, made(url, TlsSpec(ca=ca))) == 200
        with pytest.raises(httpx.ConnectError, match=r"its certificate is refused: .*; trusted are the authorities"):
            await status(url, made(url, NO_TLS))
        with pytest.raises(httpx.ConnectError, match=rf"trusted are {files}/other.pem \(tls.ca\)"):
            await status(url, made(url, TlsSpec(ca=str(files / "other.pem"))))
    certificate, key = str(files / "client.pem"), str(files / "client.key")
    async with serving(files, asks_client=True) as url:
        assert await status(url, made(url, TlsSpec(ca=ca, certificate=certificate, key=key))) == 200
        assert await status(url, made(url, TlsSpec(ca=ca, certificate=str(files / "client-both.pem")))) == 200
        with pytest.raises(httpx.TransportError):
            await status(url, made(url, TlsSpec(ca=ca)))


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
async def test_the_environments_authorities_are_read(
    files: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(files) as url:
        monkeypatch.setenv(variable, str(files / "server.pem"))
        assert await status(url, transport_to(httpx.URL(url))) == 200
        assert await status(url, ProxyingTransport()) == 200

        def asked() -> int:
            with httpx.Client(transport=BlockingTransport()) as client:
                return client.get(f"{url}/models").status_code

        assert await asyncio.to_thread(asked) == 200
        monkeypatch.setenv(variable, str(files / "other.pem"))
        with pytest.raises(httpx.ConnectError, match=rf"trusted are {files}/other.pem \({variable}\)"):
            await status(url, transport_to(httpx.URL(url)))
        # A tier's own file counts instead.
        assert await status(url, transport_to(httpx.URL(url), TlsSpec(ca=str(files / "server.pem")))) == 200


def test_a_file_that_cannot_be_used_is_named_with_its_setting(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {
        "tls.ca: /nowhere/ca.pem cannot be used: No such file or directory": TlsSpec(ca="/nowhere/ca.pem"),
        f"tls.ca: {files}/garbage.pem cannot be used: it is no certificate": TlsSpec(ca=f"{files}/garbage.pem"),
        f"tls.certificate: {files}/client.pem cannot be used: it is no": TlsSpec(certificate=f"{files}/client.pem"),
        "tls.key: /nowhere/key cannot be used: No such": TlsSpec(certificate=f"{files}/client.pem", key="/nowhere/key"),
        "tls.certificate with tls.key: ": TlsSpec(certificate=f"{files}/client.pem", key=f"{files}/other.key"),
    }
    for said, tls in cases.items():
        with pytest.raises(CatalogError) as refused:
            trust_of(tls)
        assert str(refused.value).startswith(said)
    for variable in VARIABLES:
        monkeypatch.setenv(variable, "/nowhere/bundle.pem")
        with pytest.raises(CatalogError, match=f"^{variable}: /nowhere/bundle.pem cannot be used: No such file"):
            require_authorities()
        monkeypatch.setenv(variable, " ")
        require_authorities()


@pytest.mark.parametrize("parameter", ["ssl_ca_certs", "ssl_certfile"])
def test_a_file_of_the_url_of_redis_is_named_with_its_setting(files: Path, parameter: str) -> None:
    with pytest.raises(SettingsError, match=f"^AIO_REDIS_URL: {parameter}: {files}/garbage.pem cannot be used"):
        redis_client(f"rediss://:heron@127.0.0.1:1/0?{parameter}={files}/garbage.pem")
    redis_client(f"rediss://127.0.0.1:1/0?ssl_ca_certs={files}/server.pem")


def tier_at(url: str, tls: TlsSpec) -> RemoteTier:
    return RemoteTier(TierSpec(name="a", number=1, remote=RemoteSpec(base_url=url, model="m", max_context=99, tls=tls)))


async def test_a_tier_starts_with_its_files_and_says_what_it_was_judged_by(files: Path) -> None:
    async with serving(files) as url:
        tier = tier_at(url, TlsSpec(ca=str(files / "server.pem")))
        await tier.reach()
        await tier.close()
        other = tier_at(url, TlsSpec(ca=str(files / "other.pem")))
        with pytest.raises(TierUnavailableError) as refused:
            await other.reach()
        assert f"trusted are {files}/other.pem (tls.ca)" in refused.value.for_operators
        await other.close()


async def test_behind_a_proxy_a_tier_trusts_the_same_authorities(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with recording_proxy() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy.place}")
        transport = transport_to(httpx.URL("https://server.example/v1"), TlsSpec(ca=str(files / "server.pem")))
        assert isinstance(transport, ProxyingTransport)
        assert transport._trust.says == f"{files}/server.pem (tls.ca)"
        await transport.aclose()


def test_files_that_have_no_use_are_problems_of_the_catalogue(tmp_path: Path) -> None:
    entry = '[[tiers]]\nname = "{name}"\nurl = "{url}"\nmodel = "m"\nmax_context = 4096\ntls = {{ {tls} }}\n'
    path = tmp_path / "catalog.toml"
    for url, tls, said in (
        ("http://127.0.0.1:9/v1", 'ca = "/x.pem"', "tls: is for https, and not for http://127.0.0.1:9/v1"),
        ("https://127.0.0.1:9/v1", 'key = "/x.key"', "tls.key: is the key of a certificate; name it"),
    ):
        path.write_text("".join(entry.format(name=name, url=url, tls=tls) for name in ("a", "b")))
        with pytest.raises(CatalogError) as refused:
            load_catalog(str(path))
        assert said in str(refused.value)
    path.write_text("".join(entry.format(name=n, url="https://127.0.0.1:9/v1", tls='ca = "/x.pem"') for n in "ab"))
    remote = load_catalog(str(path)).tiers[0].remote
    assert remote is not None
    assert remote.tls == TlsSpec(ca="/x.pem")
