"""TLS between cores and gateways: where it is required, what can be read on the way, and renewal."""

import asyncio
import os
import shutil

import msgspec
import pytest
import uvloop
from scripted_core import ScriptedCore, expected_tokens

from inference_core.errors import CoreGoneError, CoreTlsError
from inference_core.transport.certificates import make_certificates
from inference_core.transport.server import CoreServer
from inference_core.transport.tcp import CoreAddress, TcpCoreClient, TcpListener
from inference_core.transport.tls import CertificateFolder, Plain, tls_of

PROMPT = list(range(700, 760))
SECRET = b"the secret of this core"


class Relay:
    """Passes bytes on to a port of this machine and keeps them, as anyone on the way could."""

    def __init__(self, port):
        self._onward = port
        self.seen = bytearray()
        self._pipes = []

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error):
        self._server.close()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    async def _relay(self, reader, writer):
        onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", self._onward)
        for source, sink in ((reader, onward_writer), (onward_reader, writer)):
            self._pipes.append(asyncio.create_task(self._pipe(source, sink)))

    async def _pipe(self, source, sink):
        while data := await source.read(1 << 16):
            self.seen += data
            sink.write(data)
        sink.close()


@pytest.fixture
def folder(certificates, tmp_path):
    """A copy of the certificates, to change."""
    return shutil.copytree(certificates, tmp_path / "certificates")


@pytest.fixture
async def served(folder):
    """`await served(tls)` starts a core and returns its listener."""
    servers = []

    async def start(tls):
        listener = TcpListener("127.0.0.1", SECRET, tls=tls)
        servers.append(CoreServer(ScriptedCore, listener))
        await servers[-1].start()
        return listener

    yield start
    for server in servers:
        await server.stop()


async def answer(client, asked):
    return [token async for output in client.generate(asked) for token in output.token_ids]


async def answered(address, tls, asked):
    client = TcpCoreClient(address, tls=tls)
    await client.start()
    try:
        return await answer(client, asked)
    finally:
        await client.close()


@pytest.mark.parametrize("host", ["10.0.0.5", "0.0.0.0", "::", "2001:db8::5", "core.example"])
async def test_off_this_machine_neither_end_goes_without_tls(host):
    instructions = "aio certificates FOLDER.*AIO_CORE_TLS=FOLDER.*AIO_CORE_TLS=off"

    with pytest.raises(CoreTlsError, match=instructions):
        await CoreServer(ScriptedCore, TcpListener(host, SECRET)).start()
    with pytest.raises(CoreTlsError, match=instructions):
        await TcpCoreClient(CoreAddress(host=host, port=1, secret=SECRET)).start()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
async def test_on_this_machine_none_is_needed(host):
    with pytest.raises(CoreGoneError, match="no core answers"):
        await TcpCoreClient(CoreAddress(host=host, port=1, secret=SECRET)).start()


async def test_a_network_that_encrypts_is_named_by_off(served, ask):
    assert tls_of("off") is Plain.ANYWHERE
    listener = await served(Plain.ANYWHERE)

    assert await answered(listener.address, Plain.ANYWHERE, ask()) == expected_tokens([1, 2, 3], 0, 8)


async def test_what_is_asked_and_answered_cannot_be_read_on_the_way(served, folder, ask):
    asked = ask(request_id="confidential", prompt=PROMPT)
    texts = [msgspec.msgpack.encode(PROMPT), b"confidential", msgspec.msgpack.encode(expected_tokens(PROMPT, 0, 8)[0])]
    seen = {}
    for tls in (Plain.ON_LOOPBACK, CertificateFolder(folder)):
        listener = await served(tls)
        async with Relay(listener.address.port) as relay:
            address = msgspec.structs.replace(listener.address, port=relay.port)
            assert await answered(address, tls, asked) == expected_tokens(PROMPT, 0, 8)
        seen[type(tls)] = bytes(relay.seen)

    assert all(text in seen[Plain] for text in texts), "the relay sees what is not encrypted"
    assert not any(text in seen[CertificateFolder] for text in texts[:2])
    assert SECRET not in seen[CertificateFolder]


async def test_changed_bytes_end_the_connection_and_are_not_taken(served, folder, ask):
    listener = await served(CertificateFolder(folder))
    client = TcpCoreClient(listener.address, tls=CertificateFolder(folder))
    await client.start()

    client._transport._stream.write(b"\x17\x03\x03\x00\x20" + bytes(32))  # a record that the keys do not fit

    with pytest.raises(CoreGoneError, match="lost"):
        await answer(client, ask(tokens=100_000))
    await client.close()


def test_it_also_runs_on_uvloop(folder, ask):
    async def on_uvloop():
        listener = TcpListener("127.0.0.1", SECRET, tls=CertificateFolder(folder))
        server = CoreServer(ScriptedCore, listener)
        await server.start()
        tokens = await answered(listener.address, CertificateFolder(folder), ask())
        await server.stop()
        return tokens

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(on_uvloop()) == expected_tokens([1, 2, 3], 0, 8)


async def test_a_prompt_of_megabytes_arrives_whole(served, folder, ask):
    prompt = list(range(100, 900)) * 500
    tls = CertificateFolder(folder)
    listener = await served(tls)

    assert await answered(listener.address, tls, ask(prompt=prompt)) == expected_tokens(prompt, 0, 8)


async def test_a_core_with_certificates_of_another_authority_is_refused_in_words(served, folder, tmp_path):
    make_certificates(tmp_path / "foreign")
    listener = await served(CertificateFolder(tmp_path / "foreign"))
    client = TcpCoreClient(listener.address, tls=CertificateFolder(folder))

    with pytest.raises(CoreTlsError, match=r"no TLS with the core at .*: another authority signed its"):
        await client.start()
    await client.close()


async def test_a_gateway_learns_why_its_certificate_is_refused(served, folder, tmp_path):
    """The gateway trusts the core's authority too, as in a change of authorities that the core has not seen yet."""
    make_certificates(tmp_path / "next")
    with (tmp_path / "next" / "ca.crt").open("ab") as both:
        both.write((folder / "ca.crt").read_bytes())
    listener = await served(CertificateFolder(folder))
    client = TcpCoreClient(listener.address, tls=CertificateFolder(tmp_path / "next"))

    with pytest.raises(CoreTlsError, match="it does not trust the authority of our certificate"):
        await client.start()
    await client.close()


async def test_ends_with_different_settings_say_so_and_never_go_plain(served, folder):
    protected, plain = await served(CertificateFolder(folder)), await served(Plain.ON_LOOPBACK)

    with pytest.raises(
        CoreTlsError, match="started with TLS, this process without it; give both the same AIO_CORE_TLS"
    ):
        await TcpCoreClient(protected.address).start()
    with pytest.raises(CoreTlsError, match="started without TLS, this process with it"):
        await TcpCoreClient(plain.address, tls=CertificateFolder(folder)).start()


async def test_a_server_that_speaks_no_tls_is_refused_in_words(served, folder):
    plain = await served(Plain.ON_LOOPBACK)
    impostor = msgspec.structs.replace(plain.address, tls=True)

    with pytest.raises(CoreTlsError, match="it does not speak TLS"):
        await TcpCoreClient(impostor, tls=CertificateFolder(folder)).start()


async def test_renewed_certificates_are_taken_without_a_restart_and_connections_stay(served, folder, tmp_path, ask):
    theirs, ours = CertificateFolder(folder), CertificateFolder(folder)
    listener = await served(theirs)
    client = TcpCoreClient(listener.address, tls=ours)
    await client.start()
    make_certificates(tmp_path / "next")

    for part in ("ca.crt", "tls.key", "tls.crt"):
        os.replace(tmp_path / "next" / part, folder / part)

    assert await answer(client, ask()) == expected_tokens([1, 2, 3], 0, 8)
    assert await answered(listener.address, ours, ask()) == expected_tokens([1, 2, 3], 0, 8)
    assert await answered(listener.address, CertificateFolder(folder), ask()) == expected_tokens([1, 2, 3], 0, 8)
    await client.close()


async def test_files_in_the_middle_of_a_renewal_leave_the_old_ones_in_use(served, folder, tmp_path, ask, caplog):
    tls = CertificateFolder(folder)
    listener = await served(tls)
    make_certificates(tmp_path / "next")

    os.replace(tmp_path / "next" / "tls.key", folder / "tls.key")
    assert await answered(listener.address, tls, ask()) == expected_tokens([1, 2, 3], 0, 8)
    assert "tls.key is not the key of tls.crt" in caplog.text
    (folder / "tls.crt").unlink()
    assert await answered(listener.address, tls, ask()) == expected_tokens([1, 2, 3], 0, 8)


@pytest.mark.parametrize(
    ("part", "content", "reason"),
    [
        ("ca.crt", None, "No such file.*ca.crt"),
        ("tls.crt", None, "No such file.*tls.crt"),
        ("tls.key", None, "No such file.*tls.key"),
        ("ca.crt", b"", "no certificate"),
        ("tls.crt", b"nonsense", "pem"),
        ("tls.key", b"nonsense", "pem"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_at_once(folder, part, content, reason):
    (folder / part).unlink()
    if content is not None:
        (folder / part).write_bytes(content)

    with pytest.raises(CoreTlsError, match=f"(?is){reason}.*aio certificates"):
        tls_of(str(folder))


def test_a_certificate_that_has_expired_is_refused_at_once(folder):
    with pytest.raises(CoreTlsError, match="certificate has expired"):
        make_certificates(folder, days=-1)


async def test_a_certificate_that_expires_soon_is_logged(served, folder, ask, caplog):
    make_certificates(folder, days=20)
    tls = CertificateFolder(folder)
    listener = await served(tls)

    assert await answered(listener.address, tls, ask())

    assert "renew it with `aio certificates`" in caplog.text


def test_a_second_call_renews_the_certificate_of_the_same_authority(folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    make_certificates(folder)

    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {name for name in before if before[name] == after[name]} == {"ca.crt", "ca.key"}
    assert all((folder / name).stat().st_mode & 0o077 == 0 for name in ("ca.key", "tls.key"))


def test_a_folder_without_the_authoritys_key_is_left_as_it_is(folder):
    (folder / "ca.key").unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    with pytest.raises(CoreTlsError, match=r"has ca\.crt without its key ca\.key"):
        make_certificates(folder)

    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
